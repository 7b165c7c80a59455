"""Losses with a C-way classifier over the codes or what becomes of them: codes that tell labels apart."""

from math import log
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from hyphash.errors import ConfigError
from hyphash.losses import Loss, heads, losses
from hyphash.losses.terms import cross_entropy, label_shares, signs, straight_through
from hyphash.networks import Head


class Classifier(Loss):
    """One linear score a class; a photo's cross-entropy is with y/|y|, our adaptation of one label to several."""

    bias: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.classifier = nn.Linear(self.bits, self.classes, bias=self.bias)

    def fit(self, codes: Tensor, labels: Tensor) -> Tensor:
        """The cross-entropy of the scores of these codes."""
        return cross_entropy(self.classifier(codes), label_shares(labels))

    def anchors(self) -> Tensor:
        return self.classifier.weight  # the units that speak for a class, and those that speak against it


@losses("dlbhc")
class DLBHC(Classifier):
    """K sigmoid units between the network and a C-way classifier; a bit is a unit > .5, so an output > 0.

    BCE of the classifier's σ(W·σ(z) + b) with the labels. Its authors classify one label a photo with a
    softmax; one logistic classifier a label is our adaptation. `reduction` says whether a photo's BCE is the mean
    over the labels or their sum, whose gradients are C times as large.
    """

    reduction: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reduction not in ("mean", "sum"):
            raise ConfigError(f"dlbhc: reduction is mean or sum, not {self.reduction!r}")
        self.weight = self.classes if self.reduction == "sum" else 1

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.weight * binary_cross_entropy_with_logits(self.classifier(outputs.sigmoid()), labels)


@losses("greedyhash")
class GreedyHash(Classifier):
    """Cross-entropy of a classifier over the signs themselves, + α·mean ||z| − 1|³.

    Backward, the signs' gradient goes to z as it is. The target y/|y| for several labels a photo is our adaptation.
    """

    bias = False
    alpha: float = 0.1

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        fit = self.fit(straight_through(signs(outputs), outputs), labels)
        return fit + self.alpha * (outputs.abs() - 1).abs().pow(3).mean()


@losses("jmlh")
class JMLH(Classifier):
    """Cross-entropy of a classifier over bits of 0 and 1, + λ·mean Σ_k KL(σ(z_k) ‖ ½).

    Backward, a bit's gradient is that of σ(z). The target y/|y| for several labels a photo is our adaptation.
    """

    weight: float = 0.2

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        probability = outputs.sigmoid()
        divergence = log(2) - softplus(outputs) + probability * outputs  # p·log 2p + (1 − p)·log 2(1 − p)
        fit = self.fit(straight_through((outputs > 0).to(outputs.dtype), probability), labels)
        return fit + self.weight * divergence.sum(1).mean()


@heads("sdh-c")
class OrthogonalHead(Head):
    """In training it returns, beside the outputs, how far its weights W are from orthonormal: mean (WWᵀ − I)².

    For each photo, though it is the same for all: rows are what several ranks gather.
    """

    def forward(self, features: Tensor) -> Any:
        outputs = super().forward(features)
        if not self.training:
            return outputs
        with torch.autocast(outputs.device.type, enabled=False):
            weight = self.hash.weight
            skew = (weight @ weight.T - torch.eye(len(weight), device=weight.device)).square().mean()
        return outputs, skew.expand(len(outputs), 1)


@losses("sdh-c")
class SDHC(Classifier):
    """Cross-entropy of a classifier over u = tanh z, + λ·[mean (|u| − 1)² − Σu²/2K + mean (WWᵀ − I)²].

    W are the weights of the last layer. The toolbox that it is known from has all ones in place of the identity. The
    target y/|y| for several labels a photo is our adaptation.
    """

    weight: float = 1e-3

    def forward(self, outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        u, skew = outputs[0].tanh(), outputs[1].mean()
        spread = u.square().sum() / (2 * u.shape[1])
        return self.fit(u, labels) + self.weight * ((u.abs() - 1).square().mean() - spread + skew)
