"""The ranking by labels: first the photos that people say to be as asked for, then all others by what scores say.

Photos of which nobody said anything are scanned by the kernel, plane by plane; the others take numpy.
"""

from functools import reduce

import numpy as np
from numpy.typing import NDArray

from hyphash import hamming
from hyphash.searchers import Found, LabelQuery, LabelTerm, Query
from hyphash.searchers.local.scores import numbers_at
from hyphash.searchers.local.view import Block, Told, View
from hyphash.stores import Ids

Costs = NDArray[np.float32]
NONE = np.empty(0, np.int64)


def label_search(view: View, query: Query, asked: LabelQuery, told: Told) -> Found:
    """See LabelQuery; by (cost, id), and with tables by (cost + sum of table entries, id)."""
    scans = [LabelScan(block, query, asked, told) for block in (view.base, view.extra)]
    parts = [(scan, *part) for scan in scans for part in scan.ranked()]
    follows, costs = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
    ids = np.concatenate([scan.block.ids[part] for scan, _, _, part in parts])
    probabilities = np.concatenate([np.exp(-scan.costs(part)) for scan, _, _, part in parts])
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
        self.carried, self.refused = (
            {label: block.rows(ids) for label, ids in people.items()} for people in (told.carried, told.refused)
        )
        self.total = self.probable = 0
        self.findable = self._findable(told)
        every, some = ([self.carried.get(term.label, NONE) for term in terms] for terms in (asked.every, asked.some))
        groups = every + [_union(some)] * bool(some)
        lead = reduce(np.intersect1d, groups) if groups and asked.said != "ignored" else NONE
        self.known = lead[self.findable[lead]]
        spoken = _union([*every, *some, *(self.refused.get(term.label, NONE) for term in asked.some)])
        self.spoken = spoken[self.findable[spoken]]  # photos whose costs are not what their scores say alone
        if asked.said == "first":
            self.spoken = np.setdiff1d(self.spoken, self.known, assume_unique=True)

    def ranked(self) -> "list[tuple[NDArray[np.bool_], Costs, Ids]]":
        """Whether it follows those that lead, cost and row of every photo that may be on the page, in no order."""
        asked, leads = self.asked, self.known if self.asked.said == "first" else NONE
        mask = self.findable.copy()
        mask[self.known] = mask[self.spoken] = False
        terms, count = (*asked.every, *asked.unwanted), len(self.block.ids)
        planes, tables = [self._plane(term) for term in terms], np.array([term.costs for term in terms], np.float32)
        some = self._some(np.arange(count)) if asked.some else None
        base = some if self.query.tables is None else self._photo(np.arange(count)) + (0 if some is None else some)
        found = hamming.search_planes(planes, tables, count, self.query.end, base=base, mask=mask, border=asked.border)
        counted = found
        if self.query.tables is not None:
            counted = hamming.search_planes(planes, tables, count, 0, base=some, mask=mask, border=asked.border)
        costs = self.costs(self.spoken)
        likely = self.spoken[costs <= asked.border]
        self.probable = counted.within + len(np.setdiff1d(likely, self.known, assume_unique=True))
        spoken, costs = self.spoken[np.isfinite(costs)], costs[np.isfinite(costs)]
        self.total = found.finite + len(spoken) + len(leads)
        if self.query.tables is not None:
            costs = costs + self._photo(spoken)
        columns = (found.sums, found.rows), (costs, spoken), (self.costs(leads, said=False), leads)
        return [(np.full(len(rows), rows is not leads), sums, rows) for sums, rows in columns]

    def costs(self, rows: Ids, *, said: bool = True) -> Costs:
        """What photos cost by their labels, without that of a photo in the query."""
        total = self._some(rows, said=said) if self.asked.some else np.zeros(len(rows), np.float32)
        for term in (*self.asked.every, *self.asked.unwanted):
            costs = term.costs[numbers_at(self._plane(term), rows)]
            if said and term in self.asked.every:
                costs[np.isin(rows, self.carried.get(term.label, NONE))] = 0
            total = total + costs
        return total

    def _some(self, rows: Ids, *, said: bool = True) -> Costs:
        """−log(1 − Π(1 − p)): that none of the labels is there."""
        none = np.zeros(len(rows), np.float32)
        for term in self.asked.some:
            absent = np.log1p(-np.exp(-term.costs))[numbers_at(self._plane(term), rows)]
            if said:
                absent[np.isin(rows, self.carried.get(term.label, NONE))] = -np.inf
                absent[np.isin(rows, self.refused.get(term.label, NONE))] = 0
            none += absent
        with np.errstate(divide="ignore"):
            costs: Costs = -np.log(-np.expm1(none))
        return costs

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
        block, only, asked = self.block, self.query.only, self.asked
        mask = np.ones(len(block.ids), np.bool_) if block.visible is None else block.visible.copy()
        if told.allowed is not None:
            mask = _marked(block.rows(told.allowed), len(mask))
        if only.radius is not None and len(mask):
            near = hamming.within(self.query.code, block.codes, only.radius, mask=mask)[0][1]
            mask = _marked(near, len(mask))
        out = [self.carried.get(term.label, NONE) for term in asked.unwanted]
        out += [self.refused.get(term.label, NONE) for term in asked.every]
        if asked.said == "lacking":
            out += [self.carried.get(term.label, NONE) for term in asked.every]
        mask[_union([*out, block.rows(np.array(sorted(only.excluded), np.int64))])] = False
        return mask


def _marked(rows: Ids, count: int) -> NDArray[np.bool_]:
    mask = np.zeros(count, np.bool_)
    mask[rows] = True
    return mask


def _union(sets: list[Ids]) -> Ids:
    return np.unique(np.concatenate([*sets, NONE]))
