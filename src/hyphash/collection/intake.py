"""From photos to what a collection stores of them: read, recognised, decoded and drawn small, in threads; encoded.

A photo whose path, size and time are known is not even read; one whose content is known is not decoded. Another hasher
encodes all of them anew: its codes grow beside the old ones, then all change at once.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hyphash.collection.folder import Hashers, as_hasher, bytes_of, place_of
from hyphash.collection.records import Added, AddResult, Step
from hyphash.datasets import with_parents
from hyphash.datasets.folder import photos_under
from hyphash.encoder import encode_stream
from hyphash.errors import CollectionError, LabelError, MissingExtraError, PhotoError
from hyphash.features import KeptFeatures, default_cache
from hyphash.files import is_unicode
from hyphash.hasher import Hasher, Progress
from hyphash.photos import (
    Decoded,
    PhotoBytes,
    PhotoFiles,
    PhotoSource,
    Pixels,
    Problem,
    Raw,
    decode_for,
    decoders,
    looked_at,
    metadata,
    pixels_of,
    size_and_time,
)
from hyphash.photos.decode import THUMBNAIL, Preprocessing
from hyphash.stores import Facts, Photo, Removed, Store, merged, with_derived
from hyphash.workers import Workers, batched

if TYPE_CHECKING:
    from hyphash.collection import Collection

Labels = Sequence[Iterable[str] | None] | Mapping[str, Iterable[str]]  # None: nothing is said of this photo
Photos = str | Path | Iterable[str | Path] | PhotoSource
Known = tuple[int, str, Photo | None]  # a photo's number and key, and what the collection has under that key

PATIENCE = 4096  # photos without change that are reported together
LOOKED_UP = 512  # paths asked for at once
UNREAD = "p.camera IS NULL"  # photos of a time when nobody looked for what their cameras wrote
TOGETHER = 100  # of these are read at once
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
    """Looks at photos, many at a time, ahead of the network; `labels` has one set for each, in order or by name."""

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
        """Every photo by its key, in order, each once (a list may name one twice), so many of them `ahead`."""
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
            return Seen(photo, write=relabelled or touched, data=raw.data if self.keep else None)
        photo = Photo(
            id=known.id if known else 0, path=key, code=b"", labels=given or (), given=given,
            facts=Facts(content=content, size=size, modified=modified), added=known.added if known else "",
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


def describe(collection: "Collection", progress: Progress, stop: Callable[[], bool]) -> None:
    """Look for date, camera and place in the files of photos that came before hyphash looked for these."""
    store, after, done = collection.store, 0, 0
    total: int = store.read(lambda s: s.value(f"SELECT count(*) FROM {s.tables}.photos p WHERE {UNREAD}"))
    while not stop() and (
        photos := store.read(lambda s: s.photos(f"{UNREAD} AND p.id > ?", [after], f"LIMIT {TOGETHER}"))  # noqa: B023
    ):
        facts: dict[int, Facts] = {}
        began = time.perf_counter()
        for photo in photos:
            with suppress(PhotoError):  # its file is gone, or another by now
                facts[photo.id] = _described(photo.facts, Raw(photo.path, bytes_of(collection, photo)))
        store.relabel_all({id: partial(_with_facts, facts=found) for id, found in facts.items()})
        after, done = photos[-1].id, done + len(photos)
        if facts:  # else their disk is away, and nobody needs to hear of that
            progress(min(done, total), total)
        time.sleep(time.perf_counter() - began)  # half of the time is for those who search meanwhile


def _with_facts(photo: Photo, facts: Facts) -> Photo:
    return replace(photo, facts=facts) if photo.facts.content == facts.content else photo


def _with_metadata(facts: Facts, told: metadata.Metadata | None) -> Facts:
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
    gone = (twin for twin in twins if twin.id not in taken and place_of(twin, shared=shared) == "gone")
    return next(gone, None)


def _stamp(file: Path | None) -> tuple[int, int]:
    """Size and time of a file; a time of 0 says that it proves nothing."""
    size, modified = size_and_time(file) or (0, 0)
    return size, modified if time.time_ns() - modified > SETTLED else 0


def add(
    collection: "Collection", photos: Photos, *, labels: Labels | None = None, keep: bool = False,
    again: bool | None = None, progress: Progress | None = None, batch: int | None = None, cache: Path | None = None,
) -> AddResult:  # fmt: skip
    """Add photos, or bring what is known of them up to date. Safe to stop at any moment and to run again.

    `photos` are a folder, files, or a split; `labels` has one set for each, in order or by name. Without
    labels, photos keep those they have. `keep` stores whole photos in the collection, `cache` is a folder for their
    features: another hasher over the same backbone is trained, and moved to, without a look at the photos. Photos
    that a person removed come in `again` only where that is asked for, or their files are named one by one.
    """
    result = AddResult()
    steps = collection.adding(photos, labels=labels, keep=keep, again=again, batch=batch, cache=cache)
    for step in collection.log.following(steps):
        result += step
        if progress:
            progress(step.done, step.total)
    return result


def adding(
    collection: "Collection", photos: Photos, *, labels: Labels | None = None, keep: bool = False,
    again: bool | None = None, batch: int | None = None, cache: Path | None = None,
) -> Iterator[Step]:  # fmt: skip
    """Like `add`, step by step: all photos of a step are safe on the disk when it is yielded."""
    source = as_source(photos)
    hasher = collection.hasher
    batch = batch or hasher.encoder.batch
    again = not isinstance(photos, PhotoSource) and not is_folder(photos) if again is None else again
    intake = Intake(collection.store, hasher.spec.preprocessing, source, labels, keep=keep, again=again)
    done, taken, kept = 0, set[int](), KeptFeatures.of(hasher, cache)
    rows = kept.packed_rows if kept else hasher.packed_rows
    for some in encode_stream(intake.look(ahead=batch), rows, batch=batch, most=PATIENCE):
        done += len(some)
        if kept:
            kept.keep([seen.photo.facts.content for _, seen, row in some if isinstance(seen, Seen) and row is not None])
        yield _stored(collection, some, hasher, taken, done, len(source))
    if not done or done < len(source):  # nothing at all, or files that were named twice
        yield Step((), (), len(source), len(source))
    collection.tidy()


def add_bytes(
    collection: "Collection", data: bytes, name: str, *, labels: Iterable[str] = (),
    decode: Callable[..., Decoded] = decode_for,
) -> Added:  # fmt: skip
    """Add a photo that is no file; the collection keeps it. The same bytes under the same name come once.

    `decode` stands in for `decode_for` where photos are decoded elsewhere.
    """
    key = f"{hashlib.sha256(data).hexdigest()[:16]}/{Path(name.replace(chr(92), '/')).name or 'photo'}"
    source, given, store = PhotoBytes([(key, data)]), [with_parents(labels)], collection.store

    def attempt(hasher: Hasher) -> Step:
        intake = Intake(store, hasher.spec.preprocessing, source, given, keep=True, again=True, decode=decode)
        (some,) = encode_stream(intake.look(ahead=1), hasher.packed_rows, batch=1)
        return _stored(collection, some, hasher, set(), 1, 1)

    step = collection.with_hasher(attempt)
    if step.problems:
        raise PhotoError(step.problems[0].reason)
    return step.photos[0]


def _stored(
    collection: "Collection", some: list[tuple[str, Seen | Problem, NDArray[np.uint8] | None]], hasher: Hasher,
    taken: set[int], done: int, total: int,
) -> Step:  # fmt: skip
    """Thumbnails first, truth last: what the truth speaks of is there."""
    store = collection.store
    problems = tuple(seen for _, seen, _ in some if isinstance(seen, Problem))
    fine = [(seen, row) for _, seen, row in some if isinstance(seen, Seen)]
    photos: list[Photo] = []
    for seen, row in fine:
        photo = seen.photo if row is None else with_derived(seen.photo, row, hasher.bits)
        if not photo.id and (former := moved_from(seen.twins, taken, shared=store.shared)):
            photo = replace(photo, id=former.id)
            taken.add(former.id)
        photos.append(photo)
    collection.thumbnails.put({seen.photo.facts.content: seen.thumbnail for seen, _ in fine if seen.thumbnail})
    whole = {seen.photo.facts.content: seen.data for seen, _ in fine if seen.data is not None}
    for content, data in whole.items():
        collection.originals.keep(content, data)
    written = [photo for photo, (seen, _) in zip(photos, fine, strict=True) if seen.write]
    there = [photo.id for photo in written if photo.added]  # when they were looked at
    changes = store.put(written, fingerprint=hasher.fingerprint, known=there) if written else []
    for content, data in whole.items():  # those that `compact` took for nobody's just before the photo was there
        collection.originals.keep(content, data)
    stored = {change.after.path: Added.of(change) for change in changes}
    out = {seen.photo.path for seen, _ in fine if seen.removed} | {photo.path for photo in written} - stored.keys()
    records = [stored.get(p.path) or Added(p.id, p.path, "removed" if p.path in out else "unchanged") for p in photos]
    return Step(tuple(records), problems, done, total)


# ── another hasher ───────────────────────────────────────────────────────────────────────────────────────


def reindex(
    collection: "Collection", hasher: Hasher | str | Path, *, progress: Progress | None = None
) -> tuple[Problem, ...]:
    """Move to another hasher. The old one answers until all codes are there; then all change at once.

    Stopped and run again it goes on where it was. Photos whose files are gone or have changed are encoded
    from their thumbnails and reported.
    """
    new, store = as_hasher(hasher), collection.store
    Hashers(collection.folder).install(new)
    if new.fingerprint == store.state().fingerprint:
        return ()
    store.prepare(new.fingerprint, new.bits)
    problems: dict[str, Problem] = {}  # photos that could not be encoded from their files, by path
    workers, kept = decoders(len(collection)), KeptFeatures.of(new, default_cache())
    while not _switched(collection, new.fingerprint):  # photos that came or changed meanwhile make another round
        after, done, total = 0, 0, len(collection)
        while photos := store.pending(new.encoder.batch, after=after):
            after = photos[-1].id
            rows = kept.rows_of([photo.facts.content for photo in photos]) if kept else {}
            coded = [with_derived(p, rows[p.facts.content], new.bits) for p in photos if p.facts.content in rows]
            others = [photo for photo in photos if photo.facts.content not in rows]
            stream = _decoded(collection, new, others, workers, problems)
            for some in encode_stream(stream, new.packed_rows, batch=len(photos)):
                coded += [with_derived(photo, row, new.bits) for photo, _, row in some if row is not None]
            store.put_coming(coded, fingerprint=new.fingerprint)
            done += len(photos)
            if progress:
                progress(min(done, total), total)
    collection.tidy()
    collection.current_hasher()
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
        return Raw(photo.path, bytes_of(collection, photo))

    look = partial(pixels_of, preprocessing=hasher.encoder.preprocessing)
    for photo, seen in looked_at(photos, read, look, workers=workers, ahead=len(photos)):
        if not isinstance(seen, PhotoError):
            yield photo, seen
            continue
        if (small := collection.thumbnails.get(photo.facts.content)) is not None:
            yield photo, look(Raw(photo.path, small))
        elif collection.store.find(contents=[photo.facts.content]):
            raise CollectionError(
                f"{seen}; its thumbnail is not here either. Bring the photo back or remove it (photo {photo.id}), "
                "then run the same command again; until then the old hasher answers"
            )
        why = str(seen) if small is None else f"{seen} (encoded from its thumbnail)"
        problems[photo.path] = Problem(photo.path, why)
