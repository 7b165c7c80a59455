"""Losses where photos, label sets and single labels meet in one space."""

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from hyphash.losses import FROZEN_ADAM, Loss, balanced_likelihood, losses, others, share_labels
from hyphash.losses.hyp2 import draw_proxies
from hyphash.losses.pairs import SGD


@losses("dcilh")
class DCILH(Loss):
    """Photos u = tanh(z), label sets l = tanh(g(y)) from a network of their own, and one prototype p a label.

    With θ(a, b) = (α/K)a·b and ℓ the balanced log-likelihood of HashNet:
    ℓ(u, u′; S) + ℓ(u, l′; S) + ℓ(u, p; y) + ℓ(l, p; y) + ρ·rank + λ·mean (|u| − 1)²,
    rank = mean log(1 + Σ_{c∉y} Σ_{c′∈y} e^{θ(u, p_c) − θ(u, p_c′)}) puts a photo's labels above all others.
    The paper names these parts; the equations are our reconstruction.
    """

    family = "proxies and pairs"
    paper = "Shen et al., Deep Co-Image-Label Hashing for Multi-Label Image Retrieval, TMM 2022"
    complexity = "O(MC + M²)"
    adapted = True
    recipe = {**SGD, "rate": 1e-2, "loss_rate": 1e-2}
    frozen_recipe = FROZEN_ADAM

    def __init__(
        self,
        *,
        bits: int,
        classes: int,
        width: int = 256,
        alpha: float = 10.0,
        rank: float = 1.0,
        weight: float = 0.1,
    ) -> None:
        super().__init__()
        self.label_network = nn.Sequential(nn.Linear(classes, width), nn.ReLU(), nn.Linear(width, bits), nn.Tanh())
        self.prototypes = draw_proxies(classes, bits)
        self.alpha = alpha / bits
        self.rank = rank
        self.weight = weight

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        photos, sets, prototypes = outputs.tanh(), self.label_network(labels), self.prototypes.tanh()
        related, own = share_labels(labels), labels > 0
        scores = self.alpha * photos @ prototypes.T
        pair, all_ = others(len(labels), labels.device), torch.ones_like(own)
        similarity = (
            balanced_likelihood(self.alpha * photos @ photos.T, related, pair)
            + balanced_likelihood(self.alpha * photos @ sets.T, related, torch.ones_like(related))
            + balanced_likelihood(scores, own, all_)
            + balanced_likelihood(self.alpha * sets @ prototypes.T, own, all_)
        )
        quantisation = (photos.abs() - 1).square().mean()
        return similarity + self.rank * ranking(scores, own) + self.weight * quantisation

    def anchors(self) -> Tensor:
        return self.prototypes


def ranking(scores: Tensor, own: Tensor) -> Tensor:
    """mean log(1 + Σ_{c∉y} Σ_{c′∈y} e^{s_c − s_c′}), the double sum as a product of two sums."""
    nothing = -1e4  # e^nothing is 0, and unlike −∞ it has a gradient
    highest_other = scores.masked_fill(own, nothing).logsumexp(1)
    lowest_own = (-scores).masked_fill(~own, nothing).logsumexp(1)
    return softplus(highest_other + lowest_own).mean()
