"""DLBHC against its naive twin."""

from math import exp, log

import pytest
import torch

from hyphash.losses.classifiers import DLBHC

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
