"""What happened to a collection, for people to read: a line for photos that came, changed, moved or went together."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hyphash.collection.records import AddResult, Step
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
        self.heard: Callable[[dict[str, Any]], Any] = lambda _: None  # is told, too

    def tell(self, what: str, paths: Sequence[str], *, count: int | None = None, reason: str = "") -> None:
        """Enter what became of `count` photos (those in `paths`, of which it names some); nothing if there are none."""
        photos = len(paths) if count is None else count
        if not photos and not reason:
            return
        line = {"time": now(), "what": what, "photos": photos, "paths": list(paths[:NAMED]), "reason": reason}
        self.heard(line)
        with suppress(StorageError):  # what happened is safe already
            append_json(self.path, line)
            if self.path.stat().st_size > KEPT:
                write_atomically(self.path, self.path.read_bytes()[KEPT // 2 :].partition(b"\n")[2])

    def following(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Pass on steps that add photos, and tell in the end what became of them."""
        result, some = AddResult(), defaultdict[str, list[str]](list)
        try:
            for step in steps:
                result += step
                for photo in step.photos:
                    some[photo.status] += [photo.path] if len(some[photo.status]) < NAMED else []
                yield step
        finally:
            for what in ("added", "updated", "moved"):
                self.tell(what, some[what], count=result.counts[what])
            for problem in result.problems[:NAMED]:
                self.tell("left out", [problem.name], reason=problem.reason)

    def recent(self, limit: int) -> list[dict[str, Any]]:
        """The last lines, the newest first."""
        return read_json_lines(self.path)[: -limit - 1 : -1]
