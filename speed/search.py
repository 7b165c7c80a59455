"""Exact search by scanning, beside faiss IndexBinaryFlat: ratios on one thread and on all cores.

    python speed/search.py [--quick] [--one-thread]

Both search the same codes in one process; every time is the fastest of several runs and includes the Python call
(on one thread seconds of the processor, see `measure.clock`).
"""

import argparse
import os

import numpy as np

from hyphash import hamming
from hyphash.codes import Codes
from measure import Flat, fastest, heading, one_by_one, random_codes, row, singles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small databases and few repeats")
    parser.add_argument("--one-thread", action="store_true", help="for a busy machine: nothing on all cores")
    arguments = parser.parse_args()
    quick = arguments.quick
    cores, repeats = 1 if arguments.one_thread else hamming.backend().threads, 2 if quick else 5
    print(f"{hamming.backend()}; {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f}")
    rng = np.random.default_rng(0)
    queries = random_codes(rng, 256, 64)
    for size in (50_000, 200_000) if quick else (1_000_000, 10_000_000):
        database = random_codes(rng, size, 64)
        floor(database)
        heading()
        flat = Flat(database)
        large = size > 2_000_000
        for threads in sorted({1, cores}):
            for k in (10, 100):
                batch(queries, database, flat, k, threads, 2 if large else repeats)
            single(queries[:200], database, flat, threads, (2 if threads == 1 else 4) if large else 3, repeats)
        lengths(rng, database, queries, repeats)
    many_results(rng, 20_000 if quick else 200_000, 500 if quick else 5000, cores, repeats)


def batch(queries: Codes, database: Codes, flat: Flat, k: int, threads: int, repeats: int) -> None:
    ours = fastest(lambda: hamming.search(queries, database, k, threads=threads), max(3, repeats), threads=threads)
    theirs = flat.batch(queries, k, threads, repeats)
    row(f"batch of 256, k = {k}, 64 bits, {len(database):,}, {threads} threads", ours, theirs, 5)


def single(queries: Codes, database: Codes, flat: Flat, threads: int, target: float, repeats: int) -> None:
    ones = singles(queries)
    ours = one_by_one(
        lambda i: hamming.search(ones[i], database, 10, threads=threads), len(ones), repeats, threads=threads
    )
    theirs = flat.single(queries, 10, threads, 2)
    row(f"one query, k = 10, 64 bits, {len(database):,}, {threads} threads", ours, theirs, target)


def lengths(rng: np.random.Generator, database: Codes, queries: Codes, repeats: int) -> None:
    """Short codes must not be slower than our own 64 bits."""
    ones = singles(queries[:200])

    def times(queries: Codes, ones: list[Codes], database: Codes) -> tuple[float, float]:
        return (
            fastest(lambda: hamming.search(queries, database, 10, threads=1), repeats),
            one_by_one(lambda i: hamming.search(ones[i], database, 10, threads=1), len(ones), repeats),
        )

    batch_64, single_64 = times(queries, list(ones), database)
    for bits in (48, 36, 12):
        shorter, wanted = random_codes(rng, len(database), bits), random_codes(rng, 256, bits)
        in_batch, alone = times(wanted, list(singles(wanted[:200])), shorter)
        row(f"{bits} bits against our own 64, batch, {len(database):,}, 1 threads", in_batch, batch_64, 1)
        row(f"{bits} bits against our own 64, one query, {len(database):,}, 1 threads", alone, single_64, 1)


def many_results(rng: np.random.Generator, size: int, k: int, cores: int, repeats: int) -> None:
    queries, database = random_codes(rng, 256, 64), random_codes(rng, size, 64)
    flat = Flat(database)
    for threads in sorted({1, cores}):
        ours = fastest(lambda: hamming.search(queries, database, k, threads=threads), repeats, threads=threads)  # noqa: B023
        theirs = flat.batch(queries, k, threads, repeats)
        row(f"batch of 256, k = {k:,} of {size:,}, 64 bits, {threads} threads", ours, theirs, 3.5)


def floor(database: Codes) -> None:
    """How long it takes to read all codes once: no scan can be faster."""
    words = database.packed.reshape(-1).view(np.uint64)
    seconds = fastest(lambda: np.bitwise_or.reduce(words), 5)
    print(
        f"\n{len(database):,} codes of 64 bits: read once in {seconds * 1e3:.2f} ms, "
        f"{words.nbytes / seconds / 1e9:.0f} GB/s, by one thread"
    )


if __name__ == "__main__":
    main()
