"""How good logits of labels are: do they find the photos that carry a label, do probabilities mean what they say?"""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyphash.evaluation.measures import Floats
from hyphash.labels import Calibration, Logits, log_sigmoid, sigmoid

TOP = 100  # photos that a search for labels is measured over; pairs of labels that fewer share are left out
BINS = 15  # of calibration, of equal mass
SURE = 0.5


@dataclass(frozen=True, kw_only=True)
class Labelling:
    """What the label layer of a hasher is worth: its probabilities on the queries, and searches in the database.

    Average precision orders the queries by the probability of a label; micro orders all pairs of photo and label.
    The database is ordered by scores as a collection stores them: by Σ log p where several labels are wanted.
    """

    macro: float  # mean over labels of their average precision
    micro: float
    error: float  # expected calibration error, all labels pooled
    error_by_label: float  # mean over labels
    error_of_sure: float | None  # pooled, where p ≥ ½; None if it is so nowhere
    one: float | None  # precision of the first 100 with one label, the mean over labels
    two: float | None  # with two labels that 100 photos share
    pairs: int  # of such labels
    average_precision: tuple[float | None, ...]  # of each label

    def rows(self) -> list[tuple[str, float | None, str]]:
        """A compact table: what was measured, its value, how."""
        bins = f"|probability − share|, {BINS} bins of equal mass"
        return [
            ("label mAP", self.macro, "queries by the probability of a label, the mean over labels"),
            ("label mAP, micro", self.micro, "all pairs of query and label by their probability"),
            ("calibration error", self.error, f"{bins}, all labels together"),
            ("calibration error by label", self.error_by_label, "the same for each label, the mean over labels"),
            ("calibration error where p ≥ ½", self.error_of_sure, "of what is said to be there"),
            (f"precision of the top {TOP}, one label", self.one, "the database by stored scores, the mean over labels"),
            (f"precision of the top {TOP}, two labels", self.two, f"{self.pairs:,} pairs that {TOP} photos share"),
        ]


def labelling(
    logits: tuple[Logits, Logits], labels: tuple[NDArray[Any], NDArray[Any]], calibration: Calibration
) -> Labelling:
    """Measure logits of queries, and of a database as `calibration` stores them."""
    carried, has = (given > 0 for given in labels)
    each, p = average_precisions(logits[0], carried), sigmoid(logits[0])
    sure = p >= SURE
    scores = log_sigmoid(calibration.unpack(calibration.pack(logits[1])))
    together = has.T.astype(int) @ has.astype(int)
    wanted = [[label] for label in range(len(each)) if together[label, label]]
    pairs = [list(pair) for pair in combinations(range(len(each)), 2) if together[pair] >= TOP]
    found = [[_precision(scores, has, some) for some in sets] for sets in (wanted, pairs)]
    return Labelling(
        macro=float(np.nanmean(each)),
        micro=float(average_precisions(p.reshape(-1, 1), carried.reshape(-1, 1))[0]),
        error=calibration_error(p.ravel(), carried.ravel()),
        error_by_label=float(np.mean([calibration_error(p[:, j], carried[:, j]) for j in range(len(each))])),
        error_of_sure=calibration_error(p[sure], carried[sure]) if sure.any() else None,
        one=float(np.mean(found[0])) if wanted else None,
        two=float(np.mean(found[1])) if pairs else None,
        pairs=len(pairs),
        average_precision=tuple(None if np.isnan(value) else float(value) for value in each),
    )


def average_precisions(scores: NDArray[Any], labels: NDArray[Any]) -> Floats:
    """Of each label (column), photos ordered by its score and, where scores are equal, as they come; NaN for none."""
    found = []
    for score, carried in zip(scores.T, labels.T > 0, strict=True):
        places = np.flatnonzero(carried[np.argsort(-score, kind="stable")]) + 1
        found.append(np.mean(np.arange(1, len(places) + 1) / places) if len(places) else np.nan)
    return np.array(found)


def calibration_error(probabilities: NDArray[Any], carried: NDArray[np.bool_], *, bins: int = BINS) -> float:
    """Expected calibration error: the mean over bins of equal mass of |mean probability − share that carries|."""
    order = np.argsort(probabilities, kind="stable")
    off = np.cumsum(np.r_[0.0, (probabilities - carried)[order]])
    ends = np.linspace(0, len(order), bins + 1).round().astype(int)
    return float(np.abs(np.diff(off[ends])).sum() / len(order))


def _precision(scores: NDArray[Any], has: NDArray[np.bool_], wanted: list[int]) -> float:
    best = np.argsort(-scores[:, wanted].sum(1), kind="stable")[:TOP]
    return float(has[best][:, wanted].all(1).mean())
