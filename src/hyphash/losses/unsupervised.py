"""Methods that learn from photos alone: no label is looked at.

Most are heads fitted to frozen features in one go: the floor that every trained method must beat.
"""

from typing import Any

import torch
from torch import Tensor

from hyphash.errors import ConfigError
from hyphash.losses import Loss, heads, losses
from hyphash.losses.terms import cosines, mean_over_pairs, signs, straight_through
from hyphash.networks import Head


@heads("lsh")
class FittedHead(Head):
    """A linear layer that `fit` computes from features: random hyperplanes through their middle; no training."""

    def fit(self, features: Tensor, seed: int) -> None:
        """Set the layer from training features, (n, features)."""
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(seed)
            x = self.trunk.eval()(features).float()
            mean = x.mean(0)
            weight = self.directions(x - mean)
            self.hash.weight.copy_(weight)
            self.hash.bias.copy_(-weight @ mean)

    def directions(self, centred: Tensor) -> Tensor:
        """One hyperplane's normal a bit, (bits, features)."""
        return torch.randn(self.hash.weight.shape).to(centred)


@heads("pca")
class PrincipalHead(FittedHead):
    """The leading principal directions. Bits beyond the number of directions are random hyperplanes."""

    def directions(self, centred: Tensor) -> Tensor:
        bits, width = self.hash.weight.shape
        count = min(bits, *centred.shape)
        sketch = min(2 * count + 16, *centred.shape)  # more than needed: the last of a sketch are rough
        principal = torch.pca_lowrank(centred, q=sketch, center=False, niter=4)[2][:, :count]
        spare = torch.randn(width, bits - count).to(centred) / width**0.5
        return torch.cat([principal, spare], 1).T


@heads("itq")
class RotatedHead(PrincipalHead):
    """The leading principal directions, rotated so that the signs lie close to the values.

    In turn: B = sign(VR), then R = the rotation that brings V closest to B, by the singular vectors of BᵀV.
    """

    rounds = 50

    def directions(self, centred: Tensor) -> Tensor:
        principal = super().directions(centred).T
        values, bits = centred @ principal, principal.shape[1]
        rotation, _ = torch.linalg.qr(torch.randn(bits, bits).to(centred))
        for _ in range(self.rounds):
            left, _, right = torch.linalg.svd(signs(values @ rotation).T @ values)
            rotation = (left @ right).T
        return (principal @ rotation).T


@losses("lsh")
class LSH(Loss):
    """Random hyperplanes over frozen features. A loss so that it is chosen like one; there is nothing to train."""

    fitted = True

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        raise ConfigError(f"{self.head} is fitted to frozen features, not trained; run it with --mode frozen")


@losses("itq")
class ITQ(LSH):
    """Principal directions of frozen features and a learned rotation."""


@losses("pca")
class PCA(LSH):
    """Signs of the leading principal directions of frozen features."""


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

    gamma: float = 6.0

    def forward(self, outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        z, features = outputs
        higher = z.detach().argsort(0, descending=True)[: (len(z) + 1) // 2]
        halves = torch.full_like(z, -1).scatter(0, higher, 1)
        b = straight_through(halves, z)
        alike = mean_over_pairs((cosines(b, b) - cosines(features, features)).square())
        return alike + self.gamma / 2 * (z - halves).square().mean()
