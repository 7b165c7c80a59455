"""Collection = a folder: photos, labels, codes, and the hasher that made them. Nothing that it confirmed is lost.

collection.toml     which store holds the truth, and which engine searches it
collection.sqlite   the truth, where it is not on a server: paths, contents, labels, codes
codes-*.safetensors of the local engines, derived, memory-mapped; codes-*.index beside it where there are many
thumbnails.sqlite   one for each content
activity.jsonl      what happened, for people to read
kept.jsonl          photos that are alike, and that people keep all of
trash/              files that people took out, by number, until they come back or it is emptied
originals/          photos that came as bytes
hashers/            the hasher in use, by fingerprint
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from hyphash.collection import exchange, figures, folder, intake, tags
from hyphash.collection.duplicates import groups
from hyphash.collection.folder import SETTINGS, Hashers, Originals, Settings, Thumbnails, as_hasher, require_same
from hyphash.collection.query import LabelSources, QueryVector, Rank, encoded, roles_of
from hyphash.collection.records import Added, AddResult, Log, Match, Missing, Ranking, Stats, Step, Verdict
from hyphash.datasets import spelled
from hyphash.errors import CodesError, CollectionError, NoSuchPhotoError, OtherHasherError
from hyphash.files import new_folder, require_plain
from hyphash.hasher import Hasher, Outputs
from hyphash.searchers import Searcher, searcher_for
from hyphash.searchers.filters import EVERYTHING, Filter
from hyphash.stores import Photo, require_hasher, store_for
from hyphash.stores.address import name_hosts

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["AddResult", "Added", "Collection", "Match", "Missing", "Photo", "Ranking", "Stats", "Step", "Verdict"]

MOVES = 5  # hashers that a search may meet while the collection moves from one to the next

T = TypeVar("T")


class Collection(AbstractContextManager["Collection"]):
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
        self.usual: dict[tuple[int, int], int | None] = {}  # figures.usual_distance, while there are about so many
        self.labels = self.store.labels  # that photos carry, and how many do
        self.rebuild = searcher.rebuild  # what is derived for searching, anew from the store
        self.load_hasher: Callable[[str], Hasher] = partial(Hashers(folder).load, device=device)  # by fingerprint

    # photos come and go
    add, adding, add_bytes, reindex = intake.add, intake.adding, intake.add_bytes, intake.reindex
    export, import_ = exchange.export, exchange.import_
    missing, prune = folder.missing, folder.prune
    # what people say of them, and are asked
    relabel, accept, refuse, judge = tags.relabel, tags.accept, tags.refuse, tags.judge
    suggest, to_tag = tags.suggest, tags.to_tag
    # their files, and all of them in figures
    original, thumbnail, bytes_of = folder.original, folder.thumbnail, folder.bytes_of
    stats, recall, cooccurrence, map = figures.stats, figures.recalls, figures.cooccurrence, figures.flat_map
    timeline, duplicates = figures.timeline, groups
    verify, compact = folder.verify, folder.compact

    @classmethod
    def create(
        cls, folder: str | Path, hasher: Hasher | str | Path, *, store: str | None = None, engine: str | None = None
    ) -> Self:
        """A new collection for a hasher, or for the run folder of one.

        With the address of a store that holds photos of the same hasher already, the folder joins it.
        """
        folder, settings, given = Path(folder), Settings.chosen(store, engine), as_hasher(hasher)
        name_hosts(store, engine)
        if (folder / SETTINGS).exists():
            raise CollectionError(f"{folder}: a collection is here already; open it, or choose another folder")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise CollectionError(f"{folder}: there are other things here; choose a new folder for the collection")
        with new_folder(folder) as draft:
            Hashers(draft).install(given)
            kind, fingerprint = store_for(settings.store), given.fingerprint
            with closing(kind.create(draft, settings.store, fingerprint=fingerprint, bits=given.bits)) as made:
                searcher_for(settings.engine).create(draft, settings.engine, made).close()
            settings.write(draft)
        return cls.open(folder, hasher=hasher if isinstance(hasher, Hasher) else None)

    @classmethod
    def open(cls, folder: str | Path, *, device: str = "auto", hasher: Hasher | None = None) -> Self:
        """The collection in a folder. Its own hasher is loaded unless the same one is given."""
        folder = Path(folder)
        settings = Settings.read(folder)
        # originals and what is in the trash are read without links
        inside = map(folder.glob, ("*", "hashers/*", "hashers/*/*", "originals/*", "trash/*"))
        require_plain(chain.from_iterable(inside), "a collection")
        with ExitStack() as opened:
            store = opened.enter_context(closing(store_for(settings.store).open(folder, settings.store)))
            engine = searcher_for(settings.engine)
            searcher = opened.enter_context(closing(engine.open(folder, settings.engine, store)))
            thumbnails = opened.enter_context(closing(Thumbnails(folder)))
            state = store.state()
            if hasher is None:
                hasher = Hashers(folder).load(state.fingerprint, device=device)
            require_hasher(state, hasher.fingerprint, str(folder))
            opened.pop_all()
        return cls(folder, searcher, thumbnails, hasher, device=device)

    @classmethod
    def into(
        cls, folder: str | Path, hasher: Hasher | str | Path, *, device: str = "auto", store: str | None = None,
        engine: str | None = None,
    ) -> Self:  # fmt: skip
        """The collection of this hasher in `folder`; made if it is not there, locally unless it is said where."""
        if not (Path(folder) / SETTINGS).exists():
            cls.create(folder, hasher, store=store, engine=engine).close()
        elif store or engine:
            require_same(Path(folder), store, engine)
        given = as_hasher(hasher, device=device)
        collection = cls.open(folder, device=device, hasher=given)
        Hashers(collection.folder).complete(given)
        return collection

    def close(self) -> None:
        self.searcher.close()
        self.store.close()
        self.thumbnails.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.store.count()

    def remove(self, ids: Iterable[int]) -> int:
        """Forget photos (files stay where they are); how many there were. They do not come back by themselves."""
        photos = self.store.get(list(ids))
        removed = self.store.remove([photo.id for photo in photos], remember=True)
        self.log.tell("removed", [photo.path for photo in photos])
        return removed

    def get(self, id: int) -> Photo:
        if not (photos := self.store.get([id])):
            raise NoSuchPhotoError(f"{self.folder}: there is no photo {id}; it may have been removed")
        return photos[0]

    def photos(
        self, offset: int = 0, limit: int = 100, *, carrying: Iterable[str] = (), untagged: bool = False
    ) -> list[Photo]:
        """Photos by id: all, those that carry all of some labels, or those that carry none at all."""
        return self.store.page(offset, limit, carrying=spelled(carrying), untagged=untagged)

    def count(self, *, carrying: Iterable[str] = (), untagged: bool = False) -> int:
        return self.store.count(carrying=spelled(carrying), untagged=untagged)

    def all_photos(self, many: int = 1000) -> Iterator[Photo]:
        """All photos by id."""
        after = 0
        while photos := self.store.page_after(after, many):
            yield from photos
            after = photos[-1].id

    def search(
        self, photo: "str | Path | bytes | Image | None" = None, *, outputs: Outputs | None = None,
        fingerprint: str | None = None, like: int | None = None, labels: Iterable[str] = (),
        unwanted: Iterable[str] = (), any_of: Iterable[str] = (), at_least: Mapping[str, float] | None = None,
        missing: str = "", wrong: str = "", carrying: Iterable[str] = (), radius: int | None = None,
        only: Filter = EVERYTHING, rank: Rank | None = None, bits: int | None = None, k: int = 10, offset: int = 0,
        catch_up: bool = True,
    ) -> Ranking:  # fmt: skip
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
        carried = spelled((*carrying, *([wrong] if wrong else ())))
        narrowed = replace(only, carrying=carried, radius=radius) if carried or radius is not None else only

        def attempt(hasher: Hasher) -> Ranking:
            if outputs is not None and fingerprint not in (None, hasher.fingerprint):
                raise OtherHasherError(f"{self.folder}: these outputs are of {fingerprint}; encode the photo again")
            near = [] if photo is None else [encoded(hasher, photo)[: hasher.width]]
            near += [] if outputs is None else [outputs]
            alike = None if like is None else self.get(like)
            asked = self.sources.query(roles, said, at_least or {}, hasher, scored=rank in (None, "labels"))
            query = QueryVector(self.searcher, hasher, self.sources, near=near, like=alike, labels=asked)
            return query.ranking(k=k, offset=offset, rank=rank, only=narrowed, bits=bits, catch_up=catch_up)

        ranking = self.with_hasher(attempt)
        by_photo = photo is not None or outputs is not None
        unlike = figures.unlike(self, ranking, by_photo=by_photo) if len(ranking) else ""
        return replace(ranking, unlike=unlike) if unlike else ranking

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

    def require_ready(self) -> None:
        """Raise what keeps the collection from answering, such as a server that is away."""
        self.store.state()
        self.searcher.require_ready()

    def is_at_hand(self) -> bool:
        """Whether a search by codes finds all that it needs in memory: nobody has to be waited for."""
        if self.store.shared:
            return False
        state = self.store.state()
        return state.fingerprint == self.hasher.fingerprint and self.searcher.is_at(state.position)

    def tidy(self) -> None:
        """Do what keeps searches fast, after many changes."""
        self.searcher.tidy()
        self.store.tidy()
