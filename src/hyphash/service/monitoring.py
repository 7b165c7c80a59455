"""What operators see: Prometheus metrics and one line of JSON for each request and event."""

import json
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client import generate_latest as _latest
from prometheus_client.core import Metric, Sample

log = logging.getLogger("hyphash.service")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SAME = ("hyphash_photos", "python_info", "process_max_fds", "process_start_time_seconds")  # of all processes
Families = list[Metric]  # figures, as prometheus_client has them
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The figures of one service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.gather: Callable[[Families], list[Families]] | None = None  # those of all, for those of this process
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self.requests = Counter(
            "hyphash_requests", "Requests answered.", ("method", "route", "status"), registry=registry
        )
        self.seconds = Histogram(
            "hyphash_request_seconds", "Time to answer.", ("route",), registry=registry, buckets=SECONDS
        )
        self.in_flight = Gauge("hyphash_requests_in_flight", "Requests being answered.", registry=registry)
        self.refused = Counter("hyphash_refused", "Requests turned away for load.", registry=registry)
        self.batches = Histogram(
            "hyphash_batch_photos", "Photos that the network saw at once.", registry=registry, buckets=SIZES
        )
        self.photos = Gauge("hyphash_photos", "Photos in the collection.", registry=registry)
        self.waiting = Gauge("hyphash_waiting", "Pieces of work that run or wait.", ("pool",), registry=registry)

    def text(self) -> bytes:
        """Of all processes of the service, where there are several."""
        own = self.families()
        found = added_up(self.gather(own)) if self.gather else own
        return _latest(cast(CollectorRegistry, SimpleNamespace(collect=lambda: found)))  # for one that has them already

    def families(self) -> Families:
        return list(self.registry.collect())


def added_up(every: Iterable[Families]) -> Families:
    """The figures of several processes as those of one: sums, or the largest of what each says of the same thing."""
    found: dict[str, Metric] = {}
    values: dict[str, dict[tuple[str, frozenset[tuple[str, str]]], Sample]] = {}
    for family in (family for families in every for family in families):
        found.setdefault(family.name, family)
        sums = values.setdefault(family.name, {})
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            values_of_it = sample.value, sums[key].value if key in sums else sample.value * 0
            same = sample.name in SAME or sample.name.endswith("_created")
            sums[key] = sample._replace(value=(max if same else sum)(values_of_it))
    for name, family in found.items():
        family.samples = list(values[name].values())
    return list(found.values())


class JsonLines(logging.Formatter):
    """Each record as one line of JSON; what came with `extra={"facts": …}` stands beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z"
        line = {"time": moment, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)  # escaped: whatever a request carried, a line stays a line


def log_to(stream: Any, level: str = "info") -> ExitStack:
    """Send the lines of the service and of its server to a stream: until the end of a `with`, else for good."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    before = ExitStack()
    for name in ("hyphash.service", "hyphash.stores", "hyphash.searchers", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        before.callback(_set, logger, logger.handlers, logger.propagate, logger.level)
        _set(logger, [handler] if name != "uvicorn.error" else [], name == "uvicorn.error", level.upper())
    return before


def _set(logger: logging.Logger, handlers: list[logging.Handler], propagate: bool, level: int | str) -> None:
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)
