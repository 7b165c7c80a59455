"""Intervals and p-values against naive twins and the laws of their trade."""

from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hyphash.errors import DataError
from hyphash.evaluation import difference, significance
from hyphash.evaluation.significance import RESAMPLES, SEED, interval, intervals, pack, sign_flip_p, unpack


@pytest.mark.parametrize(("queries", "columns"), [(1, 1), (7, 1), (40, 3)])
def test_an_interval_matches_a_loop_over_resamples(queries, columns):
    values = np.random.default_rng(queries).random((queries, columns))
    random, means = np.random.default_rng(SEED), []
    for _ in range(RESAMPLES):
        rows = random.integers(0, queries, queries)
        means.append([sum(values[row, column] for row in rows) / queries for column in range(columns)])
    naive = np.quantile(means, [0.025, 0.975], axis=0).T
    np.testing.assert_allclose(intervals(values), naive, atol=1e-12)


def test_an_interval_comes_close_to_that_of_all_resamples():
    values = np.array([0.1, 0.45, 0.5, 0.83, 0.97, 1.0])
    every = [np.mean(some) for some in product(values, repeat=len(values))]
    assert interval(values) == pytest.approx(tuple(np.quantile(every, [0.025, 0.975])), abs=0.01)


def test_intervals_cover_the_mean_as_often_as_they_say():
    random, covered = np.random.default_rng(3), 0
    for _ in range(200):
        low, high = interval(random.beta(8, 2, 60))
        covered += low <= 0.8 <= high
    assert 182 <= covered <= 198  # 190, within three standard deviations and the bootstrap's own haste


def test_queries_of_several_seeds_are_drawn_together():
    """Seeds that rank alike say nothing new; those that err apart make their mean surer."""
    one = np.random.default_rng(0).random(100)
    alike, apart = np.stack([one, one], axis=1), np.stack([one, 1 - one], axis=1)
    assert interval(alike.mean(axis=1)) == pytest.approx(interval(one))
    assert interval(apart.mean(axis=1)) == pytest.approx((0.5, 0.5))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=9))
@example([1, -3, -2, 4])  # which cancel, but for what thirds lose in a float
def test_few_queries_have_the_exact_p_value(gained):
    patterns = list(product((1, -1), repeat=len(gained)))
    far = [abs(sum(s * g for s, g in zip(signs, gained, strict=True))) >= abs(sum(gained)) for signs in patterns]
    assert sign_flip_p(np.array(gained) / 3) == pytest.approx(sum(far) / len(patterns))


def test_drawn_patterns_come_close_to_all_of_them(monkeypatch):
    gained = np.random.default_rng(5).normal(0.2, 1, 16)
    drawn = sign_flip_p(gained)
    monkeypatch.setattr(significance, "RESAMPLES", 2**16)
    assert drawn == pytest.approx(sign_flip_p(gained), abs=0.015)
    assert 0.01 < drawn < 0.99


def test_chance_alone_is_rarely_sure_and_a_true_gain_is():
    random = np.random.default_rng(1)
    null = [difference(*random.random((2, 80))) for _ in range(100)]
    assert sum(found.p <= 0.05 for found in null) <= 12
    for found in null:
        assert abs(found.p - 0.05) < 0.03 or found.is_sure == (found.p < 0.05)  # interval and test agree
    before = random.random(500) * 0.8
    found = difference(before, before + 0.02 + random.normal(0, 0.05, 500))
    assert found.is_sure
    assert found.p == pytest.approx(1 / (1 + RESAMPLES))
    assert found.interval[0] < found.mean < found.interval[1]


def test_the_other_way_round_is_the_opposite():
    before, after = np.random.default_rng(2).random((2, 300))
    there, back = difference(before, after), difference(after, before)
    assert (back.mean, back.p, back.gain, back.lose) == pytest.approx((-there.mean, there.p, there.lose, there.gain))
    assert back.interval == pytest.approx((-there.interval[1], -there.interval[0]))
    same = difference(before, before)
    assert (same.mean, same.interval, same.p, same.gain, same.lose) == (0, (0, 0), 1, 0, 0)


def test_what_cannot_be_paired_is_refused():
    with pytest.raises(DataError, match="3 and 4 queries cannot be paired"):
        difference(np.zeros(3), np.zeros(4))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_a_packed_query_is_kept_to_the_nearest_thousandth(values):
    np.testing.assert_array_equal(unpack(pack(np.array(values))), np.rint(np.array(values) * 1000) / 1000)


def test_two_thousand_queries_cost_less_than_three_and_a_half_kilobytes():
    assert len(pack(np.random.default_rng(0).beta(4, 0.7, 2000))) < 3500
