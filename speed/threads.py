"""How many threads pay for training a head on cached features: seconds a step, alone and beside a busy process.

    python speed/threads.py

Features are drawn at random; the head and the loss are those of `hyphash train --mode frozen`. The work of a step is
the number of weights times the photos of a batch, the number by which `hyphash.training` chooses.
"""

import argparse
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import torch

from hyphash.config import Config
from hyphash.losses import build
from hyphash.machine import cores
from hyphash.networks import Head
from hyphash.training import resolve
from hyphash.training.inputs import FeatureInputs
from hyphash.training.steps import build_optimizer, build_step

CLASSES, BITS, PHOTOS = 38, 48, 2000
CASES = ((100, 1280, 1024), (250, 1280, 1024), (250, 3328, 1024), (1000, 1280, 1024), (1000, 3328, 4096))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loss", default="hyp2-ap")
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    counts = sorted({1, 2, cores()})
    print(f"torch {torch.__version__}, {cores()} cores, {arguments.loss}; milliseconds a step, wall and processor")
    print(
        f"{'batch, features, hidden':<26}{'work':>10}  " + "".join(f"{n:>4} thread{'s' * (n > 1):<14}" for n in counts)
    )
    for beside in (0, cores()):
        print(f"beside {beside} busy processes" if beside else "alone")
        with busy(beside):
            for batch, features, hidden in CASES:
                figures = [seconds(arguments, batch, features, hidden, threads) for threads in counts]
                shown = "".join(f"{1e3 * wall:>8.1f} {1e3 * processor:>8.1f}   " for wall, processor in figures)
                work = batch * (features * hidden + hidden * BITS)
                print(f"{batch:>6} {features:>8} {hidden:>8}  {work / 1e9:>8.2f} G  {shown}", flush=True)


def seconds(arguments: argparse.Namespace, batch: int, features: int, hidden: int, threads: int) -> tuple[float, float]:
    """Of a step, at the median: wall time and processor time."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    config = resolve(Config(loss=arguments.loss, mode="frozen", batch=batch, device="cpu"))
    head = Head(features=features, bits=BITS, classes=CLASSES, hidden=hidden)
    loss = build(arguments.loss, bits=BITS, classes=CLASSES)
    inputs = FeatureInputs(torch.randn(PHOTOS, features).half(), (torch.rand(PHOTOS, CLASSES) < 0.1).float())
    step = build_step(head, loss, build_optimizer(head, loss, config), inputs, config)
    walls, processors = [], []
    for _ in range(arguments.steps):
        rows = torch.randperm(PHOTOS)[:batch]
        wall, processor = time.perf_counter(), time.process_time()
        step(rows)
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    return median(walls[3:]), median(processors[3:])


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Within, other processes keep as many cores busy."""
    others = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(processes)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()


def _spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    main()
