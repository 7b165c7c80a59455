-- What may be wrong in PostgreSQL alone. See checks.sql of all stores.

-- the code of photo {} is left over; delete it from $codes
SELECT id FROM $codes c WHERE NOT EXISTS (SELECT FROM $tables.photos p WHERE p.id = c.id);

-- {} is there more than once; remove all but one
SELECT path FROM $tables.photos GROUP BY path HAVING count(*) > 1;

-- {} has no proper content; index it again
SELECT path FROM $tables.photos WHERE length(content) <> 32;

-- the index {} is not whole; run REINDEX on it
SELECT indexrelid::regclass::text FROM pg_index JOIN pg_class ON pg_class.oid = indrelid
WHERE relnamespace = to_regnamespace('$tables') AND NOT indisvalid;
