"""What the processes of one service share: one that decodes and encodes uploads for all, and adds up their figures."""

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from threading import Event, Thread
from typing import Any, NamedTuple, TypeVar, cast

from hyphash.encoder import Outputs
from hyphash.errors import BusyError
from hyphash.photos import Pixels
from hyphash.service.monitoring import Families, Metrics, added_up
from hyphash.service.uploads import UploadEncoder
from hyphash.stores.pool import Pool
from hyphash.workers import Failure

R = TypeVar("R")
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
        self._told: dict[int, tuple[int, Families]] = {}  # by number: the process that has it, and its last figures
        self._ended: Families = []  # what processes have counted that are no more
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

    def _figures(self, number: int, process: int, figures: Families) -> list[Families]:
        before, counted = self._told.get(number, (process, []))
        if before != process:
            self._ended = added_up([self._ended, [one for one in counted if one.type in ("counter", "histogram")]])
        self._told[number] = process, figures
        return [self._metrics.families(), self._ended, *(figures for _, figures in self._told.values())]

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
        self._number = number
        self._connections: Pool[Connection[Any, Any]] = Pool(
            lambda: Client(address.place, authkey=address.key), Exception, "uploads"
        )
        self._closed = Event()
        self._metrics = metrics
        metrics.gather = self._figures
        Thread(target=self._report, name="figures", daemon=True).start()

    def decode(self, work: Callable[..., R], *args: Any, memory: int, seconds: float) -> R:
        return cast(R, self._ask("decode", work, *args, memory=memory, seconds=seconds))

    def outputs(self, fingerprint: str, pixels: Pixels) -> Outputs:
        return cast(Outputs, self._ask("outputs", fingerprint, pixels))

    def close(self) -> None:
        self._closed.set()
        self._connections.close()

    def _figures(self, figures: Families) -> list[Families]:
        return cast(list[Families], self._ask("figures", self._number, os.getpid(), figures))

    def _report(self) -> None:
        while not self._closed.wait(REPORTED):
            with suppress(Exception):  # it will be told next time
                self._figures(self._metrics.families())

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
