"""The tables of a collection in PostgreSQL, in a schema of their own that other programs may read and join.

collection  one row: format, hasher, and counters; who writes holds a lock on it
photos      what is known of each photo
codes       a view of the codes in use, of the table codes_<generation>; each hasher has a generation
commits     every change, by number; those of the last day at least
changes     which photos came, changed or went in a commit, and whether more than their labels did (`code`)
removed     photos that a person took out, what had been said of them, and where in a trash the file is, if it is
searchers   what a searcher elsewhere has noted for itself: how far it has come
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hyphash.errors import CollectionError, EngineError
from hyphash.stores import Generation, State

if TYPE_CHECKING:
    from hyphash.stores.postgresql.server import Connection, Cursor

FOLLOWERS = """
CREATE TABLE {schema}.changes (number bigint NOT NULL, photo bigint NOT NULL, code bool NOT NULL);
CREATE INDEX changes_by_number ON {schema}.changes (number);
CREATE TABLE {schema}.searchers (name text PRIMARY KEY, note text NOT NULL);
"""  # tables that format 1 did not have
REMOVED = """CREATE TABLE {schema}.removed (
  id bigint PRIMARY KEY, path text NOT NULL, content bytea NOT NULL, time text NOT NULL, trashed text,
  said text NOT NULL
);
CREATE INDEX removed_by_content ON {schema}.removed (content)"""
REFUSED = "CREATE INDEX photos_by_refusal ON {schema}.photos USING gin (refused) WHERE refused <> '{{}}'"
MIGRATIONS = (  # the first leads from format 1 to 2, and so on
    f"""
ALTER TABLE {{schema}}.photos RENAME COLUMN look TO thumbnail_hash;
ALTER TABLE {{schema}}.collection ADD COLUMN identity text NOT NULL DEFAULT '',
  ADD COLUMN stamp text NOT NULL DEFAULT '', ADD COLUMN pruned bigint NOT NULL DEFAULT 0,
  ADD COLUMN changes bigint NOT NULL DEFAULT 0;
UPDATE {{schema}}.collection SET identity = replace(gen_random_uuid()::text, '-', ''), pruned = commit,
  stamp = coalesce((SELECT stamp FROM {{schema}}.commits WHERE number = commit), gen_random_uuid()::text);
INSERT INTO {{schema}}.commits (number, stamp, what) SELECT commit, stamp, 'bringing the tables up to date'
  FROM {{schema}}.collection ON CONFLICT DO NOTHING;
{FOLLOWERS}""",
    f"""
DO $$ DECLARE codes regclass; BEGIN
  FOR codes IN SELECT oid FROM pg_class WHERE relnamespace = '{{schema}}'::regnamespace
    AND relname ~ '^codes_[0-9]+$' AND relkind IN ('r', 'p') LOOP
    EXECUTE 'ALTER TABLE ' || codes || ' ADD COLUMN scores bytea NOT NULL DEFAULT ''''';
  END LOOP;
END $$;
{REFUSED};""",
    f"""
ALTER TABLE {{schema}}.photos ADD COLUMN taken bigint, ADD COLUMN camera text, ADD COLUMN latitude float8,
  ADD COLUMN longitude float8;
{REMOVED};""",
)
TABLES = f"""
CREATE TABLE {{schema}}.collection (
  format int NOT NULL, fingerprint text NOT NULL, bits int NOT NULL, generation int NOT NULL, commit bigint NOT NULL,
  photos bigint NOT NULL, last_id bigint NOT NULL, partitions int NOT NULL, coming text NOT NULL,
  coming_bits int NOT NULL, identity text NOT NULL, stamp text NOT NULL, pruned bigint NOT NULL,
  changes bigint NOT NULL, only_row bool PRIMARY KEY DEFAULT true CHECK (only_row)
);
CREATE TABLE {{schema}}.commits (
  number bigint PRIMARY KEY, stamp text NOT NULL UNIQUE, what text NOT NULL, time timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE {{schema}}.photos (
  id bigint PRIMARY KEY, path text NOT NULL, content bytea NOT NULL, size bigint NOT NULL, modified bigint NOT NULL,
  width int NOT NULL, height int NOT NULL, thumbnail_hash bytea NOT NULL, labels text[] NOT NULL, given text[],
  refused text[] NOT NULL, added timestamptz NOT NULL, changed timestamptz NOT NULL, taken bigint, camera text,
  latitude float8, longitude float8
) {{spread}};
CREATE {{unique}} INDEX photos_by_path ON {{schema}}.photos (path);
CREATE INDEX photos_by_content ON {{schema}}.photos (content);
CREATE INDEX photos_by_label ON {{schema}}.photos USING gin (labels);
CREATE INDEX photos_without_label ON {{schema}}.photos (id) WHERE labels = '{{{{}}}}';
{REFUSED};
{REMOVED};
{FOLLOWERS}"""
USERS = """SELECT DISTINCT CASE WHEN r.oid IS NULL THEN pg_describe_object(d.classid, d.objid, 0)
  ELSE pg_describe_object('pg_class'::regclass, r.ev_class, 0) END AS name
FROM pg_depend d LEFT JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
WHERE d.deptype <> 'i' AND r.ev_class IS DISTINCT FROM to_regclass(%(view)s) AND (
  (d.refclassid = 'pg_class'::regclass AND d.refobjid = to_regclass(%(view)s))
  OR (d.refclassid = 'pg_type'::regclass AND d.refobjid = to_regtype(%(view)s))
) ORDER BY name"""


def run(tx: "Connection", statement: str, values: Sequence[Any] | Mapping[str, Any] | None = None) -> "Cursor":
    """Execute a statement that is ours, names of tables and all; values go their own way."""
    return tx.execute(statement.encode(), values, binary=True)


class Schema:
    """Making, changing and finding the tables of one collection."""

    def __init__(self, name: str, shown: str) -> None:
        self.name = name
        self.shown = shown  # where they are, for messages

    def exists(self, tx: "Connection") -> bool:
        return run(tx, "SELECT to_regclass(%s) IS NOT NULL", [f"{self.name}.collection"]).fetchone() == (True,)

    def create(self, tx: "Connection", state: State, partitions: int) -> None:
        if run(tx, "SELECT to_regnamespace(%s) IS NULL", [self.name]).fetchone() == (True,):
            run(tx, f"CREATE SCHEMA {self.name}")  # whoever owns one need not be able to make one
        # a constraint cannot look into several partitions; there the lock of those who write keeps paths apart
        unique = "" if partitions else "UNIQUE"
        tx.execute(TABLES.format(schema=self.name, unique=unique, spread=_spread(partitions)).encode())
        self._add_partitions(tx, "photos", partitions)
        row = state.columns | {"format": newest(), "partitions": partitions}
        marks = ", ".join(["%s"] * len(row))
        run(tx, f"INSERT INTO {self.name}.collection ({', '.join(row)}) VALUES ({marks})", list(row.values()))
        self.add_codes(tx, state.in_use, partitions)
        self.show_codes(tx, state.in_use)

    def codes(self, generation: int) -> str:
        return f"{self.name}.codes_{generation}"

    def add_codes(self, tx: "Connection", codes: Generation, partitions: int) -> None:
        """An empty table for the codes of a generation."""
        self.drop_codes(tx, codes.number)
        columns = f"(id bigint PRIMARY KEY, code bit({codes.bits}) NOT NULL, scores bytea NOT NULL DEFAULT '')"
        run(tx, f"CREATE TABLE {self.codes(codes.number)} {columns} {_spread(partitions)}")
        self._add_partitions(tx, f"codes_{codes.number}", partitions)

    def drop_codes(self, tx: "Connection", generation: int) -> None:
        run(tx, f"DROP TABLE IF EXISTS {self.codes(generation)}")

    def show_codes(self, tx: "Connection", codes: Generation) -> None:
        """Let the view `codes` show this generation. The type of a column cannot change: then it is made anew."""
        length = "SELECT atttypmod FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = 'code'"
        if run(tx, length, [f"{self.name}.codes"]).fetchone() not in (None, (codes.bits,)):
            run(tx, f"DROP VIEW {self.name}.codes")
        run(tx, f"CREATE OR REPLACE VIEW {self.name}.codes AS SELECT id, code FROM {self.codes(codes.number)}")

    def require_no_users(self, tx: "Connection") -> None:
        """Refuse codes of another length while others have built on the view `codes`."""
        users = [name for (name,) in run(tx, USERS, {"view": f"{self.name}.codes"})]
        if users:
            raise EngineError(
                f"{self.shown}: the new codes have another number of bits, for which the view {self.name}.codes has "
                f"to be made anew, but {', '.join(users)} was built on it; drop that, and create it again afterwards"
            )

    def _add_partitions(self, tx: "Connection", table: str, partitions: int) -> None:
        for part in range(partitions):
            of = f"PARTITION OF {self.name}.{table} FOR VALUES WITH (MODULUS {partitions}, REMAINDER {part})"
            run(tx, f"CREATE TABLE {self.name}.{table}_{part} {of}")

    # ── the row of the collection ────────────────────────────────────────────────────────────────────────

    def read(self, tx: "Connection", *, lock: bool = False) -> tuple[State, int]:
        """What the collection is, and its partitions; with `lock` nobody else writes until the transaction ends."""
        row = self._row(tx, lock=lock)
        if row["format"] < newest():
            raise CollectionError(
                f"{self.shown}: of format {row['format']}; open the collection again to bring it up to date"
            )
        return State.of(row), row["partitions"]

    def outdated(self, tx: "Connection") -> bool:
        return bool(self._row(tx)["format"] < newest())

    def _row(self, tx: "Connection", *, lock: bool = False) -> dict[str, Any]:
        cursor = run(tx, f"SELECT * FROM {self.name}.collection{' FOR UPDATE' * lock}")
        values = cursor.fetchone()
        if values is None:
            raise EngineError(f"{self.shown}: the table {self.name}.collection is empty; restore the database")
        row = {column.name: value for column, value in zip(cursor.description or (), values, strict=True)}
        if row["format"] > newest():
            raise CollectionError(
                f"{self.shown}: written by a newer hyphash (format {row['format']}, this one reads {newest()}); "
                "run: pip install -U hyphash"
            )
        return row

    def migrate(self, tx: "Connection") -> None:
        """Bring tables of an older format up to date."""
        for steps in MIGRATIONS[self._row(tx, lock=True)["format"] - 1 :]:
            tx.execute(steps.format(schema=self.name).encode())
        run(tx, f"UPDATE {self.name}.collection SET format = {newest()}")


def _spread(partitions: int) -> str:
    return "PARTITION BY HASH (id)" if partitions else ""


def newest() -> int:
    """The format that this hyphash writes."""
    return 1 + len(MIGRATIONS)
