"""Losses that learn a product quantiser: codes are numbers of codewords, ranked by distances to them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from hyphash.losses import NO_PEERS, Loss, Peers, heads, losses
from hyphash.losses.terms import cosines, mean_over_pairs
from hyphash.networks import Head
from hyphash.quantizer import subspace_bits

WIDTH = 300  # of the bottleneck, shared out evenly to the subspaces
MEMORY = 0.99  # how much of its past a codeword keeps at a step
FORGOTTEN = 0.002  # a codeword that has won so little of late starts anew


@heads("dqn")
class QuantizingHead(Head):
    """A tanh bottleneck of about 300 outputs, cut into ⌈bits/8⌉ subspaces with 2^b codewords each.

    Every training step moves the codewords towards the mean of the outputs nearest to them (k-means by
    running averages, B and h in turn); one that nothing is near to starts again at some output of the batch.
    In training the head returns the outputs and the points Bh that their codes stand for.
    """

    peers: Peers = NO_PEERS

    def __init__(self, *, features: int, bits: int, classes: int, **options: Any) -> None:
        super().__init__(features=features, bits=bits, classes=classes, **options)
        sizes = torch.tensor([2**b for b in subspace_bits(bits)])
        subspaces, most, width = len(sizes), int(sizes.max()), -(-WIDTH // len(sizes))
        self.hash = nn.Linear(self.trunk.width, subspaces * width)
        self.words = nn.Buffer(torch.zeros(subspaces, most, width))
        self.wins = nn.Buffer(torch.zeros(subspaces, most))  # how much was near to a codeword of late
        self.usable = nn.Buffer(torch.arange(most) < sizes[:, None], persistent=False)  # the last may have fewer

    def forward(self, features: Tensor) -> Any:
        outputs = self.hash(self.trunk(features)).tanh()
        if not self.training:
            return outputs
        with torch.autocast(outputs.device.type, enabled=False):
            return outputs, self.quantise(outputs.detach().to(self.words.dtype))

    def quantise(self, outputs: Tensor) -> Tensor:
        """The points Bh nearest to the outputs, (n, subspaces · width); the codewords learn from the whole batch."""
        outputs = self.peers.all_gather(outputs)
        pieces = outputs.view(len(outputs), *self.words[:, 0].shape).transpose(0, 1)  # (subspaces, n, width)
        self.renew(pieces)
        nearest = self.nearest(pieces)
        points = self.words.gather(1, nearest[:, :, None].expand_as(pieces))
        self.learn(pieces, nearest)
        return points.transpose(0, 1).flatten(1)[self.peers.part]

    def nearest(self, pieces: Tensor) -> Tensor:
        """The number of the codeword nearest to each piece, (subspaces, n)."""
        squared = self.words.square().sum(2)[:, None] - 2 * pieces @ self.words.mT  # ‖piece‖² left out
        return squared.masked_fill(~self.usable[:, None], torch.inf).argmin(2)

    def renew(self, pieces: Tensor) -> None:
        """Codewords that nothing was near to of late, at first all of them, become outputs of this batch."""
        subspaces, most = self.wins.shape
        drawn = self.peers.broadcast(torch.randint(pieces.shape[1], (subspaces, most), device=pieces.device))
        forgotten = self.wins < FORGOTTEN
        fresh = pieces.gather(1, drawn[:, :, None].expand_as(self.words))
        self.words.copy_(torch.where(forgotten[:, :, None], fresh, self.words))
        self.wins.masked_fill_(forgotten, 1 - MEMORY)

    def learn(self, pieces: Tensor, nearest: Tensor) -> None:
        """words ← running mean of the pieces that were nearest to them."""
        won = one_hot(nearest, self.words.shape[1]).to(pieces.dtype)  # (subspaces, n, codewords)
        wins = MEMORY * self.wins + (1 - MEMORY) * won.sum(1)
        sums = MEMORY * self.wins[:, :, None] * self.words + (1 - MEMORY) * won.mT @ pieces
        self.words.copy_(sums / wins[:, :, None])  # in place: a recorded step reads and writes the same memory
        self.wins.copy_(wins)

    def codewords(self) -> Tensor:
        """The codewords, (subspaces, 2^b, width), for `hyphash.quantizer.Quantizer`."""
        return self.words


@losses("dqn")
class DQN(Loss):
    """mean (S± − cos)² over pairs, S± = 1 for similar and −1 for dissimilar ones, + λ·mean ‖u − Bh‖².

    u are the outputs of the bottleneck and Bh the points that their codes stand for. Splitting K bits that
    are no multiple of 8 into ⌈K/8⌉ subspaces of at most 8 bits is ours.
    """

    weight: float = 1e-4

    def forward(self, outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        u, points = outputs
        target = torch.where(self.related(labels), 1.0, -1.0)
        pairs = mean_over_pairs((target - cosines(u, u)).square())
        return pairs + self.weight * (u - points).square().sum(1).mean()
