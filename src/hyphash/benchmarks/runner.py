"""Runs, one after the other or side by side on one device: train with the product's own loop, measure, keep.

Every worker has the photos to evaluate with decoded once. A run that died is continued from its folder; one that
fails is reported and the others go on.
"""

import multiprocessing
import os
import platform
import queue
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hyphash import __version__
from hyphash.benchmarks.runs import Point, Record, Results, Run, RunCodes
from hyphash.config import Config, to_table
from hyphash.datasets import Split, Splits
from hyphash.errors import HyphashError
from hyphash.evaluation import Report, evaluate_codes
from hyphash.features import default_cache
from hyphash.files import append_json, read_json_lines
from hyphash.hasher import Hasher, choose_device
from hyphash.photos import Preprocessing
from hyphash.training import Epoch, fit, prepare
from hyphash.training.inputs import Inputs, PixelInputs, StreamedInputs, load_inputs, outputs_of
from hyphash.training.runs import CONFIG_FILE, HISTORY_FILE, is_finished, open_run, read_run
from hyphash.training.validation import take_quantizer

CURVE_FILE = "curve.jsonl"
THREADS = "OMP_NUM_THREADS"
PATIENCE = 1.0  # seconds between two looks at whether the workers live
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
    """Do all runs, `place.jobs` at a time, and yield what happens. On `stop` the runs under way are saved."""
    if place.jobs == 1 or len(runs) < 2:
        worker = Worker(place)
        for run in runs:
            if not stop():
                yield from worker.events(run, stop)
    else:
        yield from _side_by_side(runs, place, stop)


class Worker:
    """One process's share of the work."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._decoded: dict[tuple[str, Preprocessing], Inputs] = {}

    def events(self, run: Run, stop: Stop) -> Iterator[Event]:
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
        config = replace(run.config, data=self.place.data, weights=self._weights(run), device=self.place.device)
        memory = _Memory(choose_device(self.place.device))
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
        record, codes = self._measure(run, hasher, config, folder, began, memory.peak())
        self.place.results.keep(record, codes)
        if not self.place.keep_weights:
            shutil.rmtree(folder, ignore_errors=True)
        yield Event(run, "finished", record=record)

    def _weights(self, run: Run) -> str:
        return run.weights.name if not run.weights.digest else self.place.weights

    def _look(self, hasher: Hasher, config: Config, epoch: Epoch, folder: Path) -> None:
        """Measure the queries in the middle of a run; the clock of training stands still meanwhile."""
        take_quantizer(hasher)
        report, _ = self._evaluated(hasher, config, asymmetric=hasher.quantizer is not None)
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
            config={**to_table(config), "data": "", "weights": run.weights.name, "device": hasher.device.type},
            weights=run.weights,
            report=report,
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
        queries, query_labels = self._outputs(hasher, config, "queries", splits.queries)
        database, database_labels = self._outputs(hasher, config, "database", splits.database)
        codes = RunCodes(hasher.to_codes(queries), hasher.to_codes(database), None if hasher.quantizer else queries)
        report = evaluate_codes(
            codes.queries,
            codes.database,
            query_labels,
            database_labels,
            top=config.top,
            query_outputs=queries if asymmetric else None,
            quantizer=hasher.quantizer,
            classes=splits.classes,
            dataset=splits.name,
            facts={"loss": config.loss, "backbone": config.backbone, "epoch": "last"},
        )
        return report, codes

    def _outputs(
        self, hasher: Hasher, config: Config, part: str, photos: Split
    ) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Outputs and labels of the photos that can be read. Photos are decoded once, for all runs of this worker."""
        frozen = config.mode == "frozen"
        key = (part, hasher.spec.preprocessing)
        inputs = self._decoded.get(key)
        if isinstance(inputs, PixelInputs | StreamedInputs):
            inputs = replace(inputs, hasher=hasher)
        else:
            inputs, _ = load_inputs(hasher, photos, frozen=frozen, cache=self.place.cache)
            assert inputs is not None, "nobody asked to stop"
        if not frozen:
            self._decoded[key] = inputs
        rows = torch.arange(len(inputs), device=hasher.device)
        return outputs_of(hasher, inputs, rows), inputs.labels.cpu().numpy().astype(np.uint8)


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


class _Memory:
    """How much of the GPU's memory a run takes at its peak, in MiB, beyond what was there before it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.before = torch.cuda.memory_allocated(device)

    def peak(self) -> float | None:
        if self.device.type != "cuda":
            return None
        return (torch.cuda.max_memory_allocated(self.device) - self.before) / 2**20


# ── side by side ─────────────────────────────────────────────────────────────────────────────────────────


def _side_by_side(runs: Sequence[Run], place: Place, stop: Stop) -> Iterator[Event]:
    """Spawned workers take runs from one list. A worker that dies costs the run it was at, not the others."""
    context = multiprocessing.get_context("spawn")
    tasks, events, stopped = context.Queue(), context.Queue(), context.Event()
    photos = len(place.splits.train)
    for number in sorted(range(len(runs)), key=lambda i: -runs[i].steps(photos)):  # none of the long ones comes last
        tasks.put(number)
    workers = [
        context.Process(target=_work, args=(i, list(runs), place, tasks, events, stopped), daemon=True)
        for i in range(min(place.jobs, len(runs)))
    ]
    with _shared_cores(len(workers)):
        for worker in workers:
            worker.start()
    at: dict[int, int | None] = dict.fromkeys(range(len(workers)))  # which run each worker is at
    try:
        while at:
            if stop():
                stopped.set()
            try:
                worker, number, event = events.get(timeout=PATIENCE)
            except queue.Empty:
                for lost in [i for i in at if not workers[i].is_alive()]:
                    last = at.pop(lost)
                    if last is not None:
                        yield Event(runs[last], "failed", reason=f"its process died ({workers[lost].exitcode})")
                continue
            if event is None and number is None:  # nothing left to take
                del at[worker]
                continue
            at[worker] = number if event is None or event.kind == "epoch" else None
            if event is not None:
                yield event
    finally:
        stopped.set()
        for process in workers:
            process.join(timeout=60)
            if process.is_alive():
                process.terminate()


@contextmanager
def _shared_cores(workers: int) -> Iterator[None]:
    """Processes that start meanwhile let numpy and torch use their share of the cores, not all of them each."""
    before = os.environ.get(THREADS)
    os.environ[THREADS] = before or str(max(1, (os.cpu_count() or 1) // workers))
    try:
        yield
    finally:
        if before is None:
            del os.environ[THREADS]


def _work(me: int, runs: list[Run], place: Place, tasks: Any, events: Any, stopped: Any) -> None:
    """The life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which tells us
    worker = Worker(place)
    while not stopped.is_set():
        try:
            number = tasks.get(timeout=PATIENCE)
        except queue.Empty:
            break
        events.put((me, number, None))
        for event in worker.events(runs[number], stopped.is_set):
            events.put((me, number, event))
    events.put((me, None, None))


# ── time left ────────────────────────────────────────────────────────────────────────────────────────────


class TimeLeft:
    """How long the rest takes, from the share of the steps that is done."""

    def __init__(self, runs: Sequence[Run], photos: int) -> None:
        self.photos = photos
        self.total = sum(run.steps(photos) for run in runs)
        self.done: dict[str, float] = {}
        self.ended: set[str] = set()  # finished or failed
        self.began = time.monotonic()

    def note(self, event: Event) -> None:
        share = 1.0
        if event.kind == "epoch" and event.epoch is not None:
            share = event.epoch.number / max(event.epoch.of, 1)
        if event.kind != "epoch":
            self.ended.add(event.run.hash)
        self.done[event.run.hash] = share * event.run.steps(self.photos)

    @property
    def share(self) -> float:
        return sum(self.done.values()) / max(self.total, 1)

    def seconds(self) -> float | None:
        passed = time.monotonic() - self.began
        return passed * (1 - self.share) / self.share if self.share > 0 else None

    def __str__(self) -> str:
        left = self.seconds()
        return "time left unknown" if left is None else f"{magnitude(left)} left"


def magnitude(seconds: float) -> str:
    """A time as a person says it.

    >>> [magnitude(s) for s in (4, 50, 200, 1500, 7000, 200000)]
    ['seconds', 'about a minute', 'about 3 minutes', 'about 25 minutes', 'about 2 hours', 'about 2 days']
    """
    if seconds < 30:
        return "seconds"
    for unit, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        number = round(seconds / unit)
        if number >= 1:
            if number == 1:
                return f"about {'an' if name == 'hour' else 'a'} {name}"
            return f"about {number} {name}s"
    return "seconds"
