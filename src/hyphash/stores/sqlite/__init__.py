"""The store in the folder of a collection: one file of SQLite."""

import secrets
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import local
from typing import Self, cast

from hyphash.errors import CollectionError, ConfigError, StorageError
from hyphash.stores import SCANNED, Caption, Photo, State, Store, T, closed_on_error, migrations_of, read_sql, stores
from hyphash.stores.sqlite.database import Database, damaged
from hyphash.stores.sqlite.session import Cache, SqliteSession

FILE = "collection.sqlite"
APPLICATION = 0x68797068  # "hyph", what `file` and we know the database by
MIGRATIONS = migrations_of(__package__)
FORMAT = 1 + len(MIGRATIONS)
KEPT_CAPTIONS = 200_000  # in memory: some 50 MB
KEPT_PHOTOS = 10_000  # the same
MARKS = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT}"


@stores("sqlite")
class SqliteStore(Store):
    """SQLite in the folder. Any number of processes may use it; those who write take turns."""

    shared = False

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder = folder
        self.shown = str(folder)
        self.database = database
        self._cache = Cache()
        self._held = local()  # `state`: what a thread takes for that of the store; None: it asks

    @classmethod
    def create(cls, folder: Path, url: str, *, fingerprint: str, bits: int) -> Self:
        _require_plain(url)
        store = cls(folder, Database.create(folder / FILE, f"{MARKS}; {read_sql(__package__, 'tables')}"))
        state = State(fingerprint=fingerprint, bits=bits, stamp=secrets.token_hex(8))
        with store.database.writing("creating the collection") as tx:
            store._session(tx).begin_commit(state, "creating the collection")
            store._session(tx).set_state(state, ids_changed=0)
        return store

    @classmethod
    def open(cls, folder: Path, url: str, *, wait: float = 30.0) -> Self:
        _require_plain(url)
        path = folder / FILE
        if not path.is_file():
            raise CollectionError(
                f"{folder}: {FILE} is missing; restore the folder from a backup, or index the photos into a new one"
            )
        database = Database(path, wait=wait)
        with closed_on_error(database):
            with database.reading() as tx:
                version = _format_of(tx, path)
            if version < FORMAT:
                with database.writing("bringing it to the format of today") as tx:
                    _migrate(tx, path)
        return cls(folder, database)

    def close(self) -> None:
        self.database.close()

    def read(self, work: Callable[[SqliteSession], T], what: str = "reading") -> T:  # noqa: ARG002 (nothing goes away)
        with self.database.reading() as tx:
            return work(self._session(tx))

    def write(self, work: Callable[[SqliteSession], T], what: str) -> T:
        with self.database.writing(what) as tx:
            return work(self._session(tx))

    def state(self) -> State:
        """In one statement without a transaction: every search asks for it."""
        if held := getattr(self._held, "state", None):
            return cast(State, held)
        with self.database.asking() as tx:
            return self._session(tx).state()

    def hold(self, on: bool) -> None:
        self._held.state = None
        self._held.state = self.state() if on else None

    def captions(self, ids: Sequence[int]) -> dict[int, Caption]:
        """Without a transaction, for the same reason."""

        def read(missing: list[int]) -> dict[int, Caption]:
            with self.database.asking() as tx:
                return self._session(tx).captions(missing)

        return self._cache.photos("captions", ids, self.state().position, KEPT_CAPTIONS, read)

    def get(self, ids: Sequence[int]) -> list[Photo]:
        """One photo from memory, where it was asked for before: people look at more than one page of those like it."""
        if len(ids) != 1:
            return super().get(ids)
        read = super().get
        position = self.state().position
        found = self._cache.photos("photos", ids, position, KEPT_PHOTOS, lambda _: {p.id: p for p in read(ids)})
        return list(found.values())

    def tidy(self) -> None:
        with suppress(StorageError):  # a full disk is no reason to stop
            self.prune()

    def verify(self) -> list[str]:
        try:
            with self.database.reading() as tx:
                broken = [row[0] for row in tx.execute("PRAGMA integrity_check") if row[0] != "ok"]
            # what lies in broken pages is not worth reading
            return [f"{self.database.path}: {words}" for words in broken] or super().verify()
        except CollectionError as error:
            return [str(error)]

    def compact(self) -> None:
        """Wipe out codes of former hashers, and give back unused pages."""
        last = self.state().last_id
        for start in range(0, last + 1, SCANNED):  # in parts: other writers get their turn
            with self.database.writing("compacting") as tx:
                former = start, start + SCANNED, self._session(tx).state().generation
                tx.execute("DELETE FROM codes WHERE photo >= ? AND photo < ? AND generation < ?", former)
        self.tidy()
        self.database.compact("compacting")

    def _session(self, tx: sqlite3.Connection) -> SqliteSession:
        return SqliteSession(tx, self._cache, self.database.path)


def _require_plain(url: str) -> None:
    if url != "sqlite":
        raise ConfigError(f"store {url!r}: SQLite lies in the folder and has no address; write store = 'sqlite'")


def _format_of(tx: sqlite3.Connection, path: Path) -> int:
    """The format of a database; refuses one that is no collection, or of a newer hyphash."""
    application = tx.execute("PRAGMA application_id").fetchone()[0]
    version: int = tx.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION:
        raise damaged(path, "it holds no collection")
    if version > FORMAT:
        raise CollectionError(
            f"{path.parent}: written by a newer hyphash (format {version}, this one reads {FORMAT}); "
            "run: pip install -U hyphash"
        )
    return version


def _migrate(tx: sqlite3.Connection, path: Path) -> None:
    """Bring the tables to the format of today, inside of one transaction; another process may have just done it."""
    for steps in MIGRATIONS[_format_of(tx, path) - 1 :]:
        for statement in steps.split(";\n"):
            tx.execute(statement)
    tx.execute(f"PRAGMA user_version = {FORMAT}")
