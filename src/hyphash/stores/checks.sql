-- What may be wrong with the tables of any collection: the words to say so, and a statement with a row for each case.

-- {} has no code; index it again
SELECT path FROM $tables.photos p WHERE NOT EXISTS (SELECT 1 FROM $codes c WHERE c.id = p.id);

-- there are {} photos, but the collection says $photos; set its `photos` to that number
SELECT count(*) FROM $tables.photos HAVING count(*) <> $photos;

-- photo {} is beyond `last_id` of the collection, $last_id; raise that to it
SELECT max(id) FROM $tables.photos HAVING max(id) > $last_id;
