"""What a label layer is worth: laws, and naive twins of the formulas."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyphash.evaluation.labelling import average_precisions, calibration_error, labelling
from hyphash.labels import Calibration, sigmoid


@given(st.integers(0, 10_000), st.integers(2, 30))
def test_average_precision_is_its_definition(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    scores, carried = rng.integers(0, 5, (n, 2)), rng.random((n, 2)) < 0.4
    for label, found in enumerate(average_precisions(scores, carried)):
        order = sorted(range(n), key=lambda i, label=label: (-scores[i, label], i))
        hits = [rank for rank, i in enumerate(order, 1) if carried[i, label]]
        if hits:
            assert found == pytest.approx(sum(i / rank for i, rank in enumerate(hits, 1)) / len(hits))
        else:
            assert np.isnan(found)


@given(st.integers(0, 10_000), st.integers(30, 200))
def test_calibration_error_is_the_mean_over_bins_of_equal_mass(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    p, carried = rng.random(n), rng.random(n) < 0.3
    order, naive = np.argsort(p), 0.0
    for i in range(15):
        rows = order[round(i * n / 15) : round((i + 1) * n / 15)]
        naive += len(rows) / n * abs(p[rows].mean() - carried[rows].mean())
    assert calibration_error(p, carried) == pytest.approx(naive)


def test_probabilities_that_mean_what_they_say_have_little_error_and_others_much() -> None:
    rng = np.random.default_rng(0)
    p = rng.random(100_000)
    carried = rng.random(100_000) < p
    assert calibration_error(p, carried) < 0.01
    assert calibration_error(p**2, carried) > 0.1
    assert calibration_error(np.zeros(3), np.ones(3, bool)) == 1


def world(n: int, seed: int, noise: float = 1.0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(-1, 2, (n, 4)).astype(np.float32)
    carried = rng.random((n, 4)) < sigmoid(logits)
    return (logits + rng.normal(0, noise, logits.shape)).astype(np.float32), carried


def test_all_of_a_layer_is_measured() -> None:
    logits, labels = zip(world(500, 0), world(1500, 1), strict=True)
    found = labelling(logits, labels, Calibration.of(logits[0], labels[0]))
    assert found.average_precision == pytest.approx(average_precisions(logits[0], labels[0]))
    assert found.macro == pytest.approx(np.mean(found.average_precision))
    assert found.micro == pytest.approx(average_precisions(logits[0].reshape(-1, 1), labels[0].reshape(-1, 1))[0])
    assert found.pairs == 6
    assert [name for name, _, _ in found.rows()][-1] == "precision of the top 100, two labels"
    assert 0.5 < found.two < found.one <= 1
    naive = []
    for label in range(4):
        stored = Calibration.of(logits[0], labels[0])
        best = np.argsort(-stored.unpack(stored.pack(logits[1]))[:, label], kind="stable")[:100]
        naive.append(labels[1][best, label].mean())
    assert found.one == pytest.approx(np.mean(naive))


def test_better_logits_are_worth_more() -> None:
    def measured(noise: float) -> Any:
        logits, labels = zip(world(500, 0, noise), world(1500, 1, noise), strict=True)
        return labelling(logits, labels, Calibration.of(logits[0], labels[0]))

    good, bad = measured(0.1), measured(3.0)
    for name in ("macro", "micro", "one", "two"):
        assert getattr(good, name) > getattr(bad, name)
    assert good.error < bad.error


def test_what_cannot_be_measured_is_none() -> None:
    labels = np.zeros((20, 3))
    labels[:5, 0] = 1
    logits = np.full((20, 3), -3.0, np.float32)
    found = labelling((logits, logits), (labels, labels), Calibration.of(logits, labels))
    assert found.average_precision[1:] == (None, None)
    assert (found.two, found.pairs, found.error_of_sure) == (None, 0, None)
