"""A source cut into partitions, one for each shard: files of photos, tar files (WebDataset), row groups of Parquet.

The same source is cut in the same way every time, so that a shard's number always means the same photos.
"""

import json
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NamedTuple

from hyphash.datasets import Finder
from hyphash.datasets.folder import JSON_LINES, LABEL_COLUMNS, TABLES, read_table
from hyphash.encoding import locations
from hyphash.encoding.locations import Labels, PhotoRef, as_labels, unreachable
from hyphash.errors import ConfigError, DataError, PhotoError, counted, needs_extra
from hyphash.photos import MAX_BYTES, SUFFIXES

PER_SHARD = 10_000
FEWEST, SHARDS = 64, 64  # few photos still make many shards, for many workers
LISTS = (".txt", ".lst", ".list")
TARS = (".tar", ".tar.gz", ".tgz")
NOTES: tuple[str, ...] = (".json", ".txt", ".cls")  # with labels, beside a photo in a tar file
MAX_NOTE = 1 << 20  # bytes of labels that come with a photo
HELD = 1 << 28  # bytes of photos of one sample that wait for labels which may follow them
IMAGE_COLUMNS = ("image", "photo", "img", "jpg", "jpeg", "png", "webp", "bytes", "image_bytes", "content")
NAME_COLUMNS = ("path", "name", "file", "filename", "file_name", "key", "__key__", "id", "url")
BATCH = 64  # rows read at once
PYARROW = (ValueError, NotImplementedError, OSError)  # what its own errors are


@dataclass(frozen=True)
class Files:
    """Photos that are files of their own."""

    locations: tuple[str, ...]
    labels: tuple[Labels, ...]

    @property
    def count(self) -> int | None:
        return len(self.locations)

    def photos(self) -> Iterator[PhotoRef]:
        return (PhotoRef(name, labels=labels) for name, labels in zip(self.locations, self.labels, strict=True))


@dataclass(frozen=True)
class Tar:
    """All photos of a tar file: samples, neighbours with one name and several endings (WebDataset), read once."""

    location: str
    size: int
    count: ClassVar[int | None] = None  # it tells only when it is read

    def photos(self) -> Iterator[PhotoRef]:
        """Where the file is cut off, a photo that cannot be read stands for the rest."""
        seen, found = 0, 0
        try:
            with locations.opened(self.location) as stream, tarfile.open(fileobj=stream, mode="r|*") as tar:
                for sample in _samples(tar):
                    seen += 1
                    for photo in _from_sample(sample, self.location):
                        found += 1
                        yield photo
        except (tarfile.TarError, EOFError, zlib.error) as error:
            yield self._none(f"damaged or cut off after {counted(found, 'photo')} ({error}); copy it again")
        except OSError as error:
            raise unreachable(self.location, error) from error
        else:
            if not found:
                yield self._none(f"no photo among {seen:,} samples; leave it out")

    def _none(self, reason: str) -> PhotoRef:
        return PhotoRef(self.location, PhotoError(f"{self.location}: {reason}"))


class Member(NamedTuple):
    """A photo of a sample, or a note on it."""

    name: str
    suffix: str  # the last one, in small letters
    content: bytes | PhotoError


def _samples(tar: tarfile.TarFile) -> Iterator[list[Member]]:
    """Neighbours with one name up to the first dot: photos and notes, all others are passed over.

    Where thousands of photos begin with one name (IMG.2024.1.jpg …), they come in lots, each with all notes so far.
    """
    named = (member for member in tar if not member.isdir() and not PurePosixPath(member.name).name.startswith("."))
    for _, members in groupby(named, key=lambda member: _key(member.name)):
        sample, held = list[Member](), 0
        for member in members:
            suffix = PurePosixPath(member.name).suffix.lower()
            if suffix in SUFFIXES:
                if held > HELD:
                    yield sample
                    sample, held = [one for one in sample if one.suffix in NOTES], 0
                held += member.size
            elif suffix not in NOTES or not member.isfile() or member.size > MAX_NOTE:
                continue
            sample.append(Member(member.name, suffix, _content(tar, member)))
        if sample:
            yield sample


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | PhotoError:
    """What a member holds, read now: a stream does not come back."""
    if not member.isfile():
        reason = "a link in a tar file; pack what it points to (tar --dereference --hard-dereference) or leave it out"
        return PhotoError(f"{member.name}: {reason}")
    if member.size > MAX_BYTES:
        return PhotoError(f"{member.name}: {member.size / 1e9:.1f} GB are too much for one photo; leave it out")
    file = tar.extractfile(member)
    return file.read() if file else b""


def _key(name: str) -> str:
    """
    >>> _key("2024/a.b.jpg")
    '2024/a'
    """
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.partition(".")[0]


def _from_sample(sample: list[Member], location: str) -> Iterator[PhotoRef]:
    """Every photo of a sample. Labels are those beside it under its own name, else under the sample's."""
    notes = {(one.name[: -len(one.suffix)], one.suffix): one.content for one in sample if one.suffix in NOTES}
    for photo in sample:
        if photo.suffix in SUFFIXES:
            stems = (photo.name[: -len(photo.suffix)], _key(photo.name))
            beside = [(note, notes[stem, note]) for stem in stems for note in NOTES if (stem, note) in notes]
            yield PhotoRef(f"{locations.as_url(location)}#{photo.name}", photo.content, _labels_beside(beside))


def _labels_beside(notes: Iterable[tuple[str, bytes | PhotoError]]) -> Labels:
    """Labels from `labels` in .json, from the lines of .txt, or from .cls as it stands; the first that has some."""
    for suffix, data in notes:
        if isinstance(data, PhotoError):
            continue
        try:
            value = json.loads(data) if suffix == ".json" else data.decode().splitlines()
        except (ValueError, RecursionError):
            continue  # a note that cannot be read says nothing
        if isinstance(value, dict):
            value = next((value[name] for name in LABEL_COLUMNS if name in value), None)
        if (labels := as_labels(value)) is not None:
            return labels
    return None


@dataclass(frozen=True)
class RowGroups:
    """Row groups `first` … `last` (exclusive) of a Parquet file."""

    location: str
    size: int
    first: int
    last: int
    rows: int
    before: int  # rows of the file that come before these

    @property
    def count(self) -> int | None:
        return self.rows

    def photos(self) -> Iterator[PhotoRef]:
        """Group by group. Where one is damaged, a photo that cannot be read stands for what is left of it."""
        row = self.before
        try:
            with locations.opened(self.location) as stream, pyarrow().parquet.ParquetFile(stream) as file:
                columns = _columns(file.schema_arrow, self.location)
                for group in range(self.first, self.last):
                    end = row + file.metadata.row_group(group).num_rows
                    try:
                        for batch in file.iter_batches(BATCH, row_groups=[group], columns=list(filter(None, columns))):
                            for record in batch.to_pylist():
                                yield self._photo(row, *(record.get(name) for name in columns))
                                row += 1
                    except PYARROW as error:
                        yield self._lost(error, row, end)
                    row = end
        except PYARROW as error:  # it was whole when it was cut
            yield self._lost(error, self.before, self.before + self.rows)

    def _photo(self, row: int, photo: Any, inside: Any, labels: Any) -> PhotoRef:
        if isinstance(photo, dict):  # as Hugging Face writes photos
            photo, inside = photo.get("bytes"), photo.get("path") if inside is None else inside
        name = f"{locations.as_url(self.location)}#{row}{'' if inside is None else f'/{inside}'}"  # names may repeat
        return PhotoRef(name, photo or PhotoError(f"{name}: no photo in this row; leave it out"), as_labels(labels))

    def _lost(self, error: Exception, row: int, end: int) -> PhotoRef:
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno):
            raise unreachable(self.location, error) from error  # a disk's or a network's, which pyarrow passes on
        told = " ".join(str(error).split())  # some of pyarrow's go over several lines
        reason = f"{self.location}: rows {row:,} to {end - 1:,} are damaged ({told}); copy it again"
        return PhotoRef(f"{locations.as_url(self.location)}#{row}", PhotoError(reason))


def row_groups(location: str, per_shard: int) -> Iterator[RowGroups]:
    """A Parquet file in partitions of whole row groups, as many as make `per_shard` rows."""
    with locations.opened(location) as stream:
        try:
            footer = pyarrow().parquet.read_metadata(stream)
        except PYARROW as error:
            raise DataError(f"{location}: not a Parquet file ({error}); copy it again or leave it out") from error
    size, first, before, rows = locations.size(location), 0, 0, 0
    for group in range(footer.num_row_groups):
        rows += footer.row_group(group).num_rows
        if rows >= per_shard or group == footer.num_row_groups - 1:
            yield RowGroups(location, size, first, group + 1, rows, before)
            first, before, rows = group + 1, before + rows, 0


def _columns(schema: Any, location: str) -> tuple[str, str, str]:
    """The columns with the bytes, the names and the labels of photos; empty: there is none."""
    binary = [field.name for field in schema if "binary" in str(field.type)]  # also struct<bytes: binary, …>
    named = [name for name in IMAGE_COLUMNS if name in binary]
    if not named and len(binary) != 1:
        raise DataError(f"{location}: no column with bytes of photos among {', '.join(schema.names)}; name it 'image'")
    image = (named or binary)[0]
    name = next((name for name in NAME_COLUMNS if name in schema.names and name not in binary), "")
    return image, name, next((name for name in LABEL_COLUMNS if name in schema.names and name != image), "")


def pyarrow() -> Any:
    """The package, which comes with an extra; its module `parquet` is there as well."""
    with needs_extra("cluster", "encoding to Parquet"):
        import pyarrow.parquet
    return pyarrow


Partition = Files | Tar | RowGroups


def cut(source: str, *, per_shard: int | None = None) -> list[Partition]:
    """The partitions of a folder, a list, a pattern, tar files or Parquet files, here or behind a URL."""
    if per_shard is not None and per_shard < 1:
        raise ConfigError(f"{per_shard} photos a shard; it must be at least 1")
    given = _files(source)
    kinds = {_kind(name) for name in given}
    if not kinds:
        raise DataError(f"{source}: no photos, .tar or .parquet files are here; correct the path")
    if len(kinds) > 1:
        raise DataError(f"{source}: {' and '.join(sorted(kinds))} side by side; choose some, such as '{source}/*.tar'")
    kind = kinds.pop()
    if kind == "tar files":
        return [Tar(name, locations.size(name)) for name in given]
    if kind == "Parquet files":
        return [groups for name in given for groups in row_groups(name, per_shard or PER_SHARD)]
    names, labels = tuple(given), tuple(given.values())
    many = per_shard or min(PER_SHARD, max(FEWEST, -(-len(names) // SHARDS)))
    return [Files(names[i : i + many], labels[i : i + many]) for i in range(0, len(names), many)]


def _files(source: str) -> dict[str, Labels]:
    """The files that a source names, each once, with the labels that a label file gives them."""
    location = locations.normal(source)
    if "{" in source and ".." in source:
        return dict.fromkeys(_expanded(location))
    if not locations.ask(location, "exists"):
        if any(sign in source for sign in "*?["):
            return dict.fromkeys(name for name in locations.matching(location) if _kind(name) != "other files")
        raise DataError(f"{source}: there is no such file or folder; correct the path")
    if locations.ask(location, "isdir"):
        return dict.fromkeys(name for name in locations.files_under(location) if _kind(name) != "other files")
    suffix = PurePosixPath(location).suffix.lower()
    if suffix in LISTS:
        return dict.fromkeys(_listed(location))
    if suffix in TABLES + JSON_LINES:
        return dict(_labelled(location))
    if _kind(location) == "other files":
        raise DataError(f"{source}: no photo, .tar, .parquet, list (.txt) or label file (.csv, .jsonl); convert it")
    return {location: None}


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


def _listed(location: str) -> Iterator[str]:
    """One file a line: a URL, a full path, or a path beside the list."""
    root = location.rpartition("/")[0]
    with locations.opened(location) as stream:
        try:
            lines = stream.read().decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise DataError(f"{location}: not UTF-8 text ({error}); save the list as UTF-8") from error
    for number, line in enumerate(lines, 1):
        if name := line.strip():
            if _kind(name) == "other files":
                raise DataError(f"{location}:{number}: {name!r} is no photo, .tar or .parquet; correct the list")
            alone = locations.is_remote(name) or name.startswith("/")
            yield locations.normal(name if alone else f"{root}/{name}")


def _labelled(location: str) -> Iterator[tuple[str, Labels]]:
    """The rows of a label file."""
    if locations.is_remote(location):
        raise DataError(f"{location}: label files are read from this machine only; copy it here")
    finder = Finder(Path(location).parent)
    for row in read_table(Path(location), []):
        yield finder.find(row.image) or locations.normal(f"{finder.root}/{row.image}"), row.labels
