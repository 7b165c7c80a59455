"""Losses with learnable proxies or prototypes: every photo is compared with C points."""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from hyphash.losses import Loss, heads, losses
from hyphash.losses.centers import BalancedHead
from hyphash.losses.hyp2 import ProxyLoss, draw_proxies
from hyphash.losses.terms import balanced_likelihood, cosines, cross_entropy, label_shares, log1p_sum_exp, pair_masks


@heads("centred")
class CentredHead(BalancedHead):
    """A linear layer, then batch normalisation without a scale and shift of its own: every output stays around 0.

    With several labels a photo most proxies push it away, photos crowd on the far side of all proxies, and without
    this the signs of their outputs would hardly differ.
    """

    affine = False


@losses("proxy-anchor")
class ProxyAnchor(ProxyLoss):
    """Each proxy gathers its own photos and drives off the others, the harder the farther off they are.

    (1/|P⁺|) Σ_c log(1 + Σ_{y_c=1} e^{−α(cos−m)}) + (1/C) Σ_c log(1 + Σ_{y_c=0} e^{α(cos+m)}), P⁺ the classes
    present. Its authors know one label a photo and take no signs; a head that keeps outputs around 0 is our adaptation.
    """

    alpha: float = 32.0
    margin: float = 0.1

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        to_proxy = cosines(outputs, self.proxies)
        own = labels > 0
        pull = log1p_sum_exp(own, -self.alpha * (to_proxy - self.margin), dim=0)  # 0 for absent classes
        push = log1p_sum_exp(~own, self.alpha * (to_proxy + self.margin), dim=0)
        present = own.any(0).sum().clamp(min=1)
        return pull.sum() / present + push.mean()


@losses("proxy-nca")
class ProxyNCA(ProxyLoss):
    """Cross-entropy over −‖s·x − s·p‖² of unit vectors x and p, with smoothed labels.

    The target y/|y| for several labels a photo is our adaptation.
    """

    scale: float = 3.0
    smoothing: float = 0.1

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        squared = self.scale**2 * (2 - 2 * cosines(outputs, self.proxies))  # ‖s·x − s·p‖²
        labelled = (labels > 0).any(1, keepdim=True)
        target = (1 - self.smoothing) * label_shares(labels) + self.smoothing / self.classes * labelled
        return cross_entropy(-squared, target)


@losses("soft-triple")
class SoftTriple(Loss):
    """Cross-entropy where a class has several centres and photos lean to the nearest of them.

    Similarity to a class S_c = Σ_k softmax_k(cos/γ)·cos over its k centres; cross-entropy of λ(S_c − δ·y_c);
    + τ × the mean distance between centres of one class, which merges those that are not needed.
    The target y/|y| for several labels a photo is our adaptation.
    """

    centers: int = 10
    gamma: float = 0.1
    scale: float = 20.0
    margin: float = 0.01
    tau: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        drawn = draw_proxies(self.classes * self.centers, self.bits)
        self.prototypes = nn.Parameter(drawn.view(self.classes, self.centers, self.bits))

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        to_center = torch.einsum("nb,ckb->nck", normalize(outputs), normalize(self.prototypes, dim=2))
        to_class = ((to_center / self.gamma).softmax(2) * to_center).sum(2)
        fit = cross_entropy(self.scale * (to_class - self.margin * labels), label_shares(labels))
        return fit + self.tau * self.spread()

    def spread(self) -> Tensor:
        """The mean distance between two centres of one class; 0 where a class has one only."""
        unit = normalize(self.prototypes, dim=2)
        distances = (2 + 1e-5 - 2 * unit @ unit.mT).clamp(min=1e-8).sqrt()  # (classes, centers, centers)
        return distances.triu(1).sum() / (self.classes * max(1, self.centers * (self.centers - 1)))

    def anchors(self) -> Tensor:
        return normalize(self.prototypes, dim=2).mean(1)


@losses("dcilh")
class DCILH(Loss):
    """Photos u = tanh(z), label sets l = tanh(g(y)) from a network of their own, and one prototype p a label.

    With θ(a, b) = (α/K)a·b and ℓ the balanced log-likelihood of HashNet: ℓ(u, u′; S) + ℓ(u, l′; S) + ℓ(u, p; y) + ℓ(l,
    p; y) + ρ·rank + λ·mean (|u| − 1)², rank = mean log(1 + Σ_{c∉y} Σ_{c′∈y} e^{θ(u, p_c) − θ(u, p_c′)}) puts a photo's
    labels above all others. The paper names these parts; the equations are our reconstruction.
    """

    width: int = 256
    alpha: float = 10.0
    rank: float = 1.0
    weight: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        hidden, last = nn.Linear(self.classes, self.width), nn.Linear(self.width, self.bits)
        self.label_network = nn.Sequential(hidden, nn.ReLU(), last, nn.Tanh())
        self.prototypes = draw_proxies(self.classes, self.bits)

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        photos, sets, prototypes = outputs.tanh(), self.label_network(labels), self.prototypes.tanh()
        related, own, alpha = self.related(labels), labels > 0, self.alpha / self.bits
        scores = alpha * photos @ prototypes.T
        similarity = (
            balanced_likelihood(alpha * photos @ photos.T, *pair_masks(related))
            + balanced_likelihood(alpha * photos @ sets.T, related, ~related)
            + balanced_likelihood(scores, own, ~own)
            + balanced_likelihood(alpha * sets @ prototypes.T, own, ~own)
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
