"""Copies of the codes of a store on Milvus: building one, and how it follows the store.

The store holds a note for the searcher: which collection is in use, up to which commit it has come, and which one is
prepared for coming codes. Rows of photos that changed are pushed to Milvus inside the same exclusive transaction of the
store that writes the note, so followers take turns by that, on whichever machine they are. Pushing is repeatable: rows
are read anew from the store and written under their ids; an attempt that was interrupted is made again from the note.

A collection is built beside the one in use (NAME_2 beside NAME_1) by a walk through the store, which goes on meanwhile;
at its end the note names the new one, the former is dropped, and what changed since the walk began is pushed as ever.

A collection on Milvus says in its properties which store it belongs to, and up to which commit it may have rows. A
store that was restored from a backup does not know that commit: then the copy has photos that the store has lost, and
is built anew.
"""

import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.errors import ConfigError, LabelError
from hyphash.searchers.milvus.server import BATCH, MOST_LABELS, STRONG, AwayError, Row, Server
from hyphash.stores import Ids, Position, Session, State, Store, follows, improper, walk
from hyphash.stores.retry import retry

STORE, REACHED = "hyphash.store", "hyphash.reached"  # properties of a collection
WORTH_AN_INDEX = 1024  # rows; Milvus searches smaller segments without
MANY = 50_000  # changes after which it is quicker to build a collection anew, if they are half of all photos
ROW = ("code", "labels", "tagged")  # what a row has beside its id
MARK = np.dtype([("id", np.int64), ("mark", np.int64)])

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Copy:
    """A collection on Milvus with the codes of one hasher."""

    collection: str
    fingerprint: str
    partitions: int
    position: Position

    def usable(self, session: Session) -> bool:
        """Whether changes that the store knows bring it up to date."""
        return self.fingerprint == session.state().fingerprint and follows(session, self.position)


@dataclass(frozen=True)
class Note:
    """What the searcher has left in the store."""

    last: int = 0  # number that was given to a collection
    current: Copy | None = None
    coming: Copy | None = None  # prepared for the codes of another hasher

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

    def __init__(self, store: Store, server: Server) -> None:
        address = server.address
        self.store = store
        self.server = server
        self.base: str = address.options["collection"]
        self.partitions: int = address.options["partitions"]
        # who comes by another name of the host gets a copy of his own
        place = f"{address.host or 'localhost'}:{address.port or 19530}"
        self.name = f"{address.scheme}://{place}/{address.database}?collection={self.base}"
        self.written = 0  # rows since the last flush

    def note(self, session: Session) -> Note:
        return Note(**json.loads(session.note(self.name) or "{}", object_hook=_object))

    def _leave(self, session: Session, note: Note) -> None:
        session.leave_note(self.name, json.dumps(asdict(note)))

    def build(self) -> None:
        """A collection with all codes in use, in the place of the one that there is.

        It is behind by what changed since the walk began; if that is not known any more, it is good for nothing.
        """
        copy, former = self._copied()

        def work(session: Session) -> set[str]:
            there = self.note(session).usable(session)
            quicker = there is not None and there.collection not in former  # others were
            return {copy.collection} if quicker or not copy.usable(session) else self.noted(session, current=copy)

        self.drop(self.store.write(work, "following the store"))

    def prepare(self) -> None:
        """A collection with the coming codes, if all are there; what changes until they are in use is pushed then."""

        def wanted(session: Session) -> bool:
            state, coming = session.state(), self.note(session).coming
            if not state.coming or session.pending(1):
                return False
            if coming is None or coming.fingerprint != state.coming:
                return True
            return not follows(session, replace(coming.position, generation=state.generation))

        if self.store.read(wanted):
            copy, _ = self._copied(coming=True)
            self.drop(self.store.write(lambda session: self.noted(session, coming=copy), "following the store"))

    def _begin(self) -> tuple[State, set[str], str]:
        """What the store holds, which collections there are, and the name of a new one that nobody else builds."""
        highest, unmarked, state = 0, 0, self.store.state()  # unmarked: one that may have been made for us
        for collection, number in self.numbered():
            properties = self.server.properties(collection)
            highest = max(highest, number)
            if properties and STORE in properties:
                self.require_ours(collection, properties, state)
            elif properties is not None:
                unmarked = number

        def work(session: Session) -> tuple[State, set[str], int]:
            note = self.note(session)
            number = unmarked if unmarked > note.last else max(note.last, highest) + 1
            self._leave(session, replace(note, last=number))
            return session.state(), note.collections, number

        state, former, number = self.store.write(work, "following the store")
        return state, former, f"{self.base}_{number}"

    def numbered(self) -> Iterator[tuple[str, int]]:
        for collection in self.server.collections():
            if match := re.fullmatch(rf"{re.escape(self.base)}_(\d+)", collection):
                yield collection, int(match[1])

    def _copied(self, *, coming: bool = False) -> tuple[Copy, set[str]]:
        """A new collection with all rows, as they are when they are read, and those that there were before it."""
        state, former, collection = self._begin()
        generation, fingerprint = state.in_use, state.fingerprint
        if coming:
            generation, fingerprint = state.in_preparation, state.coming
        position = replace(state.position, generation=generation.number)
        copy, rows = Copy(collection, fingerprint, self.partitions, position), 0
        self._create(collection, generation.bits, state)

        def part_after(after: int) -> tuple[Ids, list[Row]]:
            def work(session: Session) -> tuple[Ids, list[Row]]:
                ids, codes, _ = session.derived(generation, after=after, limit=BATCH)
                return ids, to_rows(session, ids, codes, copy.partitions)

            return self.store.read(work, "reading codes")

        for ids, some in walk(part_after):
            self.server.upsert(collection, some)
            rows += len(ids)
        if rows >= WORTH_AN_INDEX:
            self.server.flush(collection)
        return copy, former

    def _create(self, collection: str, bits: int, state: State) -> None:
        """A collection that says whose it is; one that was made for us, with settings of others, is taken if empty."""
        properties = {STORE: state.identity, REACHED: reached(state.position)}
        self.server.create(collection, bits, properties)
        if STORE not in (self.server.properties(collection) or {}):
            if self.server.count(collection, "", STRONG):
                raise ConfigError(
                    f"{self.server.address.shown}: {collection!r} holds rows of others; choose another name with "
                    "?collection=…"
                )
            self.server.note(collection, properties)
        self.require_ours(collection, self.server.properties(collection) or {}, state)

    # ── following ────────────────────────────────────────────────────────────────────────────────────────

    def push(self) -> None:
        """Bring the collection in use up to date; again while Milvus is away, in between others may write."""

        def work(session: Session) -> set[str] | None:
            note, state = self.note(session), session.state()
            copy = note.usable(session)
            if copy is None or (copy == note.current and copy.position == state.position):
                return set()  # it has to be built, or others have seen to it
            changed = session.changed(copy.position.commit, labels=True)
            properties = self.server.properties(copy.collection, once=True)
            if len(changed) > max(MANY, state.photos // 2) or not self.sound(session, copy, properties):
                return None
            self.push_changed(session, copy, changed)
            coming = note.coming if copy == note.current else None
            return self.noted(session, current=replace(copy, position=state.position), coming=coming)

        former = retry(
            lambda: self.store.write(work, "following the store"), passing=lambda error: isinstance(error, AwayError),
            what="following the store", server=self.server.address.shown, patience=self.server.patience,
        )  # fmt: skip
        if former is None:
            self.build()
        else:
            self.drop(former)

    def sound(self, session: Session, copy: Copy, properties: dict[str, str] | None) -> bool:
        """Whether a collection is there, of this store, with nothing that the store does not know."""
        shown, state = self.server.address.shown, session.state()
        if properties is None:
            log.warning("%s: the collection %r is gone, and built anew", shown, copy.collection)
            return False
        self.require_ours(copy.collection, properties, state)
        commit, _, stamp = properties.get(REACHED, "0 ").partition(" ")
        if int(commit) > state.commit or session.stamp(int(commit)) != stamp:
            log.warning("%s: the store has another past than its copy, which is built anew", shown)
            return False
        return True

    def differing(self, suspects: Ids) -> list[int]:
        """Those that differ while nobody writes, and not because their change is on its way."""

        def work(session: Session) -> list[int]:
            if (copy := self.note(session).usable(session)) is None:
                return []
            coming = session.changed(copy.position.commit, labels=True)
            ours = marks(to_rows(session, *session.derived_of(suspects)[:2]))
            rows = self.server.query(copy.collection, f"id in {suspects.tolist()}", ("id", *ROW), STRONG)
            return [int(id) for id in np.setdiff1d(np.setxor1d(ours, marks(rows))["id"], coming)]

        return self.store.write(work, "comparing")

    # ── rows and notes ───────────────────────────────────────────────────────────────────────────────────

    def push_changed(self, session: Session, copy: Copy, changed: Ids) -> None:
        """Write rows as the store has them now; of photos that are gone none."""
        self.server.note(copy.collection, {REACHED: reached(session.state().position)}, once=True)
        for start in range(0, len(changed), BATCH):
            some = changed[start : start + BATCH]
            ids, codes, _ = session.derived_of(some)
            rows = to_rows(session, ids, codes, copy.partitions)
            self.server.upsert(copy.collection, rows, once=True)
            self.server.delete(copy.collection, np.setdiff1d(some, ids).tolist(), once=True)
        self.written += len(changed)

    def noted(self, session: Session, **copies: Copy | None) -> set[str]:
        """Leave a note of other copies; the collections that are not needed any more."""
        before = self.note(session)
        after = replace(before, **copies)  # type: ignore[arg-type]
        self._leave(session, after)
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


def reached(position: Position) -> str:
    return f"{position.commit} {position.stamp}"


def to_rows(session: Session, ids: Ids, codes: Codes, partitions: int = 0) -> list[Row]:
    """Rows of the photos that are there still."""
    rows: list[Row] = []
    captions = session.captions(ids.tolist())
    for id, code in zip(ids.tolist(), codes.packed, strict=True):
        if id in captions:
            labels = captions[id].labels
            if len(labels) > MOST_LABELS:
                raise LabelError(
                    f"photo {id}: {len(labels)} labels; Milvus keeps at most {MOST_LABELS} a photo: take some away, or "
                    "search with another engine"
                )
            part = {"part": id % partitions} if partitions else {}
            numbers = [label_number(label) for label in labels]
            rows.append({"id": id, "code": code.tobytes(), "labels": numbers, "tagged": bool(labels), **part})
    return rows


@lru_cache(100_000)
def label_number(label: str) -> int:
    """A number that stands for a label: it needs no quotes, and is never too long."""
    try:
        digest = blake2b(label.encode(), digest_size=8).digest()
    except UnicodeEncodeError as error:
        raise improper("Milvus", error) from None
    return int.from_bytes(digest, "little", signed=True)


def marks(rows: Sequence[Row]) -> NDArray[np.void]:
    """Ids with a number that stands for all else in a row, for this process."""
    return np.array([(row["id"], hash((_code(row), *sorted(row["labels"]), row["tagged"]))) for row in rows], MARK)


def _code(row: Row) -> bytes:
    code = row["code"]
    return bytes(code if isinstance(code, bytes) else code[0])
