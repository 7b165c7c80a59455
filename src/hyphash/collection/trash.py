"""The trash of a collection: files that people took out lie in its folder until they come back or it is emptied.

Nothing is deleted by itself, and nothing is lost: the store remembers the photo and what was said of it before its file
moves, and a file that is found again where it was (brought back, or never moved because of a crash) is that photo. Its
sidecars go after it, and come back before it.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from hyphash.errors import NoSuchPhotoError, NotMovedError, PhotoError, StorageError
from hyphash.files import digest, disk_errors, is_old, make_folder, move
from hyphash.photos import SUFFIXES, PhotoBytes, Raw, read_bytes
from hyphash.photos.metadata import own_sidecars, sidecars
from hyphash.stores import Photo, Removed

if TYPE_CHECKING:
    from hyphash.collection import Collection
    from hyphash.collection.intake import Photos

FOLDER = "trash"


@contextmanager
def moving() -> Iterator[None]:
    """Of files that are moved: whatever is in the way is one kind of error."""
    try:
        yield
    except (PhotoError, StorageError) as error:
        raise NotMovedError(str(error)) from error


def place_in(folder: Path, id: int, path: str) -> Path:
    """Where a photo of a collection lies in its trash; not as the store says, which somebody may have sent."""
    return folder / FOLDER / str(id) / (PurePath(path).name or "photo")


@moving()
def require_movable(collection: "Collection", photo: Photo) -> None:
    """Refuse what cannot go into the trash: no file, a link, another content by now, a folder that is read-only."""
    file = Path(photo.path)
    if file.is_symlink():
        raise NotMovedError(f"{file}: a link; what it leads to is not moved: remove the link yourself")
    if not _is_there(file):
        collection.bytes_of(photo)  # kept, or it says why not
    elif digest(file) != photo.facts.content:
        raise NotMovedError(f"{file}: has changed since it was indexed; index it again")
    elif not os.access(file.parent, os.W_OK | os.X_OK):
        raise NotMovedError(f"{file.parent}: may not be written, so {file.name} stays; check its permissions")


@moving()
def put(collection: "Collection", photos: Sequence[Photo]) -> None:
    """Move photos into the trash; the collection forgets them. What it keeps of photos that are no files, stays."""
    for photo in photos:
        require_movable(collection, photo)
    make_folder(collection.folder / FOLDER)
    collection.store.remove([photo.id for photo in photos], remember=True, trashed=str(collection.folder.resolve()))
    files = {photo.id: Path(photo.path) for photo in photos if _is_there(Path(photo.path))}
    try:
        for id, file in files.items():
            for one in (file, *(sidecar for sidecar in own_sidecars(file) if not sidecar.is_symlink())):
                move(one, place_in(collection.folder, id, str(one)))
    except StorageError:
        _take_in(collection, [file for file in files.values() if file.exists()])  # they are where they were
        raise
    collection.log.tell("trashed", [photo.path for photo in photos])


@moving()
def restore(collection: "Collection", ids: Sequence[int]) -> list[int]:
    """Bring photos back from the trash, with their numbers and all that was said of them; which."""
    rows = [row for row in (collection.store.removed(ids=ids) if ids else []) if row.trashed]
    files, kept = list[Path](), list[tuple[str, bytes]]()
    for row in rows:
        file, original = _brought_back(collection.folder, row), collection.originals.path(row.content)
        if file is not None:
            files.append(file)
        elif original is not None:
            kept.append((row.path, read_bytes(original, follow=False)))
        else:
            raise NotMovedError(f"{row.path}: its file is not here any more; it went into the trash of {row.trashed}")
    _take_in(collection, files)
    _take_in(collection, PhotoBytes(kept))
    collection.log.tell("restored", [row.path for row in rows])
    return [row.id for row in rows]


def thumbnail(collection: "Collection", id: int) -> bytes:
    """A small JPEG of a photo in the trash."""
    row = next((row for row in collection.store.removed(ids=[id]) if row.trashed), None)
    if row is None:
        raise NoSuchPhotoError(f"{collection.folder}: no photo {id} in the trash; it is back, or gone for good")
    file = collection.originals.path(row.content) or place_in(collection.folder, id, row.path)
    return collection.thumbnails.get_or_draw(row.content, lambda: Raw(file.name, read_bytes(file, follow=False)))


def _brought_back(folder: Path, row: Removed) -> Path | None:
    """The file of a photo where it was; None: it is not there, nor in the trash."""
    file, place = Path(row.path), place_in(folder, row.id, row.path)
    if place.exists():
        if not file.is_absolute() or file.suffix.lower() not in SUFFIXES:
            # a store that a stranger sent must not choose what is written where
            raise NotMovedError(f"{place}: is not brought back to {file}, no file of a photo; move it yourself")
        for one in (*sidecars(place), place):
            move(one, file.with_name(one.name))
        with suppress(OSError):
            place.parent.rmdir()
    return file if _is_there(file) else None


def _is_there(file: Path) -> bool:
    return file.is_absolute() and file.exists()


def _take_in(collection: "Collection", photos: "Photos") -> None:
    for step in collection.adding(photos, again=True, keep=isinstance(photos, PhotoBytes)):
        for problem in step.problems:
            raise NotMovedError(problem.reason)


def empty(collection: "Collection") -> int:
    """Delete what is in the trash for good; how many photos."""
    rows = collection.store.removed()
    there = (collection.folder / FOLDER).glob("*")
    left = [folder for folder in there if folder.name.isdecimal() and is_old(folder)]  # by a crash; no file of others
    for folder in (*left, *(place_in(collection.folder, row.id, row.path).parent for row in rows)):
        with disk_errors(folder), suppress(FileNotFoundError, NotADirectoryError):
            shutil.rmtree(folder)
    if rows:
        collection.store.forget_removed([row.id for row in rows])
    collection.log.tell("emptied", [row.path for row in rows])
    return len(rows)
