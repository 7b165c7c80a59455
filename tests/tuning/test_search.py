"""A study in a folder: it goes on where it was, gives up what is behind, and recommends only what is better."""

import json

import pytest

from hyphash.config import read_config
from hyphash.errors import DataError
from hyphash.training import resolve
from hyphash.tuning import Score, Task, Trial
from hyphash.tuning.search import (
    ENOUGH,
    Range,
    Study,
    _is_behind,
    importances,
    open_optuna,
    questions_page,
    search_page,
    space_of,
)


@pytest.fixture
def study(settings, splits, cache, tmp_path):
    return Study(Task(config=settings(epochs=2), splits=splits, folds=2, cache=cache), tmp_path / "study")


SPACE = {"rate": Range(0.01, 1.0), "dropout": Range(0.2, 0.8), "hidden": (8, 16)}


def after(trials, study):
    """Stop once the study has so many trials."""
    return lambda: len(study.trials()) >= trials


def test_the_first_trial_is_the_recipe_and_the_rest_lie_in_the_space(study):
    trials = list(study.search(SPACE, stop=after(4, study)))
    recipe = resolve(study.task.applied({}))
    assert len(trials) == 4
    assert trials[0].settings == {"rate": recipe.rate, "dropout": recipe.dropout, "hidden": recipe.hidden}
    for trial in trials[1:]:
        assert 0.01 <= trial.settings["rate"] <= 1
        assert 0.2 <= trial.settings["dropout"] <= 0.8
        assert trial.settings["hidden"] in (8, 16)


def test_a_recipe_outside_of_the_space_is_tried_all_the_same(study):
    (trial,) = study.search({"rate": Range(0.5, 1.0), "hidden": (4, 8)}, stop=after(1, study))
    assert trial.settings == {"rate": 0.05, "hidden": 16}


def test_a_study_goes_on_where_it_was(study):
    first = list(study.search(SPACE, stop=after(2, study)))
    more = list(Study(study.task, study.folder).search(SPACE, stop=after(4, study)))
    assert study.trials() == first + more
    assert len(open_optuna(study.folder).trials) == 4
    assert len({json.dumps(dict(trial.settings)) for trial in study.trials()}) == 4


def test_a_trial_that_is_behind_most_is_given_up(study):
    optuna = open_optuna(study.folder)
    for i in range(ENOUGH):
        trial = optuna.ask({})
        for fold in range(2):
            trial.report(0.5 + 0.01 * i, fold)
        assert not _is_behind(optuna, [Score(0, 0.1)])  # too few to say so
        optuna.tell(trial, 0.5 + 0.01 * i)
    assert _is_behind(optuna, [Score(0, 0.1)])
    assert _is_behind(optuna, [Score(0, 0.9), Score(0, 0.1)])
    assert not _is_behind(optuna, [Score(0, 0.9)])
    assert not _is_behind(optuna, [])


@pytest.mark.slow
def test_processes_side_by_side_share_a_study(study):
    trials = list(study.search(SPACE, jobs=2, stop=after(4, study)))
    assert len(trials) >= 4
    assert study.trials() == trials


def test_what_was_asked_is_not_tried_again(study):
    asked = [("rates", {"rate": 0.1}), ("rates", {"rate": 0.2})]
    first = list(study.ask(asked[:1], stop=lambda: False))
    second = list(study.ask(asked, stop=lambda: False))
    assert [trial.settings for trial in first + second] == [{"rate": 0.1}, {"rate": 0.2}]
    assert study.trials() == first + second


def test_what_is_better_on_other_folds_is_recommended(study, monkeypatch):
    for rate, strict in ((0.1, 0.9), (0.2, 0.8)):
        study.keep(Trial(settings={"rate": rate}, scores=(Score(strict, strict),) * 2))

    def again(self, work, items, jobs, stop, *, keep=True):
        assert self.task.draw == study.task.draw + 1
        assert not keep
        gains = {0.1: 0.4, 0.2: 0.7}  # the one that looked best was lucky
        for _, settings in items:
            score = gains.get(settings.get("rate"), 0.5)
            yield Trial(settings=settings, scores=(Score(score, score),) * 2)

    monkeypatch.setattr(Study, "_done", again)
    recipe, found = study.confirm(stop=lambda: False)
    assert (recipe.settings, recipe.strict, found.settings) == ({}, 0.5, {"rate": 0.2})
    assert read_config(study.recommend(found)).rate == 0.2


def test_the_recipe_stays_where_nothing_is_better(study):
    study.keep(Trial(settings={"epochs": 2}, scores=(Score(1, 1),) * 2))  # the recipe by another name
    recipe, found = study.confirm(stop=lambda: False)
    assert found is recipe
    assert read_config(study.recommend(found)) == study.task.applied({})


def test_a_study_without_a_whole_trial_recommends_nothing(study):
    with pytest.raises(DataError, match="no trial came to an end; give it more --minutes"):
        study.confirm(stop=lambda: False)


def test_the_space_lies_around_the_recipe_and_has_the_options_of_the_loss(settings):
    space = space_of(settings(loss="hyp2-ap", hidden=None, epochs=None, batch=None))
    assert space["option.weight"] == Range(0.25, 16.0)
    assert space["rate"].low < 0.05 < space["rate"].high
    assert "option.margin" not in space  # no number by default


def test_what_is_given_is_not_tuned(settings):
    space = space_of(settings(loss="hyp2-ap", epochs=20, loss_options={"weight": 1.0}))
    assert space.keys().isdisjoint({"epochs", "hidden", "batch", "option.weight"})
    assert {"rate", "dropout", "option.beta"} <= space.keys()


def test_what_mattered_is_found_out(study):
    assert importances(study.folder) == {}
    optuna = open_optuna(study.folder)
    for i in range(30):
        trial = optuna.ask()
        rate, _ = trial.suggest_float("rate", 0, 1), trial.suggest_float("dropout", 0, 1)
        optuna.tell(trial, rate + i * 1e-9)
    found = importances(study.folder)
    assert list(found) == ["rate", "dropout"]
    assert found["rate"] > 0.6


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def trials():
    def trial(rate, kind, *scores, **more):
        return Trial(settings={"rate": rate, "kind": kind}, scores=tuple(Score(s, s / 2) for s in scores), **more)

    return [
        trial(0.1, "a", 0.5, 0.6),
        trial(0.001, "b", 0.7, 0.8),
        trial(0.2, "a", 0.4),
        trial(9.0, "a", problem="NaN"),
    ]


def test_a_search_shows_the_best_first_and_what_mattered(trials, tmp_path):
    recipe = Trial(settings={}, scores=(Score(0.5, 0.5),) * 2)
    page = search_page(trials, folds=2, importances={"rate": 0.8, "kind": 0.2}, confirmed=(recipe, trials[1]))
    best = next(table for table in page.tables if table.name == "best")
    assert [row[0] for row in best.rows] == ["0.001", "0.1"]  # whole trials alone
    assert best.rows[0][2] == "0.3750 ± 0.0250"
    confirmed = page.tables[0]
    assert confirmed.rows[0][:2] == ("recipe's", "recipe's")
    assert [figure.name for figure in page.figures] == ["importance", "settings"]
    html = page.write(tmp_path).read_text()
    assert "queries and database were not looked at" in html
    assert html.count("<svg") == 2


def test_questions_have_a_table_each_and_say_what_is_shared_once(trials):
    asked = [Trial(settings=t.settings, scores=t.scores, question=q, problem=t.problem)
             for t, q in zip(trials, "xxyy", strict=True)]  # fmt: skip
    page = questions_page(asked, title="A study", folds=2)
    assert [table.title for table in page.tables] == ["x", "y"]
    assert page.tables[1].above == "kind a"
    assert page.tables[1].columns == ("rate", "strict", "paper", "seconds")
    assert page.tables[1].rows[1] == ("9", "–", "–", 0.0)
    assert page.tables[1].below == ("NaN",)
    assert page.tables[0].best == {(1, 2)}
