"""The datasets themselves: what was found beside what the paper states, checked before anything is trained."""

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from hyphash.benchmarks.published import DATASETS, Dataset
from hyphash.benchmarks.tables import Cell, Table
from hyphash.datasets import Split, Splits
from hyphash.datasets.statistics import eta

PARTS = ("train", "queries", "database")

# sha256 of the names and labels of each part, for the splits that the paper's figures were measured on
DIGESTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "flickr25k": {"train": "c3b7981ce71e7426", "queries": "d99493a0f016fa42", "database": "a57e96d5e84253f6"},
        "nuswide": {"train": "5c2c2ef3be328656", "queries": "5d0e3fce1d705eec"},
    }
)


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
        known = DIGESTS.get(dataset.name, {})
        found += [
            f"the part {part!r} has other photos or labels than the published split (checksum {actual})"
            for part in known
            if (actual := digest(getattr(splits, part))) != known[part]
        ]
    return found


def facts(splits: Splits) -> dict[str, Any]:
    """What a dataset comes to, as plain values."""
    rows = [getattr(splits, part).rows for part in PARTS]
    labelled_only = any(note.startswith("labels only") for note in splits.notes)
    stands_in = any("stand in for the database" in note for note in splits.notes)
    return {
        "classes": len(splits.classes),
        "train": len(splits.train),
        "queries": len(splits.queries),
        "database": None if stands_in else len(splits.database),
        "photos": None if stands_in else len(np.unique(np.concatenate(rows))),
        "eta": eta(splits.train.labels),
        "checksums": {part: digest(getattr(splits, part)) for part in PARTS if part != "database" or not stands_in},
        "labels_only": labelled_only,
    }


def sizes_table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    """Two rows a dataset: as published, and as found."""
    rows: list[tuple[Cell, ...]] = []
    notes = []
    for name, dataset in DATASETS.items():
        columns = ("photos", "classes", "database", "train", "queries", "eta")
        rows.append((dataset.title, "published", *(getattr(dataset, column) for column in columns), None))
        here = found.get(name)
        if here is None:
            rows.append((dataset.title, "not here", *(None for _ in columns), None))
            continue
        same = all(here[c] is None or round(here[c], 3) == getattr(dataset, c) for c in columns)
        verdict = "as published" if same else "differs"
        rows.append((dataset.title, "found", *(here[column] for column in columns), verdict))
        if here["photos"] is None:
            notes.append(f"{dataset.title}: the lists at hand name no database, so its size cannot be counted")
        if here["labels_only"]:
            notes.append(f"{dataset.title}: label lists alone, without the photos")
    return Table(
        name="datasets",
        title="The four datasets",
        above="η is the share of all M² ordered pairs of training photos that share no label while both carry more "
        "than one. Flickr-25k: the paper's text says 24,851 photos, its table 24,581; the table is right.",
        columns=("dataset", "", "photos", "classes", "database", "train", "queries", "η", ""),
        rows=tuple(rows),
        below=tuple(notes),
    )
