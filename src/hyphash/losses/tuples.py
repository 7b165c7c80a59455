"""Losses over triplets and larger tuples of a batch, none of which ever holds a table of all triplets.

An anchor's positives share a label with it, its negatives share none. The last of them bring heads that look at slices
of the features or at regions of the feature map.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, binary_cross_entropy_with_logits, linear, pad, relu

from hyphash.errors import ConfigError
from hyphash.losses import Loss, heads, losses
from hyphash.losses.terms import log1p_sum_exp, mean_where, pair_masks, squared_distances, unit_distances
from hyphash.networks import Head


def triplet_term(distances: Tensor, related: Tensor, margin: float | Tensor, *, semi_hard: bool = False) -> Tensor:
    """The mean of max(d_ap − d_an + margin, 0) over all triplets of a batch; 0 where there is none.

    With `semi_hard` only those with d_ap < d_an < d_ap + margin count. Each anchor's distances to its negatives are
    sorted and summed up once; where a positive's reach begins and ends among them is then a search, and its sum of
    hinges a difference of two running totals: n² log n steps and n² numbers, not n³.
    """
    positive, negative = pair_masks(related)
    nearest = distances.masked_fill(~negative, torch.inf).sort(1).values  # each anchor's negatives, in order
    totals = pad(nearest.where(nearest.isfinite(), 0).cumsum(1), (1, 0))  # (n, n + 1): of its first 0, 1, … n
    edges, positives = nearest.detach(), distances.detach()
    end = torch.searchsorted(edges, positives + margin)  # how many d_an < d_ap + margin
    begin = torch.searchsorted(edges, positives, right=True) if semi_hard else torch.zeros_like(end)
    within = end - begin
    hinges = within * (distances + margin) - (totals.gather(1, end) - totals.gather(1, begin))
    count = within if semi_hard else negative.sum(1, keepdim=True).expand_as(within)
    return torch.where(positive, hinges, 0).sum() / torch.where(positive, count, 0).sum().clamp(min=1)


@losses("triplet-semi-hard")
class TripletSemiHard(Loss):
    """max(d_ap − d_an + m, 0), the mean over triplets with d_ap < d_an < d_ap + m; d between unit outputs."""

    margin: float = 0.2

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return triplet_term(unit_distances(outputs), self.related(labels), self.margin, semi_hard=True)


@losses("triplet-smart")
class TripletSmart(TripletSemiHard):
    """max(d_ap − d_an + m, 0), the mean over all positives, n the hardest negative that is not too hard for p.

    That is the nearest one beyond the positive, or the farthest of all where none is beyond. Its authors search the
    whole training set and steer how hard; this choice within the batch is our adaptation. With the nearest negative
    whatever the positive, training collapses: all photos in one place and a loss of m.
    """

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        distances = unit_distances(outputs)
        positive, negative = pair_masks(self.related(labels))
        nearest = distances.masked_fill(~negative, torch.inf).sort(1).values  # each anchor's negatives, in order
        beyond = torch.searchsorted(nearest.detach(), distances.detach(), right=True)
        count = negative.sum(1, keepdim=True)
        mined = nearest.gather(1, torch.minimum(beyond, count - 1).clamp(min=0))
        return mean_where(positive & (count > 0), relu(distances - mined + self.margin))


@losses("n-pair")
class NPair(Loss):
    """Cross-entropy over inner products: an anchor must prefer its positive to the other anchors' positives.

    mean over anchors a of log(1 + Σ_b e^{u_a·u_b⁺ − u_a·u_a⁺}), b the anchors whose positive shares no label with a; +
    λ·mean ‖u‖². Its authors draw pairs of one class each; with several labels a photo, our adaptation takes the first
    half of the batch as anchors and gives each the next photo of the second half that shares a label.
    """

    weight: float = 0.02

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        half = len(outputs) // 2
        anchors, candidates = outputs[:half], outputs[half:]
        related = self.related(labels)[:half, half:]
        steps = torch.arange(len(candidates), device=labels.device)
        ahead = (steps - steps[:half, None]) % max(1, len(candidates))  # 0 for the photo half a batch away
        chosen = torch.where(related, ahead, len(candidates)).argmin(1)  # (half,)
        has_positive = related.any(1)

        products = anchors @ candidates[chosen].T  # (anchor, other's positive)
        own = products.diagonal()
        negative = ~related[:, chosen] & has_positive
        terms = log1p_sum_exp(negative, products - own[:, None], dim=1)
        return mean_where(has_positive, terms) + self.weight * outputs.square().sum(1).mean()


@losses("lifted")
class Lifted(Loss):
    """½·mean over positive pairs (i, j) of max(log(Σ_k e^{m − d_ik} + Σ_l e^{m − d_jl}) + d_ij, 0)².

    k runs over the negatives of i and l over those of j. Each photo's sum over its own negatives is formed
    once and the two ends' sums are added: n² numbers, not n³.
    """

    margin: float = 1.0

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        distances = unit_distances(outputs)
        positive, negative = pair_masks(self.related(labels))
        nothing = -1e4  # e^nothing is 0, and unlike −∞ it has a gradient
        negatives = (self.margin - distances).masked_fill(~negative, nothing).logsumexp(1)
        both_ends = torch.logaddexp(negatives[:, None], negatives)
        return mean_where(positive, relu(both_ends + distances).square()) / 2


@heads("ninh")
class DivideAndEncodeHead(Head):
    """The features are cut into K slices, as even as K allows, and each slice feeds one unit alone."""

    def __init__(self, *, features: int, bits: int, classes: int, **options: Any) -> None:
        super().__init__(features=features, bits=bits, classes=classes, **options)
        width = self.trunk.width
        unit, feature = torch.arange(bits)[:, None], torch.arange(width)
        begin = unit * width // bits
        end = torch.maximum((unit + 1) * width // bits, begin + 1)  # one feature at least
        self.slices = nn.Buffer((begin <= feature) & (feature < end), persistent=False)
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
        units = outputs.sigmoid()
        units = torch.where((units - 0.5).abs() <= self.epsilon, units, units.round())  # g
        return triplet_term(squared_distances(units, units), self.related(labels), self.margin)


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


@losses("iah")
class IAH(Loss):
    """max(‖q − p‖² − ‖q − n‖² + m·K, 0) over all triplets of u = σ(z), + λ·BCE of the label scores.

    Of codes merged from per-class slices: our reconstruction.
    """

    needs_map = True
    margin: float = 0.25
    weight: float = 1.0

    def forward(self, outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        z, label_scores = outputs
        distances = squared_distances(z.sigmoid(), z.sigmoid()) / self.bits
        triplets = triplet_term(distances, self.related(labels), self.margin)
        return triplets + self.weight * binary_cross_entropy_with_logits(label_scores, labels)


@losses("olah")
class OLAH(IAH):
    """Triplets and label cross-entropy over features pooled under a learned mask: our reconstruction."""
