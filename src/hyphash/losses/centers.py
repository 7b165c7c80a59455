"""Losses with fixed centres: codewords chosen before training, far from each other."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, binary_cross_entropy_with_logits, relu

from hyphash.coding import codebook
from hyphash.losses import NO_PEERS, Loss, Peers, heads, losses
from hyphash.losses.terms import cosines, cross_entropy, label_shares, mean_where
from hyphash.networks import Head


@heads("orthohash")
class BalancedHead(Head):
    """A linear layer without bias, then batch normalisation: every bit is on for about half of the photos."""

    peers: Peers = NO_PEERS
    affine = True  # whether the normalised outputs get a scale and a shift of their own

    def __init__(self, *, features: int, bits: int, classes: int, **options: Any) -> None:
        super().__init__(features=features, bits=bits, classes=classes, **options)
        self.hash = nn.Linear(self.trunk.width, bits, bias=False)
        self.balance = nn.BatchNorm1d(bits, affine=self.affine)

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.hash(self.trunk(features))
        alone = len(outputs) == self.peers.size == 1
        if self.training and alone:  # one photo has no variance: use what earlier batches taught
            past = self.balance
            return batch_norm(outputs, past.running_mean, past.running_var, past.weight, past.bias)
        return self.balance(outputs)


class FixedCenters(Loss):
    """One codeword of −1 and +1 a class, (classes, bits), is the class's place in code space."""

    def __post_init__(self) -> None:
        super().__post_init__()
        codewords = codebook(classes=self.classes, bits=self.bits)
        self.codewords = nn.Buffer(torch.tensor(codewords, dtype=torch.float32))

    def anchors(self) -> Tensor:
        return self.codewords


@losses("orthohash")
class OrthoHash(FixedCenters):
    """Cross-entropy of softmax(s(cos(u, c) − m·y)) with target y/|y| over fixed codewords c.

    Its authors draw the codewords at random; ours come from `codebook` and lie farther apart.
    """

    scale: float = 8.0
    margin: float = 0.2

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        logits = self.scale * (cosines(outputs, self.codewords) - self.margin * labels)
        return cross_entropy(logits, label_shares(labels))


@losses("csq")
class CSQ(FixedCenters):
    """Every photo has one target: the sign of the sum of its classes' codewords. u = tanh(z).

    BCE between (u + 1)/2 and the target's bits, + λ·mean (|u| − 1)². Where the sum is 0, one fixed random
    vector decides. Its authors take Hadamard rows for powers of two and random ones otherwise; ours come from
    `codebook`, which has Hadamard rows for 12, 24, 36 and 48 bits as well.
    """

    weight: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        coin = torch.Generator().manual_seed(0)
        self.tie_break = nn.Buffer(torch.randint(0, 2, (self.bits,), generator=coin) * 2.0 - 1)

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        target = self.targets(labels)
        # (tanh z + 1)/2 = σ(2z), and the logistic form neither overflows nor loses digits
        terms = binary_cross_entropy_with_logits(2 * outputs, (target + 1) / 2, reduction="none")
        labelled = (labels > 0).any(1, keepdim=True).expand_as(terms)
        quantisation = (outputs.tanh().abs() - 1).square().mean()
        return mean_where(labelled, terms) + self.weight * quantisation

    def targets(self, labels: Tensor) -> Tensor:
        """The centre of each photo, (n, bits) of −1 and +1."""
        votes = labels @ self.codewords
        return torch.where(votes == 0, self.tie_break, votes.sign())


@losses("dpn")
class DPN(FixedCenters):
    """mean over photos of Σ_c y_c Σ_k max(1 − z_k·b_ck, 0), + λ·mean z²: every output past 1 on its labels' side.

    Labels whose codewords differ in a bit leave it free between −1 and 1. Its authors draw the codewords at random;
    ours come from `codebook`.
    """

    weight: float = 0.0

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        above, below = (labels @ (side * self.codewords).clamp(min=0) for side in (1, -1))  # labels that want a bit so
        hinges = above * relu(1 - outputs) + below * relu(1 + outputs)
        return hinges.sum(1).mean() + self.weight * outputs.square().mean()
