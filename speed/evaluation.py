"""Evaluation at the size of NUS-WIDE: seconds and memory, beside the usual loop that sorts every distance.

    python speed/evaluation.py [--queries 2100] [--photos 183234] [--bits 64] [--classes 21] [--top 5000]

The usual loop takes, for each query, the inner products with all codes, sorts the whole database and walks down
the list. It is timed on every tenth query and scaled up; its figure must agree with ours on those queries.
"""

import argparse
import resource
import threading
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.evaluation import Protocol, evaluate_codes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("queries", 2100), ("photos", 183_234), ("bits", 64), ("classes", 21), ("top", 5000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    queries, photos, top = arguments.queries, arguments.photos, arguments.top
    outputs, labels = labelled_outputs(queries + photos, arguments.bits, arguments.classes)
    codes = Codes.from_outputs(outputs)
    print(f"{queries:,} queries × {photos:,} photos, {arguments.bits} bits, N = {top:,}; {hamming.backend()}")

    parts = codes[:queries], codes[queries:], labels[:queries], labels[queries:]
    with Watch() as ours:
        evaluate_codes(*parts, top=top)
    print(f"hyphash, all measures of Hamming    {ours}")
    with Watch() as watch:
        evaluate_codes(*parts, top=top, query_outputs=outputs[:queries])
    print(f"hyphash, Hamming and asymmetric     {watch}")

    some = slice(0, queries, 10)
    with Watch() as usual:
        theirs = usual_loop(outputs[:queries][some], outputs[queries:], labels[:queries][some], labels[queries:], top)
    print(f"usual loop, mAP only, every tenth   {usual}")
    print(f"the usual loop takes {usual.seconds * 10 / ours.seconds:.1f} times as long")

    check = evaluate_codes(
        codes[:queries][some],
        codes[queries:],
        labels[:queries][some],
        labels[queries:],
        protocols=[Protocol.paper(top)],
    )
    difference = abs(check.mean_average_precision("paper") - theirs)
    print(f"mAP of both, every tenth query: {theirs:.6f}, difference {difference:.1e}")
    if difference > 1e-9:
        raise SystemExit("the two disagree")


def labelled_outputs(photos: int, bits: int, classes: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Photos near the middle of their labels' places, 2.4 labels each, common and rare ones."""
    random = np.random.default_rng(0)
    places = random.normal(size=(classes, bits)).astype(np.float32)
    share = 1 / np.arange(1, classes + 1)
    labels = (random.random((photos, classes)) < share * 2.4 / share.sum()).astype(np.uint8)
    outputs = labels.astype(np.float32) @ places
    outputs += random.standard_normal((photos, bits), np.float32)
    return outputs, labels


def usual_loop(
    queries: NDArray[np.float32],
    database: NDArray[np.float32],
    query_labels: NDArray[np.uint8],
    database_labels: NDArray[np.uint8],
    top: int,
) -> float:
    stored = np.where(database > 0, np.float32(1), np.float32(-1))
    values = []
    for query, wanted in zip(np.where(queries > 0, np.float32(1), np.float32(-1)), query_labels, strict=True):
        relevant = database_labels @ wanted > 0
        distances = (stored.shape[1] - stored @ query) / 2
        first = np.argsort(distances, kind="stable")[:top]
        ranks = np.flatnonzero(relevant[first]) + 1
        values.append(np.mean(np.arange(1, len(ranks) + 1) / ranks) if len(ranks) else 0.0)
    return float(np.mean(values))


class Watch:
    """Seconds, seconds of all cores together, and the most memory held beyond what was held before."""

    def __enter__(self) -> "Watch":
        self.before = self.most = resident()
        self.done = threading.Event()
        self.watcher = threading.Thread(target=self._watch)
        self.watcher.start()
        self.start, self.cpu_start = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds, self.cpu = time.perf_counter() - self.start, time.process_time() - self.cpu_start
        self.done.set()
        self.watcher.join()

    def _watch(self) -> None:
        while not self.done.wait(0.005):
            self.most = max(self.most, resident())

    def __str__(self) -> str:
        extra = (self.most - self.before) / 2**20
        return f"{self.seconds:7.1f} s  {self.cpu:7.1f} s of processor  {extra:5.0f} MB more at the peak"


def resident() -> int:
    """Bytes in memory (Linux)."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


if __name__ == "__main__":
    main()
