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
from torch.testing import assert_close

from hyphash.losses.terms import unit_distances
from hyphash.losses.tuples import Lifted, NPair, TripletSemiHard, TripletSmart, triplet_term

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
