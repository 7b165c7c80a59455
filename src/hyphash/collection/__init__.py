"""Collection = a folder: photos, labels, codes, and the hasher that made them. Nothing that it confirmed is lost.

collection.toml     which store holds the truth, and which engine searches it
collection.sqlite   the truth, where it is not on a server: paths, contents, labels, codes
codes-*.safetensors of the local engines, derived, memory-mapped; codes-*.index beside it where there are many
thumbnails.sqlite   one for each content
activity.jsonl      what happened, for people to read
trash/              files that people took out, by number, until they come back or it is emptied
originals/          photos that came as bytes
hashers/            the hasher in use, by fingerprint
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from hyphash.collection import duplicates, exchange, figures, hashers, tags
from hyphash.collection.activity import Log
from hyphash.collection.intake import Intake, Labels, Photos, Place, Seen, as_source, is_folder, moved_from, place_of
from hyphash.collection.label_query import LabelSources, roles_of
from hyphash.collection.query import QueryVector, Rank, encoded, outputs_of_code
from hyphash.collection.records import Added, AddResult, Match, Missing, Month, Ranking, Stats, Step, Timeline, Verdict
from hyphash.collection.settings import FILE as SETTINGS
from hyphash.collection.settings import Settings, read_settings, require_same
from hyphash.collection.thumbnails import Originals, Thumbnails
from hyphash.datasets import spelled, with_parents
from hyphash.encoder import encode_stream
from hyphash.errors import (
    CodesError,
    CollectionError,
    HyphashError,
    NoSuchPhotoError,
    OtherHasherError,
    PhotoError,
)
from hyphash.features import KeptFeatures
from hyphash.files import new_folder, require_plain, sweep_drafts
from hyphash.hasher import Hasher, Outputs, Progress, Tag
from hyphash.photos import Decoded, PhotoBytes, PhotoSource, Problem, decode, decode_for, read_bytes, thumbnail
from hyphash.searchers import Searcher, Selected, searcher_for
from hyphash.searchers.filters import EVERYTHING, Filter
from hyphash.stores import Photo, Session, require_hasher, store_for, with_derived
from hyphash.stores.address import name_hosts
from hyphash.workers import batched

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["AddResult", "Added", "Collection", "Match", "Missing", "Photo", "Ranking", "Stats", "Step", "Verdict"]

PATIENCE = 4096  # photos without change that are reported together
SWEPT = 100  # originals that are looked at together, while writers wait
SAMPLES, SAMPLE = 4, 500  # parts of the untagged photos, and photos in each, of which the most telling are found
MOVES = 5  # hashers that a search may meet while the collection moves from one to the next

T = TypeVar("T")


class Collection:
    """A folder of photos that can be searched.

    >>> collection = Collection.open("my-photos")                         # doctest: +SKIP
    >>> for match in collection.search(labels=["dog", "sea"], k=3):       # doctest: +SKIP
    ...     print(match.distance, match.path)
    """

    def __init__(
        self, folder: Path, searcher: Searcher, thumbnails: Thumbnails, hasher: Hasher, *, device: str
    ) -> None:
        self.folder = folder
        self.store = searcher.store
        self.searcher = searcher
        self.thumbnails = thumbnails
        self.originals = Originals(folder)
        self.log = Log(folder)
        self.hasher = hasher
        self.sources = LabelSources(self.store)
        self._usual: tuple[tuple[int, int], int | None] = (0, 0), None  # figures.usual_distance, while about so many
        self.load_hasher: Callable[[str], Hasher] = partial(hashers.stored, folder, device=device)  # by fingerprint

    @classmethod
    def create(
        cls, folder: str | Path, hasher: Hasher | str | Path, *, store: str | None = None, engine: str | None = None
    ) -> Self:
        """A new collection for a hasher, or for the run folder of one.

        With the address of a store that holds photos of the same hasher already, the folder joins it.
        """
        folder, settings = Path(folder), Settings.chosen(store, engine)
        name_hosts(store, engine)
        if (folder / SETTINGS).exists():
            raise CollectionError(f"{folder}: a collection is here already; open it, or choose another folder")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise CollectionError(f"{folder}: there are other things here; choose a new folder for the collection")
        with new_folder(folder) as draft:
            fingerprint = hashers.install(hasher, draft)
            bits = hashers.stored(draft, fingerprint).bits
            made = store_for(settings.store).create(draft, settings.store, fingerprint=fingerprint, bits=bits)
            with closing(made):
                searcher_for(settings.engine).create(draft, settings.engine, made).close()
            settings.write(draft)
        return cls.open(folder, hasher=hasher if isinstance(hasher, Hasher) else None)

    @classmethod
    def open(
        cls, folder: str | Path, *, device: str = "auto", hasher: Hasher | None = None, wait: float = 30.0
    ) -> Self:
        """The collection in a folder. Its own hasher is loaded unless the same one is given.

        Those who write wait up to `wait` seconds for each other.
        """
        folder = Path(folder)
        settings = read_settings(folder)
        # originals and what is in the trash are read without links
        inside = map(folder.glob, ("*", "hashers/*", "hashers/*/*", "originals/*", "trash/*"))
        require_plain(chain.from_iterable(inside), "a collection")
        with ExitStack() as opened:
            store = store_for(settings.store).open(folder, settings.store, wait=wait)
            opened.callback(store.close)
            searcher = searcher_for(settings.engine).open(folder, settings.engine, store)
            opened.callback(searcher.close)
            thumbnails = Thumbnails(folder, wait=wait)
            opened.callback(thumbnails.close)
            state = store.state()
            if hasher is None:
                hasher = hashers.stored(folder, state.fingerprint, device=device)
            require_hasher(state, hasher.fingerprint, str(folder))
            opened.pop_all()
        return cls(folder, searcher, thumbnails, hasher, device=device)

    @classmethod
    def into(
        cls,
        folder: str | Path,
        hasher: Hasher | str | Path,
        *,
        device: str = "auto",
        store: str | None = None,
        engine: str | None = None,
    ) -> Self:
        """The collection of this hasher in `folder`; made if it is not there, locally unless it is said where."""
        if not (Path(folder) / SETTINGS).exists():
            cls.create(folder, hasher, store=store, engine=engine).close()
        elif store or engine:
            require_same(Path(folder), store, engine)
        given = hasher if isinstance(hasher, Hasher) else Hasher.to_encode(hasher, device=device, late=True)
        collection = cls.open(folder, device=device, hasher=given)
        hashers.complete(hasher, collection.folder)
        return collection

    def close(self) -> None:
        self.searcher.close()
        self.store.close()
        self.thumbnails.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.store.count()

    # ── photos come and go ───────────────────────────────────────────────────────────────────────────────

    def add(
        self,
        photos: Photos,
        *,
        labels: Labels | None = None,
        keep: bool = False,
        again: bool | None = None,
        progress: Progress | None = None,
        batch: int | None = None,
        cache: Path | None = None,
    ) -> AddResult:
        """Add photos, or bring what is known of them up to date. Safe to stop at any moment and to run again.

        `photos` are a folder, files, or a split; `labels` has one set for each, in order or by name. Without
        labels, photos keep those they have. `keep` stores whole photos in the collection, `cache` is a folder for their
        features: another hasher over the same backbone is trained, and moved to, without a look at the photos. Photos
        that a person removed come in `again` only where that is asked for, or their files are named one by one.
        """
        result = AddResult()
        steps = self.adding(photos, labels=labels, keep=keep, again=again, batch=batch, cache=cache)
        for step in self.log.following(steps):
            result += step
            if progress:
                progress(step.done, step.total)
        return result

    def adding(
        self, photos: Photos, *, labels: Labels | None = None, keep: bool = False, again: bool | None = None,
        batch: int | None = None, cache: Path | None = None,
    ) -> Iterator[Step]:  # fmt: skip
        """Like `add`, step by step: all photos of a step are safe on the disk when it is yielded."""
        source = as_source(photos)
        hasher = self.hasher
        batch = batch or hasher.encoder.batch
        again = not isinstance(photos, PhotoSource) and not is_folder(photos) if again is None else again
        intake = Intake(self.store, hasher.spec.preprocessing, source, labels, keep=keep, again=again)
        done, taken, kept = 0, set[int](), KeptFeatures.of(hasher, cache)
        rows = kept.packed_rows if kept else hasher.packed_rows
        for some in encode_stream(intake.look(ahead=batch), rows, batch=batch, most=PATIENCE):
            done += len(some)
            if kept:
                kept.keep(
                    [seen.photo.facts.content for _, seen, row in some if isinstance(seen, Seen) and row is not None]
                )
            yield self._stored(some, hasher, taken, done, len(source))
        if not done or done < len(source):  # nothing at all, or files that were named twice
            yield Step((), (), len(source), len(source))
        self.tidy()

    def add_bytes(
        self, data: bytes, name: str, *, labels: Iterable[str] = (), decode: Callable[..., Decoded] = decode_for
    ) -> Added:
        """Add a photo that is no file; the collection keeps it. The same bytes under the same name come once.

        `decode` stands in for `decode_for` where photos are decoded elsewhere.
        """
        key = f"{hashlib.sha256(data).hexdigest()[:16]}/{Path(name.replace(chr(92), '/')).name or 'photo'}"
        source, given = PhotoBytes([(key, data)]), [with_parents(labels)]

        def attempt(hasher: Hasher) -> Step:
            intake = Intake(self.store, hasher.spec.preprocessing, source, given, keep=True, again=True, decode=decode)
            (some,) = encode_stream(intake.look(ahead=1), hasher.packed_rows, batch=1)
            return self._stored(some, hasher, set(), 1, 1)

        step = self.with_hasher(attempt)
        if step.problems:
            raise PhotoError(step.problems[0].reason)
        return step.photos[0]

    def _stored(
        self, some: list[tuple[str, Seen | Problem, NDArray[np.uint8] | None]], hasher: Hasher, taken: set[int],
        done: int, total: int,
    ) -> Step:  # fmt: skip
        """Thumbnails first, truth last: what the truth speaks of is there."""
        problems = tuple(seen for _, seen, _ in some if isinstance(seen, Problem))
        fine = [(seen, row) for _, seen, row in some if isinstance(seen, Seen)]
        photos: list[Photo] = []
        for seen, row in fine:
            photo = seen.photo if row is None else with_derived(seen.photo, row, hasher.bits)
            if not photo.id and (former := moved_from(seen.twins, taken, shared=self.store.shared)):
                photo = replace(photo, id=former.id)
                taken.add(former.id)
            photos.append(photo)
        self.thumbnails.put({seen.photo.facts.content: seen.thumbnail for seen, _ in fine if seen.thumbnail})
        whole = {seen.photo.facts.content: seen.data for seen, _ in fine if seen.data is not None}
        for content, data in whole.items():
            self.originals.keep(content, data)
        written = [photo for photo, (seen, _) in zip(photos, fine, strict=True) if seen.write]
        changes = self.store.put(written, fingerprint=hasher.fingerprint) if written else []
        for content, data in whole.items():  # those that `compact` took for nobody's just before the photo was there
            self.originals.keep(content, data)
        stored = {change.after.path: Added.of(change) for change in changes}
        out = {seen.photo.path for seen, _ in fine if seen.removed}
        records = [
            stored.get(photo.path) or Added(photo.id, photo.path, "removed" if photo.path in out else "unchanged")
            for photo in photos
        ]
        return Step(tuple(records), problems, done, total)

    def remove(self, ids: Iterable[int]) -> int:
        """Forget photos (files stay where they are); how many there were. They do not come back by themselves."""
        photos = self.store.get(list(ids))
        removed = self.store.remove([photo.id for photo in photos], remember=True)
        self.log.tell("removed", [photo.path for photo in photos])
        return removed

    def relabel(self, id: int, labels: Iterable[str]) -> Photo:
        """Give a photo these labels and no others; with animal/dog it is an animal, too."""
        wanted = with_parents(labels)
        return self._edited(id, lambda photo: replace(photo, labels=wanted))

    def accept(self, id: int, label: str) -> Photo:
        """Give a photo one more label, such as a suggested one."""
        return self._edited(id, partial(tags.judged, verdicts=[Verdict(id, label, "accept")]))

    def refuse(self, id: int, label: str) -> Photo:
        """A photo shall not carry a label, nor be offered it again."""
        return self._edited(id, partial(tags.judged, verdicts=[Verdict(id, label, "refuse")]))

    def judge(self, verdicts: Iterable[Verdict]) -> tuple[list[Photo], list[Verdict]]:
        """Accept, refuse or forget labels of many photos at once: these photos, and the verdicts that take it back.

        Photos that are gone are left out.
        """
        of = {id: list(said) for id, said in groupby(sorted(verdicts, key=lambda v: v.id), key=lambda v: v.id)}
        changes = self.store.relabel_all({id: partial(tags.judged, verdicts=said) for id, said in of.items()})
        return [change.after for change in changes], [
            verdict for change in changes if change.before for verdict in tags.undoing(change.before, change.after)
        ]

    def _edited(self, id: int, edit: Callable[[Photo], Photo]) -> Photo:
        photo = self.store.relabel(id, edit)
        if photo is None:
            raise self._unknown(id)
        return photo

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────

    def get(self, id: int) -> Photo:
        photos = self.store.get([id])
        if not photos:
            raise self._unknown(id)
        return photos[0]

    def photos(
        self, offset: int = 0, limit: int = 100, *, carrying: Iterable[str] = (), untagged: bool = False
    ) -> list[Photo]:
        """Photos by id: all, those that carry all of some labels, or those that carry none at all."""
        return self.store.page(offset, limit, carrying=spelled(carrying), untagged=untagged)

    def count(self, *, carrying: Iterable[str] = (), untagged: bool = False) -> int:
        return self.store.count(carrying=spelled(carrying), untagged=untagged)

    def labels(self) -> dict[str, int]:
        """All labels that photos carry and how many do, most frequent first."""
        return self.store.labels()

    def original(self, id: int) -> bytes:
        """The file of a photo, byte for byte what was added; not what a link in its folder leads to elsewhere."""
        photo = self.get(id)
        file = Path(photo.path)
        if file.is_symlink() and not file.resolve().is_relative_to(file.parent.resolve()):
            raise PhotoError(f"{file}: leads out of its folder; only its thumbnail is here")
        return self.bytes_of(photo)

    def thumbnail(self, id: int) -> bytes:
        """A small JPEG of a photo."""
        photo = self.get(id)
        jpeg = self.thumbnails.get(photo.facts.content)
        if jpeg is None:
            jpeg = thumbnail(decode(self.bytes_of(photo), photo.path, at_least=256))
            self.thumbnails.put({photo.facts.content: jpeg})
        return jpeg

    def bytes_of(self, photo: Photo) -> bytes:
        kept = self.originals.path(photo.facts.content)
        file = kept or Path(photo.path)
        if kept is None and not file.is_absolute():
            raise PhotoError(f"{photo.path}: came from a pack and was not kept; only its thumbnail is here")
        data = read_bytes(file, follow=kept is None)
        if hashlib.sha256(data).hexdigest() != photo.facts.content:
            raise PhotoError(f"{file}: has changed since it was indexed; index it again")
        return data

    def _unknown(self, id: int) -> NoSuchPhotoError:
        return NoSuchPhotoError(f"{self.folder}: there is no photo {id}; it may have been removed")

    # ── search ───────────────────────────────────────────────────────────────────────────────────────────

    def search(
        self,
        photo: "str | Path | bytes | Image | None" = None,
        *,
        outputs: Outputs | None = None,
        fingerprint: str | None = None,
        like: int | None = None,
        labels: Iterable[str] = (),
        unwanted: Iterable[str] = (),
        any_of: Iterable[str] = (),
        at_least: Mapping[str, float] | None = None,
        missing: str = "",
        wrong: str = "",
        carrying: Iterable[str] = (),
        radius: int | None = None,
        only: Filter = EVERYTHING,
        rank: Rank | None = None,
        bits: int | None = None,
        k: int = 10,
        offset: int = 0,
        catch_up: bool = True,
    ) -> Ranking:
        """The photos nearest to a photo, to one of the collection (`like`), to labels, or to all of them.

        Photos that carry all `labels`, one `any_of` and no `unwanted` ones come first, then those that probably do,
        `at_least` with these probabilities. `missing` finds photos that should carry a label and do not, `wrong` those
        that carry it and should not. `outputs` are those of a photo that was encoded elsewhere, by the hasher with this
        `fingerprint`; OtherHasherError if the collection has another by now. `carrying`, `radius` and `only`, a filter
        by facts of files, narrow what may be found; alone they give all of it, the newest first. Without labels or
        their scores it is ordered by (distance, id) around the sum of the unit vectors of all wishes
        (`rank="hamming"`), or by the real query against the stored bits ("asymmetric"). `bits` ranks by the first
        so many bits, those of nested codes for instance, and by all of them where these are equal. Without `catch_up`,
        an engine that is behind the store answers from what it knows and says by how much (`Ranking.behind`).
        """
        rank = rank or ("hamming" if bits is not None else None)
        roles, said = roles_of(labels, any_of, unwanted, missing, wrong)
        narrowed = replace(only, carrying=spelled((*carrying, *([wrong] if wrong else ()))), radius=radius)

        def attempt(hasher: Hasher) -> Ranking:
            query = QueryVector(self.searcher, hasher, self.sources)
            if photo is not None:
                query.near(encoded(hasher, photo)[: hasher.width])
            if outputs is not None:
                if fingerprint not in (None, hasher.fingerprint):
                    raise OtherHasherError(f"{self.folder}: these outputs are of {fingerprint}; encode the photo again")
                query.near(outputs)
            if like is not None:
                query.near_photo(self.get(like))
            scored = rank in (None, "labels")
            query.near_labels(self.sources.query(roles, said, at_least or {}, hasher, scored=scored))
            return query.ranking(k=k, offset=offset, rank=rank, only=narrowed, bits=bits, catch_up=catch_up)

        ranking = self.with_hasher(attempt)
        by_photo = photo is not None or outputs is not None
        unlike = self._unlike(ranking, by_photo=by_photo) if len(ranking) else ""
        return replace(ranking, unlike=unlike) if unlike else ranking

    def _unlike(self, ranking: Ranking, *, by_photo: bool) -> str:
        """What to say where a query is unlike anything here: it shows the nearest there are, but they are not near."""
        if ranking.rank == "labels":
            return "" if ranking.known or ranking.probable else "probably no photo here is what these labels ask for"
        if not by_photo or ranking.offset or self.hasher.quantizer is not None or ranking.asked:
            return ""
        state, nearest = self.store.state(), min(match.distance for match in ranking)
        size = state.generation, state.photos.bit_length()
        if self._usual[0] != size:
            self._usual = size, figures.usual_distance(self.store)
        usual = self._usual[1]
        if usual is None or nearest <= usual:
            return ""
        return f"no photo here is like it: the nearest is {nearest} bits away, where 99 of 100 have one within {usual}"

    def timeline(self, only: Filter = EVERYTHING, *, among: Iterable[Match] | None = None) -> Timeline:
        """How many photos were taken in each month: of all that a filter allows, or of some that were found."""
        selected = self.searcher.select(only)
        if among is not None:
            ids = np.sort(np.array([match.id for match in among], np.int64))
            rows = np.searchsorted(selected.ids, ids[np.isin(ids, selected.ids)])
            selected = Selected(selected.ids[rows], selected.taken[rows])
        months = tuple(Month(month, photos) for month, photos in selected.months().items())
        return Timeline(months, len(selected.ids) - sum(month.photos for month in months))

    def suggest(self, photo: "int | str | Path | bytes | Image", *, k: int = 10) -> list[Tag]:
        """Labels that a photo, here (by id) or not yet, seems to lack, best first."""

        def attempt(hasher: Hasher) -> list[Tag]:
            known = self.get(photo) if isinstance(photo, int) else None
            row = outputs_of_code(hasher, known.code) if known else encoded(hasher, cast("bytes", photo))
            return tags.suggested(self.searcher, hasher, row, known, self.sources)

        return self.with_hasher(attempt)[:k]

    def to_tag(self, k: int = 100, *, passed: Iterable[int] = ()) -> list[Photo]:
        """Photos without labels, those first that teach most; of many, samples spread over all are looked at."""
        untagged, out = self.store.count(untagged=True), set(passed)
        starts = range(0, untagged, max(untagged // SAMPLES, SAMPLE))
        found = [photo for start in starts for photo in self.store.page(start, SAMPLE, untagged=True)]
        left = [photo for photo in found if photo.id not in out]
        return tags.telling(self.current_hasher(), left, k, tagged=len(self) - untagged)

    def duplicates(self, radius: int = 4) -> list[tuple[int, ...]]:
        """Groups of photos (ids) that are copies or look all but the same; the largest first."""
        return duplicates.groups(self.store, radius)

    def with_hasher(self, attempt: Callable[[Hasher], T]) -> T:
        """Do something with the hasher in use; again if the collection has just moved to another, or there and back."""
        for left in reversed(range(MOVES)):
            hasher = self.hasher
            try:
                return attempt(hasher)
            except (OtherHasherError, CodesError) as error:
                moved = self.current_hasher() is not hasher
                if not left or (not moved and isinstance(error, CodesError)):
                    raise
        raise AssertionError("the last attempt returns or raises")

    def current_hasher(self) -> Hasher:
        """The hasher that the store has codes of at this moment; it is in use from now on."""
        fingerprint = self.store.state().fingerprint
        if fingerprint != self.hasher.fingerprint:
            self.hasher = self.load_hasher(fingerprint)
        return self.hasher

    # ── in figures ───────────────────────────────────────────────────────────────────────────────────────

    def stats(self) -> Stats:
        return figures.stats(self)

    def recall(self, *ks: int, queries: int = 100) -> dict[int, float]:
        """For each k the share of the k nearest photos that the engine finds; 1 unless it is approximate."""
        return figures.recalls(self.searcher, ks, queries)

    def cooccurrence(self, labels: Sequence[str]) -> NDArray[np.int64]:
        """How many photos carry both labels, (labels, labels)."""
        return figures.cooccurrence(self.store, labels)

    def map(self, limit: int = 5000) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Up to `limit` photos (ids) and their places on a flat map of the codes, (n, 2) within ±1."""
        return figures.flat_map(self.store, limit)

    # ── maintenance ─────────────────────────────────────────────────────────────────────────────────────────────

    def missing(self, among: Iterable[Photo] | None = None) -> Missing:
        """Photos, of all or `among` some, whose files are gone, and that were not kept."""
        places: dict[Place, list[Photo]] = {"gone": [], "elsewhere": []}
        for photo in self.all_photos() if among is None else among:
            place = place_of(photo, shared=self.store.shared)
            if place != "here" and not self.originals.path(photo.facts.content):
                places[place].append(photo)
        return Missing(tuple(places["gone"]), len(places["elsewhere"]))

    def prune(self, among: Iterable[Photo] | None = None) -> Missing:
        """Forget the photos that are `missing`; these."""
        gone = self.missing(among)
        self.store.remove([photo.id for photo in gone])
        self.log.tell("forgotten", [photo.path for photo in gone])
        return gone

    def all_photos(self, many: int = 1000) -> Iterator[Photo]:
        """All photos by id."""
        after = 0
        while photos := self.store.page_after(after, many):
            yield from photos
            after = photos[-1].id

    def verify(self) -> list[str]:
        """What is wrong with the folder, in words; nothing if all is well."""
        found = self.store.verify() + self.searcher.verify() + self.thumbnails.verify() + self.originals.verify()
        try:
            hashers.check(self.folder, self.store.state().fingerprint)
        except HyphashError as error:
            found.append(str(error))
        return found

    def require_ready(self) -> None:
        """Raise what keeps the collection from answering, such as a server that is away."""
        self.store.state()
        self.searcher.require_ready()

    def tidy(self) -> None:
        """Do what keeps searches fast, after many changes."""
        self.searcher.tidy()
        self.store.tidy()

    def rebuild(self) -> None:
        """Drop what is derived for searching, and build it anew from the store."""
        self.searcher.rebuild()

    def compact(self) -> None:
        """Give back room: codes of former hashers, thumbnails of removed photos, what killed writers left behind."""

        def known(session: Session, contents: Sequence[str]) -> set[str]:
            """Which of some contents photos have, in the collection or in its trash."""
            there = {photo.facts.content for photo in session.find(contents=contents)}
            return there | {row.content for row in session.removed(contents=contents) if row.trashed}

        def sweep_originals(contents: list[str], session: Session) -> None:
            self.originals.sweep(contents, partial(known, session))

        def sweep_hashers(session: Session) -> None:
            hashers.sweep(self.folder, {session.state().fingerprint, session.state().coming})

        self.searcher.compact()
        self.store.compact()
        self.thumbnails.sweep(lambda some: self.store.read(lambda session: known(session, some)))
        for some in batched(self.originals.contents(), SWEPT):
            self.store.write(partial(sweep_originals, some), "sweeping originals")  # nobody adds one meanwhile
        self.store.write(sweep_hashers, "sweeping hashers")
        sweep_drafts(self.folder)

    def reindex(self, hasher: Hasher | str | Path, *, progress: Progress | None = None) -> tuple[Problem, ...]:
        """Move to another hasher. The old one answers until all codes are there; then all change at once.

        Stopped and run again it goes on where it was. Photos whose files are gone or have changed are encoded
        from their thumbnails and reported.
        """
        from hyphash.collection.reindex import reindex

        problems = reindex(self, hasher, progress)
        self.current_hasher()
        return problems

    def export(self, path: str | Path) -> int:
        """Write all photos with labels and codes to a .csv, .jsonl or .parquet file; how many there are."""
        return exchange.export(self, Path(path))

    def import_(self, path: str | Path, *, progress: Progress | None = None) -> AddResult:
        """Take in what `export` wrote. Codes of another hasher are refused."""
        return exchange.import_(self, Path(path), progress)
