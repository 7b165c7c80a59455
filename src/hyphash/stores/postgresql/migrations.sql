-- Steps from each format of a collection in PostgreSQL to the next.

-- from format 1
ALTER TABLE {schema}.photos RENAME COLUMN look TO thumbnail_hash;
ALTER TABLE {schema}.collection ADD COLUMN identity text NOT NULL DEFAULT '',
  ADD COLUMN stamp text NOT NULL DEFAULT '', ADD COLUMN pruned bigint NOT NULL DEFAULT 0,
  ADD COLUMN changes bigint NOT NULL DEFAULT 0;
UPDATE {schema}.collection SET identity = replace(gen_random_uuid()::text, '-', ''), pruned = commit,
  stamp = coalesce((SELECT stamp FROM {schema}.commits WHERE number = commit), gen_random_uuid()::text);
INSERT INTO {schema}.commits (number, stamp, what) SELECT commit, stamp, 'bringing the tables up to date'
  FROM {schema}.collection ON CONFLICT DO NOTHING;

CREATE TABLE {schema}.changes (number bigint NOT NULL, photo bigint NOT NULL, code bool NOT NULL);
CREATE INDEX changes_by_number ON {schema}.changes (number);
CREATE TABLE {schema}.searchers (name text PRIMARY KEY, note text NOT NULL);

-- from format 2
DO $$ DECLARE codes regclass; BEGIN
  FOR codes IN SELECT oid FROM pg_class WHERE relnamespace = '{schema}'::regnamespace
    AND relname ~ '^codes_[0-9]+$' AND relkind IN ('r', 'p') LOOP
    EXECUTE 'ALTER TABLE ' || codes || ' ADD COLUMN scores bytea NOT NULL DEFAULT ''''';
  END LOOP;
END $$;
CREATE INDEX photos_by_refusal ON {schema}.photos USING gin (refused) WHERE refused <> '{}';

-- from format 3
ALTER TABLE {schema}.photos ADD COLUMN taken bigint, ADD COLUMN camera text, ADD COLUMN latitude float8,
  ADD COLUMN longitude float8;
CREATE TABLE {schema}.removed (
  id bigint PRIMARY KEY, path text NOT NULL, content bytea NOT NULL, time text NOT NULL, trashed text,
  said text NOT NULL
);
CREATE INDEX removed_by_content ON {schema}.removed (content);
