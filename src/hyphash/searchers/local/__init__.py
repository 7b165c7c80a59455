"""The searcher on this machine: a memory-mapped snapshot of all codes, and in memory what has changed since.

A searcher that has the codes of commit 7 and finds the store at commit 9 asks it what happened since; nobody ever has
to be told anything. Photos that carry a label are asked for from the store.
"""

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Self

import numpy as np

from hyphash.codes import Codes
from hyphash.errors import CodesError, CollectionError, ConfigError, StorageError
from hyphash.searchers import Found, Query, Searcher, Selected, searchers
from hyphash.searchers.filters import EVERYTHING, NO_FACTS, FactColumns, Filter
from hyphash.searchers.local import snapshot
from hyphash.searchers.local.scores import LabelScores
from hyphash.searchers.local.view import Block, Told, View
from hyphash.stores import Generation, Ids, Position, Scores, Session, State, Store, follows, gathered, walk

SMALL = 200_000  # a collection whose snapshot costs next to nothing to write
RACES = 20  # times that another thread may have seen a later commit before that commit is taken for lost


@searchers("local")
class Local(Searcher):
    """A snapshot in the folder of the collection, searched by the kernel."""

    def __init__(self, folder: Path, store: Store) -> None:
        super().__init__(folder, store)
        self._view: View | None = None
        self._lock = Lock()  # one thread at a time brings the view up to date

    @classmethod
    def open(cls, folder: Path, url: str, store: Store) -> Self:
        if url != "local":
            raise ConfigError(f"engine {url!r}: the local engine has no address; write engine = 'local'")
        return cls(folder, store)

    def close(self) -> None:
        self._view = None

    def position(self) -> Position | None:
        view = self._view
        if view is None:
            view = snapshot.load(_file(self.folder, self.store.state().generation))
        return None if view is None else view.position

    def is_at(self, position: Position) -> bool:
        return self._view is not None and self._view.position == position

    def follow(self) -> None:
        self._consistent()

    # ── searching ────────────────────────────────────────────────────────────────────────────────────────

    def search(self, query: Query) -> Found:
        state, view, told = self.store.state(), self._view, None
        if view is None and not query.catch_up:
            view = self._loaded(state.generation)
        if view is not None and view.position.generation == state.generation:
            by_codes = not query.only.by_label and query.labels is None
            if view.position == state.position and by_codes:  # all in memory is true: no transaction is needed
                told = Told()
            elif not query.catch_up and view.position.commit <= state.commit:
                told = self.store.read(lambda session: _told(session, query), "searching")
        if view is None or told is None:
            state, view, told = self._consistent(query)
        query.require_fit(state, self.store.shown)
        found, behind = view.search(query, told), state.commit - view.position.commit
        return replace(found, behind=behind) if behind else found

    def select(self, only: Filter) -> Selected:
        _, view, told = self._consistent(only)
        return view.selected(only, told.allowed)

    def _consistent(self, query: Query | Filter = EVERYTHING) -> tuple[State, View, Told]:
        """What the store says at one moment, the codes at that very commit, and what people said."""

        def work(session: Session) -> tuple[State, View, Told] | None:
            state = session.state()
            with self._lock:
                view = self._view
                if view is None or view.position.commit <= state.commit:
                    self._view = view = self._refreshed(session, state, view)
            return (state, view, _told(session, query)) if view.position == state.position else None

        attempts = 0
        while (found := self.store.read(work, "searching")) is None:
            attempts += 1
            if attempts > RACES:  # the store was restored from a backup of an earlier day
                self._view = None
        return found

    # ── the view ─────────────────────────────────────────────────────────────────────────────────────────

    def _refreshed(self, session: Session, state: State, view: View | None) -> View:
        """The view at the commit of a session, from the one before, the snapshot, or the store alone."""
        if view is None or not follows(session, view.position):
            view = self._loaded(state.generation)
        if view is None or not follows(session, view.position):
            view = self._saved(_built(session, state.position, state.in_use))
        if view.position == state.position:
            return view
        touched = session.changed(view.position.commit, labels=False)
        ids, codes, scores = session.derived_of(touched)
        facts = FactColumns.of(ids, session.facts(ids))
        view = view.changed(state.position, touched, Block(ids, codes, scores=LabelScores.of(scores), facts=facts))
        if len(view.extra.ids) > SMALL / 10 + len(view.base.ids) / 20:  # a long-lived reader: map it anew
            return self._saved(view)
        return view

    def _loaded(self, generation: int) -> View | None:
        """The snapshot of a generation; None where there is none, or a bit of it has flipped: it is built anew then."""
        view = snapshot.load(_file(self.folder, generation))
        return self._indexed(view) if view and view.base.sound() else None

    def _saved(self, view: View) -> View:
        """The same view on top of a new snapshot file; where that cannot be written it is done without."""
        with suppress(StorageError, OSError):
            view = snapshot.save(_file(self.folder, view.position.generation), view)
        return self._indexed(view)

    def _indexed(self, view: View) -> View:
        """A view whose base has just been read or written; for those who search it by an index of their own."""
        return view

    # ── maintenance ──────────────────────────────────────────────────────────────────────────────────────

    def prepare(self) -> None:
        def work(session: Session) -> View | None:
            state = session.state()
            coming = state.in_preparation
            return _built(session, replace(state.position, generation=coming.number), coming) if state.coming else None

        if (view := self.store.read(work, "reading codes")) is not None:
            with suppress(StorageError, OSError):
                snapshot.save(_file(self.folder, view.position.generation), view)

    def rebuild(self) -> None:
        self.drop()
        self.follow()

    def drop(self) -> None:
        """Forget everything; it is built anew when somebody searches."""
        with self._lock:
            self._view = None
            for file in snapshot.files_of(_file(self.folder, self.store.state().generation)):
                file.unlink(missing_ok=True)

    def tidy(self, *, always: bool = False) -> None:
        """Write a new snapshot if much has changed or its index is lost."""
        _, view, _ = self._consistent()
        little = view.touched < len(view) / 100 and len(view) > SMALL
        lacks_index = view.base.index is None and view.base.worth_an_index
        if not lacks_index and (view.saved == view.position.commit or (little and not always)):
            return
        with self._lock:
            saved = self._saved(view)
            if self._view is not None and self._view.position == view.position:
                self._view = saved

    def check(self) -> None:
        view = self._view
        if view is not None and not view.base.sound():
            with self._lock:
                self._view = None  # built anew from the store by the next search

    def verify(self) -> list[str]:
        """Compare what searches see, the snapshot and the changes since, with the store."""

        def work(session: Session) -> list[str]:
            state = session.state()
            file = _file(self.folder, state.generation)
            truth = _built(session, state.position, state.in_use).base
            view = snapshot.load(file)
            if view is None or view.base.sound():
                seen = self._refreshed(session, state, view).merged()
                same = truth.codes == seen.codes and np.array_equal(truth.scores.packed, seen.scores.packed)
                if same and np.array_equal(truth.ids, seen.ids) and truth.described.equals(seen.described):
                    return []
            return [f"{file}: not what the store holds; build it anew with `hyphash collection rebuild`"]

        try:
            return self.store.read(work, "comparing")
        except (CollectionError, CodesError) as error:
            return [str(error)]

    def compact(self) -> None:
        """Write a fresh snapshot, and throw away those of former hashers."""
        self.tidy(always=True)
        generation = self.store.state().generation
        kept = set.union(*(snapshot.in_use(_file(self.folder, number)) for number in (generation, generation + 1)))
        for file in set(self.folder.glob("codes-*")) - kept:
            if re.fullmatch(r"codes-\d+(-\d+)?\.(safetensors|index)", file.name) and not file.is_dir():
                file.unlink(missing_ok=True)


def _file(folder: Path, generation: int) -> Path:
    return folder / f"codes-{generation}.safetensors"


def _built(session: Session, position: Position, generation: Generation) -> View:
    """All codes and scores of a generation, and the facts of photos, read from the store."""

    def part_after(after: int) -> tuple[Ids, Codes, Scores, FactColumns]:
        ids, codes, scores = session.derived(generation, after=after)
        return ids, codes, scores, FactColumns.of(ids, session.facts(ids))

    parts = [*walk(part_after)]
    ids, codes = gathered(((part[0], part[1]) for part in parts), generation.bits)
    scores, facts = LabelScores.of(*(part[2] for part in parts)), NO_FACTS.joined(*(part[3] for part in parts))
    return View(position, Block(ids, codes, scores=scores, facts=facts), Block(*gathered((), generation.bits)))


def _told(session: Session, query: Query | Filter) -> Told:
    """What a query has to know from the store: whom its filter allows, who carries its labels and who refuses them."""
    only, asked = (query, None) if isinstance(query, Filter) else (query.only, query.labels)
    allowed = session.ids_carrying(only.carrying) if only.by_label else None
    if asked is None or asked.said == "ignored":
        return Told(allowed)
    carried = {term.label: session.ids_carrying([term.label]) for term in asked.terms}
    return Told(allowed, carried, {term.label: session.ids_refusing(term.label) for term in asked.terms})
