"""kill -9 over the command line, the service and those who search: what they confirmed is there, nothing is half."""

import hashlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from hyphash.collection import Collection

ROUNDS = int(os.environ.get("HYPHASH_KILLS", "4"))  # tests/collection/test_crash.py does as much to the Python API
TOKEN = "token-of-the-test"
pytestmark = pytest.mark.slow


def started(*words: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "hyphash", *map(str, words)]
    quiet = os.environ | {"HYPHASH_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=quiet)


def killed(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def index(folder: Path, photos: Path, rng: random.Random) -> list[tuple[int, str]]:
    """`hyphash index`, killed; it confirms nothing by then."""
    process = started("index", folder / "run", photos, "--no-labels", "--into", folder / "collection")
    time.sleep(0.5 + 1.5 * rng.random())
    killed(process)
    return []


def search(folder: Path, photos: Path, rng: random.Random) -> list[tuple[int, str]]:
    """A search that finds the snapshot behind, and writes one."""
    process = started("search", folder / "collection", "--labels", "cat")
    time.sleep(0.3 + rng.random())
    killed(process)
    return []


def serve(folder: Path, photos: Path, rng: random.Random) -> list[tuple[int, str]]:
    """The service, killed under uploads; those that it confirmed."""
    process = started("serve", folder / "collection", "--port", 0, "--token", TOKEN, "--log", "error")
    assert process.stdout is not None
    address = re.search(r"http://\S+", process.stdout.readline())
    kept: list[tuple[int, str]] = []
    end = float("inf")
    if address:
        with httpx.Client(base_url=address[0], headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            while time.monotonic() < end:
                data = rng.choice(sorted(photos.iterdir())).read_bytes()
                name = f"{rng.randrange(10**9)}.jpg"
                answer = client.post("/api/photos", files={"photo": (name, data, "image/jpeg")})
                if answer.status_code == 201:
                    kept.append((answer.json()["id"], hashlib.sha256(data).hexdigest()))
                end = min(end, time.monotonic() + 0.2 + rng.random())  # the first waits for the network
    killed(process)
    return kept


def test_what_was_confirmed_outlives_a_kill(tmp_path: Path, tiny: Any, make_run: Callable[..., Path]) -> None:
    photos = tmp_path / "photos"
    for i in range(40):
        tiny.draw(photos / f"{i}.jpg", i)
    make_run(tmp_path / "run", 0)
    with Collection.into(tmp_path / "collection", tmp_path / "run") as collection:
        collection.add([photos / "0.jpg"])
    kept: dict[int, str] = {}
    for number in range(ROUNDS):
        rng = random.Random(number)
        kept |= dict([index, serve, search][number % 3](tmp_path, photos, rng))
        with Collection.open(tmp_path / "collection") as collection:
            assert collection.verify() == []
            there = {photo.id: photo for photo in collection.photos(limit=100_000)}
            assert len({photo.path for photo in there.values()}) == len(there), "a photo is there twice"
            assert {match.id for match in collection.search(labels=["cat"], k=100_000)} == set(there)
            for id, content in kept.items():
                assert there[id].facts.content == content, "confirmed, and lost"
                assert hashlib.sha256(collection.original(id)).hexdigest() == content
            if number % 20 == 19:
                collection.compact()
    print(f"{ROUNDS} kills, {len(kept)} uploads confirmed: none lost")  # noqa: T201
