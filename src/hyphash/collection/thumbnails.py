"""What a collection keeps of its photos: thumbnails of all, and the originals of those that came as bytes.

Both go by content, never by name: written before the truth speaks of them, right for every photo with that
content, and swept away by `compact` when no photo has it any more.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hyphash.errors import CollectionError
from hyphash.files import GRACE, digest, is_old, make_folder, write_atomically
from hyphash.stores.sqlite.database import Database

FILE = "thumbnails.sqlite"
FOLDER = "originals"
CONTENT = re.compile("[0-9a-f]{64}")
SCHEMA = "CREATE TABLE IF NOT EXISTS thumbnails (content BLOB PRIMARY KEY, jpeg BLOB NOT NULL)"
# contents that were put lately: they may belong to photos that are just being added
RECENT = "CREATE TABLE IF NOT EXISTS recent (content BLOB PRIMARY KEY, time REAL NOT NULL) WITHOUT ROWID"

AGAIN = "delete this file, thumbnails are made again"

Known = Callable[[Sequence[str]], set[str]]  # which of some contents photos still have


class Thumbnails:
    """Small pictures in a database of their own: whoever deletes it gets it back, thumbnail by thumbnail."""

    def __init__(self, folder: Path, *, wait: float = 30.0) -> None:
        path = folder / FILE
        if not path.exists():
            Database.create(path, SCHEMA, wait=wait)
        self.database = Database(path, wait=wait, way_out=AGAIN)

    def close(self) -> None:
        self.database.close()

    def put(self, thumbnails: Mapping[str, bytes]) -> None:
        """Keep thumbnails by content."""
        if thumbnails:
            with self.database.writing("storing thumbnails") as tx:
                rows = [(bytes.fromhex(content), jpeg) for content, jpeg in thumbnails.items()]
                tx.executemany("INSERT OR REPLACE INTO thumbnails VALUES (?, ?)", rows)
                tx.execute(RECENT)
                now = [(content, time.time()) for content, _ in rows]
                tx.executemany("INSERT OR REPLACE INTO recent VALUES (?, ?)", now)

    def get(self, content: str) -> bytes | None:
        with self.database.asking() as tx:
            row = tx.execute("SELECT jpeg FROM thumbnails WHERE content = ?", (bytes.fromhex(content),)).fetchone()
        return None if row is None else bytes(row[0])

    def sweep(self, known: Known) -> None:
        """Remove what no photo needs, nor one that is just being added."""
        with self.database.writing("sweeping thumbnails") as tx:
            tx.execute(RECENT)
            tx.execute("DELETE FROM recent WHERE time < ?", (time.time() - GRACE,))
        unneeded = "content = ?1 AND ?1 NOT IN (SELECT content FROM recent)"
        for contents in self._contents():
            gone = [(bytes.fromhex(content),) for content in sorted(set(contents) - known(contents))]
            with self.database.writing("sweeping thumbnails") as tx:
                tx.executemany(f"DELETE FROM thumbnails WHERE {unneeded}", gone)
        self.database.compact("compacting thumbnails")

    def verify(self) -> list[str]:
        try:
            with self.database.reading() as tx:
                found = [row[0] for row in tx.execute("PRAGMA integrity_check") if row[0] != "ok"]
        except CollectionError as error:
            found = [str(error)]
        return [f"{self.database.path}: {what}; {AGAIN}" for what in found]

    def _contents(self, many: int = 500) -> Iterator[list[str]]:
        query, last = "SELECT content FROM thumbnails WHERE content > ? ORDER BY content LIMIT ?", b""
        while True:
            with self.database.asking() as tx:
                rows = tx.execute(query, (last, many)).fetchall()
            if not rows:
                return
            last = rows[-1][0]
            yield [row[0].hex() for row in rows]


class Originals:
    """Whole photos as files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER

    def keep(self, content: str, data: bytes) -> None:
        """Write a photo; one that is there already is made young, so that nobody sweeps it away."""
        path = self._file(content)
        try:
            os.utime(path, follow_symlinks=False)
        except OSError:
            make_folder(path.parent)
            write_atomically(path, data)

    def path(self, content: str) -> Path | None:
        """The file of a photo that was kept; None: it was not."""
        path = self._file(content)
        return path if path.is_file() and not path.is_symlink() else None

    def contents(self) -> Iterator[str]:
        """Of all photos that were kept, by name."""
        for path in sorted(self.folder.glob("??/*")):
            linked = path.parent.is_symlink() or self.folder.is_symlink()
            if CONTENT.fullmatch(path.name) and self.path(path.name) == path and not linked:
                yield path.name

    def verify(self) -> list[str]:
        """Which are not what was kept, in words."""
        way = "restore it from a backup, or add the photo again"
        files = ((content, self._file(content)) for content in self.contents())
        return [f"{file}: damaged; {way}" for content, file in files if digest(file) != content]

    def sweep(self, contents: Sequence[str], known: Known) -> None:
        """Remove those of some photos that no photo needs; to be called where nobody else writes."""
        for content in sorted(set(contents) - known(contents)):
            if is_old(self._file(content)):
                self._file(content).unlink(missing_ok=True)

    def _file(self, content: str) -> Path:
        return self.folder / content[:2] / content
