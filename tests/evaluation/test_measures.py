"""The measures against sort-and-loop twins, and against the mean over every order that ties allow."""

from collections.abc import Iterator
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hyphash.errors import ConfigError, DataError
from hyphash.evaluation import measures
from hyphash.evaluation.measures import Protocol, average_precision, in_groups

exactly = pytest.approx


def naive_ap(hits: list[bool], gains: list[float], top: int, divisor: int | None) -> float:
    """Σ over relevant places of (gain so far / rank), over the divisor or over the hits inside the top."""
    total, found = 0.0, 0
    for rank, hit in enumerate(hits[:top], 1):
        if hit:
            found += 1
            total += sum(gains[:rank]) / rank
    divisor = found if divisor is None else divisor
    return total / divisor if divisor else 0.0


def all_orders(distances: list[int]) -> Iterator[list[int]]:
    """Every order by distance, equal distances in every permutation."""
    groups = [[i for i, d in enumerate(distances) if d == value] for value in sorted(set(distances))]
    for choice in product(*(permutations(group) for group in groups)):
        yield [i for group in choice for i in group]


def buckets(distances: list[int], gains: list[int]) -> measures.Histogram:
    order = np.argsort(distances, kind="stable")
    return in_groups(np.array(distances)[order][None], np.array(gains)[order][None])


tiny = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=6)
tops = st.one_of(st.none(), st.integers(1, 8))


@given(relevant=st.lists(st.booleans(), min_size=1, max_size=30))
def test_average_precision_matches_its_definition(relevant):
    hits = [rank for rank, hit in enumerate(relevant, 1) if hit]
    naive = sum(i / rank for i, rank in enumerate(hits, 1)) / max(len(hits), 1)
    distances = np.arange(len(relevant))[None]  # no ties
    assert average_precision(distances, np.array([relevant]), top=len(relevant)) == exactly(naive)


@given(
    photos=st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=40),
    top=st.one_of(st.none(), st.integers(1, 50)),
)
def test_by_id_is_a_stable_sort_and_a_loop(photos, top):
    distances, relevant = [d for d, _ in photos], [r for _, r in photos]
    order = sorted(range(len(photos)), key=lambda i: (distances[i], i))
    hits = [relevant[i] for i in order]
    depth = top or len(photos)
    for average_over, divisor in (("retrieved", None), ("possible", min(depth, sum(relevant)))):
        ours = average_precision([distances], [relevant], top=top, average_over=average_over)
        assert ours == exactly(naive_ap(hits, hits, depth, divisor), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(photos=tiny, top=tops)
def test_expected_is_the_mean_over_all_orders(photos, top):
    distances, gains = [d for d, _ in photos], [g for _, g in photos]
    relevant = [g > 0 for g in gains]
    depth = top or len(photos)
    orders = list(all_orders(distances))
    for average_over, divisor in (("retrieved", None), ("possible", min(depth, sum(relevant)))):
        protocol = Protocol(top=top, average_over=average_over, ties="expected")
        hits = [[relevant[i] for i in order] for order in orders]
        plain = np.mean([naive_ap(row, row, depth, divisor) for row in hits])
        assert average_precision([distances], [relevant], top, average_over, "expected") == exactly(plain)

        weighted = np.mean([naive_ap([relevant[i] for i in o], [gains[i] for i in o], depth, divisor) for o in orders])
        possible = measures.possible(np.array([sum(relevant)]), protocol)
        ours = measures.expected_average_precision(buckets(distances, gains), top, possible, weighted=True)
        assert ours == exactly(weighted)


@settings(max_examples=60, deadline=None)
@given(photos=tiny, top=st.integers(1, 8))
def test_precision_and_gains_are_means_over_all_orders(photos, top):
    distances, gains = [d for d, _ in photos], [g for _, g in photos]
    places = [[gains[i] for i in order][:top] for order in all_orders(distances)]
    ranking = buckets(distances, gains)
    hits = [np.mean([gain > 0 for gain in row]) for row in places]
    assert measures.precision_at(ranking, (top,)) == exactly(np.mean(hits))
    assert measures.average_gain(ranking, top) == exactly(np.mean([np.mean(row) for row in places]))

    def dcg(row: list[int]) -> float:
        return sum((2**gain - 1) / np.log2(rank + 1) for rank, gain in enumerate(row, 1))

    expected = np.mean([dcg(row) for row in places])
    best = dcg(sorted(gains, reverse=True)[:top])
    assert measures.discounted_gain(ranking, top) == exactly(expected)
    assert measures.normalised_gain(np.array([expected]), np.array([best])) == exactly(expected / best if best else 0)


@pytest.mark.parametrize("top", [1, 37, 400, 599, None])
@pytest.mark.parametrize("levels", [1, 3, 40])
def test_large_ties_match_a_loop_over_places(top, levels):
    """The harmonic sums and the hypergeometric weights against a loop over places and scipy's weights."""
    random = np.random.default_rng(levels)
    distances, relevant = random.integers(levels, size=(4, 600)), random.random((4, 600)) < 0.3
    relevant[1] &= distances[1] > 1
    for average_over in ("retrieved", "possible"):
        ours = average_precision(distances, relevant, top, average_over, "expected")
        for query in range(4):
            naive = by_places(distances[query], relevant[query], top or 600, average_over == "possible")
            assert ours[query] == exactly(naive, abs=1e-11)


def by_places(distances: np.ndarray, relevant: np.ndarray, top: int, possible: bool) -> float:
    total, seen, hits = 0.0, 0, 0
    for value in np.unique(distances):
        n, r = int((distances == value).sum()), int(relevant[distances == value].sum())
        if seen + n > top and not possible:  # the last bucket, and the divisor depends on what falls inside
            inside = top - seen
            chances = stats.hypergeom(n, r, inside).pmf(np.arange(inside + 1))
            values = [(total + places(inside, x, inside, seen, hits)) / max(hits + x, 1) for x in range(inside + 1)]
            return float(chances @ np.array(values))
        total += places(n, r, min(n, top - seen), seen, hits)
        seen, hits = seen + n, hits + r
        if seen >= top:
            break
    return total / max(min(top, int(relevant.sum())) if possible else hits, 1)


def places(n: int, r: int, inside: int, seen: int, hits: int) -> float:
    pair = (r - 1) / (n - 1) if n > 1 else 0
    return sum(r / n * (hits + 1 + (i - 1) * pair) / (seen + i) for i in range(1, inside + 1))


def test_a_ranking_by_real_scores_is_measured_like_one_by_distances():
    scores = np.array([[0.25, -1.5, 3e10, 0.25]])
    relevant = [[1, 0, 1, 0]]
    assert average_precision(scores, relevant, ties="expected") == exactly(
        average_precision([[1, 0, 2, 1]], relevant, ties="expected")
    )


def test_queries_with_nothing_to_find_have_zero():
    for average_over, ties in product(("retrieved", "possible"), ("by id", "expected")):
        values = average_precision([[0, 1, 1], [1, 1, 1]], np.zeros((2, 3)), 2, average_over, ties)
        assert values.tolist() == [0, 0]


def test_bad_tables_are_refused():
    with pytest.raises(DataError, match="two tables"):
        average_precision([1, 2], [0, 1])
    with pytest.raises(DataError, match="two tables"):
        average_precision([[1, 2]], [[0, 1, 1]])
    with pytest.raises(DataError, match="NaN"):
        average_precision([[1, np.nan]], [[0, 1]])
    with pytest.raises(ConfigError, match="first 1 or more"):
        average_precision([[1]], [[0]], top=0)


def test_protocols_name_themselves():
    assert Protocol.preset("paper", 5000).name == "paper"
    assert Protocol.preset("strict", 5000).name == "strict"
    assert Protocol(top=10, average_over="possible", ties="by id").name == "possible, ties by id"
    said = Protocol.preset("paper", 5000).describe()
    assert all(part in said for part in ("first 5,000", "among them", "by id", "at least one label"))
    said = Protocol.preset("strict", None).describe()
    assert all(part in said for part in ("whole ranking", "relevant in the database", "expectation"))


def test_protocols_that_do_not_exist_are_refused():
    with pytest.raises(ConfigError, match="'paper', 'strict'"):
        Protocol.preset("papers", 10)
    with pytest.raises(ConfigError, match="possible"):
        Protocol(top=1, average_over="all", ties="by id")
    with pytest.raises(ConfigError, match="expected"):
        Protocol(top=1, average_over="possible", ties="luck")


def test_precision_and_recall_within_each_radius():
    histogram = measures.Histogram(
        count=np.array([[0, 2, 2], [1, 0, 3], [0, 0, 4]]),
        relevant=np.array([[0, 1, 1], [1, 0, 3], [0, 0, 0]]),
        gain=np.array([[0, 1, 1], [1, 0, 3], [0, 0, 0]]),
        exp_gain=np.array([[0, 1, 1], [1, 0, 3.0], [0, 0, 0]]),
    )
    precision, recall, answered = measures.precision_recall(histogram)
    assert answered.tolist() == exactly([1 / 3, 2 / 3, 1])
    assert precision.tolist() == exactly([1, (1 / 2 + 1) / 2, (2 / 4 + 4 / 4 + 0) / 3])
    assert recall.tolist() == exactly([(0 + 1 / 4) / 2, (1 / 2 + 1 / 4) / 2, 1])  # two have anything to find
    assert measures.precision_within(histogram, 1) == exactly((1 / 2 + 1 + 0) / 3)


def test_groups_without_ties_are_one_photo_a_bucket():
    grouped = in_groups(np.array([[1, 2, 3]]), np.array([[2, 0, 1]]))
    assert grouped.count.tolist() == [[1, 1, 1]]
    assert grouped.exp_gain.tolist() == [[3, 0, 1]]


def test_rankings_of_different_lengths_are_filled_up_with_empty_buckets():
    grouped = in_groups([np.array([1, 2, 2]), np.array([], int), np.array([5])], [np.array([2, 0, 1]), [], [3]])
    assert grouped.count.tolist() == [[1, 2], [0, 0], [1, 0]]
    assert grouped.gain.tolist() == [[2, 1], [0, 0], [3, 0]]


@given(seed=st.integers(0, 10_000), queries=st.integers(0, 5), places=st.integers(1, 40), most=st.integers(0, 5))
def test_measures_without_ties_are_those_of_buckets_of_one_photo(seed, queries, places, most):
    random = np.random.default_rng(seed)
    gains = random.integers(0, most + 1, (queries, places)).astype(np.uint16)
    possible = random.integers(0, places + 1, queries).astype(np.float64)
    buckets = in_groups(np.tile(np.arange(places), (queries, 1)), gains)
    for divisor in (None, possible):
        for weighted in (False, True):
            expected = measures.expected_average_precision(buckets, places, divisor, weighted=weighted)
            ours = measures.expected_average_precision(gains, places, divisor, weighted=weighted)
            assert ours == pytest.approx(expected, abs=1e-12)
    assert measures.discounted_gain(gains, places) == pytest.approx(measures.discounted_gain(buckets, places))
    assert measures.average_gain(gains, places) == pytest.approx(measures.average_gain(buckets, places))
    at = tuple(sorted({1, min(10, places), places}))
    assert measures.precision_at(gains, at) == pytest.approx(measures.precision_at(buckets, at))
