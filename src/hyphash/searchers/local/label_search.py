"""The ranking by labels: first the photos that people say to be as asked for, then all others by what scores say.

Photos of which nobody said anything are scanned by the kernel, plane by plane; the others take numpy.
"""

from functools import partial, reduce

import numpy as np
from numpy.typing import NDArray

from hyphash import hamming
from hyphash.searchers import Found, LabelQuery, LabelTerm, Query, Role
from hyphash.searchers.local.scores import numbers_at
from hyphash.searchers.local.view import Block, Told, View, marks
from hyphash.stores import Ids

Costs = NDArray[np.float32]
NONE = np.empty(0, np.int64)


def label_search(view: View, query: Query, asked: LabelQuery, told: Told) -> Found:
    """See LabelQuery; by (cost, id), and with tables by (cost + sum of table entries, id)."""
    scans = [LabelScan(block, query, asked, told) for block in (view.base, view.extra)]
    parts = [(scan, *part) for scan in scans for part in scan.ranked()]
    follows, costs = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
    ids = np.concatenate([scan.block.ids[rows] for scan, _, _, rows in parts])
    probabilities = np.concatenate([np.exp(-scan.costs(rows)) for scan, _, _, rows in parts])
    order = np.lexsort((ids, costs, follows))[query.offset : query.end]
    return Found(
        ids[order], view.distances(query.code, ids[order]), costs[order], sum(scan.total for scan in scans),
        probabilities=np.where(follows, probabilities, 1.0)[order], known=sum(len(scan.known) for scan in scans),
        probable=sum(scan.probable for scan in scans),
    )  # fmt: skip


class LabelScan:
    """The labels of a query against one block. All rows here ascend."""

    def __init__(self, block: Block, query: Query, asked: LabelQuery, told: Told) -> None:
        self.block, self.query, self.asked = block, query, asked
        labels = [term.label for term in asked.terms]
        self.carried = {label: block.rows(told.carried.get(label, NONE)) for label in labels}
        self.refused = {label: block.rows(told.refused.get(label, NONE)) for label in labels}
        self.total = self.probable = 0
        self.findable = self._findable(told)
        every, some = ([self.carried[term.label] for term in asked.those(role)] for role in ("every", "some"))
        groups = [*every, _union(some)] if some else every
        lead = reduce(np.intersect1d, groups) if groups and asked.said != "ignored" else NONE
        self.known = lead[self.findable[lead]]
        spoken = _union([*every, *some, *(self.refused[term.label] for term in asked.those("some"))])
        self.spoken = spoken[self.findable[spoken]]  # photos whose costs are not what their scores say alone
        if asked.said == "first":
            self.spoken = np.setdiff1d(self.spoken, self.known, assume_unique=True)

    def ranked(self) -> "list[tuple[NDArray[np.bool_], Costs, Ids]]":
        """Whether it follows those that lead, cost and row of every photo that may be on the page, in no order."""
        asked, every, mask = self.asked, np.arange(len(self.block.ids)), self.findable.copy()
        mask[self.known] = mask[self.spoken] = False
        terms = asked.those("every", "unwanted")
        planes, tables = [self._plane(term) for term in terms], np.array([term.costs for term in terms], np.float32)
        scan = partial(hamming.search_planes, planes, tables, len(every), mask=mask, border=asked.border)
        some = self.costs(every, "some", said=False) if asked.those("some") else None
        base = some if self.query.tables is None else self._photo(every) + (0 if some is None else some)
        found = scan(self.query.end, base=base)
        within = found.within if self.query.tables is None else scan(0, base=some).within
        costs = self.costs(self.spoken)
        self.probable = within + len(np.setdiff1d(self.spoken[costs <= asked.border], self.known, assume_unique=True))
        spoken, leads = self.spoken[np.isfinite(costs)], self.known if asked.said == "first" else NONE
        costs = costs[np.isfinite(costs)] + (0 if self.query.tables is None else self._photo(spoken))
        self.total = found.finite + len(spoken) + len(leads)
        columns = (found.sums, found.rows), (costs, spoken), (self.costs(leads, said=False), leads)
        return [(np.full(len(rows), rows is not leads), sums, rows) for sums, rows in columns]

    def costs(self, rows: Ids, *roles: Role, said: bool = True) -> Costs:
        """What photos cost by their labels, or by some of them, without that of a photo in the query."""
        total, none = np.zeros((2, len(rows)), np.float32)  # none: log Π(1 − p), of some labels
        terms = self.asked.those(*roles or ("every", "some", "unwanted"))
        for term in terms:
            costs = term.costs[numbers_at(self._plane(term), rows)]
            if said and term.role != "unwanted":
                costs[np.isin(rows, self.refused[term.label])] = np.inf
                costs[np.isin(rows, self.carried[term.label])] = 0
            with np.errstate(divide="ignore"):
                none += np.log1p(-np.exp(-costs)) if term.role == "some" else 0
            total += 0 if term.role == "some" else costs
        with np.errstate(divide="ignore"):
            return total - np.log(-np.expm1(none)) if any(term.role == "some" for term in terms) else total

    def _photo(self, rows: Ids) -> Costs:
        """What photos cost by their codes."""
        assert self.query.tables is not None
        codes, sums = self.block.codes.packed, np.zeros(len(rows), np.float32)
        for j, table in enumerate(self.query.tables):
            sums += table[codes[rows, j]]
        return sums

    def _plane(self, term: LabelTerm) -> NDArray[np.uint8]:
        return self.block.scores.plane(term, lambda: self.block.codes)

    def _findable(self, told: Told) -> NDArray[np.bool_]:
        """Which photos the filter allows, and those who said something about them."""
        block, only = self.block, self.query.only
        allowed = block.allowed(only, told.allowed)
        mask = np.ones(len(block.ids), np.bool_) if allowed is None else allowed.copy()
        if only.radius is not None and len(mask):
            mask = marks(hamming.within(self.query.code, block.codes, only.radius, mask=mask)[0][1], len(mask))
        out = [block.rows(np.array(sorted(only.excluded), np.int64))]
        out += [self.carried[term.label] for term in self.asked.those("unwanted")]
        for term in self.asked.those("every"):
            out += [self.refused[term.label], self.carried[term.label] if self.asked.said == "lacking" else NONE]
        mask[_union(out)] = False
        return mask


def _union(sets: list[Ids]) -> Ids:
    return np.unique(np.concatenate([*sets, NONE]))
