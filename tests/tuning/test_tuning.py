"""Cross-validation inside the training photos: folds, settings, and what is never read."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyphash.errors import ConfigError, DataError, StoppedError
from hyphash.evaluation import Rankings, encode_split, mean_average_precision
from hyphash.training import fit, prepare
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


def test_a_fold_scores_as_a_run_on_the_other_photos_does(task, splits, cache):
    """The naive twin: a run of its own on the photos of the other folds, its codes measured by hand."""
    asked = task(epochs=4, validation=0.0)
    validation = CrossValidation(asked)
    score = next(validation.scores({}))
    held_out = _folds(len(splits.train), 3, 0)[0]
    rest = np.setdiff1d(np.arange(len(splits.train)), held_out)
    (shared, _), *_ = validation._inputs.values()
    config, hasher, loss, _ = prepare(asked.config, splits, like=shared)
    list(fit(hasher, loss, replace(splits, train=splits.train.take(rest)), config, cache=cache))
    queries, database = (encode_split(hasher, splits.train.take(rows), cache=cache) for rows in (held_out, rest))
    rankings = Rankings(queries.codes, database.codes, queries.split.labels, database.split.labels)
    expected = [mean_average_precision(rankings, top=667, protocol=protocol) for protocol in ("paper", "strict")]
    assert [score.paper, score.strict] == pytest.approx(expected, abs=1e-5)


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
    ("wrong", "told"), [({"pace": 1}, "pace"), ({"option.pace": 1}, "pace"), ({"rate": 1e30}, "rate")]
)
def test_settings_that_fail_are_a_trial_that_says_why(task, wrong, told):
    trial = CrossValidation(task()).trial(wrong)
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
    assert Trial.from_table(trial.to_table()) == trial
    assert (trial.paper, trial.strict) == (0.625, 0.375)


def test_a_grid_holds_every_combination():
    asked = grid([{"question": "a", "bits": [12, 48], "rate": [1, 2, 3]}, {"question": "b", "bits": 12}])
    assert len(asked) == 7
    assert asked[4] == ("a", {"bits": 48, "rate": 2})
    assert asked[-1] == ("b", {"bits": 12})
