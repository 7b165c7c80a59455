"""Two reports side by side, query by query: is the one better than the other, and for whom?"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hyphash.errors import DataError
from hyphash.evaluation.measures import Protocol
from hyphash.evaluation.record import Report, Scores
from hyphash.evaluation.significance import Difference, difference


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What a second report adds to a first one under one protocol, each by its own ranking."""

    protocol: Protocol
    before: float  # mAP
    after: float
    difference: Difference
    queries: tuple[tuple[int, float, float], ...]  # that differ most: which, and their two average precisions

    def to_table(self, names: Sequence[str] = ()) -> dict[str, Any]:
        """As plain values, the queries by name where they have one."""
        queries = [
            {"query": names[row] if names else row, "before": one, "after": other, "difference": other - one}
            for row, one, other in self.queries
        ]
        difference = asdict(self.difference) | {"sure": self.difference.is_sure}
        plain = {"protocol": self.protocol.name, "top": self.protocol.top, "before": self.before, "after": self.after}
        return plain | {"difference": difference, "queries": queries}


def compare_reports(before: Report, after: Report, *, most: int = 5) -> list[Compared]:
    """The paired difference under each protocol. Reports that were not measured alike are refused.

    Bits, losses, backbones and the way of ranking may differ; photos, labels and protocols may not.
    """
    if differing := _differing(before, after):
        raise DataError(f"the two cannot be compared query by query: {'; '.join(differing)}")
    return [_compared(*both, most) for both in zip(_own(before), _own(after), strict=True)]


def _compared(before: Scores, after: Scores, most: int) -> Compared:
    one, other = before.average_precision, after.average_precision
    assert one is not None
    assert other is not None
    farthest = np.argsort(-np.abs(other - one), kind="stable")[:most]
    return Compared(
        protocol=before.protocol,
        before=before.mean_average_precision,
        after=after.mean_average_precision,
        difference=difference(one, other),
        queries=tuple((int(row), float(one[row]), float(other[row])) for row in farthest if one[row] != other[row]),
    )


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
