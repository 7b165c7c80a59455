"""Scores of labels: photo by photo in a store, label by label in a snapshot, and nothing lost between."""

import numpy as np
import pytest
from drawing import random_codes

from hyphash.labels import ENTRY, KEPT, Calibration
from hyphash.searchers import LabelTerm
from hyphash.searchers.local.scores import LISTED, LabelScores, features_of, numbers_at, to_plane


def packed(count: int, labels: int) -> np.ndarray:
    half = np.full(labels, 0.5, np.float32)
    return Calibration(half, half).pack(np.random.default_rng(labels).normal(0, 4, (count, labels)).astype(np.float32))


@pytest.mark.parametrize("count", [0, 1, 2, 7])
@pytest.mark.parametrize("labels", [1, 2, 5, 38, 64, 65, 300])
def test_what_photos_store_comes_back(count: int, labels: int) -> None:
    rows = packed(count, labels)
    scores = LabelScores.of(rows)
    assert scores.packed.tolist() == (rows.tolist() if count else [])
    assert scores.count == count
    if labels == 38 and count == 2:
        assert sum(tensor.nbytes for tensor in scores.tensors.values()) == 38  # 19 bytes a photo


def test_a_part_without_scores_has_the_lowest() -> None:
    rows = packed(3, 5)
    joined = LabelScores.of(np.empty((2, 0), np.uint8), rows)
    assert joined.packed.tolist() == [[0] * 3, [0] * 3, *rows.tolist()]
    nothing = LabelScores(3, {})
    assert nothing.plane(LabelTerm("dog", 7), lambda: random_codes(3)).tolist() == [0, 0]


@pytest.mark.parametrize("count", [1, 8, 9])
def test_a_plane_has_the_score_of_each_photo(count: int) -> None:
    numbers = np.random.default_rng(count).integers(0, 16, count).astype(np.uint8)
    assert numbers_at(to_plane(numbers), np.arange(count)).tolist() == numbers.tolist()


def test_listed_labels_have_a_byte_a_photo() -> None:
    rows = packed(9, 300)
    assert rows.shape[1] == LISTED
    scores, entries = LabelScores.of(rows), np.ascontiguousarray(rows).view(ENTRY)
    for label in (0, 120, 299):
        term = LabelTerm("dog", label, np.linspace(-8, 8, 256, dtype=np.float32), unkept=3)
        plane = scores.plane(term, lambda: random_codes(9))
        naive = [next((int(s) for n, s in row if n == label), 3) for row in entries.tolist()]
        assert numbers_at(plane, np.arange(9), 256).tolist() == naive
    assert entries.shape == (9, KEPT)


def test_a_fitted_label_follows_from_bits_and_other_scores() -> None:
    rows, codes = packed(70, 4), random_codes(70)
    features = features_of(codes, rows)
    assert features.shape == (70, 20 + 4)
    assert np.abs(features).max() == 1
    weights = np.random.default_rng(1).normal(size=25).astype(np.float32)
    logits = features @ weights[:-1] + weights[-1]
    for levels in (16, 256):
        scores = LabelScores.of(rows)
        term = LabelTerm("new", weights.tobytes(), np.linspace(-8, 8, levels, dtype=np.float32))
        plane = scores.plane(term, lambda: codes)
        found = term.logits[numbers_at(plane, np.arange(70), levels)]
        assert np.abs(found - np.clip(logits, -8, 8)).max() <= 16 / (levels - 1) / 2 + 1e-4
        assert scores.plane(term, lambda: codes) is plane  # it is kept
