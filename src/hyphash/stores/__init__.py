"""Stores: the truth about a collection. Photos, labels, codes and commits, changed in transactions and lost never.

A store is found by the scheme of its URL (`postgresql://…`) or by its name (`sqlite`). The rules of a collection stand
here once, in `Session`; a store of its own kind implements what they need to read and write inside of one transaction,
and how to get one. Searchers are derived from a store: they follow its commits and can be rebuilt from it at any time.
"""

import json
import re
import secrets
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from functools import wraps
from importlib.resources import files
from itertools import count
from pathlib import Path
from string import Template
from typing import Any, ClassVar, Concatenate, NamedTuple, ParamSpec, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes, bytes_for, is_fingerprint
from hyphash.errors import CodesError, CollectionError, OtherHasherError
from hyphash.registry import Registry

Ids = NDArray[np.int64]
Words = NDArray[np.uint64]
Scores = NDArray[np.uint8]  # (photos, bytes): of labels, as `hyphash.labels` packs them
T = TypeVar("T")
P = ParamSpec("P")
Row = tuple[Any, ...]
Part = TypeVar("Part", bound=Row)  # ids first

SHOWN = 20  # of things that are wrong in the same way
SCANNED = 100_000  # photos that are read at once in a walk through all
KEPT_CHANGES = 100_000  # as many are remembered at least; a follower that is further behind is built anew
KEPT_SHARE = 10  # or as many as one photo in so many


@dataclass(frozen=True)
class Facts:
    """What is known of the file of a photo, whichever hasher looks at it and whatever people say of it."""

    content: str  # SHA-256 of the bytes, in hex
    size: int = 0  # in bytes
    modified: int = 0  # time of the file in ns; 0: not known, so the file has to be read to see a change
    width: int = 0
    height: int = 0
    thumbnail_hash: bytes = b""  # 64 bits of light and dark, for near-duplicates
    # what its camera wrote into it
    taken: int | None = None  # in seconds since 1970 by the clock on the wall where it was taken
    camera: str | None = None  # empty: it does not say; None: nobody has looked for any of these yet
    latitude: float | None = None  # in degrees, north and east
    longitude: float | None = None


@dataclass(frozen=True, kw_only=True)
class Photo:
    """A photo as a collection knows it. Its path says which one it is, its content whether it has changed."""

    id: int = 0  # given by the store, stable, never used again; 0: not stored yet
    path: str  # of the file, or what people call a photo that is none
    facts: Facts  # of its file
    # what people said
    labels: tuple[str, ...] = ()  # what it carries
    given: tuple[str, ...] | None = None  # what its source said last; None: nothing
    refused: tuple[str, ...] = ()  # suggestions that a person turned down
    # what a hasher derived; another hasher replaces it as a whole
    code: bytes
    scores: bytes = b""  # of labels; none: the hasher has no label layer
    added: str = ""  # UTC
    changed: str = ""


class Caption(NamedTuple):
    """What is shown of a photo that was found."""

    path: str
    labels: tuple[str, ...]
    width: int = 0
    height: int = 0


@dataclass(frozen=True)
class Removed:
    """A photo that a person took out of the collection, and what had been said of it."""

    id: int
    path: str
    content: str
    time: str  # UTC
    trashed: str | None  # the collection in whose trash its file lies; None: it is where it was
    labels: tuple[str, ...]
    given: tuple[str, ...] | None
    refused: tuple[str, ...]

    @classmethod
    def of(cls, row: Row) -> "Removed":
        id, path, content, time, trashed, text = row
        try:
            said = json.loads(text)
            words = said["labels"], said["given"] or (), said["refused"]
            labels, given, refused = (tuple(str.encode(word).decode() for word in some) for some in words)  # of texts
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise CollectionError(f"{path}: what was said of it is damaged; restore a backup") from error
        return cls(
            id, path, content.hex(), time, trashed, labels, given if said["given"] is not None else None, refused
        )


class Generation(NamedTuple):
    """Codes that one hasher made; a collection has one generation after the other."""

    number: int
    bits: int


@dataclass(frozen=True)
class Position:
    """How far a follower of a store has come: up to which commit, with the codes of which hasher."""

    generation: int  # of codes: one for each hasher that the collection has had
    commit: int
    stamp: str  # of that commit, random: a store that was restored from a backup goes on with other stamps


@dataclass(frozen=True, kw_only=True)
class State:
    """What a store holds at this moment; its commit grows with every change. Stores have a column for each field."""

    identity: str = field(default_factory=lambda: secrets.token_hex(16))  # of this store among all there are
    fingerprint: str  # of the hasher
    bits: int
    generation: int = 1  # these three: see Position
    commit: int = 0
    stamp: str = ""
    photos: int = 0  # how many there are
    last_id: int = 0  # that was ever given
    pruned: int = 0  # what changed after this commit is still known
    changes: int = 0  # how many those are, about
    coming: str = ""  # fingerprint of the hasher that codes are prepared for
    coming_bits: int = 0

    @property
    def position(self) -> Position:
        return Position(self.generation, self.commit, self.stamp)

    @property
    def remembered(self) -> int:
        """Changes that are worth remembering: a follower that is further behind is built anew in less time."""
        return max(KEPT_CHANGES, self.photos // KEPT_SHARE)

    @property
    def in_use(self) -> Generation:
        return Generation(self.generation, self.bits)

    @property
    def in_preparation(self) -> Generation:
        return Generation(self.generation + 1, self.coming_bits)

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> "State":
        """The state in the columns of a store, which may have others besides."""
        known: dict[str, Any] = {column.name: columns.get(column.name) for column in fields(cls)}
        for name, found in known.items():
            if not isinstance(found, cls.__annotations__[name]) or (isinstance(found, int) and not 0 <= found < 2**62):
                raise CollectionError(f"{name} {found!r:.80}: a damaged collection; restore it from a backup")
        for found in filter(None, (known["fingerprint"], known["coming"])):
            if not is_fingerprint(found):  # it names a folder, and somebody may have sent the store
                raise CollectionError(f"the fingerprint of a hasher has 16 hex digits, which {found!r:.80} has not")
        return cls(**known)


@dataclass(frozen=True)
class Change:
    """A photo before and after a change; None before: it is new."""

    before: Photo | None
    after: Photo

    @property
    def shows_other(self) -> bool:
        """Whether code and scores have to be stored: the photo is new, or shows something else than before."""
        old, new = self.before, self.after
        return old is None or (old.facts.content, old.code, old.scores) != (new.facts.content, new.code, new.scores)

    @property
    def is_other(self) -> bool:
        """Whether followers that know nothing of labels have to hear of it: code, scores, path or facts changed."""
        old, new = self.before, self.after
        return old is None or self.shows_other or (old.path, old.facts) != (new.path, new.facts)


class Tables(ABC):
    """One transaction on the tables of a store: everything that is read is of one moment.

    What SQLite and PostgreSQL say alike stands once, in SQL with a ? for each value; a dialect says how it is run.
    """

    package: ClassVar[str]  # where its SQL files are
    tables: str  # the schema that they are in
    columns: ClassVar[str]  # of a photo `p` and its code `c`
    shown: str  # where they are, for messages, without a password

    @abstractmethod
    def run(self, statement: str, values: Sequence[Any] = ()) -> Iterable[Row]:
        """Execute a statement that is ours, names of tables and all; values go their own way."""

    @abstractmethod
    def arrays(self, select: str, values: Sequence[Any] = (), **widths: int) -> list[NDArray[Any]]:
        """The rows of a SELECT, many of them fast: all ids, then (rows, bytes) for each column that has so many bytes.

        A column `code` comes as our codes are packed.
        """

    @abstractmethod
    def one_of(self, column: str, values: Sequence[Any]) -> tuple[str, Any]:
        """The condition that a column has one of many values, and these as one value."""

    @abstractmethod
    def codes_table(self, generation: int) -> str:
        """What to select `id`, `code` and `scores` from."""

    def to_photo(self, row: Row) -> Photo:
        """A photo from its `columns`."""
        return to_photo(row)

    @abstractmethod
    def state(self) -> State: ...

    def value(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """The one value that a statement gives; None: no row."""
        return next((row[0] for row in self.run(statement, values)), None)

    def findings(self) -> list[str]:
        """All that is wrong with the tables, in words; of each kind some."""
        state, checks = self.state(), read_sql(self.package, "checks") + read_sql(__package__, "checks")
        filled = Template(checks).substitute(vars(state), tables=self.tables, codes=self.codes_table(state.generation))
        return [
            words.format(*row)
            for words, query in re.findall(r"-- (.+)\n(SELECT[^;]+);", filled)
            for row in self.run(f"{query} LIMIT {SHOWN}")
        ]

    @abstractmethod
    def begin_commit(self, state: State, what: str) -> None:
        """Enter a commit, whose number and stamp are those of `state`, and make `state` what the store holds."""

    @abstractmethod
    def set_state(self, state: State) -> None: ...

    def stamp(self, commit: int) -> str:
        """The stamp of a commit; empty where the store does not know it (any more)."""
        return self.value(f"SELECT stamp FROM {self.tables}.commits WHERE number = ?", [commit]) or ""

    def changed(self, since: int, *, labels: bool) -> Ids:
        """The photos that came, changed or went after a commit, by id; without `labels` only if more than these did."""
        which = "" if labels else "AND code"
        select = f"SELECT DISTINCT photo FROM {self.tables}.changes WHERE number > ? {which} ORDER BY photo"
        return self.arrays(select, [since])[0]

    def prune(self) -> None:
        """Forget all but about the last changes that are worth remembering, whole commits of them.

        Stamps of the last day stay: a change whose answer got lost is asked for by its stamp.
        """
        state = self.state()
        last = f"SELECT number FROM {self.tables}.changes ORDER BY number DESC LIMIT 1 OFFSET {state.remembered}"
        pruned: int = self.value(last) or state.pruned
        self.run(f"DELETE FROM {self.tables}.changes WHERE number <= ?", [pruned])
        old = utc(datetime.now(UTC) - timedelta(days=1))
        self.run(f"DELETE FROM {self.tables}.commits WHERE number < ? AND time < ?", [pruned, old])
        self.set_state(replace(state, pruned=pruned, changes=state.remembered))

    def note(self, searcher: str) -> str:
        """What a searcher has left here for itself (`leave_note`); empty: nothing."""
        return self.value(f"SELECT note FROM {self.tables}.searchers WHERE name = ?", [searcher]) or ""

    def leave_note(self, searcher: str, text: str) -> None:
        anew = "VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET note = excluded.note"
        self.run(f"INSERT INTO {self.tables}.searchers {anew}", [searcher, text])


class PhotoTables(Tables):
    """Photos, and what people said of them. Written only in `Store.write`, where nobody else writes."""

    def photos(self, where: str, values: Sequence[Any] = (), page: str = "") -> list[Photo]:
        """The photos `p` that fulfil a condition, by id."""
        tables = f"{self.tables}.photos p JOIN {self.codes_table(self.state().generation)} c USING (id)"
        rows = self.run(f"SELECT {self.columns} FROM {tables} WHERE {where} ORDER BY p.id {page}", values)
        return [self.to_photo(row) for row in rows]

    def get(self, ids: Sequence[int]) -> list[Photo]:
        """The photos with these ids, in this order; those that are gone are left out."""
        found = {photo.id: photo for photo in self._having("p.id", list(set(ids)))}
        return [found[id] for id in ids if id in found]

    def find(self, *, paths: Sequence[str] = (), contents: Sequence[str] = ()) -> list[Photo]:
        """The photos with one of these paths or contents, by id, each once."""
        found = self._having("p.path", paths)
        found += self._having("p.content", [bytes.fromhex(content) for content in contents])
        return [photo for _, photo in sorted({photo.id: photo for photo in found}.items())]

    def _having(self, column: str, values: Sequence[Any]) -> list[Photo]:
        where, listed = self.one_of(column, values)
        return self.photos(where, [listed]) if values else []

    @abstractmethod
    def captions(self, ids: Sequence[int]) -> dict[int, Caption]:
        """What to show of the photos with these ids. Every page of results asks for them, so this is fast."""

    @abstractmethod
    def page(self, offset: int, limit: int, *, carrying: Sequence[str] = (), untagged: bool = False) -> list[Photo]:
        """Photos `offset` … `offset + limit` by id."""

    def page_after(self, id: int, limit: int) -> list[Photo]:
        """The next photos with ids above `id`: a walk through all that costs the same at every step."""
        return self.photos("p.id > ?", [id], f"LIMIT {int(limit)}")

    @abstractmethod
    def count(self, *, carrying: Sequence[str] = (), untagged: bool = False) -> int:
        """How many photos there are."""

    @abstractmethod
    def labels(self) -> dict[str, int]:
        """All labels and how many photos carry each, most frequent first."""

    @abstractmethod
    def ids_carrying(self, labels: Sequence[str]) -> Ids:
        """The ids of the photos that carry all these labels, ascending; without labels, that carry any at all."""

    @abstractmethod
    def ids_refusing(self, label: str) -> Ids:
        """The ids of the photos for which a person turned this label down, ascending."""

    def facts(self, ids: Ids) -> Iterable[Row]:
        """What filters ask for of the photos with these ids, for those that are there: a row of `columns` each."""
        where, listed = self.one_of("id", ids.tolist())
        columns = "id, path, camera, added, taken, size, width * height, latitude, longitude"
        return self.run(f"SELECT {columns} FROM {self.tables}.photos WHERE {where}", [listed])

    def thumbnail_hashes(self, *, after: int = 0, limit: int = SCANNED) -> tuple[Ids, Words, Words]:
        """Ids above `after`, by id, with 64 bits of each thumbnail's hash (0: none) and the first of its content."""
        select = (
            "SELECT id, CASE length(thumbnail_hash) WHEN 8 THEN thumbnail_hash ELSE ? END, substr(content, 1, 8) "
            f"FROM {self.tables}.photos WHERE id > ? ORDER BY id LIMIT {int(limit)}"
        )
        ids, *words = self.arrays(select, [bytes(8), int(after)], hash=8, content=8)
        hashes, contents = (column.view(np.uint64).ravel() for column in words)
        return ids, hashes, contents

    def pending(self, limit: int, *, after: int = 0, since: int | None = None) -> list[Photo]:
        """Photos with an id above `after` that have no code of the coming hasher yet, by id.

        With `since` only those that changed after that commit: quick to say where none was pending at it.
        """
        state, where = self.state(), f"p.id > {int(after)}"
        if state.coming:
            coming = self.codes_table(state.in_preparation.number)
            where += f" AND NOT EXISTS (SELECT 1 FROM {coming} n WHERE n.id = p.id)"
        if since is not None:
            where += f" AND p.id IN (SELECT photo FROM {self.tables}.changes WHERE number > {int(since)})"
        return self.photos(where, page=f"LIMIT {int(limit)}")

    def removed(self, *, ids: Sequence[int] = (), contents: Sequence[str] = ()) -> list[Removed]:
        """What people took out, by id: photos with these ids, with these contents, or else all that are in a trash."""
        where, values = "trashed IS NOT NULL", list[Any]()
        if ids or contents:
            where, listed = self.one_of(*(("id", ids) if ids else ("content", list(map(bytes.fromhex, contents)))))
            values = [listed]
        columns = "id, path, content, time, trashed, said"
        rows = self.run(f"SELECT {columns} FROM {self.tables}.removed WHERE {where} ORDER BY id", values)
        return [Removed.of(row) for row in rows]

    @abstractmethod
    def put(self, changes: Sequence[Change], state: State, time: str) -> None:
        """Write photos as they are after, their labels, and their codes where they `shows_other`.

        A code that was prepared for a coming hasher shows the old content and goes with it. Entered as changed at
        the commit of `state`.
        """

    @abstractmethod
    def delete(self, ids: Sequence[int], state: State) -> None:
        """Delete photos that are there, with labels and codes; entered as changed at the commit of `state`."""

    def remember_removed(self, photos: Iterable[Photo], trashed: str | None, time: str) -> None:
        for photo in photos:
            said = json.dumps({"labels": photo.labels, "given": photo.given, "refused": photo.refused})
            values = [photo.id, photo.path, bytes.fromhex(photo.facts.content), time, trashed, said]
            self.run(f"INSERT INTO {self.tables}.removed VALUES (?, ?, ?, ?, ?, ?)", values)

    def forget_removed(self, ids: Sequence[int], paths: Sequence[str] = ()) -> None:
        """These are out for good, or back: by id, or taken in again under the path where the file had stayed."""
        for condition, column, values in (("", "id", ids), ("trashed IS NULL AND", "path", paths)):
            where, listed = self.one_of(column, values)
            if values:
                self.run(f"DELETE FROM {self.tables}.removed WHERE {condition} {where}", [listed])


class Session(PhotoTables):
    """The whole of a transaction: also codes, and the rules of a collection. What is written happens as a whole."""

    def derived(self, generation: Generation, *, after: int = 0, limit: int = SCANNED) -> tuple[Ids, Codes, Scores]:
        """Ids above `after`, by id, and what a hasher derived; scores of no bytes where none of them has any."""
        rows = f"{self.codes_table(generation.number)} WHERE id > ? ORDER BY id LIMIT {int(limit)}"
        return self._derived(rows, [int(after)], generation.bits)

    def derived_of(self, ids: Ids) -> tuple[Ids, Codes, Scores]:
        """The same with the hasher in use of the photos with these ids, by id, for those that are there."""
        codes, (where, listed) = self.state().in_use, self.one_of("id", ids.tolist())
        return self._derived(f"{self.codes_table(codes.number)} WHERE {where} ORDER BY id", [listed], codes.bits)

    def _derived(self, rows: str, values: Sequence[Any], bits: int) -> tuple[Ids, Codes, Scores]:
        width = self.value(f"SELECT max(length(scores)) FROM (SELECT scores FROM {rows}) AS part", values) or 0
        select = f"SELECT id, code, CASE length(scores) WHEN {width} THEN scores ELSE ? END FROM {rows}"
        ids, packed, scores = self.arrays(select, [bytes(width), *values], code=bytes_for(bits), scores=width)
        return ids, Codes(packed, bits), scores

    @abstractmethod
    def prepare_codes(self, state: State) -> None:
        """Room for the codes of the coming hasher of `state`, empty."""

    @abstractmethod
    def put_coming(self, photos: Sequence[Photo], state: State) -> None:
        """Codes of the coming hasher; photos that are gone or have another content by now are passed over."""

    def switched(self, state: State) -> None:
        """The coming codes are in use from now on; `state` is the one after, and may say it all."""

    # ── the rules of a collection ────────────────────────────────────────────────────────────────────────

    def add(self, photos: Sequence[Photo], *, fingerprint: str, known: Collection[int] = ()) -> list[Change]:
        """Add photos or replace what is known of them; what became of each. Those `known` that are gone now stay out.

        A photo is known by its path, else by its id (then it has moved). The labels of a known photo change
        only by what its source has gained and lost since last time:
        labels ← (labels ∪ (given − given before)) − (given before − given); what people did stays.
        """
        state, by_path = self.state(), {photo.path: photo for photo in photos}
        require_hasher(state, fingerprint, self.shown)
        check_codes(photos, state.bits)
        found = self.find(paths=list(by_path)) + self.get([photo.id for photo in photos if photo.id])
        there = {photo.id: photo for photo in found}
        gone = {*known} - {*there}
        stored = numbered([p for p in by_path.values() if p.id not in gone], there.values(), state.last_id)
        if not stored:
            return []
        ids = {photo.path: photo.id for photo in stored}
        new = len(set(ids.values()) - set(there))
        state = replace(state, photos=state.photos + new, last_id=max(state.last_id, *ids.values()))
        state = self._commit(state, "adding photos", changes=len(stored))
        changes = {p.path: Change(there.get(p.id), merged(there.get(p.id), p)) for p in stored}
        self.put(list(changes.values()), state, now())
        self.forget_removed(list(ids.values()), list(ids))
        return [changes[photo.path] for photo in photos if photo.path in changes]

    def relabel_all(self, edits: Mapping[int, Callable[[Photo], Photo]]) -> list[Change]:
        """Let edits change `labels`, `refused` and `facts` of photos (by id); those that are gone are left out."""
        before, changes = self.get(sorted(edits)), list[Change]()
        for old in before:
            new = edits[old.id](old)
            changes.append(Change(old, replace(old, labels=new.labels, refused=new.refused, facts=new.facts)))
        if changes:
            self.put(changes, self._commit(self.state(), "changing labels", changes=len(changes)), now())
        return [Change(old, new) for old, new in zip(before, self.get(sorted(edits)), strict=True)]

    def remove(self, ids: Collection[int], *, remember: bool = False, trashed: str | None = None) -> int:
        """Forget photos; how many there were. What a person takes out is to be remembered: see `Removed`."""
        state, gone = self.state(), self.get(sorted(set(ids)))
        if gone:
            state = replace(state, photos=state.photos - len(gone))
            state = self._commit(state, "removing photos", changes=len(gone))
            self.delete([photo.id for photo in gone], state)
            if remember:
                self.remember_removed(gone, trashed, now())
        return len(gone)

    def prepare(self, fingerprint: str, bits: int) -> None:
        """Make room for codes of another hasher beside those in use; keeps what was stored for it before."""
        if (state := self.state()).coming != fingerprint:
            state = replace(state, coming=fingerprint, coming_bits=bits)
            self.prepare_codes(state)
            self.set_state(state)

    def add_coming(self, photos: Sequence[Photo], *, fingerprint: str) -> None:
        """Codes of the coming hasher; photos that are gone or have another content by now are passed over."""
        state = self.state()
        self._require_coming(state, fingerprint)
        check_codes(photos, state.coming_bits)
        self.put_coming(photos, state)

    def switch(self, fingerprint: str, before: State) -> bool:
        """Take the coming hasher into use, if no photo is pending; whether that was so. None was `before`, maybe."""
        state = self.state()
        if state.fingerprint == fingerprint and not state.coming:
            return True
        self._require_coming(state, fingerprint)
        known = before.coming == fingerprint and state.pruned <= before.commit
        if self.pending(1, since=before.commit if known else None):
            return False
        number, bits = state.in_preparation
        state = replace(state, generation=number, fingerprint=fingerprint, bits=bits, coming="", coming_bits=0)
        self.switched(self._commit(state, "switching to another hasher"))
        return True

    def _commit(self, state: State, what: str, *, changes: int = 0) -> State:
        """The state at the next commit, which is entered."""
        stamp = secrets.token_hex(8)
        state = replace(state, commit=state.commit + 1, stamp=stamp, changes=state.changes + changes)
        self.begin_commit(state, what)
        return state

    def _require_coming(self, state: State, fingerprint: str) -> None:
        if fingerprint != state.coming:
            raise OtherHasherError(
                f"{self.shown}: codes are prepared for {state.coming or 'no hasher'}, not for {fingerprint}; "
                "let one move to another hasher end before the next"
            )


def _asked(
    question: Callable[Concatenate[Session, P], T], what: str = "reading", *, by: str = "read"
) -> Callable[Concatenate["Store", P], T]:
    """A question to a store, or a change of it: what a session does in a transaction of its own."""

    @wraps(question, updated=())
    def ask(store: "Store", /, *args: P.args, **options: P.kwargs) -> T:
        return getattr(store, by)(lambda session: getattr(session, question.__name__)(*args, **options), what)

    return ask


class Store(ABC):
    """The contract. Every change is made whole or not at all, and is safe once the call has returned.

    Codes come with the fingerprint of the hasher that made them; OtherHasherError refuses any but its own.
    A change of photos that are not there makes no commit.
    """

    shared: ClassVar[bool] = True  # other machines may have photos in it, under paths that mean nothing here
    searcher: ClassVar[str] = "local"  # the one that goes with it unless another is named
    shown: str  # where it is, for messages, without a password

    @classmethod
    @abstractmethod
    def create(cls, folder: Path, url: str, *, fingerprint: str, bits: int) -> Self:
        """A new, empty store for the collection in `folder`; or the one that is there, of the same hasher: it joins."""

    @classmethod
    @abstractmethod
    def open(cls, folder: Path, url: str, *, wait: float = 30.0) -> Self:
        """The store of the collection in `folder`; writers wait up to `wait` seconds for each other."""

    @abstractmethod
    def close(self) -> None: ...

    def hurry(self, seconds: float) -> None:  # noqa: B027 (most have nothing to wait for)
        """From now on wait at most so long for a server that is away, for the sake of people who wait as well."""

    def hold(self, on: bool) -> None:  # noqa: B027 (only a few are asked so often)
        """In this thread `state` stays what it is now, until it is let go: for questions that came at one moment."""

    @abstractmethod
    def read(self, work: Callable[[Session], T], what: str = "reading") -> T:
        """What `work` makes of one unchanging moment of the store. Done again if the server went away."""

    @abstractmethod
    def write(self, work: Callable[[Session], T], what: str) -> T:
        """What `work` returns; all that it writes happens, or nothing. Nobody else writes meanwhile.

        Done again if the server went away, maybe after it took effect: what is written must bear that.
        """

    @abstractmethod
    def compact(self) -> None:
        """Give back room that is no longer used, codes of former hashers among it."""

    @abstractmethod
    def tidy(self) -> None:
        """Called after many changes: the moment for what keeps the store fast."""

    def bytes_elsewhere(self) -> int:
        """How much room it takes outside of the collection's folder."""
        return 0

    def write_once(self, work: Callable[[Session], T], what: str) -> T:
        """Change something exactly once: an attempt whose answer got lost may have taken effect, and left a commit."""
        results: list[tuple[State, T]] = []

        def attempt(session: Session) -> T:
            before = session.state()  # waits for an attempt of ours that may still be at work, too
            if results:
                made, result = results[-1]
                if made.commit <= before.commit and session.stamp(made.commit) == made.stamp:
                    return result
            result = work(session)
            results.append((session.state(), result))
            return result

        return self.write(attempt, what)

    # ── what sessions do ─────────────────────────────────────────────────────────────────────────────────

    put = _asked(Session.add, "adding photos", by="write_once")
    relabel_all = _asked(Session.relabel_all, "changing labels", by="write_once")
    remove = _asked(Session.remove, "removing photos", by="write_once")
    forget_removed = _asked(Session.forget_removed, "emptying the trash", by="write")
    prepare = _asked(Session.prepare, "preparing for another hasher", by="write")
    put_coming = _asked(Session.add_coming, "storing new codes", by="write")
    state = _asked(Session.state)
    get = _asked(Session.get)
    find = _asked(Session.find)
    captions = _asked(Session.captions)
    page = _asked(Session.page)
    page_after = _asked(Session.page_after)
    count = _asked(Session.count)
    labels = _asked(Session.labels)
    removed = _asked(Session.removed)
    pending = _asked(Session.pending)

    def upsert(self, photos: Sequence[Photo], *, fingerprint: str) -> list[int]:
        """Like `put`; the ids of the photos."""
        return [change.after.id for change in self.put(photos, fingerprint=fingerprint)]

    def relabel(self, id: int, edit: Callable[[Photo], Photo]) -> Photo | None:
        """Read a photo, let `edit` change `labels` and `refused`, write it; nobody comes in between."""
        return next((change.after for change in self.relabel_all({id: edit})), None)

    def verify(self) -> list[str]:
        """What is wrong, in words; nothing if all is well. Other programs may have written into the tables."""
        return [f"{self.shown}: {found}" for found in self.read(lambda session: session.findings(), "checking")]

    def scan(self, generation: Generation | None = None) -> Iterator[tuple[Ids, Codes]]:
        """All ids and codes, in parts, by id; these codes to the end, whatever comes into use meanwhile."""
        codes = generation or self.state().in_use
        return walk(lambda after: self.read(lambda session: session.derived(codes, after=after)[:2], "reading codes"))

    def thumbnail_hashes(self) -> Iterator[tuple[Ids, Words, Words]]:
        """All ids by id, in parts; see Session.thumbnail_hashes."""
        return walk(lambda after: self.read(lambda session: session.thumbnail_hashes(after=after), "reading hashes"))

    def switch(self, fingerprint: str) -> bool:
        """Take the coming hasher into use at once, if no photo is pending; whether that was so."""
        before, pending = self.read(lambda session: (session.state(), session.pending(1)))  # takes its time
        if pending and before.coming == fingerprint:
            return False
        return self.write_once(lambda session: session.switch(fingerprint, before), "switching to another hasher")

    def prune(self) -> None:
        """Forget changes of long ago: whoever is so far behind is built anew in less time."""
        state = self.state()
        if state.changes > 2 * state.remembered:
            self.write(lambda session: session.prune(), "tidying up")


stores: Registry[type[Store]] = Registry("store", package="hyphash.stores", entry_points="hyphash.stores")
store_for = stores.at


def walk(part_after: Callable[[int], Part]) -> Iterator[Part]:
    """Parts of all photos by id, where `part_after` reads the one after an id."""
    after = 0
    while len((part := part_after(after))[0]):
        yield part
        after = int(part[0][-1])


def gathered(parts: Iterable[tuple[Ids, Codes]], bits: int) -> tuple[Ids, Codes]:
    """Ids and codes in parts as one."""
    parts = [(np.empty(0, np.int64), Codes.empty(bits)), *parts]
    return np.concatenate([ids for ids, _ in parts]), Codes.concatenate([codes for _, codes in parts])


def follows(session: Session, position: Position | None) -> bool:
    """Whether a follower at this position can be brought up to date by the changes that the store knows."""
    state = session.state()
    if position is None or position == state.position:
        return position is not None
    if position.generation != state.generation or not state.pruned <= position.commit <= state.commit:
        return False
    return session.stamp(position.commit) == position.stamp


def require_hasher(state: State, fingerprint: str, shown: str) -> None:
    if fingerprint != state.fingerprint:
        raise OtherHasherError(
            f"{shown}: its codes were made by the hasher {state.fingerprint}, not by {fingerprint}; "
            "use that one, or move the collection to the other with `hyphash reindex`"
        )


def merged(before: Photo | None, after: Photo) -> Photo:
    """`after` with the labels that a known photo then has; the rule of `Store.upsert`."""
    if before is None:
        return after
    if after.given is None:
        return replace(after, labels=before.labels, given=before.given, refused=before.refused)
    old, new = set(before.given or ()), set(after.given)
    labels = (set(before.labels) | (new - old)) - (old - new)
    return replace(after, labels=tuple(sorted(labels)), refused=before.refused)


def with_derived(photo: Photo, row: Scores, bits: int) -> Photo:
    """A photo with what a hasher derived from it: the bytes of its code, then those of its scores."""
    return replace(photo, code=row[: bytes_for(bits)].tobytes(), scores=row[bytes_for(bits) :].tobytes())


def numbered(photos: Iterable[Photo], known: Iterable[Photo], last: int) -> list[Photo]:
    """Every photo with its id: that of its path among the known, else its own, else a new one above `last`."""
    photos = list(photos)
    at_path = {photo.path: photo.id for photo in known}
    following = count(max([last, *(photo.id for photo in photos)]) + 1)
    taken = {at_path[photo.path] for photo in photos if photo.path in at_path}
    placed = []
    for photo in photos:
        id = at_path.get(photo.path, 0 if photo.id in taken else photo.id) or next(following)
        taken.add(id)
        placed.append(replace(photo, id=id))
    return placed


def check_codes(photos: Sequence[Photo], bits: int) -> None:
    """Refuse codes that are not `bits` long before they reach the truth."""
    for photo in photos:
        if len(photo.code) != bytes_for(bits):
            raise CodesError(f"{photo.path}: a code of {len(photo.code)} bytes; {bits} bits take {bytes_for(bits)}")
    packed = np.frombuffer(b"".join(photo.code for photo in photos), np.uint8)
    Codes(packed.reshape(len(photos), bytes_for(bits)), bits)  # sees bits after the last


def improper(place: str, error: UnicodeEncodeError) -> CollectionError:
    """The refusal of a text that is none: names of files may be any bytes."""
    return CollectionError(f"{place}: {error.object[:80]!r} is no proper text (UTF-8) and cannot be held; rename it")


def to_photo(row: Row) -> Photo:
    """A photo from what stores have of it, in this order; its labels are sorted."""
    id, path, content, *facts, labels, given, refused, added, changed, code, scores = row
    added, changed = (utc(time) if isinstance(time, datetime) else time for time in (added, changed))
    return Photo(
        id=id, path=path, facts=Facts(content.hex(), *facts), code=code, scores=scores, labels=tuple(labels),
        refused=tuple(refused), given=None if given is None else tuple(given), added=added, changed=changed,
    )  # fmt: skip


def to_row(photo: Photo) -> Row:
    """The columns of a photo that every store has, in this order."""
    content, *facts = vars(photo.facts).values()
    return (photo.id, photo.path, bytes.fromhex(content), *facts)


def read_sql(package: str, name: str) -> str:
    return files(package).joinpath(f"{name}.sql").read_text(encoding="utf-8")


def read_toml(package: str, name: str) -> dict[str, Any]:
    return tomllib.loads(files(package).joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def migrations_of(package: str) -> list[str]:
    """The steps from each older format of a store's tables to the next."""
    return re.split(r"-- from format \d+\n", read_sql(package, "migrations"))[1:]


@contextmanager
def closed_on_error(opened: Any) -> Iterator[None]:
    """Close what was opened if the block fails that makes it ready."""
    try:
        yield
    except BaseException:
        opened.close()
        raise


def now() -> str:
    """The time as photos carry it."""
    return utc(datetime.now(UTC))


def utc(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
