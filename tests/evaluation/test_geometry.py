"""Distances within and between label sets, and how bits are used."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyphash.codes import Codes
from hyphash.evaluation import geometry
from hyphash.evaluation.geometry import bit_use, distinct_rows, label_sets, nearest_unrelated, separation


def naive_separation(signs: np.ndarray, labels: np.ndarray) -> tuple[float | None, float | None, int]:
    clusters: dict[tuple[int, ...], list[np.ndarray]] = {}
    for sign, row in zip(signs, labels.tolist(), strict=True):
        if any(row):
            clusters.setdefault(tuple(row), []).append(sign)
    centres = {row: np.mean(members, axis=0) for row, members in clusters.items()}
    intra = [np.linalg.norm(member - centres[row]) for row, members in clusters.items() for member in members]
    inter = []
    for row, centre in centres.items():
        unrelated = [other for key, other in centres.items() if not np.dot(row, key)]
        if unrelated:
            inter.append(min(np.linalg.norm(centre - other) for other in unrelated))
    return np.mean(intra) if intra else None, np.mean(inter) if inter else None, len(clusters)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), photos=st.integers(0, 80), classes=st.integers(1, 9))
def test_separation_matches_its_definition(seed, photos, classes):
    random = np.random.default_rng(seed)
    codes = Codes.from_bits(random.random((photos, 6)) < 0.5)
    labels = (random.random((photos, classes)) < 0.3).astype(np.uint8)
    ours = separation(codes, labels)
    d_intra, d_inter, clusters = naive_separation(codes.signs().astype(float), labels)
    assert ours.d_intra == (d_intra if d_intra is None else pytest.approx(d_intra, abs=1e-9))
    assert ours.d_inter == (d_inter if d_inter is None else pytest.approx(d_inter, abs=1e-9))
    assert ours.clusters == clusters


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), bits=st.integers(1, 256), spread=st.sampled_from([0, 1e-9, 1e-4, 1]))
def test_the_nearest_unrelated_centre_is_found_among_many_nearly_as_near(seed, bits, spread):
    random = np.random.default_rng(seed)
    centres = random.uniform(-1, 1, bits) * 0.5 + spread * random.uniform(-0.5, 0.5, (60, bits))
    sets = np.unique((random.random((60, 8)) < 0.3).astype(np.uint8), axis=0)
    centres = centres[: len(sets)]
    apart = np.linalg.norm(centres[:, None] - centres[None], axis=2)
    apart[sets @ sets.T > 0] = np.inf
    expected = apart.min(axis=1)
    np.testing.assert_array_equal(nearest_unrelated(centres, sets), expected[np.isfinite(expected)])


def test_small_blocks_change_nothing(monkeypatch):
    random = np.random.default_rng(0)
    codes = Codes.from_bits(random.random((300, 20)) < 0.5)
    labels = (random.random((300, 12)) < 0.2).astype(np.uint8)
    whole, use = separation(codes, labels), bit_use(codes)
    monkeypatch.setattr(geometry, "PAIRS", 50)
    monkeypatch.setattr(geometry, "ROWS", 7)
    parts = separation(codes, labels)
    assert parts.d_intra == pytest.approx(whole.d_intra, abs=1e-12)
    assert parts.d_inter == pytest.approx(whole.d_inter, abs=1e-12)
    assert bit_use(codes) == use


@pytest.mark.parametrize(("bits", "d_intra", "d_inter"), [(12, 1.93, 1.50), (48, 4.07, 4.85)])
def test_flickr25k_codes_lie_as_far_apart_as_known(shared_data, flickr_labels, bits, d_intra, d_inter):
    outputs = np.load(shared_data / "flickr25k" / f"outputs_{bits}.npz")
    ours = separation(Codes.from_outputs(outputs["database"]), flickr_labels[outputs["database_rows"]])
    assert ours.d_intra == pytest.approx(d_intra, abs=0.005)
    assert ours.d_inter == pytest.approx(d_inter, abs=0.005)


def test_bit_use_counts_what_bits_say():
    random = np.random.default_rng(1)
    bits = random.random((500, 7)) < [0.5, 0.1, 0.9, 0.3, 0.5, 0, 1]
    bits[:, 4] = bits[:, 0] ^ (random.random(500) < 0.1)
    use = bit_use(Codes.from_bits(bits))
    assert use.balance == pytest.approx(bits.mean(axis=0))
    assert use.constant == 2
    assert use.distinct == len({tuple(row) for row in bits.tolist()})
    correlation = np.abs(np.corrcoef(bits[:, :5].T))
    assert use.correlation == pytest.approx(correlation[~np.eye(5, dtype=bool)].mean())


def test_one_bit_and_no_photos_have_no_correlation():
    assert bit_use(Codes.from_bits([[1], [0]])).correlation is None
    empty = bit_use(Codes.empty(9))
    assert (empty.distinct, empty.correlation, len(empty.balance)) == (0, None, 9)


def test_label_sets_say_which_photo_has_which():
    labels = (np.random.default_rng(2).random((50, 11)) < 0.2).astype(np.uint8)
    sets, which = label_sets(labels)
    assert np.array_equal(sets[which], labels)
    assert len(sets) == len({tuple(row) for row in labels.tolist()})


@pytest.mark.parametrize("size", [0, 1, 3, 8, 9, 20])
def test_distinct_rows_are_those_of_a_set_in_order(size):
    rows = np.random.default_rng(3).integers(0, 2, (40, size), np.uint8) * np.uint8(200)
    distinct, which = distinct_rows(rows)
    assert distinct.tolist() == sorted(map(list, {tuple(row) for row in rows.tolist()}))
    assert np.array_equal(distinct[which], rows)
