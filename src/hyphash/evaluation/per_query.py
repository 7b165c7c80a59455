"""The measures of each query: all of them for a report, under each protocol, or one alone."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from hyphash.evaluation import measures, ordered
from hyphash.evaluation.measures import Floats, Ints, Protocol
from hyphash.evaluation.ordered import Gains
from hyphash.evaluation.rankings import Block, RankedBy, Rankings
from hyphash.hamming import Histogram


@dataclass(frozen=True)
class PerQuery:
    """The measures of each query under one protocol."""

    average_precision: Floats
    weighted: Floats
    ndcg: Floats
    gain: Floats
    depths: tuple[int, ...]
    precision: Floats  # (queries, depths)


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
    def histogram(self) -> Histogram:
        """Of Hamming distances."""
        return self.rankings.by_distance()

    @cached_property
    def ideal(self) -> Histogram:
        return self.rankings.ideal()

    @cached_property
    def relevant(self) -> Ints:
        """Photos of the database that are relevant to each query."""
        relevant: Ints = self.ideal.relevant.sum(axis=1)
        return relevant

    def average_precision(self, protocol: Protocol) -> Floats:
        """Of the first kind of ranking, and nothing else."""
        kind, depth, expected = self.rankings.kinds[0], self._depth(protocol), protocol.ties == "expected"
        if expected and kind == "hamming":
            return measures.expected_average_precision(self.histogram, depth, self._possible(slice(None), protocol))
        parts = []
        for block in self.rankings.first(kind, depth):
            possible = self._possible(block.rows, protocol)
            if expected and block.tied:
                parts.append(measures.expected_average_precision(block.tied, depth, possible))
            else:
                parts.append(ordered.average_precision(block.gains, possible))
        return np.concatenate(parts)

    def measured(self, ranked_by: RankedBy, protocols: Sequence[Protocol]) -> Measured:
        """All measures."""
        parts: dict[Protocol, list[PerQuery]] = {protocol: [] for protocol in protocols}
        found = []
        for block in self.rankings.first(ranked_by, max(map(self._depth, protocols))):
            found.append(self._found(block))
            for protocol in protocols:
                if protocol.ties == "by id":
                    parts[protocol].append(self._ordered(block.gains, block.rows, protocol))
                elif block.tied:
                    parts[protocol].append(self._tied(block.tied, block.rows, protocol))
        for protocol, results in parts.items():
            if not results:  # Hamming distances with ties: one histogram knows them all
                results.append(self._tied(self.histogram, slice(None), protocol))
        return Measured({protocol: _joined(each) for protocol, each in parts.items()}, np.concatenate(found))

    def _ordered(self, gains: Gains, rows: slice, protocol: Protocol) -> PerQuery:
        gains, possible = gains[:, : self._depth(protocol)], self._possible(rows, protocol)
        return PerQuery(
            average_precision=ordered.average_precision(gains, possible),
            weighted=ordered.average_precision(gains, possible, weighted=True),
            ndcg=measures.normalised_gain(ordered.discounted_gain(gains), self._best(protocol)[rows]),
            gain=ordered.average_gain(gains),
            depths=self._depths(protocol),
            precision=ordered.precision_at(gains, self._depths(protocol)),
        )

    def _tied(self, ranking: Histogram, rows: slice, protocol: Protocol) -> PerQuery:
        top, possible = self._depth(protocol), self._possible(rows, protocol)
        return PerQuery(
            average_precision=measures.expected_average_precision(ranking, top, possible),
            weighted=measures.expected_average_precision(ranking, top, possible, weighted=True),
            ndcg=measures.normalised_gain(measures.discounted_gain(ranking, top), self._best(protocol)[rows]),
            gain=measures.average_gain(ranking, top),
            depths=self._depths(protocol),
            precision=measures.precision_at(ranking, self._depths(protocol)),
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

    def _depths(self, protocol: Protocol) -> tuple[int, ...]:
        """Where precision is measured: at 1, at 10 and at each tenth of the depth."""
        top = self._depth(protocol)
        return tuple(sorted({1, min(10, top)} | {max(1, top * tenth // 10) for tenth in range(1, 11)}))

    def _possible(self, rows: slice, protocol: Protocol) -> Floats | None:
        """What average precision is divided by; None: by the relevant photos retrieved."""
        return measures.possible(self.relevant[rows], protocol) if protocol.average_over == "possible" else None

    def _best(self, protocol: Protocol) -> Floats:
        """DCG of the best order of the database for each query."""
        return measures.discounted_gain(self.ideal, self._depth(protocol))


def _joined(parts: Sequence[PerQuery]) -> PerQuery:
    tables = [field.name for field in fields(PerQuery) if field.name != "depths"]
    whole = {name: np.concatenate([getattr(part, name) for part in parts]) for name in tables}
    return PerQuery(depths=parts[0].depths, **whole)
