"""Label search over planes of scores, 4 bits a photo and label, beside the same sums in numpy.

    python speed/labels.py [--quick]

One thread; every time is the fastest of several runs and includes the Python call. The scores are drawn so that one
photo in a hundred has a high one.
"""

import argparse

import numpy as np
from numpy.typing import NDArray

from hyphash import hamming
from measure import fastest, heading, row

LEVELS = np.linspace(-8, 8, 16, dtype=np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few photos")
    count = 100_000 if parser.parse_args().quick else 10_000_000
    rng = np.random.default_rng(0)
    scores = [np.clip(rng.normal(3.5, 2.5, count), 0, 15).astype(np.uint8) for _ in range(8)]
    planes = [low | high << 4 for low, high in ((part[::2], part[1::2]) for part in scores)]
    print(f"{hamming.backend()}; {count:,} photos")
    heading()
    for labels, k in ((1, 100), (2, 100), (2, 10_000), (4, 100), (8, 100)):
        tables = np.tile(np.logaddexp(0, -LEVELS), (labels, 1))  # −log σ
        ours = fastest(lambda: hamming.search_planes(planes[:labels], tables, count, k, border=1.0, threads=1), 5)  # noqa: B023
        theirs = fastest(lambda: in_numpy(scores[:labels], tables, k), 2)  # noqa: B023
        row(f"{labels} labels, the best {k:,}", ours, theirs, 5)


def in_numpy(scores: list[NDArray[np.uint8]], tables: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """The same with a byte for each score, which saves the unpacking; ties at the end as they come."""
    sums = np.zeros(len(scores[0]), np.float32)
    for numbers, table in zip(scores, tables, strict=True):
        sums += table[numbers]
    best = np.argpartition(sums, k)[:k]
    return best[np.lexsort((best, sums[best]))]


if __name__ == "__main__":
    main()
