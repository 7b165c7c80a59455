"""Photos of one's own: rows of (photo, labels, split) from any source are checked, and nothing is lost.

Every photo that is missing, has no labels or stands there twice is refused with its file and line, or left
out on request and told of in the notes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath

import numpy as np
from numpy.typing import NDArray

from hyphash.datasets import Finder, Labels, Parts, Remarks, Rows, assemble, multi_hot
from hyphash.errors import ConfigError, DataError, LabelError, counted
from hyphash.photos import FORMATS, SUFFIXES, PhotoFiles


@dataclass(frozen=True)
class Row:
    """One photo as a label file has it."""

    image: str
    labels: tuple[str, ...]
    where: str  # file and line, for errors
    split: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choices:
    """What a user decides about photos of their own; every dataset of that kind takes these options.

    seed, queries    which photos are held out as queries, and how many (a share or a number), where no list says it
    skip_unlabelled  leave out photos without labels instead of refusing them
    skip_missing     leave out photos that are listed but not there
    min_count        leave out labels that fewer photos carry
    keep_unlabelled  keep photos without labels, as an index does
    """

    seed: int = 0
    queries: float = 0.1
    skip_unlabelled: bool = False
    skip_missing: bool = False
    min_count: int = 1
    keep_unlabelled: bool = False

    def __post_init__(self) -> None:
        share = isinstance(self.queries, float) and 0 < self.queries < 1
        if not share and (self.queries != int(self.queries) or self.queries < 1):
            raise ConfigError(f"queries={self.queries}: give a share between 0 and 1, or how many photos (1 or more)")


OWN = Choices()


def own_photos(
    name: str,
    rows: Sequence[Row],
    source: Path,
    *,
    choices: Choices,
    remarks: Remarks | None = None,
    root: Path | None = None,
) -> Rows:
    """Rows from those of `source`, which is the label file or the folder with the photos.

    Photos are found relative to `root`, by default the folder or the folder of the file.
    """
    root, remarks = root or (source if source.is_dir() else source.parent), remarks or Remarks()
    if not rows:
        raise DataError(f"{source}: no photos here; hyphash reads {FORMATS}")
    rows = _resolve(rows, root, source, choices, remarks)
    rows = _merge_repeats(rows, remarks.notes)
    rows = _labelled(rows, source, choices, remarks)
    classes = sorted({label for row in rows for label in row.labels})
    remarks.notes += _look_alikes(classes)
    labels = multi_hot([row.labels for row in rows], classes)
    photos = PhotoFiles(tuple(row.image for row in rows), root)
    parts = partial(_parts, rows, labels, classes, source, choices)
    found = {"labels_only": True, "keep_unlabelled": choices.keep_unlabelled}  # they were looked for above
    return assemble(name, classes, photos, labels, parts=parts, remarks=remarks, **found)


def _resolve(rows: Sequence[Row], root: Path, source: Path, choices: Choices, remarks: Remarks) -> list[Row]:
    """The rows with the names that the disk has for their photos."""
    finder = Finder(root)
    found, missing = [], []
    known = set()
    for row in rows:
        path = finder.find(row.image)
        if path is None:
            missing.append(row)
        else:
            known.add(path)
            found.append(replace(row, image=finder.relative(path)))
    where = missing[0].where if missing else str(source)
    remarks.leave_out_missing(where, [row.image for row in missing], skip=choices.skip_missing)
    unlisted = map(PurePath, finder.seen() - known)
    others = sum(file.suffix.lower() in SUFFIXES and file.name[0] != "." for file in unlisted)
    if others and source.is_file():
        remarks.notes.append(f"{counted(others, 'photo')} in the same folders not listed in {source.name}")
    return found


def _merge_repeats(rows: Sequence[Row], notes: list[str]) -> list[Row]:
    once: dict[str, Row] = {}
    for row in rows:
        first = once.setdefault(row.image, row)
        if (first.labels, first.split) != (row.labels, row.split):
            raise LabelError(
                f"{row.where}: photo {row.image!r} stands at {first.where} already, with other labels or "
                "another split; keep one of the two rows"
            )
    if repeats := len(rows) - len(once):
        notes.append(f"{counted(repeats, 'repeated row')} left out")
    return list(once.values())


def _labelled(rows: Sequence[Row], source: Path, choices: Choices, remarks: Remarks) -> list[Row]:
    """The rows that carry labels which are frequent enough, and those without where these are kept."""
    bare = [row for row in rows if not row.labels]
    if bare and not choices.skip_unlabelled and not choices.keep_unlabelled:
        more = f" (one of {len(bare):,} such photos)" if len(bare) > 1 else ""
        raise LabelError(
            f"{bare[0].where}: photo {bare[0].image!r} has no labels{more}; "
            "give it one or drop it with --skip-unlabelled"
        )
    counts = Counter(label for row in rows for label in row.labels)
    rare = sorted(label for label, count in counts.items() if count < choices.min_count)
    if rare:
        some = ", ".join(rare[:5]) + (" …" if len(rare) > 5 else "")
        remarks.notes.append(f"{counted(len(rare), 'label')} on fewer than {choices.min_count} photos left out: {some}")
        out = set(rare)
        rows = [replace(row, labels=tuple(label for label in row.labels if label not in out)) for row in rows]
    if not choices.keep_unlabelled:
        remarks.leave_out_unlabelled([row.image for row in rows if not row.labels])
        rows = [row for row in rows if row.labels]
    if not rows:
        raise DataError(f"{source}: no photo with labels is left; check the labels and the options")
    return list(rows)


def _look_alikes(classes: Sequence[str]) -> Iterator[str]:
    """Remarks on labels that differ in case alone, which are hardly ever meant to be two."""
    spelt: dict[str, list[str]] = defaultdict(list)
    for label in classes:
        spelt[label.casefold()].append(label)
    for labels in spelt.values():
        if len(labels) > 1:
            yield f"labels that differ in case alone count as different: {', '.join(labels)}"


def _parts(rows: Sequence[Row], labels: Labels, classes: Sequence[str], source: Path, choices: Choices) -> Parts:
    if len(classes) < 2:
        raise DataError(
            f"{source}: every photo carries {classes[0]!r} and nothing else, there is nothing to tell apart; "
            "use photos with at least two different labels"
        )
    return _given_parts(rows, source) if any(row.split for row in rows) else _seeded_parts(labels, source, choices)


def _given_parts(rows: Sequence[Row], source: Path) -> Parts:
    """The parts that the column `split` names; train and database stand in for each other."""
    for row in rows:
        if not row.split:
            raise DataError(f"{row.where}: photo {row.image!r} has no split and others have; give it one")
    train, queries, database = (
        np.array([i for i, row in enumerate(rows) if part in row.split], np.int64)
        for part in ("train", "queries", "database")
    )
    if not len(queries) or not len(train) + len(database):
        raise DataError(
            f"{source}: the split has {counted(len(queries), 'photo')} as queries and "
            f"{len(train) + len(database):,} others; it needs some of both, or remove it for a random split"
        )
    if len(train) and len(database):
        return Parts(train, queries, database)
    note = f"the split names no {'database' if len(train) else 'train'}: both are the same photos"
    both = np.concatenate([train, database])
    return Parts(both, queries, both, (note,))


def _seeded_parts(labels: Labels, source: Path, choices: Choices) -> Parts:
    share = isinstance(choices.queries, float) and choices.queries < 1
    wanted = max(1, round(choices.queries * len(labels))) if share else int(choices.queries)
    queries = held_out(labels, wanted, choices.seed)
    if not len(queries):
        raise DataError(
            f"{source}: no photo can be held out as a query, for each carries a label that no other has; "
            "add photos, or leave out rare labels with --min-count"
        )
    rest = np.setdiff1d(np.arange(len(labels)), queries)
    fewer = "" if len(queries) == wanted else f", fewer than the {wanted:,} asked for to keep every label"
    note = (
        f"no split given: {counted(len(queries), 'photo')} held out as queries (seed {choices.seed}{fewer}), "
        f"the other {len(rest):,} are both training part and database"
    )
    return Parts(rest, queries, rest, (note,))


def held_out(labels: Labels, wanted: int, seed: int) -> NDArray[np.int64]:
    """Random rows, as many as wanted; fewer where a label would lose its last photo outside of them."""
    left = labels.sum(axis=0, dtype=np.int64)
    chosen: list[int] = []
    for i in np.random.default_rng(seed).permutation(len(labels)):
        if len(chosen) == wanted:
            break
        own = np.flatnonzero(labels[i])
        if (left[own] > 1).all():
            left[own] -= 1
            chosen.append(int(i))
    return np.array(sorted(chosen), np.int64)
