"""A copy of the codes of a store on Milvus, and how it follows the store.

The store holds a note for the searcher: which collection is in use, up to which commit it has come, and which one is
prepared for coming codes. Rows of photos that changed are pushed to Milvus inside the same exclusive transaction of the
store that writes the note, so followers take turns by that, on whichever machine they are. Pushing is repeatable: rows
are read anew from the store and written under their ids; an attempt that was interrupted is made again from the note.

A collection is built beside the one in use (NAME_2 beside NAME_1) by a walk through the store, which goes on meanwhile;
what changed since the walk began is pushed at its end, when the note names the new one and the former is dropped.

A collection on Milvus says in its properties which store it belongs to, and up to which commit it may have rows. A
store that was restored from a backup does not know that commit: then the copy has photos that the store has lost, and
is built anew.
"""

import logging
from contextlib import suppress
from dataclasses import replace

import numpy as np

from hyphash.searchers.milvus.building import REACHED, STORE, WORTH_AN_INDEX, Builder, Copy
from hyphash.searchers.milvus.rows import ROW, joined, marks, to_rows
from hyphash.searchers.milvus.server import LIMIT, STRONG, GoneError
from hyphash.stores import Ids, Position, Session, State, require_hasher

MANY = 50_000  # changes after which it is quicker to build a collection anew, if they are half of all photos

log = logging.getLogger(__name__)


class Copies:
    """The collection in use, which follows the store."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.store = builder.store
        self.server = builder.server
        self._seen: tuple[str, Position] | None = None  # a collection, and where the store was when it was looked at

    def position(self) -> Position | None:
        def work(session: Session) -> Position | None:
            copy = self.builder.note(session).usable(session)
            return copy.position if copy else None

        return self.store.read(work)

    def current(self, *, fingerprint: str | None = None, catch_up: bool = True) -> tuple[State, Copy]:
        """What the store holds, and the collection to search; one that is behind is brought up to date before."""

        def look(session: Session) -> tuple[State, Copy | None, bool]:
            state, copy = session.state(), self.builder.note(session).usable(session)
            return state, copy, copy is not None and self._known(session, copy)

        while True:
            state, copy, known = self.store.read(look)
            if fingerprint is not None:
                require_hasher(state, fingerprint, self.store.shown)
            if copy is None or not (known or self._looked_at(copy, state)):
                self.builder.build()
            elif copy.position == state.position or not catch_up:
                return state, copy
            else:
                with suppress(GoneError):  # which shows when it is looked at
                    self.builder.patiently(self._push)

    def _known(self, session: Session, copy: Copy) -> bool:
        """Whether this process has looked at the collection, and the store goes on from where it was then."""
        if self._seen is None or self._seen[0] != copy.collection:
            return False
        seen, position = self._seen[1], session.state().position
        if seen == position or session.stamp(seen.commit) == seen.stamp:
            self._seen = copy.collection, position
            return True
        return False

    def _looked_at(self, copy: Copy, state: State) -> bool:
        """Whether a collection can be used."""
        properties = self.server.properties(copy.collection)
        if not self.store.read(lambda session: self._sound(session, copy, properties)):
            return False
        self._seen = copy.collection, state.position
        return True

    def _sound(self, session: Session, copy: Copy, properties: dict[str, str] | None) -> bool:
        """Whether a collection is there, of this store, with nothing that the store does not know."""
        shown, state = self.server.address.shown, session.state()
        if properties is None:
            log.warning("%s: the collection %r is gone, and built anew", shown, copy.collection)
            return False
        self.builder.require_ours(copy.collection, properties, state)
        commit, _, stamp = properties.get(REACHED, "0 ").partition(" ")
        if int(commit) > state.commit or session.stamp(int(commit)) != stamp:
            log.warning("%s: the store has another past than its copy, which is built anew", shown)
            return False
        return True

    def forget(self) -> None:
        """Look at the collection again: the server says that it is gone."""
        self._seen = None

    def _push(self) -> None:
        """Bring the collection in use up to date, by the changes since."""

        def work(session: Session) -> set[str] | None:
            note, state = self.builder.note(session), session.state()
            copy = note.usable(session)
            if copy is None or (copy == note.current and copy.position == state.position):
                return set()  # it has to be built, or others have seen to it
            changed = session.changed(copy.position.commit, codes_only=False)
            properties = self.server.properties(copy.collection, once=True)
            if len(changed) > max(MANY, state.photos // 2) or not self._sound(session, copy, properties):
                return None
            self.builder.push_changed(session, copy, changed)
            coming = note.coming if copy == note.current else None
            return self.builder.noted(session, current=replace(copy, position=state.position), coming=coming)

        former = self.store.write(work, "following the store")
        if former is None:
            self.builder.build()
        else:
            self.builder.drop(former)

    # ── maintenance ──────────────────────────────────────────────────────────────────────────────────────

    def flush(self) -> None:
        """Have the index built over what was added, if it is enough for one."""
        if self.builder.written >= WORTH_AN_INDEX:
            self.server.flush(self.current()[1].collection)
            self.builder.written = 0

    def compact(self) -> None:
        """Drop what was left behind by builds that were interrupted, and have Milvus join its segments."""
        state, copy = self.current()
        kept = self.store.read(self.builder.note).collections
        left = {collection for collection, _ in self.builder.numbered()} - kept
        self.builder.drop({name for name in left if (self.server.properties(name) or {}).get(STORE) == state.identity})
        self.server.compact(copy.collection)

    def differences(self, shown: int = 20) -> list[str]:
        """Where the rows on Milvus differ from the store, in words."""
        note = self.store.read(self.builder.note)
        place, advice = self.server.address.shown, "build it anew with `hyphash collection rebuild`"
        if note.current and self.server.properties(note.current.collection) is None:
            return [f"{place}: the collection {note.current.collection!r} is gone; {advice}"]
        state, copy = self.current()
        theirs = (marks(rows) for rows in self.server.walk(copy.collection, ROW, STRONG))
        ours = (
            marks(to_rows(ids, codes, self.store.captions(ids.tolist())))
            for ids, codes in self.store.scan(state.in_use)
        )
        suspects = np.setxor1d(joined(ours), joined(theirs))["id"]
        wrong = self._still_differing(np.unique(suspects)[:LIMIT]) if len(suspects) else []
        return [f"{place}: photo {id} is not what the store holds; {advice}" for id in wrong[:shown]]

    def _still_differing(self, suspects: Ids) -> list[int]:
        """Those that differ while nobody writes, and not because their change is on its way."""

        def work(session: Session) -> list[int]:
            copy = self.builder.note(session).usable(session)
            if copy is None:
                return []
            coming = session.changed(copy.position.commit, codes_only=False)
            ids, codes = session.codes_of(suspects)
            ours = marks(to_rows(ids, codes, session.captions(ids.tolist())))
            rows = self.server.query(copy.collection, f"id in {suspects.tolist()}", ("id", *ROW), STRONG)
            return [int(id) for id in np.setdiff1d(np.setxor1d(ours, marks(rows))["id"], coming)]

        return self.store.write(work, "comparing")
