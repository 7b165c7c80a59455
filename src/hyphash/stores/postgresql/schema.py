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
from hyphash.stores import Generation, State, migrations_of, read_sql

if TYPE_CHECKING:
    from hyphash.stores.postgresql.server import Connection, Cursor

MIGRATIONS = migrations_of(__package__)


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
        self._run_script(
            tx, read_sql(__package__, "tables").replace("{unique}", unique).replace("{spread}", _spread(partitions))
        )
        self._add_partitions(tx, "photos", partitions)
        row = vars(state) | {"format": newest(), "partitions": partitions}
        marks = ", ".join(["%s"] * len(row))
        run(tx, f"INSERT INTO {self.name}.collection ({', '.join(row)}) VALUES ({marks})", list(row.values()))
        self.add_codes(tx, state.in_use, partitions)
        self.show_codes(tx, state.in_use)

    def _run_script(self, tx: "Connection", script: str) -> None:
        tx.execute(script.replace("{schema}", self.name).encode())

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
        users = [name for (name,) in run(tx, read_sql(__package__, "users"), {"view": f"{self.name}.codes"})]
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
            self._run_script(tx, steps)
        run(tx, f"UPDATE {self.name}.collection SET format = {newest()}")


def _spread(partitions: int) -> str:
    return "PARTITION BY HASH (id)" if partitions else ""


def newest() -> int:
    """The format that this hyphash writes."""
    return 1 + len(MIGRATIONS)
