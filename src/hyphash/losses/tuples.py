"""Losses over triplets and larger tuples of a batch, none of which ever holds a table of all triplets.

An anchor's positives share a label with it, its negatives share none.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad, relu

from hyphash.losses import Loss, losses
from hyphash.losses.terms import log1p_sum_exp, mean_where, pair_masks, unit_distances


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

    order_matters = "the halves of the batch, and which photo comes next, choose anchors and positives"
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
