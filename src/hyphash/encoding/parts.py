"""A source cut into parts, one for each shard: files of photos, tar files (WebDataset), rows of Parquet.

The same source is cut in the same way every time, so that a shard's number always means the same photos.
"""

import json
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from hyphash.datasets import Finder, spelled
from hyphash.datasets.folder import JSON_LINES, LABEL_COLUMNS, TABLES, read_table
from hyphash.encoding import places
from hyphash.errors import ConfigError, DataError, MissingExtraError, PhotoError
from hyphash.photos import MAX_BYTES, SUFFIXES

PER_SHARD = 10_000
FEWEST, SHARDS = 64, 64  # few photos still make many shards, for many workers
LISTS = (".txt", ".lst", ".list")
TARS = (".tar", ".tar.gz", ".tgz")
IMAGE_COLUMNS = ("image", "photo", "img", "jpg", "jpeg", "png", "webp", "bytes", "image_bytes", "content")
NAME_COLUMNS = ("path", "name", "file", "filename", "file_name", "key", "__key__", "id", "url")
NOTES: tuple[str, ...] = (".json", ".txt", ".cls")
MAX_NOTE = 1 << 20  # bytes of labels that come with a photo
HELD = 1 << 28  # bytes of photos of one sample that wait for labels which may follow them

PYARROW = (ValueError, NotImplementedError, OSError)  # what its own errors are

Labels = tuple[str, ...] | None  # None: the source says nothing about them


@dataclass(frozen=True)
class Held:
    """The bytes of a photo that is in memory already."""

    data: bytes

    def __call__(self) -> bytes:
        return self.data


@dataclass(frozen=True)
class Raw:
    """A photo in its source, fit to travel to another process. `read` may raise PhotoError."""

    name: str  # what it is known by: the full path of a file, else a URL with #its-name-inside
    read: Callable[[], bytes]
    labels: Labels = None


@dataclass(frozen=True)
class Photos:
    """Photos that are files of their own."""

    places: tuple[str, ...]
    labels: tuple[Labels, ...] | None = None

    @property
    def count(self) -> int | None:
        return len(self.places)

    def raws(self) -> Iterator[Raw]:
        for i, place in enumerate(self.places):
            yield Raw(place, partial(places.read, place), self.labels[i] if self.labels else None)


@dataclass(frozen=True)
class Tar:
    """A tar file of samples: neighbours with one name and several endings (WebDataset)."""

    place: str
    size: int

    @property
    def count(self) -> int | None:
        return None

    def raws(self) -> Iterator[Raw]:
        """Read from front to back, once. Where the file is cut off, a photo that cannot be read stands for the rest."""
        seen, found = 0, 0
        try:
            with places.opened(self.place) as stream, tarfile.open(fileobj=stream, mode="r|*") as tar:
                for sample in _samples(tar):
                    seen += 1
                    for raw in _from_sample(sample, self.place):
                        found += 1
                        yield raw
        except (tarfile.TarError, EOFError, zlib.error) as error:
            reason = f"{self.place}: damaged or cut off after {found:,} photos ({error}); copy it again"
            yield Raw(self.place, partial(_refuse, reason))
        except OSError as error:
            raise _unreachable(self.place, error) from error
        else:
            if not found:
                yield Raw(self.place, partial(_refuse, f"{self.place}: no photo among {seen:,} samples; leave it out"))


@dataclass(frozen=True)
class Rows:
    """Row groups `first` … `last` (exclusive) of a Parquet file with photos in it."""

    place: str
    size: int
    first: int
    last: int
    rows: int
    before: int  # rows of the file that come before these

    @property
    def count(self) -> int | None:
        return self.rows

    def raws(self) -> Iterator[Raw]:
        """Group by group. Where one is damaged, a photo that cannot be read stands for what is left of it."""
        try:
            with places.opened(self.place) as stream, _parquet().ParquetFile(stream) as file:
                columns, before = _Columns.of(file.schema_arrow, self.place), self.before
                for group in range(self.first, self.last):
                    rows = file.metadata.row_group(group).num_rows
                    yield from self._group(file, columns, group, before, before + rows)
                    before += rows
        except PYARROW as error:  # it was whole when it was cut
            yield self._lost(error, self.before, self.before + self.rows)

    def _group(self, file: Any, columns: "_Columns", group: int, row: int, end: int) -> Iterator[Raw]:
        try:
            for batch in file.iter_batches(FEWEST, row_groups=[group], columns=columns.wanted):
                for record in batch.to_pylist():
                    yield columns.raw(record, self.place, row)
                    row += 1
        except PYARROW as error:
            yield self._lost(error, row, end)

    def _lost(self, error: Exception, row: int, end: int) -> Raw:
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno):
            raise _unreachable(self.place, error) from error  # a disk's or a network's, which pyarrow passes on
        told = " ".join(str(error).split())  # some of pyarrow's go over several lines
        reason = f"{self.place}: rows {row:,} to {end - 1:,} are damaged ({told}); copy it again"
        return Raw(f"{places.as_url(self.place)}#{row}", partial(_refuse, reason))


Part = Photos | Tar | Rows


def cut(source: str, *, per_shard: int | None = None) -> list[Part]:
    """The parts of a folder, a list, a pattern, tar files or Parquet files, here or behind a URL."""
    if per_shard is not None and per_shard < 1:
        raise ConfigError(f"{per_shard} photos a shard; it must be at least 1")
    given = dict(_files(source))  # each once
    kinds = {_kind(name) for name in given}
    if not kinds:
        raise DataError(f"{source}: no photos, .tar or .parquet files are here; correct the path")
    if len(kinds) > 1:
        raise DataError(
            f"{source}: {' and '.join(sorted(kinds))} side by side; choose with a pattern, such as '{source}/*.tar'"
        )
    kind = kinds.pop()
    if kind == "photos":
        return list(_photos(given, per_shard))
    if kind == "tar files":
        return [Tar(name, places.size(name)) for name in given]
    return [part for name in given for part in _rows(name, per_shard or PER_SHARD)]


def _photos(given: dict[str, Labels], per_shard: int | None) -> Iterator[Photos]:
    names = tuple(given)
    many = per_shard or min(PER_SHARD, max(FEWEST, -(-len(names) // SHARDS)))
    said = any(labels is not None for labels in given.values())
    for start in range(0, len(names), many):
        some = names[start : start + many]
        yield Photos(some, tuple(given[name] for name in some) if said else None)


def _rows(place: str, per_shard: int) -> Iterator[Rows]:
    """Whole row groups, as many as make `per_shard` rows."""
    with places.opened(place) as stream:
        try:
            footer = _parquet().read_metadata(stream)
        except PYARROW as error:
            raise DataError(f"{place}: not a Parquet file ({error}); copy it again or leave it out") from error
    size, first, before, rows = places.size(place), 0, 0, 0
    for group in range(footer.num_row_groups):
        rows += footer.row_group(group).num_rows
        if rows >= per_shard or group == footer.num_row_groups - 1:
            yield Rows(place, size, first, group + 1, rows, before)
            first, before, rows = group + 1, before + rows, 0


# ── what a source consists of ────────────────────────────────────────────────────────────────────────────


def _files(source: str) -> list[tuple[str, Labels]]:
    """The files that a source names, with the labels that a label file gives them."""
    place = places.normal(source)
    if "{" in source and ".." in source:
        return [(name, None) for name in _expanded(place)]
    if not places.exists(place):
        if any(sign in source for sign in "*?["):
            return [(name, None) for name in places.matching(place) if _kind(name) != "other files"]
        raise DataError(f"{source}: there is no such file or folder; correct the path")
    if places.is_folder(place):
        return [(name, None) for name in places.files_under(place) if _kind(name) != "other files"]
    suffix = PurePosixPath(place).suffix.lower()
    if suffix in LISTS:
        return [(name, None) for name in _listed(place)]
    if suffix in TABLES + JSON_LINES:
        return list(_labelled(place))
    if _kind(place) == "other files":
        raise DataError(
            f"{source}: neither a photo nor a .tar, a .parquet, a list (.txt), a label file (.csv, .jsonl); convert it"
        )
    return [(place, None)]


def _kind(name: str) -> str:
    lower = name.lower()
    if lower.endswith(TARS):
        return "tar files"
    if lower.endswith(".parquet"):
        return "Parquet files"
    return "photos" if "." + lower.rpartition(".")[2] in SUFFIXES else "other files"  # faster than a Path


def _expanded(pattern: str) -> list[str]:
    """
    >>> _expanded("s3://photos/{08..10}.tar")
    ['s3://photos/08.tar', 's3://photos/09.tar', 's3://photos/10.tar']
    """
    found = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if found is None:
        return [pattern]
    numbers = range(int(found[1]), int(found[2]) + 1)
    heads = (f"{pattern[: found.start()]}{number:0{len(found[1])}}" for number in numbers)
    return [name for head in heads for name in _expanded(head + pattern[found.end() :])]


def _listed(place: str) -> Iterator[str]:
    """One file a line: a URL, a full path, or a path beside the list."""
    root = place.rpartition("/")[0]
    with places.opened(place) as stream:
        try:
            lines = stream.read().decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise DataError(f"{place}: not UTF-8 text ({error}); save the list as UTF-8") from error
    for number, line in enumerate(lines, 1):
        if name := line.strip():
            if _kind(name) == "other files":
                raise DataError(f"{place}:{number}: {name!r} is no photo, .tar or .parquet; correct the list")
            alone = places.is_remote(name) or name.startswith("/")
            yield places.normal(name if alone else f"{root}/{name}")


def _labelled(place: str) -> Iterator[tuple[str, Labels]]:
    if places.is_remote(place):
        raise DataError(f"{place}: label files are read from this machine only; copy it here")
    finder = Finder(Path(place).parent)
    for row in read_table(Path(place), []):
        yield finder.find(row.image) or places.normal(f"{finder.root}/{row.image}"), row.labels


# ── tar files ────────────────────────────────────────────────────────────────────────────────────────────


class Member(NamedTuple):
    """A photo of a sample, or a note on it."""

    name: str
    suffix: str  # the last one, in small letters
    read: Callable[[], bytes]


def _samples(tar: tarfile.TarFile) -> Iterator[list[Member]]:
    """Neighbours with one name up to the first dot: photos and notes, all others are passed over.

    Where thousands of photos begin with one name (IMG.2024.1.jpg …), they come in lots, each with all notes so far.
    """
    sample: list[Member] = []
    held = 0
    for member in tar:
        if member.isdir() or PurePosixPath(member.name).name.startswith("."):
            continue
        suffix = PurePosixPath(member.name).suffix.lower()
        if sample and _key(sample[0].name) != _key(member.name):
            yield sample
            sample, held = [], 0
        if suffix in SUFFIXES:
            if held > HELD:
                yield sample
                sample, held = [one for one in sample if one.suffix in NOTES], 0
            held += member.size
            sample.append(Member(member.name, suffix, _content(tar, member)))
        elif suffix in NOTES and member.isfile() and member.size <= MAX_NOTE:
            sample.append(Member(member.name, suffix, _content(tar, member)))
    if sample:
        yield sample


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Callable[[], bytes]:
    """What a member holds, read now: a stream does not come back."""
    if not member.isfile():
        reason = "a link in a tar file; pack what it points to (tar --dereference --hard-dereference) or leave it out"
        return partial(_refuse, f"{member.name}: {reason}")
    if member.size > MAX_BYTES:
        return partial(_refuse, f"{member.name}: {member.size / 1e9:.1f} GB are too much for one photo; leave it out")
    file = tar.extractfile(member)
    data = file.read() if file else b""
    return Held(data)


def _key(name: str) -> str:
    """
    >>> _key("2024/a.b.jpg")
    '2024/a'
    """
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.partition(".")[0]


def _from_sample(sample: list[Member], place: str) -> Iterator[Raw]:
    """Every photo of a sample. Labels are those beside it under its own name, else under the sample's."""
    notes = {(one.name[: -len(one.suffix)], one.suffix): one.read for one in sample if one.suffix in NOTES}
    for photo in sample:
        if photo.suffix in SUFFIXES:
            stems = (photo.name[: -len(photo.suffix)], _key(photo.name))
            beside = [(note, notes[stem, note]()) for stem in stems for note in NOTES if (stem, note) in notes]
            yield Raw(f"{places.as_url(place)}#{photo.name}", photo.read, _labels_beside(beside))


def _labels_beside(notes: Iterable[tuple[str, bytes]]) -> Labels:
    """Labels from `labels` in .json, from the lines of .txt, or from .cls as it stands; the first that has some."""
    for suffix, data in notes:
        try:
            value = json.loads(data) if suffix == ".json" else data.decode().splitlines()
        except (ValueError, RecursionError):
            continue  # a note that cannot be read says nothing
        if isinstance(value, dict):
            value = next((value[name] for name in LABEL_COLUMNS if name in value), None)
        if (labels := _as_labels(value)) is not None:
            return labels
    return None


def _as_labels(value: object) -> Labels:
    """
    >>> _as_labels("sea|dog"), _as_labels(["sea", "dog"]), _as_labels(7), _as_labels(None)
    (('dog', 'sea'), ('dog', 'sea'), ('7',), None)
    """
    if value is None or isinstance(value, dict | bytes):
        return None
    items: Iterable[object] = value if isinstance(value, list | tuple) else [value]
    return spelled(word for item in items if item is not None for word in str(item).split("|"))


# ── Parquet ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Columns:
    image: str
    name: str | None
    labels: str | None

    @classmethod
    def of(cls, schema: Any, place: str) -> "_Columns":
        binary = [field.name for field in schema if "binary" in str(field.type)]  # also struct<bytes: binary, …>
        named = [name for name in IMAGE_COLUMNS if name in binary]
        if not named and len(binary) != 1:
            raise DataError(
                f"{place}: no column with the bytes of photos among {', '.join(schema.names)}; name it 'image'"
            )
        image = (named or binary)[0]
        others = [name for name in schema.names if name != image]
        name = next((name for name in NAME_COLUMNS if name in others and name not in binary), None)
        return cls(image, name, next((name for name in LABEL_COLUMNS if name in others), None))

    @property
    def wanted(self) -> list[str]:
        return [name for name in (self.image, self.name, self.labels) if name]

    def raw(self, record: dict[str, Any], place: str, row: int) -> Raw:
        photo: Any = record[self.image]
        inside = record.get(self.name or "")
        if isinstance(photo, dict):  # as Hugging Face writes photos
            photo, inside = photo.get("bytes"), photo.get("path") if inside is None else inside
        name = f"{places.as_url(place)}#{row}{'' if inside is None else f'/{inside}'}"  # names alone may repeat
        read = Held(photo) if photo else partial(_refuse, f"{name}: no photo in this row; leave it out")
        return Raw(name, read, _as_labels(record.get(self.labels or "")))


def _refuse(reason: str) -> bytes:
    raise PhotoError(reason)


def _unreachable(place: str, error: OSError) -> DataError:
    """A file that cannot be read any further, which is no fault of its own: what is left may come another time."""
    return DataError(f"{place}: reading ended ({error}); shards that are done stay done, the same command goes on")


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("Parquet", "cluster") from error
    return pyarrow.parquet
