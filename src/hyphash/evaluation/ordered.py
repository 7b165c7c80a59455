"""Measures of rankings without ties: what each query gains at each place, (queries, places), nearest first.

They are what `measures` gives for buckets of one photo each (`measures.in_order`), in a fraction of the time: the
places are summed over directly. Gains are numbers of shared labels; a photo is relevant if it shares any.
"""

import numpy as np
from numpy.typing import NDArray

from hyphash.evaluation.measures import Floats

Gains = NDArray[np.uint16]


def average_precision(gains: Gains, possible: Floats | None, *, weighted: bool = False) -> Floats:
    """Σ_k relevant(k) · G(k)/k, G(k) the relevant photos (`weighted`: the gain) up to place k.

    Divided by `possible` where given, else by the relevant photos of the ranking; 0 without any.
    """
    relevant = gains > 0
    so_far = np.cumsum(gains if weighted else relevant, axis=1, dtype=np.float64)
    so_far *= relevant
    divisor = np.count_nonzero(relevant, axis=1) if possible is None else possible
    result: Floats = so_far @ (1 / np.arange(1, gains.shape[1] + 1)) / np.maximum(divisor, 1)
    return result


def discounted_gain(gains: Gains) -> Floats:
    """DCG: Σ_k (2^gain(k) − 1) / log₂(k + 1)."""
    worth = np.exp2(np.arange(int(gains.max(initial=0)) + 1)) - 1
    result: Floats = worth[gains] @ (1 / np.log2(np.arange(2, gains.shape[1] + 2)))
    return result


def average_gain(gains: Gains) -> Floats:
    """ACG: the mean number of shared labels."""
    result: Floats = gains.mean(axis=1, dtype=np.float64)
    return result


def precision_at(gains: Gains, at: tuple[int, ...]) -> Floats:
    """The share of relevant photos among the first N, (queries, len(at)); `at` ascends and ends within the ranking."""
    starts = (0, *at[:-1])
    between = [np.count_nonzero(gains[:, start:end], axis=1) for start, end in zip(starts, at, strict=True)]
    result: Floats = np.cumsum(np.stack(between, axis=1), axis=1) / np.array(at)
    return result
