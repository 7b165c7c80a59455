"""Moving a collection to another hasher: new codes grow beside the old ones, then all change at once."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hyphash.collection import hashers
from hyphash.engines import Photo
from hyphash.errors import CollectionError, PhotoError
from hyphash.hasher import BATCH, Hasher, Problem, Progress, in_threads
from hyphash.photos import decode

if TYPE_CHECKING:
    from hyphash.collection import Collection


def reindex(collection: "Collection", hasher: Hasher | str | Path, progress: Progress | None) -> tuple[Problem, ...]:
    """Encode every photo with the new hasher, store its codes, switch; see Collection.reindex."""
    fingerprint = hashers.install(hasher, collection.folder)
    new = hasher if isinstance(hasher, Hasher) else hashers.stored(collection.folder, fingerprint)
    engine = collection.engine
    if fingerprint == engine.state().fingerprint:
        return ()
    engine.prepare(fingerprint, new.bits)
    problems: dict[str, Problem] = {}
    while not engine.switch(fingerprint):  # photos that came or changed meanwhile make another round
        after, done, total = 0, 0, len(collection)
        while photos := engine.pending(BATCH, after=after):
            after = photos[-1].id
            problems |= _encode(collection, new, photos)
            done += len(photos)
            if progress:
                progress(min(done, total), total)
    engine.settle()
    return tuple(problems.values())


def _encode(collection: "Collection", hasher: Hasher, photos: list[Photo]) -> dict[str, Problem]:
    """Store the new codes of some photos; those that could not be encoded from their files."""
    found: list[Photo] = []
    pixels: list[NDArray[np.uint8]] = []
    problems: dict[str, Problem] = {}

    def look(photo: Photo) -> tuple[Photo, NDArray[np.uint8] | None, str]:
        return photo, *_pixels(collection, hasher, photo)

    for photo, image, why in in_threads(look, photos, workers=os.cpu_count() or 1, ahead=len(photos)):
        if image is not None:
            found.append(photo)
            pixels.append(image)
        elif collection.engine.find(contents=[photo.content]):
            raise CollectionError(
                f"{why}; its thumbnail is not here either. Bring the photo back or remove it (photo {photo.id}), "
                "then run the same command again; until then the old hasher answers"
            )
        if why:
            problems[photo.path] = Problem(photo.path, why)
    if pixels:
        codes = hasher.to_codes(hasher.outputs_of_pixels(np.stack(pixels))).packed
        coded = [replace(photo, code=row.tobytes()) for photo, row in zip(found, codes, strict=True)]
        collection.engine.store(coded, fingerprint=hasher.fingerprint)
    return problems


def _pixels(collection: "Collection", hasher: Hasher, photo: Photo) -> tuple[NDArray[np.uint8] | None, str]:
    """What the network has to see of a photo: the file, else its thumbnail; and what was wrong with the file."""
    preprocessing = hasher.spec.preprocessing
    try:
        data = collection.bytes_of(photo)
        return preprocessing.pixels(decode(data, photo.path, at_least=preprocessing.size)), ""
    except PhotoError as error:
        small = collection.pictures.get(photo.content)
        if small is None:
            return None, str(error)
        return preprocessing.pixels(decode(small, photo.path)), f"{error} (encoded from its thumbnail)"
