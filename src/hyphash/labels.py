"""The label layer: from a row of outputs or bits to calibrated logits of labels, and logits in few bytes a photo.

numpy only: fitted and applied without torch. A layer over features is part of the network, which gives outputs and
logits in one pass; a Calibration says what logits mean and how a photo stores them, for either kind of layer.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyphash.errors import LabelError

Logits = NDArray[np.float32]
Table = dict[str, NDArray[Any]]

DENSE = 64  # labels up to which a photo keeps a score for each, in 4 bits
KEPT = 32  # labels that it keeps where there are more
LARGEST = 8.0  # logits are stored from −8 to 8 where nothing is known of them; else
BELOW = 2.0  # from so far below a label's prior
HIGH = 0.9995  # to where nearly all photos lie
ENTRY = np.dtype([("label", "<u2"), ("score", "u1")])  # of a label that is kept
PREFIX = "labels."  # of the names of arrays in a file of weights
FEW = 20  # carriers below which a threshold of best F1 would be chance; it is ½ then


def sigmoid(logits: NDArray[Any]) -> NDArray[Any]:
    """The probabilities that logits stand for."""
    return np.exp(log_sigmoid(logits))


def log_sigmoid(logits: NDArray[Any]) -> NDArray[Any]:
    """log σ(x), of any size of x: what a wanted label adds to a photo's score; an unwanted one adds log σ(−x)."""
    return -np.logaddexp(np.zeros((), logits.dtype), -logits)


def logit(probabilities: NDArray[Any]) -> NDArray[Any]:
    """log p / (1 − p)."""
    return np.log(probabilities) - np.log1p(-probabilities)


@dataclass(frozen=True, eq=False)
class Calibration:
    """What the logits of labels mean, label by label, and how those of a photo are stored.

    Up to 64 labels, a photo stores 4 bits of each: label 2i in the low half of byte i, label 2i + 1 in the high one.
    Of more labels it stores the 32 that stand out most (probability − prior), each as ENTRY, by ascending label; one
    that is not kept has its prior. What the stored numbers of a label stand for is in its row of `tables`.

    >>> some = Calibration(thresholds=np.full(3, 0.5, np.float32), priors=np.full(3, 0.1, np.float32))
    >>> some.width, some.pack(np.array([[-9.0, 0.6, 8.0]], np.float32)).tolist()
    (2, [[128, 15]])
    """

    thresholds: NDArray[np.float32]  # (labels,): the probability from which a photo is said to carry the label
    priors: NDArray[np.float32]  # (labels,): the share of photos that carry it
    lowest: NDArray[np.float32] | float = -LARGEST  # (labels,): logits are stored in equal steps from here …
    highest: NDArray[np.float32] | float = LARGEST  # … to here; those beyond, as these

    def __post_init__(self) -> None:
        if self.thresholds.shape != self.priors.shape:
            raise LabelError(f"{len(self.thresholds)} thresholds for {len(self.priors)} priors; train the labels again")
        for name in ("lowest", "highest"):
            object.__setattr__(self, name, np.full(self.priors.shape, getattr(self, name), np.float32))

    @classmethod
    def of(cls, logits: Logits, labels: NDArray[Any]) -> "Calibration":
        """From logits (n, labels) of photos that they were not fitted on, and the labels these carry."""
        carried = labels > 0
        thresholds = [best_threshold(p, has) for p, has in zip(sigmoid(logits).T, carried.T, strict=True)]
        priors = (carried.sum(0) + 0.5) / (len(carried) + 1)
        lowest = logit(priors) - BELOW
        highest = np.maximum(np.quantile(logits, HIGH, axis=0), lowest + 2 * BELOW)
        return cls(*(np.asarray(values, np.float32) for values in (thresholds, priors, lowest, highest)))

    @classmethod
    def from_arrays(cls, arrays: Table) -> "Calibration | None":
        """What `arrays` gave, or None where there is none."""
        own = {name.removeprefix(PREFIX): values for name, values in arrays.items() if name.startswith(PREFIX)}
        return cls(**own) if own else None

    def arrays(self) -> Table:
        """As a file of weights keeps it."""
        return {f"{PREFIX}{field.name}": getattr(self, field.name) for field in fields(self)}

    def beside(self, other: "Calibration") -> "Calibration":
        """That of its labels and, after them, of those of another."""
        pairs = zip(self.arrays().values(), other.arrays().values(), strict=True)
        return Calibration(*(np.concatenate(pair) for pair in pairs))

    @property
    def dense(self) -> bool:
        """Whether a photo keeps a score for every label."""
        return len(self.priors) <= DENSE

    @property
    def width(self) -> int:
        """Bytes that a photo stores."""
        return -(-len(self.priors) // 2) if self.dense else KEPT * ENTRY.itemsize

    @cached_property
    def tables(self) -> Logits:
        """(labels, 16), or (labels, 256) where not all are kept: the logits that stored numbers stand for, rising."""
        return np.linspace(self.lowest, self.highest, 16 if self.dense else 256, axis=1, dtype=np.float32)

    def pack(self, logits: Logits) -> NDArray[np.uint8]:
        """(n, labels) → (n, width), as photos store them."""
        if np.isnan(logits).any():
            raise LabelError("some logits are not numbers (NaN); the network is damaged or has diverged")
        if self.dense:
            numbers = self._numbers(logits, np.arange(len(self.priors)))
            numbers = np.pad(numbers, ((0, 0), (0, len(self.priors) % 2)))
            return numbers[:, ::2] | numbers[:, 1::2] * np.uint8(16)
        above = sigmoid(logits) - self.priors
        best = np.sort(np.argsort(-above, axis=1, kind="stable")[:, :KEPT], axis=1)
        entries = np.empty(best.shape, ENTRY)
        entries["label"], entries["score"] = best, self._numbers(np.take_along_axis(logits, best, 1), best)
        return entries.view(np.uint8)

    def unpack(self, packed: NDArray[np.uint8]) -> Logits:
        """(n, width) → the logits (n, labels) that are stored."""
        if self.dense:
            numbers = np.stack([packed & 15, packed >> 4], axis=2).reshape(-1, 2 * self.width)[:, : len(self.priors)]
            return self.tables[np.arange(len(self.priors)), numbers]
        entries = np.ascontiguousarray(packed).view(ENTRY)
        logits = np.tile(logit(self.priors), (len(packed), 1))
        np.put_along_axis(logits, entries["label"].astype(np.intp), self.tables[entries["label"], entries["score"]], 1)
        return logits

    def _numbers(self, logits: Logits, labels: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
        """The number of the nearest value in the table of each label."""
        tables = self.tables
        low, step = tables[labels, 0], tables[labels, 1] - tables[labels, 0]
        return np.clip(np.rint((logits - low) / step), 0, tables.shape[1] - 1).astype(np.uint8)


@dataclass(frozen=True, eq=False)
class LabelLayer:
    """A linear layer over outputs, or over bits as signs ±1: for hashers without a layer, and for new labels."""

    weights: NDArray[np.float32]  # (labels, width)
    bias: NDArray[np.float32]  # (labels,)
    calibration: Calibration

    def logits(self, values: NDArray[Any]) -> Logits:
        """(n, width) → (n, labels)."""
        return values.astype(np.float32, copy=False) @ self.weights.T + self.bias


def fit_logistic(values: NDArray[Any], labels: NDArray[Any], *, penalty: float | None = None) -> LabelLayer:
    """Logistic regression of each label, by Newton's method: 10,000 photos of 48 bits with 38 labels in a second.

    It minimises Σ log(1 + e^(−y·logit)) + penalty/2 · |weights|², y = ±1. The bias is not held down, so the mean
    probability of a label is the share of photos that carry it. Unless it is given, the penalty is max(10, a quarter of
    the photos that carry the label): codes may have been learnt from them (chosen by `speed/choosing.py`).
    """
    carried = labels > 0
    x = np.concatenate([values, np.ones((len(values), 1))], axis=1)
    found = np.empty((carried.shape[1], x.shape[1]))
    for i, has in enumerate(carried.T):
        ridge = np.full(x.shape[1], max(10.0, has.sum() / 4) if penalty is None else penalty)
        ridge[-1] = 1e-3  # of the bias: so that a label that all or none carry has one too
        found[i] = _newton(x, has, ridge, np.zeros_like(ridge))
    weights, bias = found[:, :-1].astype(np.float32), found[:, -1].astype(np.float32)
    return LabelLayer(weights, bias, Calibration.of((x @ found.T).astype(np.float32), carried))


def _newton(x: NDArray[Any], y: NDArray[Any], ridge: NDArray[Any], start: NDArray[Any]) -> NDArray[Any]:
    """The weights of least log loss + Σ ridge/2 · (weight − start)², by Newton's method; a step too far is halved."""

    def loss(weights: NDArray[Any]) -> float:
        logits = x @ weights
        return float((ridge * (weights - start) ** 2).sum() / 2 - log_sigmoid(np.where(y, logits, -logits)).sum())

    found, now, step = start, np.inf, np.zeros_like(start)
    for _ in range(30):
        while (there := loss(found + step)) > now and np.abs(step).max() > 1e-9:
            step = step / 2
        found, before, now = found + step, now, there
        if before - now < 1e-6 * now:
            break
        p = sigmoid(x @ found)
        gradient = x.T @ (p - y) + ridge * (found - start)
        step = -np.linalg.solve((x.T * (p * (1 - p))) @ x + np.diag(ridge), gradient)
    return found


def platt(logits: Logits, labels: NDArray[Any], *, prior: float = 10.0) -> tuple[Logits, Logits]:
    """Scale and shift of each label's logits, (labels,) each, that make σ(scale · logit + shift) its probability.

    With prior/2 · (scale − 1)² beside the log loss: of a label with few carriers little is changed.
    """
    ridge, start = np.array([prior, 1e-3]), np.array([1.0, 0.0])
    columns = zip(logits.T.astype(np.float64), labels.T > 0, strict=True)
    found = [_newton(np.stack([x, np.ones_like(x)], axis=1), has, ridge, start) for x, has in columns]
    scale, shift = np.array(found, np.float32).T
    return scale, shift


def best_threshold(probabilities: NDArray[Any], carried: NDArray[np.bool_]) -> float:
    """The probability from which to say "carries it" for the best F1 = 2·right / (said + carriers).

    It lies halfway between the last photo that is said to carry the label and the next one.
    """
    if carried.sum() < FEW:
        return 0.5
    order = np.argsort(-probabilities, kind="stable")
    ranked, said = probabilities[order], np.arange(1, len(order) + 1)
    f1 = 2 * np.cumsum(carried[order]) / (said + carried.sum())
    f1[:-1][ranked[:-1] == ranked[1:]] = 0  # no border between equals
    best = int(f1.argmax())
    below = ranked[best + 1] if best + 1 < len(ranked) else 0.0
    return float((ranked[best] + below) / 2)
