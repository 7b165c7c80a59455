"""What the programs here share: codes to search in, a stop watch, and rows of a table with ratio and target."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes, bytes_for

CHUNK = 1 << 18


def clock(threads: int) -> Callable[[], float]:
    """What is measured: seconds of the wall for several threads; for one, seconds of the processor.

    On a machine with nothing else to do they are the same for one thread. On a busy one the wall favours whoever
    is done before the next interruption, and a scan of milliseconds rarely is.
    """
    return time.thread_time if threads == 1 else time.perf_counter


def fastest(work: Callable[[], object], repeats: int = 3, *, threads: int = 1) -> float:
    """Seconds of the fastest of several runs."""
    now, best = clock(threads), float("inf")
    for _ in range(repeats):
        start = now()
        work()
        best = min(best, now() - start)
    return best


def one_by_one(search: Callable[[int], object], queries: int, repeats: int = 3, *, threads: int = 1) -> float:
    """Seconds a query, when each is a call of its own: the mean over queries of each one's fastest run."""
    now, best = clock(threads), np.full(queries, np.inf)
    for _ in range(repeats):
        for i in range(queries):
            start = now()
            search(i)
            best[i] = min(best[i], now() - start)
    return float(best.mean())


def row(work: str, ours: float, theirs: float, target: float) -> None:
    ratio = theirs / ours
    verdict = "met" if ratio >= target else "MISSED"
    print(
        f"{work:<58} {_time(ours):>10} {_time(theirs):>10} {ratio:8.1f}×   at least {target:g}×: {verdict}", flush=True
    )


def heading() -> None:
    print(f"{'work':<58} {'hyphash':>10} {'peer':>10} {'ratio':>9}")


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def random_codes(rng: np.random.Generator, count: int, bits: int) -> Codes:
    """Uniform random codes: the worst case of an index."""
    packed = rng.integers(0, 256, (count, bytes_for(bits)), dtype=np.uint8)
    if bits % 8:
        packed[:, -1] &= (1 << bits % 8) - 1
    return Codes(packed, bits)


def trained_codes(rng: np.random.Generator, count: int, bits: int) -> Codes:
    """Codes like those of a trained hasher.

    The 48 outputs of a trained hasher for 19,581 photos are drawn with replacement, the first `bits` of each, and
    normal noise is added: a third of the standard deviation that the output has among the photos of its cluster
    (those with the same nearest proxy). Without that file: 40 random centres, and outputs with a standard deviation
    of half their distance from zero.
    """
    outputs, spread = trained_outputs() or synthetic_outputs(rng)
    outputs, spread = outputs[:, :bits], spread[:, :bits]
    packed = np.empty((count, bytes_for(bits)), np.uint8)
    for start in range(0, count, CHUNK):
        rows = rng.integers(0, len(outputs), min(CHUNK, count - start))
        noise = rng.standard_normal((len(rows), bits), dtype=np.float32)
        noisy = outputs[rows] + noise * spread[rows] / 3
        packed[start : start + len(rows)] = np.packbits(noisy > 0, axis=1, bitorder="little")
    return Codes(packed, bits)


def trained_outputs() -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    path = Path(os.environ.get("HYPHASH_TEST_DATA", default)) / "flickr25k" / "outputs_48.npz"
    if not path.is_file():
        print(f"{path} not found: the trained-like codes are synthetic clusters")
        return None
    with np.load(path) as file:
        outputs, proxies = file["database"].astype(np.float32), file["proxies"].astype(np.float32)
    directions = outputs / np.linalg.norm(outputs, axis=1, keepdims=True)
    cluster = (directions @ (proxies / np.linalg.norm(proxies, axis=1, keepdims=True)).T).argmax(axis=1)
    spread = np.empty_like(outputs)
    for one in np.unique(cluster):
        spread[cluster == one] = outputs[cluster == one].std(axis=0)
    return outputs, spread


def synthetic_outputs(rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    centres = rng.choice(np.float32([-1, 1]), (40, 48))
    outputs = centres[rng.integers(0, 40, 20_000)] + rng.normal(0, 0.5, (20_000, 48)).astype(np.float32)
    return outputs, np.full_like(outputs, 0.5)


class Flat:
    """faiss IndexBinaryFlat over codes padded to 64 bits (or the next multiple of 8), in its faster mode."""

    def __init__(self, codes: Codes) -> None:
        self.width = max(8, codes.packed.shape[1])
        self.index = faiss.IndexBinaryFlat(self.width * 8)
        for start in range(0, len(codes), CHUNK):
            self.index.add(self.padded(codes.packed[start : start + CHUNK]))

    def padded(self, packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
        wide = np.zeros((len(packed), self.width), np.uint8)
        wide[:, : packed.shape[1]] = packed
        return wide

    def batch(self, queries: Codes, k: int, threads: int, repeats: int) -> float:
        """Seconds for all queries in one call, with heaps or with counting, whichever is faster."""
        faiss.omp_set_num_threads(threads)
        wide = self.padded(queries.packed)
        times = []
        for heap in (True, False):
            self.index.use_heap = heap
            times.append(fastest(lambda: self.index.search(wide, k), repeats, threads=threads))
        return min(times)

    def single(self, queries: Codes, k: int, threads: int, repeats: int) -> float:
        """Seconds a query, one call each."""
        faiss.omp_set_num_threads(threads)
        wide = self.padded(queries.packed)
        rows = [wide[i : i + 1] for i in range(len(wide))]
        times = []
        for heap in (True, False):
            self.index.use_heap = heap
            times.append(one_by_one(lambda i: self.index.search(rows[i], k), len(rows), repeats, threads=threads))
        return min(times)


def singles(codes: Codes) -> Sequence[Codes]:
    return [codes[i] for i in range(len(codes))]
