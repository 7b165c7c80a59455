-- What may be wrong in SQLite alone. See checks.sql of all stores.

-- a row of {} belongs to a row of {} that is not there
SELECT "table", parent FROM pragma_foreign_key_check;

-- {} has a code of {} bytes; index it again
SELECT path, length(code) FROM $codes JOIN photos USING (id) WHERE length(code) <> ($bits + 7) / 8;

-- {} is the wrong number of photos with {!r}
SELECT photos, name FROM labels
WHERE photos <> (SELECT count(*) FROM photo_labels WHERE label = labels.id AND state & 1);
