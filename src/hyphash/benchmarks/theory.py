"""The paper's two theorems in numbers: what hyperspheres can separate, and where the loss puts a photo."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from hyphash.benchmarks.tables import Cell, Table
from hyphash.coding import capacity, margin
from hyphash.losses import build

LENGTHS = (12, 16, 24, 32, 36, 48, 64)
CLASSES = (20, 21, 38, 80)
STEPS, RATE = 1500, 0.02

Matrix = NDArray[np.float64]


def capacity_table() -> Table:
    """Theorem 1 at the lengths and numbers of classes of the four datasets."""
    rows: list[tuple[Cell, ...]] = []
    for classes in CLASSES:
        for bits in LENGTHS:
            kept, every = capacity(classes=classes, bits=bits), 1 << classes
            share = "all" if kept == every else _share(kept, every)
            zeta = round(margin(classes=classes, bits=bits), 3)
            rows.append((classes, bits, f"{kept:.4g}", f"{every:.4g}", share, zeta))
    return Table(
        name="theorem-1",
        title="Theorem 1: label sets that C hyperspheres in K dimensions can separate",
        above="Ω(K, C) = (C−1 choose K) + Σ_{k ≤ K} (C choose k) against all 2^C label sets. It falls short as soon as "
        "C > K + 1: the bits tell every label apart, but not every combination of labels.",
        columns=("C", "K", "Ω(K, C)", "2^C", "share", "margin ζ"),
        rows=tuple(rows),
    )


def _share(part: int, whole: int) -> str:
    """A share with as many digits as it takes to tell it from 1.

    >>> _share(1, 8), _share(2**40 - 2, 2**40)
    ('0.12', '1 − 1.8e-12')
    """
    return f"{part / whole:.2g}" if part < 0.99 * whole else f"1 − {(whole - part) / whole:.2g}"


@dataclass(frozen=True, kw_only=True)
class Settled:
    """Where photos with so many labels ended, in degrees; means over photos."""

    case: str
    bits: int
    labels: int  # on each photo
    photos: int
    to_middle: float
    to_own: float  # to the proxies of its labels
    middle_to_own: float  # what a photo in the very middle of them has
    unequal: float  # farthest less nearest of its own proxies; 0 in the middle
    to_others: float  # to the nearest proxy of another label
    to_unrelated: float | None  # to the nearest photo that shares no label and, as this one, carries several


@dataclass(frozen=True)
class Case:
    """A loss, and whether the proxies lie fixed at right angles, as the theorem supposes, or learn with the photos."""

    title: str
    loss: str
    options: Mapping[str, float]
    fixed: bool


CASES = (
    Case("pull alone, proxies fixed", "proxy", {"margin": 1.0}, fixed=True),  # what the theorem speaks of
    Case("proxy loss, proxies fixed", "proxy", {}, fixed=True),
    Case("proxy loss", "proxy", {}, fixed=False),
    Case("HyP²", "hyp2", {"beta": 1.0}, fixed=False),
)


def label_sets(classes: int, each: int, seed: int) -> NDArray[np.float32]:
    """Photos with one label, with two, and with three: `each` random sets of each size, multi-hot."""
    random = np.random.default_rng(seed)
    labels = np.zeros((3 * each, classes), np.float32)
    for i, row in enumerate(labels):
        row[random.choice(classes, 1 + i // each, replace=False)] = 1
    return labels


def settle(
    case: Case, *, bits: int, classes: int = 20, each: int = 100, seed: int = 0, steps: int = STEPS
) -> list[Settled]:
    """Train free vectors, photos without a network, with a loss of ours, and see where they end.

    Theorem 2 says that the best place of a photo with several labels is the middle of its proxies: the direction
    of the sum of their unit vectors.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = label_sets(classes, each, seed)
    torch.manual_seed(seed)
    criterion: Any = build(case.loss, bits=bits, classes=classes, **case.options)
    if case.fixed:
        frame = torch.linalg.qr(torch.randn(max(bits, classes), max(bits, classes), generator=generator))[0]
        criterion.proxies.data.copy_(frame[:classes, :bits])  # right angles where there are bits enough
        criterion.proxies.requires_grad_(False)
    outputs = torch.randn(len(labels), bits, generator=generator).requires_grad_()
    trained = [outputs, *(p for p in criterion.parameters() if p.requires_grad)]
    optimizer = torch.optim.Adam(trained, lr=RATE)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - step / steps)  # to rest in the end
        optimizer.zero_grad()
        criterion(outputs, torch.from_numpy(labels)).backward()
        optimizer.step()
    places = normalize(outputs.detach()).double().numpy(), normalize(criterion.proxies.detach()).double().numpy()
    return [_settled(case.title, bits, size, *places, labels) for size in (1, 2, 3)]


def _settled(case: str, bits: int, size: int, outputs: Matrix, proxies: Matrix, labels: NDArray[np.float32]) -> Settled:
    carried = labels.sum(axis=1)
    some = carried == size
    own = labels[some] > 0
    middles = labels[some] @ proxies
    middles /= np.linalg.norm(middles, axis=1, keepdims=True)
    to_proxies = _degrees(outputs[some] @ proxies.T)
    farthest, nearest = np.where(own, to_proxies, 0).max(axis=1), np.where(own, to_proxies, 180).min(axis=1)
    unrelated = (labels[some] @ labels.T == 0) & (carried > 1)
    to_photos = np.where(unrelated, _degrees(outputs[some] @ outputs.T), 180.0).min(axis=1)
    return Settled(
        case=case,
        bits=bits,
        labels=size,
        photos=int(some.sum()),
        to_middle=float(_degrees((outputs[some] * middles).sum(axis=1)).mean()),
        to_own=float(to_proxies[own].mean()),
        middle_to_own=float(_degrees(middles @ proxies.T)[own].mean()),
        unequal=float((farthest - nearest).mean()),
        to_others=float(np.where(own, 180.0, to_proxies).min(axis=1).mean()),
        to_unrelated=float(to_photos.mean()) if size > 1 else None,
    )


def _degrees(cosines: Matrix) -> Matrix:
    return np.degrees(np.arccos(np.clip(cosines, -1, 1)))


def settle_all(*, steps: int = STEPS) -> list[dict[str, Any]]:
    """Theorem 2 for all cases, with few and with many bits."""
    torch.set_num_threads(1)  # so small that threads would only wait for each other
    return [asdict(result) for case in CASES for bits in (12, 48) for result in settle(case, bits=bits, steps=steps)]


def settled_table(found: list[dict[str, Any]]) -> Table:
    columns = (
        *("case", "bits", "labels", "to_middle", "to_own", "middle_to_own", "unequal", "to_others"),
        "to_unrelated",
    )
    return Table(
        name="theorem-2",
        title="Theorem 2: where the loss puts a photo with one, two or three labels",
        above="Degrees, means over photos. Free vectors in the place of photos, 100 random sets of one, two and three "
        "of 20 labels each, trained with our losses until they rest. Middle: the direction of the sum of a photo's "
        "unit proxies. Unequal: how much farther the farthest of its own proxies is than the nearest.",
        columns=(
            *("case", "bits", "labels", "to the middle", "to own proxies", "middle to own proxies", "unequal"),
            *("to the nearest other proxy", "to the nearest unrelated photo"),
        ),
        rows=tuple(tuple(row[column] for column in columns) for row in found),
        below=(
            "The theorem leaves the other proxies out: with the pull alone and fixed proxies photos end in the middle. "
            "The push away from other proxies moves them off it wherever these are nearer than the margin. Of two "
            "proxies the middle is as far from both; of three it need not be where the proxies do not lie at right "
            "angles to each other (20 of them cannot in 12 dimensions).",
            "The nearest unrelated photo is what the third term of HyP² is about: compare the proxy loss with HyP².",
        ),
        records=tuple(found),
        digits=1,
    )
