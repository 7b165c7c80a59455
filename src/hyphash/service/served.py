"""A collection that is served: the threads that ask it, the network that encodes for it, and what routes have of it."""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from threading import Lock, Semaphore
from typing import Annotated, Any, ParamSpec, Self, TypeVar, cast

import numpy as np
from fastapi import Depends, Request

from hyphash.collection import Collection
from hyphash.encoder import ONNX_FILE
from hyphash.errors import BusyError, EngineError, HyphashError, PhotoError
from hyphash.hasher import Hasher, Outputs
from hyphash.photos import Raw, dimensions, pixels_of
from hyphash.service.batching import BatchedEncoder, Batcher
from hyphash.service.cache import CommitCache
from hyphash.service.monitoring import Metrics
from hyphash.service.settings import Settings
from hyphash.service.threads import BoundedPool

P = ParamSpec("P")
T = TypeVar("T")
DECODED = 4  # photos that are decoded at once: each may take hundreds of megabytes
AWAY = 0.8  # seconds that a server behind the collection may be away before people are told: probes wait for one
READY = 3.0  # and those in which it has to say that it is there


class ServedCollection:
    """Open as long as the service is."""

    def __init__(self, collection: Collection, settings: Settings, *, device: str = "auto") -> None:
        collection.store.hurry(AWAY)
        collection.searcher.hurry(AWAY)
        self.collection = collection
        self.device = device
        self.settings = settings
        self.metrics = Metrics()
        self.cache = CommitCache(lambda: collection.store.state().commit)
        sizes = {"quick": settings.threads, "photos": settings.uploads, "slow": 2, "changes": DECODED}
        self.pools = {
            name: BoundedPool(name, threads=threads, waiting=settings.waiting, seconds=settings.seconds)
            for name, threads in sizes.items()
        }
        self.pools["asking"] = BoundedPool("asking", threads=1, waiting=16, seconds=READY)
        self.metrics.watch(self._count, self.pools.values())
        self.decoding = Semaphore(DECODED)
        self._lock = Lock()

    @classmethod
    def open(cls, folder: str | Path, settings: Settings, *, device: str = "auto") -> Self:
        """The collection in `folder`, its network loaded: an exported one where there is one."""
        collection = Collection.open(folder, device=device)
        served = cls(collection, settings, device=device)
        try:
            served.hasher.outputs_of_pixels(np.zeros((1, *collection.hasher.spec.preprocessing.shape), np.uint8))
        except BaseException:
            served.close()
            raise
        return served

    def close(self) -> None:
        for pool in self.pools.values():
            pool.close()
        encoder = self.collection.hasher.encoder
        if isinstance(encoder, BatchedEncoder):
            encoder.batcher.close()
        self.collection.close()

    async def require_ready(self) -> None:
        """Raise what keeps the collection from answering. Not asked by a thread that may wait for it already."""
        try:
            await self.pools["asking"].run(self.collection.require_ready)
        except BusyError:
            raise EngineError(f"{self.collection.folder}: its engine has not answered for {READY:g} s") from None

    def _count(self) -> float:
        """How many photos there are; the other figures are told even if nobody knows."""
        try:
            return len(self.collection)
        except HyphashError:
            return float("nan")

    @property
    def hasher(self) -> Hasher:
        """The hasher of the collection, batched. The collection takes a new one into use when it has moved to it."""
        with self._lock:
            hasher = self.collection.hasher
            if not isinstance(hasher.encoder, BatchedEncoder):
                hasher = _exported(hasher) if self.device == "auto" else hasher
                batcher = Batcher(
                    hasher.encoder.outputs, most=self.settings.batch, gather=self.settings.gather,
                    seconds=self.settings.seconds, waiting=self.settings.waiting, seen=self.metrics.batches.observe,
                )  # fmt: skip
                hasher = self.collection.hasher = replace(hasher, encoder=BatchedEncoder(hasher.encoder, batcher))
            return hasher

    def outputs_of(self, data: bytes, hasher: Hasher) -> Outputs:
        """The outputs of an uploaded photo, (width,)."""
        with self.decoding:
            self.check_size(data)
            pixels = pixels_of(Raw("photo", data), preprocessing=hasher.encoder.preprocessing)
        return cast(Outputs, hasher.outputs_of_pixels(pixels[None])[0])

    def check_size(self, data: bytes) -> None:
        width, height = dimensions(data)
        if width * height > self.settings.max_pixels:
            raise PhotoError(f"{width} × {height} pixels are too many; at most {self.settings.max_pixels:,} are taken")


async def served_by(request: Request) -> ServedCollection:
    """What the service serves that a request came to."""
    served: ServedCollection = request.app.state.served
    return served


Served = Annotated[ServedCollection, Depends(served_by)]


def in_pool(name: str) -> Callable[[Callable[P, T]], Callable[P, Coroutine[Any, Any, T]]]:
    """Make a route of a function that takes `served`: it runs in that one's pool of this name."""

    def decorate(work: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
        @wraps(work)
        async def route(*args: P.args, **options: P.kwargs) -> T:
            served = cast(ServedCollection, options["served"])
            return await served.pools[name].run(partial(work, *args, **options))

        return route

    return decorate


def _exported(hasher: Hasher) -> Hasher:
    """The hasher of a collection on ONNX where that was written: it starts sooner than torch and takes less memory."""
    if hasher.folder and (hasher.folder / ONNX_FILE).is_file():
        return Hasher.to_encode(hasher.folder, device="onnx", late=True)
    return hasher
