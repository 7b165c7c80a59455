"""One transaction on the tables of SQLite, and what is kept in memory from one to the next."""

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import fields
from functools import lru_cache, partial, reduce
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyphash.stores import Caption, Change, Facts, Ids, Photo, Position, Row, Session, State, T, now, to_photo, to_row
from hyphash.stores.sqlite.database import damaged

CARRIED, GIVEN, REFUSED = 1, 2, 4  # bits of photo_labels.state
KEPT_IDS = 25_000_000  # in memory: 200 MB at most
FACTS = ("id", "path", *(field.name for field in fields(Facts)))
COLUMNS = (*FACTS, "sourced", "added", "changed")
UPSERT = f"""INSERT INTO photos ({", ".join(COLUMNS)}) VALUES (?{", ?" * (len(COLUMNS) - 1)})
  ON CONFLICT (id) DO UPDATE SET sourced = max(sourced, excluded.sourced),
  {", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name not in ("id", "sourced", "added"))}"""
# what is of another kind becomes bytes, which JSON refuses: SQLite takes anything, and somebody may have sent the file
TEXT, INTEGER = (f"CASE typeof({{0}}) WHEN '{kind}' THEN {{0}} ELSE x'' END".format for kind in ("text", "integer"))
LABELS = "FROM photo_labels JOIN labels ON labels.id = label WHERE photo = p.id"
# all in one row: sqlite3 gives up Python's lock for every row, and threads that serve requests would fight for it
CAPTIONS = f"""SELECT json_group_array(json_array(id, {TEXT("path")}, json((
  SELECT json_group_array({TEXT("name")}) {LABELS} AND state & {CARRIED})), {INTEGER("width")}, {INTEGER("height")}))
  FROM photos p WHERE"""
META = "SELECT json_group_object(key, value) FROM meta"
# what columns hold
KINDS: dict[str, Any] = {
    **dict.fromkeys(("id", "size", "modified", "width", "height", "sourced", "photos", "label"), int),
    **dict.fromkeys(("path", "states", "added", "changed", "name", "stamp", "note", "time", "said"), str),
    **dict.fromkeys(("content", "thumbnail_hash", "code", "scores"), bytes),
    **dict.fromkeys(("camera", "trashed"), str | None), **dict.fromkeys(("latitude", "longitude"), float | None),
    "taken": int | None,
}  # fmt: skip
# values of these kinds go into lists in hex: JSON knows no bytes, and SQLite ends its texts at a NUL
AS_LISTED: dict[type, str] = {bytes: "unhex(value)", str: "CAST(unhex(value) AS TEXT)"}


class Cache:
    """What was read from the tables, such as the ids of the photos with a label, for as long as it is true."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, ...], tuple[Any, Any]] = {}  # which → (as of when, what)
        self._lock = Lock()

    def get(self, key: tuple[str, ...], changed: Any, read: Callable[[], T]) -> T:
        """What is in memory if it is of this commit, else what is read."""
        found: T
        with self._lock:
            commit, found = self._kept.pop(key, (self, None))
            if commit == changed:
                self._kept[key] = changed, found  # at the end: those at the start were not asked for the longest
                return found
        found = read()
        with self._lock:
            self._kept[key] = changed, found
            while sum(len(kept) for _, kept in self._kept.values()) > KEPT_IDS and len(self._kept) > 1:
                del self._kept[next(iter(self._kept))]
        return found

    def photos(
        self, what: str, ids: Sequence[int], position: Position, most: int, read: Callable[[list[int]], dict[int, T]]
    ) -> dict[int, T]:
        """What was read of photos, by id, as it was at one commit, for those of these that are there."""
        kept: dict[int, T] = self.get((what,), position, dict)
        found = {id: known for id in ids if (known := kept.get(id)) is not None}
        if missing := [id for id in ids if id not in found]:
            found |= read(missing)
            if len(kept) > most:
                kept.clear()  # whoever looks into it at this moment has what he found, and reads the rest
            kept.update(found)
        return found


class SqliteSession(Session):
    """What can be read and written inside of one transaction."""

    package = __package__
    tables = "main"
    columns = f"""{", ".join(f"p.{name}" for name in FACTS)}, p.sourced, (SELECT json_group_array(json_array(
      {TEXT("name")}, {INTEGER("state")})) {LABELS}) AS states, p.added, p.changed, c.code, c.scores"""

    def __init__(self, tx: sqlite3.Connection, cache: Cache, path: Path) -> None:
        self.tx = tx
        self.cache = cache
        self.path = path
        self.shown = str(path.parent)

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        rows, names = self._read(statement, values)
        for kinds in {tuple(map(type, row)) for row in rows}:
            for name, kind in zip(names, kinds, strict=True):
                if not issubclass(kind, KINDS.get(name, object)):
                    raise damaged(self.path, f"{kind.__name__} as {name}")
        return rows

    def _read(self, statement: str, values: Sequence[Any]) -> tuple[list[Row], list[str]]:
        """Rows, and names of columns. An error leaves no cursor half read, for which those who write would wait."""
        with closing(self.tx.execute(statement, values)) as cursor:
            return cursor.fetchall(), [name for name, *_ in cursor.description or ()]

    def arrays(self, select: str, values: Sequence[Any] = (), **widths: int) -> list[NDArray[Any]]:
        rows, _ = self._read(select, values)
        if not {type(row[0]) for row in rows} <= {int}:
            raise damaged(self.path, "some numbers of photos are none")
        found: list[NDArray[Any]] = [np.fromiter((row[0] for row in rows), np.int64, len(rows))]
        for i, (name, width) in enumerate(widths.items(), 1):
            column = [row[i] for row in rows]
            if not {*map(type, column)} <= {bytes} or not {*map(len, column)} <= {width}:
                raise damaged(self.path, f"some {name}s have not {8 * width} bits")
            found.append(np.frombuffer(b"".join(column), np.uint8).reshape(len(rows), width))
        return found

    def one_of(self, column: str, values: Sequence[Any]) -> tuple[str, str]:
        kind = type(values[0]) if values else int
        raw = [value.encode() for value in values] if kind is str else values
        listed = json.dumps([value.hex() for value in raw] if kind in AS_LISTED else raw)
        return f"{column} IN (SELECT {AS_LISTED.get(kind, 'value')} FROM json_each(?))", listed

    def codes_table(self, generation: int) -> str:
        return f"(SELECT photo AS id, code, scores FROM codes WHERE generation = {int(generation)})"

    def to_photo(self, row: Row) -> Photo:
        *facts, sourced, states, added, changed, code, scores = row
        words = sorted(json.loads(states))
        carried, given, refused = ([word for word, state in words if state & bit] for bit in (CARRIED, GIVEN, REFUSED))
        return to_photo((*facts, carried, given if sourced else None, refused, added, changed, code, scores))

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────

    def state(self) -> State:
        return _to_state(self.value(META))

    def captions(self, ids: Sequence[int]) -> dict[int, Caption]:
        where, listed = self.one_of("id", ids)
        found = json.loads(self.value(f"{CAPTIONS} {where}", [listed]))
        return {id: Caption(path, tuple(sorted(words)), *shape) for id, path, words, *shape in found}

    def page(self, offset: int, limit: int, *, carrying: Sequence[str] = (), untagged: bool = False) -> list[Photo]:
        if carrying or untagged:
            return self.get(self._allowed(carrying, untagged)[offset : offset + limit].tolist())
        state = self.state()
        if state.photos == state.last_id:  # none was ever removed
            return self.page_after(offset, limit)
        return self.get(self.arrays("SELECT id FROM photos ORDER BY id LIMIT ? OFFSET ?", (limit, offset))[0].tolist())

    def count(self, *, carrying: Sequence[str] = (), untagged: bool = False) -> int:
        return len(self._allowed(carrying, untagged)) if carrying or untagged else self.state().photos

    def labels(self) -> dict[str, int]:
        query = "SELECT name, photos FROM labels WHERE photos ORDER BY photos DESC, name"
        return dict(self.run(query))

    def ids_carrying(self, labels: Sequence[str]) -> Ids:
        if not labels:
            changed = self.value("SELECT coalesce(max(changed), 0) FROM labels")
            query = f"SELECT DISTINCT photo FROM photo_labels WHERE state & {CARRIED} ORDER BY photo"
            return self.cache.get(("with any",), changed, lambda: self.arrays(query)[0])
        query = f"SELECT photo FROM photo_labels WHERE label = ? AND state & {CARRIED} ORDER BY photo"
        where, listed = self.one_of("name", [*set(labels)])
        known = self.run(f"SELECT id, name, changed AS since FROM labels WHERE {where}", [listed])
        if len(known) < len(set(labels)):
            return np.empty(0, np.int64)
        lists = [
            self.cache.get(("with", name), changed, lambda: self.arrays(query, [id])[0])  # noqa: B023 (asked at once)
            for id, name, changed in known
        ]
        return reduce(partial(np.intersect1d, assume_unique=True), sorted(lists, key=len))

    def ids_refusing(self, label: str) -> Ids:
        which = f"label = (SELECT id FROM labels WHERE name = ?) AND state & {REFUSED}"
        return self.arrays(f"SELECT photo FROM photo_labels WHERE {which} ORDER BY photo", [label])[0]

    def _allowed(self, carrying: Sequence[str], untagged: bool) -> Ids:
        """The photos that carry all of some labels, or none at all."""
        if not untagged:
            return self.ids_carrying(carrying)
        if carrying:
            return np.empty(0, np.int64)
        changed = self.value("SELECT value FROM meta WHERE key = 'ids_changed'")  # when photos last came or went
        every = self.cache.get(("all",), changed, lambda: self.arrays("SELECT id FROM photos ORDER BY id")[0])
        return np.setdiff1d(every, self.ids_carrying(()), assume_unique=True)

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────

    def begin_commit(self, state: State, what: str) -> None:  # noqa: ARG002 (only for people who look at tables)
        self.run("INSERT INTO commits VALUES (?, ?, ?)", (state.commit, state.stamp, now()))
        self.set_state(state)

    def set_state(self, state: State, **more: int) -> None:
        self.tx.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", (vars(state) | more).items())

    def put(self, changes: Sequence[Change], state: State, time: str) -> None:
        photos = (change.after for change in changes)
        rows = [(*to_row(photo), photo.given is not None, photo.added or time, time) for photo in photos]
        self.tx.executemany(UPSERT, rows)
        other = [change.after for change in changes if change.shows_other]
        codes = [(photo.id, state.generation, photo.code, photo.scores) for photo in other]
        self.tx.executemany("INSERT OR REPLACE INTO codes VALUES (?, ?, ?, ?)", codes)
        if state.coming:
            replaced = [(photo.id, state.generation) for photo in other]
            self.tx.executemany("DELETE FROM codes WHERE photo = ? AND generation > ?", replaced)
        changed = [(state.commit, change.after.id, change.is_other) for change in changes]
        self.tx.executemany("INSERT INTO changes VALUES (?, ?, ?)", changed)
        _write_labels(self.tx, state.commit, changes)
        if any(change.before is None for change in changes):
            self.set_state(state, ids_changed=state.commit)

    def delete(self, ids: Sequence[int], state: State) -> None:
        where, listed = self.one_of("photo", ids)
        lost = f"SELECT count(*), label FROM photo_labels WHERE state & {CARRIED} AND {where} GROUP BY label"
        counts = [(state.commit, *row) for row in self.run(lost, [listed])]
        self.tx.executemany("UPDATE labels SET changed = ?, photos = photos - ? WHERE id = ?", counts)
        self.run(f"DELETE FROM photos WHERE {self.one_of('id', ids)[0]}", [listed])
        self.tx.executemany("INSERT INTO changes VALUES (?, ?, 1)", [(state.commit, id) for id in ids])
        self.set_state(state, ids_changed=state.commit)

    def prepare_codes(self, state: State) -> None:
        self.run("DELETE FROM codes WHERE generation > ?", (state.generation,))

    def put_coming(self, photos: Sequence[Photo], state: State) -> None:
        number = state.in_preparation.number
        self.tx.executemany(
            "INSERT OR REPLACE INTO codes SELECT id, ?, ?, ? FROM photos WHERE id = ? AND content = ?",
            [(number, photo.code, photo.scores, photo.id, bytes.fromhex(photo.facts.content)) for photo in photos],
        )


@lru_cache(maxsize=16)  # every search asks for it, and it is mostly the same
def _to_state(text: str) -> State:
    return State.of(json.loads(text))


def _write_labels(tx: sqlite3.Connection, commit: int, changes: Sequence[Change]) -> None:
    """Give each photo the labels it has after."""
    states = [(change.after.id, _states(change.before), _states(change.after)) for change in changes]
    changed = [(id, before, after) for id, before, after in states if before != after]
    numbers = _numbers(tx, {label for _, _, after in changed for label in after})
    tx.executemany("DELETE FROM photo_labels WHERE photo = ?", [(id,) for id, before, _ in changed if before])
    rows = [(id, numbers[label], state) for id, _, after in changed for label, state in after.items()]
    tx.executemany("INSERT INTO photo_labels VALUES (?, ?, ?)", rows)
    more: Counter[str] = Counter()  # photos that carry a label from now on, less those that did
    for change in changes:
        old, new = set(change.before.labels if change.before else ()), set(change.after.labels)
        more.update(new - old)
        more.subtract(old - new)
    update = "UPDATE labels SET changed = ?, photos = photos + ? WHERE name = ?"
    tx.executemany(update, [(commit, count, label) for label, count in more.items()])


def _numbers(tx: sqlite3.Connection, names: set[str]) -> dict[str, int]:
    """The numbers of labels; new ones are entered."""
    ordered = [(name,) for name in sorted(names)]
    tx.executemany("INSERT OR IGNORE INTO labels (name, changed, photos) VALUES (?, 0, 0)", ordered)
    return {name: tx.execute("SELECT id FROM labels WHERE name = ?", (name,)).fetchone()[0] for (name,) in ordered}


def _states(photo: Photo | None) -> dict[str, int]:
    """Each label of a photo with its bits; what is carried is not refused."""
    if photo is None:
        return {}
    states = dict.fromkeys(photo.refused, REFUSED) | dict.fromkeys(photo.labels, CARRIED)
    for label in photo.given or ():
        states[label] = states.get(label, 0) | GIVEN
    return states
