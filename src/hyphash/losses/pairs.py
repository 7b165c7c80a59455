"""Losses over all pairs of a batch: S = 1 where two photos share a label, else 0; means over pairs i ≠ j."""

from math import log, sqrt

import torch
from torch import Tensor
from torch.nn.functional import relu, softplus, softsign

from hyphash.losses import FROZEN_ADAM, SGD, Loss, losses
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

    family = "pairs"
    paper = "Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping, CVPR 2006"
    complexity = "O(M²)"
    frozen_recipe = {"rate": 0.3}  # hinges that reach few pairs give small gradients

    def __init__(self, *, bits: int, classes: int, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        distances = unit_distances(outputs)
        together, apart = distances.square(), relu(self.margin - distances).square()
        return mean_over_pairs(torch.where(self.related(labels), together, apart))


@losses("dhn")
class DHN(Loss):
    """log(1 + e^θ) − Sθ with θ = ½u·u′, + λ·mean log cosh(|u| − 1); u = tanh(z), or z with tanh=False."""

    family = "pairs"
    paper = "Zhu et al., Deep Hashing Network for Efficient Similarity Retrieval, AAAI 2016"
    complexity = "O(M²)"
    recipe = {**SGD, "rate": 1e-3, "batch": 64}

    def __init__(self, *, bits: int, classes: int, weight: float = 0.1, tanh: bool = True) -> None:
        super().__init__()
        self.weight = weight
        self.tanh = tanh

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

    family = "pairs"
    paper = "Cao et al., HashNet: Deep Learning to Hash by Continuation, ICCV 2017"
    complexity = "O(M²)"
    recipe = {
        **SGD, "rate": 3e-4, "schedule": "step", "step_every": 14, "step_factor": 0.5, "epochs": 70, "batch": 72,
    }  # fmt: skip
    published = {"nesterov": True, "rate": 3e-3, "backbone_rate": 0.1}
    frozen_recipe = FROZEN_ADAM

    beta: Tensor

    def __init__(
        self, *, bits: int, classes: int, alpha: float = 10.0, growth: float = 0.005, steps: int = 10_000
    ) -> None:
        super().__init__()
        self.register_buffer("beta", torch.tensor(1.0))
        self.alpha = alpha / bits
        self.growth = growth
        self.steps = steps

    def set_progress(self, progress: float) -> None:
        self.beta.fill_(sqrt(1 + self.growth * self.steps * progress))

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        u = torch.tanh(self.beta * outputs)
        return balanced_likelihood(self.alpha * u @ u.T, *pair_masks(self.related(labels)))


@losses("dsh")
class DSH(Loss):
    """½S‖u − u′‖² + ½(1 − S)·max(m − ‖u − u′‖², 0) with m = 2K, + λ·Σ ||u| − 1|; u = z."""

    family = "pairs"
    paper = "Liu et al., Deep Supervised Hashing for Fast Image Retrieval, CVPR 2016"
    complexity = "O(M²)"
    recipe = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 4e-3, "rate": 1e-3, "batch": 200}
    frozen_recipe = FROZEN_ADAM

    def __init__(self, *, bits: int, classes: int, weight: float = 0.01) -> None:
        super().__init__()
        self.margin = 2.0 * bits
        self.weight = weight

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        squared, similar = squared_distances(outputs, outputs), self.similarity(labels)
        pull = similar * squared
        push = (1 - similar) * relu(self.margin * (1 - similar) - squared)  # the whole margin where S = 0
        return mean_over_pairs(pull + push) / 2 + self.weight * (outputs.abs() - 1).abs().sum(1).mean()

    def similarity(self, labels: Tensor) -> Tensor:
        return self.related(labels).to(labels.dtype)


@losses("dmssph")
class DMSSPH(DSH):
    """DSH with a graded target: S is the Jaccard overlap of the two label sets, and the margin is 2K(1 − S).

    ½S‖u − u′‖² + ½(1 − S)·max(2K(1 − S) − ‖u − u′‖², 0) + λ·Σ ||u| − 1|: our reconstruction of a method whose
    code is not public.
    """

    paper = "Wu et al., Deep Supervised Hashing for Multi-Label and Large-Scale Image Retrieval, ICMR 2017"
    adapted = True
    recipe = {**SGD, "rate": 1e-3, "batch": 128}

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

    family = "pairs"
    paper = (
        "Zhang et al., Improved Deep Hashing with Soft Pairwise Similarity for Multi-label Image Retrieval, TMM 2020"
    )
    complexity = "O(M²)"
    recipe = {**SGD, "rate": 0.01, "batch": 128}
    published = {
        "optimizer": "adam", "rate": 1e-3, "backbone_rate": 0.01, "weight_decay": 0.0, "step_every": 16,  # 500 steps
    }  # fmt: skip
    frozen_recipe = FROZEN_ADAM

    def __init__(self, *, bits: int, classes: int, alpha: float = 5.0, gamma: float = 0.1, weight: float = 0.1) -> None:
        super().__init__()
        self.bits = bits
        self.alpha = alpha / bits
        self.gamma = gamma
        self.weight = weight

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        u = softsign(outputs)
        products, s = u @ u.T, label_cosines(self.gains(labels))
        hard = (s < 1e-6) | (s > 1 - 1e-6)
        classified = similarity_likelihood(self.alpha * products, s)
        fitted = self.gamma * self.bits * ((products + self.bits) / (2 * self.bits) - s).square()
        pairs = mean_over_pairs(torch.where(hard, classified, fitted))
        return pairs + self.weight * (u.abs() - 1).abs().mean()


@losses("dash-ps")
class DASHPS(Loss):
    """Σ over all ordered pairs, c = cos(z, z′): −(1 − c)·log c where S = 1, −(1 − p)^γ·log p where S = 0.

    p = min(1, 1 − c + m). The factors before the logarithms have no gradient, nor have related pairs with c ≤ 0.
    """

    family = "pairs"
    paper = "Deep Asymmetric Semantic Hashing with Probability Shifting, Expert Systems with Applications 2025"
    complexity = "O(M²)"
    recipe = {"optimizer": "adam", "rate": 1e-4, "weight_decay": 1e-4, "batch": 64, "epochs": 100}
    frozen_recipe = FROZEN_ADAM

    def __init__(self, *, bits: int, classes: int, shift: float = 0.05, gamma: float = 5.0) -> None:
        super().__init__()
        self.shift = shift
        self.gamma = gamma

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        near = cosines(outputs, outputs)
        far = (1 - near + self.shift).clamp(max=1)
        together = (1 - near).detach() * near.clamp(min=1e-8).log()
        apart = (1 - far).detach() ** self.gamma * far.log()
        return -torch.where(self.related(labels), together, apart).sum()
