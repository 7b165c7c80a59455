"""One transaction on the tables of SQLite."""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hyphash.codes import Codes, bytes_for
from hyphash.errors import CodesError
from hyphash.stores import (
    SCANNED,
    Caption,
    Change,
    Facts,
    Generation,
    Ids,
    Photo,
    Position,
    Session,
    State,
    Words,
    now,
)
from hyphash.stores.sqlite import labels
from hyphash.stores.sqlite.database import damaged
from hyphash.stores.sqlite.labels import IdCache, chunks, marks
from hyphash.stores.sqlite.schema import CARRIED

UPSERT = """INSERT INTO photos VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
  path = excluded.path, content = excluded.content, size = excluded.size, modified = excluded.modified,
  width = excluded.width, height = excluded.height, thumbnail_hash = excluded.thumbnail_hash,
  sourced = max(sourced, excluded.sourced), changed = excluded.changed"""
# all in one row: sqlite3 gives up Python's lock for every row, and threads that serve requests would fight for it
CAPTIONS = f"""SELECT json_group_array(json_array(id, path, json((
  SELECT json_group_array(name) FROM photo_labels JOIN labels ON labels.id = label
  WHERE photo = photos.id AND state & {CARRIED})))) FROM photos WHERE id IN ({{}})"""
META = "SELECT json_group_object(key, value) FROM meta"
COLUMNS = (
    "p.id, p.path, p.content, p.size, p.modified, p.width, p.height, p.thumbnail_hash, p.sourced, p.added, p.changed"
)
POSITION = tuple(field.name for field in fields(Position))
IDS_CHANGED = "ids_changed"  # in `meta`: the commit at which photos last came or went


class SqliteSession(Session):
    """What can be read and written inside of one transaction."""

    def __init__(self, tx: sqlite3.Connection, cache: IdCache, path: Path) -> None:
        self.tx = tx
        self.cache = cache
        self.path = path

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────

    def state(self) -> State:
        return _to_state(self.tx.execute(META).fetchone()[0])

    def get(self, ids: Sequence[int]) -> list[Photo]:
        return self._select("p.id IN ({})", ids)

    def find(self, *, paths: Sequence[str] = (), contents: Sequence[str] = ()) -> list[Photo]:
        found = self._select("p.path IN ({})", paths)
        found += self._select("p.content IN ({})", [bytes.fromhex(content) for content in contents])
        return [photo for _, photo in sorted({photo.id: photo for photo in found}.items())]

    def captions(self, ids: Sequence[int]) -> dict[int, Caption]:
        found: dict[int, Caption] = {}
        for some in chunks(ids):
            (text,) = self.tx.execute(CAPTIONS.format(marks(some)), some).fetchone()
            found |= {id: Caption(path, tuple(sorted(words))) for id, path, words in json.loads(text)}
        return found

    def page(self, offset: int, limit: int, *, carrying: Sequence[str] = (), untagged: bool = False) -> list[Photo]:
        if carrying or untagged:
            return self.get(self._allowed(carrying, untagged)[offset : offset + limit].tolist())
        state = self.state()
        if state.photos == state.last_id:  # none was ever removed
            return self.page_after(offset, limit)
        return self.get(self._ids("SELECT id FROM photos ORDER BY id LIMIT ? OFFSET ?", (limit, offset)).tolist())

    def page_after(self, id: int, limit: int) -> list[Photo]:
        return self.get(self._ids("SELECT id FROM photos WHERE id > ? ORDER BY id LIMIT ?", (id, limit)).tolist())

    def count(self, *, carrying: Sequence[str] = (), untagged: bool = False) -> int:
        return len(self._allowed(carrying, untagged)) if carrying or untagged else self.state().photos

    def labels(self) -> dict[str, int]:
        query = "SELECT name, photos FROM labels WHERE photos ORDER BY photos DESC, name"
        return dict(self.tx.execute(query).fetchall())

    def ids_carrying(self, labels_: Sequence[str]) -> Ids:
        if not labels_:
            return labels.ids_with_any(self.tx, self.cache)
        lists = sorted((labels.ids_with(self.tx, self.cache, label) for label in set(labels_)), key=len)
        ids = lists[0]
        for other in lists[1:]:
            ids = np.intersect1d(ids, other, assume_unique=True)
        return ids

    def codes(self, generation: Generation, *, after: int = 0, limit: int = SCANNED) -> tuple[Ids, Codes]:
        query = "SELECT photo, code FROM codes WHERE generation = ? AND photo > ? ORDER BY photo LIMIT ?"
        return self._to_codes(self.tx.execute(query, (generation.number, after, limit)).fetchall(), generation.bits)

    def codes_of(self, ids: Ids) -> tuple[Ids, Codes]:
        state = self.state()
        rows: list[tuple[int, bytes]] = []
        for some in chunks(ids.tolist()):
            query = f"SELECT photo, code FROM codes WHERE generation = ? AND photo IN ({marks(some)})"
            rows += self.tx.execute(query, (state.generation, *some))
        return self._to_codes(sorted(rows), state.bits)

    def thumbnail_hashes(self, *, after: int = 0, limit: int = SCANNED) -> tuple[Ids, Words, Words]:
        query = "SELECT id, thumbnail_hash, substr(content, 1, 8) FROM photos WHERE id > ? ORDER BY id LIMIT ?"
        rows = self.tx.execute(query, (after, limit)).fetchall()
        hashes = b"".join(row[1] if len(row[1]) == 8 else bytes(8) for row in rows)
        contents = b"".join(row[2] for row in rows)
        ids = np.fromiter((row[0] for row in rows), np.int64, len(rows))
        return ids, np.frombuffer(hashes, np.uint64), np.frombuffer(contents, np.uint64)

    def stamp(self, commit: int) -> str:
        row = self.tx.execute("SELECT stamp FROM commits WHERE number = ?", (commit,)).fetchone()
        return str(row[0]) if row else ""

    def changed(self, since: int, *, codes_only: bool) -> Ids:
        which = "AND code" if codes_only else ""
        return self._ids(f"SELECT DISTINCT photo FROM changes WHERE number > ? {which} ORDER BY photo", (since,))

    def pending(self, limit: int, *, after: int = 0, since: int | None = None) -> list[Photo]:
        among = "" if since is None else f"AND id IN (SELECT photo FROM changes WHERE number > {int(since)})"
        query = (
            f"SELECT id FROM photos p WHERE id > ? {among} AND NOT EXISTS "
            "(SELECT 1 FROM codes WHERE photo = p.id AND generation = ?) ORDER BY id LIMIT ?"
        )
        return self.get(self._ids(query, (after, self.state().in_preparation.number, limit)).tolist())

    def note(self, searcher: str) -> str:
        row = self.tx.execute("SELECT note FROM searchers WHERE name = ?", (searcher,)).fetchone()
        return str(row[0]) if row else ""

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────

    def begin_commit(self, state: State, what: str) -> None:  # noqa: ARG002 (only for people who look at tables)
        position = state.position
        self.tx.execute("INSERT INTO commits VALUES (?, ?, ?)", (position.commit, position.stamp, now()))
        self.set_state(state)

    def set_state(self, state: State) -> None:
        values = vars(state) | vars(state.position)
        del values["position"]
        self._set_meta(values)

    def put(self, changes: Sequence[Change], state: State, time: str) -> None:
        self.tx.executemany(UPSERT, [_to_row(change.after, time) for change in changes])
        other = [change.after for change in changes if change.shows_other]
        codes = [(photo.id, state.generation, photo.code) for photo in other]
        self.tx.executemany("INSERT OR REPLACE INTO codes VALUES (?, ?, ?)", codes)
        if state.coming:
            replaced = [(photo.id, state.generation) for photo in other]
            self.tx.executemany("DELETE FROM codes WHERE photo = ? AND generation > ?", replaced)
        rows = [(state.commit, change.after.id, change.shows_other) for change in changes]
        self.tx.executemany("INSERT INTO changes VALUES (?, ?, ?)", rows)
        labels.write_labels(self.tx, state.commit, changes)
        if any(change.before is None for change in changes):
            self._set_meta({IDS_CHANGED: state.commit})

    def delete(self, ids: Sequence[int], state: State) -> None:
        labels.count_off(self.tx, state.commit, ids)
        for some in chunks(ids):
            self.tx.execute(f"DELETE FROM photos WHERE id IN ({marks(some)})", some)
        self.tx.executemany("INSERT INTO changes VALUES (?, ?, 1)", [(state.commit, id) for id in ids])
        self._set_meta({IDS_CHANGED: state.commit})

    def prepare_codes(self, state: State) -> None:
        self.tx.execute("DELETE FROM codes WHERE generation > ?", (state.generation,))

    def put_coming(self, photos: Sequence[Photo], state: State) -> None:
        number = state.in_preparation.number
        self.tx.executemany(
            "INSERT OR REPLACE INTO codes SELECT id, ?, ? FROM photos WHERE id = ? AND content = ?",
            [(number, photo.code, photo.id, bytes.fromhex(photo.facts.content)) for photo in photos],
        )

    def switched(self, state: State) -> None:
        """The generation in `meta` says which codes are in use."""

    def prune(self, keep: int) -> int:
        query = "SELECT number FROM changes ORDER BY number DESC LIMIT 1 OFFSET ?"
        row = self.tx.execute(query, (keep,)).fetchone()
        commit: int = row[0] if row else self.state().pruned
        self.tx.execute("DELETE FROM changes WHERE number <= ?", (commit,))
        self.tx.execute("DELETE FROM commits WHERE number < ?", (commit,))
        return commit

    def leave_note(self, searcher: str, text: str) -> None:
        self.tx.execute("INSERT OR REPLACE INTO searchers VALUES (?, ?)", (searcher, text))

    # ── parts of these ───────────────────────────────────────────────────────────────────────────────────

    def _set_meta(self, values: dict[str, Any]) -> None:
        self.tx.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())

    def _ids(self, query: str, values: Sequence[Any]) -> Ids:
        return np.fromiter((id for (id,) in self.tx.execute(query, values)), np.int64)

    def _to_codes(self, rows: list[tuple[int, bytes]], bits: int) -> tuple[Ids, Codes]:
        """Ids and codes from (id, code) rows by ascending id."""
        ids = np.fromiter((row[0] for row in rows), np.int64, len(rows))
        packed = np.frombuffer(b"".join(row[1] for row in rows), np.uint8)
        try:
            return ids, Codes(packed.reshape(len(rows), bytes_for(bits)), bits)
        except (ValueError, CodesError):
            raise damaged(self.path, f"some codes have not {bits} bits") from None

    def _allowed(self, carrying: Sequence[str], untagged: bool) -> Ids:
        """The photos that carry all of some labels, or none at all."""
        if not untagged:
            return self.ids_carrying(carrying)
        if carrying:
            return np.empty(0, np.int64)
        (changed,) = self.tx.execute("SELECT value FROM meta WHERE key = ?", (IDS_CHANGED,)).fetchone()
        every = self.cache.get(("all",), changed, lambda: self.tx.execute("SELECT id FROM photos ORDER BY id"))
        return np.setdiff1d(every, self.ids_carrying(()), assume_unique=True)

    def _select(self, where: str, values: Sequence[Any]) -> list[Photo]:
        """Photos by id; `where` has one place for the list of values."""
        if not values:
            return []
        rows: list[tuple[Any, ...]] = []
        generation = self.tx.execute("SELECT value FROM meta WHERE key = 'generation'").fetchone()[0]
        for some in chunks(values):
            rows += self.tx.execute(
                f"SELECT {COLUMNS}, c.code FROM photos p JOIN codes c ON c.photo = p.id AND c.generation = ? "
                f"WHERE {where.format(marks(some))}",
                (generation, *some),
            )
        rows.sort()
        words = labels.read_labels(self.tx, [row[0] for row in rows])
        return [_to_photo(row, words.get(row[0], labels.Words())) for row in rows]


@lru_cache(maxsize=16)  # every search asks for it, and it is mostly the same
def _to_state(text: str) -> State:
    meta = json.loads(text)
    del meta[IDS_CHANGED]
    return State(position=Position(**{name: meta.pop(name) for name in POSITION}), **meta)


def _to_photo(row: tuple[Any, ...], words: labels.Words) -> Photo:
    id, path, content, size, modified, width, height, thumbnail_hash, sourced, added, changed, code = row
    facts = Facts(
        content=content.hex(), size=size, modified=modified, width=width, height=height, thumbnail_hash=thumbnail_hash
    )
    return Photo(
        id=id, path=path, facts=facts, code=code, labels=words.carried, given=words.given if sourced else None,
        refused=words.refused, added=added, changed=changed,
    )  # fmt: skip


def _to_row(photo: Photo, time: str) -> tuple[Any, ...]:
    facts = photo.facts
    return (
        photo.id, photo.path, bytes.fromhex(facts.content), facts.size, facts.modified, facts.width, facts.height,
        facts.thumbnail_hash, photo.given is not None, photo.added or time, time,
    )  # fmt: skip
