"""SQLite with the care that a truth deserves: one writer at a time, many readers, errors that say what to do."""

import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path

from hyphash.errors import BusyError, CollectionError, HyphashError, StorageError
from hyphash.files import open_regular, sync
from hyphash.stores import closed_on_error, improper
from hyphash.stores.pool import Pool

DAMAGE = "malformed|not a database|unsupported file format|no such (table|column)|duplicate column|already exists"
DAMAGE += "|not decode|cannot hold|mismatch|constraint failed"  # of what stands in a row


class Database:
    """A file of SQLite in WAL mode, used by any number of threads and processes."""

    def __init__(self, path: Path, *, wait: float = 30.0, way_out: str = "") -> None:
        """`way_out` of damage, where it is not that of the truth."""
        self.path = path
        self.way_out = way_out
        self.wait = wait
        self._pool = Pool(self._connect, sqlite3.Error, str(path.parent))

    @classmethod
    def create(cls, path: Path, schema: str, *, wait: float = 30.0) -> "Database":
        """A new file with the tables of `schema`."""
        database = cls(path, wait=wait)
        with database._errors(), closing(sqlite3.connect(path, timeout=wait, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(f"BEGIN; {schema}; COMMIT;")
        sync(path.parent)  # SQLite does so for its journals alone
        return database

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """One unchanging view of the data, however long it takes and whoever writes meanwhile."""
        return self._transaction("BEGIN")

    @contextmanager
    def asking(self) -> Iterator[sqlite3.Connection]:
        """For a question of one statement, which sees one moment by itself."""
        with self._errors(), self._pool.connection() as connection:
            yield connection

    @contextmanager
    def writing(self, what: str) -> Iterator[sqlite3.Connection]:
        """The only writer. All of the block happens, or nothing of it; afterwards it is on the disk."""
        with self._transaction("BEGIN IMMEDIATE") as connection, self._signed(what):
            yield connection
            connection.execute("COMMIT")

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self.asking() as connection:
            connection.execute(begin)
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def compact(self, what: str) -> None:
        """Give back unused pages."""
        with self.asking() as connection, self._signed(what):
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self._pool.close()

    def _connect(self) -> sqlite3.Connection:
        location = self.path.resolve().as_uri()
        try:
            return self._configured(f"{location}?mode=rw")
        except sqlite3.OperationalError:
            log = self.path.with_name(f"{self.path.name}-wal")
            if not self.path.is_file() or not os.statvfs(self.path).f_flag & os.ST_RDONLY:
                raise
            if log.exists() and log.stat().st_size:
                raise CollectionError(
                    f"{self.path}: on a disk that cannot be written, and its last changes are still in {log.name}; "
                    "open the collection once where it can be written"
                ) from None
            return self._configured(f"{location}?mode=ro&immutable=1")  # nobody can change it under our eyes

    def _configured(self, uri: str) -> sqlite3.Connection:
        # a connection goes from thread to thread, but is never used by two at once
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        with closed_on_error(connection):
            connection.execute(f"PRAGMA busy_timeout = {round(self.wait * 1000)}")
            connection.execute("PRAGMA synchronous = FULL")  # on the disk once committed, whatever loses power
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA trusted_schema = OFF")  # somebody may have sent it
            connection.create_function("unhex", 1, bytes.fromhex, deterministic=True)  # old builds have none
            connection.execute("SELECT count(*) FROM sqlite_master")  # fails here if the file is no database
        return connection

    @property
    def _signature(self) -> Path:
        return self.path.with_name(f"{self.path.name}-writer")

    @contextmanager
    def _signed(self, what: str) -> Iterator[None]:
        """Leave a note of who is writing, for those who wait in vain. Only a courtesy: SQLite holds the lock."""
        note = json.dumps({"process": os.getpid(), "what": what, "since": time.strftime("%H:%M:%S")})
        with suppress(OSError):
            self._signature.unlink(missing_ok=True)  # whatever it is, nothing is written through it
            with self._signature.open("x") as file:
                file.write(note)
        try:
            yield
        finally:
            with suppress(OSError):
                self._signature.unlink()

    def _who_writes(self) -> str:
        try:
            with open_regular(self._signature, follow=False) as file:
                note = json.loads(file.read(1000))
            return f"process {note['process']} ({note['what']}, since {note['since']})"
        except (OSError, ValueError, KeyError, TypeError):
            return "another program"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if explained := self._explained(error):
                raise explained from error
            raise  # a mistake of ours
        except (UnicodeDecodeError, json.JSONDecodeError) as error:  # what SQLite says quotes the file
            raise damaged(self.path, f"no text where one belongs: {error}", self.way_out) from error
        except UnicodeEncodeError as error:
            raise improper(str(self.path.parent), error) from None

    def _explained(self, error: sqlite3.Error) -> HyphashError | None:
        """What SQLite says, in words that name the way out."""
        folder, text = self.path.parent, str(error)
        match (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                waited = f"this one waited {self.wait:g} s; try again when the other is done"
                return BusyError(f"{folder}: {self._who_writes()} is writing; {waited}")
            case sqlite3.SQLITE_FULL | sqlite3.SQLITE_IOERR:
                what = "the disk is full" if "full" in text else f"the disk is full or fails ({text})"
                return StorageError(f"{folder}: {what}; make room and run the same command again, nothing is lost")
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
                return StorageError(f"{folder}: may not be written ({text}); check its permissions")
            case sqlite3.SQLITE_CANTOPEN:
                return CollectionError(f"{self.path}: cannot be opened ({text}); check that it is there")
        if isinstance(error, sqlite3.DatabaseError) and re.search(DAMAGE, text):
            return damaged(self.path, text, self.way_out)
        return None


def damaged(path: Path, what: str, way_out: str = "") -> CollectionError:
    way = way_out or "restore the folder from a backup, or index the photos into a new one"
    return CollectionError(f"{path}: damaged ({what}); {way}")
