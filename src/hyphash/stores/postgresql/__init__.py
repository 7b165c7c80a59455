"""The store in PostgreSQL: `postgresql://user:password@host:port/database?collection=hyphash&partitions=0`.

A schema of tables in a database, which other programs may read and join (`tables.sql` says which). Every change is one
transaction that first locks the row of the collection, and leaves a random stamp in `commits`. If the server goes away
before it has answered, the next attempt looks for its stamp: nothing is done twice. Readers never wait; writers wait
for each other by the lock on the row.

Tables of an older format are brought up to date, in one transaction, when they are opened, by one who may change them.
`docs/engines.md` has the options of the address and the rights that a user of the server needs.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from hyphash.errors import CollectionError, ConfigError, needs_extra
from hyphash.stores import State, Store, T, closed_on_error, read_toml, require_hasher, stores
from hyphash.stores.address import Address
from hyphash.stores.postgresql.session import PostgreSQLSession, Schema, run

if TYPE_CHECKING:
    from hyphash.stores.postgresql.server import Connection

OPTIONS, LIMITS = read_toml(__package__, "options").values()


@stores("postgresql")
class PostgreSQL(Store):
    """A schema of tables in a database."""

    searcher = "postgresql"

    def __init__(self, address: Address, *, wait: float = 30.0) -> None:
        with needs_extra("postgres", "a store in PostgreSQL"):
            from hyphash.stores.postgresql.server import Server
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

    @classmethod
    def create(cls, folder: Path, url: str, *, fingerprint: str, bits: int) -> Self:  # noqa: ARG003 (all is elsewhere)
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

    def read(self, work: Callable[[PostgreSQLSession], T], what: str = "reading") -> T:
        return self.server.reading(lambda tx: work(PostgreSQLSession(tx, self.schema)), what)

    def write(self, work: Callable[[PostgreSQLSession], T], what: str) -> T:
        return self.server.writing(lambda tx: work(PostgreSQLSession(tx, self.schema, lock=True)), what)

    # ── maintenance ──────────────────────────────────────────────────────────────────────────────────────

    def tidy(self) -> None:
        """Let the server look at what has come, so that it plans well."""
        self.prune()
        tables = f"{self.schema.name}.photos, {self._codes()}"
        self.server.writing(lambda tx: run(tx, f"ANALYZE {tables}"), "tidying up")

    def compact(self) -> None:
        """Drop codes of former hashers, and let the server use again what removed photos took."""

        def work(session: PostgreSQLSession) -> None:
            for generation in range(1, session.state().generation):
                self.schema.drop_codes(session.tx, generation)

        self.write(work, "compacting")
        for table in (f"{self.schema.name}.photos", f"{self.schema.name}.changes", self._codes()):
            self.server.outside_transactions(f"VACUUM ANALYZE {table}", "compacting")

    def bytes_elsewhere(self) -> int:
        size = "SELECT coalesce(sum(pg_table_size(oid) + pg_indexes_size(oid)), 0)::bigint FROM pg_class"
        ours = "WHERE relnamespace = to_regnamespace(?) AND relkind = 'r'"
        return int(self.read(lambda session: session.value(f"{size} {ours}", [self.schema.name])))

    def _codes(self) -> str:
        return self.schema.codes(self.state().generation)
