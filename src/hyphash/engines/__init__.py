"""Engines: where codes, labels and paths live and are searched. One contract, one suite of tests.

An engine is found by the scheme of its URL (`postgresql://…`) or by its name (`local`). It lies in a file of
this package, or comes from an entry point in the group `hyphash.engines`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hyphash import hamming
from hyphash.codes import Codes, bytes_for
from hyphash.errors import CodesError, CollectionError
from hyphash.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Photo:
    """A photo as a collection knows it. Its path says which one it is, its content whether it has changed."""

    id: int = 0  # given by the engine, stable, never used again; 0: not stored yet
    path: str  # of the file, or what people call a photo that is none
    content: str  # SHA-256 of the bytes, in hex
    size: int = 0  # of the file in bytes
    modified: int = 0  # time of the file in ns; 0: not known, so the file has to be read to see a change
    width: int = 0
    height: int = 0
    look: bytes = b""  # 64 bits of light and dark, for near-duplicates
    code: bytes
    labels: tuple[str, ...] = ()  # what it carries
    given: tuple[str, ...] | None = None  # what its source said last; None: nothing
    refused: tuple[str, ...] = ()  # suggestions that a person turned down
    added: str = ""  # UTC
    changed: str = ""


class Caption(NamedTuple):
    """What is shown of a photo that was found."""

    path: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class State:
    """What an engine holds at this moment; `commit` grows with every change."""

    fingerprint: str
    bits: int
    commit: int


@dataclass(frozen=True)
class Found:
    """The photos that a query found, nearest first, and how many there are in all."""

    ids: NDArray[np.int64]
    distances: NDArray[np.int32]  # bits that differ
    scores: NDArray[np.float32] | None  # sums of table entries, where the query came with tables
    total: int


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which photos may be found."""

    carrying: tuple[str, ...] = ()  # only those that carry all of these
    tagged: bool = False  # only those that carry any label
    excluded: tuple[int, ...] = ()
    radius: int | None = None  # at most so many bits away


class Engine(ABC):
    """The contract. Every change is made whole or not at all, and is safe once the call has returned.

    Codes come with the fingerprint of the hasher that made them; OtherHasherError refuses any but its own.
    """

    exact: ClassVar[bool] = True  # False: may miss photos; its name says so and it reports its recall
    shared: ClassVar[bool] = True  # other machines may have photos in it, under paths that mean nothing here

    @classmethod
    @abstractmethod
    def create(cls, folder: Path, url: str, *, fingerprint: str, bits: int) -> Self:
        """A new, empty engine for the collection in `folder`."""

    @classmethod
    @abstractmethod
    def open(cls, folder: Path, url: str, *, wait: float = 30.0) -> Self:
        """The engine of the collection in `folder`; writers wait up to `wait` seconds for each other."""

    @abstractmethod
    def close(self) -> None: ...

    def hurry(self, seconds: float) -> None:  # noqa: B027 (most have nothing to wait for)
        """From now on wait at most so long for a server that is away, for the sake of people who wait as well."""

    @abstractmethod
    def state(self) -> State: ...

    # ── changes ──────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def upsert(self, photos: Sequence[Photo], *, fingerprint: str) -> list[int]:
        """Add photos or replace what is known of them; their ids.

        A photo is known by its path, else by its id (then it has moved). The labels of a known photo change
        only by what its source has gained and lost since last time:
        labels ← (labels ∪ (given − given before)) − (given before − given); what people did stays.
        """

    @abstractmethod
    def relabel(self, id: int, edit: Callable[[Photo], Photo]) -> Photo | None:
        """Read a photo, let `edit` change `labels` and `refused`, write it; nobody comes in between."""

    @abstractmethod
    def remove(self, ids: Iterable[int]) -> int:
        """Forget photos; how many there were."""

    # ── questions ────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def get(self, ids: Sequence[int]) -> list[Photo]:
        """The photos with these ids, in this order; those that are gone are left out."""

    def captions(self, ids: Sequence[int]) -> dict[int, Caption]:
        """What to show of the photos with these ids; those that are gone are left out.

        Every page of results asks for them: an engine that reads them faster than whole photos should.
        """
        return {photo.id: Caption(photo.path, photo.labels) for photo in self.get(ids)}

    @abstractmethod
    def find(self, *, paths: Sequence[str] = (), contents: Sequence[str] = ()) -> list[Photo]:
        """The photos with one of these paths or contents, by id."""

    @abstractmethod
    def page(self, offset: int, limit: int, *, carrying: Sequence[str] = (), untagged: bool = False) -> list[Photo]:
        """Photos `offset` … `offset + limit` by id."""

    @abstractmethod
    def page_after(self, id: int, limit: int) -> list[Photo]:
        """The next photos with ids above `id`: a walk through all that costs the same at every step."""

    @abstractmethod
    def count(self, *, carrying: Sequence[str] = (), untagged: bool = False) -> int: ...

    @abstractmethod
    def labels(self) -> dict[str, int]:
        """All labels and how many photos carry each, most frequent first."""

    @abstractmethod
    def search(
        self,
        query: Codes,
        k: int,
        *,
        fingerprint: str,
        offset: int = 0,
        choice: Choice = Choice(),  # noqa: B008 (frozen)
        tables: NDArray[np.float32] | None = None,
    ) -> Found:
        """Photos `offset` … `offset + k` of the ranking by (distance to `query`, id).

        With `tables` (bytes, 256) the ranking is by (Σ_j tables[j, byte j of the code], id) instead.
        """

    @abstractmethod
    def scan(self) -> Iterator[tuple[NDArray[np.int64], Codes]]:
        """All ids and codes, in parts, by id."""

    @abstractmethod
    def looks(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]]]:
        """All ids by id, in parts, with the 64 bits of each photo's look (0: none) and the first of its content."""

    # ── another hasher ───────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def prepare(self, fingerprint: str, bits: int) -> None:
        """Make room for codes of another hasher beside those in use; keeps what was stored for it before."""

    @abstractmethod
    def pending(self, limit: int, *, after: int = 0) -> list[Photo]:
        """Photos with an id above `after` that have no code of the coming hasher yet, by id."""

    @abstractmethod
    def store(self, photos: Sequence[Photo], *, fingerprint: str) -> None:
        """Codes of the coming hasher; photos that are gone or have another content by now are passed over."""

    @abstractmethod
    def switch(self, fingerprint: str) -> bool:
        """Take the coming hasher into use at once, if no photo is pending; whether that was so."""

    # ── care ─────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def settle(self) -> None:
        """Called after many changes: the moment to bring derived things up to date."""

    @abstractmethod
    def verify(self) -> list[str]:
        """What is wrong, in words; nothing if all is well."""

    @abstractmethod
    def compact(self) -> None:
        """Give back room that is no longer used."""

    def bytes_elsewhere(self) -> int:
        """How much room it takes outside of the collection's folder."""
        return 0


engines: Registry[type[Engine]] = Registry("engine", package="hyphash.engines", entry_points="hyphash.engines")


def engine_for(url: str) -> type[Engine]:
    """The class behind `local` or behind a URL such as `postgresql://host/photos`."""
    return engines[url if ".py:" in url else url.partition("://")[0]]


def merged(before: Photo | None, after: Photo) -> Photo:
    """`after` with the labels that a known photo then has; the rule of `Engine.upsert`, for all engines."""
    if before is None:
        return after
    if after.given is None:
        return replace(after, labels=before.labels, given=before.given, refused=before.refused)
    old, new = set(before.given or ()), set(after.given)
    labels = (set(before.labels) | (new - old)) - (old - new)
    return replace(after, labels=tuple(sorted(labels)), refused=before.refused)


def numbered(photos: Iterable[Photo], known: Iterable[Photo], last: int) -> list[Photo]:
    """Every photo with its id: that of its path among the known, else its own, else a new one above `last`."""
    photos = list(photos)
    at_path = {photo.path: photo.id for photo in known}
    following = count(max([last, *(photo.id for photo in photos)]) + 1)
    taken = {at_path[photo.path] for photo in photos if photo.path in at_path}
    placed = []
    for photo in photos:
        id = at_path.get(photo.path, 0 if photo.id in taken else photo.id) or next(following)
        taken.add(id)
        placed.append(replace(photo, id=id))
    return placed


def check_codes(photos: Sequence[Photo], bits: int) -> None:
    """Refuse codes that are not `bits` long before they reach the truth."""
    for photo in photos:
        if len(photo.code) != bytes_for(bits):
            raise CodesError(f"{photo.path}: a code of {len(photo.code)} bytes; {bits} bits take {bytes_for(bits)}")
    packed = np.frombuffer(b"".join(photo.code for photo in photos), np.uint8)
    Codes(packed.reshape(len(photos), bytes_for(bits)), bits)  # sees bits after the last


def improper(place: str, error: UnicodeEncodeError) -> CollectionError:
    """The refusal of a text that is none: names of files may be any bytes."""
    return CollectionError(f"{place}: {error.object[:80]!r} is no proper text (UTF-8) and cannot be held; rename it")


def now() -> str:
    """The time as photos carry it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def recall(engine: Engine, queries: Codes, k: int) -> float:
    """recall@k: of the k photos that each query finds, the share that is as near as the k nearest there are.

    Photos at the same distance are equally right. The truth is computed from all codes, which takes its time.
    """
    state = engine.state()
    nearest = np.full((len(queries), k), state.bits + 1, np.int32)  # distances; more than bits: there are not so many
    for _, codes in engine.scan():
        distances = hamming.search(queries, codes, k)[0]
        nearest = np.sort(np.concatenate([nearest, distances], axis=1), axis=1)[:, :k]
    wanted = np.count_nonzero(nearest <= state.bits)
    hits = 0
    for i in range(len(queries)):
        farthest = nearest[i][nearest[i] <= state.bits].max(initial=-1)
        found = engine.search(queries[i], k, fingerprint=state.fingerprint)
        hits += int(np.count_nonzero(found.distances <= farthest))
    return hits / wanted if wanted else 1.0
