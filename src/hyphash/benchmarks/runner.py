"""Runs, one after the other or side by side on one device: train with the product's own loop, measure, keep.

Every worker has the photos to evaluate with decoded once. A run that died is continued from its folder; one that
fails is reported and the others go on.
"""

import platform
import shutil
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch

from hyphash import __version__
from hyphash.benchmarks.runs import Point, Record, Results, Run, RunCodes
from hyphash.config import Config, to_table
from hyphash.datasets import Split, Splits
from hyphash.errors import HyphashError
from hyphash.evaluation import EncodedSplit, Report, encode_split, evaluate
from hyphash.features import default_cache
from hyphash.files import append_json, read_json_lines
from hyphash.hasher import Hasher, choose_device
from hyphash.losses.relevance import load_relevance
from hyphash.machine import default_threads
from hyphash.training import Epoch, fit, prepare
from hyphash.training.inputs import load_inputs, outputs_of
from hyphash.training.runs import CONFIG_FILE, HISTORY_FILE, is_finished, open_run, read_run
from hyphash.training.session import take_quantizer
from hyphash.workers import Workers, told_to_stop

CURVE_FILE = "curve.jsonl"
GRACE = 60.0  # seconds in which a run that is stopped saves its state
Stop = Callable[[], bool]


@dataclass(frozen=True)
class Place:
    """Where the work happens: the photos, the weights' file, the device, and the results."""

    splits: Splits
    results: Results
    data: str = ""
    weights: str = "default"
    device: str = "auto"
    jobs: int = 1
    keep_weights: bool = False
    cache: Path = field(default_factory=default_cache)


@dataclass(frozen=True)
class Event:
    """Something that happened to a run."""

    run: Run
    kind: Literal["epoch", "finished", "failed"]
    epoch: Epoch | None = None
    record: Record | None = None
    reason: str = ""


def execute(runs: Sequence[Run], place: Place, stop: Stop = lambda: False) -> Iterator[Event]:
    """Do all runs, `place.jobs` at a time, and yield what happens. On `stop` the runs under way are saved.

    A process that dies costs the run it was at, not the others.
    """
    beside = min(place.jobs, len(runs)) if len(runs) > 1 and place.jobs > 1 else 0
    longest_first = sorted(runs, key=lambda run: -run.steps(len(place.splits.train))) if beside else runs
    threads = max(1, default_threads() // max(beside, 1))
    with Workers(beside, setup=partial(Worker, place), threads=threads) as pool:
        work = Worker.events if beside else partial(Worker.events, stop=stop)
        for run, event in pool.as_done(work, longest_first, stop=stop, grace=GRACE):
            lost = isinstance(event, Exception)
            yield Event(run, "failed", reason=f"its process died ({event})") if lost else event


class Worker:
    """One process's share of the work."""

    def __init__(self, place: Place, _number: int = 0) -> None:
        self.place = place
        self._decoded: dict[Any, Any] = {}  # photos to evaluate with, by part and preprocessing

    def events(self, run: Run, stop: Stop = told_to_stop) -> Iterator[Event]:
        """Do a run. A failure is an event too: the other runs go on."""
        try:
            yield from self._events(run, stop)
        except HyphashError as error:
            yield Event(run, "failed", reason=str(error))
        except Exception:
            yield Event(run, "failed", reason=traceback.format_exc())

    def _events(self, run: Run, stop: Stop) -> Iterator[Event]:
        began = time.monotonic()
        folder = self.place.results.work / run.hash
        weights = self.place.weights if run.weights.digest else run.weights.name
        config = replace(run.config, data=self.place.data, weights=weights, device=self.place.device)
        config = replace(config, label_layer=False)  # which takes time and changes nothing of the codes
        memory = _watch_memory(choose_device(self.place.device))
        if is_finished(folder):
            hasher = Hasher.load(folder, device=self.place.device)
        else:
            begun = (folder / CONFIG_FILE).is_file()
            if begun:
                config = replace(config, threads=read_run(folder).threads)
            config, hasher, loss, _ = prepare(config, self.place.splits)
            if not begun:
                open_run(folder, config)
            for epoch in fit(hasher, loss, self.place.splits, config, folder=folder, cache=self.place.cache, stop=stop):
                if run.watch and (epoch.number % run.watch == 0 or epoch.number == epoch.of):
                    self._look(hasher, config, epoch, folder)
                yield Event(run, "epoch", epoch=epoch)
            if not is_finished(folder):
                return  # stopped; the state is saved
        record, codes = self._measure(run, hasher, config, folder, began, memory())
        self.place.results.keep(record, codes)
        if not self.place.keep_weights:
            shutil.rmtree(folder, ignore_errors=True)
        yield Event(run, "finished", record=record)

    def _look(self, hasher: Hasher, config: Config, epoch: Epoch, folder: Path) -> None:
        """Measure the queries in the middle of a run; the clock of training stands still meanwhile."""
        take_quantizer(hasher)
        report, _ = self._evaluated(hasher, config, asymmetric=False)
        paper, strict = (scores.mean_average_precision for scores in report.scores[:2])
        append_json(folder / CURVE_FILE, asdict(Point(epoch.number, epoch.seconds, paper, strict)))

    def _measure(
        self, run: Run, hasher: Hasher, config: Config, folder: Path, began: float, memory: float | None
    ) -> tuple[Record, RunCodes]:
        start = time.monotonic()
        report, codes = self._evaluated(hasher, config)
        now = time.monotonic()
        last = read_json_lines(folder / HISTORY_FILE)[-1]
        points = {line["epoch"]: Point(**line) for line in read_json_lines(folder / CURVE_FILE)}
        half = config.precision == "bfloat16" or (config.precision == "auto" and hasher.device.type == "cuda")
        record = Record(
            hash=run.hash,
            config=to_table(config)
            | {"data": "", "weights": run.weights.name, "device": hasher.device.type}
            | {"weights_by_backbone": {}},  # its weights' names say it, without places on this machine
            weights=run.weights,
            report=report.with_own_queries(),
            versions={"hyphash": __version__, "python": platform.python_version()}
            | {package: version(package) for package in ("torch", "torchvision", "numpy")},
            device=device_name(hasher.device),
            precision="bfloat16" if half else "float32",
            alongside=self.place.jobs,
            seconds={"training": last["seconds"], "evaluation": now - start, "whole": now - began},
            epoch=last["number"],
            loss=last["loss"],
            photos=len(self.place.splits.train),
            memory=memory,
            curve=tuple(points[number] for number in sorted(points)),
        )
        return record, codes

    def _evaluated(self, hasher: Hasher, config: Config, *, asymmetric: bool = True) -> tuple[Report, RunCodes]:
        splits = self.place.splits
        queries, database = (self._encoded(hasher, config, part) for part in (splits.queries, splits.database))
        facts = {"loss": config.loss, "backbone": config.backbone, "epoch": "last"}
        report = evaluate(
            hasher, splits, top=config.top, asymmetric=asymmetric, encoded=(queries, database), facts=facts,
            relevance=load_relevance(config.relevance, splits.classes),
        )  # fmt: skip
        return report, RunCodes(queries.codes, database.codes, None if hasher.quantizer else queries.outputs)

    def _encoded(self, hasher: Hasher, config: Config, photos: Split) -> EncodedSplit:
        """The photos that can be read; decoded once by each worker, or seen once by a frozen backbone.

        Problems with the others name places on this machine, which results do not.
        """
        if config.mode == "frozen":
            return replace(encode_split(hasher, photos, cache=self.place.cache), problems=())
        key = id(photos), hasher.spec.preprocessing
        if key not in self._decoded:
            self._decoded[key] = load_inputs(hasher, photos, frozen=False, cache=self.place.cache)
        inputs, problems = self._decoded[key]
        bad = {problem.name for problem in problems}
        read = photos.take([i for i in range(len(photos)) if photos.name(i) not in bad]) if bad else photos
        rows = torch.arange(len(inputs), device=hasher.device)
        outputs = outputs_of(hasher, replace(inputs, hasher=hasher), rows)
        return EncodedSplit(read, outputs, hasher.to_codes(outputs))


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def _watch_memory(device: torch.device) -> Callable[[], float | None]:
    """How much of the GPU's memory is taken at the peak from now on, in MiB, beyond what is taken now."""
    if device.type != "cuda":
        return lambda: None
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    return lambda: (torch.cuda.max_memory_allocated(device) - before) / 2**20


@dataclass
class Work:
    """What is to be done, and the doing of it: `events` does the runs as it is walked through.

    How long the rest takes follows from the share of the steps that is done.
    """

    runs: Sequence[Run] = ()
    events: Iterable[Event] = ()
    photos: int = 0
    notes: tuple[str, ...] = ()
    done: dict[str, float] = field(default_factory=dict)  # steps, by the run's hash
    ended: set[str] = field(default_factory=set)  # finished or failed
    began: float = field(default_factory=time.monotonic)

    def note(self, event: Event) -> None:
        share = event.epoch.number / max(event.epoch.of, 1) if event.epoch else 1.0
        if event.kind != "epoch":
            self.ended.add(event.run.hash)
        self.done[event.run.hash] = share * event.run.steps(self.photos)

    @property
    def share(self) -> float:
        return sum(self.done.values()) / max(sum(run.steps(self.photos) for run in self.runs), 1)

    def __str__(self) -> str:
        if not self.share:
            return "time left unknown"
        return f"{magnitude((time.monotonic() - self.began) * (1 - self.share) / self.share)} left"


def magnitude(seconds: float) -> str:
    """A time as a person says it.

    >>> [magnitude(s) for s in (4, 50, 200, 1500, 7000, 200000)]
    ['seconds', 'about a minute', 'about 3 minutes', 'about 25 minutes', 'about 2 hours', 'about 2 days']
    """
    for unit, one, many in ((86400, "a day", "days"), (3600, "an hour", "hours"), (60, "a minute", "minutes")):
        if (number := round(seconds / unit)) >= 1:
            return f"about {one}" if number == 1 else f"about {number} {many}"
    return "seconds"
