"""NINH, IAH and OLAH: their heads and what their losses count."""

from math import exp

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.testing import assert_close

from hyphash.errors import ConfigError
from hyphash.losses.regions import IAH, NINH, OLAH, DivideAndEncodeHead, InstanceHead, MaskHead

BITS, CLASSES, FEATURES = 12, 5, 20


def hinge_mean(units, labels, margin: float) -> float:
    related, n = labels @ labels.T > 0, len(units)
    squared = ((units[:, None] - units[None]) ** 2).sum(2)
    return float(np.mean([
        max(squared[a, p] - squared[a, k] + margin, 0)
        for a in range(n) for p in range(n) for k in range(n)
        if a != p and related[a, p] and k != a and not related[a, k]
    ]))  # fmt: skip


def test_ninh_matches_its_twin(batch):
    def unit(z: float) -> float:
        s = 1 / (1 + exp(-z))
        return 0.0 if s < 0.3 else 1.0 if s > 0.7 else s

    units = np.vectorize(unit)(batch[0].numpy())
    assert {0.0, 1.0} < set(units.ravel())
    expected = hinge_mean(units, batch[1].numpy(), 1.0)
    assert NINH(bits=BITS, classes=CLASSES)(*batch).item() == pytest.approx(expected)


@pytest.mark.parametrize(("width", "bits"), [(20, 1), (20, 7), (20, 20), (20, 100)])
def test_each_unit_sees_a_slice_of_its_own(width, bits):
    head = DivideAndEncodeHead(features=width, bits=bits, classes=CLASSES)
    sizes = head.slices.sum(1)
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 1
    if bits <= width:
        assert (head.slices.sum(0) == 1).all()  # every feature in one slice
    features = torch.randn(1, width, requires_grad=True)
    (gradient,) = torch.autograd.grad(head(features)[0, bits - 1], features)
    assert_close(gradient[0] != 0, head.slices[bits - 1])


def test_label_scores_and_triplets_are_both_counted(batch):
    scores = torch.randn(len(batch[0]), CLASSES, dtype=torch.float64)
    units = batch[0].sigmoid().numpy()
    triplets = hinge_mean(units / np.sqrt(BITS), batch[1].numpy(), 0.25)
    labels = binary_cross_entropy_with_logits(scores, batch[1]).item()
    for loss in (IAH, OLAH):
        made = loss(bits=BITS, classes=CLASSES, weight=0.5, margin=0.25)
        assert made((batch[0], scores), batch[1]).item() == pytest.approx(triplets + 0.5 * labels)


@pytest.mark.parametrize(("head", "name"), [(InstanceHead, "iah"), (MaskHead, "olah")])
def test_pooled_features_are_refused_with_a_way_out(head, name):
    with pytest.raises(ConfigError, match=f"{name} looks at regions.*fine-tune"):
        head(features=FEATURES, bits=BITS, classes=CLASSES)(torch.randn(3, FEATURES))


@pytest.mark.parametrize("size", [(1, 1), (2, 5), (7, 7)])
@pytest.mark.parametrize("head", [InstanceHead, MaskHead])
def test_maps_of_any_size(head, size):
    made = head(features=FEATURES, bits=BITS, classes=CLASSES, hidden=16)
    outputs, scores = made(torch.randn(3, FEATURES, *size))
    assert outputs.shape == (3, BITS)
    assert scores.shape == (3, CLASSES)


def test_instance_head_matches_its_equations():
    torch.manual_seed(0)
    head = InstanceHead(features=FEATURES, bits=BITS, classes=CLASSES, grid=2).double()
    maps = torch.randn(1, FEATURES, 2, 2, dtype=torch.float64)
    outputs, scores = head(maps)
    x = [maps[0, :, i, j] for i in range(2) for j in range(2)]
    z, label_scores = torch.zeros(BITS, dtype=torch.float64), []
    for c in range(CLASSES):
        at = torch.stack([head.scores.weight[c] @ region + head.scores.bias[c] for region in x])
        seen = sum(w * region for w, region in zip(at.exp() / at.exp().sum(), x, strict=True))
        z = z + at.max().sigmoid() * (head.slices[c].T @ seen)
        label_scores.append(at.max())
    assert_close(outputs[0], z)
    assert_close(scores[0], torch.stack(label_scores))


def test_a_mask_that_sees_one_cell_hashes_that_cell_alone():
    torch.manual_seed(0)
    head = MaskHead(features=FEATURES, bits=BITS, classes=CLASSES)
    maps = torch.randn(2, FEATURES, 3, 3)
    maps[:, 0] = -1e4
    maps[:, 0, 1, 2] = 1e4  # the first feature says where the object is
    with torch.no_grad():
        first, last = head.mask[0], head.mask[2]
        first.weight.zero_()
        first.bias.zero_()
        first.weight[0, 0] = 1
        last.weight.zero_()
        last.weight[0, 0] = 1
        last.bias.fill_(-50)
    outputs, _ = head(maps)
    assert_close(outputs, head.hash(maps[:, :, 1, 2]), rtol=1e-4, atol=1e-2)
