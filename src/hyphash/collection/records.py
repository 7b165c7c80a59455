"""What a collection answers with and says of what was done, and the log of what happened, for people to read."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple, overload

from hyphash.errors import StorageError
from hyphash.files import append_json, read_json_lines, write_atomically
from hyphash.photos import Problem
from hyphash.stores import Change, Photo, now

LOG = "activity.jsonl"
NAMED = 5  # photos of a line
LAST = 1000  # lines among which nothing stands twice that was left out
KEPT = 1_000_000  # bytes, beyond which the older half goes

Status = Literal["added", "updated", "moved", "unchanged", "removed"]  # removed: by a person, and it stays so


@dataclass(frozen=True)
class Added:
    """What became of one photo: it is in the collection, safe on the disk, as number `id`."""

    id: int
    path: str
    status: Status

    @classmethod
    def of(cls, change: Change) -> "Added":
        """What the store says: two processes that see the same new photo do not both add it."""
        before, after = change.before, change.after
        status: Status = "added" if before is None else "unchanged"
        if before is not None and before.path != after.path:
            status = "moved"
        elif before is not None and (change.shows_other or before.given != after.given):
            status = "updated"
        return cls(after.id, after.path, status)


@dataclass(frozen=True)
class Step:
    """Photos that were dealt with together, and how far that brings the whole."""

    photos: tuple[Added, ...]
    problems: tuple[Problem, ...]
    done: int
    total: int


@dataclass(frozen=True)
class AddResult:
    """How many photos came in which way, and those that could not be read."""

    added: int = 0
    updated: int = 0
    moved: int = 0
    unchanged: int = 0
    removed: int = 0
    problems: tuple[Problem, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        return {name: value for name, value in vars(self).items() if name != "problems"}

    def __add__(self, step: Step) -> "AddResult":
        counts = self.counts
        for photo in step.photos:
            counts[photo.status] += 1
        return AddResult(**counts, problems=self.problems + step.problems)


class Verdict(NamedTuple):
    """What a person says of a photo and a label: it carries it, it does not, or nothing any more."""

    id: int
    label: str
    said: Literal["accept", "refuse", "forget"]


@dataclass(frozen=True)
class Missing:
    """Photos whose files are gone, and how many cannot be judged here: their folder is on another machine."""

    photos: tuple[Photo, ...]
    elsewhere: int

    def __len__(self) -> int:
        return len(self.photos)

    def __iter__(self) -> Iterator[Photo]:
        return iter(self.photos)


@dataclass(unsafe_hash=True)  # frozen, those of a page would take three times as long to make
class Match:
    """A photo that a query found."""

    id: int
    path: str
    distance: int  # bits that differ from the query; of a product quantiser, pieces
    # cosine of query and code, 1 is nearest; of a product quantiser, minus its squared distance; by labels, the
    # log-probability that it carries what is asked for, as scores have it, and the weighted cosine to a photo
    score: float
    labels: tuple[str, ...]
    shared: tuple[str, ...]  # those of its labels that the query asked for, or that the photo in the query carries
    probability: float | None = None  # that it is as the labels of the query say, where these rank
    known: bool = False  # people say so
    width: int = 0
    height: int = 0


@dataclass(frozen=True)
class Ranking(Sequence[Match]):
    """Matches `offset` … of `total`, nearest first, equal ones by id."""

    matches: tuple[Match, ...]
    offset: int
    total: int
    asked: tuple[str, ...] = ()  # the labels of the query: those wanted, and those of the photo in it
    rank: str = "hamming"  # what orders it
    known: int = 0  # photos that carry what the labels of the query ask for, as people say
    probable: int = 0  # others that probably do
    bordered: bool = False  # whether the known come first, then the probable, then the others
    unlike: str = ""  # what to say where the query is unlike anything in the collection
    behind: int = 0  # commits that were not looked at, where a search may answer before it has caught up

    def __len__(self) -> int:
        return len(self.matches)

    @overload
    def __getitem__(self, index: int) -> Match: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Match, ...]: ...

    def __getitem__(self, index: int | slice) -> Match | tuple[Match, ...]:
        return self.matches[index]


@dataclass(frozen=True)
class Month:
    month: str  # such as 2019-05
    photos: int


@dataclass(frozen=True)
class Timeline:
    """Photos by when they were taken."""

    months: tuple[Month, ...]  # the first one first
    undated: int  # photos that do not say
    unread: int = 0  # photos whose dates are being gathered still: ask again


@dataclass(frozen=True)
class Stats:
    """A collection in figures: `distinct` codes, and for each bit in `balance` the share of photos where it is 1."""

    photos: int
    untagged: int  # photos that carry no label
    labels: dict[str, int]  # how many photos carry each, most frequent first
    bits: int
    distinct: int
    balance: tuple[float, ...]
    fingerprint: str  # of the hasher
    commit: int  # grows with every change
    bytes: int  # on disk: the folder, and what its store takes elsewhere


@dataclass(frozen=True)
class Happening:
    """What became of some photos at one time, with the names of the first of them."""

    time: str
    what: str  # added, updated, moved, removed, forgotten, left out, trashed, restored, emptied, refined, failed
    photos: int
    names: list[str]
    reason: str  # what went wrong; it may name files


class Log:
    """Lines in a file of the collection; losing it loses nothing else."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG
        self.heard: Callable[[Happening], Any] = lambda _: None  # is told, too

    def tell(self, what: str, paths: Sequence[str], *, photos: int | None = None, reason: str = "") -> None:
        """Enter what became of so many `photos` (those of `paths`, unless they are more); nothing if there are none."""
        names = [PurePath(path).name for path in paths[:NAMED]]
        happening = Happening(now(), what, len(paths) if photos is None else photos, names, reason)
        if not happening.photos and not reason:
            return
        self.heard(happening)
        if what == "left out" and any(replace(line, time=happening.time) == happening for line in self.recent(LAST)):
            return  # as the last time, and the time before
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
            self.tell("left out", [problem.name for problem in result.problems[NAMED:]])

    def recent(self, limit: int) -> list[Happening]:
        """The last lines, the newest first; those that are none of ours are left out."""
        found = list[Happening]()
        for line in read_json_lines(self.path)[: -limit - 1 : -1]:
            with suppress(KeyError, TypeError, ValueError, OverflowError):
                texts = line["time"], line["what"], line["reason"], *line["names"]  # UTF-8 need not hold them
                time, what, reason, *names = (str(text).encode(errors="replace").decode() for text in texts)
                found.append(Happening(time, what, int(line["photos"]), names, reason))
        return found
