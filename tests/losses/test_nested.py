"""Nested codes: the mean of a loss over prefixes, and what shorter ones learn from longer ones."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from hyphash.errors import ConfigError
from hyphash.losses import build, heads, losses, names, parts_of
from hyphash.losses.nested import build_nested

CLASSES = 5
NESTED = [name for name in names() if not losses[name].fitted and name != "dqn"]


def naive_distillation(z, lengths) -> float:
    relations = []
    for bits in lengths:
        products = z[:, :bits] @ z[:, :bits].T
        relations.append(products / np.linalg.norm(products, axis=1, keepdims=True))
    return sum(np.mean((a - b) ** 2) for a, b in pairwise(relations))


def test_it_is_the_mean_over_prefixes_and_the_distillation(batch):
    outputs, labels = batch
    nested = build_nested("hyp2", lengths=(3, 6, 12), classes=CLASSES).double()
    alone = sum(part(outputs[:, :bits], labels).item() for part, bits in zip(nested.parts, (3, 6, 12), strict=True))
    expected = (alone + 0.1 * naive_distillation(outputs.numpy(), (3, 6, 12))) / 3
    assert nested(outputs, labels).item() == pytest.approx(expected)
    assert nested.anchors() is nested.parts[-1].proxies
    assert [part.proxies.shape[1] for part in nested.parts] == [3, 6, 12]


def test_one_length_is_the_loss_itself(batch):
    nested = build_nested("dhn", lengths=(12,), classes=CLASSES)
    assert_close(nested(*batch), build("dhn", bits=12, classes=CLASSES)(*batch))


def test_longer_codes_learn_nothing_from_shorter_ones(batch):
    z = batch[0].clone().requires_grad_()
    (nested,) = torch.autograd.grad(build_nested("dhn", lengths=(4, 12), classes=CLASSES)(z, batch[1]), z)
    (alone,) = torch.autograd.grad(build("dhn", bits=12, classes=CLASSES)(z, batch[1]), z)
    assert_close(2 * nested[:, 4:], alone[:, 4:])
    assert not torch.allclose(2 * nested[:, :4], alone[:, :4])


@pytest.mark.parametrize("name", NESTED)
def test_any_loss_is_nested_behind_its_head(name, batch):
    torch.manual_seed(0)
    nested = build_nested(name, lengths=(3, 8), classes=CLASSES)
    head = heads[nested.head](features=9, bits=8, classes=CLASSES, dropout=0.0)
    for part in parts_of(nested):
        part.set_progress(0.5)
    value = nested(head(torch.randn(16, 9, *((3, 3) if nested.needs_map else ()))), batch[1])
    value.backward()
    assert value.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())


def test_two_views_are_cut_alike(batch):
    torch.manual_seed(0)
    nested, student = build_nested("dhd", lengths=(4, 12), classes=CLASSES).double(), batch[0] + 1
    alone = sum(
        part((batch[0][:, :bits], student[:, :bits]), batch[1]).item()
        for part, bits in zip(nested.parts, (4, 12), strict=True)
    )
    value = nested((batch[0], student), batch[1]).item()
    assert value == pytest.approx((alone + 0.1 * naive_distillation(batch[0].numpy(), (4, 12))) / 2)


@pytest.mark.parametrize("name", ["itq", "dqn"])
def test_what_has_no_prefixes_is_refused(name):
    with pytest.raises(ConfigError, match="leave out --lengths"):
        build_nested(name, lengths=(3, 8), classes=CLASSES)
