-- The tables of a collection in PostgreSQL, as format 4 has them, in a schema of their own that other programs may read
-- and join.
--
-- collection  one row: format, hasher, and counters; who writes holds a lock on it
-- photos      what is known of each photo
-- codes       a view of the codes in use, of the table codes_<generation>; each hasher has a generation
-- commits     every change, by number; those of the last day at least
-- changes     which photos came, changed or went in a commit, and whether more than their labels did (`code`)
-- removed     photos that a person took out, what had been said of them, and where in a trash the file is, if it is
-- searchers   what a searcher elsewhere has noted for itself: how far it has come

CREATE TABLE {schema}.collection (
  format int NOT NULL, fingerprint text NOT NULL, bits int NOT NULL, generation int NOT NULL, commit bigint NOT NULL,
  photos bigint NOT NULL, last_id bigint NOT NULL, partitions int NOT NULL, coming text NOT NULL,
  coming_bits int NOT NULL, identity text NOT NULL, stamp text NOT NULL, pruned bigint NOT NULL,
  changes bigint NOT NULL, only_row bool PRIMARY KEY DEFAULT true CHECK (only_row)
);
CREATE TABLE {schema}.commits (
  number bigint PRIMARY KEY, stamp text NOT NULL UNIQUE, what text NOT NULL, time timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE {schema}.photos (
  id bigint PRIMARY KEY, path text NOT NULL, content bytea NOT NULL, size bigint NOT NULL, modified bigint NOT NULL,
  width int NOT NULL, height int NOT NULL, thumbnail_hash bytea NOT NULL, labels text[] NOT NULL, given text[],
  refused text[] NOT NULL, added timestamptz NOT NULL, changed timestamptz NOT NULL, taken bigint, camera text,
  latitude float8, longitude float8
) {spread};
CREATE {unique} INDEX photos_by_path ON {schema}.photos (path);
CREATE INDEX photos_by_content ON {schema}.photos (content);
CREATE INDEX photos_by_label ON {schema}.photos USING gin (labels);
CREATE INDEX photos_without_label ON {schema}.photos (id) WHERE labels = '{}';
CREATE INDEX photos_by_refusal ON {schema}.photos USING gin (refused) WHERE refused <> '{}';
CREATE TABLE {schema}.removed (
  id bigint PRIMARY KEY, path text NOT NULL, content bytea NOT NULL, time text NOT NULL, trashed text,
  said text NOT NULL
);
CREATE INDEX removed_by_content ON {schema}.removed (content);

CREATE TABLE {schema}.changes (number bigint NOT NULL, photo bigint NOT NULL, code bool NOT NULL);
CREATE INDEX changes_by_number ON {schema}.changes (number);
CREATE TABLE {schema}.searchers (name text PRIMARY KEY, note text NOT NULL);
