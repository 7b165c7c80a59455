"""Searchers: derived from a store, and rebuilt from it at will. They hold ids, codes and what their filters need.

A searcher follows the commits of its store: it knows up to which one it has come (`position`), and catches up before
it answers. It may be behind, lost or wrong, and nothing is lost. It is found by the scheme of its URL (`milvus://…`)
or by its name (`local`), and goes with any store.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.labels import LARGEST, log_sigmoid, sigmoid
from hyphash.registry import Registry
from hyphash.searchers.filters import EVERYTHING, UNKNOWN, Filter
from hyphash.stores import Position, State, Store, gathered, require_hasher

if TYPE_CHECKING:
    from hyphash.searchers.local import Local

LOGITS = np.linspace(-LARGEST, LARGEST, 16, dtype=np.float32)
Role = Literal["every", "some", "unwanted"]  # of a label: all of these, any of these, none
Said = Literal["first", "counts", "lacking", "ignored"]  # see LabelQuery


@dataclass(frozen=True)
class Found:
    """The photos that a query found, nearest first, and how many there are in all."""

    ids: NDArray[np.int64]
    distances: NDArray[np.int32]  # bits that differ
    scores: NDArray[np.float32] | None  # sums of table entries, where the query came with tables
    total: int
    behind: int = 0  # commits of the store that were not looked at
    probabilities: NDArray[np.float64] | None = None  # that a photo is as the labels of the query say
    known: int = 0  # photos of which people said that they are
    probable: int = 0  # others that probably are


class Selected(NamedTuple):
    """Photos that a filter allows, by id."""

    ids: NDArray[np.int64]
    taken: NDArray[np.int32]  # in minutes since 1970; UNKNOWN where they do not say

    def newest(self, offset: int, k: int) -> NDArray[np.int64]:
        """The photos `offset` … `offset + k`, those that were taken last first, those of which nobody knows last."""
        return self.ids[np.argsort(-self.taken.astype(np.int64), kind="stable")[offset : offset + k]]

    def months(self) -> dict[str, int]:
        """How many photos were taken in each month, such as 2019-05, the first one first."""
        known = self.taken[self.taken != UNKNOWN].astype("M8[m]").astype("M8[M]")
        months, photos = np.unique(known, return_counts=True)
        return dict(zip(map(str, months), photos.tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class LabelTerm:
    """A label of a query: where its scores are, what they mean, and what is asked of it.

    The source is the number of the label among those whose scores are kept, or float32 weights, which give a logit
    from the bits and scores that are kept (`searchers.local.scores.features_of`), the last for none of them.
    """

    label: str
    source: int | bytes | None = None  # None: it has no scores, and no query can be ranked by it
    logits: NDArray[np.float32] = field(default_factory=lambda: LOGITS)  # (16,) or (256,), rising: of each score
    threshold: float = 0.5  # the probability from which a photo is said to carry it
    unkept: int = 0  # the score of a photo that does not keep the label among its best
    role: Role = "every"
    at_least: float = 0.0  # the probability below which a photo is not found

    @cached_property
    def costs(self) -> NDArray[np.float32]:
        """−log of the probability that a photo with each score is as asked for; infinite: it is not found."""
        logits = -self.logits if self.role == "unwanted" else self.logits
        return np.where(sigmoid(logits) < self.at_least, np.inf, -log_sigmoid(logits)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class LabelQuery:
    """The labels of a query. A photo costs Σ −log p(every) − log(1 − Π(1 − p(some))) − Σ log(1 − p(unwanted)).

    What people said counts before scores. `first`: photos that they say to be as asked for lead the ranking, what a
    photo carries has p = 1, and it is not found if an unwanted label is carried or a wanted one refused; `counts`:
    the same, but none leads; `lacking`: only photos that neither carry nor refuse the label; `ignored`: scores alone.
    """

    terms: tuple[LabelTerm, ...] = ()
    said: Said = "first"

    def those(self, *roles: Role) -> list[LabelTerm]:
        return [term for term in self.terms if term.role in roles]

    def names(self, *roles: Role) -> list[str]:
        return [term.label for term in self.those(*roles)]

    def carried_by(self, labels: Sequence[str]) -> bool:
        """Whether a photo with these labels is known to be as asked for."""
        every, some, unwanted = (set(self.names(role)) for role in ("every", "some", "unwanted"))
        right = every <= {*labels} and (not some or bool(some & {*labels})) and not unwanted & {*labels}
        return self.said in ("first", "counts") and bool(every or some) and right

    @property
    def border(self) -> float:
        """The cost up to which a photo probably is as asked for: where each label stands at its threshold."""
        at = [term.threshold for term in self.those("every")]
        at += [1 - term.threshold for term in self.those("unwanted")]
        at += [min(term.threshold for term in some)] if (some := self.those("some")) else []
        return float(-np.log(np.clip(at, 1e-6, 1)).sum())


@dataclass(frozen=True)
class Query:
    """What a searcher is asked for: the photos `offset` … `offset + k` of a ranking."""

    code: Codes  # one
    k: int
    _: KW_ONLY
    fingerprint: str  # of the hasher that made the code
    offset: int = 0
    only: Filter = EVERYTHING
    tables: NDArray[np.float32] | None = None  # (bytes, 256): rank by Σ_j tables[j, byte j of the code] instead
    bits: int | None = None  # tables rank by so many first bits before they look at others: a searcher may do so, too
    labels: LabelQuery | None = None  # rank by what they cost, and by the sums of tables where there are some, too
    catch_up: bool = True  # else a searcher that is behind answers from what it has, and says by how much

    @property
    def end(self) -> int:
        return self.offset + self.k

    def require_fit(self, state: State, shown: str) -> None:
        """Refuse a code of another hasher than that of the store."""
        require_hasher(state, self.fingerprint, shown)
        self.code.require_length(state.bits)

    def completed(self, named: Found, search: Callable[["Query"], Found]) -> Found:
        """The page, where an index has `named` the first photos of the ranking: all others follow, as `search` has it.

        An index has to name the same photos for whichever page, or one could be on two of them and another on none.
        """
        page = slice(self.offset, self.end)
        first = replace(named, ids=named.ids[page], distances=named.distances[page])
        if len(named.ids) >= min(self.end, named.total):
            return first
        others = replace(self.only, excluded=(*self.only.excluded, *named.ids.tolist()))
        offset = max(0, self.offset - len(named.ids))
        rest = search(replace(self, only=others, k=self.k - len(first.ids), offset=offset))
        ids, distances = np.concatenate([first.ids, rest.ids]), np.concatenate([first.distances, rest.distances])
        return replace(first, ids=ids, distances=distances)


class Searcher(ABC):
    """The contract. Searches may come from any number of threads."""

    exact: ClassVar[bool] = True  # False: may miss photos; its name says so and it reports its recall
    inside: ClassVar[str] = ""  # the store in whose tables it searches; it goes with no other

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder = folder
        self.store = store

    @classmethod
    def create(cls, folder: Path, url: str, store: Store) -> Self:
        """A new searcher for a store; it may be empty, and comes to know the photos when it follows."""
        return cls.open(folder, url, store)

    @classmethod
    @abstractmethod
    def open(cls, folder: Path, url: str, store: Store) -> Self:
        """The searcher of the collection in `folder`. One that was lost is no error: it is behind by everything."""

    @abstractmethod
    def search(self, query: Query) -> Found:
        """A page of the ranking by (distance, id), or what a query with tables or labels ranks by instead."""

    @abstractmethod
    def position(self) -> Position | None:
        """How far it has come; None: it holds nothing that can be used."""

    @abstractmethod
    def follow(self) -> None:
        """Catch up with the store: by the changes since its position, or from the start where these are not known."""

    @abstractmethod
    def rebuild(self) -> None:
        """Drop everything and build it anew from the store, which goes on meanwhile."""

    @cached_property
    def _here(self) -> "Local":
        """A local searcher beside it, for what it does not do itself; derived when somebody asks for that."""
        from hyphash.searchers.local import Local

        return Local(self.folder, self.store)

    def is_at(self, position: Position) -> bool:  # noqa: ARG002
        """Whether all codes of this moment are in memory, to be searched without waiting for anybody."""
        return False

    def select(self, only: Filter) -> Selected:
        """All photos that a filter allows, its radius apart."""
        return self._here.select(only)

    # ── whoever has nothing of its own, or nothing that can be away, has nothing to do for these ─────────
    # ruff: noqa: B027

    def close(self) -> None: ...

    def hurry(self, seconds: float) -> None:
        """From now on wait at most so long for a server that is away, for the sake of people who wait as well."""

    def require_ready(self) -> None:
        """Raise what keeps it from answering, such as a server that is away."""

    def prepare(self) -> None:
        """The store has all codes of its coming hasher: get ready for them, so that the switch takes no time."""

    def tidy(self) -> None:
        """Called after many changes: catch up, and do what keeps searches fast. One that is away is no error."""

    def check(self) -> None:
        """Called now and then by who searches for long: what was damaged on the disk since is used no longer."""

    def verify(self) -> list[str]:
        """Where it differs from the store, in words; nothing if all is well."""
        return []

    def compact(self) -> None:
        """Give back room that is no longer used."""


searchers: Registry[type[Searcher]] = Registry("engine", package="hyphash.searchers", entry_points="hyphash.searchers")
searcher_for = searchers.at


def recall(searcher: Searcher, queries: Codes, k: int) -> float:
    """recall@k: of the k photos that each query finds, the share that is as near as the k nearest there are.

    Photos at the same distance are equally right. The truth is computed from all codes, which takes its time.
    """
    state = searcher.store.state()
    codes = gathered(searcher.store.scan(), state.bits)[1]
    nearest = hamming.search(queries, codes, k)[0]
    hits = 0
    for i, distances in enumerate(nearest):
        found = searcher.search(Query(queries[i], k, fingerprint=state.fingerprint))
        hits += int(np.count_nonzero(found.distances <= distances.max(initial=-1)))
    return hits / nearest.size if nearest.size else 1.0
