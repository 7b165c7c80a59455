"""Terms of the formulas: means under masks, pairs of a batch, distances, likelihoods."""

import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus


def mean_where(mask: Tensor, values: Tensor) -> Tensor:
    """The mean of `values` where `mask` holds; 0, with zero gradients, where it holds nowhere.

    No branch and no boolean indexing, so a GPU never has to wait for the count.
    """
    return torch.where(mask, values, 0).sum() / mask.sum().clamp(min=1)


def log1p_sum_exp(mask: Tensor, values: Tensor, dim: int) -> Tensor:
    """log(1 + Σ e^values) over the places of `dim` where `mask` holds; 0 where it holds nowhere."""
    zero = torch.zeros_like(values.sum(dim, keepdim=True))
    return torch.cat([values.masked_fill(~mask, -torch.inf), zero], dim).logsumexp(dim)


def pair_masks(related: Tensor) -> tuple[Tensor, Tensor]:
    """Which ordered pairs i ≠ j of a batch are related, and which are not, two (n, n) masks."""
    itself = torch.eye(len(related), dtype=torch.bool, device=related.device)
    return related & ~itself, ~related & ~itself


def signs(outputs: Tensor) -> Tensor:
    """Bits as −1 and +1: a bit is an output > 0."""
    return (outputs > 0).to(outputs.dtype) * 2 - 1


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """`hard`, with the gradient of `soft`."""
    return soft + (hard - soft).detach()


def mean_over_pairs(values: Tensor) -> Tensor:
    """The mean of an (n, n) table off its diagonal; 0 for a single photo."""
    return mean_where(~torch.eye(len(values), dtype=torch.bool, device=values.device), values)


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """The cosine between every row of `a` and every row of `b`."""
    return normalize(a) @ normalize(b).T


def label_cosines(gains: Tensor) -> Tensor:
    """cos(y, y′) from the labels that photos share, (n, n): what two share over what each shares with itself."""
    lengths = gains.diagonal().clamp(min=1).sqrt()
    return gains / lengths / lengths[:, None]


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """‖aᵢ − bⱼ‖², as ‖a‖² + ‖b‖² − 2a·b: one matrix product and no (n, n, bits) tensor."""
    lengths = a.square().sum(1)[:, None] + b.square().sum(1)
    return (lengths - 2 * a @ b.T).clamp(min=0)


def unit_distances(outputs: Tensor) -> Tensor:
    """d: Euclidean distances between the unit vectors along the outputs, (n, n).

    The root stops short of 0, where its gradient is infinite; photos that coincide exert no force on each other.
    """
    return (2 - 2 * cosines(outputs, outputs)).clamp(min=1e-8).sqrt()


def label_shares(labels: Tensor) -> Tensor:
    """y/|y|: each photo's labels as a distribution over the classes; all zeros for a photo without labels."""
    return labels / labels.sum(1, keepdim=True).clamp(min=1)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """−Σ target · log softmax(logits), the mean over the photos that have labels."""
    terms = -(target * logits.log_softmax(1)).sum(1)
    return mean_where(target.sum(1) > 0, terms)


def similarity_likelihood(theta: Tensor, similar: Tensor) -> Tensor:
    """log(1 + e^θ) − Sθ: −log of the probability σ(θ) that two are similar, or that they are not."""
    return softplus(theta) - similar * theta


def balanced_likelihood(theta: Tensor, similar: Tensor, dissimilar: Tensor) -> Tensor:
    """The likelihood's mean over similar pairs plus its mean over dissimilar ones, two masks.

    It is the mean with the weight N/N_S, all pairs over those of a pair's kind, without a division by zero.
    """
    terms = similarity_likelihood(theta, similar)
    return mean_where(similar, terms) + mean_where(dissimilar, terms)
