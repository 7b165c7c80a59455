"""Photos: some of them, wherever their bytes come from (PhotoSource); the one safe way from bytes to pixels (`decode`),
taken by many of them at once, read in threads and decoded on all cores, a little ahead of whoever asks; and what their
files say beside the pixels (`metadata`).
"""

import hashlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hyphash.errors import MissingExtraError, PhotoError
from hyphash.files import open_regular
from hyphash.machine import default_threads, keep_memory, limit_memory
from hyphash.photos import metadata
from hyphash.photos.decode import (
    FORMATS,
    MAX_BYTES,
    MAX_PIXELS,
    SUFFIXES,
    THUMBNAIL,
    VIEWS,
    Preprocessing,
    Seen,
    decode,
    dimensions,
    media_type,
    memory_to_decode,
    thumbnail,
    thumbnail_hash,
)
from hyphash.photos.metadata import Metadata
from hyphash.workers import LostError, Workers, batched, in_threads

__all__ = [
    "FORMATS", "MAX_BYTES", "MAX_PIXELS", "SUFFIXES", "THUMBNAIL", "VIEWS", "Chosen", "Decoded", "Metadata",
    "PhotoBytes", "PhotoFiles", "PhotoSource", "Pixels", "Preprocessing", "Problem", "Raw", "decode", "decode_for",
    "decoded", "decoders", "dimensions", "looked_at", "media_type", "memory_to_decode", "picture_of", "pixels_of",
    "prepare_to_decode", "read_bytes", "size_and_time", "thumbnail", "thumbnail_hash",
]  # fmt: skip

FEW_CORES = 3  # up to here threads do as well
PHOTOS_EACH = 64  # that make it worth while to start another process
TOGETHER = 8  # photos that a process is given at once

T = TypeVar("T")
R = TypeVar("R")
Pixels = NDArray[np.uint8]


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
            most = f"{size / 1e9:.1f} GB are too much for one photo (limit {MAX_BYTES / 1e9:.1f} GB)"
            raise PhotoError(f"{path}: {most}; export it smaller or leave it out")
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


@dataclass(frozen=True)
class Problem:
    """A photo that could not be used, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Raw:
    """The content of a photo file, on its way to be decoded."""

    name: str
    data: bytes

    @cached_property
    def content(self) -> str:
        """What it is known by wherever it lies: SHA-256 of the bytes, in hex."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class Decoded:
    """What is taken from the file of a photo: the input of a network, and what is known of the photo besides."""

    pixels: Pixels
    content: str
    size: int  # of the file, in bytes
    width: int
    height: int
    thumbnail_hash: bytes
    thumbnail: bytes | None = None
    metadata: Metadata | None = None  # of the file itself


def decoders(photos: int, *, among: int = 1) -> Workers:
    """As many workers as pay for so many photos, on cores that `among` such processes share."""
    cores = default_threads() // among
    return Workers(min(cores, photos // PHOTOS_EACH) if cores > FEW_CORES else 0)


def decoded(
    source: PhotoSource, preprocessing: Preprocessing, *, workers: Workers | None = None
) -> Iterator[tuple[int, Pixels | Problem]]:
    """Each photo in order as pixels, or the reason why not."""

    def read(i: int) -> Raw:
        return Raw(source.name(i), source.read(i))

    look = partial(pixels_of, preprocessing=preprocessing)
    with nullcontext(workers) if workers else decoders(len(source)) as pool:
        for i, found in looked_at(range(len(source)), read, look, workers=pool):
            yield i, Problem(source.name(i), str(found)) if isinstance(found, PhotoError) else found


def pixels_of(raw: Raw, *, preprocessing: Preprocessing, seen: Seen | None = None) -> Pixels:
    """What a network sees of a photo; several side by side, each at its own size. Raises PhotoError."""
    seen = {} if seen is None else seen
    parts = preprocessing.parts
    images = [decode(raw.data, raw.name, at_least=part.size, seen=seen) for part in parts]
    return preprocessing.joined([part.resized(image) for part, image in zip(parts, images, strict=True)])


def decode_for(raw: Raw, *, preprocessing: Preprocessing, small: int = 0) -> Decoded:
    """All that is needed of a photo, decoded once where that will do; with `small` also a thumbnail. Or PhotoError."""
    seen: Seen = {}
    image = decode(raw.data, raw.name, at_least=preprocessing.size, seen=seen)
    # only a JPEG may come out smaller than it is; of others the size of a header is not known before all is decoded
    shrunk = media_type(raw.data) in ("image/jpeg", "image/x-dcraw")
    sides = dimensions(raw.data, raw.name) if shrunk else image.size
    drawn = None
    if small:
        enough = max(image.size) >= small * 3 / 4 or image.size == sides  # a little smaller will do
        drawn = thumbnail(image if enough else decode(raw.data, raw.name, at_least=small, seen=seen), small)
    pixels = pixels_of(raw, preprocessing=preprocessing, seen=seen)
    told = metadata.read(raw.data)
    return Decoded(pixels, raw.content, len(raw.data), *sides, thumbnail_hash(image), drawn, told)


def picture_of(raw: Raw, size: int) -> bytes:
    """A JPEG of a photo, its longer side at most `size` pixels. Raises PhotoError."""
    return thumbnail(decode(raw.data, raw.name, at_least=size), size)


def prepare_to_decode(memory: int, _worker: int) -> None:
    """Set up a worker that decodes what strangers send: it may take so many bytes, and gives them back.

    When the program is told to end, it ends what it is at first.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    keep_memory(keep=False)
    limit_memory(memory)


def looked_at(
    items: Iterable[T], read: Callable[[T], Raw | R], look: Callable[[Raw], R], *, workers: Workers, ahead: int = 0
) -> Iterator[tuple[T, R | PhotoError]]:
    """Each item, in order, with what `look` finds in the photo that `read` gives for it, or the reason why not.

    `read` runs in a thread here, where the photos are known; `look`, which is pickled, wherever there is a core for it.
    What `read` gives that is no Raw needs no look. Up to `ahead` items are done in front. A photo that ends the process
    that looks at it is one that cannot be decoded.
    """
    together = TOGETHER if workers.processes else 1

    def load(items: list[T]) -> list[tuple[T, R | PhotoError]]:
        found = [_tried(read, item) for item in items]
        looks = iter(_looks(workers, look, [raw for raw in found if isinstance(raw, Raw)]))
        return [(item, next(looks) if isinstance(one, Raw) else one) for item, one in zip(items, found, strict=True)]

    at_once = max(ahead // together, 4 * workers.threads)
    for some in in_threads(load, batched(items, together), workers=workers.threads, ahead=at_once):
        yield from some


def _looks(workers: Workers, look: Callable[[Raw], R], raws: list[Raw]) -> list[R | PhotoError]:
    if not raws:
        return []
    try:
        return workers.call(_look_at_all, look, raws)
    except LostError:
        if len(raws) == 1:
            return [PhotoError(f"{raws[0].name}: it ended the process that decoded it; leave it out")]
    return [found for raw in raws for found in _looks(workers, look, [raw])]


def _look_at_all(look: Callable[[Raw], R], raws: list[Raw]) -> list[R | PhotoError]:
    return [_tried(look, raw) for raw in raws]


def _tried(work: Callable[[T], R], item: T) -> R | PhotoError:
    try:
        return work(item)
    except PhotoError as error:
        return error
    except MissingExtraError as error:  # one HEIC among thousands: say how it could be read, and go on
        return PhotoError(f"{getattr(item, 'name', item)}: {error}")
