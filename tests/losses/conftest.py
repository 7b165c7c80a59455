"""Batches that the naive twins of the losses are compared on."""

import numpy as np
import pytest
import torch
from torch import Tensor

BITS, CLASSES = 12, 5


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    """Sixteen photos with one to three labels each and one without any, in float64."""
    generator = np.random.default_rng(0)
    labels = np.zeros((16, CLASSES))
    for row in labels[:-1]:
        row[generator.choice(CLASSES, generator.integers(1, 4), replace=False)] = 1
    return torch.from_numpy(generator.normal(0.4, 1, size=(16, BITS))), torch.from_numpy(labels)


@pytest.fixture
def single() -> tuple[Tensor, Tensor]:
    """Twelve photos with one label each, every class at least twice, in float64."""
    generator = np.random.default_rng(1)
    classes = torch.tensor([0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 4, 2])
    return torch.from_numpy(generator.normal(0.8, 1, size=(12, BITS))), torch.eye(CLASSES, dtype=torch.float64)[classes]
