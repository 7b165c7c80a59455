"""Report: all that an evaluation found out, as plain values that survive a round trip through JSON.

Two reports side by side, query by query, say whether the one is better than the other, and for whom.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hyphash.config import from_table
from hyphash.errors import ConfigError, DataError
from hyphash.evaluation.geometry import BitUse, Separation
from hyphash.evaluation.labelling import Labelling
from hyphash.evaluation.measures import Floats, Protocol
from hyphash.evaluation.rankings import RankedBy
from hyphash.evaluation.significance import Interval, as_text, difference, unpack

FORMAT = "hyphash-report"
VERSION = 1
MOST = 5  # queries that are named where two reports differ


@dataclass(frozen=True, kw_only=True)
class Scores:
    """One kind of ranking, measured under one protocol. Means over all queries."""

    ranked_by: RankedBy
    protocol: Protocol
    mean_average_precision: float
    standard_error: float  # of that mean, over the queries
    weighted_average_precision: float  # with the mean gain in the place of precision
    ndcg: float
    average_gain: float  # ACG: mean number of shared labels over the first N
    precision: tuple[tuple[int, float], ...]  # N, and the share of relevant photos among the first N
    interval: Interval | None = None  # of the mean average precision, 95 %; older reports have none
    by_query: str | None = None  # the average precision of each query, as `pack` writes it

    @cached_property
    def average_precision(self) -> Floats | None:
        """Of each query, to the nearest thousandth, where it was kept."""
        return None if self.by_query is None else unpack(self.by_query)

    def how_sure(self, digits: int = 4) -> str:
        """`0.861 to 0.879`, or the standard error where the report has no interval."""
        return as_text(self.interval, digits) or f"standard error {self.standard_error:.{digits}f}"


@dataclass(frozen=True)
class Curve:
    """Precision and recall of the photos within each Hamming radius 0 … bits.

    Precision is the mean over the queries that find anything within the radius (`answered` is their share),
    recall over the queries that have anything to find.
    """

    precision: tuple[float, ...]
    recall: tuple[float, ...]
    answered: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class LabelScore:
    """How well the photos with one label are found by queries that carry it (the report's first ranking).

    `found`: of the first n photos, the share that carries this very label, n the smaller of the depth and the
    number of such photos in the database, so that 1 can be reached; `chance` is what a random order gives.
    None where no query carries the label or no photo of the database does.
    """

    name: str
    queries: int
    photos: int  # in the database
    average_precision: tuple[float | None, ...]  # under each protocol of the report
    found: float | None
    chance: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the codes of a hasher are worth on one dataset."""

    dataset: str = ""
    bits: int
    queries: int
    database: int
    hopeless: int  # queries with nothing relevant in the database; they count 0 in every mean
    scores: tuple[Scores, ...]
    curve: Curve | None  # None, as the next and the one after labels, where codes have no Hamming distance
    precision_within_2: float | None  # Hamming radius 2; a query that finds nothing there counts 0
    labels: tuple[LabelScore, ...]
    separation: Separation | None  # of the database
    bit_use: BitUse  # of the database
    facts: Mapping[str, str] = field(default_factory=dict)  # about the run: loss, backbone, which epoch …
    problems: tuple[str, ...] = ()  # photos that could not be read, and why
    labelling: Labelling | None = None  # where the hasher has a label layer
    photos: str = ""  # a checksum of queries and database: which photos in which order, and their labels

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        return tuple(dict.fromkeys(scores.protocol for scores in self.scores))

    def mean_average_precision(self, protocol: str = "paper", ranked_by: RankedBy = "hamming") -> float:
        """The figure that most people look at first."""
        for scores in self.scores:
            if (scores.protocol.name, scores.ranked_by) == (protocol, ranked_by):
                return scores.mean_average_precision
        raise DataError(f"this report has no {ranked_by} ranking under the protocol {protocol!r}")

    def with_own_queries(self) -> "Report":
        """Without the queries of a second ranking: what a folder of many results keeps."""
        first = self.scores[0].ranked_by
        kept = (scores if scores.ranked_by == first else replace(scores, by_query=None) for scores in self.scores)
        return replace(self, scores=tuple(kept))

    def code_rows(self) -> list[tuple[str, float | None, str]]:
        """What was measured of the codes themselves, under no protocol: its name, its value, how."""
        rows: list[tuple[str, float | None, str]] = []
        if self.precision_within_2 is not None:
            rows.append(("precision within radius 2", self.precision_within_2, "a query that finds nothing counts 0"))
        if self.separation:
            near = "mean ℓ2 distance of ±1 codes to the centre of their label set"
            far = "mean ℓ2 distance of such centres to the nearest that shares no label"
            rows += [("d_intra", self.separation.d_intra, near), ("d_inter", self.separation.d_inter, far)]
        return [
            *rows,
            ("distinct codes", self.bit_use.distinct, f"of {self.database:,} photos in the database"),
            ("mean |correlation| of bits", self.bit_use.correlation, "0 is best"),
            ("constant bits", self.bit_use.constant, f"of {self.bits}"),
        ]

    def to_json(self) -> str:
        return json.dumps(self.to_table(), indent=1, ensure_ascii=False)

    def to_table(self) -> dict[str, Any]:
        """The report as plain values, with its format."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def parse(cls, report: str | dict[str, Any], name: str | Path = "report") -> "Report":
        """What `to_json` or `to_table` gave. Unknown and missing fields are errors that name `name`."""
        try:
            values = json.loads(report) if isinstance(report, str) else dict(report)
            if values.pop("format") != FORMAT:
                raise DataError(f"{name}: not a hyphash report")
            if (version := values.pop("version")) != VERSION:
                raise DataError(f"{name}: a report of format {version}, this hyphash reads {VERSION}; evaluate again")
            return from_table(cls, values, "report")
        except (ValueError, TypeError, KeyError, AttributeError, ConfigError) as error:
            raise DataError(f"{name}: damaged report ({error!r}); evaluate the run again") from error


# ── two reports ──────────────────────────────────────────────────────────────────────────────────────────


def compare_reports(before: Report, after: Report, names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """What `after` adds under each protocol, as plain values; the queries that differ most by name, where given.

    Bits, losses, backbones and the way of ranking may differ; reports of other photos, labels or protocols are refused.
    """
    if differing := _differing(before, after):
        raise DataError(f"the two cannot be compared query by query: {'; '.join(differing)}")
    return [_compared(*both, names) for both in zip(_own(before), _own(after), strict=True)]


def _compared(before: Scores, after: Scores, names: Sequence[str]) -> dict[str, Any]:
    one, other = before.average_precision, after.average_precision
    assert one is not None
    assert other is not None
    farthest = [int(row) for row in np.argsort(-np.abs(other - one), kind="stable")[:MOST] if one[row] != other[row]]
    gaps = zip(farthest, one[farthest].tolist(), other[farthest].tolist(), strict=True)
    queries = [
        {"query": names[row] if names else row, "before": low, "after": high, "difference": high - low}
        for row, low, high in gaps
    ]
    gap = difference(one, other)
    found: dict[str, Any] = {"protocol": before.protocol.name, "top": before.protocol.top}
    found |= {"before": before.mean_average_precision, "after": after.mean_average_precision}
    return found | {"difference": asdict(gap) | {"sure": gap.is_sure}, "queries": queries}


def _own(report: Report) -> list[Scores]:
    """The scores of a report's first ranking."""
    return [scores for scores in report.scores if scores.ranked_by == report.scores[0].ranked_by]


def _differing(before: Report, after: Report) -> list[str]:
    """What forbids to pair the queries of two reports, in words."""
    found = []
    protocols = [", ".join(f"{p.name}{p.depth}" for p in report.protocols) for report in (before, after)]
    for what, one, other in (
        ("dataset", before.dataset, after.dataset),
        ("queries", before.queries, after.queries),
        ("photos in the database", before.database, after.database),
        ("protocols", *protocols),
    ):
        if one != other:
            found.append(f"{what}: {one} and {other}")
    if not found and before.photos != after.photos:
        found.append("other photos or labels, or in another order, though as many")
    for name, report in (("first", before), ("second", after)):
        if any(scores.average_precision is None for scores in _own(report)):
            found.append(f"the {name} report kept no queries; evaluate it again")
    return found
