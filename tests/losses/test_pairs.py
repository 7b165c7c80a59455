"""Pair losses against naive twins that loop over all ordered pairs."""

from math import cosh, exp, log, sqrt, tanh

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses as single_label
from pytorch_metric_learning.reducers import SumReducer
from torch.testing import assert_close

from hyphash.losses.pairs import DASHPS, DHN, DMSSPH, DSH, IDHN, Contrastive, HashNet, log_cosh

BITS, CLASSES = 12, 5


def pairs(outputs, labels, term) -> float:
    """The mean of term(u, u′, S, y, y′) over ordered pairs i ≠ j."""
    n = len(outputs)
    return float(np.mean([
        term(outputs[i], outputs[j], float(labels[i] @ labels[j] > 0), labels[i], labels[j])
        for i in range(n) for j in range(n) if i != j
    ]))  # fmt: skip


def likelihood(theta: float, s: float) -> float:
    return log(1 + exp(theta)) - s * theta


def test_contrastive_matches_its_twin(batch):
    def term(u, v, s, *_):
        d = np.linalg.norm(u / np.linalg.norm(u) - v / np.linalg.norm(v))
        return s * d**2 + (1 - s) * max(1 - d, 0) ** 2

    expected = pairs(batch[0].numpy(), batch[1].numpy(), term)
    assert Contrastive(bits=BITS, classes=CLASSES)(*batch).item() == pytest.approx(expected)


class SquaredContrastive(single_label.ContrastiveLoss):
    """The other's terms are not squared."""

    def get_per_pair_loss(self, *args):
        return super().get_per_pair_loss(*args) ** 2


def test_contrastive_agrees_on_single_labels(single):
    """The other averages the non-zero terms of each kind; we average over all pairs, so sums are compared."""
    twin = SquaredContrastive(pos_margin=0, neg_margin=1, reducer=SumReducer())
    expected = twin(single[0], single[1].argmax(1))
    only_positives = SquaredContrastive(pos_margin=0, neg_margin=0, reducer=SumReducer())
    assert expected > only_positives(single[0], single[1].argmax(1))  # both kinds matter here
    assert_close(Contrastive(bits=BITS, classes=CLASSES)(*single), expected / (12 * 11))


@pytest.mark.parametrize("with_tanh", [True, False])
def test_dhn_matches_its_twin(batch, with_tanh):
    u = np.tanh(batch[0].numpy()) if with_tanh else batch[0].numpy()
    fit = pairs(u, batch[1].numpy(), lambda a, b, s, *_: likelihood(a @ b / 2, s))
    expected = fit + 0.1 * np.mean([log(cosh(abs(x) - 1)) for x in u.ravel()])
    assert DHN(bits=BITS, classes=CLASSES, tanh=with_tanh)(*batch).item() == pytest.approx(expected)


def test_log_cosh_is_stable_far_out():
    x = torch.tensor([0.0, 0.5, -0.5, 300.0], requires_grad=True)
    values = log_cosh(x)
    assert_close(values[:3], torch.tensor([0.0, log(cosh(0.5)), log(cosh(0.5))]))
    assert values[3].item() == pytest.approx(300 - log(2))
    values.sum().backward()
    assert_close(x.grad, torch.tensor([0.0, tanh(0.5), -tanh(0.5), 1.0]))


def test_hashnet_matches_its_twin(batch):
    """With the weights N/N_S written out."""
    u, y = np.tanh(batch[0].numpy()), batch[1].numpy()
    n = len(u)
    kinds = [y[i] @ y[j] > 0 for i in range(n) for j in range(n) if i != j]
    weight = {1.0: len(kinds) / sum(kinds), 0.0: len(kinds) / (len(kinds) - sum(kinds))}
    expected = pairs(u, y, lambda a, b, s, *_: weight[s] * likelihood(10 / BITS * (a @ b), s))
    assert HashNet(bits=BITS, classes=CLASSES).double()(*batch).item() == pytest.approx(expected)


def test_hashnet_sharpens_with_progress(batch):
    loss = HashNet(bits=BITS, classes=CLASSES).double()
    loss.set_progress(0.5)
    assert loss.beta.item() == pytest.approx(sqrt(1 + 0.005 * 5000))
    sharp = loss(*batch)
    loss.set_progress(0.0)
    assert_close(sharp, loss(batch[0] * sqrt(26), batch[1]))


def test_dsh_matches_its_twin(batch):
    def term(u, v, s, *_):
        squared = sum((u - v) ** 2)
        return 0.5 * s * squared + 0.5 * (1 - s) * max(2 * BITS - squared, 0)

    u = batch[0].numpy()
    expected = pairs(u, batch[1].numpy(), term) + 0.01 * np.mean([sum(abs(abs(x) - 1)) for x in u])
    assert DSH(bits=BITS, classes=CLASSES)(*batch).item() == pytest.approx(expected)


def jaccard(a, b) -> float:
    union = sum((a + b) > 0)
    return sum((a * b) > 0) / union if union else 0.0


def test_dmssph_matches_its_twin(batch):
    def term(u, v, _, y, z):
        s, squared = jaccard(y, z), sum((u - v) ** 2)
        return 0.5 * s * squared + 0.5 * (1 - s) * max(2 * BITS * (1 - s) - squared, 0)

    u = batch[0].numpy()
    expected = pairs(u, batch[1].numpy(), term) + 0.01 * np.mean([sum(abs(abs(x) - 1)) for x in u])
    assert DMSSPH(bits=BITS, classes=CLASSES)(*batch).item() == pytest.approx(expected)


def test_dmssph_is_dsh_on_single_labels(single):
    assert_close(DMSSPH(bits=BITS, classes=CLASSES)(*single), DSH(bits=BITS, classes=CLASSES)(*single))


def test_idhn_matches_its_twin(batch):
    def term(u, v, _, y, z):
        lengths = sqrt(sum(y)) * sqrt(sum(z))
        s = y @ z / lengths if lengths else 0.0
        if abs(s) < 1e-6 or abs(s - 1) < 1e-6:
            return likelihood(5 / BITS * (u @ v), s)
        return 0.1 * BITS * ((u @ v + BITS) / (2 * BITS) - s) ** 2

    z = batch[0].numpy()
    u = z / (1 + abs(z))
    expected = pairs(u, batch[1].numpy(), term) + 0.1 * np.mean(abs(abs(u) - 1))
    assert IDHN(bits=BITS, classes=CLASSES)(*batch).item() == pytest.approx(expected)


def test_idhn_knows_equal_label_sets_of_any_size_in_float32():
    labels = torch.zeros(60, 60)
    for size in range(60):
        labels[size, : size + 1] = 1
    torch.manual_seed(0)
    outputs, loss = torch.randn(60, BITS), IDHN(bits=BITS, classes=60)
    expected = loss.double()(outputs.double().repeat(2, 1), labels.double().repeat(2, 1))
    assert_close(loss.float()(outputs.repeat(2, 1), labels.repeat(2, 1)), expected.float(), rtol=1e-5, atol=0)


def test_dash_ps_matches_its_twin(batch):
    z, labels = (t.numpy() for t in batch)
    total = 0.0
    for a, y in zip(z, labels, strict=True):
        for b, other in zip(z, labels, strict=True):
            c = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            p = min(1.0, 1 - c + 0.05)
            total -= (1 - c) * np.log(max(c, 1e-8)) if y @ other > 0 else (1 - p) ** 5 * np.log(p)
    assert DASHPS(bits=BITS, classes=CLASSES)(*batch).item() == pytest.approx(total)
