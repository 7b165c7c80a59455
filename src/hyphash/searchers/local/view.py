"""All codes at one commit, ready to be searched: those of the snapshot file, and in memory what has changed since."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.hamming import Index
from hyphash.searchers import Found, Query, Selected
from hyphash.searchers.filters import FactColumns, Filter
from hyphash.searchers.local.scores import LabelScores
from hyphash.stores import Ids, Position, Scores

INDEXED = 500_000  # from so many codes on an index pays: fewer are scanned in the time that a search takes anyway
SHARE = 500  # of so many codes one may be asked for: to find more, all cores scan faster than one walks the index
FEW = 8  # one photo in so many, and it is faster to copy their codes than to pass over the others,
FEWER = 64  # or than to ask an index for them
LONG = 8  # from so many bits on few photos have the nearest ones, and to look for these first is faster
GUESSED = 100  # from so many ids on it is faster to guess where they stand than to look them up

NO_SCORES = LabelScores(0, {})
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
            return np.empty(0, np.int64)
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
        only, tables = query.only, query.tables
        excluded = np.array(sorted(only.excluded), np.int64)
        found: list[Ranked] = [(np.empty(0, np.int32 if tables is None else np.float32), np.empty(0, np.int64))]
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

    def distances(self, query: Codes, ids: Ids) -> NDArray[np.int32]:
        """Bits that differ between the query and each of these photos."""
        order = np.argsort(ids)
        distances = np.empty(len(ids), np.int32)
        for block in (self.base, self.extra):
            rows = block.rows(ids[order])
            distances[order[np.searchsorted(ids[order], block.ids[rows])]] = query.distances(block.codes[rows])[0]
        return distances
