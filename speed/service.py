"""The service under load on loopback: a million codes, 64 clients of label and id searches, then uploads.

    python speed/service.py [--photos 1000000] [--clients 64] [--seconds 60] [--run RUN] [--folder KEPT]

Prints requests a second, p50 and p99, errors and the memory of the service; then what the network can do alone,
what uploads get through the service, and how many photos it saw at once. Clients and service share the machine.
"""

import argparse
import asyncio
import hashlib
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

import numpy as np
from PIL import Image

from hyphash.codes import Codes
from hyphash.collection import Collection
from hyphash.hasher import Hasher
from hyphash.service import Settings
from hyphash.stores import Facts, Photo

CLASSES = tuple(f"label {i:02}" for i in range(38))
CHUNK = 20_000
SERVE = """
import sys
from hyphash.service import Settings, log_to, serve
log_to(sys.stderr, "warning")
serve(sys.argv[1], Settings(port=0, threads=int(sys.argv[2])), started=lambda url: print(url, flush=True))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--uploaders", type=int, default=32)
    parser.add_argument("--threads", type=int, default=Settings().threads)
    parser.add_argument("--run", type=Path, help="an exported run; else an untrained efficientnet_lite0 is exported")
    parser.add_argument("--folder", type=Path, help="where the collection is kept for another time")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch) / "collection"
        if not folder.exists():
            fill(folder, given.run or export_untrained(Path(scratch) / "run"), given.photos)
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before; {given.clients} clients")
        with serving(folder, given.threads) as (address, process):
            search_load(address, process, given.photos, given.clients, given.seconds)
            upload_load(address, process, folder, given.uploaders, given.seconds / 2)


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
                        content=hashlib.sha256(b"%d" % (start + i)).hexdigest(), size=1, width=640, height=480
                    ),
                    labels=tuple(sorted(hasher.classes[c] for c in labels[i])),
                )
                for i in range(count)
            ]  # fmt: skip
            collection.store.upsert(rows, fingerprint=hasher.fingerprint)
        collection.tidy()
    print(f"{photos:,} photos of {hasher.bits} bits in {time.perf_counter() - started:.0f} s")


@contextmanager
def serving(folder: Path, threads: int) -> Iterator[tuple[str, int]]:
    """The address and the process of a service of its own."""
    command = [sys.executable, "-c", SERVE, folder, str(threads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            yield address, process.pid
            process.terminate()
            print(f"stopped with {process.wait(60)}")
        finally:
            process.kill()


# ── load ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Seen:
    """What clients have seen."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        p50, p99 = np.percentile(self.seconds, (50, 99)) * 1000 if self.seconds else (np.nan, np.nan)
        return f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, {len(self.errors)} errors {sorted(set(self.errors))[:3] or ''}"


async def client(address: str, request: Callable[[], bytes], until: float, seen: Seen) -> None:
    """Ask again as soon as the answer is there, on one connection."""
    place = urlsplit(address)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    while time.perf_counter() < until:
        started = time.perf_counter()
        writer.write(request())
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            size = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            await reader.readexactly(int(size[1]) if size else 0)
            status = int(head.split()[1])
        except (OSError, EOFError, TimeoutError) as error:
            seen.errors.append(type(error).__name__)
            break
        seen.seconds.append(time.perf_counter() - started)
        if status != 200:
            seen.errors.append(str(status))
    writer.close()


async def clients(address: str, count: int, request: Callable[[], bytes], seconds: float, process: int) -> Seen:
    seen, until = Seen(), time.perf_counter() + seconds
    tasks = [asyncio.create_task(client(address, request, until, seen)) for _ in range(count)]
    memory, busy = [], cpu_seconds(process)
    while not all(task.done() for task in tasks):
        await asyncio.wait(tasks, timeout=seconds / 6)
        memory.append(f"{resident(process):.0f}")
    await asyncio.gather(*tasks)
    each = (cpu_seconds(process) - busy) / max(len(seen.seconds), 1)
    print(f"  {len(seen.seconds) / seconds:,.0f} requests/s, {seen}")
    print(f"  {each * 1000:.1f} ms of processor time each; memory {' → '.join(memory)} MiB")
    return seen


def cpu_seconds(process: int) -> float:
    """What a process has used of all processors."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(process: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


def search_load(address: str, process: int, photos: int, count: int, seconds: float) -> None:
    rng = random.Random(0)
    labels = [answer["label"] for answer in json.loads(fetch(f"{address}api/labels"))]

    def wish(**query: object) -> bytes:
        return f"GET /api/search?{urlencode(query, doseq=True)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()

    def by_labels() -> bytes:
        return wish(label=rng.sample(labels, rng.randint(1, 3)), k=30)

    def by_id() -> bytes:
        return wish(like=rng.randint(1, photos), k=30)

    def either() -> bytes:
        return rng.choice((by_labels, by_id))()

    for name, ask in (("label", by_labels), ("id", by_id)):
        print(f"{name} searches, 1 client:")
        asyncio.run(clients(address, 1, ask, min(3, seconds), process))
    print("both, 4 clients:")
    asyncio.run(clients(address, 4, either, min(3, seconds), process))
    print(f"both, {count} clients, {seconds:g} s:")
    asyncio.run(clients(address, count, either, seconds, process))


def upload_load(address: str, process: int, folder: Path, count: int, seconds: float) -> None:
    alone = {batch: network_speed(folder, batch, min(seconds, 10)) for batch in (1, 32)}
    print(f"the network alone: {alone[1]:.0f} photos/s one by one, {alone[32]:.0f} in batches of 32")
    bodies = [upload(i) for i in range(16)]
    rng = random.Random(0)
    before = batches(address)
    print(f"uploads of 640 × 480 JPEGs, {count} clients, {seconds:g} s:")
    seen = asyncio.run(clients(address, count, lambda: rng.choice(bodies), seconds, process))
    made, photos = (after - was for after, was in zip(batches(address), before, strict=True))
    rate = len(seen.seconds) / seconds
    print(f"  {rate / alone[32]:.2f} of the network's own speed, {photos / max(made, 1):.1f} photos a batch")


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
        collection.hasher.outputs_of_pixels(pixels)
        started, done = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            collection.hasher.outputs_of_pixels(pixels)
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
