"""Running the service, and its connections."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from hyphash.collection import Collection
from hyphash.errors import ConfigError
from hyphash.service import ServedCollection, Settings, serve, server
from hyphash.service.server import LimitedConnection, most_connections

WITHOUT_TORCH = """
import sys
import time
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision", "timm", "onnx", "onnxscript", "matplotlib"):
            raise ImportError(f"no {name} here")
sys.meta_path.insert(0, Absent())
"""
SERVE = "from hyphash.cli import main; sys.argv = ['hyphash', 'serve', *sys.argv[1:]]; main()"


@contextmanager
def serving(*arguments: str, token: str = "") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that serves, without torch, and its address."""
    command = [sys.executable, "-c", WITHOUT_TORCH + SERVE, *arguments, "--port", "0"]
    environment = os.environ | {"HYPHASH_TOKEN": token}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "http://127.0.0.1:" in line, process.stderr.read() if process.stderr else ""
            yield process, line.split()[1].rstrip("/")
        finally:
            process.kill()


@pytest.mark.slow
def test_serves_and_indexes_without_torch_and_stops_on_sigterm(own: Path, made: Any) -> None:
    with Collection.open(own) as collection:  # as an earlier hyphash took it in: its file was not asked for a date
        collection.store.relabel_all({1: lambda p: replace(p, facts=replace(p.facts, camera=None))})
    with (
        serving(str(own), token="a-token-for-tests") as (process, address),
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        with ThreadPoolExecutor(4) as pool:  # the first answers wait until it listens
            assert all(answer.status_code == 200 for answer in pool.map(client.get, ["/ready"] * 4))
        photo = made.photo(3, "database").read_bytes()
        found = client.post("/api/search", files={"photo": ("a.jpg", photo)}, params={"k": 1}).json()
        assert found["matches"][0]["distance"] == 0
        headers = {"Authorization": "Bearer a-token-for-tests"}
        assert client.post("/api/photos", files={"photo": ("b.jpg", photo + b"\0")}, headers=headers).status_code == 201
        with Collection.open(own) as collection:
            until = time.monotonic() + 60
            while collection.get(1).facts.camera is None and time.monotonic() < until:
                time.sleep(0.01)
            assert collection.get(1).facts.camera == ""
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    lines = [json.loads(line) for line in errors.splitlines()]
    assert [line["event"] for line in lines if line["event"] in ("started", "stopped")] == ["started", "stopped"]
    assert [line["status"] for line in lines if line["event"] == "request"] == [200, 201]
    assert "a-token-for-tests" not in errors


@pytest.mark.slow
def test_a_request_that_has_begun_is_answered_before_the_stop(made: Any) -> None:
    with serving(str(made.collection)) as (process, address):
        url = httpx.URL(address)
        photo = made.photo(3, "database").read_bytes()
        body = b'--e\r\nContent-Disposition: form-data; name="photo"; filename="a"\r\n\r\n' + photo + b"\r\n--e--\r\n"
        head = (
            f"POST /api/search?k=1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            "Content-Type: multipart/form-data; boundary=e\r\n\r\n"
        )
        httpx.get(f"{address}/ready", timeout=60)
        with socket.create_connection((url.host, url.port or 0), 60) as connection:
            connection.sendall(head.encode() + body[:100])
            httpx.get(f"{address}/health", timeout=60)  # so it has seen the first part
            process.send_signal(signal.SIGTERM)
            while _answers(address):  # until nobody new is let in
                pass
            connection.sendall(body[100:])
            answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200")
        assert process.wait(60) == 0


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", timeout=60).is_success
    except httpx.TransportError:
        return False


def test_port_in_use_is_said_at_once(made: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=r"choose another --port"):
            serve(made.collection, Settings(port=taken.getsockname()[1]))
    with pytest.raises(ConfigError, match=r"203\.0\.113\.7.*cannot be used"):
        serve(made.collection, Settings(host="203.0.113.7", token="long-enough"))


@pytest.mark.slow
def test_several_processes_serve_as_one(own: Path, made: Any) -> None:
    """One port, one network, one truth, figures of all; one that dies is replaced, and nobody is turned away."""
    with serving(str(own), "--workers", "3", token="a-token-for-tests") as (process, address):
        headers = {"Authorization": "Bearer a-token-for-tests"}

        def get(path: str) -> httpx.Response:  # on a connection of its own: any of them may answer
            return httpx.get(f"{address}{path}", headers=headers, timeout=60)

        photo = made.photo(3, "database").read_bytes()
        files = {"photo": ("b.jpg", photo + b"\0")}
        assert httpx.post(f"{address}/api/photos", files=files, headers=headers, timeout=60).status_code == 201
        assert {get("/api/collection").json()["photos"] for _ in range(12)} == {67}
        posted = [httpx.post(f"{address}/api/search", files=files, params={"k": 2}, timeout=60) for _ in range(6)]
        assert all(answer.json()["matches"][1]["distance"] == 0 for answer in posted)
        workers = psutil.Process(process.pid).children()
        served = [worker for worker in workers if _connections(worker)]
        assert len(served) == 3
        served[0].kill()
        assert [get("/health").status_code for _ in range(12)] == [200] * 12
        until = time.monotonic() + 60
        while (told := _figure(get("/metrics").text)) < 9 and time.monotonic() < until:
            time.sleep(0.1)  # each tells the others now and then
        assert 9 <= told <= 12  # those that died with it are lost
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    events = [json.loads(line)["event"] for line in errors.splitlines()]
    assert [events.count(name) for name in ("started", "replaced", "stopped")] == [1, 1, 1]
    assert not [worker for worker in workers if worker.is_running()]


def _connections(process: psutil.Process) -> bool:
    return any(connection.status == psutil.CONN_LISTEN for connection in process.net_connections("tcp"))


def _figure(text: str) -> float:
    found = re.search(r'^hyphash_requests_total{method="GET",route="/health",status="200"} (\S+)', text, re.MULTILINE)
    return float(found[1]) if found else 0.0


@pytest.fixture
def few(
    made: Any, monkeypatch: pytest.MonkeyPatch, address_of: Callable[..., AbstractContextManager[str]]
) -> Iterator[str]:
    """The address of a service that takes ten connections, five from one address, and waits half a second."""
    monkeypatch.setattr(LimitedConnection, "most", 10)
    monkeypatch.setattr(server, "HEAD", 0.5)
    monkeypatch.setattr(server, "WHOLE", 1.0)
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
