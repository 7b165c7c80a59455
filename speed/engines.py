"""All engines beside each other: loading, latency, queries a second, room, and recall of the approximate ones.

    python speed/engines.py [--codes 1000000] [--engines local,faiss] [--json figures.json]

Codes of 64 bits lie around 1,000 places, 5 % of their bits astray; each photo carries four labels. They are loaded by
`Store.upsert`, 10,000 at a time. Queries (k = 10) are made in the same way. Servers are started here, on this machine,
with the settings they come with, so a server shares the cores with its clients; clients are threads of one process.
Milvus is asked with Session consistency: Strong, the default of the engine, waits for the next tick of the server on
top, 200 ms apart.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hyphash.codes import Codes
from hyphash.collection.folder import Settings
from hyphash.planning import Measured
from hyphash.searchers import Query, Searcher, recall, searcher_for
from hyphash.stores import Facts, Photo, store_for

BITS = 64
LABELS = 4
BATCH = 10_000
REST = 15  # seconds that a server gets to tidy up after loading
ME = "0123456789abcdef"
WORDS = [f"label {number}" for number in range(24)]
APPROXIMATE = "-approximate"
ENGINES = ("local", *(name + kind for name in ("faiss", "postgresql", "milvus") for kind in ("", APPROXIMATE)))


@dataclass(frozen=True)
class Place:
    """Where an engine is measured: its address, and what its server takes, if it has one."""

    url: str
    disk: Callable[[], int]
    memory: Callable[[], int] | None  # None: it is the memory of the process that asks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--codes", type=int, default=1_000_000)
    parser.add_argument("--engines", default=",".join(ENGINES), help="some of them, with commas between")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each kind of searching lasts at most")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    print(f"{arguments.codes:,} codes of {BITS} bits; {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f}")
    codes = trained_like(np.random.default_rng(0), arguments.codes)
    queries = trained_like(np.random.default_rng(1), 1000)
    measured: list[Measured] = []
    heading()
    for name in arguments.engines.split(","):
        with tempfile.TemporaryDirectory() as folder, PLACES[name.removesuffix(APPROXIMATE)](name) as place:
            measured.append(measure(name, Path(folder), place, codes, queries, arguments.seconds))
        row(measured[-1])
        if arguments.json:
            arguments.json.write_text(json.dumps([asdict(figures) for figures in measured], indent=1) + "\n")


def trained_like(rng: np.random.Generator, count: int) -> Codes:
    centres = np.random.default_rng(99).integers(0, 2, (1000, BITS), np.uint8)
    packed = np.empty((count, BITS // 8), np.uint8)
    for start in range(0, count, 1 << 17):
        some = len(packed[start : start + (1 << 17)])
        bits = centres[rng.integers(0, len(centres), some)] ^ (rng.random((some, BITS), np.float32) < 0.05)
        packed[start : start + some] = np.packbits(bits, axis=1, bitorder="little")
    return Codes(packed, BITS)


def photos_with(codes: Codes, start: int) -> list[Photo]:
    photos = []
    for i, code in enumerate(codes.packed, start):
        labels = tuple(sorted(WORDS[(i * step) % len(WORDS)] for step in (1, 5, 7, 11)))
        photos.append(
            Photo(
                path=f"/photos/{i // 1000:06}/{i:09}.jpg", code=code.tobytes(), labels=labels, given=labels,
                facts=Facts(
                    content=hashlib.sha256(b"%d" % i).hexdigest(), size=100_000 + i, modified=i + 1, width=640,
                    height=480, thumbnail_hash=i.to_bytes(8, "little"),
                ),
            )
        )  # fmt: skip
    return photos


# ── measuring ────────────────────────────────────────────────────────────────────────────────────────────


def measure(name: str, folder: Path, place: Place, codes: Codes, queries: Codes, seconds: float) -> Measured:
    disk, memory = place.disk(), place.memory() if place.memory else 0
    urls = Settings.chosen(None, place.url)
    store = store_for(urls.store).create(folder, urls.store, fingerprint=ME, bits=BITS)
    engine = searcher_for(urls.engine).create(folder, urls.engine, store)
    rate = load(engine, codes)
    ones = [queries[i] for i in range(len(queries))]
    engine.search(Query(ones[0], 10, fingerprint=ME))  # what is derived is derived now
    time.sleep(REST if place.memory else 0)
    times = latencies(engine, ones, seconds)
    figures = Measured(
        engine=name, codes=len(codes), bits=BITS, cores=os.cpu_count() or 1, labels_per_photo=LABELS,
        load_per_second=round(rate), p50_ms=round(float(np.percentile(times, 50)) * 1e3, 3),
        p99_ms=round(float(np.percentile(times, 99)) * 1e3, 3), qps_1=round(throughput(engine, ones, 1, seconds), 1),
        qps_8=round(throughput(engine, ones, 8, seconds), 1), bytes_on_disk=size_of(folder) + place.disk() - disk,
        bytes_in_memory=(place.memory() - memory if place.memory else memory_of(folder, place.url, ones[:50])),
        recall_10=1.0 if engine.exact else round(recall(engine, queries[:100], 10), 4),
        recall_100=1.0 if engine.exact else round(recall(engine, queries[:100], 100), 4),
    )  # fmt: skip
    engine.close()
    store.close()
    return figures


def load(engine: Searcher, codes: Codes) -> float:
    """Photos a second, index and all."""
    seconds = 0.0
    for start in range(0, len(codes), BATCH):
        photos = photos_with(codes[start : start + BATCH], start)
        since = time.perf_counter()
        engine.store.upsert(photos, fingerprint=ME)
        seconds += time.perf_counter() - since
    since = time.perf_counter()
    engine.tidy()
    engine.store.tidy()
    return len(codes) / (seconds + time.perf_counter() - since)


def latencies(engine: Searcher, queries: list[Codes], seconds: float) -> list[float]:
    times: list[float] = []
    for query in queries:
        since = time.perf_counter()
        engine.search(Query(query, 10, fingerprint=ME))
        times.append(time.perf_counter() - since)
        if sum(times) > seconds:
            break
    return times


def throughput(engine: Searcher, queries: list[Codes], clients: int, seconds: float) -> float:
    """Queries a second of so many clients, each of which asks again as soon as it has an answer."""
    counts = [0] * clients
    stop = time.perf_counter() + seconds

    def ask(client: int) -> None:
        while time.perf_counter() < stop:
            engine.search(Query(queries[(client * 101 + counts[client]) % len(queries)], 10, fingerprint=ME))
            counts[client] += 1

    since = time.perf_counter()
    threads = [threading.Thread(target=ask, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - since)


def memory_of(folder: Path, url: str, queries: list[Codes]) -> int:
    """What a fresh process takes to answer, beyond what it took before."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_grown, (folder, url, queries))


def _grown(folder: Path, url: str, queries: list[Codes]) -> int:
    urls, process = Settings.chosen(None, url), psutil.Process()
    stores, searchers = store_for(urls.store), searcher_for(urls.engine)
    import faiss  # noqa: F401 (a library is not what codes take)

    before = process.memory_info().rss
    store = stores.open(folder, urls.store)
    engine = searchers.open(folder, urls.engine, store)
    for query in queries:
        engine.search(Query(query, 10, fingerprint=ME))
    grown = process.memory_info().rss - before
    engine.close()
    store.close()
    return int(grown)


# ── places ───────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def here(name: str) -> Iterator[Place]:
    yield Place(name, lambda: 0, None)


@contextmanager
def on_postgres(name: str) -> Iterator[Place]:
    server = servers().PostgresServer()
    try:
        yield Place(server.url(scheme=name), lambda: size_of(server.folder), lambda: searched_pages(server))
    finally:
        server.stop()


@contextmanager
def on_milvus(name: str) -> Iterator[Place]:
    server = servers().MilvusServer(tick=200)
    try:
        process = psutil.Process(server.process)
        url = server.url(scheme=name, consistency="Session")
        yield Place(url, lambda: size_of(server.folder / "data"), lambda: memory_with_children(process))
    finally:
        server.stop()


PLACES = {"local": here, "faiss": here, "postgresql": on_postgres, "milvus": on_milvus}


def servers() -> Any:
    """The servers that the tests start."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "setup"))
    import servers

    return servers


def size_of(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # servers come and go with files
            continue
    return total


def searched_pages(server: Any) -> int:
    """What must lie in the caches of PostgreSQL and of the system for a search to be fast: codes and their indexes.

    The memory of its processes is no measure: it stays at `shared_buffers`, however large the collection.
    """
    tables = "SELECT oid FROM pg_class WHERE relkind = 'r' AND relname ~ '^codes_[0-9]+'"
    return int(server.run(f"SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM ({tables}) AS codes")[0][0])


def memory_with_children(process: psutil.Process) -> int:
    """Memory of its own of a server's processes; what they share is counted once."""
    return sum(one.memory_full_info().pss for one in (process, *process.children(recursive=True)))


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────


def heading() -> None:
    print(
        "| engine | load /s | p50 ms | p99 ms | queries/s, 1 client | 8 clients | disk MB | memory MB "
        "| recall@10 | recall@100 |\n|---|---|---|---|---|---|---|---|---|---|"
    )


def row(f: Measured) -> None:
    print(
        f"| {f.engine} | {f.load_per_second:,.0f} | {f.p50_ms:.2f} | {f.p99_ms:.2f} | {f.qps_1:,.0f} | {f.qps_8:,.0f} "
        f"| {f.bytes_on_disk / 1e6:,.0f} | {f.bytes_in_memory / 1e6:,.0f} | {f.recall_10:.3f} | {f.recall_100:.3f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
