"""Bi-half: its twin, and bits that are on half of the time."""

import numpy as np
import pytest
import torch

from hyphash.losses import build

BITS = 12


@pytest.mark.parametrize("n", [16, 15])
def test_bi_half_matches_its_twin(batch, n):
    z, features = batch[0][:n].clone().requires_grad_(), torch.randn(n, 9, dtype=torch.float64)
    halves = np.array(
        [
            [1.0 if np.sum(row[k] < z.detach().numpy()[:, k]) < (n + 1) // 2 else -1.0 for k in range(BITS)]
            for row in z.detach().numpy()
        ]
    )
    assert (halves.sum(0) == n % 2).all()

    def cosine(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    x = features.numpy()
    pairs = [(cosine(halves[i], halves[j]) - cosine(x[i], x[j])) ** 2 for i in range(n) for j in range(n) if i != j]
    expected = np.mean(pairs) + 3 * np.mean((z.detach().numpy() - halves) ** 2)
    loss = build("bi-half", bits=BITS, classes=5)
    value = loss((z, features), batch[1][:n])
    assert value.item() == pytest.approx(expected)
    assert torch.equal(value, loss((z, features), 1 - batch[1][:n]))  # labels are not looked at


def test_the_gradient_is_that_of_the_bits_and_a_pull_towards_them(batch):
    z, features = batch[0].clone().requires_grad_(), torch.randn(16, 9, dtype=torch.float64)
    (with_pull,) = torch.autograd.grad(build("bi-half", bits=BITS, classes=5)((z, features), batch[1]), z)
    (without,) = torch.autograd.grad(build("bi-half", bits=BITS, classes=5, gamma=0.0)((z, features), batch[1]), z)
    halves = torch.where(z > z.median(0).values, 1.0, -1.0)
    torch.testing.assert_close(with_pull - without, 6 * (z - halves).detach() / z.numel())
