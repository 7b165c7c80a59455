"""Lines of the log go where they were sent, and no longer than they should."""

import io
import json
import logging

from hyphash.service import log_to
from hyphash.service.monitoring import Metrics, log


def test_lines_go_to_a_stream_until_the_end_of_the_block() -> None:
    names = ("hyphash.service", "hyphash.stores", "hyphash.searchers", "uvicorn", "uvicorn.error")
    before = [(list(x.handlers), x.propagate, x.level) for x in map(logging.getLogger, names)]
    with io.StringIO() as stream:
        with log_to(stream, "info"):
            log.info("inside", extra={"facts": {"photos": 3}})
            logging.getLogger("uvicorn.error").warning("from the server")
            log.debug("not asked for")
        log.error("outside")
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["level"], line["event"]) for line in lines] == [("info", "inside"), ("warning", "from the server")]
    assert lines[0]["photos"] == 3
    assert [(list(x.handlers), x.propagate, x.level) for x in map(logging.getLogger, names)] == before


def test_a_stream_that_is_closed_later_is_not_written_to(capsys) -> None:  # type: ignore[no-untyped-def]
    with io.StringIO() as stream, log_to(stream):
        pass
    log.warning("the stream is closed by now")
    assert "Logging error" not in capsys.readouterr().err


def test_figures_of_several_processes_are_those_of_one() -> None:
    one, other = Metrics(), Metrics()
    for metrics, times in ((one, 2), (other, 3)):
        metrics.requests.labels("GET", "/health", "200").inc(times)
        metrics.batches.observe(times)
        metrics.photos.set(66)
    other.requests.labels("GET", "/ready", "200").inc()
    one.gather = lambda own: [own, other.families()]
    lines = set(one.text().decode().splitlines())
    assert 'hyphash_requests_total{method="GET",route="/health",status="200"} 5.0' in lines
    assert 'hyphash_requests_total{method="GET",route="/ready",status="200"} 1.0' in lines
    assert {'hyphash_batch_photos_bucket{le="2.0"} 1.0', 'hyphash_batch_photos_bucket{le="4.0"} 2.0'} <= lines
    assert {"hyphash_batch_photos_sum 5.0", "hyphash_photos 66.0"} <= lines
