"""Measures of rankings: pure functions over numpy arrays.

Every ranking is a row of buckets, nearest first: photos that share a bucket share a distance, and which of
them comes first is a matter of luck. Measures are the expectation over that luck, in closed form, so that
they need no sort and no distance matrix, only a `Histogram`. Rankings without ties ("by id") are the special
case of one photo a bucket, and come as what each query gains at each place: the places are then summed over
directly, in a fraction of the time. Gains are numbers of shared labels; a photo is relevant if it shares any.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hyphash.errors import ConfigError, DataError
from hyphash.hamming import Histogram

AverageOver = Literal["retrieved", "possible"]
Ties = Literal["by id", "expected"]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Gains = NDArray[np.unsignedinteger[Any]] | Ints  # without ties: (queries, places), nearest first
Ranking = Histogram | Gains

PRESETS: dict[str, tuple[AverageOver, Ties]] = {
    "paper": ("retrieved", "by id"),  # as the published figures are measured, with ties by id
    "strict": ("possible", "expected"),  # as one should measure: nothing is gained by finding little, nor by luck
}


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How a ranking is measured: how deep, average precision divided by what, and what equal distances mean.

    >>> Protocol.preset("paper", 1000) == Protocol(top=1000, average_over="retrieved", ties="by id")
    True
    """

    top: int | None  # None: the whole database
    average_over: AverageOver
    ties: Ties

    def __post_init__(self) -> None:
        if self.top is not None and self.top < 1:
            raise ConfigError(f"a ranking is measured over its first 1 or more photos, not {self.top}")
        if self.average_over not in ("retrieved", "possible"):
            raise ConfigError(f"average over 'retrieved' or 'possible' photos, not {self.average_over!r}")
        if self.ties not in ("by id", "expected"):
            raise ConfigError(f"ties are broken 'by id' or 'expected', not {self.ties!r}")

    @classmethod
    def preset(cls, name: str, top: int | None) -> "Protocol":
        if name not in PRESETS:
            raise ConfigError(f"no protocol {name!r}; there are {', '.join(map(repr, PRESETS))}")
        average_over, ties = PRESETS[name]
        return cls(top=top, average_over=average_over, ties=ties)

    @property
    def name(self) -> str:
        names = {preset: name for name, preset in PRESETS.items()}
        return names.get((self.average_over, self.ties), f"{self.average_over}, ties {self.ties}")

    @property
    def depth(self) -> str:
        """`@1,000`, or `@all` for the whole database."""
        return "@all" if self.top is None else f"@{self.top:,}"

    def describe(self) -> str:
        """The protocol to the last detail, to be printed above every table."""
        first = "the whole ranking" if self.top is None else f"the first {self.top:,} photos of each ranking"
        divided = {
            "retrieved": "the relevant photos among them (a query with none counts 0)",
            "possible": "as many relevant photos as could stand there, min(N, relevant in the database) "
            "(a query with none counts 0)",
        }[self.average_over]
        tied = {
            "by id": "photos at equal distance are ordered by id",
            "expected": "photos at equal distance count with the expectation over all their orders",
        }[self.ties]
        return (
            f"Protocol {self.name}{self.depth}: photos are relevant when they share at least one label with "
            f"the query; over {first}, average precision is the sum of the precision at each relevant photo "
            f"divided by {divided}; {tied}; mAP is the mean over all queries."
        )


def average_precision(
    distances: ArrayLike,
    relevant: ArrayLike,
    top: int | None = None,
    average_over: AverageOver = "retrieved",
    ties: Ties = "by id",
) -> Floats:
    """The average precision of each query from full tables of shape (queries, photos).

    AP = Σ_{k ≤ top} precision(k) · relevant(k) / (relevant photos retrieved, or possible: min(top, all
    relevant)). Ties "by id" put equal distances in the order of the columns; "expected" takes the expectation
    over all orders of equal distances. A query without relevant photos has 0.

    >>> average_precision([[1, 2, 2, 3]], [[1, 0, 1, 0]]).round(4).tolist()
    [0.8333]
    >>> average_precision([[1, 2, 2, 3]], [[1, 0, 1, 0]], ties="expected").round(4).tolist()
    [0.9167]
    """
    protocol = Protocol(top=top, average_over=average_over, ties=ties)
    values, hits = np.asarray(distances), np.asarray(relevant) != 0
    if values.ndim != 2 or values.shape != hits.shape:
        raise DataError(
            f"distances and relevant are two tables of one row a query and one column a photo, "
            f"not of shapes {values.shape} and {hits.shape}"
        )
    if np.isnan(values).any():
        raise DataError("some distances are not numbers (NaN)")
    order = np.argsort(values, axis=1, kind="stable")
    gains = np.take_along_axis(hits, order, axis=1).astype(np.int64)
    by_id = protocol.ties == "by id"
    ranking = gains if by_id else in_groups(np.take_along_axis(values, order, axis=1), gains)
    return expected_average_precision(ranking, top, possible(hits.sum(axis=1), protocol))


def possible(relevant: Ints, protocol: Protocol) -> Floats | None:
    """min(top, relevant in the database), to divide by; None where the retrieved ones are the divisor."""
    if protocol.average_over == "retrieved":
        return None
    most = relevant if protocol.top is None else np.minimum(relevant, protocol.top)
    return most.astype(np.float64)


def in_groups(ordered: Iterable[NDArray[Any]], gains: Iterable[NDArray[Any]]) -> Histogram:
    """Rankings with ties from the ordered distances of each query and the gains in that order: equal neighbours
    share a bucket. All have as many buckets as the one with the most; those left over are empty.
    """
    groups = [np.cumsum(np.r_[False, row[1:] != row[:-1]])[: len(row)] for row in ordered]
    width = max((int(row[-1]) + 1 for row in groups if len(row)), default=0)
    nothing = np.empty(0, np.int64)
    cell = np.concatenate([nothing, *(row + query * width for query, row in enumerate(groups))])
    gain = np.concatenate([nothing, *gains])

    def summed(values: NDArray[Any]) -> Floats:
        sums = np.bincount(cell, weights=values, minlength=len(groups) * width)
        return sums.reshape(len(groups), width).astype(np.float64)

    count, relevant, shared = (summed(v).astype(np.int64) for v in (np.ones_like(gain), gain > 0, gain))
    return Histogram(count, relevant, shared, summed(np.exp2(gain) - 1))


class _Bucket(NamedTuple):
    """One bucket of numbers, or all of many queries as arrays."""

    n: Any  # photos
    r: Any  # of them relevant
    g: Any  # their summed gain
    m: Any  # photos inside the top
    n_before: Any  # the first three of all buckets before
    r_before: Any
    g_before: Any


def expected_average_precision(
    ranking: Ranking, top: int | None, possible: Floats | None, *, weighted: bool = False
) -> Floats:
    """Average precision of each query, ties by expectation; `weighted` puts mean gains in precision's place.

    Divided by `possible` where given, else by the relevant photos inside the top: these are a random number
    when the top cuts through a bucket, so the ratio is averaged over their distribution (`_over_the_cut`).
    """
    if not isinstance(ranking, Histogram):
        return _ordered_average_precision(ranking[:, :top], possible, weighted)
    n, r = ranking.count, ranking.relevant
    g = ranking.gain if weighted else r
    n_before, r_before, g_before = (np.cumsum(values, axis=1) - values for values in (n, r, g))
    inside = np.clip(_limit(ranking, top) - n_before, 0, n)
    buckets = _Bucket(n, r, g, inside, n_before, r_before, g_before)
    sums = _bucket_sum(buckets)
    if possible is not None:
        return cast("Floats", sums.sum(axis=1) / np.maximum(possible, 1))
    whole = inside == n
    before = np.where(whole, sums, 0).sum(axis=1)
    result: Floats = before / np.maximum(np.where(whole, r, 0).sum(axis=1), 1)
    for cell in zip(*np.nonzero((inside > 0) & ~whole), strict=True):  # at most one bucket of each query
        cut = _Bucket(*(int(values[cell]) for values in buckets))
        result[cell[0]] = _over_the_cut(cut, float(before[cell[0]]))
    return result


def _ordered_average_precision(gains: Gains, possible: Floats | None, weighted: bool) -> Floats:
    """Σ_k relevant(k) · G(k)/k, G(k) the relevant photos (`weighted`: the gain) up to place k, over the divisor."""
    relevant = gains > 0
    so_far = np.cumsum(gains if weighted else relevant, axis=1, dtype=np.float64)
    so_far *= relevant
    divisor = np.count_nonzero(relevant, axis=1) if possible is None else possible
    return cast("Floats", so_far @ (1 / np.arange(1, gains.shape[1] + 1)) / np.maximum(divisor, 1))


def _bucket_sum(bucket: _Bucket) -> Floats:
    """The expected Σ relevant(k) · G(k) / k over the first m places of a bucket, G(k) the gain up to k.

    At place i of the bucket, E[relevant · G] has three parts: r·G₋/n from the buckets before, g/n from the
    photo itself, and g(r − 1)/(n(n − 1)) from each of the i − 1 places before it in its own bucket.
    With Σ_{i≤m} 1/(N₋ + i) = ΔH and Σ_{i≤m} (i − 1)/(N₋ + i) = m − (N₋ + 1)ΔH the sum over the places is
    (r·G₋ + g)/n · ΔH + g(r − 1)/(n(n − 1)) · (m − (N₋ + 1)ΔH). With g = r it is the sum of precisions.
    """
    n, r, g, m, n_before, _, g_before = bucket
    last = n_before + m
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, np.max(last, initial=0) + 1))])
    delta = harmonic[last] - harmonic[n_before]
    own = (r * g_before + g) / np.maximum(n, 1)
    earlier = g * np.maximum(r - 1, 0) / (np.maximum(n, 2) * np.maximum(n - 1.0, 1))
    return cast("Floats", own * delta + earlier * (m - (n_before + 1) * delta))


def _over_the_cut(bucket: _Bucket, before: float) -> float:
    """E[Σ relevant(k) · G(k)/k / relevant inside] when the top takes m of the n photos of its last bucket.

    How many of the m are relevant, x, is hypergeometric. Given x, their order is uniform: they are a bucket
    of m photos with x relevant ones and gain g·x/r that lies wholly inside. `before` is the sum up to it.
    """
    n, r, g, m, *_ = bucket
    x = np.arange(max(0, m - (n - r)), min(m, r) + 1)
    sums = before + _bucket_sum(bucket._replace(n=m, r=x, g=g * x / max(r, 1)))
    return float(np.sum(_hypergeometric(n, r, m, x) * sums / np.maximum(bucket.r_before + x, 1)))


def _hypergeometric(n: int, r: int, m: int, x: Ints) -> Floats:
    """The probability of x relevant photos among m drawn from n of which r are; x is the whole support.

    From the ratios p(x + 1)/p(x) = (r − x)(m − x) / ((x + 1)(n − r − m + x + 1)): logarithms of factorials of
    large numbers would lose the digits that a figure exact to 1e-9 needs.
    """
    left = x[:-1]
    ratios = (r - left) * (m - left) / ((left + 1) * (n - r - m + left + 1))
    logs = np.concatenate([[0.0], np.cumsum(np.log(ratios))])
    weights = np.exp(logs - logs.max())
    return cast("Floats", weights / weights.sum())


def precision_at(ranking: Ranking, at: tuple[int, ...]) -> Floats:
    """The expected share of relevant photos among the first N, (queries, len(at)); `at` ascends.

    A database smaller than N is counted as it is: the share is of the photos there are.
    """
    if not isinstance(ranking, Histogram):
        between = [np.count_nonzero(part, axis=1) for part in np.split(ranking, at, axis=1)[:-1]]
        return np.cumsum(np.stack(between, axis=1), axis=1) / np.minimum(at, ranking.shape[1])
    size = ranking.count.sum(axis=1)
    columns = [_within(ranking, ranking.relevant, n) / np.clip(size, 1, n) for n in at]
    return np.stack(columns, axis=1)


def average_gain(ranking: Ranking, top: int | None) -> Floats:
    """ACG@N, the average cumulative gain: the expected mean number of shared labels over the first N."""
    if not isinstance(ranking, Histogram):
        return cast("Floats", ranking[:, :top].mean(axis=1, dtype=np.float64))
    limit = _limit(ranking, top)
    return cast("Floats", _within(ranking, ranking.gain, limit) / np.clip(ranking.count.sum(axis=1), 1, limit))


def discounted_gain(ranking: Ranking, top: int | None) -> Floats:
    """DCG@N = Σ_{k ≤ N} (2^gain(k) − 1) / log₂(k + 1), each photo of a bucket with the bucket's mean."""
    if not isinstance(ranking, Histogram):
        gains = ranking[:, :top]
        worth = np.exp2(np.arange(int(gains.max(initial=0)) + 1)) - 1
        return cast("Floats", worth[gains] @ (1 / np.log2(np.arange(2, gains.shape[1] + 2))))
    limit = _limit(ranking, top)
    discounts = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(2, limit + 2)))])
    end = np.cumsum(ranking.count, axis=1)
    start, end = np.minimum(end - ranking.count, limit), np.minimum(end, limit)
    mean = ranking.exp_gain / np.maximum(ranking.count, 1)
    return cast("Floats", (mean * (discounts[end] - discounts[start])).sum(axis=1))


def normalised_gain(gain: Floats, best: Floats) -> Floats:
    """NDCG@N: DCG@N over `best`, the DCG@N of the best order of the database; 0 where nothing is relevant."""
    return gain / np.where(best > 0, best, 1)


def precision_recall(histogram: Histogram) -> tuple[Floats, Floats, Floats]:
    """Precision, recall and the share of queries with an answer, for each Hamming radius 0 … bits.

    Precision is the mean over the queries that find anything within the radius, recall the mean over the
    queries that have anything to find.
    """
    found, hits = np.cumsum(histogram.count, axis=1), np.cumsum(histogram.relevant, axis=1)
    answered, wanted = found > 0, hits[:, -1:]
    shares = hits / np.maximum(found, 1)
    precision = shares.sum(axis=0) / np.maximum(answered.sum(axis=0), 1)
    recall = (hits / np.maximum(wanted, 1)).sum(axis=0) / max(int((wanted > 0).sum()), 1)
    return precision, recall, answered.mean(axis=0)


def precision_within(histogram: Histogram, radius: int) -> float:
    """The mean precision of the photos within a Hamming radius; a query that finds none there counts 0."""
    found = histogram.count[:, : radius + 1].sum(axis=1)
    hits = histogram.relevant[:, : radius + 1].sum(axis=1)
    return float((hits / np.maximum(found, 1)).mean())


def _limit(ranking: Histogram, top: int | None) -> int:
    size = int(ranking.count.sum(axis=1).max(initial=0))
    return size if top is None else min(top, size)


def _within(ranking: Histogram, values: NDArray[Any], top: int) -> Floats:
    """The expected sum of `values` over the first `top` photos: whole buckets, and a share of the last."""
    end = np.cumsum(ranking.count, axis=1)
    last = np.minimum((end < top).sum(axis=1), end.shape[1] - 1)[:, None]
    count, part = (np.take_along_axis(a, last, axis=1) for a in (ranking.count, values))
    taken = np.clip(top - (np.take_along_axis(end, last, axis=1) - count), 0, count)
    whole = np.take_along_axis(np.cumsum(values, axis=1), last, axis=1) - part
    return cast("Floats", (whole + part * taken / np.maximum(count, 1))[:, 0])
