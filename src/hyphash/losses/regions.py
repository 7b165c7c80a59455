"""Triplet methods whose heads look at slices of the features or at regions of the feature map."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, binary_cross_entropy_with_logits, linear

from hyphash.errors import ConfigError
from hyphash.losses import Loss, heads, losses
from hyphash.losses.terms import squared_distances
from hyphash.losses.tuples import triplet_term
from hyphash.networks import Head


@heads("ninh")
class DivideAndEncodeHead(Head):
    """The features are cut into K slices, as even as K allows, and each slice feeds one unit alone."""

    slices: Tensor

    def __init__(self, *, features: int, bits: int, classes: int, **options: Any) -> None:
        super().__init__(features=features, bits=bits, classes=classes, **options)
        width = self.trunk.width
        unit, feature = torch.arange(bits)[:, None], torch.arange(width)
        begin = unit * width // bits
        end = torch.maximum((unit + 1) * width // bits, begin + 1)  # one feature at least
        self.register_buffer("slices", (begin <= feature) & (feature < end), persistent=False)
        with torch.no_grad():  # a unit sees bits times fewer features than its layer was drawn for
            self.hash.weight *= bits**0.5

    def forward(self, features: Tensor) -> Tensor:
        return linear(self.trunk(features), self.hash.weight * self.slices, self.hash.bias)


@losses("ninh")
class NINH(Loss):
    """max(‖q − p‖² − ‖q − n‖² + m, 0), the mean over all triplets of the batch, of nearly binary units.

    A unit is g(σ(z)): g is linear within .5 ± ε, 0 below and 1 above; its ε of .2 is our choice.
    """

    margin: float = 1.0
    epsilon: float = 0.2

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        units = self.threshold(outputs.sigmoid())
        return triplet_term(squared_distances(units, units), self.related(labels), self.margin)

    def threshold(self, units: Tensor) -> Tensor:
        """g: a unit as it is within .5 ± ε, rounded to 0 or 1 outside."""
        return torch.where((units - 0.5).abs() <= self.epsilon, units, units.round())


def require_map(features: Tensor, method: str) -> Tensor:
    if features.ndim != 4:
        raise ConfigError(
            f"{method} looks at regions of the feature map and was given pooled features of shape "
            f"{tuple(features.shape)}; fine-tune the network or cache feature maps"
        )
    return features


@heads("iah")
class InstanceHead(Head):
    """Regions of the feature map vote for labels; a photo's code is the sum of its labels' own codes.

    x_r: features of region r, pooled from a grid; ℓ_rc = v_c·x_r its score for class c. A class looks where
    it is likely, x_c = Σ_r softmax_r(ℓ_rc) x_r, hashes what it sees, h_c = W_c x_c, and counts as much as it
    is probable: z = Σ_c σ(max_r ℓ_rc) h_c. In training the head returns z and the label scores max_r ℓ_rc.
    """

    def __init__(self, *, features: int, bits: int, classes: int, grid: int = 3, **options: Any) -> None:
        super().__init__(features=features, bits=bits, classes=classes, **options)
        self.grid = grid
        self.scores = nn.Linear(self.trunk.width, classes)
        self.slices = nn.Parameter(torch.empty(classes, self.trunk.width, bits))
        nn.init.normal_(self.slices, std=self.trunk.width**-0.5)
        del self.hash  # every class has its own

    def forward(self, features: Tensor) -> Any:
        grid = adaptive_avg_pool2d(require_map(features, "iah"), self.grid)
        regions = grid.flatten(2).mT  # (n, regions, features)
        x = self.trunk(regions.flatten(0, 1)).unflatten(0, regions.shape[:2])
        scores = self.scores(x)  # (n, regions, classes)
        label_scores = scores.amax(1)
        seen = torch.einsum("nrc,nrw->ncw", scores.softmax(1), x)
        outputs = torch.einsum("nc,ncw,cwb->nb", label_scores.sigmoid(), seen, self.slices)
        return (outputs, label_scores) if self.training else outputs


@heads("olah")
class MaskHead(Head):
    """A branch of 1×1 convolutions learns where objects are; features are pooled there only, then hashed.

    m = σ(conv(relu(conv(x)))) a soft mask over the map, x̄ = Σ m·x / Σ m, z = W x̄. In training the head
    returns z and label scores V x̄.
    """

    def __init__(self, *, features: int, bits: int, classes: int, **options: Any) -> None:
        super().__init__(features=features, bits=bits, classes=classes, **options)
        narrow = max(8, features // 16)
        self.mask = nn.Sequential(nn.Conv2d(features, narrow, 1), nn.ReLU(), nn.Conv2d(narrow, 1, 1), nn.Sigmoid())
        self.scores = nn.Linear(self.trunk.width, classes)

    def forward(self, features: Tensor) -> Any:
        features = require_map(features, "olah")
        mask = self.mask(features)  # (n, 1, h, w)
        pooled = (mask * features).sum((2, 3)) / mask.sum((2, 3)).clamp(min=1e-6)
        x = self.trunk(pooled)
        return (self.hash(x), self.scores(x)) if self.training else self.hash(x)


class TripletAndLabels(Loss):
    """max(‖q − p‖² − ‖q − n‖² + m·K, 0) over all triplets of u = σ(z), + λ·BCE of the label scores."""

    needs_map = True
    margin: float = 0.25
    weight: float = 1.0

    def forward(self, outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        z, label_scores = outputs
        distances = squared_distances(z.sigmoid(), z.sigmoid()) / self.bits
        triplets = triplet_term(distances, self.related(labels), self.margin)
        return triplets + self.weight * binary_cross_entropy_with_logits(label_scores, labels)


@losses("iah")
class IAH(TripletAndLabels):
    """Triplets and label cross-entropy over codes merged from per-class slices: our reconstruction."""


@losses("olah")
class OLAH(TripletAndLabels):
    """Triplets and label cross-entropy over features pooled under a learned mask: our reconstruction."""
