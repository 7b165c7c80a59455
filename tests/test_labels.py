"""Logits of labels: fitted, packed into few bytes, and what they mean. Laws, and naive twins of the formulas."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize

from hyphash.errors import LabelError
from hyphash.labels import DENSE, KEPT, Calibration, best_threshold, fit_logistic, log_sigmoid, logit, platt, sigmoid


def calibration(labels: int, **changes: Any) -> Calibration:
    rising = np.linspace(0.01, 0.4, labels, dtype=np.float32)
    given = {
        "thresholds": np.full(labels, 0.3, np.float32),
        "priors": rising,
        "lowest": -8 + rising,
        "highest": 6 - rising,
    }
    return Calibration(**given | changes)


def some_logits(n: int, labels: int) -> Any:
    return (np.random.default_rng(labels).normal(size=(n, labels)) * 4 - 2).astype(np.float32)


def test_probabilities_and_their_logarithms_hold_at_any_size() -> None:
    logits = np.array([-1000.0, -3.0, 0.0, 3.0, 1000.0])
    with np.errstate(all="raise", under="ignore"):
        assert_allclose(sigmoid(logits), [0, 1 / (1 + np.exp(3)), 0.5, 1 / (1 + np.exp(-3)), 1])
        assert_allclose(
            log_sigmoid(logits), [-1000, np.log(1 / (1 + np.exp(3))), np.log(0.5), -np.log1p(np.exp(-3)), 0]
        )
    assert_allclose(logit(sigmoid(logits[1:4])), logits[1:4])


@pytest.mark.parametrize("labels", [1, 2, 5, 38, DENSE])
def test_each_label_takes_four_bits_and_the_nearest_of_sixteen_values(labels: int) -> None:
    means, logits = calibration(labels), some_logits(50, labels)
    packed = means.pack(logits)
    assert (packed.dtype, packed.shape) == (np.uint8, (50, (labels + 1) // 2))
    assert means.width == packed.shape[1]
    for row, stored in zip(logits, packed, strict=True):
        for label, value in enumerate(row):
            number = stored[label // 2] >> (4 if label % 2 else 0) & 15
            assert number == np.abs(means.tables[label] - value).argmin()
    near = np.abs(means.unpack(packed) - logits.clip(means.lowest, means.highest))
    assert near.max() <= 14 / 15 / 2 + 1e-5
    assert_array_equal(means.pack(means.unpack(packed)), packed)


def test_of_many_labels_those_that_stand_out_are_kept_and_others_have_their_prior() -> None:
    labels = 300
    means, logits = calibration(labels), some_logits(20, labels)
    packed = means.pack(logits)
    assert packed.shape == (20, means.width) == (20, 3 * KEPT)
    found = means.unpack(packed)
    for row, entries, back in zip(logits, packed.reshape(20, KEPT, 3).astype(int), found, strict=True):
        kept = entries[:, 0] + 256 * entries[:, 1]
        best = sorted(range(labels), key=lambda label: -(sigmoid(row)[label] - means.priors[label]))[:KEPT]
        assert kept.tolist() == sorted(best)
        inside = row[kept].clip(means.lowest[kept], means.highest[kept])
        assert np.abs(back[kept] - inside).max() <= 14 / 255 / 2 + 1e-5
        others = np.setdiff1d(np.arange(labels), kept)
        assert_allclose(back[others], logit(means.priors)[others], rtol=1e-5)
    assert_array_equal(means.pack(found), packed)


def test_logits_of_a_damaged_network_are_not_stored() -> None:
    means = Calibration(thresholds=np.full(3, 0.5, np.float32), priors=np.full(3, 0.1, np.float32))
    with pytest.raises(LabelError, match="not numbers"):
        means.pack(np.array([[0.5, np.nan, 1.0]], np.float32))


def test_no_photos_pack_into_no_rows() -> None:
    for labels in (5, 300):
        means = calibration(labels)
        packed = means.pack(np.empty((0, labels), np.float32))
        assert packed.shape == (0, means.width)
        assert means.unpack(packed).shape == (0, labels)


def test_a_calibration_survives_its_arrays_and_needs_one_threshold_a_label() -> None:
    means = calibration(7)
    again = Calibration.from_arrays(means.arrays() | {"anchors": np.ones(3)})
    assert again is not None
    for field in ("thresholds", "priors", "lowest", "highest", "tables"):
        assert_array_equal(getattr(again, field), getattr(means, field))
    assert Calibration.from_arrays({"anchors": np.ones(3)}) is None
    with pytest.raises(LabelError, match="2 thresholds for 7 priors"):
        calibration(7, thresholds=np.ones(2, np.float32))


def test_logits_are_stored_where_those_of_a_label_lie() -> None:
    logits, labels = some_logits(3000, 4), np.zeros((3000, 4))
    labels[:300] = 1
    means = Calibration.of(logits, labels)
    assert_allclose(means.priors, 0.1, atol=1e-3)
    assert_allclose(means.tables[:, 0], np.log(0.1 / 0.9) - 2, atol=0.01)
    assert_allclose(means.tables[:, -1], np.quantile(logits, 0.9995, axis=0), rtol=1e-5)
    assert means.tables.shape == (4, 16)
    assert np.ptp(Calibration(means.thresholds, means.priors).tables) == 16  # where nothing is known of them


@pytest.mark.parametrize("prior", [1e-6, 10.0])
def test_platt_is_where_a_general_minimiser_ends(prior: float) -> None:
    rng = np.random.default_rng(3)
    logits = (rng.normal(size=(500, 2)) * 3).astype(np.float32)
    carried = rng.random((500, 2)) < sigmoid(logits * [0.5, 1.5] + [1, -1])
    found = np.stack(platt(logits, carried, prior=prior))
    for label in range(2):
        x, y = logits[:, label].astype(float), np.where(carried[:, label], 1, -1)

        def loss(w: Any, x: Any = x, y: Any = y) -> float:
            return float(np.log1p(np.exp(-y * (w[0] * x + w[1]))).sum() + prior / 2 * (w[0] - 1) ** 2)

        assert_allclose(found[:, label], minimize(loss, [1, 0]).x, atol=1e-2)


def test_platt_of_labels_that_all_or_none_carry_stays_finite() -> None:
    found = platt(some_logits(50, 2), np.tile([True, False], (50, 1)))
    assert np.isfinite(found).all()


def f1(probabilities: Any, carried: Any, threshold: float) -> float:
    said = probabilities >= threshold
    return float(2 * (said & carried).sum() / (said.sum() + carried.sum()))


@given(st.integers(0, 10_000), st.integers(25, 80))
def test_no_other_threshold_has_a_better_f1(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    probabilities, carried = rng.integers(1, 12, n) / 12, rng.random(n) < 0.9
    carried[:20] = True
    best = best_threshold(probabilities, carried)
    assert (
        f1(probabilities, carried, best) >= max(f1(probabilities, carried, t) for t in np.arange(0, 12.5) / 12) - 1e-12
    )


def test_few_carriers_say_nothing_about_a_threshold() -> None:
    assert best_threshold(np.linspace(0, 1, 100), np.arange(100) >= 90) == 0.5


def world(n: int = 400, width: int = 6, labels: int = 3) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    signs = np.sign(rng.normal(size=(n, width)))
    return signs, rng.random((n, labels)) < sigmoid(signs @ rng.normal(size=(width, labels)) - 1)


def test_the_logistic_layer_is_where_a_general_minimiser_ends() -> None:
    values, labels = world()
    layer = fit_logistic(values, labels, penalty=2.0)
    for label in range(3):
        y = np.where(labels[:, label], 1, -1)

        def loss(w: Any, y: Any = y) -> float:
            return float(np.log1p(np.exp(-y * (values @ w[:-1] + w[-1]))).sum() + (w[:-1] ** 2).sum())

        there = minimize(loss, np.zeros(7)).x
        assert_allclose([*layer.weights[label], layer.bias[label]], there, atol=2e-3)


def test_its_mean_probability_is_the_share_of_carriers() -> None:
    values, labels = world()
    layer = fit_logistic(values, labels)
    assert_allclose(sigmoid(layer.logits(values)).mean(0), labels.mean(0), atol=1e-3)
    assert_allclose(layer.calibration.priors, labels.mean(0), atol=2e-3)
    assert layer.logits(values).dtype == np.float32


def test_labels_that_all_or_none_carry_and_separable_ones_stay_finite() -> None:
    values, labels = world()
    labels = np.stack([np.ones(400, bool), np.zeros(400, bool), values[:, 0] > 0], axis=1)
    probabilities = sigmoid(fit_logistic(values, labels, penalty=1e-3).logits(values))
    assert probabilities[:, 0].min() > 0.99
    assert probabilities[:, 1].max() < 0.01
    assert_array_equal(probabilities[:, 2] > 0.5, labels[:, 2])


def test_a_handful_of_examples_is_enough_to_rank_by() -> None:
    rng = np.random.default_rng(0)
    near = np.where(rng.random((60, 48)) < 0.15, -1, 1)  # photos around one place
    far = np.sign(rng.normal(size=(600, 48)))
    taught = np.concatenate([near[:5], far[:100]])
    layer = fit_logistic(taught, (np.arange(105) < 5)[:, None])
    assert layer.logits(near[5:]).min() > np.quantile(layer.logits(far[100:]), 0.98)
