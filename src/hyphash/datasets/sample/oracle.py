"""How far a background alone goes: the score of an oracle that sees nothing else of a scene."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyphash.datasets import multi_hot
from hyphash.datasets.sample.scene import Scene, classes


@dataclass(frozen=True)
class Oracle:
    """mAP@top (`paper` protocol: AP divided by the relevant scenes within the top) without looking at objects."""

    background: float  # by the best ranking that knows only the backgrounds of query and database scenes
    chance: float  # by the ranking that knows nothing: the order of ids


def background_oracle(queries: Sequence[Scene], database: Sequence[Scene], *, top: int = 1000) -> Oracle:
    """Score the rankings that know the background, or nothing.

    The oracle is told the true P(relevant | background of query, background of database scene), the share of
    these very pairs that have a label in common, and ranks by it, equal ones by id. A method that sees only
    backgrounds cannot be better informed, so what a hasher scores above this it has seen in the objects.
    """
    labels = [multi_hot([scene.labels for scene in part], classes()).astype(np.float32) for part in (queries, database)]
    relevant = labels[0] @ labels[1].T > 0
    names = sorted({scene.background for scene in [*queries, *database]})
    shown = [multi_hot([(scene.background,) for scene in part], names).astype(float) for part in (queries, database)]
    pairs = np.outer(shown[0].sum(0), shown[1].sum(0))
    probability = shown[0].T @ relevant @ shown[1] / np.maximum(pairs, 1)  # (query's background, database scene's)
    scores = shown[0] @ probability @ shown[1].T
    return Oracle(_mean_ap(scores, relevant, top), _mean_ap(np.zeros_like(scores), relevant, top))


def _mean_ap(scores: NDArray[np.float64], relevant: NDArray[np.bool_], top: int) -> float:
    """Mean over queries of Σ precision at the relevant ranks / relevant ranks, within the top; 0 where none is."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top]  # stable: equal scores by id
    hits = np.take_along_axis(relevant, order, axis=1)
    precision = hits.cumsum(axis=1) / np.arange(1, hits.shape[1] + 1)
    return float(((precision * hits).sum(axis=1) / np.maximum(hits.sum(axis=1), 1)).mean())
