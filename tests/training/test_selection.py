"""`loss = "auto"`: short trials on held-out training photos, never on queries or database."""

from dataclasses import replace

import numpy as np
import pytest

from hyphash import training
from hyphash.config import Config, read_config
from hyphash.datasets import load_dataset
from hyphash.errors import ConfigError
from hyphash.training import LIKELIEST, SHARE, Epoch, choose_loss, resolve, train, trials

SMALL = {
    "backbone": "timm:test_resnet", "weights": "none", "size": 32, "hidden": 16, "device": "cpu", "mode": "frozen",
    "bits": 12,
}  # fmt: skip


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    from hyphash.datasets.sample import draw

    folder = tmp_path_factory.mktemp("auto") / "sample"
    draw(folder, train=60, queries=12, size=64, workers=1)
    return folder


@pytest.mark.parametrize("mode", ["frozen", "fine-tune"])
@pytest.mark.parametrize("epochs", [None, 1, 7, 40, 300])
@pytest.mark.parametrize("photos", [50, 4008])
def test_trials_take_at_most_a_third_of_a_training_of_the_likeliest(mode, epochs, photos):
    config = Config(mode=mode, epochs=epochs if mode == "frozen" else None)
    made, drawn = trials(config, photos, 20_000)
    assert [trial.loss for trial in made] == list(LIKELIEST)
    looked_at = sum(trial.epochs * drawn for trial in made)
    whole = resolve(replace(config, loss=LIKELIEST[0], mode="frozen")).epochs
    assert 0 < looked_at <= max(round(SHARE * whole * photos), 8)
    assert {trial.mode for trial in made} == {"frozen"}
    whole = [resolve(replace(trial, epochs=config.epochs)).epochs for trial in made]
    shares = [trial.epochs / own for trial, own in zip(made, whole, strict=True)]
    assert max(shares) <= 2 * min(shares)  # but for the rounding


def test_a_trial_has_the_settings_of_the_run_where_they_are_for_heads():
    frozen, tuned = (trials(Config(mode=mode, rate=0.003, bits=7), 100, 100)[0][0] for mode in ("frozen", "fine-tune"))
    assert (frozen.rate, frozen.bits) == (0.003, 7)
    assert tuned.rate == resolve(Config(mode="frozen", loss=LIKELIEST[0])).rate
    assert tuned.bits == 7
    assert trials(Config(mode="frozen", validation=0.0), 100, 100)[0][0].validation > 0


def test_the_best_on_held_out_photos_is_taken_and_written_down(sample, tmp_path):
    settings = SMALL | {"epochs": 24, "loss": "auto", "validation": 0.25}
    train(sample, into=tmp_path / "run", cache=tmp_path / "cache", **settings)
    config = read_config(tmp_path / "run" / "config.toml")
    assert set(config.tried) == set(LIKELIEST)
    assert config.loss == max(config.tried, key=config.tried.get)
    splits = load_dataset(sample)
    again, note = choose_loss(Config(data=str(sample), **settings), splits, cache=tmp_path / "cache")
    assert (again.loss, again.tried) == (config.loss, config.tried)  # alike every time
    assert note.startswith(f"loss: {config.loss}, the best on held-out training photos (mAP ")
    assert "2, 2, 2, 2 epochs over 60 photos" in note


def test_rankings_of_held_out_photos_go_down_to_the_same_share():
    config = Config(mode="frozen", top=1000)
    assert [trials(config, 4000, size)[0][0].top for size in (20_000, 4000, 1000, 10**7)] == [200, 1000, 1000, 10]


def test_queries_and_database_are_never_looked_at(sample, tmp_path):
    """Of the database the size alone is known."""
    splits = load_dataset(sample)
    config = Config(data=str(sample), **SMALL, loss="auto", epochs=12)
    chosen = choose_loss(config, splits, cache=tmp_path)
    nothing = splits.train.take(np.zeros(len(splits.database), np.int64))
    blind = replace(splits, queries=splits.queries.take(slice(0)), database=nothing)
    assert choose_loss(config, blind, cache=tmp_path) == chosen


def test_the_largest_score_wins_and_the_first_of_equals(sample, tmp_path, monkeypatch):
    scores = iter((None, 0.5, 0.5, 0.1))

    def fit(*_args, **_options):
        if (score := next(scores)) is None:
            raise ConfigError("the loss is nan")
        return [Epoch(1, 1, 0.0, 0.0, 0.0, score)]

    monkeypatch.setattr(training, "fit", fit)
    config, _ = choose_loss(Config(data=str(sample), **SMALL), load_dataset(sample), cache=tmp_path)
    assert config.loss == LIKELIEST[1]
    assert list(config.tried.values()) == [0.0, 0.5, 0.5, 0.1]


def test_options_of_no_loss_are_refused(sample):
    with pytest.raises(ConfigError, match="options belong to one loss"):
        choose_loss(Config(data=str(sample), loss="auto", loss_options={"beta": 1.0}), load_dataset(sample))


def test_few_photos_are_drawn_by_the_seed(sample, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(training, "fit", lambda _h, _l, splits, _c, **_: seen.append(splits.train.rows) or [])
    config = Config(data=str(sample), **SMALL, epochs=3)
    choose_loss(config, load_dataset(sample), cache=tmp_path)
    assert all(np.array_equal(rows, seen[0]) for rows in seen)
    assert len(seen[0]) == 15
    assert not np.array_equal(seen[0], np.arange(15))
