"""The tables of a local collection, and the way from rows to photos and back."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyphash.engines import Caption, Photo, numbered
from hyphash.engines.local.database import damaged
from hyphash.engines.local.labels import CARRIED, Words, chunks, marks, read_labels
from hyphash.errors import CollectionError

FORMAT = 1
APPLICATION = 0x68797068  # "hyph", what `file` and we know the database by
SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE photos (
  id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL UNIQUE, content BLOB NOT NULL,
  size INTEGER NOT NULL, modified INTEGER NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL,
  look BLOB NOT NULL, sourced INTEGER NOT NULL, added TEXT NOT NULL, changed TEXT NOT NULL
);
CREATE INDEX photos_by_content ON photos (content);
CREATE TABLE codes (
  photo INTEGER NOT NULL REFERENCES photos ON DELETE CASCADE, generation INTEGER NOT NULL,
  code BLOB NOT NULL, PRIMARY KEY (photo, generation)
) WITHOUT ROWID;
CREATE TABLE labels (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, changed INTEGER NOT NULL, photos INTEGER NOT NULL
);
CREATE TABLE photo_labels (
  photo INTEGER NOT NULL REFERENCES photos ON DELETE CASCADE, label INTEGER NOT NULL REFERENCES labels,
  state INTEGER NOT NULL, PRIMARY KEY (photo, label)
) WITHOUT ROWID;
CREATE INDEX photos_by_label ON photo_labels (label, photo) WHERE state & {CARRIED};
CREATE TABLE commits (number INTEGER PRIMARY KEY, stamp TEXT NOT NULL, time TEXT NOT NULL);
CREATE TABLE changes (
  number INTEGER NOT NULL, photo INTEGER NOT NULL, PRIMARY KEY (number, photo)
) WITHOUT ROWID;
"""
UPSERT = """INSERT INTO photos VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
  path = excluded.path, content = excluded.content, size = excluded.size, modified = excluded.modified,
  width = excluded.width, height = excluded.height, look = excluded.look,
  sourced = max(sourced, excluded.sourced), changed = excluded.changed"""
# all in one row: sqlite3 gives up Python's lock for every row, and threads that serve requests would fight for it
CAPTIONS = f"""SELECT json_group_array(json_array(id, path, json((
  SELECT json_group_array(name) FROM photo_labels JOIN labels ON labels.id = label
  WHERE photo = photos.id AND state & {CARRIED})))) FROM photos WHERE id IN ({{}})"""
META = "SELECT json_group_object(key, value) FROM meta"
COLUMNS = "p.id, p.path, p.content, p.size, p.modified, p.width, p.height, p.look, p.sourced, p.added, p.changed"


@dataclass(frozen=True)
class Meta:
    """What the table `meta` says."""

    fingerprint: str
    bits: int
    generation: int  # of codes: one for each hasher that the collection has had
    commit: int
    pruned: int  # `changes` knows all that happened after this commit
    coming: str = ""  # fingerprint of the hasher that codes are prepared for
    coming_bits: int = 0


def check_format(tx: sqlite3.Connection, path: Path) -> None:
    application = tx.execute("PRAGMA application_id").fetchone()[0]
    version = tx.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION:
        raise damaged(path, "it holds no collection")
    if version > FORMAT:
        raise CollectionError(
            f"{path.parent}: written by a newer hyphash (format {version}, this one reads {FORMAT}); "
            "run: pip install -U hyphash"
        )


def read_meta(tx: sqlite3.Connection) -> Meta:
    return to_meta(tx.execute(META).fetchone())


def to_meta(row: tuple[Any, ...]) -> Meta:
    return Meta(**json.loads(row[0]))


def write_meta(tx: sqlite3.Connection, meta: Meta) -> None:
    tx.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", vars(meta).items())


def read_stamp(tx: sqlite3.Connection, commit: int) -> str:
    row = tx.execute("SELECT stamp FROM commits WHERE number = ?", (commit,)).fetchone()
    return str(row[0]) if row else ""


def any_pending(tx: sqlite3.Connection, meta: Meta, *, since: int = -1) -> bool:
    """Whether photos lack a code of the coming hasher; `since` a commit at which none did, it is quick to say."""
    changed = "id IN (SELECT photo FROM changes WHERE number > :since) AND " if since >= meta.pruned else ""
    lacking = tx.execute(
        f"SELECT EXISTS (SELECT 1 FROM photos WHERE {changed} NOT EXISTS "
        "(SELECT 1 FROM codes WHERE photo = photos.id AND generation = :coming))",
        {"since": since, "coming": meta.generation + 1},
    )
    return bool(lacking.fetchone()[0])


def select(tx: sqlite3.Connection, meta: Meta, where: str, values: Sequence[Any]) -> list[Photo]:
    """Photos by id; `where` has one place for the list of values."""
    rows: list[tuple[Any, ...]] = []
    for some in chunks(values):
        rows += tx.execute(
            f"SELECT {COLUMNS}, c.code FROM photos p JOIN codes c ON c.photo = p.id AND c.generation = ? "
            f"WHERE {where.format(marks(some))}",
            (meta.generation, *some),
        )
    rows.sort()
    words = read_labels(tx, [row[0] for row in rows])
    return [_photo(row, words.get(row[0], Words())) for row in rows]


def to_captions(row: tuple[Any, ...]) -> dict[int, Caption]:
    """What CAPTIONS has found, by id."""
    return {id: Caption(path, tuple(sorted(labels))) for id, path, labels in json.loads(row[0])}


def _photo(row: tuple[Any, ...], words: Words) -> Photo:
    id, path, content, size, modified, width, height, look, sourced, added, changed, code = row
    return Photo(
        id=id, path=path, content=content.hex(), size=size, modified=modified, width=width, height=height,
        look=look, code=code, labels=words.carried, given=words.given if sourced else None,
        refused=words.refused, added=added, changed=changed,
    )  # fmt: skip


def to_row(photo: Photo, time: str) -> tuple[Any, ...]:
    return (
        photo.id, photo.path, bytes.fromhex(photo.content), photo.size, photo.modified, photo.width, photo.height,
        photo.look, photo.given is not None, photo.added or time, time,
    )  # fmt: skip


def known_photos(tx: sqlite3.Connection, meta: Meta, by_path: Mapping[str, Photo]) -> dict[int, Photo]:
    """The photos that are there already, under the same path or the same id."""
    found = select(tx, meta, "p.path IN ({})", list(by_path))
    found += select(tx, meta, "p.id IN ({})", [photo.id for photo in by_path.values() if photo.id])
    return {photo.id: photo for photo in found}


def with_ids(tx: sqlite3.Connection, photos: list[Photo], known: Mapping[int, Photo]) -> list[Photo]:
    """Every photo with its id: that of its path, else its own, else a new one."""
    row = tx.execute("SELECT seq FROM sqlite_sequence WHERE name = 'photos'").fetchone()
    return numbered(photos, known.values(), row[0] if row else 0)
