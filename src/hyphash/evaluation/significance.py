"""How sure a mean over queries is, and whether two of them differ: the queries might have been others.

Intervals are percentiles of the bootstrap over queries, p-values come from flipping the signs of paired differences.
All that is drawn comes from a fixed seed, so the same figures give the same intervals everywhere.
"""

import zlib
from base64 import b85decode, b85encode
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyphash.errors import DataError
from hyphash.evaluation.measures import Floats

RESAMPLES = 10_000
LEVEL = 0.95
SEED = 0
DRAWN = 1 << 16  # numbers drawn at once: they stay in the processor's cache
STEPS = 1000  # what is kept of a query: its average precision to the nearest thousandth

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What a second way of ranking adds to the average precision of the same queries."""

    mean: float
    interval: Interval  # of the mean, 95 %
    p: float  # two-sided: how often signs by chance give a mean as far from 0
    gain: int  # queries that rank better by the second
    lose: int

    @property
    def is_sure(self) -> bool:
        """Whether the interval leaves out 0."""
        low, high = self.interval
        return low > 0 or high < 0


def intervals(values: Floats) -> list[Interval]:
    """The 95 % interval of the mean of each column, the rows (queries) drawn anew for all columns together.

    Of several seeds of a method the interval is that of one column, the mean over seeds of each query: to draw a query
    is to draw what all seeds make of it. It says what other queries might have given, not what other seeds might.
    """
    ends = np.quantile(_resampled_means(values), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    ends = (ends + 1e-12).round(9)  # sums of other threads, in another order, come to the same: no tie at a last digit
    return [(float(low), float(high)) for low, high in ends.T]


def as_text(interval: Interval | None, digits: int = 3) -> str | None:
    """An interval in a table: `0.861 to 0.879`."""
    return interval and " to ".join(f"{end:.{digits}f}" for end in interval)


def interval(values: Floats) -> Interval:
    """The 95 % interval of the mean of one value a query."""
    return intervals(values[:, None])[0]


def difference(before: Floats, after: Floats) -> Difference:
    """What `after` adds to `before`, query by query."""
    if before.shape != after.shape or not len(before):
        raise DataError(f"{len(before)} and {len(after)} queries cannot be paired; measure both on the same ones")
    gained = after - before
    gain, lose = int((gained > 0).sum()), int((gained < 0).sum())
    return Difference(mean=float(gained.mean()), interval=interval(gained), p=sign_flip_p(gained), gain=gain, lose=lose)


def sign_flip_p(gained: Floats) -> float:
    """The two-sided p-value of a mean difference: the share of sign patterns that lead as far from 0.

    If it did not matter which of two was which, each difference might as well have the other sign. Where there are no
    more patterns than RESAMPLES all are looked at; else as many are drawn, and the observed one counts among them.
    """
    gained = gained[gained != 0]
    observed = abs(gained.sum()) - 1e-12 * np.abs(gained).sum()  # sums in another order are as far
    if 2 ** len(gained) <= RESAMPLES:
        patterns = np.arange(2 ** len(gained))[:, None] >> np.arange(len(gained)) & 1
        return float((np.abs((2 * patterns - 1) @ gained) >= observed).mean())
    random, far = np.random.default_rng(SEED), 0
    for rows in _chunks(len(gained)):
        signs = 2 * random.integers(0, 2, (rows, len(gained)), np.int8) - 1
        far += int((np.abs(signs @ gained) >= observed).sum())
    return (1 + far) / (1 + RESAMPLES)


def _resampled_means(values: Floats) -> Floats:
    """Column means of as many rows as there are, drawn with replacement: (RESAMPLES, columns)."""
    random, count = np.random.default_rng(SEED), len(values)
    means = []
    for rows in _chunks(count):
        drawn = random.integers(0, count, (rows, count)) + count * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count)  # that a query was drawn
        means.append(times.astype(np.float64) @ values / count)
    return np.concatenate(means)


def _chunks(count: int) -> Iterator[int]:
    """Resamples of so many queries, cut into numbers that fit into memory."""
    step = max(1, DRAWN // count)
    return (min(step, RESAMPLES - start) for start in range(0, RESAMPLES, step))


def pack(average_precision: Floats) -> str:
    """The average precision of each query as text, to the nearest thousandth: about 1.4 bytes a query.

    >>> unpack(pack(np.array([0.0, 0.12345, 1.0]))).tolist()
    [0.0, 0.123, 1.0]
    """
    steps = np.rint(average_precision * STEPS).astype("<u2")
    planes = steps.view(np.uint8).reshape(-1, 2).T  # all high bytes lie together: they are much alike
    return b85encode(zlib.compress(planes.tobytes(), 9)).decode()


def unpack(text: str) -> Floats:
    """What `pack` packed."""
    planes = np.frombuffer(zlib.decompress(b85decode(text)), np.uint8)
    steps: NDArray[np.uint16] = np.ascontiguousarray(planes.reshape(2, -1).T).view("<u2").ravel()
    return steps / STEPS
