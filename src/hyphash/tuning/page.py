"""What a study found, as a page: the trials in their order, what mattered, and each setting by itself."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from hyphash import plots
from hyphash.report import Cell, Drawn, Page, Section, Table
from hyphash.tuning import Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 10  # of the best trials
HOW = (
    "mAP of held-out training photos among the other training photos, mean over the folds ± standard error over them; "
    "queries and database were not looked at"
)


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
