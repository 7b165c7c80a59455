"""One search in a large local collection: with its index, and without, when all codes are scanned.

    python speed/collection.py [--photos 1000000] [--bits 48]

Codes are trained-like (see `measure.trained_codes`). Times are seconds of the processor, all threads together, of a
whole search (the transaction, the ranking, the ids), the mean over 200 queries of each one's fastest run; both take
turns; so do a search by the first half of the bits that looks at these first, and one that looks at all. Then the
snapshot and the index of ten times as many photos, without a database: how long they take to write and
to open, and what a process holds in memory that has opened them.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.collection.query import prefix_tables
from hyphash.searchers import Filter, Query
from hyphash.searchers.local import Local, snapshot
from hyphash.searchers.local.view import Block, Told, View
from hyphash.stores import Facts, Photo, Position
from hyphash.stores.sqlite import SqliteStore
from measure import row, singles, trained_codes

QUERIES = 200
BATCH = 50_000
ME = "0123456789abcdef"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos", type=int, default=1_000_000)
    parser.add_argument("--bits", type=int, default=48)
    arguments = parser.parse_args()
    count = arguments.photos
    codes = trained_codes(np.random.default_rng(0), count + QUERIES, arguments.bits)
    queries = list(singles(codes[count:]))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder, codes[:count])
        start = time.perf_counter()
        store = SqliteStore.open(folder, "sqlite")
        engine = Local.open(folder, "local", store)
        engine.search(Query(queries[0], 10, fingerprint=ME))
        print(f"opened, with the first search, in {time.perf_counter() - start:.3f} s")
        sizes = {path.name: path.stat().st_size / count for path in sorted(folder.glob("codes-*"))}
        print(", ".join(f"{name}: {size:.1f} bytes a photo" for name, size in sizes.items()))
        compare(engine, queries, "all visible")
        store.remove(range(10, count, 100))
        compare(engine, queries, "1 % removed")
        store.close()
        ten_times(folder / "codes-9.safetensors", 10 * count, arguments.bits)


def fill(folder: Path, codes: Codes) -> None:
    store = SqliteStore.create(folder, "sqlite", fingerprint=ME, bits=codes.bits)
    start = time.perf_counter()
    for first in range(0, len(codes), BATCH):
        some = enumerate(codes.packed[first : first + BATCH], first)
        store.upsert(
            [Photo(path=f"{i}.jpg", facts=Facts(content=f"{i:064x}"), code=code.tobytes()) for i, code in some],
            fingerprint=ME,
        )
    print(f"{len(codes):,} photos of {codes.bits} bits stored in {time.perf_counter() - start:.0f} s, ", end="")
    start = time.perf_counter()
    Local.open(folder, "local", store).tidy()
    store.tidy()
    print(f"tidied up in {time.perf_counter() - start:.1f} s; {hamming.backend()}", flush=True)
    store.close()


def compare(engine: Local, queries: list[Codes], what: str) -> None:
    engine.follow()
    indexed = engine._view
    assert indexed is not None
    assert indexed.base.index is not None
    scanning = replace(indexed, base=replace(indexed.base, index=None))
    for k in (10, 100, 1000):
        asked = [Query(query, k, fingerprint=ME) for query in queries]
        with_index, without = both(engine, indexed, scanning, lambda i: engine.search(asked[i]))  # noqa: B023
        row(f"search of the engine, k = {k:,}, {what}", with_index, without, 1)
    bits = queries[0].bits // 2
    first = [Query(one, 10, fingerprint=ME, bits=bits, tables=prefix_tables(one, bits)) for one in queries[:20]]
    stages = [min(timed(lambda: [engine.search(q) for q in asked]) for _ in range(3)) / 20  # noqa: B023
              for asked in (first, [replace(one, bits=None) for one in first])]  # fmt: skip
    row(f"search by the first {bits} bits, then all, {what}", *stages, 1)
    only = Filter(excluded=(7,))
    views = (indexed, scanning)
    alone = [[view.search(Query(query, 10, fingerprint=ME, only=only), Told()) for query in queries] for view in views]
    for one, other in zip(*alone, strict=True):
        if not (np.array_equal(one.ids, other.ids) and np.array_equal(one.distances, other.distances)):
            raise SystemExit("the index and the scan disagree")


def ten_times(path: Path, count: int, bits: int) -> None:
    codes = trained_codes(np.random.default_rng(1), count, bits)
    view = View(Position(9, 1, "stamp"), Block(np.arange(1, count + 1), codes), Block(np.arange(0), Codes.empty(bits)))
    start = time.perf_counter()
    snapshot.save(path, view)
    print(f"{count:,} codes: snapshot and index written in {time.perf_counter() - start:.1f} s, ", end="", flush=True)
    codes[count // 2].save(query := path.with_name("query"))
    command = [sys.executable, "-c", OPEN, path, query]
    print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


OPEN = """
import sys, time
from pathlib import Path
from hyphash.codes import Codes
from hyphash.searchers import Query
from hyphash.searchers.local import snapshot
from hyphash.searchers.local.view import Told
resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * 4096
def opened():
    start = time.perf_counter()
    view = snapshot.load(Path(sys.argv[1]))
    return view, time.perf_counter() - start
mapped = min(opened()[1] for _ in range(5))
before = resident()
view, took = opened()
start = time.perf_counter()
assert view.base.sound()
checked = time.perf_counter() - start
query = Codes.load(sys.argv[2])
for _ in range(3):
    start = time.perf_counter()
    view.search(Query(query, 10, fingerprint=""), Told())
    taken = time.perf_counter() - start
held = (resident() - before) / len(view)
print(f"opened in {took * 1e3:.1f} ms ({mapped * 1e3:.1f} at best), checked in {checked * 1e3:.0f} ms, ", end="")
print(f"searched in {taken * 1e6:.0f} µs (wall), {held:.1f} bytes a photo in memory")
"""


def timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def both(engine: Local, indexed: View, scanning: View, search: Callable[[int], object]) -> tuple[float, float]:
    best = np.full((2, QUERIES), np.inf)
    for _ in range(5):
        for which, view in enumerate((indexed, scanning)):
            engine._view = view
            for i in range(QUERIES):
                start = time.process_time()
                search(i)
                best[which, i] = min(best[which, i], time.process_time() - start)
    engine._view = indexed
    return float(best[0].mean()), float(best[1].mean())


if __name__ == "__main__":
    main()
