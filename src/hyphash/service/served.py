"""A collection that is served: the threads that ask it, what decodes and encodes for it, and what routes have of it."""

import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from subprocess import Popen
from typing import Annotated, Any, ParamSpec, Self, TypeVar, cast

from fastapi import Depends, Request

from hyphash.collection import Collection, hashers
from hyphash.errors import BusyError, EngineError, HyphashError
from hyphash.hasher import Hasher, Outputs
from hyphash.photos import Raw, memory_to_decode, pixels_of
from hyphash.service.cache import CommitCache
from hyphash.service.monitoring import Metrics
from hyphash.service.settings import Settings
from hyphash.service.sharing import SharedUploads
from hyphash.service.threads import BoundedPool, deadline
from hyphash.service.uploads import SharedEncoder, UploadEncoder

P = ParamSpec("P")
T = TypeVar("T")
CHANGES = 4  # that are made at once
AWAY = 0.8  # seconds that a server behind the collection may be away before people are told: probes wait for one
READY = 3.0  # and those in which it has to say that it is there


class ServedCollection:
    """Open as long as the service is."""

    def __init__(
        self,
        collection: Collection,
        settings: Settings,
        *,
        uploads: UploadEncoder | SharedUploads | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        collection.store.hurry(AWAY)
        collection.searcher.hurry(AWAY)
        self.collection = collection
        self.settings = settings
        self.metrics = metrics or Metrics()
        self.refining: Popen[bytes] | None = None
        self.uploads = uploads or UploadEncoder(collection.folder, settings, seen=self.metrics.batches.observe)
        collection.load_hasher = self._shared_hasher
        collection.hasher = self._shared_hasher(collection.hasher.fingerprint)
        self.cache = CommitCache(lambda: collection.store.state().commit)
        sizes = {"quick": settings.threads, "photos": settings.uploads, "slow": 2, "changes": CHANGES}
        self.pools = {
            name: BoundedPool(name, threads=threads, waiting=settings.waiting, seconds=settings.seconds)
            for name, threads in sizes.items()
        }
        self.pools["asking"] = BoundedPool("asking", threads=1, waiting=16, seconds=READY)
        self.metrics.watch(self._count, self.pools.values())

    @classmethod
    def open(cls, folder: str | Path, settings: Settings, *, device: str = "auto") -> Self:
        """The collection in `folder`, its network loaded: an exported one where there is one."""
        metrics = Metrics()
        uploads = UploadEncoder.open(folder, settings, device=device, seen=metrics.batches.observe)
        return cls(Collection.open(folder), settings, uploads=uploads, metrics=metrics)

    def close(self) -> None:
        for pool in self.pools.values():
            pool.close()
        self.uploads.close()
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
        """The hasher of the collection at this moment: it may have moved to another one."""
        return self.collection.current_hasher()

    def _shared_hasher(self, fingerprint: str) -> Hasher:
        hasher = hashers.stored(self.collection.folder, fingerprint)
        return replace(hasher, encoder=SharedEncoder(self.uploads.outputs, fingerprint, hasher.spec.preprocessing))

    def outputs_of(self, data: bytes, hasher: Hasher) -> Outputs:
        """The outputs of an uploaded photo, (width,)."""
        pixels = self.decode(pixels_of, Raw("photo", data), preprocessing=hasher.encoder.preprocessing)
        return cast(Outputs, hasher.outputs(pixels[None])[0])

    def decode(
        self, work: Callable[..., T], raw: Raw, *, until: float | None = None, max_pixels: int = 0, **options: Any
    ) -> T:
        """`work` of a photo and options, in a process that decodes; BusyError if its turn does not come in time."""
        left = (deadline.get() if until is None else until) - time.monotonic()
        plain = Raw(raw.name, raw.data)  # whatever else it carries stays here
        memory = memory_to_decode(raw.data, raw.name, max_pixels=max_pixels or self.settings.max_pixels)
        return self.uploads.decode(partial(work, **options), plain, memory=memory, seconds=left)


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
