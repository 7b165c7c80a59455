"""The memory of all training outputs, and the losses that compare a batch with it."""

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy, softplus

from hyphash.losses import Loss, Scheduled, losses
from hyphash.losses.centers import FixedCenters
from hyphash.losses.terms import cosines, label_shares, mean_where, signs, similarity_likelihood


class Memory(nn.Module):
    """The latest outputs of all training photos, (N, bits), zeros before they are seen; and their labels.

    A loss asks for one by having it as an attribute. Training opens it for its photos, says before each step which of
    them are in the batch, and saves it with the loss. A rank gets the outputs of all: each has the whole memory. Where
    nobody has opened it, the batch is all there is.
    """

    outputs: Tensor | None
    labels: Tensor | None = None  # not saved, nor are the photos: the data has them
    photos: Tensor | None = None
    rows: Tensor | slice = slice(None)  # of the batch

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = bits
        self.register_buffer("outputs", None)

    def open(self, photos: Tensor, labels: Tensor) -> None:
        """Have a row for each of these photos, in ascending order."""
        self.photos, self.labels = photos, labels
        self.outputs = labels.new_zeros(len(photos), self.bits)

    def set_batch(self, photos: Tensor) -> None:
        if self.photos is not None:
            self.rows = torch.searchsorted(self.photos, photos)

    def update(self, outputs: Tensor, labels: Tensor, momentum: float = 0.0) -> tuple[Tensor, Tensor]:
        """Write the outputs of a batch, and return those of all photos, with their labels.

        With a momentum a row keeps so much of what it was, once it has been seen.
        """
        outputs = outputs.detach()
        if self.outputs is None or self.labels is None:
            return outputs, labels
        if momentum:
            old = self.outputs[self.rows]
            outputs = torch.where(old.any(1, keepdim=True), momentum * old + (1 - momentum) * outputs, outputs)
        self.outputs[self.rows] = outputs
        return self.outputs, self.labels


class Remembering(Loss):
    """What losses share that compare the outputs of a batch with the latest ones of all training photos."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.memory = Memory(self.bits)


@losses("dpsh")
class DPSH(Remembering):
    """mean ℓ(½z·z̄, S) over the batch and all N photos z̄ of the memory, + λ·Σ (|z| − 1)²/(BN)."""

    weight: float = 10.0

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        everyone, all_labels = self.memory.update(outputs, labels)
        pairs = similarity_likelihood(outputs @ everyone.T / 2, self.related(labels, all_labels))
        return pairs.mean() + self.weight * (outputs.abs() - 1).square().sum() / pairs.numel()


@losses("dtsh")
class DTSH(Remembering):
    """mean over anchors of Σ log(1 + e^{−(½z·z̄_p − ½z·z̄_n − m)}) + λ·‖|z| − 1‖², m = K/2; p and n are of the memory.

    An anchor has up to `candidates` positives and as many negatives, drawn anew at every step: 150 · 150 triplets.
    """

    margin: float | None = None
    weight: float = 100.0
    candidates: int = 150

    def __post_init__(self) -> None:
        super().__post_init__()
        self.priority: Tensor | None = None  # the higher, the sooner a photo of the memory is taken

    def set_progress(self, progress: float) -> None:
        """Draw here, where all ranks have the same random numbers."""
        if (known := self.memory.outputs) is not None:
            self.priority = torch.rand(len(known), device=known.device)

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        everyone, all_labels = self.memory.update(outputs, labels)
        products, related = outputs @ everyone.T / 2, self.related(labels, all_labels)
        (positive, is_positive), (negative, is_negative) = self.drawn(products, related), self.drawn(products, ~related)
        least = self.bits / 2 if self.margin is None else self.margin
        margins = positive[:, :, None] - negative[:, None] - least
        counted = is_positive[:, :, None] & is_negative[:, None]
        triplets = torch.where(counted, softplus(-margins), 0).sum((1, 2))
        return (triplets + self.weight * (outputs.abs() - 1).square().sum(1)).mean()

    def drawn(self, products: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
        """Products of each anchor with some photos of one kind, and which are of that kind: there may be few."""
        priority = torch.zeros_like(products) if self.priority is None else self.priority.expand_as(products)
        chosen = torch.where(kind, priority + 1, 0).topk(min(self.candidates, kind.shape[1]))
        return products.gather(1, chosen.indices), chosen.values > 0


@losses("dfh")
class DFH(Remembering, FixedCenters):
    """mean ℓ(½z·z̄, S) over the batch and the memory, + η·mean (b − z)², b = sign(μ·cȳ + z), ȳ = y/|y|.

    The centres c, one codeword of −1 and +1 a class, follow the codes: at every step of training each in turn becomes
    the signs that make Σ ‖b − cȳ‖² over the batch least. To start them from `codebook` is ours; a term of its authors'
    code that keeps centres apart is left out.
    """

    eta: float = 0.5
    mu: float = 1.0

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        everyone, all_labels = self.memory.update(outputs, labels)
        pairs = similarity_likelihood(outputs @ everyone.T / 2, self.related(labels, all_labels)).mean()
        shares = label_shares(labels)
        codes = signs(self.mu * shares @ self.codewords + outputs.detach())
        if self.memory.outputs is not None:
            self.follow(codes, shares)
        return pairs + self.eta * (codes - outputs).square().mean()

    def follow(self, codes: Tensor, shares: Tensor) -> None:
        """Coordinate descent: one round over the classes; a class that the batch lacks stays where it is."""
        wanted, overlap = shares.T @ codes, shares.T @ shares
        for c in range(len(overlap)):
            rest = wanted[c] - overlap[c] @ self.codewords + overlap[c, c] * self.codewords[c]
            self.codewords[c] = torch.where(rest == 0, self.codewords[c], rest.sign())


@losses("adsh")
class ADSH(Remembering):
    """[Σ (u·v − K·S̃)² + γ·Σ ‖v − u‖²]/(BN): u = tanh z of the batch, v the codes of all N training photos.

    S̃ is 1 for related photos, and −N₁/N₀, related pairs over the others, for unrelated ones. `rounds` times a run v is
    solved bit by bit for the outputs of up to `sample` photos of the memory; until then a photo's code are its signs.
    """

    gamma: float = 200.0
    rounds: int = 50
    sample: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        self.codes = Memory(self.bits)
        self.solved = nn.Buffer(torch.tensor(0))

    def set_progress(self, progress: float) -> None:
        """Solve the codes when a round begins; here all ranks have the same random numbers."""
        known, labels, codes = self.memory.outputs, self.memory.labels, self.codes.outputs
        if known is not None and labels is not None and codes is not None and int(progress * self.rounds) > self.solved:
            some = torch.randperm(len(known), device=known.device)[: self.sample]
            self.solve(codes, known[some], self.target(labels[some], labels), some)
            self.solved.fill_(int(progress * self.rounds))

    def target(self, labels: Tensor, others: Tensor) -> Tensor:
        """S̃, (n, m)."""
        related = self.related(labels, others)
        ratio = related.sum() / (~related).sum().clamp(min=1)
        return torch.where(related, 1.0, -ratio.to(labels.dtype))

    def solve(self, codes: Tensor, u: Tensor, target: Tensor, rows: Tensor) -> None:
        """Bit by bit, the signs v that make Σ (u·v − K·S̃)² + γ·Σ ‖v − u‖² least, all other bits as they are."""
        wanted, overlap = self.bits * target.T @ u, u.T @ u
        wanted[rows] += self.gamma * u
        for k in range(self.bits):
            rest = codes @ overlap[:, k] - overlap[k, k] * codes[:, k]
            codes[:, k] = signs(wanted[:, k] - rest)

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        u = outputs.tanh()
        self.memory.update(u, labels)
        own = signs(u)
        if self.codes.outputs is not None:
            own = torch.where(self.solved > 0, self.codes.outputs[self.codes.rows], own)
        codes, all_labels = self.codes.update(own, labels)
        misfit = (u @ codes.T - self.bits * self.target(labels, all_labels)).square().sum()
        return (misfit + self.gamma * (own.detach() - u).square().sum()) / (len(u) * len(codes))


@losses("mdsh")
class MDSH(Remembering, FixedCenters, Scheduled):
    """BCE of softmax_c(√K·cos(u, b_c)) with y, + mean_{S=1} log(1 + e^{½(1 − cos(u, ū))}) + λ·mean (|u| − 1)².

    u = tanh z; ū are those of all photos, each with a momentum, which stands for its authors' encoder with a momentum;
    they count from the share `start` of the run on. Its authors search for centres far from each other; ours come from
    `codebook`. A softmax cannot make two labels of a photo certain.
    """

    momentum: float = 0.9
    start: float = 0.1
    weight: float = 1e-4

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        u = outputs.tanh()
        share = (u.shape[1] ** 0.5 * cosines(u, self.codewords)).softmax(1)
        fit = binary_cross_entropy(share, labels)
        everyone, all_labels = self.memory.update(u, labels, self.momentum)
        apart = softplus((1 - cosines(u, everyone)) / 2)
        pairs = mean_where(self.related(labels, all_labels) & (self.progress >= self.start), apart)
        return fit + pairs + self.weight * (u.abs() - 1).square().mean()
