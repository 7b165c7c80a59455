"""What all routes share: the collection, the threads that ask it, the network that encodes for it."""

import base64
import binascii
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Semaphore
from typing import Any, Self, TypeVar, cast

import numpy as np
from starlette.requests import Request

from hyphash.collection import Collection
from hyphash.collection.hashers import StoredHasher
from hyphash.errors import BusyError, ConfigError, EngineError, HyphashError, PhotoError
from hyphash.hasher import Hasher, Outputs
from hyphash.onnx_network import ONNX_FILE
from hyphash.photos import decode, dimensions
from hyphash.service.batching import BatchedHasher, Batcher
from hyphash.service.observed import Metrics
from hyphash.service.settings import Settings
from hyphash.service.workers import Workers

T = TypeVar("T")
DECODED = 4  # photos that are decoded at once: each may take hundreds of megabytes
FIGURES = 16  # kept at once
AWAY = 0.8  # seconds that a server behind the collection may be away before people are told: probes wait for one
READY = 3.0  # and those in which it has to say that it is there
STALE = 10  # a figure may be old for so many times as long as it took to find


class Desk:
    """Open as long as the service is."""

    def __init__(self, collection: Collection, settings: Settings, *, device: str = "auto") -> None:
        collection.store.hurry(AWAY)
        collection.searcher.hurry(AWAY)
        self.collection = collection
        self.device = device
        self.settings = settings
        self.metrics = Metrics()
        self.figures = Figures(lambda: collection.store.state().commit)
        self.quick = self._workers("quick", settings.threads)
        self.photos = self._workers("photos", settings.uploads)
        self.slow = self._workers("slow", 2)
        self.changes = self._workers("changes", DECODED)
        self.asking = Workers("asking", threads=1, waiting=16, seconds=READY)
        pools = self._pools
        self.metrics.watch(self._count, {pool.name: lambda p=pool: p.accepted for pool in pools})  # type: ignore[misc]
        self.decoding = Semaphore(DECODED)
        self._lock = Lock()

    @classmethod
    def open(cls, folder: str | Path, settings: Settings, *, device: str = "auto") -> Self:
        """The collection in `folder`, its network loaded: an exported one where there is one."""
        collection = Collection.open(folder, device=device)
        desk = cls(collection, settings, device=device)
        try:
            size = collection.hasher.spec.preprocessing.size
            desk.hasher.outputs_of_pixels(np.zeros((1, size, size, 3), np.uint8))
        except BaseException:
            desk.close()
            raise
        return desk

    def close(self) -> None:
        for pool in self._pools:
            pool.close()
        hasher = self.collection.hasher
        if isinstance(hasher, BatchedHasher):
            hasher.batcher.close()
        self.collection.close()

    @property
    def _pools(self) -> tuple[Workers, ...]:
        return self.quick, self.photos, self.slow, self.changes, self.asking

    async def require_ready(self) -> None:
        """Raise what keeps the collection from answering. Not asked by a thread that may wait for it already."""
        try:
            await self.asking.run(self.collection.require_ready)
        except BusyError:
            raise EngineError(f"{self.collection.folder}: its engine has not answered for {READY:g} s") from None

    def _count(self) -> float:
        """How many photos there are; the other figures are told even if nobody knows."""
        try:
            return len(self.collection)
        except HyphashError:
            return float("nan")

    def _workers(self, name: str, threads: int) -> Workers:
        return Workers(name, threads=threads, waiting=self.settings.waiting, seconds=self.settings.seconds)

    @property
    def hasher(self) -> Hasher:
        """The hasher of the collection, batched. The collection takes a new one into use when it has moved to it."""
        with self._lock:
            hasher = self.collection.hasher
            if not isinstance(hasher, BatchedHasher):
                hasher = _exported(hasher) if self.device == "auto" else hasher
                batcher = Batcher(
                    hasher.outputs_of_pixels, most=self.settings.batch, gather=self.settings.gather,
                    seconds=self.settings.seconds, waiting=self.settings.waiting, seen=self.metrics.batches.observe,
                )  # fmt: skip
                hasher = self.collection.hasher = BatchedHasher(hasher, batcher)
            return hasher

    def outputs_of(self, data: bytes, hasher: Hasher) -> Outputs:
        """The outputs of an uploaded photo, (width,)."""
        preprocessing = hasher.spec.preprocessing
        with self.decoding:
            self.check_size(data)
            pixels = preprocessing.pixels(decode(data, at_least=preprocessing.size))
        return cast(Outputs, hasher.outputs_of_pixels(pixels[None])[0])

    def check_size(self, data: bytes) -> None:
        width, height = dimensions(data)
        if width * height > self.settings.max_pixels:
            raise PhotoError(f"{width} × {height} pixels are too many; at most {self.settings.max_pixels:,} are taken")


def desk_of(request: Request) -> Desk:
    """The desk of the service that a request came to."""
    desk: Desk = request.app.state.desk
    return desk


class Figures:
    """What takes long to find, kept until the collection changes, and a little longer."""

    def __init__(self, commit: Callable[[], int]) -> None:
        self._commit = commit
        self._kept: dict[tuple[Any, ...], _Figure] = {}
        self._lock = Lock()

    def get(self, key: tuple[Any, ...], find: Callable[[], T]) -> T:
        """The value that `find` gave for `key`; several who ask at once wait for one of them."""
        with self._lock:
            figure = self._kept.setdefault(key, _Figure())
            for oldest in list(self._kept)[:-FIGURES]:
                del self._kept[oldest]
        with figure.lock:
            commit = self._commit()
            if figure.commit != commit and time.monotonic() > figure.until:
                started = time.monotonic()
                figure.value = find()
                figure.commit = commit
                figure.until = time.monotonic() + STALE * (time.monotonic() - started)
            return cast(T, figure.value)


@dataclass
class _Figure:
    commit: int = -1
    until: float = 0.0  # good even if the collection has changed
    value: Any = None
    lock: Lock = field(default_factory=Lock)


def _exported(hasher: Hasher) -> Hasher:
    """The hasher of a collection on ONNX where that was written: it starts sooner than torch and takes less memory."""
    if isinstance(hasher, StoredHasher) and (hasher.folder / ONNX_FILE).is_file():
        return StoredHasher(hasher.folder, device="onnx")
    return hasher


def place_text(hasher: Hasher, outputs: Outputs) -> str:
    """Outputs as text that fits into an address, with the name of the hasher that they belong to."""
    packed = base64.urlsafe_b64encode(np.ascontiguousarray(outputs, "<f4").tobytes())
    return f"{hasher.fingerprint}.{packed.decode().rstrip('=')}"


def place_outputs(hasher: Hasher, text: str) -> Outputs:
    """The outputs that `place_text` has written."""
    fingerprint, _, packed = text.partition(".")
    if fingerprint != hasher.fingerprint:
        raise PlaceError("this place belongs to another hasher; upload the photo again")
    try:
        data = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
        outputs = np.frombuffer(data, "<f4").astype(np.float32)
    except (binascii.Error, ValueError) as error:
        raise PlaceError("this is no place; take it from the answer to an upload") from error
    if outputs.shape != _width(hasher) or not np.isfinite(outputs).all() or np.abs(outputs).max() > 1e9:
        raise PlaceError("this is no place; take it from the answer to an upload")
    return outputs


def _width(hasher: Hasher) -> tuple[int, ...]:
    if hasher.quantizer is None:
        return (hasher.bits,)
    subspaces, _, width = hasher.quantizer.codewords.shape
    return (subspaces * width,)


class PlaceError(ConfigError):
    """A place that cannot be used."""
