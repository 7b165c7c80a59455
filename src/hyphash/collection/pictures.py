"""The pictures that a collection keeps: thumbnails of all photos, and whole files of those that came as bytes.

Both go by content, never by name: written before the truth speaks of them, right for every photo with that
content, and swept away by `compact` when no photo has it any more.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hyphash.engines.local.database import Database
from hyphash.files import disk_errors, write_atomically

FILE = "thumbnails.sqlite"
ORIGINALS = "originals"
SCHEMA = "CREATE TABLE IF NOT EXISTS thumbnails (content BLOB PRIMARY KEY, jpeg BLOB NOT NULL)"
GRACE = 3600.0  # seconds; a younger file may belong to a photo that is just being added


class Pictures:
    """Thumbnails in a database of their own, originals as files."""

    def __init__(self, folder: Path, *, wait: float = 30.0) -> None:
        self.folder = folder
        self.database = Database(folder / FILE, wait=wait, synchronous="NORMAL")

    def prepare(self) -> None:
        """Make the database where there is none: whoever deletes it gets it back, thumbnail by thumbnail."""
        if not self.database.path.exists():
            Database.create(self.database.path, SCHEMA, wait=self.database.wait)

    def close(self) -> None:
        self.database.close()

    def put(self, thumbnails: Mapping[str, bytes]) -> None:
        """Keep thumbnails by content."""
        if thumbnails:
            with self.database.writing("storing thumbnails") as tx:
                rows = [(bytes.fromhex(content), jpeg) for content, jpeg in thumbnails.items()]
                tx.executemany("INSERT OR REPLACE INTO thumbnails VALUES (?, ?)", rows)

    def get(self, content: str) -> bytes | None:
        with self.database.reading() as tx:
            row = tx.execute("SELECT jpeg FROM thumbnails WHERE content = ?", (bytes.fromhex(content),)).fetchone()
        return None if row is None else bytes(row[0])

    def keep(self, content: str, data: bytes) -> None:
        """Keep the bytes of a whole photo."""
        path = self._original(content)
        if not path.exists():
            with disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)

    def kept(self, content: str) -> Path | None:
        """The file of a photo that was kept whole."""
        path = self._original(content)
        return path if path.is_file() else None

    def _original(self, content: str) -> Path:
        return self.folder / ORIGINALS / content[:2] / content

    def sweep(self, known: Callable[[Sequence[str]], set[str]]) -> None:
        """Remove what no photo needs; `known` says which of some contents photos still have."""
        for contents in self._contents():
            gone = sorted(set(contents) - known(contents))
            with self.database.writing("sweeping thumbnails") as tx:
                tx.executemany("DELETE FROM thumbnails WHERE content = ?", [(bytes.fromhex(c),) for c in gone])
        for path in (self.folder / ORIGINALS).glob("??/*"):
            if time.time() - path.stat().st_mtime > GRACE and not known([path.name]):
                path.unlink(missing_ok=True)
        with self.database.alone("compacting thumbnails") as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def verify(self) -> list[str]:
        with self.database.reading() as tx:
            found = [row[0] for row in tx.execute("PRAGMA integrity_check") if row[0] != "ok"]
        return [f"{self.database.path}: {what}; delete this file, thumbnails are made again" for what in found]

    def _contents(self, many: int = 500) -> Iterator[list[str]]:
        last = b""
        while True:
            with self.database.reading() as tx:
                rows = tx.execute(
                    "SELECT content FROM thumbnails WHERE content > ? ORDER BY content LIMIT ?", (last, many)
                ).fetchall()
            if not rows:
                return
            last = rows[-1][0]
            yield [row[0].hex() for row in rows]
