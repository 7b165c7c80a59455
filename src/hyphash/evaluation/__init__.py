"""Evaluation: how well codes find the photos that share labels with a query. Protocol in, Report out.

Measures with ties by expectation come from one histogram per query, those by id from exact selection of the
first N: the distances of all queries to all photos are never held, and the database is never sorted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.errors import DataError, LabelError
from hyphash.evaluation import measures
from hyphash.evaluation.geometry import BitUse, Separation, bit_use, separation
from hyphash.evaluation.measures import Floats, Ints, Protocol, average_precision
from hyphash.evaluation.rankings import Block, Labels, RankedBy, Rankings
from hyphash.evaluation.record import Curve, LabelScore, Report, Scores
from hyphash.hamming import Histogram

if TYPE_CHECKING:
    from hyphash.datasets import Split, Splits
    from hyphash.hasher import Hasher, Problem
    from hyphash.quantizer import Quantizer

__all__ = [
    "BitUse",
    "Curve",
    "EncodedSplit",
    "LabelScore",
    "Protocol",
    "RankedBy",
    "Report",
    "Scores",
    "Separation",
    "average_precision",
    "bit_use",
    "encode_split",
    "evaluate",
    "evaluate_codes",
    "separation",
]

PROTOCOLS = ("paper", "strict")
TOP = 1000


@dataclass(frozen=True)
class EncodedSplit:
    """The photos of a split that could be read, their outputs and codes; and those that could not."""

    split: "Split"
    outputs: NDArray[np.float32]
    codes: Codes
    problems: tuple["Problem", ...] = ()


def encode_split(
    hasher: "Hasher", split: "Split", *, progress: Callable[[int, int], None] | None = None
) -> EncodedSplit:
    encoded = hasher.encode_photos(split, progress=progress)
    return EncodedSplit(split.take(encoded.rows), encoded.outputs, hasher.to_codes(encoded.outputs), encoded.problems)


def evaluate(
    hasher: "Hasher",
    splits: "Splits",
    *,
    top: int | None = TOP,
    protocols: Sequence[Protocol | str] = PROTOCOLS,
    asymmetric: bool = True,
    facts: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Rank the database of a dataset for each of its queries and measure the rankings.

    Photos that cannot be read are left out and named in the report's `problems`.
    """
    queries = encode_split(hasher, splits.queries, progress=progress)
    database = encode_split(hasher, splits.database, progress=progress)
    return evaluate_codes(
        queries.codes,
        database.codes,
        queries.split.labels,
        database.split.labels,
        top=top,
        protocols=protocols,
        query_outputs=queries.outputs if asymmetric or hasher.quantizer else None,
        quantizer=hasher.quantizer,
        classes=splits.classes,
        dataset=splits.name,
        facts=facts,
        problems=[problem.reason for problem in queries.problems + database.problems],
    )


def evaluate_codes(
    queries: Codes,
    database: Codes,
    query_labels: Labels,
    database_labels: Labels,
    *,
    top: int | None = TOP,
    protocols: Sequence[Protocol | str] = PROTOCOLS,
    query_outputs: NDArray[np.float32] | None = None,
    quantizer: "Quantizer | None" = None,
    own_rows: Ints | None = None,
    classes: Sequence[str] | None = None,
    dataset: str = "",
    facts: Mapping[str, str] | None = None,
    problems: Sequence[str] = (),
) -> Report:
    """Measure codes against codes. Labels are multi-hot, one row a photo.

    `protocols` given by name are measured over the first `top` photos (None: all). `query_outputs` adds the
    asymmetric ranking; codes of a `quantizer` have no other. `own_rows` says which photo of the database each
    query is, when it is one of them.
    """
    rankings = Rankings(
        queries=queries,
        database=database,
        query_labels=query_labels,
        database_labels=database_labels,
        query_outputs=query_outputs,
        quantizer=quantizer,
        own_rows=own_rows,
    )
    wanted = _protocols(protocols, top)
    ideal = rankings.ideal()
    histogram = rankings.by_distance() if "hamming" in rankings.kinds else None
    study = _Study(rankings, histogram, ideal, ideal.relevant.sum(axis=1))
    measured = {kind: study.measured(kind, wanted) for kind in rankings.kinds}
    return Report(
        dataset=dataset,
        bits=queries.bits,
        queries=len(queries),
        database=len(database),
        hopeless=int((study.relevant == 0).sum()),
        scores=tuple(
            _scores(kind, protocol, result)
            for kind, one in measured.items()
            for protocol, result in one.results.items()
        ),
        curve=_curve(histogram) if histogram else None,
        precision_within_2=measures.precision_within(histogram, 2) if histogram else None,
        labels=_label_scores(rankings, classes, measured[rankings.kinds[0]]),
        separation=separation(database, database_labels) if histogram else None,
        bit_use=bit_use(database),
        facts=dict(facts or {}),
        problems=tuple(problems),
    )


def _protocols(given: Sequence[Protocol | str], top: int | None) -> list[Protocol]:
    wanted = [Protocol.preset(protocol, top) if isinstance(protocol, str) else protocol for protocol in given]
    if not wanted:
        raise DataError("name at least one protocol to measure by, such as 'paper'")
    return list(dict.fromkeys(wanted))


@dataclass(frozen=True)
class _PerQuery:
    """The measures of each query under one protocol."""

    average_precision: Floats
    weighted: Floats
    ndcg: Floats
    gain: Floats
    depths: tuple[int, ...]
    precision: Floats  # (queries, depths)


@dataclass(frozen=True)
class _Study:
    """What all measures of one evaluation share."""

    rankings: Rankings
    histogram: Histogram | None  # of Hamming distances, where there are any
    ideal: Histogram
    relevant: Ints  # photos of the database that are relevant to each query

    def measured(self, ranked_by: RankedBy, protocols: Sequence[Protocol]) -> "_Measured":
        parts: dict[Protocol, list[_PerQuery]] = {protocol: [] for protocol in protocols}
        found = []
        for block in self.rankings.first(ranked_by, max(map(self._depth, protocols))):
            found.append(self._found(block))
            for protocol in protocols:
                ranking = block.settled if protocol.ties == "by id" else block.tied
                if ranking:
                    parts[protocol].append(self._measure(ranking, block.rows, protocol))
        for protocol, results in parts.items():
            if not results and self.histogram:  # Hamming distances with ties: known to the end already
                results.append(self._measure(self.histogram, slice(None), protocol))
        return _Measured({protocol: _joined(each) for protocol, each in parts.items()}, np.concatenate(found))

    def _depth(self, protocol: Protocol) -> int:
        return min(protocol.top or self.rankings.size, self.rankings.size)

    def _measure(self, ranking: Histogram, rows: slice, protocol: Protocol) -> _PerQuery:
        top = self._depth(protocol)
        possible = measures.possible(self.relevant[rows], protocol)
        depths = tuple(sorted({1, min(10, top)} | {max(1, top * tenth // 10) for tenth in range(1, 11)}))
        return _PerQuery(
            average_precision=measures.expected_average_precision(ranking, top, possible),
            weighted=measures.expected_average_precision(ranking, top, possible, weighted=True),
            ndcg=measures.normalised_gain(ranking, measures.discounted_gain(self.ideal, top)[rows], top),
            gain=measures.average_gain(ranking, top),
            depths=depths,
            precision=measures.precision_at(ranking, depths),
        )

    def _found(self, block: Block) -> Floats:
        """Of the first n photos, the share that carries a label of the query; NaN for all other labels."""
        labels, columns = self.rankings.query_labels[block.rows], self.rankings.label_columns
        photos = self.rankings.photos_with_label
        found = np.full(labels.shape, np.nan)
        for query, label in zip(*np.nonzero(labels), strict=True):
            if photos[label] > 0:
                found[query, label] = columns[label][block.ids[query, : photos[label]]].mean()
        return found


@dataclass(frozen=True)
class _Measured:
    """One kind of ranking: its measures under each protocol, and `found` of each query and label."""

    results: dict[Protocol, _PerQuery]
    found: Floats


def _joined(parts: Sequence[_PerQuery]) -> _PerQuery:
    def whole(name: str) -> Floats:
        return np.concatenate([getattr(part, name) for part in parts])

    return _PerQuery(
        average_precision=whole("average_precision"),
        weighted=whole("weighted"),
        ndcg=whole("ndcg"),
        gain=whole("gain"),
        depths=parts[0].depths,
        precision=whole("precision"),
    )


def _scores(ranked_by: RankedBy, protocol: Protocol, result: _PerQuery) -> Scores:
    values = result.average_precision
    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return Scores(
        ranked_by=ranked_by,
        protocol=protocol,
        mean_average_precision=float(values.mean()),
        standard_error=spread / len(values) ** 0.5,
        weighted_average_precision=float(result.weighted.mean()),
        ndcg=float(result.ndcg.mean()),
        average_gain=float(result.gain.mean()),
        precision=tuple(zip(result.depths, result.precision.mean(axis=0).tolist(), strict=True)),
    )


def _curve(histogram: Histogram) -> Curve:
    precision, recall, answered = measures.precision_recall(histogram)
    return Curve(precision=tuple(precision.tolist()), recall=tuple(recall.tolist()), answered=tuple(answered.tolist()))


def _label_scores(rankings: Rankings, classes: Sequence[str] | None, measured: _Measured) -> tuple[LabelScore, ...]:
    found, photos = measured.found, rankings.photos_with_label
    names = classes or [str(label) for label in range(found.shape[1])]
    if len(names) != found.shape[1]:
        raise LabelError(f"{len(names)} class names for labels with {found.shape[1]} columns")
    scores = []
    for label, name in enumerate(names):
        carrying = rankings.query_labels[:, label] > 0
        values = [result.average_precision[carrying] for result in measured.results.values()]
        scores.append(
            LabelScore(
                name=name,
                queries=int(carrying.sum()),
                photos=int(rankings.label_columns[label].sum(dtype=np.int64)),
                average_precision=tuple(float(each.mean()) if len(each) else None for each in values),
                found=float(found[carrying, label].mean()) if carrying.any() and photos[label] > 0 else None,
                chance=max(0.0, float(photos[label] / rankings.size)),
            )
        )
    return tuple(scores)
