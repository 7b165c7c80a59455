-- The tables of a collection in SQLite, as format 4 has them.
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
-- state: 1 it carries the label, 2 its source gave it, 4 a person refused it; one or more of these
CREATE TABLE photo_labels (
  photo INTEGER NOT NULL REFERENCES photos ON DELETE CASCADE, label INTEGER NOT NULL REFERENCES labels,
  state INTEGER NOT NULL, PRIMARY KEY (photo, label)
) WITHOUT ROWID;
CREATE INDEX photos_by_label ON photo_labels (label, photo) WHERE state & 1;
CREATE INDEX photos_by_refusal ON photo_labels (label, photo) WHERE state & 4;
CREATE TABLE commits (number INTEGER PRIMARY KEY, stamp TEXT NOT NULL, time TEXT NOT NULL);
CREATE TABLE changes (
  number INTEGER NOT NULL, photo INTEGER NOT NULL, code INTEGER NOT NULL, PRIMARY KEY (number, photo)
) WITHOUT ROWID;
CREATE TABLE searchers (name TEXT PRIMARY KEY, note TEXT NOT NULL) WITHOUT ROWID;
-- photos that a person took out; trashed: where the file is now
CREATE TABLE removed (
  id INTEGER PRIMARY KEY, path TEXT NOT NULL, content BLOB NOT NULL, time TEXT NOT NULL, trashed TEXT,
  said TEXT NOT NULL
);
CREATE INDEX removed_by_content ON removed (content);
