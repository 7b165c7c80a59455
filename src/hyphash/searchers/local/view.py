"""All codes at one commit, ready to be searched: those of the snapshot file, and in memory what has changed since.

The ranking by labels has first the photos that people say to be as asked for, then all others by what scores say.
Photos of which nobody said anything are scanned by the kernel, plane by plane; the others take numpy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.hamming import Index
from hyphash.hamming.twin import Floats, Planes
from hyphash.searchers import Found, LabelQuery, LabelTerm, Query, Role, Selected
from hyphash.searchers.filters import FactColumns, Filter
from hyphash.searchers.local.scores import LabelScores, numbers_at
from hyphash.stores import Ids, Position, Scores

INDEXED = 500_000  # from so many codes on an index pays: fewer are scanned in the time that a search takes anyway
SHARE = 500  # of so many codes one may be asked for: to find more, all cores scan faster than one walks the index
FEW = 8  # one photo in so many, and it is faster to copy their codes than to pass over the others,
FEWER = 64  # or than to ask an index for them
LONG = 8  # from so many bits on few photos have the nearest ones, and to look for these first is faster
GUESSED = 100  # from so many ids on it is faster to guess where they stand than to look them up

NO_SCORES = LabelScores(0, {})
NONE = np.empty(0, np.int64)
Mask = NDArray[np.bool_] | None
Ranked = tuple[NDArray[Any], Ids]  # distances, or sums of table entries


@dataclass(frozen=True)
class Block:
    """Codes by ascending id; those that are not `visible` are no longer what the store holds."""

    ids: Ids
    stored: Codes | Callable[[], Codes]  # a function: they are put together when somebody needs them all
    visible: Mask = None  # None: all
    index: Index | None = None  # of all codes, hidden ones too
    scores: LabelScores = NO_SCORES  # of all photos, hidden ones too; searches by codes need none
    facts: FactColumns | None = None  # the same, for filters
    prefixes: dict[int, Codes] = field(default_factory=dict, compare=False)  # by their bits: those asked for last
    sound: Callable[[], bool] = field(default=lambda: True, compare=False)  # False: their file is damaged

    def __len__(self) -> int:
        return self._size

    @cached_property
    def _size(self) -> int:
        return len(self.ids) if self.visible is None else int(np.count_nonzero(self.visible))

    @property
    def codes(self) -> Codes:
        return self.stored if isinstance(self.stored, Codes) else self.stored()

    @property
    def packed(self) -> Scores:
        """Scores as photos store them; of no bytes where there are none."""
        return self.scores.packed if self.scores.count else np.empty((len(self.ids), 0), np.uint8)

    @property
    def described(self) -> FactColumns:
        """Facts of all photos; where there are none, nothing is known of them."""
        return FactColumns.of(self.ids, ()) if self.facts is None else self.facts

    @property
    def bits(self) -> int:
        return self.index.bits if self.index else self.codes.bits

    @property
    def worth_an_index(self) -> bool:
        return len(self.ids) >= INDEXED and hamming.backend().name == "native"  # numpy scans, index or not

    def rows(self, ids: Ids) -> Ids:
        """Where the photos with these ids (ascending) stand, for those that are here and visible."""
        if not len(self.ids) or not len(ids):
            return NONE
        last = len(self.ids) - 1
        rows: Ids
        if len(ids) < GUESSED:
            rows = np.minimum(np.searchsorted(self.ids, ids), last)
        else:
            rows = np.clip(ids - self.ids[0], 0, last)  # right where no id is left out before it
            wrong = np.flatnonzero(self.ids[rows] != ids)
            rows[wrong] = np.minimum(np.searchsorted(self.ids, ids[wrong]), last)
        rows = rows[self.ids[rows] == ids]
        return rows if self.visible is None else rows[self.visible[rows]]

    def at(self, rows: Ids) -> "Block":
        """The photos in these rows, ascending, with nothing but their codes."""
        return Block(self.ids[rows], self.codes[rows])

    def allowed(self, only: Filter, carrying: Ids | None) -> Mask:
        """Which photos a filter allows, where those with its labels are `carrying`; None: all. Not to be written to."""
        mask = self.described.mask(only)
        others = self.visible if carrying is None else marks(self.rows(carrying), len(self.ids))
        return others if mask is None else mask if others is None else mask & others

    def narrowed(self, only: Filter, carrying: Ids | None) -> "Block":
        """Only the photos that a filter allows: copied out if they are few, else marked."""
        few = FEWER if self.index else FEW
        if carrying is not None and len(carrying) * few < len(self.ids):
            rows, mask = self.rows(carrying), self.described.mask(only)
            return self.at(rows if mask is None else rows[mask[rows]])
        visible = self.allowed(only, carrying)
        if visible is None or visible is self.visible:
            return self
        narrow = replace(self, visible=visible)
        return self.at(np.flatnonzero(visible)) if len(narrow) * few < len(self.ids) else narrow

    def nearest(self, query: Codes, k: int) -> Ranked:
        """The k nearest by (distance, id)."""
        if self.index and k * SHARE <= len(self):
            distances, rows = self.index.search(query, k, mask=self.visible)
        else:
            distances, rows = hamming.search(query, self.codes, k, mask=self.visible)
        return distances[0], self.ids[rows[0]]

    def best(self, tables: NDArray[np.float32], k: int) -> Ranked:
        """The k with the least sum of table entries by (sum, id)."""
        scores, rows = hamming.search_tables(tables[None], self.codes, k, mask=self.visible)
        return scores[0], self.ids[rows[0]]

    def first(self, query: Codes, bits: int, k: int) -> "Block":
        """Only the photos whose first bits are no farther than those of the k nearest by them."""
        codes, query = self.prefixes.get(bits), query.first(bits)
        if codes is None:
            self.prefixes.clear()
            self.prefixes[bits] = codes = self.codes.first(bits)
        farthest = int(hamming.search(query, codes, k, mask=self.visible)[0][0, -1])
        return self.at(np.sort(hamming.within(query, codes, farthest, mask=self.visible)[0][1]))

    def within(self, query: Codes, radius: int) -> "Block":
        """Only the photos at most `radius` bits away."""
        if not len(self):
            return self
        return self.at(np.sort(hamming.within(query, self.codes, radius, mask=self.visible)[0][1]))

    def kept(self, rows: NDArray[Any]) -> "Block":
        """Some photos with all that is known of them."""
        return replace(self.at(rows), scores=LabelScores.of(self.packed[rows]), facts=self.described.kept(rows))

    def joined(self, other: "Block") -> "Block":
        """This block and another as one; neither has hidden rows."""
        if not len(other.ids):
            return self
        if not len(self.ids):
            return other
        ids = np.concatenate([self.ids, other.ids])
        codes, scores = Codes.concatenate([self.codes, other.codes]), LabelScores.of(self.packed, other.packed)
        joined = Block(ids, codes, scores=scores, facts=self.described.joined(other.described))
        return joined.kept(np.argsort(ids, kind="stable")) if self.ids[-1] > other.ids[0] else joined


def marks(rows: Ids, count: int) -> NDArray[np.bool_]:
    """Which of so many rows these are."""
    marked = np.zeros(count, np.bool_)
    marked[rows] = True
    return marked


class Told(NamedTuple):
    """What people said that matters to a query: ids, ascending."""

    allowed: Ids | None = None  # photos that the labels of the filter allow; None: all
    carried: Mapping[str, Ids] = {}  # of each label of the query
    refused: Mapping[str, Ids] = {}


@dataclass(frozen=True)
class View:
    """All codes at one commit: those of the file, and those that have come or changed since. Never altered."""

    position: Position
    base: Block
    extra: Block
    saved: int = -1  # commit of the file; −1: there is none

    def __len__(self) -> int:
        return len(self.base) + len(self.extra)

    @property
    def touched(self) -> int:
        """How much has changed since the file was written."""
        return len(self.extra.ids) + len(self.base.ids) - len(self.base)

    def changed(self, position: Position, touched: Ids, codes: Block) -> "View":
        """The view at a later commit: `touched` ids have changed, those in `codes` are still there."""
        rows = self.base.rows(touched)
        visible = self.base.visible
        if len(rows):
            visible = np.ones(len(self.base.ids), np.bool_) if visible is None else visible.copy()
            visible[rows] = False
        stay = ~np.isin(self.extra.ids, touched)
        extra = self.extra.kept(stay).joined(codes)
        return View(position, replace(self.base, visible=visible), extra, self.saved)

    def merged(self) -> Block:
        """Everything in one block."""
        visible = self.base if self.base.visible is None else self.base.kept(self.base.visible)
        return visible.joined(self.extra)

    def selected(self, only: Filter, carrying: Ids | None) -> Selected:
        """See Searcher.select."""
        blocks = [(block, block.allowed(only, carrying)) for block in (self.base, self.extra)]
        every = [(block, slice(None) if mask is None else mask) for block, mask in blocks]
        ids = np.concatenate([block.ids[rows] for block, rows in every])
        taken = np.concatenate([block.described.taken[rows] for block, rows in every])
        order = np.argsort(ids, kind="stable") if len(self.extra) else slice(None)
        return Selected(ids[order], taken[order])

    def search(self, query: Query, told: Told) -> Found:
        """See Searcher.search."""
        return self._by_codes(query, told) if query.labels is None else self._by_labels(query, query.labels, told)

    def _by_codes(self, query: Query, told: Told) -> Found:
        only, tables = query.only, query.tables
        excluded = np.array(sorted(only.excluded), np.int64)
        found: list[Ranked] = [(np.empty(0, np.int32 if tables is None else np.float32), NONE)]
        total = 0
        for whole in (self.base, self.extra):
            if not len(whole.ids):
                continue
            block = whole.narrowed(only, told.allowed)
            block = block if only.radius is None else block.within(query.code, only.radius)
            total += len(block) - len(block.rows(excluded))
            wanted = min(query.end + len(excluded), len(block))  # these drop out again below
            if wanted:
                if query.bits and query.bits >= LONG:
                    block = block.first(query.code, query.bits, wanted)
                found.append(block.nearest(query.code, wanted) if tables is None else block.best(tables, wanted))
        scores, ids = found[-1]
        if len(found) > 2:
            scores, ids = (np.concatenate(parts) for parts in zip(*found, strict=True))
            order = np.lexsort((ids, scores))
            scores, ids = scores[order], ids[order]
        if len(excluded):  # one mostly; a table of many would cost more than to sort them
            stay = ids != excluded[0] if len(excluded) == 1 else ~np.isin(ids, excluded, kind="sort")
            scores, ids = scores[stay], ids[stay]
        scores, ids = scores[query.offset : query.end], ids[query.offset : query.end]
        if tables is None:
            return Found(ids, scores, None, total)
        return Found(ids, self.distances(query.code, ids), scores, total)

    def _by_labels(self, query: Query, asked: LabelQuery, told: Told) -> Found:
        """See LabelQuery; by (cost, id), and with tables by (cost + sum of table entries, id)."""
        blocks = [self.base, self.extra] if len(self.extra.ids) else [self.base]
        scans = [LabelScan(block, query, asked, told) for block in blocks]
        parts = [(*part, scan.block.ids[rows]) for scan in scans for *part, rows in scan.ranked()]
        follows, costs, near, ids = (np.concatenate([part[i] for part in parts]) for i in range(4))
        order = np.lexsort((ids, costs + near, follows))[query.offset : query.end]
        ids, costs, near = ids[order], costs[order], near[order]
        return Found(
            ids, self.distances(query.code, ids), costs + near, sum(scan.total for scan in scans),
            probabilities=np.where(follows[order], np.exp(-costs), 1.0), known=sum(len(scan.known) for scan in scans),
            probable=sum(scan.probable for scan in scans),
        )  # fmt: skip

    def distances(self, query: Codes, ids: Ids) -> NDArray[np.int32]:
        """Bits that differ between the query and each of these photos."""
        order = np.argsort(ids)
        distances = np.empty(len(ids), np.int32)
        for block in (self.base, self.extra):
            rows = block.rows(ids[order])
            distances[order[np.searchsorted(ids[order], block.ids[rows])]] = query.distances(block.codes[rows])[0]
        return distances


class LabelScan:
    """The labels of a query against one block, whose photos are known by their rows here."""

    def __init__(self, block: Block, query: Query, asked: LabelQuery, told: Told) -> None:
        self.block, self.query, self.asked = block, query, asked
        labels = [term.label for term in asked.terms]
        self.carried = {label: block.rows(told.carried.get(label, NONE)) for label in labels}
        self.refused = {label: block.rows(told.refused.get(label, NONE)) for label in labels}
        self.said = {label: np.zeros(len(block.ids), np.int8) for label in labels}  # 1: it carries it, −1: it does not
        for label, said in self.said.items():
            said[self.refused[label]] = -1
            said[self.carried[label]] = 1
        self.total = self.probable = 0
        self.left = self._findable(told)  # photos that the kernel shall rank, in the end
        every, some = asked.names("every"), asked.names("some")
        self.known = self._taken([self._as_asked(label) for label in every[:1] or some])
        spoken = [self.carried[label] for label in every + some] + [self.refused[label] for label in some]
        self.spoken = self._taken(spoken)  # others whose costs are not what their scores say alone

    def ranked(self) -> list[tuple[NDArray[np.bool_], Floats, Floats, Ids]]:
        """Every photo that may be on the page: whether it follows those that lead, costs by labels and codes, row."""
        asked, tables, leads = self.asked, self.query.tables, self.asked.said == "first"
        found = hamming.search_planes(
            self._planes("every", "unwanted"), len(self.left), self.query.end, some=self._planes("some"),
            near=None if tables is None else (tables, self.block.codes.packed), mask=self.left, border=asked.border,
        )  # fmt: skip
        known, spoken, near = self._costs(self.known, said=not leads), self._costs(self.spoken), self._near(found.rows)
        self.probable = found.within + int(np.count_nonzero(spoken <= asked.border))
        rows, spoken = self.spoken[np.isfinite(spoken)], spoken[np.isfinite(spoken)]
        self.total = found.finite + len(rows) + len(known)
        return [
            (np.full(len(near), True), found.sums - near, near, found.rows),
            (np.full(len(rows), True), spoken, self._near(rows), rows),
            (np.full(len(known), not leads), known, self._near(self.known) * (not leads), self.known),
        ]

    def _costs(self, rows: Ids, *, said: bool = True) -> Floats:
        """What photos cost by their labels, without that of a photo in the query."""
        total, none = np.zeros((2, len(rows)), np.float32)  # none: log Π(1 − p), of some labels
        with np.errstate(divide="ignore"):
            for term in self.asked.terms:
                costs = term.costs[numbers_at(self._plane(term), rows, len(term.costs))]
                if said and term.role != "unwanted":
                    told = self.said[term.label][rows]
                    costs = np.where(told, np.where(told > 0, 0, np.inf), costs)
                if term.role == "some":
                    none += np.log1p(-np.exp(-costs))
                else:
                    total += costs
            return total - np.log(-np.expm1(none)) if self.asked.those("some") else total

    def _near(self, rows: Ids) -> Floats:
        """What photos cost by their codes, where these count."""
        sums = np.zeros(len(rows), np.float32)
        for j, table in enumerate(() if self.query.tables is None else self.query.tables):
            sums += table[self.block.codes.packed[rows, j]]
        return sums

    def _planes(self, *roles: Role) -> Planes:
        return [(self._plane(term), term.costs) for term in self.asked.those(*roles)]

    def _plane(self, term: LabelTerm) -> NDArray[np.uint8]:
        return self.block.scores.plane(term, lambda: self.block.codes)

    def _findable(self, told: Told) -> NDArray[np.bool_]:
        """Which photos the filter allows, and those who said something about them."""
        block, only = self.block, self.query.only
        allowed = block.allowed(only, told.allowed)
        mask = np.ones(len(block.ids), np.bool_) if allowed is None else allowed.copy()
        if only.radius is not None and len(mask):
            mask = marks(hamming.within(self.query.code, block.codes, only.radius, mask=mask)[0][1], len(mask))
        mask[block.rows(np.array(sorted(only.excluded), np.int64))] = False
        for term in self.asked.terms:
            if term.role == "every":
                mask[self.refused[term.label]] = False
            if term.role == "unwanted" or self.asked.said == "lacking":
                mask[self.carried[term.label]] = False
        return mask

    def _as_asked(self, label: str) -> Ids:
        """Of the photos that carry a label, those that people say to be what is asked for."""
        rows, some = self.carried[label], self.asked.names("some")
        for other in self.asked.names("every"):
            rows = rows[self.said[other][rows] > 0]
        return rows[np.any([self.said[other][rows] > 0 for other in some], axis=0)] if some else rows

    def _taken(self, parts: list[Ids]) -> Ids:
        """Of these photos those that are left, each once; from now on they are not."""
        taken = [NONE]
        for rows in parts:
            taken.append(rows[self.left[rows]])
            self.left[taken[-1]] = False
        return np.concatenate(taken)
