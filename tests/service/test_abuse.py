"""Requests that nobody should make: each gets a clear refusal, and the service goes on."""

import io
import os
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from PIL import Image

from hyphash.service import ServedCollection, Settings, create_app


def png(width: int, height: int) -> bytes:
    """A PNG of a few kilobytes that claims any number of pixels, all of them black."""
    rows = zlib.compress(bytes(min((width + 1) * height, 10**7)), 9)
    return png_file(struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0), rows)


def png_file(header: bytes, rows: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def tiny(kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (20, 20), "teal").save(file, kind)
    return file.getvalue()


BAD_PHOTOS = {
    "bomb": png(60_000, 60_000),
    "too many pixels": png(10_000, 9_000),
    "svg": b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
    "html": b"<!doctype html><script>alert(1)</script>",
    "html that claims to be a GIF": b"GIF89a/*<script>alert(1)</script>*/",
    "cut off": tiny("JPEG")[:200],
    "nothing": b"",
    "zip": b"PK\x03\x04" + bytes(100),
    "noise": bytes(range(256)) * 20,
}


@pytest.mark.parametrize("what", BAD_PHOTOS)
@pytest.mark.parametrize("path", ["/api/search", "/api/photos"])
def test_bad_photos_are_refused(refused: TestClient, what: str, path: str) -> None:
    answer = refused.post(path, files={"photo": ("cat.jpg", BAD_PHOTOS[what], "image/jpeg")})
    assert answer.status_code in (415, 422), answer.text
    assert answer.json()["error"]


TRAVERSALS = (
    "/page/../app.py", "/page/..%2fapp.py", "/page/%2e%2e/%2e%2e/app.py", "/../../../../etc/passwd",
    "//etc/passwd", "/page/__init__.py", "/page/", "/page/%00", "/api/photos/..%2f..%2fetc%2fpasswd/original",
    "/api/photos/1%2f../2", "/api/photos/%2e%2e/thumbnail", "/page/style.css%00.js", "/static/../../etc/passwd",
)  # fmt: skip


@pytest.mark.parametrize("path", TRAVERSALS)
def test_paths_lead_nowhere(site: str, path: str) -> None:
    with socket.create_connection(("127.0.0.1", urlsplit(site).port or 0), 30) as connection:  # sent as it stands
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.split()[1] in (b"404", b"422", b"400")
    assert b"root:" not in answer
    assert b"import" not in answer


@pytest.mark.parametrize(
    "name", ["../../../evil.jpg", "..\\..\\evil.jpg", "/etc/evil.jpg", "..", "", "a\0b.jpg", "x" * 5000]
)
def test_file_names_lead_nowhere(writer: TestClient, own: Path, name: str) -> None:
    before = {path for path in own.parent.rglob("*") if "evil" in path.name}
    body = (
        b'--edge\r\nContent-Disposition: form-data; name="photo"; filename="' + name.encode() + b'"\r\n'
        b"Content-Type: image/png\r\n\r\n" + tiny() + b"\r\n--edge--\r\n"
    )
    answer = writer.post("/api/photos", content=body, headers={"Content-Type": "multipart/form-data; boundary=edge"})
    assert answer.status_code in (201, 400, 422)
    if answer.status_code == 201:
        shown = writer.get(f"/api/photos/{answer.json()['id']}").json()["name"]
        assert "/" not in shown
        assert "\\" not in shown
        assert len(shown) <= 200
        assert writer.get(f"/api/photos/{answer.json()['id']}/original").content == tiny()
    assert {path for path in own.parent.rglob("*") if "evil" in path.name} == before


@pytest.mark.parametrize("id", ["0", "-1", "67", "9007199254740991", "9" * 30, "1.5", "one", "%F0%9F%98%80", "1e3"])
@pytest.mark.parametrize("path", ["", "/thumbnail", "/picture", "/original", "/suggestions"])
def test_unknown_photos(reader: TestClient, id: str, path: str) -> None:
    answer = reader.get(f"/api/photos/{id}{path}")
    assert answer.status_code in (404, 422)
    assert answer.json()["error"]


@pytest.mark.parametrize(
    "query",
    [
        "", "?k=0", "?k=201&label=dog", "?label=dog&offset=-1", "?label=", "?label=unheard-of", "?like=9999",
        "?label=dog&unwanted=dog", "?radius=-1&label=dog", "?label=dog&rank=best", "?lable=dog", "?place=x",
        "?place=5e41ce5e41ce5e41.AAAA", "?place=5e41ce5e41ce5e41." + "_" * 171, "?label=%00", "?label=%ff%fe",
        "?label=" + "a" * 201, "?" + "&".join(["label=dog"] * 51), "?like=abc", "?label=dog&k=NaN",
    ],
)  # fmt: skip
def test_odd_searches(reader: TestClient, query: str) -> None:
    answer = reader.get(f"/api/search{query}")
    assert answer.status_code in (404, 422), answer.text
    assert answer.json()["error"]
    assert "/tmp" not in answer.text  # where the collection lies is nobody's business


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b'{"label": 1}', b'{"label": ""}', b'{"label": "  "}', b'{"label": "a\\u0000"}',
        b'{"label": "\\ud800"}', b'{"label": "a", "other": 1}', b"\xff\xfe", b'{"label": "' + b"a" * 300 + b'"}',
        b"[" * 30_000,
    ],
)  # fmt: skip
def test_odd_changes(refused: TestClient, body: bytes) -> None:
    answer = refused.post("/api/photos/1/accept", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["error"]


# ── bodies ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def strict(own: Path, address_of: Callable[..., Any]) -> Any:
    """The address of a service with little patience."""
    with address_of(
        ServedCollection.open(own, Settings(token="a-token-for-tests", max_upload=100_000, seconds=2))
    ) as address:
        yield urlsplit(address)


def talk(strict: Any, head: str, *parts: bytes, pause: float = 0.0) -> int:
    """Send a request piece by piece; the status of the answer."""
    with socket.create_connection((strict.hostname, strict.port), 60) as connection:
        connection.sendall(f"{head}\r\nHost: localhost\r\n".encode())
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has hung up, with good reason
        answer = connection.recv(65536)
    return int(answer.split()[1])


def test_body_that_says_it_is_too_large_is_not_read(strict: Any) -> None:
    assert talk(strict, "POST /api/search HTTP/1.1", b"Content-Length: 999999999999\r\n\r\n") == 413  # not 408


def test_endless_body_is_cut_off(strict: Any) -> None:
    def forever() -> Any:
        for _ in range(1000):
            yield b"x" * 10_000

    answer = None
    with suppress(httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):  # it may hang up before we listen
        answer = httpx.post(f"{strict.geturl()}/api/search", content=forever(), timeout=60)
    assert answer is None or answer.status_code == 413
    assert httpx.get(f"{strict.geturl()}/health", timeout=60).status_code == 200


@pytest.mark.parametrize("path", ["/api/photos/1/accept", "/api/photos/1/labels"])
def test_changes_take_little(strict: Any, path: str) -> None:
    assert talk(strict, f"POST {path} HTTP/1.1", b"Content-Length: 70000\r\n\r\n") == 413


@pytest.mark.slow
def test_slow_body_is_given_up(strict: Any) -> None:
    assert talk(strict, "POST /api/search HTTP/1.1", b"Content-Length: 1000\r\n\r\n", b"x") == 408


@pytest.mark.slow
def test_slow_bodies_keep_nobody_waiting(strict: Any) -> None:
    senders = [
        Thread(target=talk, args=(strict, "POST /api/search HTTP/1.1", b"Content-Length: 1000\r\n\r\n", b"x"))
        for _ in range(20)
    ]
    for sender in senders:
        sender.start()
    answer = httpx.get(f"{strict.geturl()}/api/search", params={"label": "dog"}, timeout=60)
    assert answer.status_code == 200
    for sender in senders:
        sender.join()


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: -1\r\n\r\n", b"Content-Length: abc\r\n\r\n", b"Transfer-Encoding: gzip\r\n\r\n",
        b"X: " + b"y" * 200_000 + b"\r\n\r\n", b"\x00\x01\x02\r\n\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", b"Host: evil.example\r\n\r\n",
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"X : y\r\n\r\n", b"X: a\r\n b\r\n\r\n",
    ],
)  # fmt: skip
def test_broken_headers(strict: Any, head: bytes) -> None:
    assert 400 <= talk(strict, "GET /api/search?label=dog HTTP/1.1", head) < 500
    assert httpx.get(f"{strict.geturl()}/health", timeout=60).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", ""])
def test_names_that_are_not_ours(reader: TestClient, host: str) -> None:
    """A page elsewhere whose name is made to point to this machine must not read what is here."""
    assert reader.get("/api/collection", headers={"Host": host}).status_code == 421
    for right in ("localhost", "LOCALHOST:8000", "127.0.0.1", "[::1]:8000", "[::1]"):
        assert reader.get("/health", headers={"Host": right}).status_code == 200


def test_other_sites_may_not_ask(reader: TestClient) -> None:
    answer = reader.get("/api/collection", headers={"Origin": "https://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize(
    "path", ["/", "/page/main.js", "/api/collection", "/api/photos/1/original", "/nowhere", "/api/search"]
)
def test_every_answer_carries_the_policy(reader: TestClient, path: str) -> None:
    headers = reader.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" not in headers


# ── the whole description ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_requests_drawn_from_the_description_break_nothing(own: Path, token: str) -> None:
    """Every operation with values that fit its schema and values that do not: never a 5xx, always as described."""
    import schemathesis  # two seconds that no other process needs to spend

    app = create_app(ServedCollection.open(own, Settings(token=token, names=("testserver",))))
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers={"Authorization": f"Bearer {token}"})
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) == 37
    answered = Counter[int]()
    for operation in operations:
        headers = {"Authorization": f"Bearer {token}"}
        _fuzz(operation, schemathesis.GenerationMode.POSITIVE, headers, answered)
        with suppress(Unsatisfiable):  # where there are no parameters none can be wrong
            _fuzz(operation, schemathesis.GenerationMode.NEGATIVE, headers, answered)
    assert set(answered) >= {200, 404, 415, 422}
    print(f"{answered.total()} requests to {len(operations)} operations: none broke it")  # noqa: T201
    with TestClient(app, base_url="http://localhost") as client:
        assert client.get("/health").status_code == 200


def _fuzz(operation: Any, mode: Any, headers: dict[str, str], answered: Counter[int]) -> None:
    import schemathesis

    examples = int(os.environ.get("HYPHASH_SCHEMATHESIS", "8"))  # of each operation

    @settings(
        max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        answer = case.call(headers=headers)
        answered[answer.status_code] += 1
        assert answer.status_code < 500, (operation.label, answer.text)
        case.validate_response(
            answer,
            checks=[
                schemathesis.checks.not_a_server_error,
                schemathesis.specs.openapi.checks.status_code_conformance,
                schemathesis.specs.openapi.checks.content_type_conformance,
                schemathesis.specs.openapi.checks.response_schema_conformance,
            ],
        )

    check()


@pytest.mark.slow
def test_large_uploads_take_little_memory_and_give_it_back(made: Any) -> None:
    """Each needs 400 MB while it is decoded; all at once, and again and again, take no more than one."""
    form = b'--e\r\nContent-Disposition: form-data; name="photo"; filename="a"\r\n\r\n%s\r\n--e--\r\n'
    small, body = (form % deep_png(side) for side in (70, 7060))
    headers = {"Content-Type": "multipart/form-data; boundary=e"}
    command = [sys.executable, "-m", "hyphash", "serve", made.collection, "--port", "0", "--log", "critical"]
    with subprocess.Popen([*map(str, command), "--seconds", "4"], stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout
            address = service.stdout.readline().split()[1]
            # the process that decodes a first, small one stays
            answers = [httpx.post(f"{address}api/search?k=1", content=small, headers=headers, timeout=60)]
            before = peak = resident(service.pid)
            with ThreadPoolExecutor(32) as pool:
                asked = [
                    pool.submit(httpx.post, f"{address}api/search?k=1", content=body, headers=headers, timeout=60)
                    for _ in range(32)
                ]
                while not all(future.done() for future in asked):
                    peak = max(peak, resident(service.pid))
                answers += [future.result() for future in asked]
            after, until = (
                peak,
                time.monotonic() + 60,
            )  # the one that is at work when all have given up comes to its end
            while after - before > 100e6 and time.monotonic() < until:
                after = resident(service.pid)
                time.sleep(0.1)
        finally:
            service.terminate()
    assert {answer.status_code for answer in answers} <= {200, 503}
    assert peak - before < 600e6
    assert after - before < 100e6


def deep_png(side: int) -> bytes:
    """A square PNG of 16 bits a channel and transparency, all of it black."""
    press = zlib.compressobj(9)
    rows = b"".join([press.compress(bytes(1 + 8 * side)) for _ in range(side)]) + press.flush()
    return png_file(struct.pack(">IIBBBBB", side, side, 16, 6, 0, 0, 0), rows)


def resident(process: int) -> float:
    """Bytes of memory that a process and its children take."""
    total = 0.0
    for one in (parent := psutil.Process(process), *parent.children(recursive=True)):
        with suppress(psutil.Error):
            total += one.memory_full_info().pss
    return total
