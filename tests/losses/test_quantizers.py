"""DQN: its loss, its head, and search with what the head has learned."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from hyphash.losses.quantizers import DQN, QuantizingHead
from hyphash.quantizer import Quantizer

CLASSES = 5


def test_dqn_matches_its_twin(batch):
    outputs, labels = batch
    points = outputs.round()
    u, y, b = outputs.numpy(), labels.numpy(), points.numpy()
    terms = []
    for i in range(len(u)):
        for j in range(len(u)):
            if i != j:
                cosine = u[i] @ u[j] / np.linalg.norm(u[i]) / np.linalg.norm(u[j])
                terms.append(((1 if y[i] @ y[j] > 0 else -1) - cosine) ** 2)
    expected = np.mean(terms) + 0.3 * np.mean([sum((u[i] - b[i]) ** 2) for i in range(len(u))])
    loss = DQN(bits=12, classes=CLASSES, weight=0.3)
    assert loss((outputs, points), labels).item() == pytest.approx(expected)


@pytest.mark.parametrize(("bits", "shape"), [(1, (1, 2, 300)), (12, (2, 256, 150)), (100, (13, 256, 24))])
def test_bits_are_shared_out_to_subspaces(bits, shape):
    head = QuantizingHead(features=20, bits=bits, classes=CLASSES)
    outputs, points = head(torch.randn(6, 20))
    assert head.codewords().shape == shape
    assert outputs.shape == points.shape == (6, shape[0] * shape[2])
    assert outputs.abs().max() <= 1


def test_points_are_the_nearest_codewords():
    """What the head returns in training is what the quantiser gives back for its codes."""
    torch.manual_seed(0)
    head = QuantizingHead(features=20, bits=12, classes=CLASSES)
    features = torch.randn(40, 20)
    head(features)
    before = Quantizer(head.codewords().numpy().copy(), 12)
    outputs, points = head(features)
    assert_close(points.numpy(), before.decode(before.encode(outputs.detach().numpy())))


def test_the_last_subspace_uses_no_more_codewords_than_its_bits_allow():
    torch.manual_seed(0)
    head = QuantizingHead(features=20, bits=9, classes=CLASSES)
    for _ in range(3):
        head(torch.randn(50, 20))
    pieces = torch.randn(2, 30, 150)
    assert head.nearest(pieces)[1].max() < 2
    assert head.nearest(pieces)[0].max() >= 2


def test_codewords_learn_the_clusters_of_the_outputs():
    """Twelve tight clusters and 256 codewords: after some steps every output lies on a codeword."""
    torch.manual_seed(0)
    head = QuantizingHead(features=20, bits=8, classes=CLASSES)
    centers = torch.randn(12, 20)

    def error() -> float:
        outputs, points = head(centers[torch.randint(12, (64,))] + 0.05 * torch.randn(64, 20))
        return (outputs - points).square().sum(1).mean().item()

    random_points = torch.rand(64, 300) * 2 - 1
    outputs = head(centers[torch.randint(12, (64,))])[0]
    assert np.mean([error() for _ in range(20)][10:]) < 0.1 * (outputs - random_points).square().sum(1).mean().item()


def test_forgotten_codewords_start_anew():
    torch.manual_seed(0)
    head = QuantizingHead(features=20, bits=8, classes=CLASSES)
    head(torch.randn(30, 20))
    head.words[0, :100] = 50.0  # so far out that nothing is near to them
    for _ in range(300):
        head(torch.randn(30, 20))
    assert head.codewords().abs().max() <= 1


def test_nothing_is_learned_at_search_time():
    head = QuantizingHead(features=20, bits=12, classes=CLASSES)
    head(torch.randn(30, 20))
    words = head.codewords().clone()
    head.eval()(torch.randn(30, 20))
    assert_close(head.codewords(), words, rtol=0, atol=0)
