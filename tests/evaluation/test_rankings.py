"""Rankings against a twin that holds all distances and sorts them; the measures of each query against loops over sorted
lists, and against expectations over all orders of ties.
"""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyphash.codes import Codes
from hyphash.evaluation import measures, rankings
from hyphash.evaluation.measures import Protocol
from hyphash.evaluation.rankings import Rankings
from hyphash.losses.relevance import ClassGrades, Relevance


def drawn(seed, *, queries=5, photos=40, bits=4, classes=3):
    """Few bits, few labels and small whole outputs: ties everywhere, and float32 sums of them are exact."""
    random = np.random.default_rng(seed)
    database = random.integers(-2, 3, (photos, bits)).astype(np.float32)
    database_labels = (random.random((photos, classes)) < 0.3).astype(np.uint8)
    outputs = random.integers(-2, 3, (queries, bits)).astype(np.float32)
    labels = (random.random((queries, classes)) < 0.5).astype(np.uint8)
    return Rankings(
        queries=Codes.from_outputs(outputs),
        database=Codes.from_outputs(database),
        query_labels=labels,
        database_labels=database_labels,
        query_outputs=outputs,
    )


def naive(found, ranked_by):
    """For each query all photos that it can find as (distance, id), nearest first, and its gain of each by id."""
    signs = found.database.signs().astype(int)
    asked = found.queries.signs().astype(int) if ranked_by == "hamming" else found.query_outputs.astype(int)
    gains = found.query_labels.astype(int) @ found.database_labels.T.astype(int)
    orders = [sorted((-int(score), photo) for photo, score in enumerate(row)) for row in asked @ signs.T]
    return orders, gains


def naive_buckets(values, gains):
    """(count, relevant, gain) of each run of equal values."""
    runs = {}
    for value, gain in zip(values, gains, strict=True):
        runs.setdefault(value, []).append(gain)
    return [(len(run), sum(gain > 0 for gain in run), sum(run)) for run in runs.values()]


def buckets(histogram, query):
    rows = zip(histogram.count[query], histogram.relevant[query], histogram.gain[query], strict=True)
    return [tuple(map(int, row)) for row in rows if row[0]]


cases = given(
    seed=st.integers(0, 10_000),
    depth=st.integers(1, 39),
    ranked_by=st.sampled_from(["hamming", "asymmetric"]),
)


@cases
def test_the_first_places_are_those_of_a_sorted_list(seed, depth, ranked_by):
    found = drawn(seed)
    orders, gains = naive(found, ranked_by)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rankings, "PLACES", 2 * depth)  # two queries a block
        blocks = list(found.first(ranked_by, depth))
    assert [(block.rows.start, block.rows.stop) for block in blocks] == [(0, 2), (2, 4), (4, 5)]
    for block in blocks:
        for row, query in enumerate(range(block.rows.start, block.rows.stop)):
            photos = [photo for _, photo in orders[query][:depth]]
            assert block.gains[row].tolist() == gains[query, photos].tolist()
            for label in range(3):
                carried = block.carrying(row, label, depth // 2)
                assert carried.tolist() == (found.database_labels[photos[: depth // 2], label] > 0).tolist()


@cases
def test_ties_reach_to_the_last_photo_that_shares_the_last_place(seed, depth, ranked_by):
    found = drawn(seed)
    orders, gains = naive(found, ranked_by)
    for block in found.first(ranked_by, depth):
        assert (block.tied is None) == (ranked_by == "hamming")
        for query in range(len(orders)) if block.tied else ():
            last = orders[query][depth - 1][0]
            tied = [(value, gains[query, photo]) for value, photo in orders[query] if value <= last]
            expected = naive_buckets(*zip(*tied, strict=True))
            assert buckets(block.tied, query) == expected


@given(seed=st.integers(0, 10_000))
def test_all_photos_by_distance(seed):
    found = drawn(seed)
    orders, gains = naive(found, "hamming")
    for query, order in enumerate(orders):
        expected = naive_buckets([value for value, _ in order], [gains[query, photo] for _, photo in order])
        assert buckets(found.histogram, query) == expected


@given(seed=st.integers(0, 10_000))
def test_the_ideal_order_has_the_largest_gains_first(seed):
    found = drawn(seed)
    orders, gains = naive(found, "hamming")
    ideal = found.ideal
    for query, order in enumerate(orders):
        best = sorted((int(gains[query, photo]) for _, photo in order), reverse=True)
        assert buckets(ideal, query) == naive_buckets(best, best)
    single = -np.sort(-gains, axis=1)
    assert measures.discounted_gain(ideal, 7) == pytest.approx(measures.discounted_gain(single, 7))


def test_photos_with_a_label_are_counted():
    found = drawn(1)
    assert found.photos_with_label.tolist() == found.database_labels.sum(axis=0).tolist()
    assert found.kinds == ("hamming", "asymmetric")


def test_relevance_of_one_s_own_is_what_is_measured():
    """Two classes that are as relevant to each other as to themselves are one class."""
    found, group = drawn(3, photos=60), np.array([[1, 0], [1, 0], [0, 1]])
    wanted, offered = (np.uint8(labels @ group > 0) for labels in (found.query_labels, found.database_labels))
    merged, table = replace(found, query_labels=wanted, database_labels=offered), ClassGrades(group @ group.T)
    for relevance in (table, Relevance(lambda labels, others: (table.gains(labels, others) > 0).float())):
        asked = replace(found, relevance=relevance)
        assert np.array_equal(asked.histogram.relevant, merged.histogram.relevant)
        assert not np.array_equal(asked.histogram.relevant, found.histogram.relevant)
        for mine, theirs in zip(asked.first("asymmetric", 7), merged.first("asymmetric", 7), strict=True):
            assert np.array_equal(mine.gains > 0, theirs.gains > 0)
        assert np.array_equal(asked.ideal.relevant.sum(1), merged.ideal.relevant.sum(1))


def test_graded_relevance_is_the_gain():
    found, grades = drawn(4), np.array([[3, 1, 0], [1, 2, 0], [0, 0, 1]])
    table = ClassGrades(grades)
    gains = table(*(torch.from_numpy(labels).float() for labels in (found.query_labels, found.database_labels)))
    histogram = replace(found, relevance=table).histogram
    assert histogram.gain.sum(1).tolist() == gains.sum(1).tolist()
    assert histogram.exp_gain.sum(1).tolist() == (2**gains - 1).sum(1).tolist()


# ── measures of each query ───────────────────────────────────────────────────────────────────────────────

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
def three():
    return Rankings(
        queries=Codes.from_outputs(QUERIES),
        database=Codes.from_outputs(OUTPUTS),
        query_labels=ASKED,
        database_labels=LABELS,
        query_outputs=QUERIES,
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


def by_hand(gains, order, top, average_over):
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
def test_all_measures_are_the_mean_over_the_orders_of_ties(three, ranked_by):
    measured = three.measured(ranked_by, PROTOCOLS)
    assert list(measured.results) == PROTOCOLS
    gains, rows = ASKED.astype(int) @ LABELS.T.astype(int), distances(ranked_by)
    for protocol, result in measured.results.items():
        for query, row in enumerate(rows):
            each = [by_hand(gains[query], o, protocol.top, protocol.average_over) for o in orders(row, protocol.ties)]
            ours = [values[query] for values in (result.average_precision, result.weighted, result.ndcg, result.gain)]
            assert [*ours, result.precision[query, -1]] == pytest.approx(np.mean(each, axis=0).tolist()), protocol
        assert three.depths(protocol)[-1] == (protocol.top or len(OUTPUTS))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_average_precision_alone_is_that_among_all_measures(three, protocol):
    alone = replace(three).average_precision(protocol)
    assert alone.tolist() == three.measured("hamming", [protocol]).results[protocol].average_precision.tolist()


@pytest.mark.parametrize("ranked_by", ["hamming", "asymmetric"])
def test_what_is_found_of_a_label_is_a_share_of_the_first_photos(three, ranked_by):
    found = three.measured(ranked_by, [Protocol.preset("paper", 3)]).found
    for query, row in enumerate(distances(ranked_by)):
        (order,) = orders(row, "by id")
        for label in range(3):
            if ASKED[query, label]:
                first = order[: min(3, LABELS[:, label].sum())]
                assert found[query, label] == pytest.approx(LABELS[first, label].mean())
            else:
                assert np.isnan(found[query, label])


def test_what_is_relevant_in_the_database(three):
    assert three.relevant.tolist() == (ASKED.astype(int) @ LABELS.T > 0).sum(axis=1).tolist()
