"""Moving a collection to another hasher: new codes grow beside the old ones, then all change at once."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hyphash.collection import hashers
from hyphash.encoder import encode_stream
from hyphash.errors import CollectionError, PhotoError
from hyphash.features import KeptFeatures, default_cache
from hyphash.hasher import Hasher, Progress
from hyphash.photos import Pixels, Problem, Raw, decoders, looked_at, pixels_of
from hyphash.stores import Photo, with_derived
from hyphash.workers import Workers

if TYPE_CHECKING:
    from hyphash.collection import Collection


def reindex(collection: "Collection", hasher: Hasher | str | Path, progress: Progress | None) -> tuple[Problem, ...]:
    """Encode every photo with the new hasher, store its codes, switch; see Collection.reindex."""
    fingerprint = hashers.install(hasher, collection.folder)
    new = hasher if isinstance(hasher, Hasher) else hashers.stored(collection.folder, fingerprint)
    store = collection.store
    if fingerprint == store.state().fingerprint:
        return ()
    store.prepare(fingerprint, new.bits)
    problems: dict[str, Problem] = {}  # photos that could not be encoded from their files, by path
    workers, kept = decoders(len(collection)), KeptFeatures.of(new, default_cache())
    while not _switched(collection, fingerprint):  # photos that came or changed meanwhile make another round
        after, done, total = 0, 0, len(collection)
        while photos := store.pending(new.encoder.batch, after=after):
            after = photos[-1].id
            rows = kept.rows_of([photo.facts.content for photo in photos]) if kept else {}
            known = [(photo, rows[photo.facts.content]) for photo in photos if photo.facts.content in rows]
            if known:
                coded = [with_derived(photo, row, new.bits) for photo, row in known]
                store.put_coming(coded, fingerprint=fingerprint)
            others = [photo for photo in photos if photo.facts.content not in rows]
            stream = _decoded(collection, new, others, workers, problems)
            for some in encode_stream(stream, new.packed_rows, batch=len(photos)):
                coded = [with_derived(photo, row, new.bits) for photo, _, row in some if row is not None]
                store.put_coming(coded, fingerprint=fingerprint)
            done += len(photos)
            if progress:
                progress(min(done, total), total)
    collection.tidy()
    return tuple(problems.values())


def _switched(collection: "Collection", fingerprint: str) -> bool:
    """Take the new codes into use if all are there; the searcher gets ready first, so that nobody waits for it."""
    if collection.store.pending(1):
        return False
    collection.searcher.prepare()
    return collection.store.switch(fingerprint)


def _decoded(
    collection: "Collection", hasher: Hasher, photos: list[Photo], workers: Workers, problems: dict[str, Problem]
) -> Iterator[tuple[Photo, Pixels]]:
    """What the network has to see of each photo: the file, else its thumbnail; `problems` tell of the file."""

    def read(photo: Photo) -> Raw:
        return Raw(photo.path, collection.bytes_of(photo))

    look = partial(pixels_of, preprocessing=hasher.encoder.preprocessing)
    for photo, seen in looked_at(photos, read, look, workers=workers, ahead=len(photos)):
        if not isinstance(seen, PhotoError):
            yield photo, seen
            continue
        small = collection.thumbnails.get(photo.facts.content)
        if small is not None:
            yield photo, look(Raw(photo.path, small))
        elif collection.store.find(contents=[photo.facts.content]):
            raise CollectionError(
                f"{seen}; its thumbnail is not here either. Bring the photo back or remove it (photo {photo.id}), "
                "then run the same command again; until then the old hasher answers"
            )
        why = str(seen) if small is None else f"{seen} (encoded from its thumbnail)"
        problems[photo.path] = Problem(photo.path, why)
