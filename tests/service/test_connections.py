"""Connections that ask for nothing keep nobody out, and do not last."""

import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from hyphash.service import ServedCollection, Settings, connections
from hyphash.service.connections import LimitedConnection, most_connections


@pytest.fixture
def few(
    made: Any, monkeypatch: pytest.MonkeyPatch, address_of: Callable[..., AbstractContextManager[str]]
) -> Iterator[str]:
    """The address of a service that takes ten connections, five from one address, and waits half a second."""
    monkeypatch.setattr(LimitedConnection, "most", 10)
    monkeypatch.setattr(connections, "HEAD", 0.5)
    monkeypatch.setattr(connections, "WHOLE", 1.0)
    with address_of(ServedCollection.open(made.collection, Settings())) as address:
        yield address


def connect(address: str, source: str = "127.0.0.1") -> socket.socket:
    place = urlsplit(address)
    return socket.create_connection((place.hostname or "", place.port or 0), 30, source_address=(source, 0))


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1000) == b""
    except ConnectionResetError:
        return True


def test_silent_connections_keep_nobody_out(few: str, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as opened:
        silent = [opened.enter_context(connect(few)) for _ in range(50)]
        started = time.monotonic()
        assert httpx.get(f"{few}/health").status_code == 200
        assert time.monotonic() - started < 20
        assert all(is_closed(connection) for connection in silent[:40])  # the oldest first
    assert "Traceback" not in caplog.text


def test_one_address_leaves_room_for_others(few: str) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with ExitStack() as opened:
        own = opened.enter_context(connect(few, "127.0.0.2"))
        for _ in range(30):
            opened.enter_context(connect(few))
        own.sendall(request)
        assert own.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("begun", [b"", b"GET /health HTTP/1.1\r\nX-Long: "])
def test_a_head_has_to_come_in_time(few: str, begun: bytes) -> None:
    with connect(few) as connection:
        connection.sendall(begun)
        assert is_closed(connection)


def test_the_head_of_a_second_request_has_to_come_in_time(few: str) -> None:
    with connect(few) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(5000).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /hea")
        assert is_closed(connection)


def test_a_body_has_to_come_in_time_as_well(few: str) -> None:
    with connect(few) as connection:
        connection.sendall(b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx")
        assert is_closed(connection)


@pytest.mark.parametrize(("files", "most"), [(1024, 512), (64, 32), (10**6, 1000), (resource.RLIM_INFINITY, 1000)])
def test_there_are_fewer_connections_than_files(files: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert most_connections() == most
