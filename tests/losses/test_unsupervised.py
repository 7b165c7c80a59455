"""LSH and ITQ: heads that are computed, not trained."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from hyphash.errors import ConfigError
from hyphash.losses import build
from hyphash.losses.unsupervised import FittedHead, RotatedHead

FEATURES = 20


@pytest.fixture
def features() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(200, FEATURES) @ torch.randn(FEATURES, FEATURES) + 5


def fitted(head: type[FittedHead], features: torch.Tensor, bits: int, seed: int = 0) -> FittedHead:
    made = head(features=FEATURES, bits=bits, classes=3)
    made.fit(features, seed)
    return made.eval()


@pytest.mark.parametrize("bits", [1, 12, 36, 100])
@pytest.mark.parametrize("head", [FittedHead, RotatedHead])
def test_any_number_of_bits_each_on_for_about_half(head, bits, features):
    outputs = fitted(head, features, bits)(features)
    assert outputs.shape == (200, bits)
    assert outputs.isfinite().all()
    assert_close(outputs.mean(0), torch.zeros(bits), atol=1e-3, rtol=0)
    assert 0.4 < (outputs > 0).float().mean() < 0.6


@pytest.mark.parametrize("head", [FittedHead, RotatedHead])
def test_the_seed_decides_alone(head, features):
    first = fitted(head, features, 12, seed=3)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert_close(fitted(head, features, 12, seed=3).hash.weight, first.hash.weight)
    assert (fitted(head, features, 12, seed=4).hash.weight != first.hash.weight).any()
    made = head(features=FEATURES, bits=12, classes=3)
    torch.set_rng_state(state)
    made.fit(features, 5)
    assert torch.equal(torch.get_rng_state(), state)


def test_itq_spans_the_leading_directions_with_a_rotation(features):
    weight = fitted(RotatedHead, features, 4).hash.weight.detach()
    assert_close(weight @ weight.T, torch.eye(4), atol=1e-4, rtol=0)
    centred = features - features.mean(0)
    leading = torch.linalg.svd(centred, full_matrices=False).Vh[:4]
    assert_close((centred @ weight.T).square().sum(), (centred @ leading.T).square().sum(), rtol=1e-3, atol=0)


def test_itq_loses_less_to_the_signs_than_a_random_rotation_of_the_same_directions(features):
    head = fitted(RotatedHead, features, 8)
    values = head(features).detach()
    rotation, _ = torch.linalg.qr(torch.randn(8, 8))

    def lost(values: torch.Tensor) -> torch.Tensor:
        return (values - values.sign()).square().mean()

    assert lost(values) < lost(values @ rotation)


def test_standardised_features_are_fitted_as_the_trunk_gives_them(features):
    head = RotatedHead(features=FEATURES, bits=12, classes=3)
    head.trunk.standardise(features.mean(0), features.std(0))
    head.fit(features, 0)
    assert_close(head.eval()(features).mean(0), torch.zeros(12), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["lsh", "itq"])
def test_there_is_nothing_to_train(name):
    with pytest.raises(ConfigError, match=f"{name} is fitted"):
        build(name, bits=12, classes=3)(torch.randn(2, 12), torch.eye(3)[:2])


# Bi-half: its twin, and bits that are on half of the time.

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
