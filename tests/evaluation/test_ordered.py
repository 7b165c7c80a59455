"""Rankings without ties against the formulas for buckets, with one photo in each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyphash.evaluation import measures, ordered


@given(seed=st.integers(0, 10_000), queries=st.integers(0, 5), places=st.integers(1, 40), most=st.integers(0, 5))
def test_measures_are_those_of_buckets_of_one_photo(seed, queries, places, most):
    random = np.random.default_rng(seed)
    gains = random.integers(0, most + 1, (queries, places)).astype(np.uint16)
    possible = random.integers(0, places + 1, queries).astype(np.float64)
    buckets = measures.in_order(gains)
    for divisor in (None, possible):
        for weighted in (False, True):
            expected = measures.expected_average_precision(buckets, places, divisor, weighted=weighted)
            ours = ordered.average_precision(gains, divisor, weighted=weighted)
            assert ours == pytest.approx(expected, abs=1e-12)
    assert ordered.discounted_gain(gains) == pytest.approx(measures.discounted_gain(buckets, places))
    assert ordered.average_gain(gains) == pytest.approx(measures.average_gain(buckets, places))
    at = tuple(sorted({1, min(10, places), places}))
    assert ordered.precision_at(gains, at) == pytest.approx(measures.precision_at(buckets, at))
