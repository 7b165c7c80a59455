"""DCILH against its equations."""

from math import exp, log

import numpy as np
import pytest
import torch

from hyphash.losses.prototypes import DCILH, ranking

BITS, CLASSES = 12, 5


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
