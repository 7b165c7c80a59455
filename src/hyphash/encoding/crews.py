"""Workers that each hold an encoder and take one shard at a time, and a crew of them in processes of this machine."""

import multiprocessing
import os
import signal
import sys
import traceback
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from threading import Thread

from hyphash.decoding import deaf_to_ctrl_c
from hyphash.encoding.shards import Encoder, Job, Shard, Task
from hyphash.errors import HyphashError, RunError
from hyphash.machine import keep_memory

ATTEMPTS = 4  # workers that may be lost over one shard


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
        keep_memory()
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


class Processes:
    """A process for each worker, on the device that fewest others use; workers are known by numbers.

    A worker that was hired says Ready, then answers every task with a Shard.
    """

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
        resource_tracker.ensure_running()  # `start` would do it, and unblock SIGINT on the way
        with deaf_to_ctrl_c():
            process.start()
        theirs.close()
        self._crew[next(self._numbers)] = process, ours, device

    def give(self, worker: int, task: Task) -> None:
        with suppress(OSError):  # it is gone, which `news` will tell
            self._crew[worker][1].send(task)

    def news(self) -> tuple[int, News]:
        """Wait until a worker has something to tell."""
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
        """End all workers, whatever they are at."""
        for process, *_ in self._crew.values():
            process.terminate()
        for process, ours, _ in self._crew.values():
            process.join()
            process.close()
            ours.close()
        self._crew.clear()


def work_off(crew: Processes, tasks: Sequence[Task], workers: int) -> Iterator[Shard]:
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
            if isinstance(news, Lost) and worker in idle:
                idle.remove(worker)  # nothing is waiting: where others are lost, others are hired
            elif isinstance(news, Lost):
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
