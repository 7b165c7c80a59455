"""The label layer of a run: it knows labels of photos that it never saw, its probabilities mean what they say."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from hyphash.evaluation.labelling import calibration_error
from hyphash.hasher import Hasher
from hyphash.labels import platt, sigmoid
from hyphash.training import labels as labels_module
from hyphash.training import session as session_module
from hyphash.training.labels import Classifiers, fit_label_layer
from hyphash.training.runs import is_finished, open_run, resume_config


def world(n, seed=0):
    """Features, and labels of which they tell something."""
    rng = np.random.default_rng(seed)
    weights = np.random.default_rng(9).normal(size=(12, 4))
    features = np.square(rng.normal(size=(n, 12)))  # most are close to zero
    carried = rng.random((n, 4)) < sigmoid(np.sqrt(features) @ weights - 1)
    return torch.tensor(features, dtype=torch.float16), torch.tensor(carried, dtype=torch.float32)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(labels_module, "HIDDEN", 16)
    monkeypatch.setattr(labels_module, "DROPOUT", 0.1)


def logits_of(head, features):
    with torch.inference_mode():
        return head(features.float()).numpy()


def test_it_knows_photos_that_it_never_saw_and_says_how_sure_it_is(small):
    head, calibration = fit_label_layer(*world(1200), seed=0)
    features, carried = world(2000, seed=1)
    probabilities, carried = sigmoid(logits_of(head, features)), carried.numpy() > 0
    assert ((probabilities > 0.5) == carried).mean() > 0.72
    assert calibration_error(probabilities.ravel(), carried.ravel()) < 0.03
    assert_allclose(calibration.priors, carried.mean(0), atol=0.05)
    said = probabilities >= calibration.thresholds
    f1 = 2 * (said & carried).sum(0) / (said.sum(0) + carried.sum(0))
    for threshold in (0.1, 0.3, 0.7, 0.9):
        other = probabilities >= threshold
        assert (2 * (other & carried).sum(0) / (other.sum(0) + carried.sum(0)) < f1 + 0.05).all()


def test_equal_photos_and_seeds_give_equal_layers_and_leave_the_generator_alone(small):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    one, other, third = (fit_label_layer(*world(60), seed=seed)[0].state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["first.weight"], third["first.weight"])


def test_one_network_is_the_mean_of_all_classifiers(small):
    torch.manual_seed(0)
    members = Classifiers(5, 3, 4).eval()
    mean, std = torch.rand(5), torch.rand(5) + 0.5
    scale, shift = np.array([1.0, 2.0, 0.5], np.float32), np.array([0.0, -1.0, 3.0], np.float32)
    head = labels_module._joined(members, mean, std, scale, shift)
    features = torch.rand(7, 5)
    with torch.inference_mode():
        expected = members((features.sqrt() - mean) / std).mean(1) * torch.from_numpy(scale) + torch.from_numpy(shift)
        assert_allclose(head(features).numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)


def test_a_classifier_never_sees_its_fold(small, monkeypatch):
    monkeypatch.setattr(labels_module, "EPOCHS", 2)
    features, carried = world(90)
    held = torch.arange(90)[:, None] % 3 == torch.arange(3)
    changed = torch.where(held[:, :1], 1 - carried, carried)  # labels of the first fold

    def trained(labels):
        torch.manual_seed(0)
        members = labels_module._train(features.float(), labels, held)
        return [members.last[i].detach() for i in range(3)]

    before, after = trained(carried), trained(changed)
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])


def test_photos_that_the_backbone_never_saw_alone_say_how_sure_it_is(small, monkeypatch):
    seen = []
    monkeypatch.setattr(labels_module, "platt", lambda logits, carried: seen.append(carried) or platt(logits, carried))
    features, carried = world(200)
    unseen = torch.arange(0, 200, 4)
    fit_label_layer(features, carried, seed=0, unseen=unseen)
    assert_array_equal(seen[0], carried[unseen].numpy() > 0)


@pytest.mark.parametrize(
    "changes", [{}, {"mode": "fine-tune", "hidden": 0}, {"loss": "lsh"}, {"loss": "pair", "keep": "best"}]
)
def test_a_run_has_a_layer_and_the_codes_it_has_without(run, settings, splits, tmp_path, changes):
    for folder, with_layer in ((tmp_path / "plain", False), (tmp_path / "run", True)):
        open_run(folder, settings(label_layer=with_layer, **changes))
    plain, _, _ = run(settings(label_layer=False, **changes), tmp_path / "plain")
    hasher, _, _ = run(settings(**changes), tmp_path / "run")
    assert plain.calibration is None
    assert_array_equal(hasher.outputs(splits.queries), plain.outputs(splits.queries))
    saved = Hasher.load(tmp_path / "run", device="cpu")
    assert saved.fingerprint == hasher.fingerprint != plain.fingerprint
    encoded = saved.encode_photos(splits.queries)
    assert encoded.logits.shape == splits.queries.labels.shape
    assert_array_equal(encoded.logits, hasher.encode_photos(splits.queries).logits)
    assert is_finished(tmp_path / "run")


def test_a_run_learns_its_labels(run, settings, splits):
    hasher, _, _ = run(settings())
    logits, carried = hasher.encode_photos(splits.queries).logits, splits.queries.labels > 0
    assert logits[carried].mean() > logits[~carried].mean() + 1


def test_a_run_that_was_killed_while_its_layer_was_fitted_gets_one(run, settings, tmp_path, monkeypatch):
    """Its best epoch is written by then, its history is complete."""
    config = settings(loss="pair", keep="best", evaluate_every=1)
    for name in ("whole", "run"):
        open_run(tmp_path / name, config)
    whole, _, _ = run(config, tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr(session_module, "fit_label_layer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "run")
    assert not is_finished(tmp_path / "run")
    run(resume_config(tmp_path / "run"), tmp_path / "run")
    assert is_finished(tmp_path / "run")
    assert Hasher.load(tmp_path / "run", device="cpu").fingerprint == whole.fingerprint


def interrupted(*_args, **_options):
    raise KeyboardInterrupt
