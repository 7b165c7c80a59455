"""Losses over all pairs of a batch: S = 1 where two photos share a label, else 0; means over pairs i ≠ j."""

from math import log, sqrt

import torch
from torch import Tensor, nn
from torch.nn.functional import relu, softplus, softsign

from hyphash.losses import Loss, losses
from hyphash.losses.terms import (
    balanced_likelihood,
    cosines,
    label_cosines,
    mean_over_pairs,
    pair_masks,
    similarity_likelihood,
    squared_distances,
    unit_distances,
)


@losses("contrastive")
class Contrastive(Loss):
    """S·d² + (1 − S)·max(m − d, 0)², d between unit outputs."""

    margin: float = 1.0

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        distances = unit_distances(outputs)
        together, apart = distances.square(), relu(self.margin - distances).square()
        return mean_over_pairs(torch.where(self.related(labels), together, apart))


@losses("dhn")
class DHN(Loss):
    """log(1 + e^θ) − Sθ with θ = ½u·u′, + λ·mean log cosh(|u| − 1); u = tanh(z), or z with tanh=False."""

    weight: float = 0.1
    tanh: bool = True

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        u = outputs.tanh() if self.tanh else outputs
        pairs = similarity_likelihood(u @ u.T / 2, self.related(labels))
        return mean_over_pairs(pairs) + self.weight * log_cosh(u.abs() - 1).mean()


def log_cosh(x: Tensor) -> Tensor:
    """log cosh x = |x| + log(1 + e^{−2|x|}) − log 2, which does not overflow: a smooth |x|."""
    return x.abs() + softplus(-2 * x.abs()) - log(2)


@losses("hashnet")
class HashNet(Loss):
    """Weighted log(1 + e^θ) − Sθ, θ = (α/K)u·u′, u = tanh(βz); β = √(1 + .005·step) turns tanh into the sign.

    A pair weighs N/N_S, all pairs over those of its kind, so the two kinds count the same however rare one
    is: the weighted mean is the sum of the two kinds' means. β grows with the run's progress as it did over
    the authors' 10,000 steps.
    """

    alpha: float = 10.0
    growth: float = 0.005
    steps: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        self.beta = nn.Buffer(torch.tensor(1.0))

    def set_progress(self, progress: float) -> None:
        self.beta.fill_(sqrt(1 + self.growth * self.steps * progress))

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        u = torch.tanh(self.beta * outputs)
        return balanced_likelihood(self.alpha / self.bits * u @ u.T, *pair_masks(self.related(labels)))


@losses("dsh")
class DSH(Loss):
    """½S‖u − u′‖² + ½(1 − S)·max(m − ‖u − u′‖², 0) with m = 2K, + λ·Σ ||u| − 1|; u = z."""

    weight: float = 0.01

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        squared, similar = squared_distances(outputs, outputs), self.similarity(labels)
        pull = similar * squared
        push = (1 - similar) * relu(2 * self.bits * (1 - similar) - squared)  # the whole margin where S = 0
        return mean_over_pairs(pull + push) / 2 + self.weight * (outputs.abs() - 1).abs().sum(1).mean()

    def similarity(self, labels: Tensor) -> Tensor:
        return self.related(labels).to(labels.dtype)


@losses("dmssph")
class DMSSPH(DSH):
    """DSH with a graded target: S is the Jaccard overlap of the two label sets, and the margin is 2K(1 − S).

    ½S‖u − u′‖² + ½(1 − S)·max(2K(1 − S) − ‖u − u′‖², 0) + λ·Σ ||u| − 1|: our reconstruction of a method whose
    code is not public.
    """

    def similarity(self, labels: Tensor) -> Tensor:
        shared = self.gains(labels)
        counts = shared.diagonal()
        return shared / (counts[:, None] + counts - shared).clamp(min=1)  # empty sets have nothing in common


@losses("idhn")
class IDHN(Loss):
    """Pairs with all labels or none in common are classified, those between are fitted; s = cos(y, y′).

    s ∈ {0, 1}: log(1 + e^θ) − sθ with θ = (α/K)u·u′; else γ·K·((u·u′ + K)/2K − s)²; + λ·mean ||u| − 1|;
    u = z/(1 + |z|).
    """

    alpha: float = 5.0
    gamma: float = 0.1
    weight: float = 0.1

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        u = softsign(outputs)
        products, s = u @ u.T, label_cosines(self.gains(labels))
        hard = (s < 1e-6) | (s > 1 - 1e-6)
        classified = similarity_likelihood(self.alpha / self.bits * products, s)
        fitted = self.gamma * self.bits * ((products + self.bits) / (2 * self.bits) - s).square()
        pairs = mean_over_pairs(torch.where(hard, classified, fitted))
        return pairs + self.weight * (u.abs() - 1).abs().mean()


@losses("dash-ps")
class DASHPS(Loss):
    """Σ over all ordered pairs, c = cos(z, z′): −(1 − c)·log c where S = 1, −(1 − p)^γ·log p where S = 0.

    p = min(1, 1 − c + m). The factors before the logarithms have no gradient, nor have related pairs with c ≤ 0.
    """

    shift: float = 0.05
    gamma: float = 5.0

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        near = cosines(outputs, outputs)
        far = (1 - near + self.shift).clamp(max=1)
        together = (1 - near).detach() * near.clamp(min=1e-8).log()
        apart = (1 - far).detach() ** self.gamma * far.log()
        return -torch.where(self.related(labels), together, apart).sum()
