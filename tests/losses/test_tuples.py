"""Triplet, N-pair and lifted losses against loops over all tuples, and against pytorch-metric-learning."""

from math import exp, log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import losses as single_label
from pytorch_metric_learning.distances import DotProductSimilarity
from pytorch_metric_learning.miners import TripletMarginMiner
from pytorch_metric_learning.reducers import MeanReducer
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.testing import assert_close

from hyphash.errors import ConfigError
from hyphash.losses.terms import unit_distances
from hyphash.losses.tuples import (
    IAH,
    NINH,
    OLAH,
    DivideAndEncodeHead,
    InstanceHead,
    Lifted,
    MaskHead,
    NPair,
    TripletSemiHard,
    TripletSmart,
    triplet_term,
)

BITS, CLASSES = 12, 5


def unit_distance(outputs) -> np.ndarray:
    unit = outputs / np.linalg.norm(outputs, axis=1, keepdims=True)
    return np.linalg.norm(unit[:, None] - unit[None], axis=2)


def triplets(labels):
    n = len(labels)
    related = labels @ labels.T > 0
    for a in range(n):
        for p in range(n):
            for k in range(n):
                if a != p and related[a, p] and k not in (a, p) and not related[a, k]:
                    yield a, p, k


def test_semi_hard_matches_its_twin(batch):
    d = unit_distance(batch[0].numpy())
    terms = [d[a, p] - d[a, k] + 0.2 for a, p, k in triplets(batch[1].numpy()) if d[a, p] < d[a, k] < d[a, p] + 0.2]
    assert terms
    assert TripletSemiHard(bits=BITS, classes=CLASSES)(*batch).item() == pytest.approx(np.mean(terms))


def test_semi_hard_agrees_on_single_labels(single):
    outputs, classes = single[0], single[1].argmax(1)
    mined = TripletMarginMiner(margin=0.2, type_of_triplets="semihard")(outputs, classes)
    expected = single_label.TripletMarginLoss(margin=0.2)(outputs, classes, mined)
    assert_close(TripletSemiHard(bits=BITS, classes=CLASSES)(*single), expected)


def test_smart_matches_its_twin(batch):
    d, labels = unit_distance(batch[0].numpy()), batch[1].numpy()
    related = labels @ labels.T > 0
    terms, without = [], 0
    for a in range(len(d)):
        negatives = [d[a, k] for k in range(len(d)) if k != a and not related[a, k]]
        for p in range(len(d)):
            if p != a and related[a, p] and negatives:
                beyond = [far for far in negatives if far > d[a, p]]
                without += not beyond
                terms.append(max(d[a, p] - min(beyond or [max(negatives)]) + 0.2, 0))
    assert 0 < without < len(terms)
    assert TripletSmart(bits=BITS, classes=CLASSES)(*batch).item() == pytest.approx(np.mean(terms))


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 9), seed=st.integers(0, 1000), margin=st.sampled_from([0.0, 0.2, 1.0, 50.0]))
def test_all_triplets_by_sorting_are_all_triplets(n, seed, margin):
    """Value and gradient, with ties among the distances."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, (n, 3))
    rough = torch.from_numpy(generator.integers(0, 4, (n, n)).astype(float)).requires_grad_()
    loss = triplet_term(rough, torch.from_numpy(labels @ labels.T > 0), margin)
    (gradient,) = torch.autograd.grad(loss, rough)
    terms = [torch.relu(rough[a, p] - rough[a, k] + margin) for a, p, k in triplets(labels)]
    expected = torch.stack(terms).mean() if terms else 0 * rough.sum()
    assert_close(loss, expected)
    if margin not in (0.0, 1.0):  # at the hinge's corner every slope from 0 to 1 is right
        assert_close(gradient, torch.autograd.grad(expected, rough)[0])


def test_all_triplets_agree_on_single_labels(single):
    expected = single_label.TripletMarginLoss(margin=0.2, reducer=MeanReducer())(single[0], single[1].argmax(1))
    assert_close(triplet_term(unit_distances(single[0]), single[1] @ single[1].T > 0, 0.2), expected)


def test_n_pair_matches_its_twin(batch):
    outputs, labels = (t.numpy() for t in batch)
    related = labels @ labels.T > 0
    half = len(outputs) // 2
    positive = {}
    for a in range(half):
        for step in range(half):
            candidate = half + (a + step) % half
            if related[a, candidate]:
                positive[a] = candidate
                break
    terms = []
    for a, own in positive.items():
        rivals = [p for b, p in positive.items() if b != a and not related[a, p]]
        ours = outputs[a] @ outputs[own]
        terms.append(log(1 + sum(exp(outputs[a] @ outputs[p] - ours) for p in rivals)))
    assert 1 < len(terms) < half + 1
    expected = np.mean(terms) + 0.02 * np.mean([u @ u for u in outputs])
    assert NPair(bits=BITS, classes=CLASSES)(*batch).item() == pytest.approx(expected)


def test_n_pair_agrees_on_single_labels():
    """On pairs of one class each, the anchors first; raw outputs, and no ‖u‖²."""
    torch.manual_seed(0)
    outputs, classes = torch.randn(10, BITS, dtype=torch.float64), torch.arange(5).repeat(2)
    raw = DotProductSimilarity(normalize_embeddings=False)
    ours = NPair(bits=BITS, classes=CLASSES, weight=0.0)(outputs, torch.eye(5)[classes])
    assert_close(ours, single_label.NPairsLoss(distance=raw)(outputs, classes))


def test_n_pair_does_mind_the_order(batch):
    loss = NPair(bits=BITS, classes=CLASSES)
    assert loss(*batch) != loss(batch[0].flip(0), batch[1].flip(0))


def test_n_pair_takes_an_odd_batch(batch):
    outputs = batch[0][:7].clone().requires_grad_()
    loss = NPair(bits=BITS, classes=CLASSES, weight=0.0)(outputs, batch[1][:7])
    loss.backward()
    assert loss > 0
    assert outputs.grad.isfinite().all()


def test_lifted_matches_its_twin(batch):
    d, labels = unit_distance(batch[0].numpy()), batch[1].numpy()
    related = labels @ labels.T > 0
    n, terms = len(d), []
    for i in range(n):
        for j in range(n):
            if i != j and related[i, j]:
                negatives = sum(exp(1 - d[i, k]) for k in range(n) if k != i and not related[i, k])
                negatives += sum(exp(1 - d[j, k]) for k in range(n) if k != j and not related[j, k])
                terms.append(max(log(negatives) + d[i, j], 0) ** 2 / 2)
    assert Lifted(bits=BITS, classes=CLASSES)(*batch).item() == pytest.approx(np.mean(terms))


def test_lifted_agrees_on_single_labels(single):
    expected = single_label.LiftedStructureLoss(neg_margin=1, pos_margin=0)(single[0], single[1].argmax(1))
    assert_close(Lifted(bits=BITS, classes=CLASSES)(*single), expected)


@pytest.mark.parametrize("loss", [TripletSemiHard, TripletSmart, Lifted])
def test_memory_grows_with_the_square_of_the_batch(loss):
    """No table of triplets: the largest tensor that autograd keeps has about n² numbers."""
    sizes = []

    def note(tensor):
        sizes.append(tensor.numel())
        return tensor

    n = 128
    torch.manual_seed(0)
    outputs, labels = torch.randn(n, BITS, requires_grad=True), torch.eye(CLASSES)[torch.arange(n) % CLASSES]
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss(bits=BITS, classes=CLASSES)(outputs, labels).backward()
    assert max(sizes) <= n * (n + 1)


# NINH, IAH and OLAH: their heads and what their losses count.

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
