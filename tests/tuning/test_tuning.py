"""Cross-validation inside the training photos: folds, settings, and what is never read."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyphash.errors import ConfigError, DataError, StoppedError
from hyphash.evaluation import Rankings, encode_split, mean_average_precision
from hyphash.training import fit, prepare
from hyphash.training.session import Session
from hyphash.tuning import CrossValidation, Score, Task, Trial, _folds, grid


@pytest.fixture
def task(settings, splits, cache):
    def make(folds=3, draw=0, splits=splits, **changes):
        return Task(config=settings(**changes), splits=splits, folds=folds, draw=draw, cache=cache)

    return make


@given(photos=st.integers(8, 200), folds=st.integers(2, 8), draw=st.integers(0, 5))
def test_every_photo_is_in_one_fold_and_folds_are_of_one_size(photos, folds, draw):
    parts = _folds(photos, folds, draw)
    assert sorted(np.concatenate(parts).tolist()) == list(range(photos))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_other_draws_cut_other_folds():
    assert [part.tolist() for part in _folds(20, 4, 0)] == [part.tolist() for part in _folds(20, 4, 0)]
    assert [part.tolist() for part in _folds(20, 4, 0)] != [part.tolist() for part in _folds(20, 4, 1)]


def by_hand(asked, splits, cache, pairs):
    """The naive twin of the first fold: a run of its own on the other photos, its codes measured pair by pair."""
    held_out = _folds(len(splits.train), 3, 0)[0]
    rest = np.setdiff1d(np.arange(len(splits.train)), held_out)
    _, shared, _, _ = prepare(asked.config, splits)
    config, hasher, loss, _ = prepare(asked.config, splits, like=shared)
    list(fit(hasher, loss, replace(splits, train=splits.train.take(rest)), config, cache=cache))
    found = []
    for rows, top in pairs(held_out, rest):
        queries, database = (encode_split(hasher, splits.train.take(part), cache=cache) for part in rows)
        rankings = Rankings(queries.codes, database.codes, queries.split.labels, database.split.labels)
        found.append([mean_average_precision(rankings, top=top, protocol=name) for name in ("paper", "strict")])
    return np.mean(found, axis=0).tolist()


def test_photos_of_a_fold_look_among_those_that_were_trained_on_where_the_database_holds_these(task, splits, cache):
    asked = task(epochs=4, validation=0.0)
    assert asked.trained == 1
    score = next(CrossValidation(asked).scores({}))
    expected = by_hand(asked, splits, cache, lambda held_out, rest: [((held_out, rest), 667)])
    assert [score.paper, score.strict] == pytest.approx(expected, abs=1e-5)


def test_photos_of_a_fold_look_among_each_other_where_the_database_holds_other_photos(task, splits, cache):
    others = replace(splits, database=splits.queries)
    asked = task(epochs=4, validation=0.0, splits=others)
    assert asked.trained == 0
    score = next(CrossValidation(asked).scores({}))
    expected = by_hand(
        asked,
        others,
        cache,
        lambda held_out, _: [((held_out[:5], held_out[5:]), 833), ((held_out[5:], held_out[:5]), 833)],
    )
    assert [score.paper, score.strict] == pytest.approx(expected, abs=1e-5)


def test_a_database_of_both_kinds_is_looked_into_in_proportion(task, splits, monkeypatch):
    rows = np.concatenate([splits.queries.rows, splits.train.rows[:6]])
    mixed = replace(splits, database=replace(splits.database, rows=rows, labels=splits.train.labels[: len(rows)]))
    asked = task(splits=mixed)
    assert asked.trained == 0.5
    seen, rankings = [], Session.rankings
    monkeypatch.setattr(
        Session, "rankings", lambda self, *parts: (seen.append((self, parts)), rankings(self, *parts))[1]
    )
    next(CrossValidation(asked).scores({}))
    for session, (queries, database) in seen:
        trained = torch.isin(database, session.rows)
        assert trained.float().mean() == 0.5
        assert not torch.isin(queries, torch.cat([session.rows, database])).any()


def test_queries_and_database_are_never_read(task, splits):
    class Untouchable:
        def __len__(self):
            return 36

        def __getattr__(self, name):
            raise AssertionError(f"{name} was asked for")

    hidden = replace(splits.queries, photos=Untouchable(), labels=np.full_like(splits.queries.labels, 9))
    asked = task(splits=replace(splits, queries=hidden, database=replace(splits.database, photos=Untouchable())))
    assert len(CrossValidation(asked).trial({}).scores) == 3


def test_trials_with_equal_settings_score_alike_and_others_do_not(task):
    validation = CrossValidation(task())
    first, other, again = (validation.trial(settings) for settings in ({}, {"rate": 0.3, "epochs": 1}, {}))
    assert first.scores == again.scores != other.scores


def test_settings_of_the_loss_have_a_prefix(task):
    config = task(loss="hyp2-ap").applied({"rate": 0.25, "option.weight": 4})
    assert (config.rate, config.loss_options) == (0.25, {"weight": 4})


@pytest.mark.parametrize(
    ("chosen", "told"), [({"pace": 1}, "pace"), ({"option.pace": 1}, "pace"), ({"rate": 1e30}, "rate")]
)
def test_settings_that_fail_are_a_trial_that_says_why(task, chosen, told):
    trial = CrossValidation(task()).trial(chosen)
    assert trial.scores == ()
    assert told in trial.problem


def test_a_fitted_method_is_validated_too(task):
    trial = CrossValidation(task(loss="itq", hidden=0)).trial({})
    assert len(trial.scores) == 3
    assert 0 < trial.strict <= 1


def test_stopping_leaves_no_half_trial(task):
    with pytest.raises(StoppedError):
        CrossValidation(task()).trial({}, stop=lambda: True)


def test_tasks_that_cannot_be_done_say_so(task):
    with pytest.raises(DataError, match="30 training photos are too few for 12 folds; lower --folds"):
        task(folds=12)
    with pytest.raises(ConfigError, match="leave out --mode fine-tune"):
        task(mode="fine-tune")


def test_a_trial_survives_a_round_trip():
    trial = Trial(settings={"rate": 0.1}, scores=(Score(0.5, 0.25), Score(0.75, 0.5)), seconds=1.5, question="rates")
    assert Trial.from_table(json.loads(json.dumps(asdict(trial)))) == trial
    assert trial.strict == 0.375


def test_a_grid_holds_every_combination():
    asked = [("a", each) for each in grid({"bits": [12, 48], "rate": [1, 2, 3]})]
    asked += [("b", each) for each in grid({"bits": 12})]
    assert len(asked) == 7
    assert asked[4] == ("a", {"bits": 48, "rate": 2})
    assert asked[-1] == ("b", {"bits": 12})
