"""Rankings of a database for many queries, in the shape that the measures need, a few queries at a time; and what the
measures say of each query: all of them for a report, under each protocol, or one alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.errors import CodesError, DataError
from hyphash.evaluation import measures
from hyphash.evaluation.geometry import distinct_rows, label_sets
from hyphash.evaluation.measures import Floats, Gains, Ints, Protocol, Ranking, in_groups
from hyphash.hamming import Histogram, check_labels
from hyphash.hamming.twin import as_words

if TYPE_CHECKING:
    from hyphash.losses.relevance import Relevance
    from hyphash.quantizer import Quantizer

Labels = NDArray[np.uint8]
Words = NDArray[np.uint64]  # labels as bits, 64 in a word: (words, photos …)
RankedBy = Literal["hamming", "asymmetric"]
PLACES = 1 << 19  # places of rankings held at once: about 40 MB with all that is computed from them


@dataclass(frozen=True)
class Block:
    """The first places of the rankings of some queries."""

    rows: slice  # which queries
    labels: Words  # of the photos they find, by (distance, id): (words, queries, depth)
    gains: Gains  # labels shared with the query, (queries, depth)
    tied: Histogram | None  # with ties, and with all photos tied with the last; not for Hamming distances

    def carrying(self, query: int, label: int, first: int) -> NDArray[np.bool_]:
        """Which of the first photos of a query carry a label."""
        return cast("NDArray[np.bool_]", self.labels[label // 64, query, :first] & np.uint64(1 << label % 64) != 0)


class PerQuery(NamedTuple):
    """The measures of each query under one protocol."""

    average_precision: Floats
    weighted: Floats
    ndcg: Floats
    gain: Floats
    precision: Floats  # (queries, Rankings.depths)


class Measured(NamedTuple):
    """One kind of ranking: its measures under each protocol, and what `Rankings._found` says of its labels."""

    results: dict[Protocol, PerQuery]
    found: Floats


@dataclass(frozen=True)
class Rankings:
    """The database in the order of its distance to each query. Labels are multi-hot, one row a photo.

    With `query_outputs` there is a second order, asymmetric: by the inner product of the query's real outputs
    with the stored bits. Codes of a `quantizer` are numbers of codewords, not bits to compare: they are ranked
    by their distance to the real outputs alone. A `relevance` of one's own says what a photo's gain is, in place of
    the labels shared.
    """

    queries: Codes
    database: Codes
    query_labels: Labels
    database_labels: Labels
    _: KW_ONLY
    query_outputs: NDArray[np.float32] | None = None
    quantizer: "Quantizer | None" = None
    relevance: "Relevance | None" = None

    def __post_init__(self) -> None:
        check_labels(self.queries, self.database, self.query_labels, self.database_labels)
        if not len(self.queries) or not len(self.database):
            raise DataError("there is nothing to measure: give at least one query and one other photo to find")
        if self.quantizer and self.query_outputs is None:
            raise DataError("codes of a quantiser are ranked by the real outputs of the queries: give those too")
        if self.query_outputs is not None:
            width = self.query_outputs.shape[1] if self.quantizer else self.queries.bits
            if self.query_outputs.shape != (len(self.queries), width):
                raise CodesError(
                    f"{len(self.queries)} queries of {self.queries.bits} bits, "
                    f"but outputs of shape {self.query_outputs.shape}"
                )

    @property
    def kinds(self) -> tuple[RankedBy, ...]:
        """The orders there are, the more usual one first."""
        if self.quantizer:
            return ("asymmetric",)
        return ("hamming",) if self.query_outputs is None else ("hamming", "asymmetric")

    @cached_property
    def _compared(self) -> tuple[Labels, Labels]:
        """The labels of the queries and of the database, or rows in their place: what two share is their gain."""
        labels = self.query_labels, self.database_labels
        return self.relevance.encode(*labels) if self.relevance else labels

    @cached_property
    def _words(self) -> tuple[Words, Words]:
        wanted, offered = map(_as_words, self._compared)
        return wanted, offered

    @cached_property
    def photos_with_label(self) -> Ints:
        """For each label, how many photos carry it."""
        return cast("Ints", self.database_labels.sum(axis=0, dtype=np.int64))

    @cached_property
    def histogram(self) -> Histogram:
        """All rankings by Hamming distance: a bucket for each of the distances 0 … bits."""
        return hamming.histogram(self.queries, self.database, *self._compared)

    @cached_property
    def ideal(self) -> Histogram:
        """The best order of the database for each query: a bucket for each gain, the largest first."""
        sets, which = label_sets(self._compared[1])
        sizes = np.bincount(which, minlength=len(sets)).astype(np.float64)
        wanted, asking = label_sets(self._compared[0])  # queries share label sets as photos do
        most = int(wanted.sum(axis=1, dtype=np.int64).max())
        offered = np.ascontiguousarray(sets.T, np.float32)  # sums of so few ones are exact
        count = np.empty((len(wanted), most + 1), np.int64)
        for rows in _chunks(len(wanted), max(1, PLACES // len(sets))):
            shared = (wanted[rows].astype(np.float32) @ offered).astype(np.int64)
            for row, gains in enumerate(shared, rows.start):
                count[row] = np.bincount(gains, weights=sizes, minlength=most + 1)
        value = np.arange(most, -1, -1)
        count = count[asking, ::-1]
        return Histogram(count, count * (value > 0), count * value, count * (np.exp2(value) - 1))

    def first(self, ranked_by: RankedBy, depth: int) -> Iterator[Block]:
        """The first `depth` places of all rankings, a block of queries at a time."""
        wanted, offered = self._words
        for rows in _chunks(len(self.queries), max(1, PLACES // depth)):
            tied = None
            if ranked_by == "hamming":
                _, ids = hamming.search(self.queries[rows], self.database, depth)
            else:
                found = list(self._first_and_tied(depth, rows))
                ids = np.stack([_by_id(values, photos)[:depth] for values, photos in found])
                shared = (
                    _shared(wanted[:, i, None], offered[:, photos]) for i, (_, photos) in enumerate(found, rows.start)
                )
                tied = in_groups([values for values, _ in found], shared)
            labels = offered[:, ids]
            yield Block(rows, labels, _shared(wanted[:, rows, None], labels), tied)

    def _first_and_tied(self, depth: int, rows: slice) -> Iterator[tuple[NDArray[np.float32], Ints]]:
        """Scores and photos of each query down to the last that is tied with place `depth`.

        Photos are tied because they have one code, so distinct codes are ranked: the first `depth` of them
        hold at least as many photos. Different codes with one score are rare; then more codes are looked at.
        """
        distinct, photos, start = self._distinct
        depth = min(depth, len(self.database))
        k, tables = depth + 1, self._tables(rows)
        while True:
            scores, codes = hamming.search_tables(tables, distinct, k)
            last = (np.cumsum(start[codes + 1] - start[codes], axis=1) < depth).sum(axis=1)
            cut_score = np.take_along_axis(scores, last[:, None], axis=1)
            if k >= len(distinct) or (scores[:, -1:] > cut_score).all():
                break
            k *= 2
        for query in range(len(scores)):
            chosen = codes[query, scores[query] <= cut_score[query]]
            size = start[chosen + 1] - start[chosen]
            places = np.arange(size.sum()) + np.repeat(start[chosen] - (np.cumsum(size) - size), size)
            yield np.repeat(scores[query, : len(chosen)], size), photos[places]

    @cached_property
    def _distinct(self) -> tuple[Codes, Ints, Ints]:
        """The distinct codes; all photos ordered by their code; where in that order each code's photos start."""
        packed, which = distinct_rows(self.database.packed)
        start = np.concatenate([[0], np.cumsum(np.bincount(which, minlength=len(packed)))])
        return Codes(packed, self.database.bits), np.argsort(which, kind="stable"), start

    def _tables(self, rows: slice) -> NDArray[np.float32]:
        if self.query_outputs is None:
            raise DataError("an asymmetric ranking needs the real outputs of the queries")
        tables_of = self.quantizer.tables if self.quantizer else hamming.byte_tables
        return tables_of(self.query_outputs[rows])

    # ── measures of each query: what several of them need is computed once, and only when one asks for it ──────────

    @cached_property
    def relevant(self) -> Ints:
        """Photos of the database that are relevant to each query."""
        return cast("Ints", self.ideal.relevant.sum(axis=1))

    def average_precision(self, protocol: Protocol) -> Floats:
        """Of the first kind of ranking, and nothing else."""
        kind, depth, expected = self.kinds[0], self._depth(protocol), protocol.ties == "expected"
        rankings: Iterable[tuple[Ranking, slice]]
        if expected and kind == "hamming":
            rankings = [(self.histogram, slice(None))]
        else:
            blocks = self.first(kind, depth)
            rankings = ((block.tied if block.tied and expected else block.gains, block.rows) for block in blocks)
        divided = ((found, self._possible(rows, protocol)) for found, rows in rankings)
        return np.concatenate([measures.expected_average_precision(found, depth, by) for found, by in divided])

    def measured(self, ranked_by: RankedBy, protocols: Sequence[Protocol]) -> Measured:
        """All measures."""
        parts: dict[Protocol, list[PerQuery]] = {protocol: [] for protocol in protocols}
        found = []
        for block in self.first(ranked_by, max(map(self._depth, protocols))):
            found.append(self._found(block))
            for protocol in protocols:
                ranking = block.gains if protocol.ties == "by id" else block.tied
                if ranking is not None:
                    parts[protocol].append(self._measures(ranking, block.rows, protocol))
        for protocol, results in parts.items():
            if not results:  # Hamming distances with ties: one histogram knows them all
                results.append(self._measures(self.histogram, slice(None), protocol))
        whole = {protocol: PerQuery(*map(np.concatenate, zip(*each, strict=True))) for protocol, each in parts.items()}
        return Measured(whole, np.concatenate(found))

    def _measures(self, ranking: Ranking, rows: slice, protocol: Protocol) -> PerQuery:
        top, possible = self._depth(protocol), self._possible(rows, protocol)
        best = measures.discounted_gain(self.ideal, top)[rows]  # DCG of the best order of the database
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
        photos = self.photos_with_label
        found = np.full((len(block.gains), len(photos)), np.nan)
        for query, label in zip(*np.nonzero(self.query_labels[block.rows]), strict=True):
            if photos[label] > 0:
                found[query, label] = block.carrying(query, label, photos[label]).mean()
        return found

    def _depth(self, protocol: Protocol) -> int:
        size = len(self.database)
        return min(protocol.top or size, size)

    def depths(self, protocol: Protocol) -> tuple[int, ...]:
        """Where precision is measured: at 1, at 10 and at each tenth of the depth."""
        top = self._depth(protocol)
        return tuple(sorted({1, min(10, top)} | {max(1, top * tenth // 10) for tenth in range(1, 11)}))

    def _possible(self, rows: slice, protocol: Protocol) -> Floats | None:
        """What average precision is divided by; None: by the relevant photos retrieved."""
        return measures.possible(self.relevant[rows], protocol) if protocol.average_over == "possible" else None


def _chunks(count: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _by_id(values: NDArray[np.float32], photos: Ints) -> Ints:
    """Photos in the order of their ascending values, those of equal values by id."""
    group = np.concatenate([[0], np.cumsum(values[1:] != values[:-1])])
    end = int(photos.max()) + 1
    return np.sort(group * end + photos, kind="stable") % end  # in order but for the ties, which this sort likes


def _as_words(labels: Labels) -> Words:
    return np.ascontiguousarray(as_words(np.packbits(labels, axis=1, bitorder="little")).T)


def _shared(wanted: Words, offered: Words) -> Gains:
    """How many labels of the one are among those of the other."""
    shared = np.zeros(np.broadcast_shapes(wanted.shape[1:], offered.shape[1:]), np.uint16)
    for one, other in zip(wanted, offered, strict=True):
        shared += np.bitwise_count(one & other)
    return shared
