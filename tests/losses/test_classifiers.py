"""Losses with a classifier: naive twins in float64, and what goes backward through a sign."""

from math import exp, log, tanh

import numpy as np
import pytest
import torch

from hyphash.errors import ConfigError
from hyphash.losses import build
from hyphash.losses.classifiers import DLBHC, OrthogonalHead

BITS, CLASSES = 12, 5


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def test_dlbhc_matches_its_twin(batch):
    loss = DLBHC(bits=BITS, classes=CLASSES).double()
    weight, bias = (p.detach().numpy() for p in loss.classifier.parameters())
    terms = []
    for z, y in zip(*(t.numpy() for t in batch), strict=True):
        units = [sigmoid(x) for x in z]
        for c in range(CLASSES):
            p = sigmoid(weight[c] @ units + bias[c])
            terms.append(-log(p) if y[c] else -log(1 - p))
    assert loss(*batch).item() == pytest.approx(sum(terms) / len(terms))


def test_a_bit_is_a_unit_above_one_half():
    outputs = torch.tensor([-3.0, -1e-3, 1e-3, 3.0])
    assert ((outputs.sigmoid() > 0.5) == (outputs > 0)).all()


def test_dlbhc_summed_over_labels_is_so_many_times_the_mean(batch):
    torch.manual_seed(0)
    mean = DLBHC(bits=BITS, classes=CLASSES).double()
    total = DLBHC(bits=BITS, classes=CLASSES, reduction="sum").double()
    total.load_state_dict(mean.state_dict())
    torch.testing.assert_close(total(*batch), CLASSES * mean(*batch))
    with pytest.raises(ConfigError, match="mean or sum, not 'none'"):
        DLBHC(bits=BITS, classes=CLASSES, reduction="none")


def naive_fit(loss, codes, labels) -> float:
    """Cross-entropy of the classifier over these codes with y/|y|, the mean over photos with labels."""
    weight = loss.classifier.weight.detach().numpy()
    bias = loss.classifier.bias.detach().numpy() if loss.classifier.bias is not None else np.zeros(CLASSES)
    terms = []
    for code, y in zip(codes, labels.numpy(), strict=True):
        scores = [float(weight[c] @ code + bias[c]) for c in range(CLASSES)]
        total = log(sum(map(exp, scores)))
        if y.any():
            terms.append(sum((total - score) * y[c] / y.sum() for c, score in enumerate(scores)))
    return sum(terms) / len(terms)


def test_greedyhash_matches_its_twin(batch):
    loss, z = build("greedyhash", bits=BITS, classes=CLASSES).double(), batch[0].numpy()
    assert loss.classifier.bias is None
    expected = naive_fit(loss, np.where(z > 0, 1.0, -1.0), batch[1]) + 0.1 * np.mean(np.abs(np.abs(z) - 1) ** 3)
    assert loss(*batch).item() == pytest.approx(expected)


def test_jmlh_matches_its_twin(batch):
    loss, z = build("jmlh", bits=BITS, classes=CLASSES).double(), batch[0].numpy()
    divergence = [p * log(2 * p) + (1 - p) * log(2 * (1 - p)) for p in map(sigmoid, z.flatten())]
    expected = naive_fit(loss, (z > 0) * 1.0, batch[1]) + 0.2 * sum(divergence) / len(z)
    assert loss(*batch).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "slope"), [("greedyhash", lambda _: 1), ("jmlh", lambda z: z.sigmoid() * (-z).sigmoid())]
)
def test_a_bit_has_the_gradient_of_what_it_was_made_of(name, slope, batch):
    off = {"alpha": 0.0} if name == "greedyhash" else {"weight": 0.0}
    loss, z = build(name, bits=BITS, classes=CLASSES, **off).double(), batch[0].clone().requires_grad_()
    loss(z, batch[1]).backward()
    bits = ((z > 0) * 1.0 if name == "jmlh" else torch.where(z > 0, 1.0, -1.0)).double().requires_grad_()
    loss.fit(bits, batch[1]).backward()
    torch.testing.assert_close(z.grad, bits.grad * slope(z.detach()))


def test_sdh_c_matches_its_twin(batch):
    torch.manual_seed(0)
    loss = build("sdh-c", bits=BITS, classes=CLASSES).double()
    head = OrthogonalHead(features=7, bits=BITS, classes=CLASSES).double()
    _, skew = head(torch.randn(16, 7, dtype=torch.float64))
    weight, u = head.hash.weight.detach().numpy(), np.vectorize(tanh)(batch[0].numpy())
    orthogonal = [(weight[i] @ weight[j] - (i == j)) ** 2 for i in range(BITS) for j in range(BITS)]
    terms = np.mean((u - np.sign(u)) ** 2) - np.sum(u**2) / (2 * BITS) + np.mean(orthogonal)
    assert loss((batch[0], skew), batch[1]).item() == pytest.approx(naive_fit(loss, u, batch[1]) + 1e-3 * terms)
    assert isinstance(head.eval()(torch.randn(2, 7, dtype=torch.float64)), torch.Tensor)
