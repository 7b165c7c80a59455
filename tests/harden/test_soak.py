"""A service that is used without a pause: every answer is right, and memory stays what it was."""

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from hyphash.collection import Collection

SECONDS = float(os.environ.get("HYPHASH_SOAK", "6"))
GROWTH = 64e6  # bytes that caches and arenas may take after a third of the time
pytestmark = pytest.mark.slow


def memory(process: psutil.Process) -> int:
    """Of a service and all its processes."""
    return sum(one.memory_full_info().uss for one in (process, *process.children(recursive=True)))


def test_memory_stays_flat_and_answers_right(tmp_path: Path, tiny: Any, make_run: Callable[..., Path]) -> None:
    photos = [tiny.draw(tmp_path / "photos" / f"{i}.jpg", i) for i in range(60)]
    make_run(tmp_path / "run", 0)
    with Collection.into(tmp_path / "collection", tmp_path / "run") as collection:
        collection.add(photos)
        truth = [match.id for match in collection.search(labels=["cat"], k=20)]
    command = [
        sys.executable,
        "-m",
        "hyphash",
        "serve",
        tmp_path / "collection",
        "--port",
        "0",
        "--token",
        "secret-of-the-soak",
    ]
    server = subprocess.Popen([*map(str, command), "--log", "error"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = re.search(r"http://\S+", server.stdout.readline())
        assert address
        headers, rng, sizes, requests = {"Authorization": "Bearer secret-of-the-soak"}, random.Random(0), [], 0
        with httpx.Client(base_url=address[0], headers=headers, timeout=60) as client:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                found = client.get("/api/search", params={"label": "cat", "k": 20})
                assert found.status_code == 200, found.text
                assert [match["id"] for match in found.json()["matches"]] == truth
                photo = {"photo": ("x.jpg", rng.choice(photos).read_bytes(), "image/jpeg")}
                assert client.post("/api/search", files=photo).status_code == 200
                added = client.post("/api/photos", files=photo)
                assert added.status_code == 201, added.text
                assert client.get(f"/api/photos/{added.json()['id']}/thumbnail").status_code == 200
                assert client.delete(f"/api/photos/{added.json()['id']}").status_code == 204
                requests += 5
                sizes.append(memory(psutil.Process(server.pid)))
    finally:
        server.kill()
        server.communicate()
    third = sizes[len(sizes) // 3]
    assert sizes[-1] - third < GROWTH, sizes[:: max(len(sizes) // 20, 1)]
    told = f"{requests} requests in {SECONDS:.0f} s, {third / 1e6:.0f} MB after a third, {sizes[-1] / 1e6:.0f} MB"
    print(f"{told} at the end")  # noqa: T201
