"""Connections that are kept while nobody uses them, for any number of threads."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Generic, Protocol, TypeVar

from hyphash.errors import CollectionError


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class Pool(Generic[C]):
    """One connection for each who asks; one that failed with `error` is not used again."""

    def __init__(self, connect: Callable[[], C], error: type[Exception], shown: str) -> None:
        self._connect = connect
        self._error = error
        self._shown = shown
        self._idle: list[C] = []
        self._lock = Lock()
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[C]:
        if self._closed:
            raise CollectionError(f"{self._shown}: this collection was closed; open it again")
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or self._connect()
        kept = True
        try:
            yield connection
        except self._error:  # what state it is in is hard to say: the next one gets a new connection
            kept = False
            raise
        finally:
            with self._lock:
                kept = kept and not self._closed
                if kept:
                    self._idle.append(connection)
            if not kept:
                connection.close()

    def close(self) -> None:
        self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
