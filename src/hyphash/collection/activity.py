"""What happened to a collection, for people to read: a line for photos that came, changed, moved or went together."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from hyphash.collection.records import AddResult, Step
from hyphash.errors import StorageError
from hyphash.files import append_json, read_json_lines, write_atomically
from hyphash.stores import now

FILE = "activity.jsonl"
NAMED = 5  # photos of a line
KEPT = 1_000_000  # bytes, beyond which the older half goes


@dataclass(frozen=True)
class Happening:
    """What became of some photos at one time, with the names of the first of them."""

    time: str
    what: str  # added, updated, moved, removed, forgotten, left out, trashed, restored, emptied, failed
    photos: int
    names: list[str]
    reason: str  # what went wrong; it may name files


class Log:
    """Lines in a file of the collection; losing it loses nothing else."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.heard: Callable[[Happening], Any] = lambda _: None  # is told, too

    def tell(self, what: str, paths: Sequence[str], *, photos: int | None = None, reason: str = "") -> None:
        """Enter what became of so many `photos` (those of `paths`, unless they are more); nothing if there are none."""
        names = [PurePath(path).name for path in paths[:NAMED]]
        happening = Happening(now(), what, len(paths) if photos is None else photos, names, reason)
        if not happening.photos and not reason:
            return
        self.heard(happening)
        with suppress(StorageError):  # what happened is safe already
            append_json(self.path, vars(happening))
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
                self.tell(what, some[what], photos=result.counts[what])
            for problem in result.problems[:NAMED]:
                self.tell("left out", [problem.name], reason=problem.reason)

    def recent(self, limit: int) -> list[Happening]:
        """The last lines, the newest first."""
        return [Happening(**line) for line in read_json_lines(self.path)[: -limit - 1 : -1]]
