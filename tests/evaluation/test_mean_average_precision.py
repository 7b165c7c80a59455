"""The one number that most people look at first, against a naive ranking."""

from itertools import permutations

import numpy as np
import pytest

from hyphash import average_precision
from hyphash.codes import Codes
from hyphash.evaluation import Rankings, mean_average_precision
from hyphash.quantizer import Quantizer


def naive_precision(relevant, top):
    """Of one ranking, divided by the relevant photos that could be found."""
    hits = [rank for rank, hit in enumerate(relevant[:top], 1) if hit]
    return sum(i / rank for i, rank in enumerate(hits, 1)) / max(min(sum(relevant), top), 1)


def naive(distances, relevant, top):
    """The mean over all orders of photos at the same distance."""
    orders = [
        order for order in permutations(range(len(distances))) if list(distances[list(order)]) == sorted(distances)
    ]
    return np.mean([naive_precision(relevant[list(order)], top) for order in orders])


@pytest.mark.parametrize("top", [1, 3, 6, 100])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_mean_over_queries_and_over_the_orders_of_ties(seed, top):
    rng = np.random.default_rng(seed)
    queries, database = (Codes.from_bits(rng.random((n, 3)) > 0.5) for n in (4, 6))
    query_labels, labels = (rng.integers(0, 2, (n, 4), dtype=np.uint8) for n in (4, 6))
    relevant, distances = query_labels @ labels.T > 0, queries.distances(database)
    expected = np.mean([naive(d, r, top) for d, r in zip(distances, relevant, strict=True)])
    ours = mean_average_precision(Rankings(queries, database, query_labels, labels), top=top, protocol="strict")
    assert ours == pytest.approx(expected, abs=1e-9)


def test_it_is_what_the_public_measure_says():
    rng = np.random.default_rng(0)
    queries, database = (Codes.from_bits(rng.random((n, 12)) > 0.5) for n in (20, 300))
    query_labels, labels = ((rng.random((n, 9)) < 0.2).astype(np.uint8) for n in (20, 300))
    public = average_precision(
        queries.distances(database), query_labels @ labels.T > 0, top=50, average_over="possible", ties="expected"
    )
    ours = mean_average_precision(Rankings(queries, database, query_labels, labels), top=50, protocol="strict")
    assert ours == pytest.approx(public.mean(), abs=1e-9)


def test_many_shared_labels_do_not_overflow():
    codes, labels = Codes.from_bits(np.zeros((3, 8), np.bool_)), np.ones((3, 300), np.uint8)  # 300 in common, not 44
    assert mean_average_precision(Rankings(codes, codes, labels, labels), top=3, protocol="strict") == pytest.approx(1)


@pytest.mark.parametrize("top", [3, 40, 100])
def test_with_a_quantiser_photos_are_ranked_by_its_tables(top):
    rng = np.random.default_rng(0)
    quantizer = Quantizer(rng.normal(size=(2, 256, 3)), bits=12)
    queries, points = rng.normal(size=(5, 6)), rng.normal(size=(40, 6))
    database = quantizer.encode(points)
    query_labels, labels = ((rng.random((n, 4)) < 0.4).astype(np.uint8) for n in (5, 40))
    squared = ((queries[:, None] - quantizer.decode(database)[None]) ** 2).sum(2)
    order = np.argsort(squared, axis=1, kind="stable")
    relevant = query_labels @ labels.T > 0
    expected = np.mean([naive_precision(row[by], top) for row, by in zip(relevant, order, strict=True)])
    score = mean_average_precision(
        Rankings(quantizer.encode(queries), database, query_labels, labels, query_outputs=queries, quantizer=quantizer),
        top=top,
        protocol="strict",
    )
    assert score == pytest.approx(expected, abs=1e-9)
