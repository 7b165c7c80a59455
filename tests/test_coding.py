"""Code theory against published values, bounds, exhaustive search and naive twins."""

import csv
from itertools import combinations_with_replacement
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyphash.coding import (
    TABLE_BITS,
    TABLE_DIMENSION,
    bits_for_all_label_sets,
    capacity,
    codebook,
    dimension,
    in_table,
    least_distance,
    margin,
    minimum_distance,
)
from hyphash.errors import ConfigError

TABLE = [(bits, k) for k in range(1, TABLE_DIMENSION + 1) for bits in range(k, TABLE_BITS + 1)]
HADAMARD = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 64, 100, 128, 256)
PUBLISHED_MARGINS = {  # at 12, 16, 24, 32, 36, 48, 64 bits
    (20, 21): (0.333, 0, 0, 0, 0.056, 0, 0),
    (38,): (0.333, 0.25, 0.167, 0, 0.111, 0, 0),
    (80, 81): (0.333, 0.25, 0.167, 0.125, 0.111, 0.083, 0),
}


@pytest.mark.parametrize(
    ("classes", "bits", "published"),
    [
        (classes, bits, published)
        for several, values in PUBLISHED_MARGINS.items()
        for classes in several
        for bits, published in zip((12, 16, 24, 32, 36, 48, 64), values, strict=True)
    ],
)
def test_margins_are_those_of_the_paper(classes, bits, published):
    assert round(margin(classes=classes, bits=bits), 3) == published


def test_margin_is_negative_for_few_classes():
    assert margin(classes=2, bits=12) == -1  # a word and its complement
    assert margin(classes=3, bits=12) == pytest.approx(1 - 16 / 12)


@pytest.mark.parametrize("bits", [1, 2, 5])
def test_where_classes_outnumber_codewords_the_distance_counts_as_one(bits):
    assert minimum_distance(bits, bits + 1) == 1
    assert margin(classes=2**bits + 1, bits=bits) == 1 - 2 / bits


@given(st.integers(1, 10**9))
def test_dimension_is_the_least_that_numbers_all_classes(classes):
    k = dimension(classes)
    assert 2**k >= classes
    assert k == 1 or 2 ** (k - 1) < classes


def test_the_table_agrees_with_the_published_one(shared_data):
    with (shared_data / "coding" / "minimum_distance.csv").open() as file:
        rows = [tuple(map(int, row)) for row in list(csv.reader(file))[1:]]
    assert {(bits, k) for bits, k, _ in rows} == set(TABLE)
    for bits, k, distance in rows:
        assert minimum_distance(bits, k) == distance


@pytest.mark.parametrize(
    ("bits", "k"), [(bits, k) for k in (1, 2, 3) for bits in range(k, 10)] + [(5, 4), (6, 4), (7, 4)]
)
def test_short_codes_are_the_best_that_exhaustive_search_finds(bits, k):
    messages = np.arange(1, 2**k)
    odd = np.bitwise_count(messages[:, None] & messages) % 2  # [column, message]
    columns = np.array(list(combinations_with_replacement(range(2**k - 1), bits)))
    weights = odd[columns].sum(1)  # of every word of every code: the order of the columns does not matter
    assert minimum_distance(bits, k) == weights.min(1).max()


@pytest.mark.parametrize("k", range(2, TABLE_DIMENSION + 1))
def test_simplex_and_reed_muller_codes_are_in_the_table(k):
    assert minimum_distance(2**k - 1, k) == 2 ** (k - 1)
    assert minimum_distance(2 ** (k - 1), k) == 2 ** (k - 2)
    assert minimum_distance(k + 1, k) == 2  # one parity bit
    assert minimum_distance(k, k) == 1


@pytest.mark.parametrize(
    ("bits", "k", "distance"), [(7, 4, 3), (8, 4, 4), (15, 5, 7), (15, 7, 5), (31, 6, 15), (17, 8, 6)]
)
def test_famous_codes_are_in_the_table(bits, k, distance):
    assert minimum_distance(bits, k) == distance


def test_no_code_of_the_table_breaks_a_bound():
    for bits, k in TABLE:
        d = minimum_distance(bits, k)
        assert 1 <= d <= bits - k + 1  # Singleton
        assert sum(-(-d // 2**i) for i in range(k)) <= bits  # Griesmer
        assert d * (2**k - 1) <= bits * 2 ** (k - 1)  # Plotkin: the mean distance is no larger


def test_the_table_grows_as_codes_do():
    for bits, k in TABLE:
        d = minimum_distance(bits, k)
        if bits == TABLE_BITS:
            continue
        longer = minimum_distance(bits + 1, k)
        assert longer in (d, d + 1)
        assert d % 2 == 0 or longer == d + 1  # a parity bit lengthens every odd distance
        if k < TABLE_DIMENSION and k < bits:
            assert minimum_distance(bits, k + 1) <= d  # a subcode is no worse


def naive_gilbert_varshamov(n, k):
    """The largest d for which Σ_{i=0}^{d−2} (n−1 choose i) < 2^(n−k)."""
    return max(d for d in range(1, n + 1) if sum(comb(n - 1, i) for i in range(d - 1)) < 2 ** (n - k))


@pytest.mark.parametrize(("bits", "k"), [(257, 3), (300, 8), (12, 9), (64, 10), (256, 9), (20, 20), (40, 39), (300, 1)])
def test_beyond_the_table_it_is_the_gilbert_varshamov_bound(bits, k):
    assert not in_table(bits, k)
    assert minimum_distance(bits, k) == naive_gilbert_varshamov(bits, k)


def test_the_table_is_nowhere_below_what_gilbert_and_varshamov_guarantee():
    for bits, k in TABLE[::97]:
        assert in_table(bits, k)
        assert minimum_distance(bits, k) >= naive_gilbert_varshamov(bits, k)


@pytest.mark.parametrize("wrong", [(0, 1), (1, 0), (-3, 2)])
def test_codes_without_bits_or_words_are_refused(wrong):
    with pytest.raises(ConfigError, match="at least one bit and one dimension"):
        minimum_distance(*wrong)


@pytest.mark.parametrize("wrong", [{"classes": 0, "bits": 3}, {"classes": 3, "bits": 0}, {"classes": -1, "bits": 3}])
@pytest.mark.parametrize("function", [margin, capacity, codebook])
def test_nothing_is_made_of_no_classes_or_no_bits(function, wrong):
    with pytest.raises(ConfigError, match="at least one"):
        function(**wrong)


def naive_capacity(classes, bits):
    """By recurrence, not by formula: a new sphere cuts as many cells as it meets, one dimension lower."""
    row = [2 * c for c in range(1, classes + 1)]  # one dimension, 1 … C spheres
    for _ in range(bits - 1):
        lower, row = row, [2]
        for c in range(1, classes):
            row.append(row[-1] + lower[c - 1])
    return row[-1]


@given(classes=st.integers(1, 60), bits=st.integers(1, 70))
def test_capacity_agrees_with_its_recurrence(classes, bits):
    assert capacity(classes=classes, bits=bits) == naive_capacity(classes, bits)


@given(classes=st.integers(1, 300), bits=st.integers(1, 300))
def test_all_label_sets_are_kept_apart_if_and_only_if_classes_are_at_most_bits_and_one(classes, bits):
    value = capacity(classes=classes, bits=bits)
    assert value <= 2**classes
    assert (value == 2**classes) == (classes <= bits + 1)


@given(st.integers(1, 300))
def test_bits_for_all_label_sets_are_enough_and_the_least(classes):
    bits = bits_for_all_label_sets(classes)
    assert capacity(classes=classes, bits=bits) == 2**classes
    assert bits == 1 or capacity(classes=classes, bits=bits - 1) < 2**classes


def test_capacity_is_exact_for_numbers_of_any_size():
    value = capacity(classes=2000, bits=256)
    assert isinstance(value, int)
    assert value == comb(1999, 256) + sum(comb(2000, k) for k in range(257))
    assert capacity(classes=38, bits=12) == comb(37, 12) + sum(comb(38, k) for k in range(13))


@pytest.mark.parametrize("bits", [1, 2, 3, 7, 12, 13, 36, 64, 100])
@pytest.mark.parametrize("classes", [1, 2, 3, 8, 20, 38, 81, 256])
def test_a_codebook_is_a_table_of_signs(classes, bits):
    book = codebook(classes=classes, bits=bits)
    assert book.shape == (classes, bits)
    assert book.dtype == np.int8
    assert set(np.unique(book)) <= {-1, 1}


def test_a_codebook_is_always_the_same_and_cannot_be_spoilt():
    first = codebook(classes=38, bits=13)
    codebook.cache_clear()
    second = codebook(classes=38, bits=13)
    assert first is not second
    np.testing.assert_array_equal(first, second)
    with pytest.raises(ValueError, match="read-only"):
        second[0, 0] = 0


def test_a_known_codebook_has_not_changed():
    """Codes of trained runs aim at these words: another order or sign would break them."""
    words = {
        bits: ["".join("-+"[int(sign > 0)] for sign in word) for word in codebook(classes=5, bits=bits)]
        for bits in (7, 8)
    }
    assert words == {
        7: ["+++++++", "-++---+", "+-+--+-", "--+++--", "++--+--"],
        8: ["++++++++", "+-+-+-+-", "++--++--", "-++--++-", "++++----"],
    }


@pytest.mark.parametrize("bits", HADAMARD)
def test_up_to_as_many_classes_as_bits_hadamard_words_are_orthogonal(bits):
    for classes in {max(3, bits // 3), bits - 1, bits} & set(range(3, bits + 1)):
        words = codebook(classes=classes, bits=bits).astype(np.int64)
        np.testing.assert_array_equal(words @ words.T, bits * np.eye(classes, dtype=np.int64))


@pytest.mark.parametrize("bits", HADAMARD)
def test_up_to_twice_as_many_classes_hadamard_words_are_half_apart_or_opposite(bits):
    words = codebook(classes=2 * bits, bits=bits).astype(np.int64)
    distances = (bits - words @ words.T) // 2
    assert set(np.unique(distances)) <= {0, bits // 2, bits}
    assert (distances == 0).sum() == 2 * bits  # each with itself alone
    assert (distances == bits).sum() == 2 * bits  # each with its opposite


@pytest.mark.parametrize("bits", [1, 2, 3, 7, 12, 13, 36, 64])
def test_two_classes_are_opposites(bits):
    assert least_distance(codebook(classes=2, bits=bits)) == bits


CLASSES = [*range(1, 41), 63, 64, 65, 80, 81, 127, 128, 129, 200, 255, 256]


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 7, 11, 12, 13, 16, 17, 23, 24, 36, 48, 64, 100, 255])
def test_codewords_are_at_least_two_thirds_as_far_apart_as_the_best_known(bits):
    for classes in CLASSES:
        if classes <= 2**bits:
            best = minimum_distance(bits, dimension(classes))
            assert least_distance(codebook(classes=classes, bits=bits)) >= 2 / 3 * best, classes


@pytest.mark.parametrize("bits", [7, 12, 36])
def test_every_number_of_classes_up_to_256_keeps_that_promise(bits):
    for classes in range(3, min(256, 2**bits) + 1):
        best = minimum_distance(bits, dimension(classes))
        assert least_distance(codebook(classes=classes, bits=bits)) >= 2 / 3 * best, classes


@pytest.mark.parametrize("bits", [1, 2, 3, 7, 11])
def test_as_many_classes_as_there_are_words_take_each_once(bits):
    book = codebook(classes=2**bits, bits=bits)
    assert len(np.unique(book, axis=0)) == 2**bits


@pytest.mark.parametrize(("classes", "bits"), [(3, 1), (5, 2), (9, 3), (300, 8)])
def test_classes_beyond_the_number_of_words_share_them_evenly(classes, bits):
    _, times = np.unique(codebook(classes=classes, bits=bits), axis=0, return_counts=True)
    assert len(times) == 2**bits
    assert times.max() - times.min() <= 1


@pytest.mark.parametrize(("classes", "bits"), [(1025, 11), (2000, 48)])
def test_very_many_classes_have_words_of_their_own(classes, bits):
    assert least_distance(codebook(classes=classes, bits=bits)) >= 1


@pytest.mark.parametrize("bits", [4, 7, 12, 13, 16, 20, 24, 32, 36, 48, 52, 64, 100, 128, 212, 255, 256])
def test_no_bit_is_the_same_for_all_classes(bits):
    for classes in [c for c in CLASSES if c >= 10]:
        sums = codebook(classes=classes, bits=bits).sum(axis=0, dtype=np.int64)
        assert (np.abs(sums) < classes).all(), classes


def test_least_distance_is_that_of_the_nearest_two():
    book = np.array([[1, 1, 1, 1], [1, 1, -1, -1], [-1, -1, -1, 1]], np.int8)
    assert least_distance(book) == 2
    assert least_distance(book[:1]) == 4
    assert least_distance(np.concatenate([book, book[:1]])) == 0
