"""The measures of each query against loops over sorted lists, and against expectations over all orders of ties."""

from itertools import permutations

import numpy as np
import pytest

from hyphash.codes import Codes
from hyphash.evaluation.measures import Protocol
from hyphash.evaluation.per_query import Scorer
from hyphash.evaluation.rankings import Rankings

OUTPUTS = np.array([[1, 2], [-1, 1], [2, 1], [-2, -1], [1, -1], [-1, -3]], np.float32)
LABELS = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1], [0, 0, 0], [1, 1, 1], [0, 0, 1]], np.uint8)
QUERIES = np.array([[3, 1], [-1, -2], [1, -2]], np.float32)
ASKED = np.array([[1, 1, 0], [0, 0, 1], [0, 0, 0]], np.uint8)

PROTOCOLS = [
    Protocol(top=top, average_over=average_over, ties=ties)
    for top in (3, None)
    for average_over in ("retrieved", "possible")
    for ties in ("by id", "expected")
]


@pytest.fixture
def scorer():
    return Scorer(
        Rankings(
            queries=Codes.from_outputs(QUERIES),
            database=Codes.from_outputs(OUTPUTS),
            query_labels=ASKED,
            database_labels=LABELS,
            query_outputs=QUERIES,
        )
    )


def distances(ranked_by):
    signs = np.where(OUTPUTS > 0, 1, -1)
    asked = np.where(QUERIES > 0, 1, -1) if ranked_by == "hamming" else QUERIES
    return -(asked @ signs.T)


def orders(row, ties):
    """The orders of the photos that a ranking stands for: by id, or all that put none before a nearer one."""
    if ties == "by id":
        return [sorted(range(len(row)), key=lambda photo: (row[photo], photo))]
    return [order for order in permutations(range(len(row))) if list(row[list(order)]) == sorted(row)]


def naive(gains, order, top, average_over):
    """Average precision, weighted average precision, NDCG, ACG and precision at the depth, of one order."""
    first = [int(gains[photo]) for photo in order][:top]
    hits = [rank for rank, gain in enumerate(first, 1) if gain]
    relevant = sum(gain > 0 for gain in gains)
    divisor = len(hits) if average_over == "retrieved" else min(len(first), relevant)
    precisions = [sum(gain > 0 for gain in first[:rank]) / rank for rank in hits]
    weighted = [sum(first[:rank]) / rank for rank in hits]

    def discounted(values):
        return sum((2**gain - 1) / np.log2(rank + 1) for rank, gain in enumerate(values, 1))

    best = discounted(sorted(gains.tolist(), reverse=True)[:top])
    return [
        sum(precisions) / max(divisor, 1),
        sum(weighted) / max(divisor, 1),
        discounted(first) / best if best else 0,
        sum(first) / len(first),
        len(hits) / len(first),
    ]


@pytest.mark.parametrize("ranked_by", ["hamming", "asymmetric"])
def test_all_measures_are_the_mean_over_the_orders_of_ties(scorer, ranked_by):
    measured = scorer.measured(ranked_by, PROTOCOLS)
    assert list(measured.results) == PROTOCOLS
    gains, rows = ASKED.astype(int) @ LABELS.T.astype(int), distances(ranked_by)
    for protocol, result in measured.results.items():
        for query, row in enumerate(rows):
            each = [naive(gains[query], o, protocol.top, protocol.average_over) for o in orders(row, protocol.ties)]
            ours = [values[query] for values in (result.average_precision, result.weighted, result.ndcg, result.gain)]
            assert [*ours, result.precision[query, -1]] == pytest.approx(np.mean(each, axis=0).tolist()), protocol
        assert scorer.depths(protocol)[-1] == (protocol.top or len(OUTPUTS))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_average_precision_alone_is_that_among_all_measures(scorer, protocol):
    alone = Scorer(scorer.rankings).average_precision(protocol)
    assert alone.tolist() == scorer.measured("hamming", [protocol]).results[protocol].average_precision.tolist()


@pytest.mark.parametrize("ranked_by", ["hamming", "asymmetric"])
def test_what_is_found_of_a_label_is_a_share_of_the_first_photos(scorer, ranked_by):
    found = scorer.measured(ranked_by, [Protocol.paper(3)]).found
    for query, row in enumerate(distances(ranked_by)):
        (order,) = orders(row, "by id")
        for label in range(3):
            if ASKED[query, label]:
                first = order[: min(3, LABELS[:, label].sum())]
                assert found[query, label] == pytest.approx(LABELS[first, label].mean())
            else:
                assert np.isnan(found[query, label])


def test_what_is_relevant_in_the_database(scorer):
    assert scorer.relevant.tolist() == (ASKED.astype(int) @ LABELS.T > 0).sum(axis=1).tolist()
