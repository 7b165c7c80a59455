"""Losses with proxies and pairs since HyP²: naive twins in float64, written photo by photo."""

from itertools import product
from math import exp, log

import numpy as np
import pytest
import torch

from hyphash.losses import build
from hyphash.losses.proxy_pairs import NormedHead

BITS, CLASSES = 12, 5


def cosine(a, b) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def parts(name, batch, **options):
    """The loss, tanh of the outputs, labels, and proxies."""
    torch.manual_seed(0)
    loss = build(name, bits=BITS, classes=CLASSES, **options).double()
    anchors = loss.anchors().detach().numpy()
    return loss, np.tanh(batch[0].numpy()), batch[1].numpy(), anchors


@pytest.mark.parametrize("progress", [0.0, 0.2, 0.9])
def test_sprch_matches_its_twin(batch, progress):
    loss, u, labels, prototypes = parts("sprch", batch)
    loss.set_progress(progress)
    pace, terms = min(1.0, 3 * progress), []

    def term(c, positive):
        return exp(c / 0.3) * exp(-(1 + c) * pace / 4 if positive else -(1 - c) * pace)

    for i, y in enumerate(labels):
        related = [j == i or y @ labels[j] > 0 for j in range(len(u))]
        photos, own = {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}
        for j, kind in enumerate(related):
            photos[kind] += term(cosine(u[i], u[j]), kind)
        for c in range(CLASSES):
            own[y[c] > 0] += term(cosine(u[i], prototypes[c]), y[c] > 0)
        near = photos[True] + (sum(related) / y.sum() * own[True] if y.any() else 0)
        far = photos[False] + related.count(False) / (CLASSES - y.sum()) * own[False]
        terms.append(-log(near / (near + far)))
    assert loss(*batch).item() == pytest.approx(np.mean(terms))


def test_dcgh_matches_its_twin(batch):
    loss, u, labels, proxies = parts("dcgh", batch)
    near = np.array([[cosine(a, p) for p in proxies] for a in u])
    apart, together = [], []
    for (a, y), (b, other) in product(zip(u, labels, strict=True), repeat=2):
        if y @ other == 0:
            apart += [max(cosine(a, b), 0)] if min(y.sum(), other.sum()) > 1 else []
        else:
            together.append(max(cosine(y, other) - cosine(a, b), 0))
    uneven = [
        np.var([y[c] * (1 - row[c]) for c in range(CLASSES)], ddof=1) for y, row in zip(labels, near, strict=True)
    ]
    proxy = np.mean(1 - near[labels > 0]) + np.mean(np.maximum(near[labels == 0], 0))
    expected = proxy + 0.8 * np.mean(apart) + 0.05 * np.mean(together) + np.mean(uneven)
    assert loss(*batch).item() == pytest.approx(expected)


def test_dscph_matches_its_twin(batch):
    loss, u, labels, proxies = parts("dscph", batch)
    found, missed, wrong = 2.0, 0.0, 0.0
    for (a, y), c in product(zip(u, labels, strict=True), range(CLASSES)):
        near = cosine(a, proxies[c])
        found += 2 * y[c] * max(near, 0)
        missed += y[c] * (1 - near) * exp(1.3 * (1 - near))
        wrong += (1 - y[c]) * (near - 0.3) * exp(1.3 * (near - 1)) if near > 0.3 else 0
    n = len(u)
    near = np.array([[cosine(a, b) for b in u] for a in u])
    related = labels @ labels.T > 0
    positive, negative = related & ~np.eye(n, dtype=bool), ~related & ~np.eye(n, dtype=bool)
    epsilon, least = (near[positive].mean() - near[negative].mean()) / 2, (1 + near[negative].mean()) / 2
    gaps = [near[i, p] - near[i, q] for i, p, q in product(range(n), repeat=3) if positive[i, p] and negative[i, q]]
    triplets = [epsilon - gap for gap in gaps if 0 < gap < epsilon]
    apart = [
        max(u[i] @ u[j] - least, 0) for i, j in product(range(n), repeat=2) if negative[i, j] and near[i, j] >= least
    ]
    turned = u @ loss.rotation.detach().numpy()
    spread = 1 / (1 + np.exp(-turned / np.linalg.norm(turned, axis=1, keepdims=True)))
    expected = 1 - found / (found + missed + wrong) + np.mean(triplets or 0) + np.mean(apart or 0)
    assert triplets or epsilon < 0
    assert loss(*batch).item() == pytest.approx(expected + np.mean(spread * (1 - spread)))


@pytest.mark.parametrize("two", [True, False])
def test_dhd_matches_its_twin(batch, two):
    loss, u, labels, proxies = parts("dhd", batch)
    student = batch[0] + torch.randn_like(batch[0])
    fits, quantisation = [], []
    for a, y in zip(u, labels, strict=True):
        scores = [cosine(a, p) / 0.2 for p in proxies]
        total = log(sum(map(exp, scores)))
        fits += [sum((total - s) * y[c] / y.sum() for c, s in enumerate(scores))] if y.any() else []
        for x in a:
            for side, wanted in ((1, x > 0), (-1, x <= 0)):
                g = exp(-0.5 * ((x - side) / 0.5) ** 2)
                quantisation.append(-log(g) if wanted else -log(1 - g))
    distilled = [1 - cosine(np.tanh(s), a) for s, a in zip(student.numpy(), u, strict=True)] if two else 0
    expected = np.mean(fits) + 0.1 * (np.mean(distilled) + 2 * np.mean(quantisation))
    assert loss((batch[0], student) if two else batch[0], batch[1]).item() == pytest.approx(expected)


def test_the_first_view_does_not_learn_from_the_second(batch):
    loss, *_ = parts("dhd", batch)
    teacher, student = (batch[0].clone().requires_grad_() for _ in range(2))
    loss((teacher, student + 1), batch[1]).backward()
    alone = batch[0].clone().requires_grad_()
    loss(alone, batch[1]).backward()
    assert torch.equal(teacher.grad, alone.grad)
    assert student.grad.any()


def test_the_head_of_dhd_normalises_each_photo():
    outputs = NormedHead(features=9, bits=BITS, classes=CLASSES, dropout=0.0)(3 * torch.randn(4, 9))
    torch.testing.assert_close(outputs.mean(1), torch.zeros(4))
    torch.testing.assert_close(outputs.std(1, correction=0), torch.ones(4), rtol=1e-3, atol=1e-3)
