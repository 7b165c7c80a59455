"""Losses since HyP² that compare photos with proxies and with each other, or with another view of themselves."""

from dataclasses import field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy, cosine_similarity, normalize, relu

from hyphash.losses import Scheduled, heads, losses
from hyphash.losses.hyp2 import HyP2, ProxyLoss
from hyphash.losses.terms import cosines, cross_entropy, label_cosines, label_shares, mean_where, pair_masks
from hyphash.losses.tuples import triplet_term
from hyphash.networks import Head


@losses("sprch")
class SPRCH(Scheduled):
    """−mean log[(P + λ⁺P̂)/(P + λ⁺P̂ + M + λ⁻M̂)]: P and M of related and other photos, P̂ and M̂ of own and other labels.

    They sum w·e^{cos/τ}, of u = tanh z and prototypes; w, without gradient, is e^{−(1 + cos)δ/4} in P and P̂ and
    e^{−(1 − cos)δ} in M and M̂: pairs that are learned already count less and less, δ = min(1, 3·progress). λ⁺ and λ⁻
    are the photos over the labels that a sum is of, and a photo is related to itself.
    """

    tau: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.prototypes = nn.Linear(self.classes, self.bits)

    def anchors(self) -> Tensor:
        return (self.prototypes.weight.T + self.prototypes.bias).tanh()

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        u, own = outputs.tanh(), labels > 0
        related = self.related(labels) | torch.eye(len(u), dtype=torch.bool, device=u.device)
        near, far = self.sums(cosines(u, u), related)
        own_near, other_near = self.sums(cosines(u, self.anchors()), own)
        near = near + related.sum(1) / own.sum(1).clamp(min=1) * own_near
        far = far + (~related).sum(1) / (~own).sum(1).clamp(min=1) * other_near
        return -(near / (near + far)).log().mean()

    def sums(self, cosines: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
        """Each row's Σ w·e^{cos/τ} over its positives, and over the others."""
        pace, fixed = (3 * self.progress).clamp(max=1), cosines.detach()
        weights = torch.where(positive, -(1 + fixed) * pace / 4, -(1 - fixed) * pace).exp()
        terms = weights * (cosines / self.tau).exp()
        return torch.where(positive, terms, 0).sum(1), torch.where(positive, 0, terms).sum(1)


@losses("dcgh")
class DCGH(HyP2):
    """HyP² of tanh z with β .8 and ζ = 0, + λ·mean_{s>0} max(s − cos, 0) + mean of Var_c[y_c(1 − cos(u, p_c))].

    s = cos(y, y′), a photo with itself included: pairs no farther apart than their labels, proxies at one distance.
    """

    margin: float | None = field(default=0.0, init=False)
    beta: float = 0.8
    weight: float = 0.05

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        u, s = normalize(outputs.tanh()), label_cosines(self.gains(labels))
        together = mean_where(s > 0, relu(s - u @ u.T))
        uneven = (labels * (1 - u @ normalize(self.proxies).T)).var(1).mean()
        return super().forward(u, labels) + self.weight * together + uneven


@losses("dscph")
class DScPH(ProxyLoss):
    """1 − T/(T + F + G) over photos and proxies, + semi-hard triplets, + unrelated pairs apart, + σ(r)(1 − σ(r)).

    T = 2Σ y·max(cos, 0) + 2, F = Σ y(1 − cos)·e^{α(1 − cos)}, G = Σ_{cos>m} (1 − y)(cos − m)·e^{α(cos − 1)}, the powers
    without gradient; mean (cos_an − cos_ap + ε) over triplets with 0 < cos_ap − cos_an < ε; mean max(u·u′ − β, 0) over
    unrelated pairs with cos ≥ β; r a learned rotation of u = tanh z, of length 1. ε = (mean cos_ap − mean cos_an)/2
    and β = (1 + mean cos_an)/2 are of the batch's pairs, our choice: its code takes an epoch's first batch.
    u·u′ is the raw product, as in its code, though all else is cosines.
    """

    alpha: float = 1.3
    margin: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rotation = nn.Parameter(nn.init.orthogonal_(torch.empty(self.bits, self.bits)))

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        u, related = outputs.tanh(), self.related(labels)
        spread = normalize(u @ self.rotation).sigmoid()
        return self.proxy_term(u, labels) + self.pair_terms(u, related) + (spread * (1 - spread)).mean()

    def proxy_term(self, u: Tensor, labels: Tensor) -> Tensor:
        near = cosines(u, self.proxies)
        found = 2 * (labels * relu(near)).sum() + 2
        missed = labels * (1 - near) * (self.alpha * (1 - near.detach())).exp()
        wrong = (1 - labels) * relu(near - self.margin) * (self.alpha * (near.detach() - 1)).exp()
        return 1 - found / (found + missed.sum() + wrong.sum())

    def pair_terms(self, u: Tensor, related: Tensor) -> Tensor:
        near, (positive, negative) = cosines(u, u), pair_masks(related)
        alike, unlike = (mean_where(kind, near.detach()) for kind in (positive, negative))
        triplets = triplet_term(1 - near, related, ((alike - unlike) / 2).clamp(min=1e-6), semi_hard=True)
        least = (1 + unlike) / 2
        return triplets + mean_where(negative & (near >= least), relu(u @ u.T - least))


@heads("dhd")
class NormedHead(Head):
    """A linear layer without bias, then the normalisation of each photo's outputs among themselves."""

    def __init__(self, *, features: int, bits: int, classes: int, **options: Any) -> None:
        super().__init__(features=features, bits=bits, classes=classes, **options)
        self.hash = nn.Linear(self.trunk.width, bits, bias=False)
        self.norm = nn.LayerNorm(bits)

    def forward(self, features: Tensor) -> Any:
        return self.norm(super().forward(features))


@losses("dhd")
class DHD(ProxyLoss):
    """Cross-entropy of softmax(cos(u_t, p)/τ) with y/|y|, + λ·[mean (1 − cos(u_s, u_t)) + BCE(g₊, h) + BCE(g₋, 1 − h)].

    u = tanh z, u_t of one view of the photo, u_s of another, which learns from the first and not the other way round;
    without a second view its term is left out. g± = e^{−½((u_t ∓ 1)/.5)²} and h = [u_t > 0] draw outputs to ±1.
    """

    two_views = True
    tau: float = 0.2
    weight: float = 0.1

    def forward(self, outputs: Tensor | tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        views = [view.tanh() for view in (outputs if isinstance(outputs, tuple) else (outputs,))]
        u, on = views[0], (views[0] > 0).to(views[0].dtype)
        fit = cross_entropy(cosines(u, self.proxies) / self.tau, label_shares(labels))
        above, below = ((-2 * (u - side).square()).exp() for side in (1, -1))  # −½(·/.5)²
        quantisation = binary_cross_entropy(above, on) + binary_cross_entropy(below, 1 - on)
        distilled = sum(((1 - cosine_similarity(other, u.detach())).mean() for other in views[1:]), u.new_zeros(()))
        return fit + self.weight * (distilled + quantisation)
