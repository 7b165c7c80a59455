"""The one pool of workers: processes that work for the threads of this one, or those threads alone.

Threads share the interpreter's lock. Two or three of them decode photos as fast as their cores can; sixteen on sixteen
cores wait for each other most of the time. A process has a lock of its own, takes a third of a second to start, and
what crashes a library ends that process, not the program.

>>> with Workers(2, setup=partial(load_model, "runs/demo")) as pool:                    # doctest: +SKIP
...     for task, result in pool.as_done(Model.predict, tasks):
...         print(task, result)

Processes are started by their command line, not by `multiprocessing`, which would run the user's script again. They
are deaf to Ctrl-C, which is for the one that asks, and end with it. Work, arguments and results are pickled.
"""

import os
import pickle
import signal
import subprocess
import sys
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from queue import Empty, LifoQueue, Queue, SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, TypeVar, cast

from hyphash.errors import HyphashError
from hyphash.machine import THREADS, default_threads

PATIENCE = 1.0  # seconds between two looks at whether to stop

T = TypeVar("T")
R = TypeVar("R")
_told_to_stop = Event()  # in a worker


class LostError(Exception):
    """The process that was at a task has ended, as often as the task may be tried."""


@dataclass(frozen=True)
class Failure:
    """An error in a form that travels: one of ours as it is, any other with its traceback."""

    kind: type[Exception]
    message: str

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        if isinstance(error, HyphashError):
            return cls(type(error), str(error))
        return cls(RuntimeError, "in a worker:\n" + "".join(traceback.format_exception(error)))

    def error(self) -> Exception:
        return self.kind.__new__(self.kind, self.message)  # past its own __init__, which may want other words


class Workers(AbstractContextManager["Workers"]):
    """Some processes that work for the threads of this one; with 0 of them the threads do it themselves.

    setup     makes, from its number, what a worker holds: the first argument of all its work, such as a loaded network
              on the device of that number; one that makes None has only prepared the process
    threads   cores that a worker's own libraries may use (OMP_NUM_THREADS, HYPHASH_THREADS)
    attempts  workers that may be lost over one task; each is replaced, and the task given to the new one
    files     numbers of open files, such as sockets, that they inherit
    """

    def __init__(
        self, processes: int = 0, *, setup: Callable[[int], Any] | None = None, threads: int = 1, attempts: int = 1,
        files: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.processes = processes
        self._setup = setup
        self._own: tuple[Any, ...] = ()
        self._lock = Lock()
        self._attempts = attempts
        self._ending = Event()
        self._all = [_Worker(number, setup, threads, files) for number in range(processes)]
        self._idle: LifoQueue[_Worker] = LifoQueue()  # the latest first: no more are started than are needed
        for worker in self._all:
            self._idle.put(worker)
        self.close = weakref.finalize(self, _close_all, self._all)  # at the latest when nobody has it any more

    @property
    def threads(self) -> int:
        """How many threads keep them busy."""
        return self.processes or default_threads()

    def call(self, work: Callable[..., R], *args: Any) -> R:
        """`work` of these arguments, in a worker that is idle, or as soon as one is; for any thread.

        An error of hyphash's is raised here as it was there, another as a RuntimeError. Raises LostError.
        """
        (result,) = self._results(work, args)
        return cast(R, result)

    def as_done(
        self, work: Callable[..., Any], items: Sequence[T], *, stop: Callable[[], bool] | None = None, grace: float = 0
    ) -> Iterator[tuple[T, Any]]:
        """Each item with `work` of it, as they come; a LostError where its workers were lost. Other errors are raised.

        Where `work` is a generator, an item comes with each of the values that it yields. Without processes, all is
        done here, one item after the other. Once `stop` says so, no item is begun any more, and `told_to_stop` is true
        for those at work. Whoever ends this ends the workers too, which have `grace` seconds to come to an end.
        """
        if not self.processes:
            for item in items:
                if not (stop and stop()):
                    for result in self._results(work, (item,)):
                        yield item, result
            return
        done: Queue[Any] = Queue()
        with ThreadPoolExecutor(self.processes) as executor:
            futures = [executor.submit(self._work_off, work, item, done) for item in items]
            try:
                yield from self._arriving(done, len(futures), stop)
            finally:
                self._stop()
                wait(futures, timeout=grace)
                self.close()

    def _work_off(self, work: Callable[..., Any], item: T, done: "Queue[Any]") -> None:
        try:
            for result in () if self._ending.is_set() else self._results(work, (item,)):
                done.put((item, result))
        except LostError as error:
            done.put((item, error))
        except BaseException as error:
            done.put(error)
        done.put(None)

    def _arriving(self, done: "Queue[Any]", left: int, stop: Callable[[], bool] | None) -> Iterator[Any]:
        while left:
            if stop and stop():
                self._stop()
            try:
                found = done.get(timeout=PATIENCE)
            except Empty:
                continue
            if isinstance(found, BaseException):
                raise found
            left -= found is None
            if found is not None:
                yield found

    def _results(self, work: Callable[..., Any], args: tuple[Any, ...]) -> Iterator[Any]:
        if not self.processes:
            yield from _all_of(work(*self._held(), *args))
            return
        worker = self._idle.get()
        try:
            for left in reversed(range(self._attempts)):
                try:
                    yield from worker.results(work, args)
                    break
                except LostError:
                    if not left or self._ending.is_set():
                        raise
        finally:
            self._idle.put(worker)

    def _held(self) -> tuple[Any, ...]:
        """What this process holds, where there are no others."""
        with self._lock:  # of this pool alone: what is set up may have workers of its own
            if self._setup and not self._own:
                self._own = (self._setup(0),)
        return self._own

    def _stop(self) -> None:
        """No more is begun; those who are at work are told."""
        if not self._ending.is_set():
            self._ending.set()
            for worker in self._all:
                with suppress(OSError, ValueError):
                    worker.send(None)

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(eq=False)
class _Worker:
    """One process, started when it is first asked, and again after a loss."""

    number: int
    setup: Callable[[int], Any] | None
    threads: int
    files: Sequence[int]
    process: subprocess.Popen[bytes] | None = None
    closed: bool = False
    lock: Lock = field(default_factory=Lock)

    def results(self, work: Callable[..., Any], args: tuple[Any, ...]) -> Iterator[Any]:
        """What the work gives, value by value."""
        if self.process is None or self.process.poll() is not None:
            self._start()
            try:
                deque(self._answers(self.setup, (self.number,)), maxlen=0)
            except LostError as error:
                raise LostError(f"{error} before it could begin") from error
        yield from self._answers(work, args)

    def _start(self) -> None:
        self.end()
        home = str(Path(__file__).parents[1])
        settings = {"PYTHONPATH": os.pathsep.join(dict.fromkeys([home, *sys.path]))}
        settings |= dict.fromkeys(("OMP_NUM_THREADS", THREADS), str(self.threads))
        with self.lock, deaf_to_ctrl_c():
            if self.closed:
                raise LostError("the pool was closed")
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", "from hyphash.workers import serve; serve()"], env=os.environ | settings,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=self.files,
            )  # fmt: skip

    def _answers(self, work: Callable[..., Any] | None, args: tuple[Any, ...]) -> Generator[Any, None, None]:
        process = self.process
        assert process, "it was started"
        assert process.stdout, "it was started with pipes"
        kind = value = None
        try:
            self.send(pickle.dumps((work, args), pickle.HIGHEST_PROTOCOL))
            while kind not in ("end", "failure"):
                kind, value = pickle.load(process.stdout)
                if kind == "result":
                    yield value
        except (EOFError, OSError, ValueError, pickle.UnpicklingError) as error:  # ValueError: its pipes were closed
            self.end()
            raise LostError(f"exit code {process.returncode}") from error
        except BaseException:
            self.end()  # what it has still to say is of no use
            raise
        if isinstance(value, Failure):
            raise value.error()

    def send(self, message: bytes | None) -> None:
        """A task, or the wish that it come to an end."""
        with self.lock:
            if self.process and self.process.stdin:
                pickle.dump(message, self.process.stdin)
                self.process.stdin.flush()

    def end(self, *, for_good: bool = False) -> None:
        with self.lock:
            self.closed |= for_good
            process, self.process = self.process, None
        if process:
            with suppress(OSError), process:  # its pipes are closed, and it is waited for
                process.kill()


def _close_all(workers: "Iterable[_Worker]") -> None:
    for worker in workers:
        worker.end(for_good=True)


@contextmanager
def deaf_to_ctrl_c() -> Iterator[None]:
    """Processes that are started in here never get it: they inherit what this thread, and no other, blocks.

    That they ignore it themselves comes too late for the one that is pressed while Python starts.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ── in a worker ──────────────────────────────────────────────────────────────────────────────────────────


def told_to_stop() -> bool:
    """In a worker: whether it should bring what it is at to an early end."""
    return _told_to_stop.is_set()


def serve() -> None:
    """A worker's whole life: work in, results out, until nobody is there to ask."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Windows, where nothing can be blocked
    tasks: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_listen, args=(tasks,), daemon=True).start()
    state: list[Any] = []  # what it holds, once it is set up
    with suppress(BrokenPipeError), os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints is no answer

        def tell(kind: str, value: Any = None) -> None:
            answers.write(pickle.dumps((kind, value), pickle.HIGHEST_PROTOCOL))
            answers.flush()

        for number in count():
            task = tasks.get()
            try:
                work, args = pickle.loads(task)
                if number == 0:
                    held = work(*args) if work else None
                    state = [] if held is None else [held]
                else:
                    for value in _all_of(work(*state, *args)):
                        tell("result", value)
                tell("end")
            except Exception as error:
                tell("failure", Failure.of(error))


def _listen(tasks: "SimpleQueue[bytes]") -> None:
    """Take in tasks and the wish to stop, and end the process with the one that asks, whatever it is at."""
    try:
        while True:
            task = pickle.load(sys.stdin.buffer)
            if task is None:
                _told_to_stop.set()
            else:
                tasks.put(task)
    finally:
        os._exit(1)


def _all_of(found: Any) -> Iterable[Any]:
    """The values of a generator, or the one value of any other work."""
    return found if isinstance(found, Generator) else (found,)


# ── threads ──────────────────────────────────────────────────────────────────────────────────────────────


def in_threads(work: Callable[[T], R], items: Iterable[T], *, workers: int, ahead: int) -> Iterator[R]:
    """`work` of each item, in order, done in threads that run up to `ahead` items in front."""
    pending: deque[Future[R]] = deque()
    with ThreadPoolExecutor(workers) as executor:
        try:
            for item in items:
                pending.append(executor.submit(work, item))
                if len(pending) > ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items, `size` at a time."""
    left = iter(items)
    while batch := list(islice(left, size)):
        yield batch
