"""What the processes of one service share: one that decodes and encodes uploads for all, and adds up their figures."""

import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from threading import Event, Thread
from typing import Any, NamedTuple, cast

from hyphash.errors import BusyError
from hyphash.service.monitoring import Families, Metrics
from hyphash.service.uploads import UploadEncoder
from hyphash.stores.pool import Pool
from hyphash.workers import Failure

REPORTED = 1.0  # seconds after which the figures of a process are told to the others


class Address(NamedTuple):
    """Where the process that encodes is reached, by those who know the key."""

    place: str
    key: bytes


class Sharing:
    """In the process that encodes: answers the others, a thread for each connection."""

    def __init__(self, uploads: UploadEncoder, metrics: Metrics) -> None:
        self._uploads = uploads
        self._metrics = metrics
        self._closed = False
        self._told: dict[int, Families] = {}  # the last figures of each process
        key = secrets.token_bytes(32)
        self._listener = Listener(backlog=128, authkey=key)  # in a folder that is its owner's alone
        self.address = Address(cast(str, self._listener.address), key)
        self._asked: dict[str, Callable[..., Any]] = {
            "decode": uploads.decode, "outputs": uploads.outputs, "figures": self._figures,
        }  # fmt: skip
        Thread(target=self._accept, name="sharing", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        self._uploads.close()

    def _figures(self, number: int, figures: Families) -> list[Families]:
        self._told[number] = figures
        return [self._metrics.families(), *self._told.values()]

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

    def __init__(self, address: Address, number: int, metrics: Metrics) -> None:
        self._connections: Pool[Connection[Any, Any]] = Pool(
            lambda: Client(address.place, authkey=address.key), Exception, "uploads"
        )
        self.decode, self.outputs = partial(self._ask, "decode"), partial(self._ask, "outputs")
        self._closed = Event()
        self._metrics = metrics
        metrics.gather = partial(self._ask, "figures", number)
        Thread(target=self._report, args=(metrics.gather,), name="figures", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        self._connections.close()

    def _report(self, tell: Callable[[Families], list[Families]]) -> None:
        while not self._closed.wait(REPORTED):
            with suppress(Exception):  # it will be told next time
                tell(self._metrics.families())

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
