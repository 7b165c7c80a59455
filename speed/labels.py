"""Label search over planes of scores beside the same sums in numpy, and what a whole search in a collection takes.

    python speed/labels.py [--quick] [--run RUN]

One thread; every time is the fastest of several runs and includes the Python call. The scores are drawn so that one
photo in a hundred has a high one. With a RUN that has a label layer, a collection of a million photos, one in twenty of
them tagged, is searched through `Collection.search`, and asked for the photos that teach most.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hyphash import hamming
from hyphash.collection import Collection
from hyphash.hasher import Hasher
from hyphash.stores import Facts, Photo
from measure import fastest, heading, row

LEVELS = np.linspace(-8, 8, 16, dtype=np.float32)
COST = np.logaddexp(0, -LEVELS)  # −log σ
BATCH = 50_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few photos")
    parser.add_argument("--run", type=Path, help="a run with a label layer, to search a collection with")
    given = parser.parse_args()
    count = 100_000 if given.quick else 10_000_000
    rng = np.random.default_rng(0)
    scores = [np.clip(rng.normal(3.5, 2.5, count), 0, 15).astype(np.uint8) for _ in range(8)]
    planes = [(low | high << 4, COST) for low, high in ((part[::2], part[1::2]) for part in scores)]
    near = rng.normal(size=(6, 256)).astype(np.float32) / 7, rng.integers(0, 256, (count, 6), np.uint8)
    print(f"{hamming.backend()}; {count:,} photos")
    heading()
    for every, some, by_code, k in (
        *((1, 0, False, 100), (2, 0, False, 100), (2, 0, False, 10_000), (4, 0, False, 100), (8, 0, False, 100)),
        *((0, 2, False, 100), (1, 2, False, 100), (1, 0, True, 100), (0, 2, True, 100)),
    ):
        asked = planes[:every], planes[every : every + some], near if by_code else None
        ours = fastest(lambda: ranked(asked, count, k), 5)  # noqa: B023
        theirs = fastest(lambda: in_numpy(scores, every, some, asked[2], k), 2)  # noqa: B023
        what = f"{every} labels" + (f", any of {some}" if some else "") + (", a photo" if by_code else "")
        row(f"{what}, the best {k:,}", ours, theirs, 5)
    if given.run:
        in_collection(Hasher.load(given.run, device="cpu"), count // 10)


def ranked(asked: tuple, count: int, k: int) -> object:
    planes, some, near = asked
    return hamming.search_planes(planes, count, k, some=some, near=near, border=1.0, threads=1)


def in_numpy(scores: list[NDArray[np.uint8]], every: int, some: int, near: tuple | None, k: int) -> NDArray[np.int64]:
    """The same with a byte for each score, which saves the unpacking; ties at the end as they come."""
    sums, none = np.zeros((2, len(scores[0])), np.float32)
    for numbers in scores[:every]:
        sums += COST[numbers]
    for numbers in scores[every : every + some]:
        none += np.log1p(-np.exp(-COST))[numbers]
    if some:
        sums -= np.log(-np.expm1(none))
    for j in range(6 if near else 0):
        sums += near[0][j][near[1][:, j]]
    best = np.argpartition(sums, k)[:k]
    return best[np.lexsort((best, sums[best]))]


def in_collection(hasher: Hasher, count: int) -> None:
    """Processor time of whole searches, all threads together."""
    assert hasher.calibration is not None
    names, rng = hasher.classes, np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder, Collection.create(Path(folder) / "c", hasher) as collection:
        for start in range(0, count, BATCH):
            codes = rng.integers(0, 256, (BATCH, -(-hasher.bits // 8)), np.uint8)
            logits = rng.normal(-4, 2.5, (BATCH, len(names))).astype(np.float32)
            rows = enumerate(zip(codes, hasher.calibration.pack(logits), logits > 0, strict=True), start)
            photos = [
                Photo(
                    path=f"{i}", facts=Facts(content=f"{i:064x}"), code=code.tobytes(), scores=scores.tobytes(),
                    labels=tuple(names[j] for j in np.flatnonzero(has)) if i % 20 == 0 else (),
                )
                for i, (code, scores, has) in rows
            ]  # fmt: skip
            collection.store.upsert(photos, fingerprint=hasher.fingerprint)
        collection.tidy()
        one, two, three = names[:3]
        for what, asked in {
            "one label": {"labels": [one]}, "two labels": {"labels": [one, two]},
            "one without another": {"labels": [one], "unwanted": [two]}, "any of three": {"any_of": [one, two, three]},
            "a photo and a label": {"like": 7, "labels": [one]}, "by code alone": {"like": 7},
        }.items():  # fmt: skip
            taken = [timed(lambda: collection.search(**asked, k=30)) for _ in range(10)]  # noqa: B023
            print(f"{count:,} photos, {what}: {min(taken) * 1e3:.2f} ms, the first time {taken[0] * 1e3:.2f} ms")
        taken = [timed(lambda: collection.to_tag(20)) for _ in range(3)]
        print(f"{count:,} photos, those that teach most: {min(taken):.2f} s, the first time {taken[0]:.2f} s")


def timed(work: object) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
