"""What happened to a collection, for people to read: a line for photos that came, changed, moved or went together."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hyphash.errors import StorageError
from hyphash.files import append_json, read_json_lines, write_atomically
from hyphash.stores import now

FILE = "activity.jsonl"
NAMED = 5  # photos of a line
KEPT = 1_000_000  # bytes, beyond which the older half goes


class Log:
    """Lines in a file of the collection; losing it loses nothing else."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def tell(self, what: str, paths: Sequence[str], *, count: int | None = None, reason: str = "") -> None:
        """Enter what became of `count` photos (those in `paths`, of which it names some); nothing if there are none."""
        photos = len(paths) if count is None else count
        if not photos and not reason:
            return
        line = {"time": now(), "what": what, "photos": photos, "paths": list(paths[:NAMED]), "reason": reason}
        with suppress(StorageError):  # what happened is safe already
            append_json(self.path, line)
            if self.path.stat().st_size > KEPT:
                write_atomically(self.path, self.path.read_bytes()[KEPT // 2 :].partition(b"\n")[2])

    def recent(self, limit: int) -> list[dict[str, Any]]:
        """The last lines, the newest first."""
        return read_json_lines(self.path)[: -limit - 1 : -1]
