"""What the labels of a query mean: labels whatever their case, where their scores come from, and from where on a photo
probably carries them.

A hasher with a label layer has scores in the store. For a label that it never saw, and for a hasher without a layer,
a logistic layer over stored bits and scores is fitted from the photos that carry the label, and kept until they change.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.datasets import spelled
from hyphash.errors import ConfigError, LabelError, did_you_mean
from hyphash.hasher import Hasher
from hyphash.labels import LARGEST, fit_logistic, log_sigmoid, logit, sigmoid
from hyphash.searchers import LabelQuery, LabelTerm, Said
from hyphash.searchers.local.scores import STEP, features_of
from hyphash.stores import Ids, Scores, Session, Store

CARRIERS = 2000  # photos that are enough to tell a label by,
OTHERS = 8000  # and of those that are not to be told by it
FEW = 500  # tagged photos without the label below which untagged ones are taken for such
LEVELS = np.linspace(-LARGEST, LARGEST, 16, dtype=np.float32)


@dataclass(frozen=True)
class AskedLabels:
    """The labels of a search, by name; see LabelQuery."""

    every: tuple[str, ...] = ()
    some: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    at_least: Mapping[str, float] = field(default_factory=dict)  # probabilities that wanted labels must have
    said: Said = "first"

    def __bool__(self) -> bool:
        return bool(self.wanted or self.unwanted)

    @property
    def wanted(self) -> tuple[str, ...]:
        return (*self.every, *self.some)

    def carried_by(self, labels: Sequence[str]) -> bool:
        """Whether a photo with these labels is known to be as asked for."""
        every, some = set(self.every) <= set(labels), not self.some or bool(set(self.some) & set(labels))
        return (
            self.said in ("first", "counts")
            and bool(self.wanted)
            and every
            and some
            and not (set(self.unwanted) & set(labels))
        )


def probabilities(pairs: Iterable[str]) -> dict[str, float]:
    """What each label must have at least.

    >>> probabilities(["dog=.8"])
    {'dog': 0.8}
    """
    try:
        return {label.strip(): float(p) for label, _, p in (pair.rpartition("=") for pair in pairs) if label or p}
    except ValueError as error:
        raise ConfigError(f"a label and the probability that it must have, such as dog=.8 ({error})") from None


def asked_labels(
    every: Iterable[str], some: Iterable[str], unwanted: Iterable[str], at_least: Mapping[str, float], missing: str,
    wrong: str,
) -> AskedLabels:  # fmt: skip
    """The labels of a search; ConfigError where they do not go together."""
    asked = AskedLabels(spelled(every), spelled(some), spelled(unwanted), at_least)
    if (missing or wrong) and (asked or at_least or (missing and wrong)):
        raise ConfigError("labels that are missing, and labels that are wrong, are searched for by themselves")
    for label, p in at_least.items():
        if not 0 <= p <= 1:
            raise ConfigError(f"{label!r} at least {p:g}: a probability lies between 0 and 1")
    if missing:
        return AskedLabels(spelled([missing]), said="lacking")
    return AskedLabels(unwanted=spelled([wrong]), said="ignored") if wrong else asked


@dataclass(frozen=True)
class LabelSource:
    """Where the scores of a label come from, and what they mean."""

    source: int | bytes  # as in LabelTerm
    threshold: float  # the probability from which a photo is said to carry it
    levels: NDArray[np.float32] = field(default_factory=LEVELS.copy)  # the logit of each score
    unkept: int = 0

    def term(self, label: str, *, wanted: bool = True, at_least: float = 0.0) -> LabelTerm:
        logits = self.levels if wanted else -self.levels
        costs = np.where(sigmoid(logits) < at_least, np.inf, -log_sigmoid(logits)).astype(np.float32)
        return LabelTerm(label, self.source, costs, self.unkept)


class LabelSources:
    """The labels of one collection; those that were fitted are kept until the next change."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._fitted: dict[tuple[str, str], tuple[int, LabelSource | None]] = {}  # by hasher and label; commit

    def spelled(self, label: str, hasher: Hasher, *, strict: bool = True) -> str:
        """A label as the hasher or the photos have it, whatever its case; LabelError where neither knows it."""
        if label in hasher.classes or self.store.count(carrying=[label]):
            return label
        known = [*hasher.classes, *self.store.labels()]
        for one in known:
            if one.casefold() == label.casefold():
                return one
        if not strict:
            return label
        meant = did_you_mean(label, known) or "`hyphash collection stats` lists those that photos carry"
        raise LabelError(f"neither the hasher knows the label {label!r} nor does a photo here carry it; {meant}")

    def get(self, label: str, hasher: Hasher) -> LabelSource | None:
        """Where the scores of a label come from; None: there is nothing to tell it by."""
        calibration = hasher.calibration
        if calibration is not None and label in hasher.classes:
            number = hasher.classes.index(label)
            levels = calibration.tables[number, :: 1 if calibration.dense else STEP]
            unkept = int(np.abs(levels - logit(calibration.priors[number])).argmin())
            return LabelSource(number, float(calibration.thresholds[number]), levels, unkept)
        key, commit = (hasher.fingerprint, label), self.store.state().commit
        if self._fitted.get(key, (-1, None))[0] != commit:
            self._fitted[key] = commit, self._fit(label, hasher)
        return self._fitted[key][1]

    def _fit(self, label: str, hasher: Hasher) -> LabelSource | None:
        ids, codes, scores, shares = self.store.read(lambda session: _examples(session, label), "reading codes")
        carried = np.isin(ids, shares[0])
        if not carried.any() or carried.all() or (hasher.quantizer is not None and not scores.shape[1]):
            return None
        layer = fit_logistic(features_of(codes, scores), carried[:, None])
        drawn = float(np.log(shares[1] / shares[2]))  # carriers and others were drawn at different rates
        weights = np.append(layer.weights[0], layer.bias[0] - drawn).astype(np.float32)
        threshold = sigmoid(logit(layer.calibration.thresholds) - drawn)
        return LabelSource(weights.tobytes(), float(threshold[0]))

    def query(self, asked: AskedLabels, hasher: Hasher) -> LabelQuery | None:
        """The labels of a search with their scores; None where those of one are not to be had.

        The border lies where each label stands at its threshold t: Σ −log t(every) − log min t(some) − Σ log(1 − t).
        """
        found = {label: self.get(label, hasher) for label in (*asked.wanted, *asked.unwanted)}
        sources = {label: source for label, source in found.items() if source is not None}
        if not found or len(sources) < len(found):
            return None
        every, some = (
            tuple(sources[label].term(label, at_least=asked.at_least.get(label, 0.0)) for label in labels)
            for labels in (asked.every, asked.some)
        )
        unwanted = tuple(sources[label].term(label, wanted=False) for label in asked.unwanted)
        t = {label: min(max(source.threshold, 1e-6), 1 - 1e-6) for label, source in sources.items()}
        at = [t[label] for label in asked.every] + ([min(t[label] for label in asked.some)] if some else [])
        border = float(-np.log([*at, *(1 - t[label] for label in asked.unwanted)]).sum())
        return LabelQuery(every, some, unwanted, border, asked.said)


def _examples(session: Session, label: str) -> tuple[Ids, Codes, Scores, tuple[Ids, float, float]]:
    """Photos to fit a label on, and which carry it, with the shares of carriers and of others that were drawn."""
    carriers, others = session.ids_carrying([label]), session.ids_carrying(())
    if len(others) - len(carriers) < FEW:
        others = np.union1d(others, session.codes(session.state().in_use)[0])
    others = np.setdiff1d(np.union1d(others, session.ids_refusing(label)), carriers, assume_unique=True)
    drawn = [_spread(carriers, CARRIERS), _spread(others, OTHERS)]
    of_carriers, of_others = len(drawn[0]) / max(len(carriers), 1), len(drawn[1]) / max(len(others), 1)
    return *session.derived_of(np.union1d(*drawn)), (drawn[0], of_carriers, of_others)


def _spread(ids: Ids, most: int) -> Ids:
    """At most so many, evenly spread."""
    return ids[np.unique(np.linspace(0, len(ids) - 1, min(most, len(ids))).astype(np.int64))]
