"""Collections on Milvus: building one from a store, and writing rows of photos into it."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from hyphash.codes import Codes
from hyphash.errors import ConfigError
from hyphash.searchers.milvus.rows import to_rows
from hyphash.searchers.milvus.server import BATCH, STRONG, AwayError, Layout, Server
from hyphash.stores import Caption, Generation, Ids, Position, Session, State, Store, follows
from hyphash.stores.retry import retry

STORE, REACHED = "hyphash.store", "hyphash.reached"  # properties of a collection
WORTH_AN_INDEX = 1024  # rows; Milvus searches smaller segments without


@dataclass(frozen=True)
class Copy:
    """A collection on Milvus with the codes of one hasher."""

    collection: str
    fingerprint: str
    partitions: int
    position: Position

    def usable(self, session: Session) -> bool:
        """Whether changes that the store knows bring it up to date."""
        state = session.state()
        if self.fingerprint != state.fingerprint:
            return False
        return self.position == state.position or follows(session, self.position)


@dataclass(frozen=True)
class Note:
    """What the searcher has left in the store."""

    last: int = 0  # number that was given to a collection
    current: Copy | None = None
    coming: Copy | None = None  # prepared for the codes of another hasher

    @classmethod
    def read(cls, session: Session, name: str) -> "Note":
        text = session.note(name)
        return cls(**json.loads(text, object_hook=_object)) if text else cls()

    def leave(self, session: Session, name: str) -> None:
        session.leave_note(name, json.dumps(asdict(self)))

    def usable(self, session: Session) -> Copy | None:
        copies = (copy for copy in (self.current, self.coming) if copy)
        return next((copy for copy in copies if copy.usable(session)), None)

    @property
    def collections(self) -> set[str]:
        return {copy.collection for copy in (self.current, self.coming) if copy}


def _object(value: dict[str, Any]) -> Any:
    """The dataclass behind a JSON object of a note."""
    kinds = {"stamp": Position, "collection": Copy}
    return next((kind(**value) for name, kind in kinds.items() if name in value), value)


class Builder:
    """The collections on Milvus that follow one store, under one name."""

    def __init__(self, store: Store, server: Server, layout: Callable[[int], Layout]) -> None:
        address = server.address
        self.store = store
        self.server = server
        self.layout = layout
        self.base: str = address.options["collection"]
        # who comes by another name of the host gets a copy of his own
        place = f"{address.host or 'localhost'}:{address.port or 19530}"
        self.name = f"{address.scheme}://{place}/{address.database}?collection={self.base}"
        self.written = 0  # rows since the last flush

    def note(self, session: Session) -> Note:
        return Note.read(session, self.name)

    def build(self) -> None:
        """A collection with all codes in use, in the place of the one that there is."""
        while True:
            state, former, collection = self._begin()
            copy = self._copy(collection, state.fingerprint, state.position)
            self._walk(copy, state.in_use, state)
            done: list[bool] = []
            self.patiently(lambda: done.append(self._finish(copy, former)))  # noqa: B023
            if done[-1]:
                return

    def prepare(self) -> None:
        """A collection with the coming codes, if all are there; what changes until they are in use is pushed then."""

        def wanted(session: Session) -> bool:
            state, coming = session.state(), self.note(session).coming
            if not state.coming or session.pending(1):
                return False
            if coming is None or coming.fingerprint != state.coming:
                return True
            return not follows(session, replace(coming.position, generation=state.generation))

        if not self.store.read(wanted):
            return
        state, _, collection = self._begin()
        copy = self._copy(collection, state.coming, replace(state.position, generation=state.generation + 1))
        self._walk(copy, state.in_preparation, state)
        self.drop(self.store.write(lambda session: self.noted(session, coming=copy), "following the store"))

    def _copy(self, collection: str, fingerprint: str, position: Position) -> Copy:
        return Copy(collection, fingerprint, self.server.address.options["partitions"], position)

    def _begin(self) -> tuple[State, set[str], str]:
        """What the store holds, which collections there are, and the name of a new one that nobody else builds."""
        highest, unmarked = self.survey()

        def work(session: Session) -> tuple[State, set[str], int]:
            note = self.note(session)
            number = unmarked if unmarked > note.last else max(note.last, highest) + 1
            replace(note, last=number).leave(session, self.name)
            return session.state(), note.collections, number

        state, former, number = self.store.write(work, "following the store")
        return state, former, f"{self.base}_{number}"

    def survey(self) -> tuple[int, int]:
        """The highest number of our collections, and that of one that may have been made for us (0: none)."""
        highest, unmarked, state = 0, 0, self.store.state()
        for collection, number in self.numbered():
            properties = self.server.properties(collection)
            highest = max(highest, number)
            if properties and STORE in properties:
                self.require_ours(collection, properties, state)
            elif properties is not None:
                unmarked = number
        return highest, unmarked

    def numbered(self) -> Iterator[tuple[str, int]]:
        for collection in self.server.collections():
            if match := re.fullmatch(rf"{re.escape(self.base)}_(\d+)", collection):
                yield collection, int(match[1])

    def _walk(self, copy: Copy, generation: Generation, state: State) -> None:
        """Make a collection and write all rows, as they are when they are read."""
        self._create(copy.collection, self.layout(generation.bits), state)
        after, rows = 0, 0

        def part(session: Session) -> tuple[Ids, Codes, dict[int, Caption]]:
            ids, codes = session.codes(generation, after=after, limit=BATCH)
            return ids, codes, session.captions(ids.tolist())

        while len((found := self.store.read(part, "reading codes"))[0]):
            self.server.upsert(copy.collection, to_rows(*found, copy.partitions))
            after, rows = int(found[0][-1]), rows + len(found[0])
        if rows >= WORTH_AN_INDEX:
            self.server.flush(copy.collection)

    def _create(self, collection: str, layout: Layout, state: State) -> None:
        """A collection that says whose it is; one that was made for us, with settings of others, is taken if empty."""
        properties = {STORE: state.identity, REACHED: reached(state.position)}
        self.server.create(collection, layout, properties)
        if STORE not in (self.server.properties(collection) or {}):
            if self.server.count(collection, "", STRONG):
                raise ConfigError(
                    f"{self.server.address.shown}: {collection!r} holds rows of others; choose another name with "
                    "?collection=…"
                )
            self.server.note(collection, properties)
        self.require_ours(collection, self.server.properties(collection) or {}, state)

    def _finish(self, copy: Copy, former: set[str]) -> bool:
        """Take a collection into use that has just been built; False: the store has gone too far, build again."""

        def work(session: Session) -> tuple[bool, set[str]]:
            there = self.note(session).usable(session)
            if there and there.collection not in former:  # others were quicker
                return True, {copy.collection}
            if not copy.usable(session):
                return False, {copy.collection}
            self.push_changed(session, copy, session.changed(copy.position.commit, codes_only=False))
            return True, self.noted(session, current=replace(copy, position=session.state().position))

        done, left = self.store.write(work, "following the store")
        self.drop(left)
        return done

    # ── rows and notes ───────────────────────────────────────────────────────────────────────────────────

    def push_changed(self, session: Session, copy: Copy, changed: Ids) -> None:
        """Write rows as the store has them now; of photos that are gone none."""
        self.server.note(copy.collection, {REACHED: reached(session.state().position)}, once=True)
        for start in range(0, len(changed), BATCH):
            some = changed[start : start + BATCH]
            ids, codes = session.codes_of(some)
            rows = to_rows(ids, codes, session.captions(ids.tolist()), copy.partitions)
            self.server.upsert(copy.collection, rows, once=True)
            self.server.delete(copy.collection, np.setdiff1d(some, ids).tolist(), once=True)
        self.written += len(changed)

    def noted(self, session: Session, **copies: Copy | None) -> set[str]:
        """Leave a note of other copies; the collections that are not needed any more."""
        before = self.note(session)
        after = replace(before, **copies)  # type: ignore[arg-type]
        after.leave(session, self.name)
        return before.collections - after.collections

    def drop(self, collections: set[str]) -> None:
        for collection in collections:
            self.server.drop(collection)

    def require_ours(self, collection: str, properties: dict[str, str], state: State) -> None:
        if properties.get(STORE) != state.identity:
            raise ConfigError(
                f"{self.server.address.shown}: {collection!r} holds the photos of another store; one collection on "
                "Milvus follows one store: give both folders the same with --store postgresql://…, or choose another "
                "name with ?collection=…"
            )

    def patiently(self, work: Callable[[], None]) -> None:
        """Done again while Milvus is away; in between nobody is kept from writing into the store."""
        retry(
            work, passing=lambda error: isinstance(error, AwayError), what="following the store",
            server=self.server.address.shown, patience=self.server.patience,
        )  # fmt: skip


def reached(position: Position) -> str:
    return f"{position.commit} {position.stamp}"
