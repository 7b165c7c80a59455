"""A PostgreSQL server with the care that a truth deserves: whole transactions, done again if it went away."""

import os
import re
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

import psycopg
from psycopg import IsolationLevel, errors
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format

from hyphash.errors import BusyError, EngineError, HyphashError
from hyphash.stores import improper, read_toml
from hyphash.stores.address import ITS_HOSTS, Address
from hyphash.stores.pool import Pool
from hyphash.stores.postgresql.session import PREFIX, REVERSED, Code
from hyphash.stores.retry import first_line, retry

Connection = psycopg.Connection[tuple[Any, ...]]
Cursor = psycopg.Cursor[tuple[Any, ...]]
T = TypeVar("T")

LIBPQ = ("sslmode", "sslrootcert", "sslcert", "sslkey", "target_session_attrs", "host")  # options handed on as they are
ALIVE = {  # a server that has vanished from the network is missed within half a minute
    "connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}  # fmt: skip
PASSING = re.compile("08|57P0|53300|40001|40P01")  # no connection, restarting, too many clients, clash with another
WAYS_OUT = read_toml(__package__, "ways_out")

BIT = 1560  # PostgreSQL's number for the type


class CodeDumper(Dumper):
    """Code → bit(n): its length in bits, then the bytes."""

    format = Format.BINARY
    oid = BIT

    def dump(self, obj: Code) -> Buffer:
        return obj.bits.to_bytes(PREFIX, "big") + obj.packed.translate(REVERSED)


class CodeLoader(Loader):
    """bit(n) → packed bytes."""

    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)[PREFIX:].translate(REVERSED)


class Server:
    """Connections to one database, used by any number of threads."""

    def __init__(self, address: Address, *, wait: float = 30.0) -> None:
        self.address = address
        self.wait = wait
        self.patience = float(address.options["patience"])
        self._pool = Pool(self._connect, psycopg.Error, address.shown)

    def reading(self, work: Callable[[Connection], T], what: str = "reading") -> T:
        """One unchanging view of the data, for as long as `work` takes."""
        return self._done(lambda: self._transaction(work, IsolationLevel.REPEATABLE_READ, read_only=True), what)

    def writing(self, work: Callable[[Connection], T], what: str) -> T:
        """All of `work` happens, or nothing of it. Done again if the server went away, maybe after it took effect."""

        def careful(tx: Connection) -> T:
            tx.execute("SELECT set_config('lock_timeout', %s, true)", [f"{round(self.wait * 1000)}ms"])
            tx.execute(  # safe is safe, whatever the server prefers
                "SELECT set_config('synchronous_commit', 'on', true) "
                "WHERE current_setting('synchronous_commit') = 'off'"
            )
            return work(tx)

        return self._done(lambda: self._transaction(careful, IsolationLevel.READ_COMMITTED, read_only=False), what)

    def outside_transactions(self, statement: str, what: str) -> None:
        """For VACUUM and its like."""

        def attempt() -> None:
            with closing(self._connect()) as connection:
                connection.autocommit = True
                connection.execute(statement.encode())

        self._done(attempt, what)

    def close(self) -> None:
        self._pool.close()

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────

    def _transaction(self, work: Callable[[Connection], T], level: IsolationLevel, *, read_only: bool) -> T:
        with self._pool.connection() as connection:
            connection.isolation_level, connection.read_only = level, read_only or None
            with connection.transaction():
                return work(connection)

    def _connect(self) -> Connection:
        address = self.address
        address.show()
        place = {"host": address.host, "port": address.port, "user": address.user, "dbname": address.database}
        place["password"] = address.password
        place |= {name: address.options[name] for name in LIBPQ if name in address.given}
        hurry = {"connect_timeout": max(2, min(ALIVE["connect_timeout"], round(self.patience)))}  # libpq knows no less
        given: dict[str, Any] = ALIVE | hurry | {name: value for name, value in place.items() if value}
        if not address.named:
            given.setdefault("password", "")  # not that of PGPASSWORD
        elif address.lent or "PGPASSWORD" in os.environ:
            given["require_auth"] = "!password,!md5"  # SCRAM, which does not tell it
        # poolers between us and the server cannot keep prepared statements
        connection: Connection = psycopg.connect("", prepare_threshold=None, **given)
        connection.adapters.register_dumper(Code, CodeDumper)
        connection.adapters.register_loader(BIT, CodeLoader)
        return connection

    # ── when it fails ────────────────────────────────────────────────────────────────────────────────────

    def _done(self, attempt: Callable[[], T], what: str) -> T:
        try:
            return retry(attempt, passing=self._passing, what=what, server=self.address.shown, patience=self.patience)
        except UnicodeEncodeError as error:
            raise improper(self.address.shown, error) from None
        except psycopg.Error as error:
            if explained := self._explained(error, what):
                raise explained from error
            raise  # a mistake of ours

    def _passing(self, error: Exception) -> bool:
        """Whether the server may take back what it said: it is restarting, full of clients, or out of reach."""
        if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) or _refusal(error):
            return False
        if error.sqlstate and not PASSING.match(error.sqlstate):
            return False
        self._pool.close_idle()  # connections that slept through a restart are as dead
        return True

    def _explained(self, error: psycopg.Error, what: str) -> HyphashError | None:
        """What the server says, in words that name the way out."""
        if isinstance(error, errors.LockNotAvailable):
            waited = f"this one waited {self.wait:g} s; try again when the other is done"
            return BusyError(f"{self.address.shown}: another program is writing; {waited}")
        kinds = {kind.__name__ for kind in type(error).mro()}
        advice = _refusal(error) or next((row["way"] for row in WAYS_OUT["errors"] if kinds & {*row["kinds"]}), None)
        if advice is None:
            return None
        return EngineError(f"{self.address.shown}: {what} failed ({first_line(error)}); {advice}")


def _refusal(error: psycopg.Error) -> str | None:
    """The way out, if a connection was turned down for good."""
    if not isinstance(error, psycopg.OperationalError) or error.sqlstate:
        return None
    ways = (row["way"] for row in WAYS_OUT["refusals"] if re.search(row["words"], str(error)))
    return next((way.replace("ITS_HOSTS", ITS_HOSTS) for way in ways), None)
