"""A collection that is served: the threads that ask it, what decodes and encodes for it, and what routes have of it."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from pathlib import Path
from subprocess import Popen
from threading import Event, Lock, Thread
from typing import Annotated, Any, ParamSpec, Self, TypeVar, cast

from fastapi import Depends, Request

from hyphash.collection import Collection
from hyphash.collection.folder import Hashers
from hyphash.errors import BusyError, EngineError, HyphashError
from hyphash.hasher import Hasher, Outputs
from hyphash.photos import Raw, memory_to_decode, pixels_of
from hyphash.searchers import Selected
from hyphash.searchers.filters import EVERYTHING
from hyphash.service.settings import Settings
from hyphash.service.uploads import SharedEncoder, SharedUploads, UploadEncoder

P = ParamSpec("P")
T = TypeVar("T")
Route = Callable[P, Coroutine[Any, Any, T]]
KEPT = 16  # values in a cache at once
STALE = 10  # a value may be old for so many times as long as it took to find
CHANGES = 4  # that are made at once
AWAY = 0.8  # seconds that a server behind the collection may be away before people are told: probes wait for one
READY = 3.0  # and those in which it has to say that it is there
GATHERED = 2.0  # seconds that a request waits for dates that are gathered for the first time
CHECKED = 3600.0  # seconds between two looks at the checksums of what is mapped into memory
deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)  # of the work of a thread, monotonic


class ServedCollection:
    """Open as long as the service is."""

    def __init__(
        self, collection: Collection, settings: Settings, uploads: UploadEncoder | SharedUploads | None = None
    ) -> None:
        collection.store.hurry(AWAY)
        collection.searcher.hurry(AWAY)
        self.collection = collection
        self.settings = settings
        self.refining: Popen[bytes] | None = None
        self.uploads = uploads or UploadEncoder(collection.folder, settings)
        self.metrics = self.uploads.metrics
        collection.load_hasher = self._shared_hasher
        collection.hasher = self._shared_hasher(collection.hasher.fingerprint)
        self.cache = CommitCache(lambda: collection.store.state().commit)
        sizes = {"quick": settings.threads, "photos": settings.uploads, "slow": 2, "changes": CHANGES}
        pool_of = partial(BoundedPool, waiting=settings.waiting, seconds=settings.seconds)
        self.pools = {name: pool_of(name, threads=threads) for name, threads in sizes.items()}
        self.pools["asking"] = BoundedPool("asking", threads=1, waiting=16, seconds=READY)
        self.metrics.photos.set_function(self._count)
        for name, pool in self.pools.items():
            self.metrics.waiting.labels(name).set_function(partial(getattr, pool, "accepted"))
        self._closed = Event()
        self._held = False  # see is_at_hand
        self._dates: Future[Selected] | None = None
        Thread(target=self._check, name="checking", daemon=True).start()
        self.pools["slow"].begin(self.untagged)  # seconds of a million photos: before the first visitor comes

    @classmethod
    def open(cls, folder: str | Path, settings: Settings, *, device: str = "auto") -> Self:
        """The collection in `folder`, its network loaded: an exported one where there is one."""
        return cls(Collection.open(folder), settings, UploadEncoder.open(folder, settings, device=device))

    @property
    def is_refining(self) -> bool:
        """Whether a process that was begun here is at it still."""
        return self.refining is not None and self.refining.poll() is None

    def _check(self) -> None:
        """Look at the checksums of mapped files again and again."""
        while not self._closed.wait(CHECKED):
            with suppress(HyphashError):
                self.collection.searcher.check()

    def close(self) -> None:
        self._closed.set()
        for pool in self.pools.values():
            pool.close()
        if self.refining:
            self.refining.terminate()  # nobody would see how far it comes
            self.refining.wait()
        self.uploads.close()
        self.collection.close()

    def knows_dates(self) -> bool:
        """Whether facts of photos can be asked for; else they are gathered from now on, minutes of many millions."""
        if self._dates is None or (self._dates.done() and self._dates.exception()):
            self._dates = self.pools["slow"].begin(partial(self.collection.searcher.select, EVERYTHING))
        return not wait([self._dates], GATHERED).not_done

    def untagged(self) -> int:
        """How many photos carry no label."""
        return self.cache.get(("untagged",), partial(self.collection.count, untagged=True))

    async def require_ready(self) -> None:
        """Raise what keeps the collection from answering. Not asked by a thread that may wait for it already."""
        try:
            await self.pools["asking"].run(self.collection.require_ready)
        except BusyError:
            raise EngineError(f"{self.collection.folder}: its engine has not answered for {READY:g} s") from None

    def is_at_hand(self) -> bool:
        """Whether searches by codes find all in memory. Those that have come by now see the store at this moment."""
        if not self._held:
            self.collection.store.hold(True)
            self._held = True
            asyncio.get_running_loop().call_soon(self._let_go)  # after all that wait in the loop, before others come
        return self.collection.is_at_hand()

    def _let_go(self) -> None:
        self._held = False
        self.collection.store.hold(False)

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
        hasher = Hashers(self.collection.folder).load(fingerprint)
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
    return request.app.state.served


Served = Annotated[ServedCollection, Depends(served_by)]


def in_pool(
    name: str, register: Callable[[Route[P, T]], Route[P, T]], *, kept: bool = False
) -> Callable[[Callable[P, T]], Route[P, T]]:
    """Make a route of a function that takes `served`: it runs in that one's pool of this name; `kept` in its cache."""

    def decorate(work: Callable[P, T]) -> Route[P, T]:
        @wraps(work)
        async def route(*args: P.args, **options: P.kwargs) -> T:
            served = cast(ServedCollection, options["served"])
            find: Callable[[], T] = partial(work, *args, **options)
            key = (work.__name__, *(value for value in options.values() if value is not served))
            return await served.pools[name].run(partial(served.cache.get, key, find) if kept else find)

        return register(route)

    return decorate


class BoundedPool:
    """A pool that turns work away instead of letting it pile up."""

    def __init__(self, name: str, *, threads: int, waiting: int, seconds: float) -> None:
        self.name = name
        self.most = threads + waiting
        self.seconds = seconds
        self.accepted = 0  # pieces of work that run or wait
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._lock = Lock()

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns. BusyError if too much is waiting, or if it takes too long.

        A thread cannot be stopped: work that took too long keeps its thread until it ends, and counts until then.
        """
        with self._lock:
            if self.accepted >= self.most:
                raise BusyError("too many requests at once; try again in a moment")
            self.accepted += 1
        until = time.monotonic() + self.seconds

        def timed() -> T:
            deadline.set(until)
            return work()

        try:
            future = self._pool.submit(timed)
        except BaseException:
            self._release()
            raise
        future.add_done_callback(self._release)
        try:
            async with asyncio.timeout(self.seconds):  # what has not begun by then never does
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise BusyError("this takes too long at the moment; try again later") from None

    def begin(self, work: Callable[[], T]) -> "Future[T]":
        """Do something that no request waits for."""
        return self._pool.submit(work)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _release(self, _: "Future[T] | None" = None) -> None:
        with self._lock:
            self.accepted -= 1


class CommitCache:
    """Values kept until the collection changes, and a little longer."""

    def __init__(self, commit: Callable[[], int]) -> None:
        self._commit = commit
        self._kept: dict[tuple[Any, ...], _Value] = {}
        self._lock = Lock()

    def get(self, key: tuple[Any, ...], find: Callable[[], T]) -> T:
        """What `find` gave for `key`; several who ask at once wait for one of them."""
        with self._lock:
            kept = self._kept.setdefault(key, _Value())
            for oldest in list(self._kept)[:-KEPT]:
                del self._kept[oldest]
        with kept.lock:
            commit = self._commit()
            if kept.commit != commit and time.monotonic() > kept.until:
                started = time.monotonic()
                kept.value = find()
                kept.commit = commit
                kept.until = time.monotonic() + STALE * (time.monotonic() - started)
            return cast(T, kept.value)


@dataclass
class _Value:
    commit: int = -1
    until: float = 0.0  # good even if the collection has changed
    value: Any = None
    lock: Lock = field(default_factory=Lock)
