"""HyP² (Xu et al., ACM MM 2022) and the ablations of its paper: proxy, pair, proxy + pair."""

from dataclasses import field

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, relu

from hyphash.coding import margin as code_margin
from hyphash.losses import Loss, losses
from hyphash.losses.terms import mean_where, pair_masks

MASKED_BATCH = 2048


class ProxyLoss(Loss):
    """One learnable proxy a class, (classes, bits), is the class's place in code space."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.proxies = draw_proxies(self.classes, self.bits)


class MarginLoss(Loss):
    """Unrelated photos are pushed to a cosine of ζ, by default the least that so many codewords can all keep."""

    margin: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.zeta = code_margin(classes=self.classes, bits=self.bits) if self.margin is None else self.margin


def draw_proxies(classes: int, bits: int) -> nn.Parameter:
    """One learnable vector a class, Kaiming normal by fan-out: standard deviation √(2/C)."""
    return nn.Parameter(nn.init.kaiming_normal_(torch.empty(classes, bits), mode="fan_out"))


def proxy_term(outputs: Tensor, proxies: Tensor, labels: Tensor, margin: float) -> Tensor:
    """pull + push (eq. 2) of unit outputs and unit proxies: towards one's own proxies, away from the others."""
    to_proxy = outputs @ proxies.T
    pull = mean_where(labels > 0, 1 - to_proxy)
    push = mean_where(labels == 0, relu(to_proxy - margin))
    return pull + push


@losses("hyp2")
class HyP2(ProxyLoss, MarginLoss):
    """Proxy loss, plus a pair term that pushes unrelated multi-label photos apart (eq. 2–4).

    pull + push + β·apart. It costs MC for the proxies and the square of the photos with several labels for the pairs.
    """

    beta: float = 1.0

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        outputs, proxies = normalize(outputs), normalize(self.proxies)
        loss = proxy_term(outputs, proxies, labels, self.zeta)
        return loss + self.beta * self.apart(outputs, labels) if self.beta else loss

    def apart(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """mean of max(cos(vᵢ, vⱼ) − ζ, 0) over ordered pairs that share no label and both carry several (eq. 3).

        The other photos are dropped first, so it costs the square of the photos with several labels. On a GPU small
        batches keep them under a mask instead: to count them would make the host wait, which costs more.
        """
        several = labels.sum(1) > 1
        if not (labels.is_cuda and len(labels) <= MASKED_BATCH):
            kept = several.nonzero().squeeze(1)
            outputs, labels, several = outputs[kept], labels[kept], several[kept]
        unrelated = ~self.related(labels) & several & several[:, None]
        return mean_where(unrelated, relu(outputs @ outputs.T - self.zeta))


@losses("proxy")
class Proxy(HyP2):
    """The proxy term of HyP² alone (β = 0), the first row of its ablation."""

    beta: float = field(default=0.0, init=False)


@losses("pair")
class Pair(MarginLoss):
    """All pairs of the batch: related ones together, unrelated ones to the margin or further.

    mean over S=1 of 1 − cos + mean over S=0 of max(cos − ζ, 0). The paper's ablation does not print this formula;
    it is our reading of its row "pair".
    """

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return pair_term(normalize(outputs), self.related(labels), self.zeta)


@losses("proxy-pair")
class ProxyPair(HyP2):
    """Proxy term + β × the term over all pairs: what HyP² would be without leaving most pairs out.

    The paper's ablation does not print this formula; it is our reading of its row "proxy + pair".
    """

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        outputs, proxies = normalize(outputs), normalize(self.proxies)
        pairs = pair_term(outputs, self.related(labels), self.zeta)
        return proxy_term(outputs, proxies, labels, self.zeta) + self.beta * pairs


def pair_term(outputs: Tensor, related: Tensor, margin: float) -> Tensor:
    """Related pairs of unit outputs pulled together, unrelated ones pushed apart; a photo is no pair with itself."""
    cosines = outputs @ outputs.T
    together, apart = pair_masks(related)
    return mean_where(together, 1 - cosines) + mean_where(apart, relu(cosines - margin))
