-- Steps from each format of a collection in SQLite to the next.

-- from format 1
ALTER TABLE photos RENAME COLUMN look TO thumbnail_hash;
ALTER TABLE changes ADD COLUMN code INTEGER NOT NULL DEFAULT 1;
-- `changes` knew nothing of labels before: who follows from further back than now has to start again
DELETE FROM changes;
CREATE TABLE searchers (name TEXT PRIMARY KEY, note TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO meta SELECT 'photos', count(*) FROM photos;
INSERT INTO meta SELECT 'last_id', max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'photos'), 0),
  coalesce((SELECT max(id) FROM photos), 0));
INSERT INTO meta SELECT 'stamp', stamp FROM commits WHERE number = (SELECT value FROM meta WHERE key = 'commit');
INSERT INTO meta SELECT 'ids_changed', value FROM meta WHERE key = 'commit';
INSERT INTO meta VALUES ('changes', 0), ('identity', lower(hex(randomblob(16))));
UPDATE meta SET value = (SELECT value FROM meta WHERE key = 'commit') WHERE key = 'pruned';

-- from format 2
ALTER TABLE codes ADD COLUMN scores BLOB NOT NULL DEFAULT x'';
CREATE INDEX photos_by_refusal ON photo_labels (label, photo) WHERE state & 4;

-- from format 3
ALTER TABLE photos ADD COLUMN taken INTEGER;
ALTER TABLE photos ADD COLUMN camera TEXT;
ALTER TABLE photos ADD COLUMN latitude REAL;
ALTER TABLE photos ADD COLUMN longitude REAL;
CREATE TABLE removed (
  id INTEGER PRIMARY KEY, path TEXT NOT NULL, content BLOB NOT NULL, time TEXT NOT NULL, trashed TEXT,
  said TEXT NOT NULL
);
CREATE INDEX removed_by_content ON removed (content);
