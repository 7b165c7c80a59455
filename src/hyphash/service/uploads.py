"""Photos that strangers send: decoded in a few processes of limited memory, encoded by one network for all.

Of several processes that serve, one does it for the others, and adds up the figures of all.
"""

import os
import queue
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from threading import Condition, Event, Lock, Thread
from typing import Any, Self, TypeVar

import numpy as np

from hyphash.collection import Collection
from hyphash.collection.folder import Hashers
from hyphash.encoder import BATCH, ONNX_FILE, Outputs
from hyphash.errors import BusyError, OtherHasherError, PhotoError
from hyphash.hasher import Hasher
from hyphash.machine import cores
from hyphash.photos import Pixels, Preprocessing, prepare_to_decode
from hyphash.photos.decode import BYTES, BYTES_OF_VIDEO
from hyphash.service.monitoring import Families, Metrics, added_up
from hyphash.service.settings import Settings
from hyphash.stores.pool import Pool
from hyphash.workers import Failure, LostError, Workers

R = TypeVar("R")
Connect = Callable[[], "Connection[Any, Any]"]  # to the process that encodes
PROCESSES = 4  # that decode, where there are as many cores
REPORTED = 1.0  # seconds after which the figures of a process are told to the others
MORE = 64_000_000  # bytes that such a process needs besides the pixels


class UploadEncoder:
    """Decodes and encodes for any number of threads."""

    def __init__(self, folder: Path, settings: Settings, *, device: str = "auto") -> None:
        self.metrics = Metrics()
        self.folder = folder
        self.device = device
        self.fingerprint = ""  # of the hasher whose network is here
        places = min(PROCESSES, cores())
        self._room = Room(settings.max_pixels * BYTES, places)
        most = settings.max_pixels * BYTES_OF_VIDEO + MORE
        self._workers = Workers(places, setup=partial(prepare_to_decode, most))
        self._batcher: Batcher | None = None
        self._make = partial(Batcher, settings=settings, seen=self.metrics.batches.observe)
        self._lock = Lock()

    def decode(self, work: Callable[..., R], *args: Any, memory: int, seconds: float) -> R:
        """`work` of these arguments in a process that decodes, if there is room for so many bytes in time."""
        with self._room.taken(memory, seconds):
            try:
                return self._workers.call(work, *args)
            except LostError:
                raise PhotoError("the photo ended the process that decoded it; export it again") from None

    def outputs(self, fingerprint: str, pixels: Pixels) -> Outputs:
        """The outputs of one decoded photo, (width,), by this hasher; OtherHasherError if one asks for another now."""
        with self._lock:
            former = self._batcher if self.fingerprint != fingerprint else None
            if self._batcher is None or former:
                self._batcher = self._make(self.load(fingerprint).encoder.outputs)
                self.fingerprint = fingerprint
            batcher = self._batcher
        if former:
            former.close()
        return batcher.outputs(pixels)

    def load(self, fingerprint: str) -> Hasher:
        """A hasher of the collection, on ONNX where that was written: it starts sooner and takes less memory."""
        hashers = Hashers(self.folder)
        exported = (hashers.folder / fingerprint / ONNX_FILE).is_file()
        return hashers.load(fingerprint, device="onnx" if exported and self.device == "auto" else self.device)

    @classmethod
    def open(cls, folder: str | Path, settings: Settings, *, device: str) -> Self:
        """For the collection in `folder`, its network loaded before the first photo comes."""
        uploads = cls(Path(folder), settings, device=device)
        try:
            with Collection.open(folder) as collection, suppress(BusyError):  # where it takes long, photos wait for it
                hasher = collection.hasher
                uploads.outputs(hasher.fingerprint, np.zeros(hasher.spec.preprocessing.shape, np.uint8))
        except BaseException:
            uploads.close()
            raise
        return uploads

    def close(self) -> None:
        self._workers.close()
        if self._batcher:
            self._batcher.close()


class Batcher:
    """A thread that takes waiting photos, a batch at once, through the network."""

    def __init__(
        self, encode: Callable[[Pixels], Outputs], settings: Settings, seen: Callable[[int], None] = lambda _: None
    ) -> None:
        self.settings = settings
        self._encode = encode
        self._seen = seen  # is told the size of each batch
        self._waiting: queue.Queue[tuple[Pixels, Future[Outputs]] | None] = queue.Queue(settings.waiting)
        self._lock = Lock()
        self._closed = False
        self._thread = Thread(target=self._work, name="encoder", daemon=True)
        self._thread.start()

    def outputs(self, pixels: Pixels) -> Outputs:
        """The outputs of one photo, (width,)."""
        future: Future[Outputs] = Future()
        try:
            with self._lock:
                if self._closed:
                    raise OtherHasherError("this network is in use no longer; encode the photo with the new one")
                self._waiting.put_nowait((pixels, future))
            return future.result(self.settings.seconds)
        except queue.Full:
            raise BusyError("too many photos at once; try again in a moment") from None
        except TimeoutError:
            future.cancel()
            raise BusyError("the network has more photos than it can encode in time; try again later") from None

    def close(self) -> None:
        """Encode what is waiting, then end."""
        with self._lock:
            self._closed = True
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        going = True
        while going:
            batch, going = self._gathered()
            batch = [(pixels, future) for pixels, future in batch if future.set_running_or_notify_cancel()]
            if not batch:
                continue
            self._seen(len(batch))
            try:
                outputs = self._encode(np.stack([pixels for pixels, _ in batch]))
            except BaseException as error:
                for _, future in batch:
                    future.set_exception(error)
            else:
                for row, (_, future) in zip(outputs, batch, strict=True):
                    future.set_result(row)

    def _gathered(self) -> tuple[list[tuple[Pixels, "Future[Outputs]"]], bool]:
        """The next photos, and whether more will come. Under load the network itself is the time to gather."""
        batch: list[tuple[Pixels, Future[Outputs]]] = []
        until = 0.0
        while len(batch) < self.settings.batch:
            try:
                left = until - time.monotonic()
                item = self._waiting.get() if not batch else self._waiting.get(left > 0, max(left, 0))
            except queue.Empty:
                break
            if item is None:
                return batch, False
            batch.append(item)
            until = until or time.monotonic() + self.settings.gather
        return batch, True


@dataclass
class SharedEncoder:
    """What stands in a hasher for its network, where that is elsewhere: pixels go there one photo at a time."""

    encode: Callable[[str, Pixels], Outputs]
    fingerprint: str
    preprocessing: Preprocessing
    batch: int = BATCH

    def outputs(self, pixels: Pixels) -> Outputs:
        return np.stack([self.encode(self.fingerprint, photo) for photo in pixels])


class Room:
    """Bytes and places for those at work; whoever finds none in time is turned away."""

    def __init__(self, size: int, places: int) -> None:
        self.size = self._left = size
        self._places = places
        self._freed = Condition()

    @contextmanager
    def taken(self, size: int, seconds: float) -> Iterator[None]:
        """Some bytes and a place; one who needs more than there are gets them when nobody else is at work."""

        def fits() -> bool:
            return self._places > 0 and (self._left >= size or self._left == self.size)

        with self._freed:
            if seconds <= 0 or not self._freed.wait_for(fits, seconds):
                raise BusyError("more photos are being decoded than there is room for; try again later")
            self._left, self._places = self._left - size, self._places - 1
        try:
            yield
        finally:
            with self._freed:
                self._left, self._places = self._left + size, self._places + 1
                self._freed.notify_all()


class Sharing:
    """In the process that encodes: answers the others, a thread for each connection."""

    def __init__(self, uploads: UploadEncoder) -> None:
        self._uploads = uploads
        self._closed = False
        self._told: dict[int, tuple[int, Families]] = {}  # by number: the process that has it, and its last figures
        self._ended: Families = []  # what processes have counted that are no more
        key = secrets.token_bytes(32)
        self._listener = Listener(backlog=128, authkey=key)  # in a folder that is its owner's alone
        self.connect: Connect = partial(Client, self._listener.address, authkey=key)  # for those who got it from here
        self._asked: dict[str, Callable[..., Any]] = {
            "decode": uploads.decode, "outputs": uploads.outputs, "figures": self._figures,
        }  # fmt: skip
        Thread(target=self._accept, name="sharing", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        self._uploads.close()

    def _figures(self, number: int, process: int, figures: Families) -> list[Families]:
        before, counted = self._told.get(number, (process, []))
        if before != process:
            self._ended = added_up([self._ended, [one for one in counted if one.type in ("counter", "histogram")]])
        self._told[number] = process, figures
        return [self._uploads.metrics.families(), self._ended, *(figures for _, figures in self._told.values())]

    def _accept(self) -> None:
        while not self._closed:
            with suppress(OSError, EOFError, AuthenticationError):  # closed, or somebody without the key
                connection = self._listener.accept()
                Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: "Connection[Any, Any]") -> None:
        with connection, suppress(EOFError, OSError):
            while True:
                what, args, options = connection.recv()
                try:
                    answer = self._asked[what](*args, **options)
                except Exception as error:
                    answer = Failure.of(error)
                connection.send(answer)


class SharedUploads:
    """In the other processes: what an UploadEncoder does, done there."""

    def __init__(self, connect: Connect, number: int) -> None:
        self._connections = Pool(connect, Exception, "uploads")
        self.decode, self.outputs = partial(self._ask, "decode"), partial(self._ask, "outputs")
        self._closed = Event()
        self.metrics = Metrics()
        self.metrics.gather = tell = partial(self._ask, "figures", number, os.getpid())
        Thread(target=self._report, args=(tell,), name="figures", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        self._connections.close()

    def _report(self, tell: Callable[[Families], list[Families]]) -> None:
        while not self._closed.wait(REPORTED):
            with suppress(Exception):  # it will be told next time
                tell(self.metrics.families())

    def _ask(self, what: str, *args: Any, **options: Any) -> Any:
        try:
            with self._connections.connection() as connection:
                connection.send((what, args, options))
                answer = connection.recv()
        except (EOFError, OSError) as error:
            raise BusyError("the process that encodes photos does not answer; try again") from error
        if isinstance(answer, Failure):
            raise answer.error()
        return answer
