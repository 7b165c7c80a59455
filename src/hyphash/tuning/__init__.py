"""Tuning: which settings suit these photos, by cross-validation inside the training part alone.

The features of the training photos are read once, then every trial trains heads over them: one for each fold, on all
photos but the fold's, whose codes then look for relevant photos. Where the database of the dataset holds the training
photos, as it does with one's own, they look among those that were trained on; where it holds others, among the photos
of their fold, which were not: settings that learn the training photos by heart are good for the first and bad for the
second. Queries and database are never read; of the database only its size and its share of training photos are known.

>>> validation = CrossValidation(Config(data="photos"), splits, folds=5)                  # doctest: +SKIP
>>> [fold.strict for fold in validation.scores({"rate": 0.02, "option.weight": 4.0})]     # doctest: +SKIP
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from hyphash.config import Config, from_table, to_table
from hyphash.datasets import Splits
from hyphash.errors import ConfigError, DataError, StoppedError
from hyphash.evaluation import mean_average_precision
from hyphash.features import default_cache
from hyphash.hasher import Hasher, Progress
from hyphash.losses import find
from hyphash.training import prepare, resolve, threads
from hyphash.training.inputs import FeatureInputs, load_inputs
from hyphash.training.session import Session

OPTION = "option."  # before the name of a setting that is the loss's own
FEWEST = 10  # photos that a validation ranking goes down to, at the least

Settings = Mapping[str, Any]  # of Config by name, and `option.NAME` of the loss


class Score(NamedTuple):
    """mAP of one fold's photos among the others."""

    paper: float
    strict: float


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Some settings, and what they came to."""

    settings: Settings
    scores: tuple[Score, ...] = ()  # a fold each; fewer than there are folds where it was given up
    seconds: float = 0.0
    question: str = ""  # what it was tried for
    problem: str = ""  # why there are no scores

    @property
    def strict(self) -> float:
        """Mean over the folds."""
        return float(np.mean([score.strict for score in self.scores])) if self.scores else math.nan

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "Trial":
        return cls(**dict(table) | {"scores": tuple(Score(*score) for score in table["scores"])})


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is tuned: a config whose open settings are the method's own, over which photos, by how many folds."""

    config: Config
    splits: Splits
    folds: int = 5
    draw: int = 0  # which of many ways to cut the photos into folds
    cache: Path = field(default_factory=default_cache)

    def __post_init__(self) -> None:
        if self.config.mode == "fine-tune":
            raise ConfigError("tuning trains heads over frozen features; leave out --mode fine-tune")
        if self.folds < 2:
            raise ConfigError(f"--folds must be 2 or more, not {self.folds}")
        if len(self.splits.train) < 4 * self.folds:
            photos = f"{len(self.splits.train)} training photos"
            raise DataError(f"{self.splits.name}: {photos} are too few for {self.folds} folds; lower --folds")

    @property
    def trained(self) -> float:
        """The share of the database that is trained on."""
        database = self.splits.database.rows
        return float(np.isin(database, self.splits.train.rows).mean())

    def applied(self, settings: Settings) -> Config:
        """The config with these settings in it; unknown ones and values out of range are errors."""
        own = {name.removeprefix(OPTION): value for name, value in settings.items() if name.startswith(OPTION)}
        rest = {name: value for name, value in settings.items() if not name.startswith(OPTION)}
        base = to_table(self.config) | {"mode": "frozen"} | rest
        return from_table(Config, base | {"loss_options": base["loss_options"] | own}, "a trial")


class CrossValidation:
    """The features of the training photos, cut into folds; trains and measures heads over them."""

    def __init__(self, task: Task, _worker: int = 0, *, progress: Progress | None = None) -> None:
        self.task, self._progress = task, progress
        self._inputs: dict[tuple[Any, ...], tuple[Hasher, FeatureInputs]] = {}
        self.parts = _folds(len(self.read(task.applied({}))[1]), task.folds, task.draw)

    def scores(self, settings: Settings, stop: Callable[[], bool] = lambda: False) -> Iterator[Score]:
        """Train with these settings on all folds but one and measure that one, for each in its turn."""
        config = replace(self.task.applied(settings), label_layer=False)
        for held_out in range(len(self.parts)):
            yield self._measured(self.session(config, held_out, stop), config.top)

    def trial(
        self,
        settings: Settings,
        *,
        question: str = "",
        stop: Callable[[], bool] = lambda: False,
        give_up: Callable[[Sequence[Score]], bool] = lambda _: False,
    ) -> Trial:
        """All folds of it, or until it is given up. Settings under which training fails are a trial that says why."""
        began, scores, problem = time.monotonic(), list[Score](), ""
        try:
            for score in self.scores(settings, stop):
                scores.append(score)
                if give_up(scores):
                    break
        except ConfigError as error:  # the loss is not finite; or no such setting
            scores, problem = [], str(error)
        seconds = round(time.monotonic() - began, 2)
        return Trial(settings=settings, scores=tuple(scores), seconds=seconds, question=question, problem=problem)

    def session(self, config: Config, held_out: int, stop: Callable[[], bool] = lambda: False) -> Session:
        """A head that was trained with this config on all folds but one."""
        shared, inputs = self.read(config)
        config, hasher, loss, _ = prepare(config, self.task.splits, like=shared)
        rest = np.sort(np.concatenate([part for i, part in enumerate(self.parts) if i != held_out]))
        rows, fold = (torch.from_numpy(part).to(hasher.device) for part in (rest, self.parts[held_out]))
        session = Session(hasher, loss, inputs, config, parts=(rows, fold))
        with threads(config.threads):
            if loss.fitted:
                session.fit_at_once()
                return session
            point = session.start()
            while point.epoch < session.epochs:
                point, _ = session.run_epoch(point, stop)
                if point.step:
                    raise StoppedError("stopped in the middle of a trial")
        return session

    def _measured(self, session: Session, top: int) -> Score:
        """How well photos of the fold find others: as many of these were trained on as of the dataset's database."""
        fold, trained = session.held_out, self.task.trained
        if trained == 1:
            pairs = [(fold, session.rows)]
        else:
            halves = fold.chunk(2)
            more = session.rows[: round(len(halves[0]) * trained / (1 - trained))]
            pairs = [(queries, torch.cat([others, more])) for queries, others in (halves, halves[::-1])]
        found = []
        for queries, database in pairs:
            rankings = session.rankings(queries, database)
            assert rankings is not None, "one process has all of it"
            depth = max(FEWEST, round(top * len(database) / max(len(self.task.splits.database), len(database))))
            found.append([mean_average_precision(rankings, top=depth, protocol=name) for name in ("paper", "strict")])
        paper, strict = np.mean(found, axis=0).round(5).tolist()
        return Score(paper, strict)

    def read(self, config: Config) -> tuple[Hasher, FeatureInputs]:
        """The backbone and its features that a config asks for; each once."""
        config = resolve(config)
        key = (config.backbone, config.size, config.mirror, config.views, find(config.loss).needs_map)
        if key not in self._inputs:
            _, hasher, _, _ = prepare(config, self.task.splits)
            inputs, _ = load_inputs(
                hasher, self.task.splits.train, frozen=True, cache=self.task.cache, views=config.views or 1,
                progress=self._progress,
            )  # fmt: skip
            assert isinstance(inputs, FeatureInputs)
            self._inputs[key] = hasher, inputs
        return self._inputs[key]


def _folds(photos: int, folds: int, draw: int) -> list[np.ndarray]:
    """Rows in as many parts, drawn at random, whose sizes differ by at most one."""
    return np.array_split(np.random.default_rng([draw, folds]).permutation(photos), folds)


def grid(settings: Settings) -> list[dict[str, Any]]:
    """Every combination of the settings whose value is a list.

    >>> grid({"bits": [12, 48], "rate": 0.1})
    [{'bits': 12, 'rate': 0.1}, {'bits': 48, 'rate': 0.1}]
    """
    lists = (value if isinstance(value, list) else [value] for value in settings.values())
    return [dict(zip(settings, values, strict=True)) for values in product(*lists)]
