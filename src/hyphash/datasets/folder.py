"""The user's own photos, with labels in a CSV, in JSON lines, in folder names, or in the photo files.

labels.csv    image,labels          and rows such as  beach.jpg,dog|sea
labels.csv    image,dog,sea         and rows such as  beach.jpg,1,1
labels.jsonl  {"image": "beach.jpg", "labels": ["dog", "sea"]}
folders       dog/beach.jpg and the same photo again as sea/beach.jpg
keywords      the IPTC or XMP keywords that photo programs write into the files, or into sidecars beside them

Paths are relative to the label file. An optional `split` (train, queries, database; `query` and `test` mean
queries, `gallery` means database) says which part a photo belongs to. Without it a seeded share of the
photos is held out as queries, and all the others are both training part and database.
"""

import csv
import io
import json
import os
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Literal

from hyphash.datasets import Remarks, Rows, datasets, spelled
from hyphash.datasets.own import OWN, Choices, Row, own_photos
from hyphash.errors import ConfigError, DataError, LabelError, PhotoError, counted
from hyphash.files import digest
from hyphash.photos import SUFFIXES, metadata, read_bytes

LabelsFrom = Literal["auto", "file", "folders", "keywords"]

IMAGE_COLUMNS = ("image", "file", "filename", "path")
LABEL_COLUMNS = ("labels", "label")
SPLIT_WORDS = {"train": "train", **dict.fromkeys(("queries", "query", "test"), "queries")}
SPLIT_WORDS |= dict.fromkeys(("database", "gallery"), "database")
TABLES = (".csv", ".tsv")
JSON_LINES = (".jsonl", ".ndjson")
LABEL_FILES = TABLES + JSON_LINES


@datasets("folder")
def folder(path: Path, *, labels_from: LabelsFrom = "auto", choices: Choices = OWN) -> Rows:
    """Your own photos: a label file (CSV, JSON lines), a folder per label, or keywords inside the photos.

    labels_from  auto takes the label file, else the folders, else the keywords
    """
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder; correct the path")
    source = _source(path, labels_from)
    remarks = Remarks()
    if not isinstance(source, Path):
        rows = _READERS[source](path, photos_under(path), remarks.notes)
        if source == "keywords" and not choices.keep_unlabelled and rows and not any(row.labels for row in rows):
            raise LabelError(
                f"{path}: no photo carries keywords; sort the photos into one folder per label, "
                "or list them in labels.csv (image,labels)"
            )
        return own_photos("folder", rows, path, choices=choices, remarks=remarks)
    read = own_photos("folder", read_table(source, remarks.notes), source, choices=choices, remarks=remarks)
    listed = set(map(read.photos.name, range(len(read.photos))))
    others = photos_under(path) if choices.keep_unlabelled and path.is_dir() else ()
    return replace(read, unlisted=tuple(name for name in others if name not in listed))


def labels_of(root: Path, labels_from: LabelsFrom, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """What a folder says of some of its photos, by name; those that are not there it says nothing of."""
    source = _source(root, labels_from)
    rows = read_table(source, []) if isinstance(source, Path) else _READERS[source](root, names, [])
    return {row.image: row.labels for row in rows}


def detect(path: Path) -> str:
    """The kind of dataset at `path`, found out from names of files and folders alone."""
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder; correct the path")
    if path.is_file():
        by_suffix = {".npz": "flickr25k", ".json": "coco"}
        return "flickr25k" if ".npz.part" in path.name else by_suffix.get(path.suffix.lower(), "folder")

    def has(*patterns: str) -> bool:
        return any(next(path.glob(pattern), None) is not None for pattern in patterns)

    kinds = {
        "collection": has("collection.toml"),
        "sample": has("sample.json"),
        "cifar10": has("cifar-10-batches-*", "data_batch_1*"),
        "flickr25k": has("flickr25k*.npz*", "mirflickr", "mirflickr25k_annotations*", "clouds_r1.txt"),
        "voc": has("VOCdevkit", "VOC20*", "JPEGImages"),
        "coco": has("instances_*.json", "annotations/instances_*.json", "*.coco.json"),
        "nuswide": has("Groundtruth", "ImageList", "NUS_WID_Tags")
        or (has("train.txt", "train.txt.gz") and has("test.txt", "test.txt.gz")),
    }
    kind = next((kind for kind, found in kinds.items() if found), "folder")
    return _which_voc(path) if kind == "voc" else kind


def _which_voc(path: Path) -> str:
    found = {
        place.name
        for place in (path, *path.glob("VOC20*"), *path.glob("VOCdevkit/VOC20*"))
        if place.name in ("VOC2007", "VOC2012")
    }
    if len(found) > 1:
        raise DataError(f"{path}: both VOC2007 and VOC2012 are here; choose one with --dataset voc2007 or voc2012")
    return found.pop().lower() if found else "voc"


def _source(path: Path, labels_from: LabelsFrom) -> Path | Literal["folders", "keywords"]:
    """Where the labels are: a file, or the words `folders` or `keywords`."""
    if labels_from not in ("auto", "file", "folders", "keywords"):
        raise ConfigError(f"labels_from={labels_from!r}: it is one of auto, file, folders, keywords")
    if path.is_file():
        if labels_from in ("folders", "keywords"):
            raise ConfigError(f"{path}: a file; labels from {labels_from} need the folder with the photos")
        return path
    if labels_from in ("auto", "file") and (table := label_file(path)) is not None:
        return table
    if labels_from == "file":
        raise DataError(f"{path}: no label file here; write labels.csv or labels.jsonl")
    if labels_from != "auto":
        return labels_from
    return "folders" if any("/" in name for name in photos_under(path)) else "keywords"


def label_file(folder: Path) -> Path | None:
    """The label file of a folder: labels.csv, labels.jsonl, or the only file of that kind."""
    visible = (file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    tables = sorted(file for file in visible if file.suffix.lower() in LABEL_FILES)
    choice = [file for file in tables if file.stem.lower() == "labels"] or tables
    if len(choice) > 1:
        raise DataError(
            f"{folder}: several label files: {', '.join(file.name for file in choice)}; give the path of the one to use"
        )
    return choice[0] if choice else None


# ── label files ──────────────────────────────────────────────────────────────────────────────────────────


def read_table(path: Path, notes: list[str]) -> list[Row]:
    """The rows of a CSV (either form) or JSON-lines file; remarks for the user go to `notes`."""
    suffix = path.suffix.lower()
    if suffix not in LABEL_FILES:
        raise DataError(f"{path}: not a label file; hyphash reads {', '.join(LABEL_FILES)}, COCO's .json, and folders")
    text = _text(path)
    rows = list(_json_rows(path, text, notes) if suffix in JSON_LINES else _csv_rows(path, text, notes))
    if not rows:
        raise DataError(f"{path}: no photos are listed; add a row for each photo")
    lists = {label for row in rows for label in row.labels if "," in label or ";" in label}
    if lists:
        notes.append(f"labels are separated by | only, so {min(lists)!r} is one label")
    return rows


def _text(path: Path) -> str:
    data = path.read_bytes()
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))  # what spreadsheets call Unicode text
    try:
        return data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DataError(f"{path}:{line}: not UTF-8 text; save the file as UTF-8 ('CSV UTF-8')") from None


def _csv_rows(path: Path, text: str, notes: list[str]) -> Iterator[Row]:
    separator = _separator(text)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True)
    columns: _Columns | None = None
    line = 1
    try:
        for raw in lines:
            where, line = f"{path}:{line}", lines.line_num + 1
            cells = [unicodedata.normalize("NFC", cell).strip() for cell in raw]
            if not any(cells):
                continue
            if columns is None:
                columns = _header(cells, where, notes)
            else:
                yield _csv_row(cells, columns, where)
    except csv.Error as error:
        raise DataError(f"{path}:{lines.line_num}: not a CSV row ({error}); check its quotes") from None


def _separator(text: str) -> str:
    """Comma, semicolon or tab: the one that finds an image column in the header, else the most frequent."""
    header = next((line for line in text.splitlines() if line.strip()), "")

    def found(separator: str) -> tuple[bool, int]:
        cells = [cell.strip(' "').lower() for cell in header.split(separator)]
        return len(cells) > 1 and any(name in cells for name in IMAGE_COLUMNS), len(cells)

    return max(",;\t", key=found)


@dataclass(frozen=True)
class _Columns:
    names: list[str]
    image: int
    labels: int | None  # the column with the list of labels; None: one 0/1 column per label
    split: int | None


def _header(cells: list[str], where: str, notes: list[str]) -> _Columns:
    lower = [cell.lower() for cell in cells]

    def column(names: Iterable[str]) -> int | None:
        return next((lower.index(name) for name in names if name in lower), None)

    image, labels, split = column(IMAGE_COLUMNS), column(LABEL_COLUMNS), column(["split"])
    while cells and not cells[-1]:  # spreadsheets leave empty columns behind
        cells.pop()
    if image is None or len(cells) < 2:
        raise DataError(
            f"{where}: no column {' or '.join(repr(name) for name in IMAGE_COLUMNS)} in the header; "
            "start the file with a line such as image,labels"
        )
    if doubled := sorted(name for name, count in Counter(cells).items() if count > 1 or not name):
        raise LabelError(f"{where}: column {doubled[0]!r} has no name or stands there twice; rename it")
    unused = [cell for i, cell in enumerate(cells) if i not in (image, labels, split)]
    if labels is not None and unused:
        notes.append(f"columns not used: {', '.join(unused)}")
    if labels is None and not unused:
        raise DataError(f"{where}: no labels in the header; add a column 'labels', or one 0/1 column per label")
    return _Columns(cells, image, labels, split)


def _csv_row(cells: list[str], columns: _Columns, where: str) -> Row:
    width = len(columns.names)
    if len(cells) < width or any(cells[width:]):
        raise DataError(
            f"{where}: {len(cells)} cells where the header has {width}; "
            "labels are separated by |, and a cell that holds the separator needs quotes"
        )
    image = cells[columns.image]
    if not image:
        raise DataError(f"{where}: no photo is named; fill in the column {columns.names[columns.image]!r}")
    split = () if columns.split is None else _split(cells[columns.split], where)
    if columns.labels is not None:
        return Row(image, spelled(cells[columns.labels].split("|")), where, split)
    labels = []
    for i, (name, cell) in enumerate(zip(columns.names, cells, strict=False)):
        if i in (columns.image, columns.split):
            continue
        if cell.lower() not in ("0", "1", "", "0.0", "1.0", "false", "true"):
            raise LabelError(
                f"{where}: {cell!r} in the column {name!r}, which is neither 0 nor 1; "
                "correct it, or put the list of labels in a column 'labels'"
            )
        if cell.lower() in ("1", "1.0", "true"):
            labels.append(name)
    return Row(image, tuple(labels), where, split)


def _json_rows(path: Path, text: str, notes: list[str]) -> Iterator[Row]:
    unused: set[str] = set()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not a line of JSON ({error}); write one object a line") from None
        yield _json_row(record, where)
        unused |= set(record) - {*IMAGE_COLUMNS, "labels", "split"}
    if unused:
        notes.append(f"keys not used: {', '.join(sorted(unused))}")


def _json_row(record: object, where: str) -> Row:
    form = 'such as {"image": "a.jpg", "labels": ["dog"]}'
    if not isinstance(record, dict):
        raise DataError(f"{where}: not a JSON object; write one a line, {form}")
    image = next((record[name] for name in IMAGE_COLUMNS if name in record), None)
    labels, split = record.get("labels", []), record.get("split") or ""
    if not isinstance(image, str) or not image.strip():
        raise DataError(f"{where}: no photo is named; give every line its image, {form}")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise LabelError(f"{where}: labels {labels!r} are not a list of words; write them {form}")
    if not isinstance(split, str):
        raise DataError(f"{where}: split {split!r} is not a word; it is train, queries or database")
    parts = _split(split, where) if "split" in record else ()
    return Row(unicodedata.normalize("NFC", image).strip(), spelled(labels), where, parts)


def _split(text: str, where: str) -> tuple[str, ...]:
    """The parts a photo belongs to; `train|database` is both."""
    words = [word.strip().lower() for word in text.split("|")]
    for word in words:
        if word not in SPLIT_WORDS:
            raise DataError(
                f"{where}: split {word!r} is unknown; "
                "write train, queries or database (query, test and gallery are understood)"
            )
    return tuple(sorted({SPLIT_WORDS[word] for word in words}))


# ── photo files ──────────────────────────────────────────────────────────────────────────────────────────


def photos_under(root: Path, suffixes: Set[str] = SUFFIXES, *, refused: list[OSError] | None = None) -> Iterator[str]:
    """Photo files in a folder and all below it, as sorted relative paths; not hidden ones, nor in those `refused`."""
    visited: set[str] = set()
    for folder, folders, files in os.walk(root, followlinks=True, onerror=None if refused is None else refused.append):
        if "collection.toml" in files:  # the photos that a collection keeps, those in its trash among them, are its own
            folders.clear()
            continue
        visited.add(str(Path(folder).resolve()))
        folders[:] = sorted(
            name
            for name in folders
            if name[0] != "." and name != "__MACOSX" and str((Path(folder) / name).resolve()) not in visited
        )
        inside = PurePath(folder).relative_to(root)
        for name in sorted(files):
            if name[0] != "." and PurePath(name).suffix.lower() in suffixes:
                yield (inside / name).as_posix()


def _from_folders(root: Path, names: Iterable[str], notes: list[str]) -> list[Row]:
    """One folder per label, possibly inside folders train, queries, database."""
    names = list(names)
    tops = {name.split("/")[0].lower() for name in names if "/" in name}
    in_parts = "train" in tops and tops <= set(SPLIT_WORDS)
    if "train" in tops and tops & {"val", "valid", "validation"}:
        raise DataError(
            f"{root}: a folder train and one for validation; name the folders train, queries and database "
            "(hyphash takes its validation photos out of the training part by itself)"
        )
    rows = []
    for name in names:
        *folders, _ = name.split("/")
        split = _split(folders[0], f"{root / name}") if in_parts and folders else ()
        label = folders[1 if in_parts else 0 :][:1]
        rows.append(Row(name, spelled(label), str(root / name), split))
    return _merge_copies(rows, root, notes)


def _merge_copies(rows: list[Row], root: Path, notes: list[str]) -> list[Row]:
    """One row for all copies of a photo, with the labels of all of them."""
    merged = []
    for copies in _same_content(rows, root):
        first = copies[0]
        for other in copies[1:]:
            if other.split != first.split:
                raise DataError(f"{other.where}: the same photo as {first.where} in another part; remove one of them")
        merged.append(replace(first, labels=spelled(label for row in copies for label in row.labels)))
    if len(merged) < len(rows):
        notes.append(f"photos with the same content as others, merged with them: {len(rows) - len(merged):,}")
    return sorted(merged, key=lambda row: row.image)


def _same_content(rows: list[Row], root: Path) -> list[list[Row]]:
    """The rows in groups of equal files. Only files of equal size are opened, and only alike ones are read."""
    groups = [rows]
    for key in (_size, _head, digest):
        finer: list[list[Row]] = []
        for group in groups:
            parts: dict[object, list[Row]] = defaultdict(list)
            for row in group:
                parts[key(root / row.image) if len(group) > 1 else None].append(row)
            finer += parts.values()
        groups = finer
    return groups


def _size(path: Path) -> int | Path:
    """How many bytes; empty files are no copies of each other, they are all damaged."""
    return path.stat().st_size or path


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4096)


def _from_keywords(root: Path, names: Iterable[str], notes: list[str]) -> list[Row]:
    """The keywords inside the photo files and in the sidecars beside them."""
    rows, unreadable = [], []
    for name in names:
        try:
            found = metadata.read(read_bytes(root / name), root / name)
            rows.append(Row(name, spelled(found.keywords), str(root)))
        except PhotoError:
            unreadable.append(name)
    if unreadable:
        notes.append(f"{counted(len(unreadable), 'photo')} left out, unreadable: {', '.join(unreadable[:3])}")
    return rows


_READERS = {"folders": _from_folders, "keywords": _from_keywords}
