"""NUS-WIDE: 269,648 photos with 81 concepts, of which benchmarks use the 21 most frequent.

Two layouts are read. The official one (photos of any concept in any folder below):
    Groundtruth/AllLabels/Labels_sky.txt …       a 0 or 1 for every photo, one file a concept
    ImageList/Imagelist.txt                      the photos, such as  actor\\0001_2124494179.jpg
    Flickr/actor/0001_2124494179.jpg …           or all photos in one folder images/
and lists as other repositories pass them on, plain or .gz, with rows such as  images/0001_2124494179.jpg 0 1 0 …
    train.txt, test.txt (the queries) and, where there is one, database.txt

195,834 photos carry one of the 21 labels: 2,100 queries (100 a label), 10,500 to train (500 a label), and the
other 183,234 as the database.
"""

import gzip
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from hyphash.datasets import PUBLISHED, Finder, Parts, Remarks, Rows, absent, assemble, below, datasets
from hyphash.datasets.folder import photos_under
from hyphash.errors import ConfigError, DataError, counted
from hyphash.photos import PhotoFiles

Labels = NDArray[np.uint8]
CONCEPTS = 81
FREQUENT = tuple(PUBLISHED["nuswide"]["classes"])


@datasets("nuswide")
def nuswide(
    path: Path,
    *,
    labels: int = 21,
    queries_per_label: int = 100,
    train_per_label: int = 500,
    seed: int = 0,
    skip_missing: bool = False,
) -> Rows:
    """NUS-WIDE with its most frequent labels, from the lists of a published split or in its official layout.

    labels             how many of the 81 labels, the most frequent first
    queries_per_label  photos drawn as queries for each label in turn
    train_per_label    photos drawn for training likewise; all others are the database
    seed               which ones are drawn (lists bring their own split and take none of these options)
    skip_missing       leave out photos that are not there
    """
    remarks = Remarks()
    parts: Parts | Callable[[], Parts]
    if path.is_dir() and _list(path, "train") and _list(path, "test"):
        classes, names, table, parts = _from_lists(path, remarks)
    else:
        if not 2 <= labels <= CONCEPTS or min(queries_per_label, train_per_label) < 1:
            raise ConfigError(
                f"nuswide: labels={labels}, queries_per_label={queries_per_label}, "
                f"train_per_label={train_per_label}; labels go from 2 to {CONCEPTS}, the others from 1"
            )
        classes, names, table = _from_groundtruth(path, labels, remarks)
        parts = partial(draw_parts, table, classes, queries=queries_per_label, train=train_per_label, seed=seed)
    photos, some_are_there = _find(path, names)
    if not some_are_there:
        remarks.notes.append(f"labels only: none of the photos is in {path}")
    found = {"skip_missing": skip_missing, "labels_only": not some_are_there}
    return assemble("nuswide", classes, photos, table, parts=parts, remarks=remarks, **found)


def draw_parts(table: Labels, classes: Sequence[str], *, queries: int, train: int, seed: int) -> Parts:
    """For each label in turn so many photos that no label before it has drawn; the rest is the database."""
    rng = np.random.default_rng(seed)
    free = np.ones(len(table), np.bool_)

    def draw(number: int) -> NDArray[np.int64]:
        drawn = []
        for j, label in enumerate(classes):
            candidates = np.flatnonzero(free & (table[:, j] > 0))
            if len(candidates) < number:
                raise DataError(
                    f"nuswide: {counted(len(candidates), 'photo')} left with the label {label!r}, fewer than "
                    f"{number}; check the label files, or ask for fewer a label"
                )
            drawn.append(rng.choice(candidates, number, replace=False))
            free[drawn[-1]] = False
        return np.sort(np.concatenate(drawn))

    note = (
        f"split drawn with seed {seed}: {queries} queries and {train} training photos a label; "
        "the paper's own draw comes with its lists train.txt and test.txt"
    )
    return Parts(queries=draw(queries), train=draw(train), database=np.flatnonzero(free), notes=(note,))


# ── lists of a published split ───────────────────────────────────────────────────────────────────────────


def _list(path: Path, name: str) -> Path | None:
    places = (path / f"{name}.txt", path / f"{name}.txt.gz")
    return next((place for place in places if place.is_file()), None)


def _from_lists(path: Path, remarks: Remarks) -> tuple[Sequence[str], list[str], Labels, Parts]:
    """Photos, labels and parts from train, test and database lists; a photo may stand in two of them."""
    row_of: dict[str, int] = {}
    rows: list[bytes] = []
    parts: dict[str, NDArray[np.int64]] = {}
    for part in ("train", "test", "database"):
        if (file := _list(path, part)) is None:
            continue
        listed = []
        for where, name, values in _read_list(file):
            i = row_of.setdefault(name, len(rows))
            if i == len(rows):
                rows.append(values)
            elif rows[i] != values:
                raise DataError(f"{where}: photo {name!r} has other labels in another row; correct one of them")
            listed.append(i)
        parts[part] = np.unique(np.array(listed, np.int64))
    if len({len(values) for values in rows}) != 1:
        raise DataError(f"{path}: the lists differ in their number of labels; use lists of one split")
    notes: tuple[str, ...] = ()
    if "database" not in parts:
        parts["database"] = parts["train"]
        notes = ("no database.txt: the training photos stand in for the database",)
    table = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1)
    classes = _list_classes(path, table.shape[1], remarks)
    return classes, list(row_of), table, Parts(parts["train"], parts["test"], parts["database"], notes)


def _read_list(file: Path) -> list[tuple[str, str, bytes]]:
    """(file:line, photo, labels as bytes of 0 and 1) for every row of a list."""
    try:
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        text = data.decode("utf-8-sig")
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{file}: cannot be read ({error}); copy it again") from error
    rows: list[tuple[str, str, bytes]] = []
    for line, row in enumerate(text.splitlines(), 1):
        if not row.strip():
            continue
        name, *values = row.split()
        if not values or not set(values) <= {"0", "1"} or (rows and len(values) != len(rows[0][2])):
            raise DataError(f"{file}:{line}: not a photo followed by a 0 or 1 for every label; correct the row")
        rows.append((f"{file}:{line}", name, bytes(value == "1" for value in values)))
    if not rows:
        raise DataError(f"{file}: an empty list; copy it again")
    return rows


def _list_classes(path: Path, columns: int, remarks: Remarks) -> Sequence[str]:
    names = path / "classes.txt"
    if names.is_file():
        classes = names.read_text(encoding="utf-8-sig").split()
        if len(classes) != columns or len(set(classes)) != columns:
            raise DataError(f"{names}: {len(classes)} names for {columns} labels; write one a line, each once")
        return classes
    if columns == len(FREQUENT):
        remarks.notes.append("the lists do not name their labels: taken as the 21 most frequent, in that order")
        return FREQUENT
    remarks.notes.append("the lists do not name their labels: write them into classes.txt, one a line")
    return [f"label {j}" for j in range(1, columns + 1)]


# ── the official layout ──────────────────────────────────────────────────────────────────────────────────


def _from_groundtruth(path: Path, wanted: int, remarks: Remarks) -> tuple[list[str], list[str], Labels]:
    """The photos that carry one of the most frequent labels, and these labels."""
    names, concepts = _official(path)
    if len(concepts) < wanted:
        raise DataError(
            f"{path}: label files of {counted(len(concepts), 'concept')}, {wanted} are needed; "
            "unpack Groundtruth.zip again"
        )
    for concept, values in concepts.items():
        if len(values) != len(names):
            raise DataError(
                f"{path}: {len(values):,} labels of {concept!r} for {len(names):,} photos in the image list; "
                "unpack Groundtruth.zip and ImageList.zip again"
            )
    by_count = sorted(concepts, key=lambda concept: (-int(concepts[concept].sum()), concept))[:wanted]
    table = np.stack([concepts[concept] for concept in by_count], axis=1)
    keep = table.any(axis=1)
    remarks.leave_out_unlabelled([names[i] for i in np.flatnonzero(~keep)])
    return by_count, [names[i] for i in np.flatnonzero(keep)], table[keep]


def _official(path: Path) -> tuple[list[str], dict[str, NDArray[np.uint8]]]:
    """All photos and, for every concept, a 0 or 1 for each of them."""
    listed, labels = below(path, "[Ii]mage[Ll]ist.txt"), below(path, "AllLabels")
    if listed and labels:
        found = {file.stem.removeprefix("Labels_"): file for file in labels.glob("Labels_*.txt")}
        return _lines(listed), {concept: _zeros_and_ones(file) for concept, file in found.items()}
    train, test = below(path, "Train[Ii]mage[Ll]ist.txt"), below(path, "Test[Ii]mage[Ll]ist.txt")
    labels = below(path, "TrainTestLabels")
    if train and test and labels:
        concepts = sorted(re.sub("^Labels_|_Train$", "", file.stem) for file in labels.glob("Labels_*_Train.txt"))
        halves = {
            concept: [_zeros_and_ones(labels / f"Labels_{concept}_{half}.txt") for half in ("Train", "Test")]
            for concept in concepts
        }
        return _lines(train) + _lines(test), {concept: np.concatenate(both) for concept, both in halves.items()}
    raise absent(path, "nuswide")


def _lines(file: Path) -> list[str]:
    """The photos of an image list, with slashes whichever way the list has them."""
    text = file.read_text(encoding="utf-8-sig").replace("\\", "/")
    return [line.strip() for line in text.splitlines() if line.strip()]


def _zeros_and_ones(file: Path) -> NDArray[np.uint8]:
    if not file.is_file():
        raise DataError(f"{file}: this label file is missing; unpack Groundtruth.zip again")
    data = np.frombuffer(file.read_bytes(), np.uint8)
    digits = data[~np.isin(data, list(b" \t\r\n"))] - ord("0")
    if (digits > 1).any():
        raise DataError(f"{file}: something else than a 0 or 1 for each photo; unpack Groundtruth.zip again")
    return digits


# ── the photos ───────────────────────────────────────────────────────────────────────────────────────────


def _find(path: Path, names: Sequence[str]) -> tuple[PhotoFiles, bool]:
    """The photos as they are listed, else wherever below `path` a file of that name is; and whether any is there."""
    finder = Finder(path)
    if any(finder.find(name) for name in names[:100]):
        return PhotoFiles(tuple(names), path), True
    places = {PurePosixPath(place).name: place for place in photos_under(path)}
    found = tuple(places.get(PurePosixPath(name).name, name) for name in names)
    return PhotoFiles(found, path), any(map(finder.find, found))
