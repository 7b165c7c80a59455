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

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.errors import ConfigError, LabelError
from hyphash.searchers.milvus.server import BATCH, LIMIT, MOST_LABELS, STRONG, AwayError, Layout, Row, Server
from hyphash.stores import Caption, Generation, Ids, Position, Session, State, Store, follows, improper, require_hasher
from hyphash.stores.retry import retry

STORE, REACHED = "hyphash.store", "hyphash.reached"  # properties of a collection
MANY = 50_000  # changes after which it is quicker to build a collection anew, if they are half of all photos
WORTH_AN_INDEX = 1024  # rows; Milvus searches smaller segments without

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Copy:
    """A collection on Milvus with the codes of one hasher."""

    collection: str
    fingerprint: str
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


class Copies:
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
        self._written = 0  # rows since the last flush
        self._seen: tuple[str, Position] | None = None  # a collection, and where the store was when it was looked at

    # ── which one to search ──────────────────────────────────────────────────────────────────────────────

    def position(self) -> Position | None:
        def work(session: Session) -> Position | None:
            copy = Note.read(session, self.name).usable(session)
            return copy.position if copy else None

        return self.store.read(work)

    def current(self, *, fingerprint: str | None = None, catch_up: bool = True) -> tuple[State, Copy]:
        """What the store holds, and the collection to search; one that is behind is brought up to date before."""

        def look(session: Session) -> tuple[State, Copy | None, bool]:
            state, copy = session.state(), Note.read(session, self.name).usable(session)
            return state, copy, copy is not None and self._known(session, copy)

        while True:
            state, copy, known = self.store.read(look)
            if fingerprint is not None:
                require_hasher(state, fingerprint, self.store.shown)
            if copy is not None and not known and not self._sound(copy, state):
                copy = None
            if copy is None:
                self.build()
            elif copy.position == state.position or not catch_up:
                return state, copy
            else:
                self._patiently(self._push)

    def _known(self, session: Session, copy: Copy) -> bool:
        """Whether this process has looked at the collection, and the store goes on from where it was then."""
        if self._seen is None or self._seen[0] != copy.collection:
            return False
        seen, position = self._seen[1], session.state().position
        if seen == position or session.stamp(seen.commit) == seen.stamp:
            self._seen = copy.collection, position
            return True
        return False

    def _sound(self, copy: Copy, state: State) -> bool:
        """Whether a collection is there, of this store, with nothing that the store does not know."""
        properties = self.server.properties(copy.collection)
        if properties is None:
            log.warning("%s: the collection %r is gone, and built anew", self.server.address.shown, copy.collection)
            return False
        self._require_ours(copy.collection, properties, state)
        commit, _, stamp = properties.get(REACHED, "0 ").partition(" ")
        if int(commit) > state.commit or self.store.read(lambda session: session.stamp(int(commit))) != stamp:
            log.warning("%s: the store has another past than its copy, which is built anew", self.server.address.shown)
            return False
        self._seen = copy.collection, state.position
        return True

    def forget(self) -> None:
        """Look at the collection again: the server says that it is gone."""
        self._seen = None

    def _require_ours(self, collection: str, properties: dict[str, str], state: State) -> None:
        if properties.get(STORE) != state.identity:
            raise ConfigError(
                f"{self.server.address.shown}: {collection!r} holds the photos of another store; one collection on "
                "Milvus follows one store: give both folders the same with --store postgresql://…, or choose another "
                "name with ?collection=…"
            )

    # ── following ────────────────────────────────────────────────────────────────────────────────────────

    def _patiently(self, work: Callable[[], None]) -> None:
        """Done again while Milvus is away; in between nobody is kept from writing into the store."""
        retry(
            work, passing=lambda error: isinstance(error, AwayError), what="following the store",
            server=self.server.address.shown, patience=self.server.patience,
        )  # fmt: skip

    def _push(self) -> None:
        """Bring the collection in use up to date, by the changes since."""

        def work(session: Session) -> set[str] | None:
            note, state = Note.read(session, self.name), session.state()
            copy = note.usable(session)
            if copy is None or (copy == note.current and copy.position == state.position):
                return set()  # it has to be built, or others have seen to it
            changed = session.changed(copy.position.commit, codes_only=False)
            if len(changed) > max(MANY, state.photos // 2):
                return None
            self._push_changed(session, copy, changed)
            coming = note.coming if copy == note.current else None
            return self._noted(session, current=replace(copy, position=state.position), coming=coming)

        former = self.store.write(work, "following the store")
        if former is None:
            self.build()
        else:
            self._drop(former)

    def _push_changed(self, session: Session, copy: Copy, changed: Ids) -> None:
        """Write rows as the store has them now; of photos that are gone none."""
        self.server.note(copy.collection, {REACHED: reached(session.state().position)}, once=True)
        for start in range(0, len(changed), BATCH):
            some = changed[start : start + BATCH]
            ids, codes = session.codes_of(some)
            self.server.upsert(copy.collection, self._rows(ids, codes, session.captions(ids.tolist())), once=True)
            self.server.delete(copy.collection, np.setdiff1d(some, ids).tolist(), once=True)
        self._written += len(changed)

    def _rows(self, ids: Ids, codes: Codes, captions: dict[int, Caption]) -> list[Row]:
        partitions = self.layout(codes.bits).partitions
        return [
            row(id, code.tobytes(), captions[id].labels, partitions)
            for id, code in zip(ids.tolist(), codes.packed, strict=True)
            if id in captions
        ]

    # ── building ─────────────────────────────────────────────────────────────────────────────────────────

    def build(self) -> None:
        """A collection with all codes in use, in the place of the one that there is."""
        while True:
            state, former, collection = self._begin()
            copy = Copy(collection, state.fingerprint, state.position)
            self._walk(copy, state.in_use, state)
            done: list[bool] = []
            self._patiently(lambda: done.append(self._finish(copy, former)))  # noqa: B023
            if done[-1]:
                return

    def prepare(self) -> None:
        """A collection with the coming codes, if all are there; what changes until they are in use is pushed then."""

        def wanted(session: Session) -> bool:
            state, coming = session.state(), Note.read(session, self.name).coming
            if not state.coming or session.pending(1):
                return False
            if coming is None or coming.fingerprint != state.coming:
                return True
            return not follows(session, replace(coming.position, generation=state.generation))

        if not self.store.read(wanted):
            return
        state, _, collection = self._begin()
        copy = Copy(collection, state.coming, replace(state.position, generation=state.generation + 1))
        self._walk(copy, state.in_preparation, state)
        self._drop(self.store.write(lambda session: self._noted(session, coming=copy), "following the store"))

    def _begin(self) -> tuple[State, set[str], str]:
        """What the store holds, which collections there are, and the name of a new one that nobody else builds."""
        highest, unmarked = self.survey()

        def work(session: Session) -> tuple[State, set[str], int]:
            note = Note.read(session, self.name)
            number = unmarked if unmarked > note.last else max(note.last, highest) + 1
            replace(note, last=number).leave(session, self.name)
            return session.state(), note.collections, number

        state, former, number = self.store.write(work, "following the store")
        return state, former, f"{self.base}_{number}"

    def survey(self) -> tuple[int, int]:
        """The highest number of our collections, and that of one that may have been made for us (0: none)."""
        highest, unmarked, state = 0, 0, self.store.state()
        for collection, number in self._numbered():
            properties = self.server.properties(collection)
            highest = max(highest, number)
            if properties and STORE in properties:
                self._require_ours(collection, properties, state)
            elif properties is not None:
                unmarked = number
        return highest, unmarked

    def _numbered(self) -> Iterator[tuple[str, int]]:
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
            self.server.upsert(copy.collection, self._rows(*found))
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
        self._require_ours(collection, self.server.properties(collection) or {}, state)

    def _finish(self, copy: Copy, former: set[str]) -> bool:
        """Take a collection into use that has just been built; False: the store has gone too far, build again."""

        def work(session: Session) -> tuple[bool, set[str]]:
            there = Note.read(session, self.name).usable(session)
            if there and there.collection not in former:  # others were quicker
                return True, {copy.collection}
            if not copy.usable(session):
                return False, {copy.collection}
            self._push_changed(session, copy, session.changed(copy.position.commit, codes_only=False))
            position = session.state().position
            self._seen = copy.collection, position
            return True, self._noted(session, current=replace(copy, position=position))

        done, left = self.store.write(work, "following the store")
        self._drop(left)
        return done

    def _noted(self, session: Session, **copies: Copy | None) -> set[str]:
        """Leave a note of other copies; the collections that are not needed any more."""
        before = Note.read(session, self.name)
        after = replace(before, **copies)  # type: ignore[arg-type]
        after.leave(session, self.name)
        return before.collections - after.collections

    def _drop(self, collections: set[str]) -> None:
        for collection in collections:
            self.server.drop(collection)

    # ── maintenance ──────────────────────────────────────────────────────────────────────────────────────

    def flush(self) -> None:
        """Have the index built over what was added, if it is enough for one."""
        if self._written >= WORTH_AN_INDEX:
            self.server.flush(self.current()[1].collection)
            self._written = 0

    def compact(self) -> None:
        """Drop what was left behind by builds that were interrupted, and have Milvus join its segments."""
        state, copy = self.current()
        kept = self.store.read(lambda session: Note.read(session, self.name)).collections
        left = {collection for collection, _ in self._numbered()} - kept
        self._drop({name for name in left if (self.server.properties(name) or {}).get(STORE) == state.identity})
        self.server.compact(copy.collection)

    def differences(self, shown: int = 20) -> list[str]:
        """Where the rows on Milvus differ from the store, in words."""
        note = self.store.read(lambda session: Note.read(session, self.name))
        place, advice = self.server.address.shown, "build it anew with `hyphash collection rebuild`"
        if note.current and self.server.properties(note.current.collection) is None:
            return [f"{place}: the collection {note.current.collection!r} is gone; {advice}"]
        state, copy = self.current()
        theirs = (marks(rows) for rows in self.server.walk(copy.collection, ROW, STRONG))
        ours = (
            marks(self._rows(ids, codes, self.store.captions(ids.tolist())))
            for ids, codes in self.store.scan(state.in_use)
        )
        suspects = np.setxor1d(joined(ours), joined(theirs))["id"]
        wrong = self._still_differing(np.unique(suspects)[:LIMIT]) if len(suspects) else []
        return [f"{place}: photo {id} is not what the store holds; {advice}" for id in wrong[:shown]]

    def _still_differing(self, suspects: Ids) -> list[int]:
        """Those that differ while nobody writes, and not because their change is on its way."""

        def work(session: Session) -> list[int]:
            copy = Note.read(session, self.name).usable(session)
            if copy is None:
                return []
            coming = session.changed(copy.position.commit, codes_only=False)
            ids, codes = session.codes_of(suspects)
            ours = marks(self._rows(ids, codes, session.captions(ids.tolist())))
            rows = self.server.query(copy.collection, f"id in {suspects.tolist()}", ("id", *ROW), STRONG)
            return [int(id) for id in np.setdiff1d(np.setxor1d(ours, marks(rows))["id"], coming)]

        return self.store.write(work, "comparing")


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────

ROW = ("code", "labels", "tagged")  # what a row has beside its id
MARK = np.dtype([("id", np.int64), ("mark", np.int64)])


def row(id: int, code: bytes, labels: Sequence[str], partitions: int) -> Row:
    if len(labels) > MOST_LABELS:
        raise LabelError(
            f"photo {id}: {len(labels)} labels; Milvus keeps at most {MOST_LABELS} a photo: take some away, or search "
            "with another engine"
        )
    found: Row = {"id": id, "code": code, "labels": [label_number(label) for label in labels], "tagged": bool(labels)}
    return found | {"part": id % partitions} if partitions else found


def label_number(label: str) -> int:
    """A number that stands for a label: it needs no quotes, and is never too long."""
    try:
        digest = blake2b(label.encode(), digest_size=8).digest()
    except UnicodeEncodeError as error:
        raise improper("Milvus", error) from None
    return int.from_bytes(digest, "little", signed=True)


def reached(position: Position) -> str:
    return f"{position.commit} {position.stamp}"


def marks(rows: Sequence[Row]) -> NDArray[np.void]:
    """Ids with a number that stands for all else in a row, for this process."""
    return np.array([(row["id"], hash((_code(row), *sorted(row["labels"]), row["tagged"]))) for row in rows], MARK)


def joined(parts: Iterable[NDArray[np.void]]) -> NDArray[np.void]:
    return np.concatenate([np.empty(0, MARK), *parts])


def _code(row: Row) -> bytes:
    code = row["code"]
    return bytes(code if isinstance(code, bytes) else code[0])


def _object(value: dict[str, Any]) -> Any:
    """The dataclass behind a JSON object of a note."""
    kinds = {"stamp": Position, "collection": Copy}
    return next((kind(**value) for name, kind in kinds.items() if name in value), value)
