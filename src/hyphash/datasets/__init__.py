"""Datasets: photos with labels, as they are listed or in three parts. Each is a function in a file of this package.

>>> splits = load_dataset("photos/labels.csv")             # doctest: +SKIP
>>> splits = load_dataset("pack.npz", name="flickr25k")    # doctest: +SKIP
>>> splits.train.labels.shape                              # doctest: +SKIP
(4000, 38)
>>> rows = read_rows("photos/labels.csv")                  # doctest: +SKIP
>>> len(rows.photos), label_names(rows.photos.labels[:1], rows.classes)  # doctest: +SKIP
(60, [['dog', 'sea']])
"""

import inspect
import os
import tomllib
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, is_dataclass
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hyphash.errors import ConfigError, DataError, LabelError, counted
from hyphash.photos import Chosen, PhotoFiles, PhotoSource
from hyphash.registry import Registry

Labels = NDArray[np.uint8]


@dataclass(frozen=True)
class Split(Chosen):
    """Some of the photos of a dataset, with their labels: row i of `labels` belongs to photo `rows[i]`."""

    rows: NDArray[np.int64]
    labels: Labels  # multi-hot, (len(rows), classes)

    def __post_init__(self) -> None:
        if self.labels.ndim != 2 or len(self.rows) != len(self.labels):
            raise LabelError(f"{len(self.rows)} photos but labels of shape {self.labels.shape}")

    def take(self, indices: Any) -> "Split":
        """The part of this split at `indices` (an index array, a mask or a slice)."""
        return Split(self.photos, self.rows[indices], self.labels[indices])


@dataclass(frozen=True)
class Dataset:
    """What is told of a dataset, in parts or not."""

    name: str
    classes: tuple[str, ...]
    _: KW_ONLY
    notes: tuple[str, ...] = ()  # what was skipped or assumed while reading, for the user
    unlabelled: tuple[str, ...] = ()  # photos left out because they have no labels
    missing: tuple[str, ...] = ()  # photos left out because their files are not there
    unlisted: tuple[str, ...] = ()  # further photos of the folder, of which its label file says nothing


@dataclass(frozen=True)
class Splits(Dataset):
    """A dataset in its three parts. `train` and `database` may share photos; `queries` shares none."""

    train: Split
    queries: Split
    database: Split


class Parts(NamedTuple):
    """Which rows of a table of photos belong to each part, and what the user should know of how they were drawn."""

    train: NDArray[np.int64]
    queries: NDArray[np.int64]
    database: NDArray[np.int64]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rows(Dataset):
    """All photos of a dataset that can be used, each once, with its labels.

    Training and evaluation need them in parts, which `splits` draws; an index takes them as they are.
    """

    photos: Split  # in the order of their source
    parts: Parts | Callable[[], Parts]  # how to draw them, where that can fail or takes its time

    def splits(self) -> Splits:
        """The dataset in its three parts."""
        parts = self.parts() if callable(self.parts) else self.parts
        shared = np.intersect1d(parts.queries, np.concatenate([parts.train, parts.database]))
        if len(shared):
            raise DataError(
                f"{self.name}: {counted(len(shared), 'photo')} in the queries and in another part as well, "
                f"such as {self.photos.photos.name(int(shared[0]))!r}; take each query out of the other parts"
            )
        three = [self._part(part, getattr(parts, part)) for part in ("train", "queries", "database")]
        notes = self.notes + parts.notes
        return Splits(self.name, self.classes, *three, notes=notes, unlabelled=self.unlabelled, missing=self.missing)

    def _part(self, part: str, rows: NDArray[np.int64]) -> Split:
        there = self.photos.rows
        rows = rows[np.isin(rows, there)]
        if not len(rows):
            raise DataError(f"{self.name}: no photos are left for the part {part!r}; check the label files")
        return self.photos.take(np.searchsorted(there, rows))


PUBLISHED: dict[str, dict[str, Any]] = tomllib.loads(files(__package__).joinpath("published.toml").read_text("utf-8"))
datasets: Registry[Callable[..., Rows]] = Registry(
    "dataset", package="hyphash.datasets", entry_points="hyphash.datasets", also="hyphash.collection.exchange"
)


def load_dataset(source: str | Path, name: str | None = None, *, lenient: bool = False, **options: Any) -> Splits:
    """The dataset at `source` in its parts, for training and evaluation. Takes what `read_rows` takes."""
    return read_rows(source, name, lenient=lenient, **options).splits()


def read_rows(
    source: str | Path, name: str | None = None, *, lenient: bool = False, whole: bool = False, **options: Any
) -> Rows:
    """All photos of the dataset at `source` with their labels.

    Without a name, the kind is found out from what lies at `source`: a pack, a devkit, a CSV, a folder …
    Options belong to the dataset, for instance `labels=24` for flickr25k or `seed=` for a folder. A lenient
    reading leaves out what can be left out (the options skip_…) instead of refusing it, and tells in the notes. A
    whole one has the photos without labels too, where the dataset can tell of them.
    """
    from hyphash.datasets.folder import detect

    path = Path(source).expanduser()
    name = name or detect(path)
    known = options_of(name)
    if known is not None and (unknown := sorted(set(options) - set(known))):
        raise ConfigError(f"the dataset {name!r} has no option {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    if lenient:
        options = {option: True for option in known or () if option.startswith("skip_")} | options
    if whole and known and "keep_unlabelled" in known:
        options = {"keep_unlabelled": True} | options
    return datasets[name](path, **_bundled(name, options))


def options_of(name: str) -> dict[str, Any] | None:
    """The options of a dataset with their defaults, those that it takes as one among them; None where it takes any.

    >>> options_of("voc2007")
    {'difficult': True, 'skip_missing': False}
    """
    parameters = inspect.signature(datasets[name]).parameters.values()
    if any(option.kind is option.VAR_KEYWORD for option in parameters):
        return None
    known: dict[str, Any] = {}
    for option in parameters:
        if option.kind is option.KEYWORD_ONLY:
            known |= vars(option.default) if is_dataclass(option.default) else {option.name: option.default}
    return known


def _bundled(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options as the dataset takes them: fields of a dataclass that is one of its parameters as that."""
    parameters, given = inspect.signature(datasets[name]).parameters, dict(options)
    for bundle, default in ((p.name, p.default) for p in parameters.values() if is_dataclass(p.default)):
        own = vars(default).keys() & given.keys() - parameters.keys()
        bundled: type[Any] = type(default)
        given[bundle] = bundled(**vars(default) | {option: given.pop(option) for option in own})
    return given


@dataclass
class Remarks:
    """What a reader has to tell the user; ends up in the fields of Dataset with the same names."""

    notes: list[str] = field(default_factory=list)
    unlabelled: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def leave_out_unlabelled(self, names: Sequence[str]) -> None:
        if names:
            self.unlabelled += names
            self.notes.append(f"{counted(len(names), 'photo')} without labels left out")

    def leave_out_missing(self, where: str, names: Sequence[str], *, skip: bool) -> None:
        """Note photos that are listed but not there, or refuse them: the first few, how many, the way out."""
        if not names:
            return
        some = ", ".join(repr(name) for name in names[:3]) + (" …" if len(names) > 3 else "")
        what = f"{counted(len(names), 'photo')} listed but not there: {some}"
        if not skip:
            raise DataError(
                f"{where}: {what}; put them in their place, correct the list, or leave them out with --skip-missing"
            )
        self.missing += names
        self.notes.append(what)


def absent(path: Path, name: str, **values: str) -> DataError:
    """What to download, from where, and where to put it."""
    return DataError(f"{path}: {PUBLISHED[name]['absent'].format(**values)}")


def multi_hot(label_sets: Sequence[Iterable[str]], classes: Sequence[str]) -> Labels:
    """One row a photo, one column a class, 1 where the photo carries the label.

    >>> multi_hot([["dog"], ["cat", "dog"], []], ["cat", "dog"]).tolist()
    [[0, 1], [1, 1], [0, 0]]
    """
    column = {label: j for j, label in enumerate(classes)}
    labels = np.zeros((len(label_sets), len(classes)), np.uint8)
    for i, label_set in enumerate(label_sets):
        for label in label_set:
            labels[i, column[label]] = 1
    return labels


def label_names(labels: Labels, classes: Sequence[str]) -> list[list[str]]:
    """The names of the labels of each photo.

    >>> label_names(np.array([[0, 1], [1, 1], [0, 0]], np.uint8), ["cat", "dog"])
    [['dog'], ['cat', 'dog'], []]
    """
    return [[classes[column] for column in np.flatnonzero(row).tolist()] for row in labels]


def assemble(
    name: str,
    classes: Sequence[str],
    photos: PhotoSource,
    labels: Labels,
    *,
    parts: Parts | Callable[[], Parts],
    remarks: Remarks | None = None,
    skip_missing: bool = False,
    labels_only: bool = False,
    keep_unlabelled: bool = False,
) -> Rows:
    """Rows from one table of photos and labels: those of the given parts, which count in rows of this table, else all.

    Photos without labels are left out with a note. Files that are not there are refused, or left out with a note; where
    there are labels only nobody looks for them (lists without their photos still have statistics).
    """
    remarks = remarks or Remarks()
    used = np.arange(len(labels)) if callable(parts) else np.unique(np.concatenate(parts[:3]))
    labelled = labels[used].any(axis=1) | keep_unlabelled
    remarks.leave_out_unlabelled([photos.name(int(i)) for i in used[~labelled]])
    rows = used[labelled]
    if isinstance(photos, PhotoFiles) and not labels_only:
        finder = Finder(photos.root)
        there = np.array([finder.find(photos.name(int(i))) is not None for i in rows], np.bool_)
        absent = [photos.name(int(i)) for i in rows[~there]]
        remarks.leave_out_missing(str(photos.root), absent, skip=skip_missing)
        rows = rows[there]
    told = {field: tuple(names) for field, names in vars(remarks).items()}
    return Rows(name, tuple(classes), Split(photos, rows, labels[rows]), parts, **told)


class Finder:
    """Finds files whichever way Unicode spells their names; reads each folder once, never file by file.

    Paths are strings in here: a hundred thousand of them are looked up in a second.
    """

    def __init__(self, root: Path) -> None:
        self.root = os.path.normpath(root.absolute())
        self._folders: dict[str, str] = {}
        self._listings: dict[str, dict[str, str]] = {}

    def find(self, name: str) -> str | None:
        """The path of the file called `name` (relative to the root, or absolute) as the disk spells it."""
        for spelling in (name, name.replace("\\", "/")) if "\\" in name else (name,):  # lists made on Windows
            absolute = spelling.startswith("/") or PurePath(spelling).is_absolute()
            path = os.path.normpath(spelling if absolute else f"{self.root}/{spelling}")
            folder, _, file = path.rpartition(os.sep)
            folder = self._folder(folder or os.sep)
            listing = self._listing(folder)
            found = listing.get(file) or listing.get(unicodedata.normalize("NFC", file))
            if found is not None:
                return f"{folder.rstrip(os.sep)}{os.sep}{found}"
        return None

    def relative(self, path: str) -> str:
        """What to call a file: its path under the root, or the whole path if it lies elsewhere."""
        inside = path.removeprefix(self.root + os.sep)
        return inside if inside == path else inside.replace(os.sep, "/")

    def seen(self) -> set[str]:
        """The paths of everything in the folders at and below the root that were looked into."""
        return {
            f"{folder}{os.sep}{file}"
            for folder, listing in self._listings.items()
            if f"{folder}{os.sep}".startswith(self.root + os.sep)
            for file in listing.values()
        }

    def _folder(self, folder: str) -> str:
        """The folder as the disk spells it."""
        if folder not in self._folders:
            path = Path(folder)
            actual = folder
            if not path.is_dir() and path != path.parent:
                parent = self._folder(str(path.parent))
                name = unicodedata.normalize("NFC", path.name)
                actual = str(Path(parent) / self._listing(parent).get(name, path.name))
            self._folders[folder] = actual
        return self._folders[folder]

    def _listing(self, folder: str) -> dict[str, str]:
        """What is in a folder: each name, and its NFC spelling → the disk's spelling."""
        if folder not in self._listings:
            try:
                with os.scandir(folder) as entries:
                    names = [entry.name for entry in entries]
            except OSError:  # not there, or not ours to read: what it should hold is missing
                names = []
            nfc = {unicodedata.normalize("NFC", name): name for name in names}
            self._listings[folder] = nfc | {name: name for name in names}
        return self._listings[folder]


def below(path: Path, pattern: str) -> Path | None:
    """What fits the pattern at `path` or up to two levels below."""
    return next((place for stars in ("", "*/", "*/*/") for place in sorted(path.glob(stars + pattern))), None)


def spelled(labels: Iterable[str]) -> tuple[str, ...]:
    """Labels in one spelling, each once, sorted.

    >>> spelled([" dog", "cat", "dog"])
    ('cat', 'dog')
    """
    if isinstance(labels, str):
        raise LabelError(f"labels come as a list, not as {labels!r}; write [{labels!r}]")
    return tuple(sorted({unicodedata.normalize("NFC", label).strip() for label in labels} - {""}))


def with_parents(labels: Iterable[str]) -> tuple[str, ...]:
    """Labels in one spelling, and all that stand above them: whoever looks for an animal shall find a dog.

    >>> with_parents(["animal/dog", "sea"])
    ('animal', 'animal/dog', 'sea')
    """
    levels = [label.split("/") for label in spelled(labels)]
    return spelled("/".join(parts[:end]) for parts in levels for end in range(1, len(parts) + 1))
