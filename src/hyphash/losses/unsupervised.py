"""Losses that learn from photos alone: no label is looked at."""

from typing import Any

import torch
from torch import Tensor

from hyphash.losses import Loss, heads, losses
from hyphash.losses.terms import cosines, mean_over_pairs, straight_through
from hyphash.networks import Head


@heads("bi-half")
class HeadWithFeatures(Head):
    """The default head; in training it returns the outputs and the features that they were made of."""

    def forward(self, features: Tensor) -> Any:
        outputs = super().forward(features)
        return (outputs, features.detach()) if self.training else outputs


@losses("bi-half")
class BiHalf(Loss):
    """mean (cos(b, b′) − cos(x, x′))² over pairs, + ½γ·mean (z − b)²: codes as alike as the features x are.

    b: in every bit, +1 for the half of the batch with the higher outputs, −1 for the others, so that each bit is on
    half of the time; backward, its gradient goes to z as it is. Its authors compare each photo with one other only.
    """

    head = "bi-half"
    gamma: float = 6.0

    def forward(self, outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        z, features = outputs
        higher = z.detach().argsort(0, descending=True)[: (len(z) + 1) // 2]
        halves = torch.full_like(z, -1).scatter(0, higher, 1)
        b = straight_through(halves, z)
        alike = mean_over_pairs((cosines(b, b) - cosines(features, features)).square())
        return alike + self.gamma / 2 * (z - halves).square().mean()
