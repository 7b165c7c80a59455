"""Connections that are kept while nobody uses them, for any number of threads."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
        self._idle: list[C] = []  # which any thread may take from and add to at any time
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[C]:
        if self._closed:
            raise CollectionError(f"{self._shown}: this collection was closed; open it again")
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        kept = True
        try:
            yield connection
        except self._error:  # what state it is in is hard to say: the next one gets a new connection
            kept = False
            raise
        finally:
            if kept:
                self._idle.append(connection)
            else:
                connection.close()
            if self._closed:
                self.close_idle()

    def close(self) -> None:
        self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()
