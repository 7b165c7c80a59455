"""What a step of every loss costs: the published order of growth, and the time measured here."""

import time
from collections.abc import Mapping, Sequence
from math import log2
from statistics import median
from typing import Any

import torch

from hyphash.benchmarks.published import COMPLEXITY, TITLES
from hyphash.benchmarks.runner import device_name
from hyphash.benchmarks.tables import Table
from hyphash.hasher import choose_device
from hyphash.losses import build, losses
from hyphash.networks import heads

BATCHES = (100, 200, 400, 800, 1600)
BITS, CLASSES, FEATURES = 48, 38, 64
SECONDS = 0.3  # for one figure


def measure_steps(device: str = "auto", batches: Sequence[int] = BATCHES, seconds: float = SECONDS) -> dict[str, Any]:
    """Milliseconds of the loss and its gradients, by method and photos in a batch, without the network."""
    place = choose_device(device)
    times = {name: {str(n): step_time(name, n, place, seconds) for n in batches} for name in COMPLEXITY}
    return {"device": device_name(place), "torch": torch.__version__, "milliseconds": times}


def step_time(name: str, batch: int, device: torch.device, seconds: float) -> float:
    """The median time of a step in milliseconds, over as many as fit into `seconds`."""
    torch.manual_seed(0)
    loss = build(name, bits=BITS, classes=CLASSES).to(device)
    head = heads[loss.head](features=FEATURES, bits=BITS, classes=CLASSES).to(device)
    features = torch.randn(batch, FEATURES, device=device)
    labels = some_labels(batch).to(device)
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < until:
        outputs = head(features)
        given = outputs if isinstance(outputs, tuple) else (outputs,)
        leaves = tuple(part.detach().requires_grad_(part.is_floating_point()) for part in given)
        _wait(device)
        start = time.perf_counter()
        value = loss(leaves if isinstance(outputs, tuple) else leaves[0], labels)
        value.backward()  # type: ignore[no-untyped-call]
        _wait(device)
        times.append(1000 * (time.perf_counter() - start))
    return median(times[1:])  # the first one warms up


def some_labels(batch: int) -> torch.Tensor:
    """One to five labels a photo, drawn from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(batch, CLASSES, generator=generator).argsort(1)
    many = torch.randint(1, 6, (batch, 1), generator=generator)
    return (order < many).float()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def complexity_table(name: str, measured: Mapping[str, Any]) -> Table:
    """Published and our own order of growth, the time at both ends, and its growth, on one device."""
    rows, records = [], []
    for method, published in COMPLEXITY.items():
        times = {int(n): ms for n, ms in measured["milliseconds"][method].items()}
        before, end = sorted(times)[-2:]
        growth = 2 ** (log2(times[end] / times[before]) / log2(end / before))
        ours = losses[method].complexity
        rows.append((TITLES[method], published, ours, times[min(times)], times[end], growth))
        records.append({"method": method, "published": published, "ours": ours, "milliseconds": times})
    return Table(
        name=name,
        title=f"The cost of every loss, {measured['device']}",
        above="Order of growth of one epoch over M photos with C classes, B photos a batch, k centres a class; η is "
        "the share of irrelevant pairs. Measured: loss and gradients of one batch, median time, without the network; "
        f"{BITS} bits, {CLASSES} classes, torch {measured['torch']}. Doubling the batch of a method that is linear in "
        "it takes 2 times as long, of a quadratic one 4 times, once a step is long enough for its arithmetic to count.",
        columns=(
            *("method", "published", "ours", f"ms at {BATCHES[0]} photos", f"ms at {BATCHES[-1]:,}"),
            f"growth {BATCHES[-2]:,} to {BATCHES[-1]:,}",
        ),
        rows=tuple(rows),
        digits=2,
        records=tuple(records),
    )
