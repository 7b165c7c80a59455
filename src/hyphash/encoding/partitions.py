"""A source cut into partitions, one for each shard: files of photos, tar files (WebDataset), row groups of Parquet.

The same source is cut in the same way every time, so that a shard's number always means the same photos.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hyphash.datasets import Finder
from hyphash.datasets.folder import JSON_LINES, TABLES, read_table
from hyphash.encoding import locations
from hyphash.encoding.locations import Labels, PhotoRef
from hyphash.encoding.row_groups import RowGroups, row_groups
from hyphash.encoding.tars import Tar
from hyphash.errors import ConfigError, DataError
from hyphash.photos import SUFFIXES

PER_SHARD = 10_000
FEWEST, SHARDS = 64, 64  # few photos still make many shards, for many workers
LISTS = (".txt", ".lst", ".list")
TARS = (".tar", ".tar.gz", ".tgz")


@dataclass(frozen=True)
class Files:
    """Photos that are files of their own."""

    locations: tuple[str, ...]
    labels: tuple[Labels, ...]

    @property
    def count(self) -> int | None:
        return len(self.locations)

    def photos(self) -> Iterator[PhotoRef]:
        for location, labels in zip(self.locations, self.labels, strict=True):
            yield PhotoRef(location, labels=labels)


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
        raise DataError(
            f"{source}: {' and '.join(sorted(kinds))} side by side; choose with a pattern, such as '{source}/*.tar'"
        )
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
    if not locations.exists(location):
        if any(sign in source for sign in "*?["):
            return dict.fromkeys(name for name in locations.matching(location) if _kind(name) != "other files")
        raise DataError(f"{source}: there is no such file or folder; correct the path")
    if locations.is_folder(location):
        return dict.fromkeys(name for name in locations.files_under(location) if _kind(name) != "other files")
    suffix = PurePosixPath(location).suffix.lower()
    if suffix in LISTS:
        return dict.fromkeys(_listed(location))
    if suffix in TABLES + JSON_LINES:
        return dict(_labelled(location))
    if _kind(location) == "other files":
        raise DataError(
            f"{source}: neither a photo nor a .tar, a .parquet, a list (.txt), a label file (.csv, .jsonl); convert it"
        )
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
