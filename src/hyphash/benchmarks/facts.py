"""What is measured without training a network: the datasets' sizes, the cost of every loss, the two theorems."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize
from torch.utils.benchmark import Timer

from hyphash.benchmarks import COMPLEXITY, DATASETS, TITLES, Dataset
from hyphash.benchmarks import figures as draw
from hyphash.benchmarks.runner import device_name
from hyphash.benchmarks.runs import Results
from hyphash.benchmarks.tables import WORDS, drawn, table
from hyphash.coding import capacity, margin
from hyphash.datasets import Split, Splits, load_dataset
from hyphash.datasets.statistics import eta
from hyphash.errors import ConfigError, DataError
from hyphash.hasher import choose_device
from hyphash.losses import build, heads, losses
from hyphash.report import Cell, Page, Section, Table

DATA = Path("data")  # where datasets are looked for when nobody says where they are
Where = Callable[[str], Path | None]  # the folder of a dataset, by its name


# ── the datasets ─────────────────────────────────────────────────────────────────────────────────────────

PARTS = ("train", "queries", "database")


def digest(split: Split) -> str:
    """A checksum of which photos a part has and which labels they carry, whatever the order of the list."""
    lines = sorted(
        f"{split.name(i).rpartition('/')[2]} {np.packbits(labels).tobytes().hex()}"
        for i, labels in enumerate(split.labels)
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def differences(splits: Splits, dataset: Dataset) -> list[str]:
    """Where what was found is not what the paper's figures were measured on; empty where all is as it should be."""
    found = []
    if len(splits.classes) != dataset.classes:
        found.append(f"{len(splits.classes)} labels, the paper has {dataset.classes}")
    for part in PARTS:
        here, there = len(getattr(splits, part)), getattr(dataset, part)
        if here != there:
            found.append(f"{here:,} photos in the part {part!r}, the paper has {there:,}")
    if not found:
        found += [
            f"the part {part!r} has other photos or labels than the published split (checksum {actual})"
            for part, published in dataset.checksums.items()
            if (actual := digest(getattr(splits, part))) != published
        ]
    return found


def dataset_facts(splits: Splits) -> dict[str, Any]:
    """What a dataset comes to, as plain values."""
    stands_in = any("stand in for the database" in note for note in splits.notes)
    parts = {part: getattr(splits, part) for part in PARTS if part != "database" or not stands_in}
    rows = np.concatenate([split.rows for split in parts.values()])
    return {
        "classes": len(splits.classes),
        **{part: len(parts[part]) if part in parts else None for part in PARTS},
        "photos": None if stands_in else len(np.unique(rows)),
        "eta": eta(splits.train.labels),
        "checksums": {part: digest(split) for part, split in parts.items()},
        "labels_only": any(note.startswith("labels only") for note in splits.notes),
    }


def sizes_table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    """Two rows a dataset: as published, and as found."""
    columns = ("photos", "classes", "database", "train", "queries", "eta")
    rows: list[tuple[Cell, ...]] = []
    notes = []
    for name, dataset in DATASETS.items():
        published = [getattr(dataset, column) for column in columns]
        rows.append((dataset.title, "published", *published, None))
        if (here := found.get(name)) is None:
            rows.append((dataset.title, "not here", *(None for _ in columns), None))
            continue
        own = [here[column] for column in columns]
        same = all(a is None or round(a, 3) == b for a, b in zip(own, published, strict=True))
        rows.append((dataset.title, "found", *own, "as published" if same else "differs"))
        if here["photos"] is None:
            notes.append(f"{dataset.title}: the lists at hand name no database, so its size cannot be counted")
        if here["labels_only"]:
            notes.append(f"{dataset.title}: label lists alone, without the photos")
    return table("datasets", rows, below=tuple(notes))


def measure_datasets(results: Results, where: Where, _device: str) -> Iterator[str]:
    for name in DATASETS:
        if (path := where(name)) is not None:
            try:
                results.keep_facts(f"dataset-{name}", dataset_facts(load_dataset(path, name)))
            except DataError as error:
                yield str(error)


def datasets_page(found: Mapping[str, Any]) -> Page:
    notes = tuple(f"{DATASETS[name].title}: {_absent(name)}" for name in DATASETS if name not in found)
    return Page("The four datasets", "", (Section("Sizes and η", tables=(sizes_table(found),)),), notes)


def _absent(name: str) -> str:
    """What to download, from where, and where to put it: as the dataset's own reader says of data/NAME."""
    try:
        load_dataset(DATA / name, name)
        return ""
    except (DataError, ConfigError) as error:
        return str(error)


# ── what a step of every loss costs ──────────────────────────────────────────────────────────────────────

BATCHES = (100, 200, 400, 800, 1600)
BITS, CLASSES, FEATURES = 48, 38, 64
SECONDS = 0.3  # for one figure


def step_time(name: str, batch: int, device: torch.device, seconds: float) -> float:
    """The median time of a step in milliseconds, over as many as fit into `seconds`."""
    torch.manual_seed(0)
    loss = build(name, bits=BITS, classes=CLASSES).to(device)
    head = heads[loss.head](features=FEATURES, bits=BITS, classes=CLASSES).to(device)
    outputs, labels = head(torch.randn(batch, FEATURES, device=device)), some_labels(batch).to(device)
    given = outputs if isinstance(outputs, tuple) else (outputs,)
    leaves = tuple(part.detach().requires_grad_(part.is_floating_point()) for part in given)
    step = {"loss": loss, "outputs": leaves if isinstance(outputs, tuple) else leaves[0], "labels": labels}
    timer = Timer("loss(outputs, labels).backward()", globals=step, num_threads=torch.get_num_threads())
    timer.timeit(1)  # warms up
    return 1000 * timer.blocked_autorange(min_run_time=seconds).median


def some_labels(batch: int) -> torch.Tensor:
    """One to five labels a photo, drawn from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(batch, CLASSES, generator=generator).argsort(1)
    many = torch.randint(1, 6, (batch, 1), generator=generator)
    return (order < many).float()


def complexity_table(number: int, measured: Mapping[str, Any]) -> Table:
    """Published and our own order of growth, the time at both ends, and its growth, on one device."""
    rows, records = [], []
    for method, published in COMPLEXITY.items():
        times = {int(n): ms for n, ms in measured["milliseconds"][method].items()}
        before, end = sorted(times)[-2:]
        growth = 2 ** (log2(times[end] / times[before]) / log2(end / before))
        ours = losses[method].complexity
        rows.append((TITLES[method], published, ours, times[min(times)], times[end], growth))
        records.append({"method": method, "published": published, "ours": ours, "milliseconds": times})
    values = {"number": number, "measured": measured, "bits": BITS, "classes": CLASSES, "batches": BATCHES}
    return table("complexity", rows, values, records=tuple(records))


def measure_complexity(results: Results, _where: Where, device: str) -> Iterator[str]:
    """Milliseconds of each loss and its gradients by photos in a batch, without the network; once for every device."""
    name = device_name(place := choose_device(device))
    slug = re.sub(r"\W+", "-", name).strip("-").lower()
    if slug not in results.facts("complexity-"):
        yield f"measuring on {name}"
        times = {loss: {str(n): step_time(loss, n, place, SECONDS) for n in BATCHES} for loss in COMPLEXITY}
        found = {"device": name, "torch": torch.__version__, "milliseconds": times}
        results.keep_facts(f"complexity-{slug}", found)


def complexity_page(found: Mapping[str, Any]) -> Page:
    figures, tables = [], []
    for i, one in enumerate(found.values()):
        times = {TITLES[k]: {int(n): ms for n, ms in line.items()} for k, line in one["milliseconds"].items()}
        tables.append(complexity_table(i, one))
        figures.append(drawn("complexity", draw.step_times(times), number=i, measured=one))
    section = Section("Order of growth and time of a step", tables=tuple(tables), figures=tuple(figures))
    return Page("What the losses cost", "", (section,))


# ── the two theorems ─────────────────────────────────────────────────────────────────────────────────────

LENGTHS = (12, 16, 24, 32, 36, 48, 64)
THEOREM_CLASSES = (20, 21, 38, 80)
STEPS, RATE = 1500, 0.02

Matrix = NDArray[np.float64]


def capacity_table() -> Table:
    """Theorem 1 at the lengths and numbers of classes of the four datasets."""
    rows: list[tuple[Cell, ...]] = []
    for classes in THEOREM_CLASSES:
        for bits in LENGTHS:
            kept, every = capacity(classes=classes, bits=bits), 1 << classes
            share = "all" if kept == every else _share(kept, every)
            zeta = round(margin(classes=classes, bits=bits), 3)
            rows.append((classes, bits, f"{kept:.4g}", f"{every:.4g}", share, zeta))
    return table("capacity", rows)


def _share(part: int, whole: int) -> str:
    """A share with as many digits as it takes to tell it from 1.

    >>> _share(1, 8), _share(2**40 - 2, 2**40)
    ('0.12', '1 − 1.8e-12')
    """
    return f"{part / whole:.2g}" if part < 0.99 * whole else f"1 − {(whole - part) / whole:.2g}"


@dataclass(frozen=True)
class Case:
    """A loss, and whether the proxies lie fixed at right angles, as the theorem supposes, or learn with the photos."""

    title: str
    loss: str
    options: Mapping[str, Any]
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


def train_free_vectors(
    case: Case, *, bits: int, classes: int = 20, each: int = 100, seed: int = 0, steps: int = STEPS
) -> list[dict[str, Any]]:
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
    return [{"case": case.title, "bits": bits, **_angles(*places, labels, size)} for size in (1, 2, 3)]


def _angles(outputs: Matrix, proxies: Matrix, labels: NDArray[np.float32], size: int) -> dict[str, Any]:
    """Where photos with so many labels ended, in degrees; means over photos."""
    carried = labels.sum(axis=1)
    some = carried == size
    own = labels[some] > 0
    middles = labels[some] @ proxies
    middles /= np.linalg.norm(middles, axis=1, keepdims=True)
    to_proxies = _degrees(outputs[some] @ proxies.T)
    farthest, nearest = np.where(own, to_proxies, 0).max(axis=1), np.where(own, to_proxies, 180).min(axis=1)
    unrelated = (labels[some] @ labels.T == 0) & (carried > 1)
    to_photos = np.where(unrelated, _degrees(outputs[some] @ outputs.T), 180.0).min(axis=1)
    return {
        "labels": size,
        "photos": int(some.sum()),
        "to_middle": float(_degrees((outputs[some] * middles).sum(axis=1)).mean()),
        "to_own": float(to_proxies[own].mean()),
        "middle_to_own": float(_degrees(middles @ proxies.T)[own].mean()),  # of a photo in the very middle of them
        "unequal": float((farthest - nearest).mean()),  # 0 in the middle
        "to_others": float(np.where(own, 180.0, to_proxies).min(axis=1).mean()),
        "to_unrelated": float(to_photos.mean()) if size > 1 else None,  # that, as this one, carries several labels
    }


def _degrees(cosines: Matrix) -> Matrix:
    return np.degrees(np.arccos(np.clip(cosines, -1, 1)))


def theorem_2(*, steps: int = STEPS) -> list[dict[str, Any]]:
    """Theorem 2 for all cases, with few and with many bits."""
    torch.set_num_threads(1)  # so small that threads would only wait for each other
    trained = [train_free_vectors(case, bits=bits, steps=steps) for case in CASES for bits in (12, 48)]
    return [row for rows in trained for row in rows]


def angles_table(found: list[dict[str, Any]]) -> Table:
    columns = WORDS["angles"]
    rows = (tuple(row[key] for key in columns) for row in found)
    return table("angles", rows, columns=tuple(columns.values()), records=tuple(found))


def measure_theorem(results: Results, _where: Where, _device: str) -> Iterator[str]:
    if not results.facts("theorem-2"):
        results.keep_facts("theorem-2", theorem_2())
    yield from ()


def theorem_page(found: Mapping[str, Any]) -> Page:
    (angles,) = found.values()
    one = drawn("capacity", draw.capacities())
    two = tuple(drawn("angles", draw.angles(angles, bits), bits=bits) for bits in (12, 48))
    separate = Section("What hyperspheres can separate", tables=(capacity_table(),), figures=(one,))
    place = Section("Where the loss puts a photo", tables=(angles_table(angles),), figures=two)
    return Page("The two theorems", "", (separate, place))


@dataclass(frozen=True)
class Facts:
    """A benchmark without runs: how its figures are measured, notes on the way, and shown."""

    prefix: str  # of their names in the results
    measure: Callable[[Results, Where, str], Iterator[str]]
    page: Callable[[Mapping[str, Any]], Page]


FACTS: Mapping[str, Facts] = {
    "datasets": Facts("dataset-", measure_datasets, datasets_page),
    "complexity": Facts("complexity-", measure_complexity, complexity_page),
    "theorem": Facts("theorem-2", measure_theorem, theorem_page),
}
