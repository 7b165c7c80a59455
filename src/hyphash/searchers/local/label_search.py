"""The ranking by labels: first the photos that people say to be as asked for, then all others by what scores say.

Photos of which nobody said anything are scanned by the kernel, plane by plane; the others take numpy.
"""

import numpy as np
from numpy.typing import NDArray

from hyphash import hamming
from hyphash.hamming.twin import Planes
from hyphash.searchers import Found, LabelQuery, LabelTerm, Query, Role
from hyphash.searchers.local.scores import numbers_at
from hyphash.searchers.local.view import Block, Told, View, marks
from hyphash.stores import Ids

Costs = NDArray[np.float32]
NONE = np.empty(0, np.int64)


def label_search(view: View, query: Query, asked: LabelQuery, told: Told) -> Found:
    """See LabelQuery; by (cost, id), and with tables by (cost + sum of table entries, id)."""
    blocks = [view.base, view.extra] if len(view.extra.ids) else [view.base]
    scans = [LabelScan(block, query, asked, told) for block in blocks]
    parts = [(*part, scan.block.ids[rows]) for scan in scans for *part, rows in scan.ranked()]
    follows, costs, near, ids = (np.concatenate([part[i] for part in parts]) for i in range(4))
    order = np.lexsort((ids, costs + near, follows))[query.offset : query.end]
    ids, costs, near = ids[order], costs[order], near[order]
    return Found(
        ids, view.distances(query.code, ids), costs + near, sum(scan.total for scan in scans),
        probabilities=np.where(follows[order], np.exp(-costs), 1.0), known=sum(len(scan.known) for scan in scans),
        probable=sum(scan.probable for scan in scans),
    )  # fmt: skip


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

    def ranked(self) -> "list[tuple[NDArray[np.bool_], Costs, Costs, Ids]]":
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

    def _costs(self, rows: Ids, *, said: bool = True) -> Costs:
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

    def _near(self, rows: Ids) -> Costs:
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
