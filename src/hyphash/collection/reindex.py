"""Moving a collection to another hasher: new codes grow beside the old ones, then all change at once."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hyphash.collection import hashers
from hyphash.decoding import Decoders, File, in_threads, pixels_of
from hyphash.engines import Photo
from hyphash.errors import CollectionError, PhotoError
from hyphash.hasher import Hasher, Problem, Progress

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
    decoders = Decoders.for_photos(len(collection))
    while not engine.switch(fingerprint):  # photos that came or changed meanwhile make another round
        after, done, total = 0, 0, len(collection)
        while photos := engine.pending(new.batch, after=after):
            after = photos[-1].id
            problems |= _encode(collection, new, photos, decoders)
            done += len(photos)
            if progress:
                progress(min(done, total), total)
    engine.settle()
    return tuple(problems.values())


def _encode(collection: "Collection", hasher: Hasher, photos: list[Photo], decoders: Decoders) -> dict[str, Problem]:
    """Store the new codes of some photos; those that could not be encoded from their files."""
    found: list[Photo] = []
    pixels: list[NDArray[np.uint8]] = []
    problems: dict[str, Problem] = {}

    def look(photo: Photo) -> tuple[Photo, NDArray[np.uint8] | None, str]:
        return photo, *_pixels(collection, hasher, photo, decoders)

    for photo, image, why in in_threads(look, photos, workers=decoders.threads, ahead=len(photos)):
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


def _pixels(
    collection: "Collection", hasher: Hasher, photo: Photo, decoders: Decoders
) -> tuple[NDArray[np.uint8] | None, str]:
    """What the network has to see of a photo: the file, else its thumbnail; and what was wrong with the file."""
    look = partial(pixels_of, preprocessing=hasher.spec.preprocessing)
    try:
        (seen,) = decoders.each(look, [File(photo.path, collection.bytes_of(photo))])
    except PhotoError as error:
        seen = error
    if not isinstance(seen, PhotoError):
        return seen, ""
    small = collection.pictures.get(photo.content)
    return (
        (None, str(seen)) if small is None else (look(File(photo.path, small)), f"{seen} (encoded from its thumbnail)")
    )
