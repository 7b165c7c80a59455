"""The index, beside faiss IndexBinaryFlat: one query a call, on trained-like and on uniform random codes.

    python speed/index.py [--quick] [--huge]

Trained-like codes are made as `measure.trained_codes` says; 200 queries are made the same way. The peer scans codes
padded to 64 bits on one thread. Every time is the fastest of several runs, in seconds of the processor (see
`measure.clock`), and includes the Python call. `--huge` goes up to 100 million codes.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.hamming import Index
from measure import Flat, fastest, heading, one_by_one, random_codes, row, singles, trained_codes

QUERIES = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small databases")
    parser.add_argument("--huge", action="store_true", help="100 million codes as well")
    arguments = parser.parse_args()
    print(f"{hamming.backend()}; {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f}")
    large, small = (300_000, 100_000) if arguments.quick else (10_000_000, 1_000_000)
    compare("trained-like", trained_codes, large, 48, {10: 200, 100: 100, 1000: 35})
    compare("trained-like", trained_codes, small, 48, {10: 70, 100: 35, 1000: 10})
    compare("trained-like", trained_codes, large, 24, {10: 500})
    compare("trained-like", trained_codes, large, 12, {10: 500})
    compare("uniform random", random_codes, large, 48, {10: 30, 100: 10, 1000: 4})
    growth([100_000, small, *([] if arguments.quick else [large]), *([100_000_000] if arguments.huge else [])])


def compare(
    name: str,
    make: Callable[[np.random.Generator, int, int], Codes],
    size: int,
    bits: int,
    targets: dict[int, float],
) -> None:
    codes = make(np.random.default_rng(0), size + QUERIES, bits)
    queries, database = codes[size:], codes[:size]
    index = build(f"{name} codes, {size:,} × {bits} bits", database)
    heading()
    flat = Flat(database)
    ones = singles(queries)
    for k, target in targets.items():
        ours = one_by_one(lambda i: index.search(ones[i], k), QUERIES, 5)  # noqa: B023
        theirs = flat.single(queries, k, 1, 2)
        row(f"one query, k = {k:,}, {name}, {bits} bits, {size:,}", ours, theirs, target)
        together = fastest(lambda: index.search(queries, k, threads=1)) / QUERIES  # noqa: B023
        print(f"    {QUERIES} queries in one call: {together * 1e6:.1f} µs each on one thread")
        expected = hamming.search(queries[:5], database, k)
        if not all(map(np.array_equal, index.search(queries[:5], k), expected)):
            raise SystemExit("the index and the scan disagree")


def build(what: str, codes: Codes) -> Index:
    start = time.perf_counter()
    index = Index.build(codes)
    seconds = time.perf_counter() - start
    print(
        f"\n{what}: {index.distinct / len(codes):.1%} distinct, built in {seconds:.2f} s, "
        f"{index.nbytes / len(codes):.1f} bytes a code, {opening(index)}",
        flush=True,
    )
    return index


def opening(index: Index) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        index.save(path)
        opened = fastest(lambda: Index.open(path))
        checked = fastest(lambda: Index.open(path, verify=True))
    return f"opened in {opened * 1e3:.1f} ms, {checked * 1e3:.1f} ms with all checksums"


def growth(sizes: list[int]) -> None:
    """How the cost of a query grows with the number of codes."""
    print("\nµs a query, 48 bits, k = 10 / 100 / 1,000, one call each")
    for name, make in (("trained-like", trained_codes), ("uniform random", random_codes)):
        for size in sizes:
            codes = make(np.random.default_rng(1), size + QUERIES, 48)
            ones = singles(codes[size:])
            index = Index.build(codes[:size])
            times = [one_by_one(lambda i: index.search(ones[i], k), QUERIES) for k in (10, 100, 1000)]  # noqa: B023
            figures = " / ".join(f"{seconds * 1e6:.1f}" for seconds in times)
            print(f"    {name:<15} {size:>12,} codes: {figures}, {index.distinct / size:.1%} distinct", flush=True)


if __name__ == "__main__":
    main()
