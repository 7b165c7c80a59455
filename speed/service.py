"""The service under load on loopback: searches and uploads, by one process and by several, in turns with another one.

    python speed/service.py [--photos 1000000] [--clients 64] [--seconds 10] [--workers 1,2] [--turns 2] [--run RUN]
        [--folder KEPT] [--before CHECKOUT --before-folder KEPT]

Prints searches a second, p50 and p99, errors, the processor time of the service for each search, that of the load
generator beside it, and the memory of all processes of the service; then what the network can do alone and what
uploads get through the service. Clients and service share the machine; where others do too, go by processor time.

`--before` is the checkout of an older version, which is asked for the same in turns with this one; it needs a
collection of its own, made by that version (`--folder`).
"""

import argparse
import hashlib
import io
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import numpy as np
import psutil
from PIL import Image

from hyphash.codes import Codes
from hyphash.collection import Collection
from hyphash.hasher import Hasher
from hyphash.stores import Facts, Photo
from load import Seen, load

CLASSES = tuple(f"label {i:02}" for i in range(38))
CHUNK = 20_000
WARM = 2.0  # seconds of load before that which counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--uploaders", type=int, default=32)
    parser.add_argument("--workers", default="1,2", help="numbers of processes, one after the other")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--run", type=Path, help="an exported run; else an untrained efficientnet_lite0 is exported")
    parser.add_argument("--folder", type=Path, help="where the collection is kept for another time")
    parser.add_argument("--before", type=Path, help="a checkout of the version to compare with")
    parser.add_argument("--before-folder", type=Path, help="a collection that it has made")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch) / "collection"
        if not folder.exists():
            fill(folder, given.run or export_untrained(Path(scratch) / "run"), given.photos)
        services = {f"{number} workers": Service(folder, ("--workers", number)) for number in given.workers.split(",")}
        if given.before:
            services = {"before": Service(given.before_folder, (), given.before)} | services
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before; {given.clients} clients")
        asked = searches(given.photos)
        for _ in range(given.turns):
            for name, service in services.items():
                with service.running() as address:
                    print(f"{name}: {service.measured(address, asked, given.clients, given.seconds)}")
        upload_load(services[list(services)[-1]], folder, given.uploaders, given.seconds)


# ── the collection ───────────────────────────────────────────────────────────────────────────────────────────


def export_untrained(folder: Path) -> Path:
    hasher, _ = Hasher.create(classes=CLASSES, bits=48, weights="none", hidden=1024, device="cpu")
    hasher.anchors = np.random.default_rng(0).normal(size=(len(CLASSES), 48)).astype(np.float32)
    hasher.save(folder)
    exported = hasher.export(folder)
    print(f"exported: outputs agree within {exported.difference:.0e}")
    return folder


def fill(folder: Path, run: Path, photos: int) -> None:
    """A collection of drawn codes: each photo lies near the middle of its labels, as if it had been trained."""
    started = time.perf_counter()
    rng = np.random.default_rng(1)
    with Collection.create(folder, run) as collection:
        hasher = collection.hasher
        assert hasher.anchors is not None
        for start in range(0, photos, CHUNK):
            count = min(CHUNK, photos - start)
            labels = [rng.choice(len(hasher.classes), rng.integers(1, 4), replace=False) for _ in range(count)]
            outputs = np.stack([hasher.anchors[row].mean(axis=0) for row in labels])
            outputs += 0.5 * rng.normal(size=outputs.shape)
            codes = Codes.from_outputs(outputs.astype(np.float32)).packed
            rows = [
                Photo(
                    path=f"pack/{start + i:08}.jpg", code=codes[i].tobytes(),
                    facts=Facts(
                        content=hashlib.sha256(b"%d" % (start + i)).hexdigest(), size=1,
                        width=640, height=480, camera="",
                    ),
                    labels=tuple(sorted(hasher.classes[c] for c in labels[i])),
                )
                for i in range(count)
            ]  # fmt: skip
            collection.store.upsert(rows, fingerprint=hasher.fingerprint)
        collection.tidy()
    print(f"{photos:,} photos of {hasher.bits} bits in {time.perf_counter() - started:.0f} s")


# ── the service ──────────────────────────────────────────────────────────────────────────────────────────────


class Service:
    """A service of its own, of this version or of another."""

    def __init__(self, folder: Path, options: Sequence[str], checkout: Path | None = None) -> None:
        self.command = [
            sys.executable,
            "-m",
            "hyphash",
            "serve",
            str(folder),
            "--port",
            "0",
            "--log",
            "warning",
            *options,
        ]
        self.environment = os.environ | ({"PYTHONPATH": str(checkout / "src")} if checkout else {})
        self.process = 0

    @contextmanager
    def running(self) -> Iterator[str]:
        """Its address."""
        with subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True, env=self.environment) as process:
            try:
                self.process = process.pid
                assert process.stdout is not None
                yield re.findall(r"http://\S+", process.stdout.readline())[0]
                process.terminate()
                process.wait(60)
            finally:
                process.kill()

    def measured(self, address: str, requests: Sequence[bytes], clients: int, seconds: float) -> str:
        """What so many clients see of it, and what it takes for that."""
        generate(address, requests, clients, WARM)
        before = self.processor()
        seen = generate(address, requests, clients, seconds)
        each, own = ((self.processor() - before), seen.processor)
        each, own = (1000 * used / max(len(seen.latencies), 1) for used in (each, own))
        return f"{seen}; {each:.2f} ms of its processor time each ({own:.2f} of the clients'), {self.memory():.0f} MB"

    def processor(self) -> float:
        """Seconds that all its processes have used."""
        return sum(sum(one.cpu_times()[:2]) for one in self._processes())

    def memory(self) -> float:
        """Megabytes; what several processes share counts once."""
        return sum(one.memory_full_info().pss for one in self._processes()) / 1e6

    def _processes(self) -> list[psutil.Process]:
        return [psutil.Process(self.process), *psutil.Process(self.process).children(recursive=True)]


def generate(address: str, requests: Sequence[bytes], clients: int, seconds: float) -> Seen:
    """Load from a process of its own, so that its processor time can be told apart."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(load, (address, requests, clients, seconds))


def searches(photos: int) -> list[bytes]:
    """By labels and by a photo of the collection in equal parts, 30 matches each, by their codes."""
    rng = random.Random(0)

    def wish(**query: object) -> bytes:
        words = urlencode({**query, "k": 30, "rank": "hamming"}, doseq=True)
        return f"GET /api/search?{words} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()

    asked = [wish(label=rng.sample(CLASSES, rng.randint(1, 3))) for _ in range(2000)]
    asked += [wish(like=rng.randint(1, photos)) for _ in range(2000)]
    rng.shuffle(asked)
    return asked


def upload_load(service: Service, folder: Path, count: int, seconds: float) -> None:
    alone = {batch: network_speed(folder, batch, min(seconds, 10)) for batch in (1, 32)}
    print(f"the network alone: {alone[1]:.0f} photos/s one by one, {alone[32]:.0f} in batches of 32")
    with service.running() as address:
        before = batches(address)
        print(f"uploads of 640 × 480 JPEGs, {count} clients:")
        print(f"  {service.measured(address, [upload(i) for i in range(16)], count, seconds)}")
        made, photos = (after - was for after, was in zip(batches(address), before, strict=True))
        print(f"  {photos / max(made, 1):.1f} photos a batch")


def upload(seed: int) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((640, 480), Image.Resampling.BICUBIC).save(file, "JPEG", quality=85)
    head = b'--edge\r\nContent-Disposition: form-data; name="photo"; filename="a.jpg"\r\n\r\n'
    body = head + file.getvalue() + b"\r\n--edge--\r\n"
    return (
        b"POST /api/search?k=30 HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=edge\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    ) + body


def network_speed(folder: Path, batch: int, seconds: float) -> float:
    """Photos a second through the network on its own, while the service idles."""
    with Collection.open(folder, device="onnx") as collection:
        shape = collection.hasher.spec.preprocessing.shape
        pixels = np.zeros((batch, *shape), np.uint8)
        collection.hasher.outputs(pixels)
        started, done = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            collection.hasher.outputs(pixels)
            done += batch
        return done / (time.perf_counter() - started)


def fetch(url: str) -> str:
    with urlopen(url) as answer:
        text: str = answer.read().decode()
    return text


def batches(address: str) -> tuple[float, float]:
    """How many batches the service has encoded, and of how many photos."""
    text = fetch(f"{address}metrics")
    found = dict(re.findall(r"^hyphash_batch_photos_(count|sum) (\S+)", text, re.MULTILINE))
    return float(found["count"]), float(found["sum"])


if __name__ == "__main__":
    main()
