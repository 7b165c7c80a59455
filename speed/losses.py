"""Time and peak memory of one step of every loss, over growing batches and growing numbers of classes.

    python speed/losses.py                    # all methods, about three minutes on one core
    python speed/losses.py --quick            # small sizes, to see that it runs
    python speed/losses.py --plot FOLDER      # also draw losses.png and losses-hyp2.png

A step is the loss and its gradients, from what the method's head returned; the network is not in it. On a CPU its time
is processor time, which other programs disturb little. Photos carry one to five of the classes. Growth is the exponent
over the last doubling: 1 is linear, 2 quadratic.
"""

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import log2
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hyphash.losses import Loss, build, heads, losses, names

BITS, FEATURES = 48, 64
BATCHES, BASE_CLASSES = (64, 128, 256, 512, 1024, 2048), 38
CLASSES, BASE_BATCH = (20, 40, 80, 160, 320, 640), 256
SHARES, SEVERAL_BATCHES = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0), (1024, 2048)


class Cost(NamedTuple):
    milliseconds: float
    mebibytes: float


def some_labels(batch: int, classes: int, several: float = 0.7) -> Tensor:
    """Multi-hot labels; a share `several` of the photos carry two to five, the others one."""
    labels = torch.zeros(batch, classes).scatter_(1, torch.randint(0, classes, (batch, 1)), 1)
    rows = int(several * batch)
    extra = torch.randint(0, classes, (rows, 4))
    labels[:rows] = labels[:rows].scatter_(1, extra, 1)
    return labels


def given_by_the_head(loss: Loss, batch: int, classes: int, device: str) -> Any:
    """What the method's head returns in training, cut off from the network."""
    shape = (batch, FEATURES, 3, 3) if loss.needs_map else (batch, FEATURES)
    head = heads[loss.head](features=FEATURES, bits=BITS, classes=classes).to(device)
    with torch.no_grad():
        given = head(torch.randn(shape, device=device))
    parts = given if isinstance(given, tuple) else (given,)
    parts = tuple(part.requires_grad_() for part in parts)
    return parts if isinstance(given, tuple) else parts[0]


def measure(name: str, batch: int, classes: int, device: str, several: float = 0.7, **options: Any) -> Cost:
    """The fastest of several steps, and the most memory that one step holds at a time."""
    torch.manual_seed(0)
    loss = build(name, bits=BITS, classes=classes, **options).to(device)
    given, labels = given_by_the_head(loss, batch, classes, device), some_labels(batch, classes, several).to(device)

    def step() -> None:
        loss(given, labels).backward()
        if device == "cuda":
            torch.cuda.synchronize()

    clock = time.perf_counter if device == "cuda" else time.process_time
    step()
    times: list[float] = []
    while len(times) < 3 or sum(times) < 0.3:
        begin = clock()
        step()
        times.append(clock() - begin)
    fastest = min(times)
    return Cost(1000 * fastest, peak_memory(step, device) / 2**20)


def peak_memory(step: Any, device: str) -> int:
    """The most bytes that `step` holds at a time beyond what was there before, by the allocator's own records."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with quiet(), torch.profiler.profile(profile_memory=True, activities=cpu) as profile:
        step()
    held = most = 0
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    for event in sorted(events, key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


@contextmanager
def quiet() -> Iterator[None]:
    """Without what native code writes to the error stream: the profiler announces itself there at every use."""
    kept = os.dup(2)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def growth(costs: dict[int, Cost], field: str) -> float:
    """The exponent of the growth over the last doubling."""
    *_, (small, a), (large, b) = sorted(costs.items())
    return log2(max(getattr(b, field), 1e-9) / max(getattr(a, field), 1e-9)) / log2(large / small)


def print_table(
    methods: Iterable[str], batches: dict[str, dict[int, Cost]], classes: dict[str, dict[int, Cost]]
) -> None:
    largest, most = max(next(iter(batches.values()))), max(next(iter(classes.values())))
    print(
        f"\n| method | claimed | ms at {largest} photos | × growth | MiB | × growth | ms at {most} classes | × growth |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in methods:
        b, c = batches[name], classes[name]
        print(
            f"| {name} | {losses[name].complexity} | {b[largest].milliseconds:.1f} | {growth(b, 'milliseconds'):.1f} "
            f"| {b[largest].mebibytes:.1f} | {growth(b, 'mebibytes'):.1f} "
            f"| {c[most].milliseconds:.1f} | {growth(c, 'milliseconds'):.1f} |"
        )


def third_term(batches: tuple[int, ...], device: str) -> dict[int, dict[int, Cost]]:
    """What HyP²'s third term costs beyond the proxy loss: batch → photos with several labels → cost."""
    result: dict[int, dict[int, Cost]] = defaultdict(dict)
    for batch in batches:
        for share in SHARES:
            whole = measure("hyp2", batch, BASE_CLASSES, device, share)
            proxy = measure("proxy", batch, BASE_CLASSES, device, share)
            more = Cost(whole.milliseconds - proxy.milliseconds, whole.mebibytes - proxy.mebibytes)
            result[batch][int(share * batch)] = more
            print(f"hyp2: batch {batch:5d}, {int(share * batch):5d} photos with several labels: "
                  f"third term {more.milliseconds:7.2f} ms, {more.mebibytes:7.2f} MiB")  # fmt: skip
    return result


FAMILIES = {
    "HyP² and ablations": ("hyp2", "proxy", "pair", "proxy-pair"),
    "proxies, centres": ("proxy-anchor", "proxy-nca", "soft-triple", "orthohash", "csq", "dlbhc"),
    "pairs": ("contrastive", "dhn", "hashnet", "dsh", "dmssph", "idhn", "dqn", "dcilh"),
    "tuples": ("triplet-semi-hard", "triplet-smart", "n-pair", "lifted", "ninh", "iah", "olah"),
}
PANELS = (
    ("photos in the batch", "milliseconds", "time of a step, ms"),
    ("photos in the batch", "mebibytes", "peak memory, MiB"),
    ("classes", "milliseconds", "time of a step, ms"),
)


def plot(batches: dict[str, dict[int, Cost]], classes: dict[str, dict[int, Cost]], path: Path) -> None:
    """One column a family, with the other families in grey behind it."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(3, len(FAMILIES), figsize=(15, 10.5), sharey="row", layout="constrained")
    for row, (x_label, field, y_label) in enumerate(PANELS):
        costs = batches if row < 2 else classes
        for column, (family, members) in enumerate(FAMILIES.items()):
            panel = axes[row, column]
            for table in costs.values():
                panel.plot(list(table), [getattr(c, field) for c in table.values()], color="0.9", linewidth=1)
            for name in members:
                if name in costs:
                    table = costs[name]
                    panel.plot(list(table), [getattr(c, field) for c in table.values()], marker=".", label=name)
            panel.set(xscale="log", yscale="log", xlabel=x_label, ylabel=y_label if column == 0 else "")
            panel.set_xticks(list(next(iter(costs.values()))), list(next(iter(costs.values()))))
            panel.minorticks_off()
            panel.grid(alpha=0.2)
            if row == 0:
                panel.set_title(family, fontsize=11)
                panel.legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)


def plot_third_term(costs: dict[int, dict[int, Cost]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for panel, field, label in ((axes[0], "milliseconds", "time, ms"), (axes[1], "mebibytes", "peak memory, MiB")):
        for batch, table in costs.items():
            panel.plot(list(table), [getattr(c, field) for c in table.values()], marker="o", label=f"batch of {batch}")
        largest = max(costs)
        x = [largest * s / 20 for s in range(21)]
        top = getattr(costs[largest][max(costs[largest])], field)
        panel.plot(x, [top * (v / largest) ** 2 for v in x], "--", color="0.5", label="its square", zorder=0)
        panel.set(xlabel="photos of the batch that carry several labels", ylabel=f"third term: {label}")
        panel.grid(alpha=0.2)
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--plot", type=Path, metavar="FOLDER")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    shorten = slice(0, 2) if arguments.quick else slice(None)
    methods = [name for name in names() if not losses[name].fitted]
    batches: dict[str, dict[int, Cost]] = {}
    classes: dict[str, dict[int, Cost]] = {}
    print(f"torch {torch.__version__}, {arguments.device}, {arguments.threads} threads, {BITS} bits")
    for name in methods:
        batches[name] = {b: measure(name, b, BASE_CLASSES, arguments.device) for b in BATCHES[shorten]}
        classes[name] = {c: measure(name, BASE_BATCH, c, arguments.device) for c in CLASSES[shorten]}
        times = " ".join(f"{cost.milliseconds:8.2f}" for cost in batches[name].values())
        print(f"{name:18} ms over batches: {times}", flush=True)
    print_table(methods, batches, classes)
    terms = third_term(SEVERAL_BATCHES if not arguments.quick else (256,), arguments.device)
    if arguments.plot:
        plot(batches, classes, arguments.plot / "losses.png")
        plot_third_term(terms, arguments.plot / "losses-hyp2.png")


if __name__ == "__main__":
    main()
