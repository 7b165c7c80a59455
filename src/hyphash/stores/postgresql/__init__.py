"""The store in PostgreSQL: `postgresql://user:password@host:port/database?collection=hyphash&partitions=0`.

A schema of tables in a database, which other programs may read and join (`tables.sql` says which). Every change is one
transaction that first locks the row of the collection, and leaves a random stamp in `commits`. If the server goes away
before it has answered, the next attempt looks for its stamp: nothing is done twice. Readers never wait; writers wait
for each other by the lock on the row.

Tables of an older format are brought up to date, in one transaction, when they are opened, by one who may change them.
`docs/engines.md` has the options of the address and the rights that a user of the server needs.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hyphash.errors import CollectionError, ConfigError, EngineError, needs_extra
from hyphash.stores import Generation, State, Store, T, closed_on_error, migrations_of, read_sql, require_hasher, stores
from hyphash.stores.address import Address, Value

if TYPE_CHECKING:
    from hyphash.stores.postgresql.server import Connection, Cursor
    from hyphash.stores.postgresql.session import PostgreSQLSession

OPTIONS: dict[str, Value] = {
    "collection": "hyphash",  # the schema
    "partitions": 0,  # tables that photos and codes are spread over; 0: not spread
    "patience": 60.0,  # seconds that a server may stay away
    "sslmode": "", "sslrootcert": "", "sslcert": "", "sslkey": "", "target_session_attrs": "", "host": "",
    "m": 16, "ef_construction": 64, "ef_search": 200, "build_memory": 1024,  # of searchers in these tables
}  # fmt: skip
LIMITS = {
    "partitions": (0, 4096), "patience": (0, 86_400), "m": (2, 100), "ef_construction": (4, 1000),
    "ef_search": (1, 1000), "build_memory": (1, 1 << 20),
}  # fmt: skip
MIGRATIONS = migrations_of(__package__)


@stores("postgresql")
class PostgreSQL(Store):
    """A schema of tables in a database."""

    searcher = "postgresql"

    def __init__(self, address: Address, *, wait: float = 30.0) -> None:
        with needs_extra("postgres", "a store in PostgreSQL"):
            from hyphash.stores.postgresql.server import Server
            from hyphash.stores.postgresql.session import PostgreSQLSession
        schema = str(address.options["collection"])
        if not re.fullmatch("(?!pg_|information_schema$)[a-z_][a-z0-9_]{0,49}", schema):
            raise ConfigError(
                f"collection {schema!r}: a name has a … z, 0 … 9 and _, does not start with pg_, is not the server's"
            )
        address.require_within(LIMITS)
        self.address = address
        self.shown = address.shown
        self.server = Server(address, wait=wait)
        self.schema = Schema(schema, address.shown)
        self._session = partial(PostgreSQLSession, schema=self.schema)

    @classmethod
    def create(cls, folder: Path, url: str, *, fingerprint: str, bits: int) -> Self:  # noqa: ARG003 (all is elsewhere)
        """A new, empty store; or the one that is there, if it is of the same hasher: another machine joins."""
        address = Address.parse(url, options=OPTIONS)
        store, partitions = cls(address), int(address.options["partitions"])
        wanted = State(fingerprint=fingerprint, bits=bits)

        def attempt(tx: "Connection") -> None:
            run(tx, "SELECT pg_advisory_xact_lock(hashtext(%s))", [store.schema.name])
            if not store.schema.exists(tx):
                store.schema.create(tx, wanted, partitions)
            if store.schema.outdated(tx):
                store.schema.migrate(tx)
            state, there = store.schema.read(tx)
            require_hasher(state, fingerprint, store.shown)
            if "partitions" in address.given and there != partitions:
                raise ConfigError(f"{address.shown}: the collection that is there has {there} partitions")

        with closed_on_error(store):
            store.server.writing(attempt, "creating the collection")
        return store

    @classmethod
    def open(cls, folder: Path, url: str, *, wait: float = 30.0) -> Self:
        store = cls(Address.parse(url, options=OPTIONS), wait=wait)

        def outdated(tx: "Connection") -> bool:
            if not store.schema.exists(tx):
                raise CollectionError(
                    f"{folder}: there is no collection {store.schema.name!r} in {store.shown}; restore the "
                    "database from a backup, or index the photos into a new folder"
                )
            return store.schema.outdated(tx)

        with closed_on_error(store):
            if store.server.reading(outdated, "opening the collection"):
                store.server.writing(store.schema.migrate, "bringing the tables up to date")
            store.state()
        return store

    def close(self) -> None:
        self.server.close()

    def hurry(self, seconds: float) -> None:
        self.server.patience = min(self.server.patience, seconds)

    def read(self, work: Callable[["PostgreSQLSession"], T], what: str = "reading") -> T:
        return self.server.reading(lambda tx: work(self._session(tx)), what)

    def write(self, work: Callable[["PostgreSQLSession"], T], what: str) -> T:
        return self.server.writing(lambda tx: work(self._session(tx, lock=True)), what)

    # ── maintenance ──────────────────────────────────────────────────────────────────────────────────────

    def tidy(self) -> None:
        """Let the server look at what has come, so that it plans well."""
        self.prune()
        tables = f"{self.schema.name}.photos, {self._codes()}"
        self.server.writing(lambda tx: run(tx, f"ANALYZE {tables}"), "tidying up")

    def compact(self) -> None:
        """Drop codes of former hashers, and let the server use again what removed photos took."""

        def work(session: "PostgreSQLSession") -> None:
            for generation in range(1, session.state().generation):
                self.schema.drop_codes(session.tx, generation)

        self.write(work, "compacting")
        for table in (f"{self.schema.name}.photos", f"{self.schema.name}.changes", self._codes()):
            self.server.outside_transactions(f"VACUUM ANALYZE {table}", "compacting")

    def bytes_elsewhere(self) -> int:
        statement = (
            "SELECT coalesce(sum(pg_table_size(oid) + pg_indexes_size(oid)), 0)::bigint FROM pg_class "
            "WHERE relnamespace = to_regnamespace(?) AND relkind = 'r'"
        )
        return int(self.read(lambda session: session.value(statement, [self.schema.name])))

    def _codes(self) -> str:
        return self.schema.codes(self.state().generation)


def run(tx: "Connection", statement: str, values: Sequence[Any] | Mapping[str, Any] | None = None) -> "Cursor":
    """Execute a statement that is ours, names of tables and all; values go their own way."""
    return tx.execute(statement.encode(), values, binary=True)


class Schema:
    """Making, changing and finding the tables of one collection: `tables.sql`."""

    def __init__(self, name: str, shown: str) -> None:
        self.name = name
        self.shown = shown  # where they are, for messages

    def exists(self, tx: "Connection") -> bool:
        return run(tx, "SELECT to_regclass(%s) IS NOT NULL", [f"{self.name}.collection"]).fetchone() == (True,)

    def create(self, tx: "Connection", state: State, partitions: int) -> None:
        if run(tx, "SELECT to_regnamespace(%s) IS NULL", [self.name]).fetchone() == (True,):
            run(tx, f"CREATE SCHEMA {self.name}")  # whoever owns one need not be able to make one
        # a constraint cannot look into several partitions; there the lock of those who write keeps paths apart
        tables = read_sql(__package__, "tables").replace("{unique}", "" if partitions else "UNIQUE")
        self._run_script(tx, tables.replace("{spread}", _spread(partitions)))
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
