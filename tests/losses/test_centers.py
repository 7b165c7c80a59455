"""Losses with fixed centres, and the balanced head of OrthoHash."""

from math import exp, log, tanh

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from hyphash.coding import codebook
from hyphash.losses.centers import CSQ, DPN, BalancedHead, OrthoHash

BITS, CLASSES = 12, 5


def test_orthohash_matches_its_twin(batch):
    outputs, labels = (t.numpy() for t in batch)
    book = codebook(classes=CLASSES, bits=BITS).astype(float)
    terms = []
    for u, y in zip(outputs, labels, strict=True):
        if not y.any():
            continue
        logits = [8 * (u @ c / np.linalg.norm(u) / np.linalg.norm(c) - 0.2 * y[k]) for k, c in enumerate(book)]
        total = sum(exp(x) for x in logits)
        terms.append(-sum(y[k] / y.sum() * log(exp(x) / total) for k, x in enumerate(logits)))
    loss = OrthoHash(bits=BITS, classes=CLASSES).double()
    assert loss(*batch).item() == pytest.approx(sum(terms) / len(terms))


def test_csq_matches_its_twin(batch):
    outputs, labels = (t.numpy() for t in batch)
    loss = CSQ(bits=BITS, classes=CLASSES).double()
    book, coin = codebook(classes=CLASSES, bits=BITS).astype(float), loss.tie_break.numpy()
    terms, quantisation = [], []
    for z, y in zip(outputs, labels, strict=True):
        votes = sum(book[c] for c in range(CLASSES) if y[c]) if y.any() else None
        for k in range(BITS):
            u = tanh(z[k])
            quantisation.append((abs(u) - 1) ** 2)
            if votes is not None:
                h = np.sign(votes[k]) or coin[k]
                terms.append(-log((u + 1) / 2) if h > 0 else -log(1 - (u + 1) / 2))
    expected = np.mean(terms) + 0.05 * np.mean(quantisation)
    assert loss(*batch).item() == pytest.approx(expected)


def test_csq_breaks_ties_the_same_way_always():
    labels = torch.ones(1, 2)
    first, second = CSQ(bits=BITS, classes=2), CSQ(bits=BITS, classes=2)
    assert (labels @ first.codewords == 0).any()
    assert_close(first.targets(labels), second.targets(labels))
    assert (first.targets(labels).abs() == 1).all()


def test_csq_is_stable_far_out():
    outputs = torch.full((2, BITS), 200.0, requires_grad=True)
    loss = CSQ(bits=BITS, classes=CLASSES)(outputs, torch.eye(CLASSES)[:2])
    loss.backward()
    assert loss.isfinite()
    assert outputs.grad.isfinite().all()


def test_balanced_head_turns_half_of_the_bits_on():
    torch.manual_seed(0)
    head = BalancedHead(features=20, bits=BITS, classes=CLASSES)
    outputs = head(torch.randn(400, 20) + 3)
    assert head.hash.bias is None
    assert_close(outputs.mean(0), torch.zeros(BITS), atol=1e-5, rtol=0)
    assert ((outputs > 0).float().mean(0) - 0.5).abs().max() < 0.1


def test_balanced_head_takes_one_photo_in_training_as_at_search_time():
    torch.manual_seed(0)
    head = BalancedHead(features=20, bits=BITS, classes=CLASSES)
    head(torch.randn(50, 20))
    photo = torch.randn(1, 20)
    assert_close(head(photo), head.eval()(photo))


@pytest.mark.parametrize("weight", [0.0, 0.1])
def test_dpn_matches_its_twin(batch, weight):
    outputs, labels = (t.numpy() for t in batch)
    book = codebook(classes=CLASSES, bits=BITS).astype(float)
    terms = [
        sum(max(1 - z[k] * book[c, k], 0) for c in range(CLASSES) if y[c] for k in range(BITS))
        for z, y in zip(outputs, labels, strict=True)
    ]
    loss = DPN(bits=BITS, classes=CLASSES, weight=weight).double()
    assert loss(*batch).item() == pytest.approx(np.mean(terms) + weight * np.mean(outputs**2))
