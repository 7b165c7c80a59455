"""PhotoSource: the one type that means "some photos", wherever their bytes come from."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hyphash.errors import PhotoError
from hyphash.files import open_regular
from hyphash.photos.decode import MAX_BYTES


@runtime_checkable
class PhotoSource(Protocol):
    """Photos by number: files, a pack, an archive, a split of any of them."""

    def __len__(self) -> int: ...

    def name(self, i: int, /) -> str:
        """What people call photo `i`: its path, in a dataset relative to that, else what is unique in the source."""

    def path(self, i: int, /) -> Path | None:
        """The file of photo `i`, if it is a file."""

    def read(self, i: int, /) -> bytes:
        """The encoded photo (JPEG, PNG, …). Raises PhotoError when it cannot be read."""


@dataclass(frozen=True)
class PhotoFiles:
    """Photos that are files, anywhere or under one folder."""

    names: Sequence[str | Path]
    root: Path = Path()

    def __len__(self) -> int:
        return len(self.names)

    def name(self, i: int) -> str:
        return str(self.names[i])

    def path(self, i: int) -> Path:
        return self.root / self.names[i]

    def read(self, i: int) -> bytes:
        return read_bytes(self.path(i))


@dataclass(frozen=True)
class PhotoBytes:
    """Photos in memory, by name."""

    photos: Sequence[tuple[str, bytes]]

    def __len__(self) -> int:
        return len(self.photos)

    def name(self, i: int) -> str:
        return self.photos[i][0]

    def path(self, i: int) -> None:  # noqa: ARG002
        return None

    def read(self, i: int) -> bytes:
        return self.photos[i][1]


@dataclass(frozen=True)
class Chosen:
    """Some of the photos of a source."""

    photos: PhotoSource
    rows: Sequence[int] | NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, i: int) -> str:
        return self.photos.name(int(self.rows[i]))

    def path(self, i: int) -> Path | None:
        return self.photos.path(int(self.rows[i]))

    def read(self, i: int) -> bytes:
        return self.photos.read(int(self.rows[i]))


def read_bytes(path: str | Path, *, follow: bool = True) -> bytes:
    """The bytes of a photo file. Raises PhotoError when there are none, too many, or they cannot be read.

    Only a regular file is read: a path may have come with a collection that somebody sent. Without `follow`, no link.
    """
    path = Path(path)
    try:
        with open_regular(path, follow=follow) as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(MAX_BYTES + 1) if size <= MAX_BYTES else b""  # not all that it says is what it has
        if max(size, len(data)) > MAX_BYTES:
            raise PhotoError(
                f"{path}: {size / 1e9:.1f} GB are too much for one photo (limit {MAX_BYTES / 1e9:.1f} GB); "
                "export it smaller or leave it out"
            )
    except FileNotFoundError:
        raise PhotoError(f"{path}: there is no such photo; correct the path or leave it out") from None
    except IsADirectoryError:
        raise PhotoError(f"{path}: a folder, not a photo; name the photos in it") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        reason = getattr(error, "strerror", None) or str(error)
        raise PhotoError(f"{path}: cannot be read ({reason}); check its permissions and its disk") from error
    if not data:
        raise PhotoError(f"{path}: an empty file of 0 bytes; copy it again or leave it out")
    return data


def size_and_time(file: Path | None) -> tuple[int, int] | None:
    """Of a file, the time in ns: as long as they stay, its content is taken to. None where reading it will say why."""
    try:
        facts = file.stat() if file else None
    except (OSError, ValueError):
        return None
    return (facts.st_size, facts.st_mtime_ns) if facts else None
