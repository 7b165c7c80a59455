"""Photos decoded on many cores: in threads where cores or photos are few, else in processes.

Threads share the interpreter's lock. Two or three of them decode photos as fast as their cores can; sixteen on sixteen
cores wait for each other most of the time. A process has a lock of its own, takes a third of a second to start, and a
photo that crashes the library that decodes it ends that process, not the program.

The processes are started by their command line, not by `multiprocessing`, which would run the user's script again.
"""

import os
import pickle
import signal
import subprocess
import sys
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from queue import LifoQueue
from types import TracebackType
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hyphash.errors import HyphashError, MissingExtraError, PhotoError
from hyphash.machine import default_threads
from hyphash.photos import Preprocessing, decode

FEW_CORES = 3  # up to here threads do as well
PHOTOS_EACH = 64  # that make it worth while to start another process
TOGETHER = 8  # photos that a process is given at once


class Named(Protocol):
    """A photo that has not been decoded yet; it can be pickled."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class File:
    """The content of a photo file."""

    name: str
    data: bytes


def pixels_of(file: File, *, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """What a network sees of a photo file. Raises PhotoError."""
    return preprocessing.pixels(decode(file.data, file.name, at_least=preprocessing.size))


T = TypeVar("T")
R = TypeVar("R")
N = TypeVar("N", bound=Named)


class Decoders:
    """Some processes that decode for the threads of this one; with 0 of them the threads do it themselves."""

    def __init__(self, processes: int = 0) -> None:
        self.processes = processes
        crew = [_Decoder() for _ in range(processes)]
        self._idle: LifoQueue[_Decoder] = LifoQueue()  # the latest first: no more are started than are needed
        for decoder in crew:
            self._idle.put(decoder)
        self.close = weakref.finalize(self, _stop_all, crew)  # at the latest when nobody has it any more

    @classmethod
    def for_photos(cls, n: int, *, among: int = 1) -> "Decoders":
        """As many as pay for so many photos, on cores that `among` such processes share."""
        cores = default_threads() // among
        return cls(min(cores, n // PHOTOS_EACH) if cores > FEW_CORES else 0)

    @property
    def threads(self) -> int:
        """How many threads keep them busy."""
        return self.processes or default_threads()

    @property
    def together(self) -> int:
        """How many photos a thread takes at once."""
        return TOGETHER if self.processes else 1

    def each(self, work: Callable[[N], R], photos: Sequence[N]) -> list[R | PhotoError]:
        """`work` of each photo, in one process, or the reason why not: one that ends its process is such a one too.

        work, photos and results are pickled. Other errors of hyphash's are raised here as they were there.
        """
        if not self.processes:
            return [_tried(work, photo) for photo in photos]
        decoder = self._idle.get()
        try:
            return decoder.ask(work, photos)
        except _LostError:
            if len(photos) == 1:
                return [PhotoError(f"{photos[0].name}: it ended the process that decoded it; leave it out")]
        finally:
            self._idle.put(decoder)
        return [result for photo in photos for result in self.each(work, [photo])]

    def __enter__(self) -> "Decoders":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _LostError(Exception):
    """The process has ended."""


class _Decoder:
    """One process, started when it is first asked, and again after a loss."""

    process: subprocess.Popen[bytes] | None = None

    def ask(self, work: Callable[[N], R], photos: Sequence[N]) -> list[R | PhotoError]:
        self.process = self.process or _start()
        tasks, answers = self.process.stdin, self.process.stdout
        assert tasks, "it was started with pipes"
        assert answers, "it was started with pipes"
        try:
            pickle.dump((work, photos), tasks, pickle.HIGHEST_PROTOCOL)
            tasks.flush()
            results, trouble = pickle.load(answers)
        except Exception as error:
            self.stop()  # what it makes of half a task, or has still to say, is of no use
            if isinstance(error, EOFError | OSError | pickle.UnpicklingError):
                raise _LostError from error
            raise
        if trouble:
            kind, message = trouble
            raise kind.__new__(kind, message)  # past its own __init__, which may want other words
        found: list[R | PhotoError] = results
        return found

    def stop(self) -> None:
        process, self.process = self.process, None
        if process:
            process.kill()
            process.communicate()  # closes the pipes and waits for its end


def _tried(work: Callable[[N], R], photo: N) -> R | PhotoError:
    try:
        return work(photo)
    except PhotoError as error:
        return error
    except MissingExtraError as error:  # one HEIC among thousands: say how it could be read, and go on
        return PhotoError(f"{photo.name}: {error}")


def _stop_all(crew: "Iterable[_Decoder]") -> None:
    for decoder in crew:
        decoder.stop()


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


def _start() -> subprocess.Popen[bytes]:
    home = str(Path(__file__).parents[1])
    paths = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HYPHASH_THREADS": "1"}
    with deaf_to_ctrl_c():
        return subprocess.Popen(
            [sys.executable, "-c", "from hyphash.decoding import serve; serve()"], env=os.environ | settings,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip


def serve() -> None:
    """A process's whole life: work in, results out, until nobody is there to ask."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that asks, on Windows too
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints is no answer
        while True:
            try:
                work, photos = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            answer: tuple[list[Any], tuple[type[Exception], str] | None]
            try:
                answer = [_tried(work, photo) for photo in photos], None
            except HyphashError as error:
                answer = [], (type(error), str(error))
            except Exception:
                answer = [], (RuntimeError, f"in a process that decodes photos:\n{traceback.format_exc()}")
            pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()


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


def in_lots(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items, `size` at a time."""
    left = iter(items)
    while lot := list(islice(left, size)):
        yield lot


def on_all_cores(
    work: Callable[[N], R], photos: Iterable[N], *, decoders: Decoders, ahead: int
) -> Iterator[tuple[N, R | PhotoError]]:
    """Each photo, in order, with `Decoders.each` of it; up to `ahead` photos are done in front."""

    def load(lot: list[N]) -> list[tuple[N, R | PhotoError]]:
        return list(zip(lot, decoders.each(work, lot), strict=True))

    lots = in_lots(photos, decoders.together)
    at_once = max(ahead // decoders.together, 2 * decoders.threads)
    for lot in in_threads(load, lots, workers=decoders.threads, ahead=at_once):
        yield from lot
