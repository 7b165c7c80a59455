"""Proxy losses against naive twins, and against pytorch-metric-learning on photos with one label each."""

from math import exp, log, sqrt

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses as single_label
from torch.testing import assert_close

from hyphash.losses.proxies import DCILH, CentredHead, ProxyAnchor, ProxyNCA, SoftTriple, ranking
from hyphash.networks import Head

BITS, CLASSES = 12, 5


def unit(rows) -> np.ndarray:
    rows = rows.detach().numpy()
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def naive_cross_entropy(logits, targets) -> float:
    terms = []
    for z, t in zip(logits, targets, strict=True):
        if sum(t) > 0:
            total = sum(exp(x) for x in z)
            terms.append(-sum(w * log(exp(x) / total) for x, w in zip(z, t, strict=True)))
    return sum(terms) / len(terms)


def test_proxy_anchor_matches_its_twin(batch):
    loss = ProxyAnchor(bits=BITS, classes=CLASSES, alpha=8.0).double()
    v, y, p = unit(batch[0]), batch[1].numpy(), unit(loss.proxies)
    pull = push = 0.0
    for c in range(CLASSES):
        pull += log(1 + sum(exp(-8 * (v[i] @ p[c] - 0.1)) for i in range(len(v)) if y[i, c]))
        push += log(1 + sum(exp(8 * (v[i] @ p[c] + 0.1)) for i in range(len(v)) if not y[i, c]))
    present = sum(y[:, c].any() for c in range(CLASSES))
    assert loss(*batch).item() == pytest.approx(pull / present + push / CLASSES)


def test_proxy_anchor_counts_only_the_classes_of_the_batch(single):
    loss = ProxyAnchor(bits=BITS, classes=CLASSES).double()
    rows = single[1][:, :2].any(1)  # classes 0 and 1 only
    given = single[0][rows], single[1][rows]
    twin = single_label.ProxyAnchorLoss(CLASSES, BITS)
    twin.proxies.data = loss.proxies.data
    assert_close(loss(*given), twin(given[0], given[1].argmax(1)))


def test_proxy_anchor_agrees_on_single_labels(single):
    loss = ProxyAnchor(bits=BITS, classes=CLASSES).double()
    twin = single_label.ProxyAnchorLoss(CLASSES, BITS, margin=0.1, alpha=32)
    twin.proxies.data = loss.proxies.data
    assert_close(loss(*single), twin(single[0], single[1].argmax(1)))


def test_proxy_nca_matches_its_twin(batch):
    loss = ProxyNCA(bits=BITS, classes=CLASSES).double()
    v, y, p = unit(batch[0]), batch[1].numpy(), unit(loss.proxies)
    logits = [[-sum((3 * a - 3 * b) ** 2) for b in p] for a in v]
    targets = [0.9 * row / row.sum() + 0.1 / CLASSES if row.any() else row for row in y]
    assert loss(*batch).item() == pytest.approx(naive_cross_entropy(logits, targets))


def test_proxy_nca_agrees_on_single_labels(single):
    """Without smoothing, which the other has not; its scale is the square of ours."""
    loss = ProxyNCA(bits=BITS, classes=CLASSES, smoothing=0.0).double()
    twin = single_label.ProxyNCALoss(CLASSES, BITS, softmax_scale=9)
    twin.proxies.data = loss.proxies.data
    assert_close(loss(*single), twin(single[0], single[1].argmax(1)))


def test_soft_triple_matches_its_twin(batch):
    loss = SoftTriple(bits=BITS, classes=CLASSES, centers=3).double()
    v, y, w = unit(batch[0]), batch[1].numpy(), unit(loss.prototypes)
    logits = []
    for i in range(len(v)):
        row = []
        for c in range(CLASSES):
            s = [v[i] @ w[c, k] for k in range(3)]
            weights = [exp(x / 0.1) for x in s]
            similarity = sum(a * b for a, b in zip(weights, s, strict=True)) / sum(weights)
            row.append(20 * (similarity - 0.01 * y[i, c]))
        logits.append(row)
    fit = naive_cross_entropy(logits, [row / max(1, row.sum()) for row in y])
    spread = 0.0
    for c in range(CLASSES):
        for t in range(3):
            for s in range(t + 1, 3):
                spread += sqrt(2 + 1e-5 - 2 * w[c, t] @ w[c, s])
    assert loss(*batch).item() == pytest.approx(fit + 0.2 * spread / (CLASSES * 3 * 2))


def test_soft_triple_agrees_on_single_labels(single):
    """Without τ, which the other has not."""
    loss = SoftTriple(bits=BITS, classes=CLASSES, tau=0.0).double()
    twin = single_label.SoftTripleLoss(CLASSES, BITS, centers_per_class=10, la=20, gamma=0.1, margin=0.01)
    twin.fc.data = loss.prototypes.data.view(-1, BITS).T
    assert_close(loss(*single), twin(single[0], single[1].argmax(1)))


def test_soft_triple_with_one_center_has_no_spread():
    loss = SoftTriple(bits=BITS, classes=CLASSES, centers=1)
    assert loss.spread() == 0
    assert torch.autograd.grad(loss.spread(), loss.prototypes)[0].isfinite().all()


def test_centred_head_keeps_every_output_around_zero():
    torch.manual_seed(0)
    head = CentredHead(features=20, bits=BITS, classes=CLASSES)
    assert {name for name, _ in head.named_parameters()} == {"hash.weight"}  # nothing that could shift the outputs
    for _ in range(60):
        outputs = head(torch.randn(200, 20) + 5)
        assert_close(outputs.mean(0), torch.zeros(BITS), atol=1e-5, rtol=0)
    at_search = head.eval()(torch.randn(2000, 20) + 5)
    assert at_search.mean(0).abs().max() < 0.1


def test_without_centring_most_photos_share_most_bits():
    """Why the head is there: free outputs under Proxy Anchor crowd opposite the proxies, centred ones cannot."""
    torch.manual_seed(0)
    classes, n = 20, 100
    labels = (torch.rand(n, classes) < 0.15).float()
    features = labels @ torch.randn(classes, 30) + torch.randn(n, 30)
    crowding = []
    for head in (Head, CentredHead):
        torch.manual_seed(1)
        loss, made = ProxyAnchor(bits=BITS, classes=classes), head(features=30, bits=BITS, classes=classes)
        optimizer = torch.optim.SGD([*made.parameters(), *loss.parameters()], lr=0.05, momentum=0.9)
        for _ in range(150):
            optimizer.zero_grad()
            loss(made(features), labels).backward()
            optimizer.step()
        outputs = torch.nn.functional.normalize(made(features).detach())
        crowding.append(outputs.mean(0).norm().item())
    assert crowding[0] > 0.5
    assert crowding[1] < 0.25


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def balanced(theta, similar, skip_diagonal: bool = False) -> float:
    kinds: dict[bool, list[float]] = {True: [], False: []}
    for i in range(theta.shape[0]):
        for j in range(theta.shape[1]):
            if not (skip_diagonal and i == j):
                s = bool(similar[i, j])
                kinds[s].append(log(1 + exp(theta[i, j])) - s * theta[i, j])
    return sum(float(np.mean(kind)) for kind in kinds.values() if kind)


def test_dcilh_matches_its_equations(batch):
    torch.manual_seed(0)
    loss = DCILH(bits=BITS, classes=CLASSES, rank=0.5).double()
    y = batch[1].numpy()
    u = np.tanh(batch[0].numpy())
    sets = loss.label_network(batch[1]).detach().numpy()
    p = np.tanh(loss.prototypes.detach().numpy())
    related, a = y @ y.T > 0, 10 / BITS
    expected = (
        balanced(a * u @ u.T, related, skip_diagonal=True)
        + balanced(a * u @ sets.T, related)
        + balanced(a * u @ p.T, y)
        + balanced(a * sets @ p.T, y)
    )
    rank = []
    for s, labels in zip(a * u @ p.T, y, strict=True):
        total = sum(exp(s[c] - s[d]) for c in range(CLASSES) for d in range(CLASSES) if labels[d] and not labels[c])
        rank.append(log(1 + total))
    expected += 0.5 * np.mean(rank) + 0.1 * np.mean((abs(u) - 1) ** 2)
    assert loss(*batch).item() == pytest.approx(expected)


def test_ranking_is_small_when_every_label_stands_above_every_other():
    own = torch.tensor([[True, True, False, False]])
    assert ranking(torch.tensor([[9.0, 8.0, -5.0, -9.0]]), own) < 1e-4
    assert ranking(torch.tensor([[9.0, -8.0, -5.0, -9.0]]), own) > 1


def test_ranking_asks_nothing_where_there_is_nothing_to_rank():
    scores = torch.randn(2, 4, requires_grad=True)
    own = torch.tensor([[True] * 4, [False] * 4])
    loss = ranking(scores, own)
    loss.backward()
    assert loss.item() == 0
    assert not scores.grad.any()
