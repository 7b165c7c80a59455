"""Evaluation at the size of NUS-WIDE: seconds and memory, beside the usual loop that sorts every distance.

    python speed/evaluation.py [--queries 2100] [--photos 183234] [--bits 64] [--classes 21] [--top 5000]

The usual loop takes, for each query, the inner products with all codes, sorts the whole database and walks down
the list. It is timed on every tenth query and scaled up; its figure must agree with ours on those queries. Ratios are
of processor time, all cores together; ours and the loop take turns, and the fastest of three counts.
"""

import argparse
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.evaluation import Rankings, evaluate_codes, mean_average_precision


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
    some = slice(0, queries, 10)
    usual_parts = outputs[:queries][some], outputs[queries:], labels[:queries][some], labels[queries:]
    Watch.data = resident()
    alone, whole, usual = [], [], []
    for _ in range(3):
        alone.append(Watch(lambda: mean_average_precision(Rankings(*parts), top=top)))
        whole.append(Watch(lambda: evaluate_codes(Rankings(*parts), top=top)))
        usual.append(Watch(lambda: usual_loop(*usual_parts, top)))
    both = Watch(lambda: evaluate_codes(Rankings(*parts, query_outputs=outputs[:queries]), top=top))
    print(f"hyphash, mAP alone                  {best(alone)}")
    print(f"hyphash, all measures of Hamming    {best(whole)}")
    print(f"hyphash, Hamming and asymmetric     {both}")
    print(f"usual loop, mAP only, every tenth   {best(usual)}")
    loop = best(usual).cpu * 10
    print(f"the usual loop takes {loop / best(alone).cpu:.0f} times as long as mAP alone (at least 40)")
    print(f"                 and {loop / best(whole).cpu:.0f} times as long as all measures")

    ours = mean_average_precision(Rankings(parts[0][some], parts[1], parts[2][some], parts[3]), top=top)
    difference = abs(ours - usual[0].result)
    print(f"mAP of both, every tenth query: {ours:.6f}, difference {difference:.1e}")
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
    values: list[float] = []
    for query, wanted in zip(np.where(queries > 0, np.float32(1), np.float32(-1)), query_labels, strict=True):
        relevant = database_labels @ wanted > 0
        distances = (stored.shape[1] - stored @ query) / 2
        first = np.argsort(distances, kind="stable")[:top]
        ranks = np.flatnonzero(relevant[first]) + 1
        values.append(float(np.mean(np.arange(1, len(ranks) + 1) / ranks)) if len(ranks) else 0.0)
    return float(np.mean(values))


class Watch:
    """What some work gave, its seconds, seconds of all cores together, and the most memory it held beyond the data."""

    data = 0

    def __init__(self, work: Callable[[], Any]) -> None:
        self.most = resident()
        self.done = threading.Event()
        watcher = threading.Thread(target=self._watch)
        watcher.start()
        start, cpu_start = time.perf_counter(), time.process_time()
        self.result = work()
        self.seconds, self.cpu = time.perf_counter() - start, time.process_time() - cpu_start
        self.done.set()
        watcher.join()

    def _watch(self) -> None:
        while not self.done.wait(0.005):
            self.most = max(self.most, resident())

    def __str__(self) -> str:
        extra = (self.most - self.data) / 2**20
        return f"{self.seconds:7.2f} s  {self.cpu:7.2f} s of processor  {extra:5.0f} MB more at the peak"


def best(runs: list[Watch]) -> Watch:
    """The one of least processor time."""
    return min(runs, key=lambda run: run.cpu)


def resident() -> int:
    """Bytes in memory (Linux)."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


if __name__ == "__main__":
    main()
