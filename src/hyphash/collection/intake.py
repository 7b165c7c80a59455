"""From photos to what a collection stores of them: read, recognised, decoded and drawn small, in threads.

A photo whose path, size and time are known is not even read; one whose content is known is not decoded.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

from hyphash.datasets import with_parents
from hyphash.datasets.folder import photos_under
from hyphash.errors import LabelError, MissingExtraError, PhotoError
from hyphash.files import is_unicode
from hyphash.photos import (
    THUMBNAIL,
    Decoded,
    Metadata,
    PhotoFiles,
    PhotoSource,
    Pixels,
    Preprocessing,
    Problem,
    Raw,
    decode_for,
    decoders,
    looked_at,
    metadata,
    size_and_time,
)
from hyphash.stores import Facts, Photo, Removed, Store, merged
from hyphash.workers import batched

Labels = Sequence[Iterable[str] | None] | Mapping[str, Iterable[str]]  # None: nothing is said of this photo
Photos = str | Path | Iterable[str | Path] | PhotoSource
Place = Literal["here", "gone", "elsewhere"]
Known = tuple[int, str, Photo | None]  # a photo's number and key, and what the collection has under that key

LOOKED_UP = 512  # paths asked for at once
SETTLED = 2e9  # ns; a file this young may change again without its time changing


@dataclass(frozen=True)
class Seen:
    """A photo that was looked at, and what to store of it."""

    photo: Photo
    write: bool = False  # whether anything has to be stored
    removed: bool = False  # a person took it out of the collection, and out it stays
    pixels: Pixels | None = None  # what the network has to see
    thumbnail: bytes | None = None
    data: bytes | None = None  # the whole file, where it is to be kept
    twins: Sequence[Photo] = ()  # photos with the same content


@dataclass(frozen=True)
class _New(Raw):
    """A photo with a content that the collection does not have."""

    photo: Photo
    keep: bool

    @cached_property
    def content(self) -> str:
        return self.photo.facts.content


@dataclass(frozen=True)
class Intake:
    """Looks at photos, many at a time, ahead of the network.

    `labels` has one set for each photo, in order or by name; None: nothing is said about them.
    """

    store: Store
    preprocessing: Preprocessing
    source: PhotoSource
    labels: Labels | None = None
    _: KW_ONLY
    keep: bool = False  # whole files
    again: bool = False  # what a person took out is asked for
    decode: Callable[..., Decoded] = decode_for

    def __post_init__(self) -> None:
        if isinstance(self.labels, Sequence) and len(self.labels) != len(self.source):
            raise LabelError(f"{len(self.source)} photos but labels for {len(self.labels)}; give one set for each")

    def look(self, *, ahead: int) -> Iterator[tuple[str, Seen | Problem]]:
        """Every photo by its key, in order, each once: a list of files may name one twice.

        `ahead` of them are ready before they are asked for.
        """
        look = partial(_drawn, decode=partial(self.decode, preprocessing=self.preprocessing, small=THUMBNAIL))
        with decoders(len(self.source)) as workers:
            for (_, key, _), seen in looked_at(self._looked_up(), self._recognised, look, workers=workers, ahead=ahead):
                yield key, Problem(key, str(seen)) if isinstance(seen, PhotoError) else seen

    def _looked_up(self) -> Iterator[Known]:
        """Each photo's number and key, and what is known under that key."""
        keys = {self._key(i): i for i in range(len(self.source))}
        for some in batched(keys.items(), LOOKED_UP):
            fine = [key for key, _ in some if is_unicode(key)]
            known = {photo.path: photo for photo in self.store.find(paths=fine)}
            for key, i in some:
                yield i, key, known.get(key)

    def _key(self, i: int) -> str:
        """What the collection knows photo i by: the full path of its file, else its name."""
        file = self.source.path(i)
        return self.source.name(i) if file is None else os.path.abspath(file)  # noqa: PTH100 (keeps links)

    def _given(self, i: int, key: str) -> tuple[str, ...] | None:
        """The labels of photo i; None: nothing is said about them."""
        if isinstance(self.labels, Mapping):
            labels = self.labels.get(self.source.name(i), self.labels.get(key))
        else:
            labels = self.labels[i] if self.labels is not None else None
        return None if labels is None else with_parents(labels)

    def _recognised(self, item: Known) -> Seen | _New:
        """A photo that is known by its file, by its content or by that of another one; else what is to be decoded."""
        i, key, known = item
        if not is_unicode(key):
            raise PhotoError(f"{key!r}: its name is not Unicode; rename it")
        given = self._given(i, key)
        size, modified = _stamp(self.source.path(i))
        relabelled = known is not None and given is not None and given != known.given
        stamp = (size, modified) if modified else None
        # a photo that came before hyphash looked for cameras is read once more
        if known is not None and known.facts.camera is not None and stamp == (known.facts.size, known.facts.modified):
            photo = replace(known, given=given)
            return Seen(photo, write=relabelled)
        raw = Raw(key, self.source.read(i))
        size, content = len(raw.data), raw.content
        if known is not None and content == known.facts.content:
            facts = replace(_described(known.facts, raw), size=size, modified=modified)
            photo, touched = replace(known, facts=facts, given=given), facts != known.facts
            return Seen(photo, write=relabelled or touched)
        photo = Photo(
            id=known.id if known else 0, path=key, code=b"", labels=given or (), given=given,
            facts=Facts(content=content, size=size, modified=modified),
        )  # fmt: skip
        twins, removed = self.store.find(contents=[content]), self.store.removed(contents=[content])
        if known is None and removed and not self.again and _stays_removed(key, removed, twins):
            return Seen(photo, removed=True)
        if known is None and (back := [row for row in removed if row.trashed and row.path == key]):
            row = back[-1]  # its file came out of the trash, whoever brought it back
            before = replace(photo, id=row.id, labels=row.labels, given=row.given, refused=row.refused)
            photo = replace(merged(before, photo), id=row.id)
        if twins:
            facts = replace(_described(twins[0].facts, raw), size=size, modified=modified)
            photo = replace(photo, facts=facts, code=twins[0].code, scores=twins[0].scores)
            return Seen(photo, write=True, data=raw.data if self.keep else None, twins=twins)
        return _New(key, raw.data, photo, self.keep)


def _drawn(new: _New, *, decode: Callable[[Raw], Decoded]) -> Seen:
    found = decode(new)
    facts = replace(new.photo.facts, width=found.width, height=found.height, thumbnail_hash=found.thumbnail_hash)
    photo = replace(new.photo, facts=_with_metadata(facts, found.metadata))
    data = new.data if new.keep else None
    return Seen(photo, write=True, pixels=found.pixels, thumbnail=found.thumbnail, data=data)


def _stays_removed(key: str, removed: Sequence[Removed], twins: Sequence[Photo]) -> bool:
    """Whether a person took this photo out, here or under a name that its file had before."""
    return any(row.trashed is None and (row.path == key or not twins) for row in removed)


def _described(facts: Facts, raw: Raw) -> Facts:
    """Facts with what the file says, where they are of a time when nobody looked for it."""
    with suppress(MissingExtraError):
        return facts if facts.camera is not None else _with_metadata(facts, metadata.read(raw.data))
    return facts


def _with_metadata(facts: Facts, told: Metadata | None) -> Facts:
    if told is None:
        return facts
    return replace(facts, taken=told.taken, camera=told.camera, latitude=told.latitude, longitude=told.longitude)


def as_source(photos: Photos) -> PhotoSource:
    """Photos given as a folder, a file, a list of files, or a split."""
    if isinstance(photos, str | Path):
        path = Path(photos)
        if not path.exists():
            raise PhotoError(f"{path}: there is no such photo or folder; correct the path")
        return PhotoFiles(list(photos_under(path)), path) if is_folder(path) else PhotoFiles([path])
    return photos if isinstance(photos, PhotoSource) else PhotoFiles([Path(photo) for photo in photos])


def is_folder(photos: Photos) -> bool:
    return isinstance(photos, str | Path) and Path(photos).is_dir()


def moved_from(twins: Sequence[Photo], taken: set[int], *, shared: bool) -> Photo | None:
    """The photo with the same content whose file is gone: this one, under its former name."""
    for twin in twins:
        if twin.id not in taken and place_of(twin, shared=shared) == "gone":
            return twin
    return None


def place_of(photo: Photo, *, shared: bool) -> Place:
    """Where the file of a photo is, as far as this machine can tell.

    With a `shared` store the photo may be another machine's: then only a folder that is here can lack a file.
    """
    path = Path(photo.path)
    if not path.is_absolute() or path.exists():
        return "here"
    return "gone" if not shared or path.parent.is_dir() else "elsewhere"


def _stamp(file: Path | None) -> tuple[int, int]:
    """Size and time of a file; a time of 0 says that it proves nothing."""
    size, modified = size_and_time(file) or (0, 0)
    return size, modified if time.time_ns() - modified > SETTLED else 0
