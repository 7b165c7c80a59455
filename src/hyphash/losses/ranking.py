"""Losses that are measures of a ranking, made smooth: every photo of a batch ranks all others.

Histograms: the distances of an anchor to all others fall into bins, each into the two nearest by linear interpolation,
so that all photos in a bin are one tie and the histogram has a gradient. A measure of the ranking is then a sum over
bins. Soft ranks: a photo's rank is one plus the number of those before it, each counted by a sigmoid. A photo is never
counted in its own ranking.
"""

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hyphash.losses import Loss, losses
from hyphash.losses.hyp2 import HyP2
from hyphash.losses.terms import cosines, mean_where, pair_masks

COMPARISONS = 1 << 24  # of two photos in one ranking, held at a time


def distances(bounded: Tensor) -> Tensor:
    """(K − u·u′)/2: the Hamming distance of ±1, and what lies between, (n, n)."""
    return (bounded.shape[1] - bounded @ bounded.T) / 2


def others(bounded: Tensor) -> Tensor:
    """1 for every photo but oneself, (n, n)."""
    return 1 - torch.eye(len(bounded), dtype=bounded.dtype, device=bounded.device)


def soft_histogram(positions: Tensor, weights: Tensor, bins: int) -> Tensor:
    """For each row the weight that falls into each bin, (…, n, bins), from positions between 0 and bins − 1.

    A position between two bins belongs to both, in proportion. Two scatter-adds: no (n, n, bins) tensor. Several
    weights (…, n, n) of the same positions are as many histograms.
    """
    lower = positions.detach().floor().clamp(0, max(bins - 2, 0))
    above = (positions - lower).clamp(0, 1)
    bin = lower.long().expand_as(weights)
    empty = positions.new_zeros(*weights.shape[:-1], bins)
    filled = empty.scatter_add(-1, bin, weights * (1 - above))
    return filled.scatter_add(-1, (bin + 1).clamp(max=bins - 1), weights * above)


def tie_aware_precision(positions: Tensor, relevant: Tensor, bins: int, more: int = 0) -> Tensor:
    """AP of each row's ranking, (n,): Σ_b c⁺_b·(C⁺_{b−1} + C⁺_b + more)/(C_{b−1} + C_b + more) / Σ_b c⁺_b.

    c and c⁺ are all and relevant photos of a bin, C and C⁺ their running sums: each tie counts with the precision
    in its middle. 0 where nothing is relevant.
    """
    pair = others(positions)
    counts = soft_histogram(positions, torch.stack((pair, relevant * pair)), bins)
    twice, twice_found = 2 * counts.cumsum(-1) - counts + more  # C_{b−1} + C_b
    found = counts[1]
    precision = twice_found / twice.clamp(min=torch.finfo(twice.dtype).tiny ** 0.5)
    return (found * precision).sum(1) / found.sum(1).clamp(min=1)


@losses("hyp2-ap")
class HyP2AP(HyP2):
    """HyP² + w·(1 − AP): HyP² shapes the space by its labels, the second term ranks the batch as a search would.

    AP is the mean over photos with a relevant one in the batch of their tie-aware average precision, with
    u = tanh z, distances (K − u·u′)/2 and one bin for each of the K + 1 Hamming distances. The sum is ours.
    """

    weight: float = 2.0

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        related, _ = pair_masks(self.related(labels))
        precision = tie_aware_precision(distances(outputs.tanh()), related, bins=outputs.shape[1] + 1)
        return super().forward(outputs, labels) + self.weight * mean_where(related.any(1), 1 - precision)


class Histogram(Loss):
    """What losses over a histogram share: φ = tanh(γz/2) and the histogram's L + 1 centres, l·K/L.

    L is the number of bits, or half of it from so many bits on.
    """

    halved_from: ClassVar[int] = 32
    gamma: float = 1.0
    levels: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bins = 1 + (self.levels or self.bits // (2 if self.bits >= self.halved_from else 1))

    def positions(self, outputs: Tensor) -> Tensor:
        """Distances in units of the histogram's bins."""
        bounded = (outputs * self.gamma / 2).tanh()
        return distances(bounded) * ((self.bins - 1) / outputs.shape[1])


@losses("talr-ap")
class TalrAP(Histogram):
    """−mean of AP, Σ_l c⁺_l·(C⁺_{l−1} + C⁺_l + 1)/(C_{l−1} + C_l + 1) / N⁺; 0 for a photo with nothing relevant.

    Its authors' simplified form: a tie counts with the precision at its middle rank.
    """

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        related, _ = pair_masks(self.related(labels))
        return -tie_aware_precision(self.positions(outputs), related, self.bins, more=1).mean()


@losses("talr-ndcg")
class TalrNDCG(Histogram):
    """−mean of NDCG, Σ_l G_l/log₂(C_{l−1} + (c_l + 1)/2 + 1) over the ideal; G_l the gains 2^shared − 1 in bin l.

    The ideal leaves out the photo itself; its authors' code counts it there, though not in the ranking.
    """

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        shared = self.gains(labels) * others(outputs)
        most = shared.amax()  # gains in units of the greatest: two to the power of many labels is out of range
        gains = torch.exp2(shared - most) - torch.exp2(-most)
        positions = self.positions(outputs)
        every, gained = soft_histogram(positions, torch.stack((others(positions), gains)), self.bins)
        ranks = every.cumsum(1) - every + (every + 1) / 2
        found = (gained / torch.log2(ranks + 1)).sum(1)
        places = torch.arange(2, len(outputs) + 2, device=outputs.device)
        ideal = (gains.sort(1, descending=True).values / torch.log2(places)).sum(1)
        return -torch.where(ideal > 0, found / ideal.where(ideal > 0, 1), 0).mean()


@losses("mihash")
class MIHash(Histogram):
    """−mean of the information that a distance gives about relevance: H(c/Σc) − p⁺·H(c⁺/Σc⁺) − p⁻·H(c⁻/Σc⁻), in bits.

    c, c⁺ and c⁻ are all, the related and the unrelated photos in the bins, p⁺ and p⁻ the shares of the two kinds. A
    photo that has but one kind around it learns nothing from distances, and counts 0.
    """

    halved_from = 2

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        positions = self.positions(outputs)
        kinds = torch.stack(pair_masks(self.related(labels))).to(positions.dtype)
        related, unrelated = soft_histogram(positions, kinds, self.bins)
        found, missed = kinds.sum(-1)
        within = found * entropy(related) + missed * entropy(unrelated)
        information = entropy(related + unrelated) - within / max(len(outputs) - 1, 1)
        return -torch.where(found * missed > 0, information, 0).mean()


def entropy(counts: Tensor) -> Tensor:
    """H in bits of each row's shares of its sum; an empty bin counts nothing."""
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    return -(shares * shares.clamp(min=1e-12).log2()).sum(1)


class SoftRanks(Loss):
    """What losses share that rank by cosine: a step down in a ranking is a sigmoid of temperature τ."""

    tau: float = 0.01

    def ranks(self, outputs: Tensor, related: Tensor) -> tuple[Tensor, Tensor]:
        """r_ij = 1 + Σ_{k≠i,j} σ((s_ik − s_ij)/τ), and the same over related k alone: two (n, n) tables.

        Some anchors at a time, and again when gradients are computed: never all n³ comparisons at once.
        """
        blocks = max(1, COMPARISONS // max(1, len(outputs)) ** 2)
        tables = cosines(outputs, outputs), others(outputs), related.to(outputs)
        parts = (torch.split(table, blocks) for table in tables)
        ranked = partial(checkpoint, soft_ranks, tau=self.tau, use_reentrant=False, preserve_rng_state=False)
        every, among = zip(*map(ranked, *parts), strict=True)
        return torch.cat(every), torch.cat(among)


def soft_ranks(similar: Tensor, counted: Tensor, related: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """From some anchors' similarities to all photos, (m, n): ranks among all that are counted, and the related."""
    before = ((similar[:, None, :] - similar[:, :, None]) / tau).sigmoid()  # (m, j, k): how far k stands before j
    every, among = (torch.einsum("mjk,mk->mj", before, kind) for kind in (counted, related))
    return 1 + every - counted / 2, 1 + among - related / 2  # without itself, which stands half before itself


@losses("smooth-ap")
class SmoothAP(SoftRanks):
    """1 − mean over photos of the mean of r⁺_ij/r_ij over their related photos j; ranks by cosine.

    Its authors' code counts a photo in its own ranking; ours, as everywhere, does not.
    """

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        related, _ = pair_masks(self.related(labels))
        ranks, among_related = self.ranks(outputs, related)
        precision = (related * among_related / ranks).sum(1) / related.sum(1).clamp(min=1)
        return mean_where(related.any(1), 1 - precision)


@losses("recall-at-k")
class RecallAtK(SoftRanks):
    """1 − mean over photos and k = 1, 2, 4 … depth of min(k, Σ_j σ((k − r_ij)/τ₂))/min(k, N⁺), j the related photos.

    Its authors' code counts a photo in its own ranking; ours, as everywhere, does not.
    """

    rank_tau: float = 1.0
    depth: int = 16

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        related, _ = pair_masks(self.related(labels))
        ranks, _ = self.ranks(outputs, related)
        count, recall = related.sum(1).clamp(min=1), torch.zeros_like(ranks[:, 0])
        depths = [1 << power for power in range(self.depth.bit_length())]
        for k in depths:
            found = (related * ((k - ranks) / self.rank_tau).sigmoid()).sum(1)
            recall = recall + found.clamp(max=k) / count.clamp(max=k) / len(depths)
        return mean_where(related.any(1), 1 - recall)
