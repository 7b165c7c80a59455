"""Threads that do the work of requests: so many at once, so many waiting, and not for ever."""

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from threading import Lock
from typing import TypeVar

from hyphash.errors import BusyError

T = TypeVar("T")
deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)  # of the work of this thread, monotonic


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

    def begin(self, work: Callable[[], object]) -> None:
        """Do something that nobody waits for."""
        self._pool.submit(work)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _release(self, _: "Future[T] | None" = None) -> None:
        with self._lock:
            self.accepted -= 1
