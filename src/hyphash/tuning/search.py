"""A study: trials side by side until the time is up, chosen by Optuna from what the ones before came to.

STUDY/study.sqlite   Optuna's own, by which the same command goes on
STUDY/trials.jsonl   every trial with its settings and figures
STUDY/config.toml    the settings that were found, for `hyphash train --config`
STUDY/report.html    what mattered, drawn
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np

from hyphash import plots
from hyphash.config import Config, write_toml
from hyphash.errors import DataError, StoppedError, needs_extra
from hyphash.files import append_json, json_line, read_json_lines
from hyphash.losses import find, option_defaults
from hyphash.machine import default_threads
from hyphash.report import Cell, Drawn, Page, Section, Table
from hyphash.training import resolve
from hyphash.tuning import OPTION, CrossValidation, Score, Task, Trial
from hyphash.workers import Workers, told_to_stop

if TYPE_CHECKING:
    import optuna
    from matplotlib.figure import Figure

STUDY_FILE, TRIALS_FILE, CONFIG_FILE = "study.sqlite", "trials.jsonl", "config.toml"
CANDIDATES = 3  # that are tried again on other folds before one is recommended
GRACE = 30.0  # seconds that a trial under way has to come to an end
TELLING = 10  # trials that came to an end before anything is said of what mattered
ENOUGH = 6  # trials that came to an end before others are given up
WIDE = 8.0  # an option of a loss is searched from its published value divided by this to as many times as much
SHOWN = 10  # of the best trials
HOW = (
    "mAP of held-out training photos among the other training photos, mean over the folds ± standard error over them; "
    "queries and database were not looked at"
)

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


# ── the page: the trials in their order, what mattered, and each setting by itself ───────────────────────────


def search_page(
    trials: Sequence[Trial], *, folds: int, importances: Mapping[str, float], confirmed: tuple[Trial, Trial] | None
) -> Page:
    """The page of a search for better settings."""
    whole = [trial for trial in trials if len(trial.scores) == folds]
    best = sorted(whole, key=lambda trial: -trial.strict)[:SHOWN]
    sections = [Section("The best trials", (_table("best", "The best trials", best),))]
    if confirmed:
        pair = _table("confirmed", "The recipe and what was found, on folds that no trial has seen", confirmed)
        sections.insert(0, Section("Is it better?", (pair,)))
    if importances:
        drawn = Drawn(
            "importance", "What mattered", "Share of the differences between trials that it explains (PED-ANOVA).",
            _importance(importances),
        )  # fmt: skip
        sections.append(Section("What mattered", figures=(drawn,)))
    if len(whole) > 1:
        every = "Every trial; those that were given up early are not shown."
        drawn = Drawn("settings", "Each setting by itself", every, _slices(whole, list(importances) or None))
        sections.append(Section("Each setting by itself", figures=(drawn,)))
    facts = {"trials": str(len(trials)), "whole": str(len(whole)), "folds": str(folds)}
    return Page(title="Which settings suit these photos", text=HOW, sections=tuple(sections), facts=facts)


def questions_page(trials: Sequence[Trial], *, title: str, folds: int) -> Page:
    """The page of a study that asked questions: a table for each, its trials in the order in which they were asked."""
    sections = []
    for number, (question, group) in enumerate(groupby(trials, key=lambda trial: trial.question), 1):
        sections.append(Section(question, (_table(f"question-{number}", question, list(group)),)))
    facts = {"trials": str(len(trials)), "folds": str(folds)}
    return Page(title=title, text=HOW, sections=tuple(sections), facts=facts)


def _table(name: str, title: str, trials: Sequence[Trial]) -> Table:
    """A row for each trial; settings that all of them share are said once, above."""
    names = list(dict.fromkeys(key for trial in trials for key in trial.settings))
    shared = {key for key in names if len({repr(trial.settings.get(key)) for trial in trials}) == 1 and len(trials) > 1}
    columns = [key for key in names if key not in shared]
    rows: list[tuple[Cell, ...]] = []
    for trial in trials:
        settings = [_cell(trial.settings.get(key, "recipe's")) for key in columns]
        strict, paper = (_mean([getattr(score, name) for score in trial.scores]) for name in ("strict", "paper"))
        rows.append((*settings, strict, paper, trial.seconds))
    best = max(range(len(trials)), key=lambda i: -math.inf if math.isnan(trials[i].strict) else trials[i].strict)
    above = ", ".join(f"{key} {_cell(trials[0].settings[key])}" for key in names if key in shared)
    return Table(
        name=name, title=title, above=above, columns=(*columns, "strict", "paper", "seconds"), rows=tuple(rows),
        best=frozenset({(best, len(columns))}), records=tuple(asdict(trial) for trial in trials),
        below=tuple(dict.fromkeys(trial.problem for trial in trials if trial.problem)),
    )  # fmt: skip


def _cell(value: Any) -> Cell:
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, int | str) else str(value)


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "–"
    error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{np.mean(values):.4f} ± {error:.4f}"


def _importance(importances: Mapping[str, float]) -> "Figure":
    figure, ((axes,),) = plots.panels(5.2, 0.8 + 0.3 * len(importances))
    names = list(importances)[::-1]
    axes.barh(names, [importances[name] for name in names], color=plots.COLOURS[0])
    axes.set(xlabel="importance")
    return figure


def _slices(trials: Sequence[Trial], names: Sequence[str] | None) -> "Figure":
    """The score of every trial over each setting."""
    names = list(names or trials[0].settings)
    columns = 3
    figure, axes = plots.panels(9.5, 2.6 * -(-len(names) // columns), rows=-(-len(names) // columns), columns=columns)
    flat = [one for row in axes for one in row]
    for name, one in zip(names, flat, strict=False):
        points = [(trial.settings[name], trial.strict) for trial in trials if name in trial.settings]
        values, scores = zip(*points, strict=True)
        if all(isinstance(value, int | float) for value in values):
            if min(values) > 0 and max(values) > 10 * min(values):
                one.set_xscale("log")
                one.xaxis.set_minor_formatter("")  # a decade's own labels would overlap
            one.scatter(values, scores, s=10, color=plots.COLOURS[0])
        else:
            one.scatter([str(value) for value in values], scores, s=10, color=plots.COLOURS[0])
        one.set(xlabel=name, ylabel="mAP, strict")
    for one in flat[len(names) :]:
        one.set_visible(False)
    return figure
