"""From photos to what a collection stores of them: read, recognised, decoded and drawn small, in threads.

A photo whose path, size and time are known is not even read; one whose content is known is not decoded.
"""

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from hyphash.collection.records import Status
from hyphash.datasets import Files, spelled
from hyphash.datasets.folder import photos_under
from hyphash.decoding import Decoders, File, in_threads
from hyphash.engines import Engine, Photo
from hyphash.errors import LabelError, PhotoError
from hyphash.hasher import PhotoFiles, Problem, Readable
from hyphash.photos import Decoded, Preprocessing, decode_for

Labels = Sequence[Iterable[str]] | Mapping[str, Iterable[str]]
Photos = str | Path | Iterable[str | Path] | Readable
Place = Literal["here", "gone", "elsewhere"]
Known = tuple[int, str, Photo | None]  # a photo's number and key, and what the collection has under that key

LOOKED_UP = 512  # paths asked for at once
THUMBNAIL = 256
SETTLED = 2e9  # ns; a file this young may change again without its time changing


@dataclass(frozen=True)
class Source:
    """Photos on their way in, with the labels that they come with."""

    photos: Readable
    labels: Labels | None = None

    def __post_init__(self) -> None:
        if isinstance(self.labels, Sequence) and len(self.labels) != len(self.photos):
            raise LabelError(f"{len(self.photos)} photos but labels for {len(self.labels)}; give one set for each")

    def __len__(self) -> int:
        return len(self.photos)

    def numbers(self) -> Iterable[int]:
        """The photos, each once: a list of files may name one twice."""
        if isinstance(self.photos, PhotoFiles):
            return {self.key(i): i for i in range(len(self))}.values()
        return range(len(self))

    def file(self, i: int) -> Path | None:
        """The file of photo i, if it is one."""
        if isinstance(self.photos, PhotoFiles):
            return self.photos.paths[i]
        path = getattr(self.photos, "path", None)
        return cast("Path | None", path(i)) if path else None

    def key(self, i: int) -> str:
        """What the collection knows photo i by: the full path of its file, else its name."""
        file = self.file(i)
        return self.photos.name(i) if file is None else os.path.abspath(file)  # noqa: PTH100 (keeps links)

    def given(self, i: int) -> tuple[str, ...] | None:
        """The labels of photo i; None: nothing is said about them."""
        if self.labels is None:
            return None
        if isinstance(self.labels, Mapping):
            name = self.photos.name(i)
            labels = self.labels.get(name, self.labels.get(self.key(i)))
            return None if labels is None else spelled(labels)
        return spelled(self.labels[i])


def as_source(photos: Photos, labels: Labels | None) -> Source:
    """Photos given as a folder, a file, a list of files, or a split."""
    if isinstance(photos, str | Path):
        path = Path(photos)
        if not path.exists():
            raise PhotoError(f"{path}: there is no such photo or folder; correct the path")
        if path.is_dir():
            return Source(Files(path, list(photos_under(path))), labels)
        return Source(PhotoFiles([path]), labels)
    if hasattr(photos, "read") and hasattr(photos, "name"):
        return Source(cast(Readable, photos), labels)
    return Source(PhotoFiles([Path(photo) for photo in photos]), labels)


@dataclass(frozen=True)
class Seen:
    """A photo that was looked at: what to store of it, or why it cannot be."""

    photo: Photo | None = None
    status: Status = "unchanged"
    write: bool = False  # whether anything has to be stored
    pixels: NDArray[np.uint8] | None = None  # what the network has to see
    thumbnail: bytes | None = None
    data: bytes | None = None  # the whole file, where it is to be kept
    twins: Sequence[Photo] = field(default=())  # photos with the same content
    problem: Problem | None = None


class Intake:
    """Looks at photos, many at a time, ahead of the network."""

    def __init__(self, engine: Engine, preprocessing: Preprocessing, *, keep: bool = False) -> None:
        self.engine = engine
        self.preprocessing = preprocessing
        self.keep = keep

    def look(self, source: Source, *, ahead: int) -> Iterator[Seen]:
        """Every photo of the source in order; `ahead` of them are ready before they are asked for."""
        with Decoders.for_photos(len(source)) as decoders:
            look = partial(self._seen, source, decoders)
            yield from in_threads(look, self._looked_up(source), workers=decoders.threads, ahead=ahead)

    def _looked_up(self, source: Source) -> Iterator[Known]:
        """Each photo's number and key, and what is known under that key."""
        keys = ((i, source.key(i)) for i in source.numbers())
        while some := list(islice(keys, LOOKED_UP)):
            fine = [key for _, key in some if _storable(key)]
            known = {photo.path: photo for photo in self.engine.find(paths=fine)}
            for i, key in some:
                yield i, key, known.get(key)

    def _seen(self, source: Source, decoders: Decoders, item: Known) -> Seen:
        try:
            return self._look(source, decoders, *item)
        except PhotoError as error:
            return Seen(problem=Problem(item[1], str(error)))

    def _look(self, source: Source, decoders: Decoders, i: int, key: str, known: Photo | None) -> Seen:
        if not _storable(key):
            raise PhotoError(f"{key!r}: its name is not Unicode; rename it")
        given = source.given(i)
        size, modified = _times(source.file(i))
        relabelled = known is not None and given is not None and given != known.given
        if known is not None and modified and (size, modified) == (known.size, known.modified):
            photo = replace(known, given=given)
            return Seen(photo, "updated" if relabelled else "unchanged", write=relabelled)
        data = source.photos.read(i)
        content = hashlib.sha256(data).hexdigest()
        if known is not None and content == known.content:
            touched = (len(data), modified) != (known.size, known.modified)
            photo = replace(known, size=len(data), modified=modified, given=given)
            return Seen(photo, "updated" if relabelled else "unchanged", write=relabelled or touched)
        photo = Photo(
            id=known.id if known else 0, path=key, content=content, size=len(data), modified=modified,
            code=b"", labels=given or (), given=given,
        )  # fmt: skip
        return self._new(photo, data, "updated" if known else "added", decoders)

    def _new(self, photo: Photo, data: bytes, status: Status, decoders: Decoders) -> Seen:
        """A photo whose content is new under its path."""
        kept = data if self.keep else None
        if twins := self.engine.find(contents=[photo.content]):
            twin = twins[0]
            photo = replace(photo, width=twin.width, height=twin.height, look=twin.look, code=twin.code)
            return Seen(photo, status, write=True, data=kept, twins=twins)
        (found,) = decoders.each(partial(_drawn, preprocessing=self.preprocessing), [File(photo.path, data)])
        if isinstance(found, PhotoError):
            raise found
        photo = replace(photo, width=found.width, height=found.height, look=found.look)
        return Seen(photo, status, write=True, pixels=found.pixels, thumbnail=found.thumbnail, data=kept)


def _drawn(file: File, *, preprocessing: Preprocessing) -> Decoded:
    return decode_for(preprocessing, file.data, file.name, small=THUMBNAIL)


def moved_from(twins: Sequence[Photo], taken: set[int], *, shared: bool) -> Photo | None:
    """The photo with the same content whose file is gone: this one, under its former name."""
    for twin in twins:
        if twin.id not in taken and place_of(twin, shared=shared) == "gone":
            return twin
    return None


def place_of(photo: Photo, *, shared: bool) -> Place:
    """Where the file of a photo is, as far as this machine can tell.

    With a `shared` engine the photo may be another machine's: then only a folder that is here can lack a file.
    """
    path = Path(photo.path)
    if not path.is_absolute() or path.exists():
        return "here"
    return "gone" if not shared or path.parent.is_dir() else "elsewhere"


def _times(file: Path | None) -> tuple[int, int]:
    """Size and time of a file; a time of 0 says that it proves nothing."""
    if file is None:
        return 0, 0
    try:
        facts = file.stat()
    except (OSError, ValueError):
        return 0, 0  # reading it will say what is wrong
    settled = time.time_ns() - facts.st_mtime_ns > SETTLED
    return facts.st_size, facts.st_mtime_ns if settled else 0


def _storable(text: str) -> bool:
    """Whether a path is Unicode: file systems allow names that are not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
