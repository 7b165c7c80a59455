"""Running the service until it is told to stop."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn

from hyphash.errors import ConfigError
from hyphash.machine import give_back_memory
from hyphash.service.app import create_app
from hyphash.service.connections import LimitedConnection
from hyphash.service.served import ServedCollection
from hyphash.service.settings import Settings

BACKLOG = 1024  # connections that wait to be taken up
SHUTDOWN = 30  # seconds that requests have to end


class _Server(uvicorn.Server):
    """Stops when asked to, and does not raise the signal again: to stop is no failure."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


def serve(
    folder: str | Path, settings: Settings, *, device: str = "auto", started: Callable[[str], None] = lambda _: None
) -> None:
    """Serve the collection in `folder` until SIGINT or SIGTERM; requests that have begun are answered.

    `started` is called with the address once the service listens; a port of 0 takes any that is free.
    """
    give_back_memory()
    with _listening(settings) as listener:
        served = ServedCollection.open(folder, settings, device=device)
        config = configured(served)
        listener.listen(BACKLOG)
        host, port = listener.getsockname()[:2]
        started(f"http://{f'[{host}]' if ':' in host else host}:{port}/")
        asyncio.run(_Server(config).serve(sockets=[listener]))


def configured(served: ServedCollection) -> uvicorn.Config:
    """How uvicorn is to run the service."""
    return uvicorn.Config(
        create_app(served),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        http=LimitedConnection,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=SHUTDOWN,
    )


@contextlib.contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    """The socket, taken before anything slow begins: a port in use is said at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio sends small parts at once only where the socket says that it is TCP; else each answer waits 40 ms for the
    # client to confirm its head
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host.strip("[]"), settings.port))
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"{settings.address} cannot be used ({error}); choose another --port or --host"
            ) from error
        yield listener
