"""The terms that formulas are made of, against their definitions."""

import torch
from torch.nn.functional import softplus
from torch.testing import assert_close

from hyphash.losses.terms import (
    balanced_likelihood,
    cross_entropy,
    label_shares,
    log1p_sum_exp,
    mean_where,
    pair_masks,
    similarity_likelihood,
    squared_distances,
    unit_distances,
)


def test_mean_where_of_nothing_is_zero_with_zero_gradients():
    values = torch.randn(3, 3, requires_grad=True)
    mean = mean_where(torch.zeros(3, 3, dtype=torch.bool), values)
    mean.backward()
    assert mean.item() == 0
    assert not values.grad.any()


def test_log1p_sum_exp():
    values = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1, 0, 1], [0, 0, 1], [1, 0, 1], [0, 0, 0]], dtype=torch.bool)
    for dim in (0, 1):
        expected = torch.log(1 + torch.where(mask, values.exp(), 0).sum(dim))
        assert_close(log1p_sum_exp(mask, values, dim), expected)
    log1p_sum_exp(mask, values, 0).sum().backward()
    assert values.grad.isfinite().all()
    assert not values.grad[:, 1].any()
    assert_close(log1p_sum_exp(mask[:1], torch.full((1, 3), 500.0), 1), torch.tensor([500 + 0.6931472]))


def test_pair_masks_split_all_pairs():
    labels = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]])
    related, unrelated = pair_masks(labels @ labels.T > 0)
    assert related.nonzero().tolist() == [[0, 1], [1, 0]]
    assert_close(related ^ unrelated, ~torch.eye(4, dtype=torch.bool))


def test_distances():
    a, b = torch.randn(5, 8, dtype=torch.float64), torch.randn(4, 8, dtype=torch.float64)
    assert_close(squared_distances(a, b), torch.cdist(a, b).square())
    unit = a / a.norm(dim=1, keepdim=True)
    off = ~torch.eye(5, dtype=torch.bool)
    assert_close(unit_distances(3 * a)[off], torch.cdist(unit, unit)[off])


def test_photos_at_one_place_have_finite_gradients():
    outputs = torch.ones(3, 8, requires_grad=True)
    unit_distances(outputs).sum().backward()
    assert outputs.grad.isfinite().all()


def test_cross_entropy_leaves_out_photos_without_labels():
    logits, labels = torch.randn(3, 4), torch.tensor([[1.0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]])
    shares = label_shares(labels)
    assert_close(shares.sum(1), torch.tensor([1.0, 0, 1]))
    kept = [0, 2]
    assert_close(cross_entropy(logits, shares), torch.nn.functional.cross_entropy(logits[kept], shares[kept]))


def test_likelihoods():
    theta, similar = torch.randn(5, 5), torch.rand(5, 5) > 0.5
    expected = torch.where(similar, softplus(-theta), softplus(theta))  # −log σ(θ) and −log(1 − σ(θ))
    assert_close(similarity_likelihood(theta, similar), expected)
    pairs = ~torch.eye(5, dtype=torch.bool)
    n, n_similar = pairs.sum(), (pairs & similar).sum()
    weights = torch.where(similar, n / n_similar, n / (n - n_similar))
    assert_close(balanced_likelihood(theta, similar & pairs, ~similar & pairs), (weights * expected)[pairs].mean())
