"""Threads that do the work of requests: so many at once, so many waiting, and not for ever."""

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar, cast

from hyphash.errors import BusyError

T = TypeVar("T")
deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)  # of the work of this thread, monotonic


@dataclass(eq=False, slots=True)
class _Task:
    work: Callable[[], Any]
    future: "asyncio.Future[Any]"
    until: float
    begun: bool = False
    given_up: bool = False


class BoundedPool:
    """A pool that turns work away instead of letting it pile up.

    It has threads of its own: the way to those of `concurrent.futures` and back takes as long as a search.
    """

    def __init__(self, name: str, *, threads: int, waiting: int, seconds: float) -> None:
        self.name = name
        self.threads = threads
        self.most = threads + waiting
        self.seconds = seconds
        self.accepted = 0  # pieces of work that run or wait
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._started: list[Thread] = []
        self._lock = Lock()

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns. BusyError if too much is waiting, or if it takes too long.

        A thread cannot be stopped: work that took too long keeps its thread until it ends, and counts until then.
        """
        loop = asyncio.get_running_loop()
        task = _Task(work, loop.create_future(), time.monotonic() + self.seconds)
        with self._lock:
            if self.accepted >= self.most:
                raise BusyError("too many requests at once; try again in a moment")
            self.accepted += 1
            if len(self._started) < min(self.accepted, self.threads):
                self._started.append(Thread(target=self._work, name=self.name, daemon=True))
                self._started[-1].start()
        self._tasks.put(task)
        too_long = BusyError("this takes too long at the moment; try again later")
        timer = loop.call_later(self.seconds, _settle, task.future, None, too_long)
        try:
            return cast(T, await task.future)
        finally:
            timer.cancel()
            with self._lock:  # what has not begun by now never does
                task.given_up = not task.begun
                self.accepted -= task.given_up

    def close(self) -> None:
        """End when what has begun is done."""
        while not self._tasks.empty():
            self._tasks.get()
        for _ in self._started:
            self._tasks.put(None)
        for thread in self._started:
            thread.join()

    def _work(self) -> None:
        while task := self._tasks.get():
            with self._lock:
                task.begun = not task.given_up
            if not task.begun:
                continue
            deadline.set(task.until)
            result = error = None
            try:
                result = task.work()
            except BaseException as raised:
                error = raised
            with self._lock:
                self.accepted -= 1
            with suppress(RuntimeError):  # nobody waits for it: the loop is closed
                task.future.get_loop().call_soon_threadsafe(_settle, task.future, result, error)
            del task, result, error  # not to be kept until the next one comes


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if not future.done():
        if error:
            future.set_exception(error)
        else:
            future.set_result(result)
