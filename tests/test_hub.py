"""hf:// addresses, against a stand-in for the hub's HTTP API."""

import hashlib
import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from hyphash.errors import RunError
from hyphash.hub import local_folder

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LOAD = """
import sys
from hyphash import Hasher
from hyphash.errors import HyphashError
try:
    hasher = Hasher.to_encode(sys.argv[1], late=True)
except HyphashError as error:
    sys.exit(f"{type(error).__name__}: {error}")
print(hasher.fingerprint, hasher.bits)
"""


def blob_id(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def entry(path):
    content = path.read_bytes()
    return {"type": "file", "path": path.name, "size": len(content), "oid": blob_id(content)}


@pytest.fixture
def hub(tiny_hasher, tmp_path):
    """The address of a hub that has the model me/colours, the model itself, and what was asked for."""
    folder = tmp_path / "model"
    hasher = tiny_hasher()
    hasher.save(folder)
    (folder / "run_me.py").write_text("raise SystemExit('code of a model was run')")
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            asked.append(f"{self.command} {self.path}")
            headers = {"X-Repo-Commit": COMMIT}
            if self.path.startswith("/api/models/me/colours/tree/"):
                content = json.dumps([entry(path) for path in folder.iterdir()]).encode()
            elif self.path.startswith("/api/models/me/colours/"):
                files = [{"rfilename": path.name} for path in folder.iterdir()]
                content = json.dumps({"id": "me/colours", "sha": COMMIT, "siblings": files}).encode()
            elif self.path.startswith(f"/me/colours/resolve/{COMMIT}/"):
                content = (folder / self.path.rpartition("/")[2]).read_bytes()
                headers["ETag"] = f'"{blob_id(content)}"'
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200)
            for name, value in (headers | {"Content-Length": str(len(content))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", hasher, asked
        server.shutdown()


def load(address, endpoint, cache, **environment):
    """A program of its own: the hub's package reads its settings when it is imported."""
    settings = {
        "HF_ENDPOINT": endpoint,
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
    }
    command = [sys.executable, "-c", LOAD, address]
    path = {"PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    return subprocess.run(
        command, env=os.environ | settings | path | environment, capture_output=True, text=True, check=False
    )


def test_a_published_hasher_is_fetched_once_and_loads_without_the_hub(hub, tmp_path):
    endpoint, hasher, asked = hub
    first = load("hf://me/colours", endpoint, tmp_path / "cache")
    assert first.stdout.split() == [hasher.fingerprint, "12"], first.stderr
    assert any(line.startswith("GET") and line.endswith("weights.safetensors") for line in asked)
    assert not any("run_me.py" in line for line in asked)

    asked.clear()
    offline = load("hf://me/colours", endpoint, tmp_path / "cache", HF_HUB_OFFLINE="1")
    assert (offline.stdout, asked) == (first.stdout, [])
    away = load("hf://me/colours@main", "http://127.0.0.1:9", tmp_path / "cache")
    assert away.stdout == first.stdout, away.stderr


def test_what_is_not_there_is_said(hub, tmp_path):
    endpoint, _, _ = hub
    assert "there is no such model" in load("hf://me/nothing", endpoint, tmp_path / "cache").stderr
    never = load("hf://me/colours", endpoint, tmp_path / "empty", HF_HUB_OFFLINE="1")
    assert never.stderr.startswith("RunError: hf://me/colours: cannot be fetched, and was not before")


def test_folders_stay_folders_and_odd_addresses_are_refused():
    assert local_folder("runs/mine") == Path("runs/mine")
    for odd in ("hf://me", "hf://me/a/b", "hf://me/../x y"):
        with pytest.raises(RunError, match="hf://user/name"):
            local_folder(odd)
