"""The tables of a collection in SQLite, and how those of an older format become these."""

import secrets
import sqlite3
from pathlib import Path

from hyphash.errors import CollectionError
from hyphash.stores.sqlite.database import damaged

FORMAT = 4
APPLICATION = 0x68797068  # "hyph", what `file` and we know the database by
CARRIED, GIVEN, REFUSED = 1, 2, 4  # bits of photo_labels.state
REMOVED = """CREATE TABLE removed (
  id INTEGER PRIMARY KEY, path TEXT NOT NULL, content BLOB NOT NULL, time TEXT NOT NULL, trashed TEXT,
  said TEXT NOT NULL
);
CREATE INDEX removed_by_content ON removed (content)"""  # photos that a person took out; trashed: where the file is now
BY_REFUSAL = f"CREATE INDEX photos_by_refusal ON photo_labels (label, photo) WHERE state & {REFUSED}"
SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE photos (
  id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, content BLOB NOT NULL,
  size INTEGER NOT NULL, modified INTEGER NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL,
  thumbnail_hash BLOB NOT NULL, sourced INTEGER NOT NULL, added TEXT NOT NULL, changed TEXT NOT NULL,
  taken INTEGER, camera TEXT, latitude REAL, longitude REAL
);
CREATE INDEX photos_by_content ON photos (content);
CREATE TABLE codes (
  photo INTEGER NOT NULL REFERENCES photos ON DELETE CASCADE, generation INTEGER NOT NULL,
  code BLOB NOT NULL, scores BLOB NOT NULL DEFAULT x'', PRIMARY KEY (photo, generation)
) WITHOUT ROWID;
CREATE TABLE labels (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, changed INTEGER NOT NULL, photos INTEGER NOT NULL
);
CREATE TABLE photo_labels (
  photo INTEGER NOT NULL REFERENCES photos ON DELETE CASCADE, label INTEGER NOT NULL REFERENCES labels,
  state INTEGER NOT NULL, PRIMARY KEY (photo, label)
) WITHOUT ROWID;
CREATE INDEX photos_by_label ON photo_labels (label, photo) WHERE state & {CARRIED};
{BY_REFUSAL};
CREATE TABLE commits (number INTEGER PRIMARY KEY, stamp TEXT NOT NULL, time TEXT NOT NULL);
CREATE TABLE changes (
  number INTEGER NOT NULL, photo INTEGER NOT NULL, code INTEGER NOT NULL, PRIMARY KEY (number, photo)
) WITHOUT ROWID;
CREATE TABLE searchers (name TEXT PRIMARY KEY, note TEXT NOT NULL) WITHOUT ROWID;
{REMOVED};
"""
# `changes` knew nothing of labels before: who follows from further back than now has to start again
FROM_FORMAT_1 = """
ALTER TABLE photos RENAME COLUMN look TO thumbnail_hash;
ALTER TABLE changes ADD COLUMN code INTEGER NOT NULL DEFAULT 1;
DELETE FROM changes;
CREATE TABLE searchers (name TEXT PRIMARY KEY, note TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO meta SELECT 'photos', count(*) FROM photos;
INSERT INTO meta SELECT 'last_id', max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'photos'), 0),
  coalesce((SELECT max(id) FROM photos), 0));
INSERT INTO meta SELECT 'stamp', stamp FROM commits WHERE number = (SELECT value FROM meta WHERE key = 'commit');
INSERT INTO meta SELECT 'ids_changed', value FROM meta WHERE key = 'commit';
INSERT INTO meta VALUES ('changes', 0), ('identity', ?);
UPDATE meta SET value = (SELECT value FROM meta WHERE key = 'commit') WHERE key = 'pruned'
"""
FROM_FORMAT_2 = f"""
ALTER TABLE codes ADD COLUMN scores BLOB NOT NULL DEFAULT x'';
{BY_REFUSAL}
"""
FROM_FORMAT_3 = f"""
ALTER TABLE photos ADD COLUMN taken INTEGER;
ALTER TABLE photos ADD COLUMN camera TEXT;
ALTER TABLE photos ADD COLUMN latitude REAL;
ALTER TABLE photos ADD COLUMN longitude REAL;
{REMOVED}
"""
MIGRATIONS = (FROM_FORMAT_1, FROM_FORMAT_2, FROM_FORMAT_3)


def format_of(tx: sqlite3.Connection, path: Path) -> int:
    """The format of a database; refuses one that is no collection, or of a newer hyphash."""
    application = tx.execute("PRAGMA application_id").fetchone()[0]
    version: int = tx.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION:
        raise damaged(path, "it holds no collection")
    if version > FORMAT:
        raise CollectionError(
            f"{path.parent}: written by a newer hyphash (format {version}, this one reads {FORMAT}); "
            "run: pip install -U hyphash"
        )
    return version


def migrate(tx: sqlite3.Connection, path: Path) -> None:
    """Bring the tables to the format of today, inside of one transaction; another process may have just done it."""
    for steps in MIGRATIONS[format_of(tx, path) - 1 :]:
        for statement in steps.split(";\n"):
            tx.execute(statement, (secrets.token_hex(16),) if "?" in statement else ())
    tx.execute(f"PRAGMA user_version = {FORMAT}")
