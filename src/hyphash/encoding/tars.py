"""Tar files of samples: neighbours with one name and several endings (WebDataset), read from front to back, once."""

import json
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import ClassVar, NamedTuple

from hyphash.datasets.folder import LABEL_COLUMNS
from hyphash.encoding import locations
from hyphash.encoding.locations import Labels, PhotoRef, as_labels, unreachable
from hyphash.errors import PhotoError
from hyphash.photos import MAX_BYTES, SUFFIXES

NOTES: tuple[str, ...] = (".json", ".txt", ".cls")
MAX_NOTE = 1 << 20  # bytes of labels that come with a photo
HELD = 1 << 28  # bytes of photos of one sample that wait for labels which may follow them


@dataclass(frozen=True)
class Tar:
    """All photos of a tar file."""

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
            yield self._none(f"damaged or cut off after {found:,} photos ({error}); copy it again")
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
