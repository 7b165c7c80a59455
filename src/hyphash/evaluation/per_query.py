"""The measures of each query: all of them for a report, under each protocol, or one alone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from hyphash.evaluation import measures
from hyphash.evaluation.measures import Floats, Ints, Protocol, Ranking
from hyphash.evaluation.rankings import Block, RankedBy, Rankings


class PerQuery(NamedTuple):
    """The measures of each query under one protocol."""

    average_precision: Floats
    weighted: Floats
    ndcg: Floats
    gain: Floats
    precision: Floats  # (queries, Scorer.depths)


@dataclass(frozen=True)
class Measured:
    """One kind of ranking: its measures under each protocol, and what `Scorer._found` says of its labels."""

    results: dict[Protocol, PerQuery]
    found: Floats


@dataclass(frozen=True)
class Scorer:
    """Measures rankings. What several measures need is computed once, and only when one of them is asked for."""

    rankings: Rankings

    @cached_property
    def relevant(self) -> Ints:
        """Photos of the database that are relevant to each query."""
        relevant: Ints = self.rankings.ideal.relevant.sum(axis=1)
        return relevant

    def average_precision(self, protocol: Protocol) -> Floats:
        """Of the first kind of ranking, and nothing else."""
        kind, depth, expected = self.rankings.kinds[0], self._depth(protocol), protocol.ties == "expected"
        rankings: Iterable[tuple[Ranking, slice]]
        if expected and kind == "hamming":
            rankings = [(self.rankings.histogram, slice(None))]
        else:
            blocks = self.rankings.first(kind, depth)
            rankings = ((block.tied if block.tied and expected else block.gains, block.rows) for block in blocks)
        possible = partial(self._possible, protocol=protocol)
        parts = [measures.expected_average_precision(found, depth, possible(rows)) for found, rows in rankings]
        return np.concatenate(parts)

    def measured(self, ranked_by: RankedBy, protocols: Sequence[Protocol]) -> Measured:
        """All measures."""
        parts: dict[Protocol, list[PerQuery]] = {protocol: [] for protocol in protocols}
        found = []
        for block in self.rankings.first(ranked_by, max(map(self._depth, protocols))):
            found.append(self._found(block))
            for protocol in protocols:
                ranking = block.gains if protocol.ties == "by id" else block.tied
                if ranking is not None:
                    parts[protocol].append(self._measures(ranking, block.rows, protocol))
        for protocol, results in parts.items():
            if not results:  # Hamming distances with ties: one histogram knows them all
                results.append(self._measures(self.rankings.histogram, slice(None), protocol))
        whole = {protocol: PerQuery(*map(np.concatenate, zip(*each, strict=True))) for protocol, each in parts.items()}
        return Measured(whole, np.concatenate(found))

    def _measures(self, ranking: Ranking, rows: slice, protocol: Protocol) -> PerQuery:
        top, possible = self._depth(protocol), self._possible(rows, protocol)
        best = measures.discounted_gain(self.rankings.ideal, top)[rows]  # DCG of the best order of the database
        return PerQuery(
            average_precision=measures.expected_average_precision(ranking, top, possible),
            weighted=measures.expected_average_precision(ranking, top, possible, weighted=True),
            ndcg=measures.normalised_gain(measures.discounted_gain(ranking, top), best),
            gain=measures.average_gain(ranking, top),
            precision=measures.precision_at(ranking, self.depths(protocol)),
        )

    def _found(self, block: Block) -> Floats:
        """Of the first n photos, the share that carries a label of the query; NaN for all other labels.

        n is the number of photos with this label that the query can find, or the depth, if that is less.
        """
        photos = self.rankings.photos_with_label
        found = np.full((len(block.gains), len(photos)), np.nan)
        for query, label in zip(*np.nonzero(self.rankings.query_labels[block.rows]), strict=True):
            if photos[label] > 0:
                found[query, label] = block.carrying(query, label, photos[label]).mean()
        return found

    def _depth(self, protocol: Protocol) -> int:
        return min(protocol.top or self.rankings.size, self.rankings.size)

    def depths(self, protocol: Protocol) -> tuple[int, ...]:
        """Where precision is measured: at 1, at 10 and at each tenth of the depth."""
        top = self._depth(protocol)
        return tuple(sorted({1, min(10, top)} | {max(1, top * tenth // 10) for tenth in range(1, 11)}))

    def _possible(self, rows: slice, protocol: Protocol) -> Floats | None:
        """What average precision is divided by; None: by the relevant photos retrieved."""
        return measures.possible(self.relevant[rows], protocol) if protocol.average_over == "possible" else None
