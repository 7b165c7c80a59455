"""The label layer of a hasher: small classifiers over the features of its training photos, averaged and calibrated.

All are trained together, as one wide network, and each leaves out a fold of the photos. What a classifier says of the
fold that it has not seen is what the layer says of unknown photos: from that come the calibration and the thresholds.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, dropout

from hyphash.labels import Calibration, Logits, platt
from hyphash.networks import LabelHead

FOLDS = 6  # and as many classifiers
HIDDEN, DROPOUT = 256, 0.5
EPOCHS, BATCH, RATE, DECAY = 16, 200, 3e-3, 0.01
MANY = 10_000  # photos from which on there are fewer epochs, and no more steps


class Classifiers(nn.Module):
    """Members side by side, each with a hidden layer: features (n, width) → logits (n, members, labels)."""

    def __init__(self, features: int, labels: int, members: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, members * HIDDEN)
        self.last = nn.Parameter(torch.empty(members, HIDDEN, labels).uniform_(-1, 1) / HIDDEN**0.5)
        self.bias = nn.Parameter(torch.zeros(members, labels))

    def forward(self, values: Tensor) -> Tensor:
        hidden = dropout(self.first(dropout(values, DROPOUT, self.training)).relu(), DROPOUT, self.training)
        pieces = hidden.view(len(values), len(self.last), HIDDEN).transpose(0, 1)  # (members, n, hidden)
        return torch.baddbmm(self.bias[:, None], pieces, self.last).transpose(0, 1)


def fit_label_layer(
    features: Tensor, labels: Tensor, *, seed: int, unseen: Tensor | None = None
) -> tuple[LabelHead, Calibration]:
    """A layer over features (n, width), or maps of them, of the training photos, and what its logits mean.

    `unseen` are rows that the backbone was not trained on, where it was: they alone say how sure the layer may be.
    """
    values = torch.cat([LabelHead.rooted(some.float()) for some in torch.split(features, 1024)])
    mean, std = values.mean(0), values.std(0, correction=0).clamp(min=1e-6)
    values = (values - mean) / std
    with torch.random.fork_rng([values.device] if values.is_cuda else []):
        torch.manual_seed(seed)
        fold = torch.randperm(len(values)).to(values.device) % FOLDS
        held = fold[:, None] == torch.arange(FOLDS, device=values.device)  # (n, members): what each does not see
        if unseen is not None:
            held = torch.zeros_like(held).index_fill(0, unseen, True)
        members = _train(values, labels, held)
        rows = held.any(1)
        logits, carried = _logits(members, values[rows], held[rows]), labels[rows].cpu().numpy() > 0
        scale, shift = platt(logits, carried)
        return _joined(members, mean, std, scale, shift), Calibration.of(logits * scale + shift, carried)


def _train(values: Tensor, labels: Tensor, held: Tensor) -> Classifiers:
    """Members for the columns of `held` (n, members), each without the photos that it says."""
    n, device, seen = len(values), values.device, (~held).float()
    members = Classifiers(values.shape[1], labels.shape[1], seen.shape[1]).to(device)
    with torch.no_grad():
        members.bias.copy_(torch.logit(seen.T @ labels / seen.sum(0)[:, None].clamp(min=1), 1e-3))
    epochs = max(2, round(EPOCHS * min(1.0, MANY / n)))
    batches = max(1, round(n / BATCH))
    optimizer = torch.optim.AdamW(members.parameters(), RATE, weight_decay=DECAY, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=epochs * batches + 1, pct_start=0.1)
    for _ in range(epochs):
        for rows in torch.tensor_split(torch.randperm(n).to(device), batches):
            logits, carried = members(values[rows]), labels[rows, None]
            entropy = binary_cross_entropy_with_logits(logits, carried.expand_as(logits), reduction="none")
            each = entropy.sum(2) * seen[rows]
            mean = each.sum(0) / seen[rows].sum(0).clamp(min=1)
            mean.sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
    return members.eval()


@torch.inference_mode()
def _logits(members: Classifiers, values: Tensor, held: Tensor) -> Logits:
    """Of each row, the mean of the members that have not seen it."""
    parts = zip(torch.split(values, 4096), torch.split(held / held.sum(1, keepdim=True), 4096), strict=True)
    return np.concatenate([torch.einsum("nml,nm->nl", members(some), by).cpu().numpy() for some, by in parts])


@torch.no_grad()
def _joined(members: Classifiers, mean: Tensor, std: Tensor, scale: Logits, shift: Logits) -> LabelHead:
    """The mean of all members as one network, standardising and calibration folded in."""
    head = LabelHead(members.first.in_features, members.first.out_features, len(scale)).requires_grad_(False)
    factor, offset = (torch.from_numpy(each).to(mean.device) for each in (scale, shift))
    weights = members.first.weight / std
    head.first.weight.copy_(weights)
    head.first.bias.copy_(members.first.bias - weights @ mean)
    head.last.weight.copy_((members.last.flatten(0, 1) / len(members.last) * factor).T)
    head.last.bias.copy_(members.bias.mean(0) * factor + offset)
    return head.eval()
