"""A study: trials side by side until the time is up, chosen by Optuna from what the ones before came to.

STUDY/study.sqlite   Optuna's own, by which the same command goes on
STUDY/trials.jsonl   every trial with its settings and figures
STUDY/config.toml    the settings that were found, for `hyphash train --config`
STUDY/report.html    what mattered, drawn
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from hyphash.config import Config, write_toml
from hyphash.errors import DataError, StoppedError, needs_extra
from hyphash.files import append_json, json_line, read_json_lines
from hyphash.losses import find, option_defaults
from hyphash.machine import default_threads
from hyphash.training import resolve
from hyphash.tuning import OPTION, CrossValidation, Score, Task, Trial
from hyphash.workers import Workers, told_to_stop

if TYPE_CHECKING:
    import optuna

STUDY_FILE, TRIALS_FILE, CONFIG_FILE = "study.sqlite", "trials.jsonl", "config.toml"
CANDIDATES = 3  # that are tried again on other folds before one is recommended
GRACE = 30.0  # seconds that a trial under way has to come to an end
TELLING = 10  # trials that came to an end before anything is said of what mattered
ENOUGH = 6  # trials that came to an end before others are given up
WIDE = 8.0  # an option of a loss is searched from its published value divided by this to as many times as much

Stop = Callable[[], bool]


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, by their logarithm where they span more than one power of ten."""

    low: float
    high: float


Space = Mapping[str, Range | tuple[Any, ...]]  # settings to try, from a range or among some


def space_of(config: Config) -> Space:
    """Around what the method's own recipe says: rates, dropout, width, batches, epochs, and the loss's own numbers.

    What the config says already is not tuned.
    """
    chosen, own = resolve(replace(config, mode="frozen")), option_defaults(find(config.loss))
    rate, loss_rate = chosen.rate or 0.05, chosen.loss_rate or 0.002
    space: dict[str, Range | tuple[Any, ...]] = {
        "rate": Range(rate / 10, rate * 4),
        "loss_rate": Range(loss_rate / 10, loss_rate * 10),
        "weight_decay": Range(1e-5, 3e-3),
        "dropout": Range(0.2, 0.8),
        "hidden": (512, 1024, 2048),
        "batch": (100, 250, 500),
        "epochs": (40, 80, 160),
    }
    numbers = {name: value for name, value in own.items() if isinstance(value, float) and value > 0}
    space |= {OPTION + name: Range(value / WIDE, value * WIDE) for name, value in numbers.items()}
    given = {name for name in space if getattr(config, name, None) is not None}
    given |= {OPTION + name for name in config.loss_options}
    return {name: values for name, values in space.items() if name not in given}


@dataclass(frozen=True)
class Study:
    """Trials in a folder. The same study opened again goes on."""

    task: Task
    folder: Path

    def trials(self) -> list[Trial]:
        """All that came to an end, in the order in which they did."""
        return [Trial.from_table(line) for line in read_json_lines(self.folder / TRIALS_FILE)]

    def keep(self, trial: Trial) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        append_json(self.folder / TRIALS_FILE, asdict(trial))

    def ask(self, asked: Sequence[tuple[str, dict[str, Any]]], *, jobs: int = 1, stop: Stop) -> Iterator[Trial]:
        """Try what is asked, `jobs` at a time, unless it has been; the trials as they come."""
        known = {json_line(dict(trial.settings)) for trial in self.trials()}
        left = [pair for pair in asked if json_line(pair[1]) not in known]
        yield from self._done(_try, left, jobs, stop)

    def search(self, space: Space, *, jobs: int = 1, stop: Stop) -> Iterator[Trial]:
        """Look for better settings until `stop`, `jobs` trials at a time; the trials as they come.

        The first one is the recipe as it is. One that does worse on its first folds than most did on them is given up.
        """
        recipe = {name: _default(self.task, name) for name in space}
        wide = {name: _with(values, recipe[name]) for name, values in space.items()}
        open_optuna(self.folder).enqueue_trial(recipe, skip_if_exists=True)
        yield from self._done(partial(_search, space=wide, folder=self.folder), range(jobs), jobs, stop)

    def confirm(self, *, jobs: int = 1, stop: Stop) -> tuple[Trial, Trial] | None:
        """The recipe as it is, and the better of it and the best few trials, on folds that none of them has seen.

        The best of many trials looks better than it is; only this comparison is fair. None where it was stopped.
        """
        whole = [trial for trial in self.trials() if len(trial.scores) == self.task.folds and trial.settings]
        if not whole:
            raise DataError(f"{self.folder}: no trial came to an end; give it more --minutes")
        best = sorted(whole, key=lambda trial: -trial.strict)[:CANDIDATES]
        again = Study(replace(self.task, draw=self.task.draw + 1), self.folder)
        asked = [("", {}), *(("", dict(trial.settings)) for trial in best)]
        done = list(again._done(_try, asked, jobs, stop, keep=False))
        if len(done) < len(asked):
            return None
        recipe = next(trial for trial in done if not trial.settings)
        return recipe, max(done, key=lambda trial: (trial.strict, trial is recipe))

    def recommend(self, trial: Trial) -> Path:
        """Write the settings of a trial as a config for `hyphash train`."""
        write_toml(self.folder / CONFIG_FILE, self.task.applied(trial.settings))
        return self.folder / CONFIG_FILE

    def _done(
        self, work: Callable[..., Any], items: Sequence[Any], jobs: int, stop: Stop, *, keep: bool = True
    ) -> Iterator[Trial]:
        """`work` of each item over features that every worker has read; the first one reads those that are not kept."""
        if not items:
            return
        beside = min(jobs, len(items)) if jobs > 1 else 0
        threads = max(1, default_threads() // max(beside, 1))
        with Workers(beside, setup=partial(CrossValidation, self.task), threads=threads) as pool:
            done = pool.as_done(work if beside else partial(work, stop=stop), items, stop=stop, grace=GRACE)
            for _, trial in done:
                if isinstance(trial, Exception):
                    raise trial
                if keep:
                    self.keep(trial)
                yield trial


def _try(validation: CrossValidation, asked: tuple[str, dict[str, Any]], stop: Stop = told_to_stop) -> Iterator[Trial]:
    question, settings = asked
    try:
        yield validation.trial(settings, question=question, stop=stop)
    except StoppedError:
        return


def _search(
    validation: CrossValidation, number: int, *, space: Space, folder: Path, stop: Stop = told_to_stop
) -> Iterator[Trial]:
    """Trials one after the other until it is told to stop; one that is cut off leaves nothing."""
    study = open_optuna(folder, seed=number)
    while not stop():
        asked = study.ask()
        settings = {name: _suggested(asked, name, values) for name, values in space.items()}

        def behind(scores: Sequence[Score], asked: "optuna.Trial" = asked) -> bool:
            asked.report(scores[-1].strict, len(scores) - 1)
            return _is_behind(study, scores)

        try:
            trial = validation.trial(settings, stop=stop, give_up=behind)
        except StoppedError:
            study.tell(asked, state=_state("FAIL"))
            return
        whole = len(trial.scores) == validation.task.folds
        state = None if whole else _state("PRUNED" if trial.scores else "FAIL")
        study.tell(asked, trial.strict if whole else None, state=state)
        yield trial


def _is_behind(study: "optuna.Study", scores: Sequence[Score]) -> bool:
    """Whether most of the trials that came to an end did better on the same folds, where there are enough to say so."""
    whole = [trial.intermediate_values for trial in study.get_trials(deepcopy=False, states=[_state("COMPLETE")])]
    if len(whole) < ENOUGH or not scores:
        return False
    others = [fmean(values[fold] for fold in range(len(scores))) for values in whole]
    return fmean(score.strict for score in scores) < median(others)


def _state(name: str) -> Any:
    from optuna.trial import TrialState

    return TrialState[name]


def _suggested(trial: "optuna.Trial", name: str, values: Range | tuple[Any, ...]) -> Any:
    if isinstance(values, tuple):
        return trial.suggest_categorical(name, values)
    value = trial.suggest_float(name, values.low, values.high, log=values.high > 10 * values.low > 0)
    return float(f"{value:.3g}")  # what is written down is what was tried


def _with(values: Range | tuple[Any, ...], one: Any) -> Range | tuple[Any, ...]:
    """Wide enough to have one value more in it."""
    if isinstance(values, tuple):
        return values if one in values else (*values, one)
    return Range(min(values.low, one), max(values.high, one))


def _default(task: Task, name: str) -> Any:
    """What the recipe has for a setting."""
    if name.startswith(OPTION):
        return option_defaults(find(task.config.loss))[name.removeprefix(OPTION)]
    return getattr(resolve(task.applied({})), name)


def open_optuna(folder: Path, *, seed: int = 0) -> "optuna.Study":
    """Optuna's study in a folder; several processes may have it open."""
    with needs_extra("tune", "tuning"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name="hyphash", storage=f"sqlite:///{folder / STUDY_FILE}", load_if_exists=True, direction="maximize"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        drawn = len(study.get_trials(deepcopy=False))  # a study that goes on must not draw the same ones again
        study.sampler = optuna.samplers.TPESampler(seed=1000 * drawn + seed, multivariate=True, constant_liar=True)
    return study


def importances(folder: Path) -> dict[str, float]:
    """How much of what the trials differ in each setting explains, the most first; empty where there are too few."""
    study = open_optuna(folder)
    import optuna

    if len(study.get_trials(deepcopy=False, states=[_state("COMPLETE")])) < TELLING:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is new to Optuna
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        return optuna.importance.get_param_importances(study, evaluator=evaluator)
