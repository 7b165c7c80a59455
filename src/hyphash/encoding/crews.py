"""Workers that each hold an encoder and take one shard at a time: in this process, in others, or on a Ray cluster.

Ray's actors are used as they are, not through Ray Data: a shard is finished when the driver has written it, so the
driver has to see each one arrive, and one that costs several workers their lives must be named, not tried for ever.
"""

import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
import warnings
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Thread
from typing import Any

from hyphash.encoding.shards import Encoder, Job, Shard, Task
from hyphash.errors import HyphashError, MissingExtraError, RunError
from hyphash.hasher import SPEC_FILE, WEIGHTS_FILE
from hyphash.onnx_network import ONNX_FILE

ATTEMPTS = 4  # workers that may be lost over one shard
GPU_THREADS = 8  # that decode photos for one GPU


@dataclass(frozen=True)
class Ready:
    """A worker has loaded its hasher."""


@dataclass(frozen=True)
class Lost:
    """A worker is gone; what it held must be done again."""

    reason: str


@dataclass(frozen=True)
class Failure:
    """A worker met something that no other would do better."""

    message: str
    fault: bool  # of hyphash, not of the user

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        if isinstance(error, HyphashError):
            return cls(str(error), fault=False)
        return cls("".join(traceback.format_exception(error)), fault=True)

    def error(self) -> Exception:
        return RuntimeError(self.message) if self.fault else RunError(self.message)


News = Ready | Shard | Lost | Failure


class Worker:
    """One encoder; whatever happens to it is told, not raised, so that it travels between machines."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @cached_property
    def encoder(self) -> Encoder:
        return Encoder(self.job)

    def ready(self) -> News:
        try:
            assert self.encoder
            return Ready()
        except Exception as error:
            return Failure.of(error)

    def encode(self, task: Task) -> News:
        try:
            return self.encoder.encode(task)
        except Exception as error:
            return Failure.of(error)


class Crew(ABC):
    """Workers, known by numbers. A worker that was hired says Ready, then answers every task with a Shard."""

    @abstractmethod
    def hire(self) -> None: ...

    @abstractmethod
    def give(self, worker: int, task: Task) -> None: ...

    @abstractmethod
    def news(self) -> tuple[int, News]:
        """Wait until a worker has something to tell."""

    @abstractmethod
    def dismiss(self) -> None:
        """End all workers, whatever they are at."""


def work_off(crew: Crew, tasks: Sequence[Task], workers: int) -> Iterator[Shard]:
    """Every task's shard, as they come. A task whose worker is lost goes to another."""
    waiting, idle, held = deque(tasks), list[int](), dict[int, Task]()
    losses: Counter[str] = Counter()
    try:
        for _ in range(min(workers, len(tasks))):
            crew.hire()
        missing = len(tasks)
        while missing:
            worker, news = crew.news()
            task = held.pop(worker, None)
            if isinstance(news, Failure):
                raise news.error()
            if isinstance(news, Lost):
                _count(losses, task, news)
                waiting.extendleft([task] if task else [])
                crew.hire()
            else:
                idle.append(worker)
                losses[""] = 0
            while waiting and idle:
                held[idle[-1]] = waiting.popleft()
                crew.give(idle[-1], held[idle.pop()])
            if isinstance(news, Shard):
                missing -= 1
                yield news
    finally:
        crew.dismiss()


def _count(losses: Counter[str], task: Task | None, lost: Lost) -> None:
    name = task.name if task else ""
    losses[name] += 1
    if losses[name] < ATTEMPTS:
        return
    if task is None:
        raise RunError(
            f"{ATTEMPTS} workers ended before they could begin ({lost.reason}); try --workers 1, and in a program of "
            "your own call this below `if __name__ == '__main__':`"
        )
    raise RunError(
        f"{name} was the end of {ATTEMPTS} workers ({lost.reason}), perhaps for lack of memory; "
        "take fewer --workers; all other shards that are done stay done"
    )


# ── processes of this machine ────────────────────────────────────────────────────────────────────────────


class Processes(Crew):
    """A process for each worker, on the device that fewest others use."""

    def __init__(self, job: Job, devices: Sequence[str]) -> None:
        self._job = job
        self._devices = devices
        self._numbers = count()
        self._crew: dict[int, tuple[SpawnProcess, Connection, str]] = {}

    def hire(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy threads' locks and open connections
        ours, theirs = context.Pipe()
        used = Counter(device for _, _, device in self._crew.values())
        device = min(self._devices, key=lambda name: used[name])
        process = context.Process(target=_serve, args=(replace(self._job, device=device), theirs), daemon=True)
        process.start()
        theirs.close()
        self._crew[next(self._numbers)] = process, ours, device

    def give(self, worker: int, task: Task) -> None:
        with suppress(OSError):  # it is gone, which `news` will tell
            self._crew[worker][1].send(task)

    def news(self) -> tuple[int, News]:
        by_pipe = {ours: number for number, (_, ours, _) in self._crew.items()}
        ours = connection.wait(list(by_pipe))[0]
        assert isinstance(ours, Connection)
        number = by_pipe[ours]
        try:
            return number, ours.recv()
        except (EOFError, OSError):
            process, *_ = self._crew.pop(number)
            ours.close()
            process.join()
            return number, Lost(f"exit code {process.exitcode}")

    def dismiss(self) -> None:
        for process, *_ in self._crew.values():
            process.terminate()
        for process, ours, _ in self._crew.values():
            process.join()
            process.close()
            ours.close()
        self._crew.clear()


def _serve(job: Job, pipe: Connection) -> None:
    """A worker's whole life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to deal with
    Thread(target=_end_with_parent, daemon=True).start()
    worker = Worker(job)
    try:
        pipe.send(worker.ready())
        while True:
            pipe.send(worker.encode(pipe.recv()))
    except (EOFError, OSError):
        sys.exit(0)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def gpus(job: Job) -> list[str]:
    """The GPUs of this machine that a job may use, or nothing."""
    if job.device not in ("auto", "cuda"):
        return []
    try:
        import torch
    except ImportError:
        return []
    return [f"cuda:{number}" for number in range(torch.cuda.device_count())]


# ── a Ray cluster ────────────────────────────────────────────────────────────────────────────────────────


class OnRay(Crew):
    """An actor for each worker, with one GPU or one core. The hasher travels to them; the source must be in reach."""

    def __init__(self, job: Job, address: str) -> None:
        self._ray, self._ours = _connect(address)
        resources = self._ray.cluster_resources()
        wants_gpu = job.device != "cpu" and resources.get("GPU", 0) >= 1
        self.room = max(1, int(resources["GPU"] if wants_gpu else resources.get("CPU", 1)))
        threads = GPU_THREADS if wants_gpu else 1
        self._job = replace(job, threads=job.threads or threads)
        self._actor = self._ray.remote(num_cpus=1, num_gpus=int(wants_gpu), max_restarts=0)(TravellingWorker)
        files = {name: (job.run / name) for name in (SPEC_FILE, WEIGHTS_FILE, ONNX_FILE)}
        self._files = self._ray.put({name: path.read_bytes() for name, path in files.items() if path.is_file()})
        self._numbers = count()
        self._crew: dict[int, Any] = {}
        self._awaited: dict[Any, int] = {}

    def hire(self) -> None:
        number = next(self._numbers)
        self._crew[number] = self._actor.remote(self._job, self._files)
        self._awaited[self._crew[number].ready.remote()] = number

    def give(self, worker: int, task: Task) -> None:
        self._awaited[self._crew[worker].encode.remote(task)] = worker

    def news(self) -> tuple[int, News]:
        (answer,), _ = self._ray.wait(list(self._awaited), num_returns=1)
        number = self._awaited.pop(answer)
        try:
            news: News = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:  # the actor, its machine, or what it answered
            self._ray.kill(self._crew.pop(number))
            return number, Lost(str(error).splitlines()[0])
        return number, news

    def dismiss(self) -> None:
        for worker in self._crew.values():
            self._ray.kill(worker)
        self._crew.clear()
        if self._ours:
            self._ray.shutdown()


class TravellingWorker(Worker):
    """A worker on a machine where the run is not: it brings the files of its hasher along."""

    def __init__(self, job: Job, files: dict[str, bytes]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hyphash-")
        for name, data in files.items():
            Path(self._folder.name, name).write_bytes(data)
        super().__init__(replace(job, run=Path(self._folder.name)))


def _connect(address: str) -> tuple[Any, bool]:
    """Ray, and whether it is ours to shut down."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anyone
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("encoding on a Ray cluster", "cluster") from error
    if ray.is_initialized():
        return ray, False
    settings: dict[str, Any] = {"address": "local", "include_dashboard": False}
    if address != "ray":
        settings = {"address": address}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks of Ray's about its own future
        try:
            ray.init(**settings, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise RunError(
                f"{address}: no Ray cluster answers ({reason}); start one with `ray start --head` or omit --address"
            ) from error
    return ray, True
