"""Running the service until it is told to stop, and how long a connection may keep it waiting."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hyphash.collection import Collection
from hyphash.collection.watching import Watch, beside
from hyphash.errors import ConfigError, EngineError
from hyphash.machine import default_threads, keep_memory, stop_on_signal
from hyphash.refining import read_dates
from hyphash.service.app import create_app
from hyphash.service.monitoring import log, log_to
from hyphash.service.served import ServedCollection
from hyphash.service.settings import Settings
from hyphash.service.uploads import Connect, SharedUploads, Sharing, UploadEncoder
from hyphash.workers import LostError, Workers, told_to_stop

Stop = Callable[[], bool]
HEAD = 10.0  # seconds in which the head of a request has to come
WHOLE = 300.0  # and in which it has to be over, its answer taken and all
LONGEST = 65_536  # bytes of a head
MOST = 1000  # connections at once
BACKLOG = 1024  # connections that wait to be taken up
SHUTDOWN = 30  # seconds that requests have to end
REPLACED = 1000  # times that a worker which died is started again


class _Server(uvicorn.Server):
    """Runs until `told` says so; signals are for those who started it, and to stop is no failure."""

    def __init__(self, served: ServedCollection, told: Stop) -> None:
        super().__init__(configured(served))
        self.told = told

    def capture_signals(self) -> contextlib.nullcontext[None]:  # type: ignore[override]
        return contextlib.nullcontext()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self.told()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        gc.collect()
        gc.freeze()  # to look for garbage among all that is here to stay would stop every search for 100 ms,
        gc.set_threshold(10_000)  # and captions that are kept for later are none either
        with contextlib.ExitStack() as ended, asyncio.Runner(loop_factory=self.config.get_loop_factory()) as runner:
            ended.callback(gc.unfreeze)  # else extensions complain, when Python ends, of what they find undone
            runner.run(self.serve(sockets))


class _Part(NamedTuple):
    """What one of several processes needs to serve."""

    number: int
    sockets: list[int]  # of all of them
    folder: Path
    settings: Settings
    encoder: Connect
    log: str  # the level of its lines; empty: it writes none


def serve(
    folder: str | Path, settings: Settings, *, device: str = "auto", workers: int = 1, watch: bool = False,
    started: Callable[[str], None] = lambda _: None,
) -> None:  # fmt: skip
    """Serve the collection in `folder` until SIGINT or SIGTERM; requests that have begun are answered.

    With several `workers` that many processes take requests, and this one encodes photos for them. `started` is called
    with the address once the service listens; a port of 0 takes any that is free. With `watch` it takes in what changes
    in the folders of the collection.
    """
    keep_memory(keep=False)
    with contextlib.ExitStack() as opened:
        listeners = [opened.enter_context(one) for one in _listeners(settings, workers)]
        uploads = UploadEncoder.open(folder, settings, device=device)
        opened.callback(uploads.close)
        host, port = listeners[0].getsockname()[:2]
        ready = partial(started, f"http://{f'[{host}]' if ':' in host else host}:{port}/")
        log.info("started", extra={"facts": {"read_only": settings.read_only, "workers": workers}})
        opened.enter_context(beside(Path(folder), read_dates))
        if watch:
            opened.enter_context(beside(Path(folder), lambda collection, stop: Watch(collection).run(stop)))
        asked = opened.enter_context(stop_on_signal())
        if workers == 1:
            served = ServedCollection(Collection.open(folder), settings, uploads)
            ready()
            _Server(served, asked).run(listeners)
        else:
            level = logging.getLevelName(log.level) if log.handlers else ""
            encoder, files = Sharing(uploads).connect, [one.fileno() for one in listeners]
            parts = [_Part(i, files, Path(folder), settings, encoder, level) for i in range(workers)]
            _supervise(parts, listeners, ready, asked)
        log.info("stopped")


def _supervise(parts: list[_Part], listeners: list[socket.socket], ready: Callable[[], None], asked: Stop) -> None:
    """Start the processes that serve, one for each socket, replace those that die, and stop with them."""
    waited_for = set(range(len(parts)))

    def stop() -> bool:
        if asked():
            for listener in listeners:  # nobody new is let in
                listener.close()
        return asked()

    with Workers(len(parts), threads=default_threads(), attempts=REPLACED, files=parts[0].sockets) as pool:
        for part, told in pool.as_done(_serve_part, parts, stop=stop):
            if isinstance(told, LostError):
                raise EngineError(f"a process of the service died {REPLACED} times ({told}); its log says why")
            if part.number not in waited_for:
                log.warning("replaced", extra={"facts": {"worker": part.number}})
            elif waited_for == {part.number}:
                ready()
            waited_for.discard(part.number)


def _serve_part(part: _Part) -> Iterator[bool]:
    """A process of a service: it takes connections from its socket until it is told to stop."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the one that started it says when
    keep_memory(keep=False)
    order = part.sockets[part.number :] + part.sockets[: part.number]
    own, *others = [socket.socket(fileno=number) for number in order]
    for other in others:  # else it would be open for as long as this one serves, and nobody would answer there
        other.close()
    if part.log:
        log_to(sys.stderr, part.log)
    uploads = SharedUploads(part.encoder, part.number)
    served = ServedCollection(Collection.open(part.folder), part.settings, uploads)
    yield True
    _Server(served, told_to_stop).run([own])


def configured(served: ServedCollection) -> uvicorn.Config:
    """How uvicorn is to run the service."""
    return uvicorn.Config(
        create_app(served), log_config=None, access_log=False, server_header=False, proxy_headers=False, ws="none",
        http=LimitedConnection, timeout_keep_alive=30, timeout_graceful_shutdown=SHUTDOWN,
    )  # fmt: skip


def _listeners(settings: Settings, workers: int) -> list[socket.socket]:
    """A socket for each worker, taken before anything slow begins: a port in use is said at once.

    The system shares out connections between sockets of one port; where it does not, all workers share one socket.
    They stay open here, so that no connection is lost with the worker that has not taken it up yet.
    """
    with _bound(settings, settings.port) as first:
        port = first.getsockname()[1]  # alone, so that no other service has it
        if workers == 1 or sys.platform != "linux":
            return [first.dup() for _ in range(workers)]
    return [_bound(settings, port, shared=True) for _ in range(workers)]


def _bound(settings: Settings, port: int, *, shared: bool = False) -> socket.socket:
    address, family = (settings.host.strip("[]"), port), socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=shared)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"{settings.address} cannot be used ({error}); choose another --port or --host") from error
    # asyncio sends small parts at once only where the socket says that it is TCP; else each answer waits 40 ms for the
    # client to confirm its head. One that is made of its number asks the system
    return socket.socket(fileno=listener.detach())


def most_connections() -> int:
    """As many as this process may have: half of the files that the system lets it open; the others are for its work."""
    if sys.platform == "win32":
        return MOST
    import resource

    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST if files == resource.RLIM_INFINITY else min(MOST, files // 2)


class LimitedConnection(HttpToolsProtocol):
    """A connection that does not wait for ever. Where there are too many, those that ask for nothing give way."""

    most = most_connections()
    _timer: asyncio.TimerHandle | None = None
    _gone = False
    _since = 0.0
    _begun = 0  # bytes of a head that is not whole yet

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = time.monotonic()
        self._limit(HEAD)
        others = [one for one in self.connections if isinstance(one, LimitedConnection) and not one._gone]
        near = [one for one in others if one._address == self._address]
        for some, most in ((near, self.most // 2), (others, self.most)):
            if len(some) > most and not self._gone:
                min((one for one in some if one._idle), key=lambda one: one._since)._abort()  # itself at the latest

    def data_received(self, data: bytes) -> None:
        before = self._idle
        super().data_received(data)
        idle = self._idle
        self._begun = self._begun + len(data) if idle else 0
        if self._begun > LONGEST and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")
        if idle != before or (idle and not self._timer):
            self._limit(HEAD if idle else WHOLE)

    def on_response_complete(self) -> None:
        self._since = time.monotonic()
        self._limit(None)  # from here on it is the time to keep it alive that counts
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit(None)
        super().connection_lost(exc)

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def _idle(self) -> bool:
        """Whether it has asked for nothing, or for nothing more."""
        return self.cycle is None or self.cycle.response_complete

    def _limit(self, seconds: float | None) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self._abort) if seconds else None

    def _abort(self) -> None:
        self._gone = True
        self._limit(None)
        self.transport.abort()
