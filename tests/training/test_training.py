"""Runs: they learn, they stop and go on as if they had not, and they lose nothing."""

import json
import math
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from hyphash import training
from hyphash.config import BEFORE, Config, read_config
from hyphash.datasets import Splits
from hyphash.errors import ConfigError, DataError, RunError, StorageError
from hyphash.files import read_json_lines
from hyphash.hasher import Hasher, read_spec
from hyphash.losses import Loss, losses
from hyphash.training import Epoch, fit, prepare, resolve, session, train
from hyphash.training.runs import (
    CHECKPOINT_FILE,
    CONFIG_FILE,
    EVENTS_FOLDER,
    HISTORY_FILE,
    PROBLEMS_FILE,
    open_run,
    resume_config,
)

STEPS = 4  # of an epoch: 27 photos to train on, in batches of 7, 7, 7 and 6


def started(folder, config):
    open_run(folder, resolve(config))
    return folder


def state(hasher):
    return {name: tensor.clone() for name, tensor in hasher.network.state_dict().items()}


def assert_same_weights(hasher, other):
    ours, theirs = state(hasher), state(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def history(folder):
    """The lines of a run's history without the clock."""
    return [{k: v for k, v in line.items() if k != "seconds"} for line in read_json_lines(folder / HISTORY_FILE)]


@pytest.mark.parametrize(
    "changes", [{"loss": "hyp2"}, {"loss": "pair"}, {"loss": "hyp2", "mode": "fine-tune", "hidden": 0}]
)
def test_training_lowers_the_loss_and_finds_colours(run, settings, splits, changes):
    config = settings(epochs=15, rate=0.05, validation=0.2, evaluate_every=100, **changes)
    hasher, _, epochs = run(config)
    assert [epoch.number for epoch in epochs] == list(range(1, 16))
    assert {epoch.of for epoch in epochs} == {15}
    assert epochs[-1].loss < 0.8 * epochs[0].loss
    assert epochs[-1].validation > 0.8
    queries, database = hasher.encode(splits.queries), hasher.encode(splits.database)
    relevant = splits.queries.labels @ splits.database.labels.T > 0
    distances = queries.distances(database)
    assert distances[relevant].mean() < distances[~relevant].mean() - 1


@pytest.mark.parametrize("mode", ["frozen", "fine-tune"])
def test_a_run_that_looks_at_mirror_images_ends_in_a_hasher_that_does(run, settings, splits, tmp_path, mode):
    hasher = run(settings(mode=mode, mirror=True, epochs=1), folder=tmp_path)[0]
    loaded = Hasher.load(tmp_path, device="cpu")
    assert loaded.spec.mirror
    photos = splits.queries
    assert_array_equal(loaded.outputs(photos), hasher.outputs(photos))
    for part in loaded.network.backbone.parts:
        part.mirror = False
    assert (loaded.outputs(photos) != hasher.outputs(photos)).any()


def test_a_run_leaves_its_folder_complete(run, settings, tmp_path):
    config = settings()
    folder = started(tmp_path / "run", config)
    hasher, loss, epochs = run(config, folder)
    assert sorted(p.name for p in folder.iterdir()) == [
        CONFIG_FILE, EVENTS_FOLDER, "hasher.toml", HISTORY_FILE, "weights.safetensors",
    ]  # fmt: skip
    assert any((folder / EVENTS_FOLDER).iterdir())
    assert read_config(folder / CONFIG_FILE) == resolve(config)
    assert [Epoch(**line) for line in read_json_lines(folder / HISTORY_FILE)] == epochs
    loaded = Hasher.load(folder, device="cpu")
    assert_same_weights(loaded, hasher)
    assert_array_equal(loaded.anchors, loss.proxies.detach().numpy())
    assert loaded.classes == ("red", "green", "blue")


def test_validation_is_measured_every_few_epochs_and_at_the_end(run, settings):
    _, _, epochs = run(settings(epochs=5, evaluate_every=2))
    assert [epoch.validation is not None for epoch in epochs] == [False, True, False, True, True]
    assert all(0 <= epoch.validation <= 1 for epoch in epochs if epoch.validation is not None)


def test_without_a_validation_part_nothing_is_measured(run, settings):
    _, _, epochs = run(settings(validation=0.0, evaluate_every=1))
    assert [epoch.validation for epoch in epochs] == [None, None, None]


def test_no_epochs_leave_the_network_as_it_was_drawn(run, settings, tmp_path):
    config = settings(epochs=0)
    hasher, loss, epochs = run(config, started(tmp_path / "run", config))
    assert epochs == []
    assert_array_equal(hasher.anchors, loss.proxies.detach().numpy())
    assert Hasher.load(tmp_path / "run").fingerprint == hasher.fingerprint


def test_the_same_seed_gives_the_same_weights_and_another_does_not(run, settings):
    first, second, other = (run(settings(seed=seed))[0] for seed in (0, 0, 1))
    assert_same_weights(first, second)
    assert first.fingerprint == second.fingerprint != other.fingerprint


def test_the_largest_seed_works(run, settings):
    assert len(run(settings(seed=2**32 - 1, epochs=1))[2]) == 1


def test_what_happens_elsewhere_with_random_numbers_does_not_matter(run, settings):
    first = run(settings())[0]
    torch.rand(100)
    np.random.default_rng().random(100)
    assert_same_weights(first, run(settings())[0])


def test_a_frozen_backbone_stays_as_it_is_and_a_tuned_one_does_not(settings, splits, cache):
    for mode, same in (("frozen", True), ("fine-tune", False)):
        config, hasher, loss, _ = prepare(settings(mode=mode), splits)
        before = state(hasher)
        list(fit(hasher, loss, splits, config, cache=cache))
        after = state(hasher)
        body = [name for name in before if name.startswith("backbone.")]
        assert all(torch.equal(before[name], after[name]) for name in body) == same
        assert not torch.equal(before["head.hash.weight"], after["head.hash.weight"])


RESUMED = [
    pytest.param({"mode": mode, "optimizer": optimizer, "loss": loss}, after, id=f"{mode}-{optimizer}-{loss}-{after}")
    for mode, optimizer, loss, stops in [
        ("frozen", "sgd", "hyp2", (1, STEPS, STEPS + 2)),
        ("frozen", "adamw", "hyp2", (1, STEPS)),
        ("frozen", "adam", "hashnet", (STEPS + 2,)),
        *(
            ("frozen", "adam", loss, (STEPS + 2,)) for loss in ("dtsh", "dfh", "adsh", "mdsh")
        ),  # with all outputs so far
        ("fine-tune", "sgd", "hyp2", (STEPS, STEPS + 2)),
        ("fine-tune", "adamw", "hyp2", (STEPS - 1,)),
    ]
    for after in stops
]
BETTER = {
    "augment": "crop", "nesterov": True, "backbone_rate": 0.1, "body_rate": 0.5, "warm_up": 0.5, "head_first": 1.0,
}  # fmt: skip
RESUMED.append(pytest.param(BETTER | {"mode": "fine-tune", "optimizer": "sgd"}, STEPS + 2, id="better"))


@pytest.mark.parametrize(("changes", "stop_after"), RESUMED)
def test_a_stopped_run_goes_on_to_the_same_weights(run, settings, tmp_path, changes, stop_after):
    config = settings(rate=0.01, loss_rate=0.01, **changes)
    whole, _, epochs = run(config, started(tmp_path / "whole", config))
    folder = started(tmp_path / "stopped", config)
    _, _, before = run(config, folder, stop_after=stop_after)
    assert len(before) == (stop_after - 1) // STEPS  # an epoch's record comes with its end
    assert (folder / CHECKPOINT_FILE).is_file()
    resumed, _, after = run(resume_config(folder), folder)
    assert_same_weights(resumed, whole)
    assert_array_equal(resumed.anchors, whole.anchors)
    assert read_spec(folder).fingerprint == read_spec(tmp_path / "whole").fingerprint
    assert [epoch.number for epoch in before + after] == [1, 2, 3]
    assert history(folder) == history(tmp_path / "whole")
    assert [epoch.loss for epoch in before + after] == [epoch.loss for epoch in epochs]
    assert not (folder / CHECKPOINT_FILE).exists()


def test_a_run_stopped_after_every_single_step_goes_on_to_the_same_weights(run, settings, tmp_path):
    config = settings(epochs=2, evaluate_every=1, dropout=0.5)
    whole, _, _ = run(config, started(tmp_path / "whole", config))
    folder = started(tmp_path / "stopped", config)
    sessions = 0
    while not sessions or (folder / CHECKPOINT_FILE).exists():
        resumed, _, _ = run(resume_config(folder), folder, stop_after=1)
        sessions += 1
    assert sessions == 2 * STEPS + 1
    assert_same_weights(resumed, whole)
    assert history(folder) == history(tmp_path / "whole")


def test_a_run_from_before_equal_batches_goes_on_to_the_weights_it_would_have_had(run, settings, tmp_path):
    config = settings(batch=8, batches="cut")
    whole, _, _ = run(config)
    folder = started(tmp_path / "stopped", config)
    run(config, folder, stop_after=STEPS + 2)
    path = folder / CONFIG_FILE
    lines = path.read_text().replace("format = 3", "format = 1").splitlines()
    path.write_text("\n".join(line for line in lines if line.split(" ")[0] not in BEFORE))
    resumed, _, _ = run(resume_config(folder), folder)
    assert_same_weights(resumed, whole)
    assert resumed.fingerprint != run(settings(batch=8))[0].fingerprint


def test_a_run_goes_on_with_the_threads_it_began_with(settings, splits, cache, tmp_path, monkeypatch):
    seen = []

    def watch(*arguments):
        seen.append(torch.get_num_threads())
        return set_rates(*arguments)

    set_rates = session.set_rates
    monkeypatch.setattr(session, "set_rates", watch)
    torch.set_num_threads(2)
    config, hasher, loss, _ = prepare(settings(mode="fine-tune"), splits)
    assert config.threads == 2
    folder = tmp_path / "run"
    open_run(folder, config)
    list(fit(hasher, loss, splits, config, folder=folder, cache=cache, stop=lambda: len(seen) > 2))
    torch.set_num_threads(1)  # another machine
    config, hasher, loss, _ = prepare(resume_config(folder), splits)
    assert len(list(fit(hasher, loss, splits, config, folder=folder, cache=cache))) == 3
    assert set(seen) == {2}
    assert torch.get_num_threads() == 1


def test_features_are_read_with_all_threads_and_a_head_trained_with_those_that_pay(
    settings, splits, tmp_path, monkeypatch
):
    seen = {}

    def watched(work):
        def watch(*arguments, **options):
            seen[work.__name__] = torch.get_num_threads()
            return work(*arguments, **options)

        return watch

    monkeypatch.setattr(training, "load_inputs", watched(training.load_inputs))
    monkeypatch.setattr(session, "set_rates", watched(session.set_rates))
    torch.set_num_threads(2)
    config, hasher, loss, _ = prepare(settings(), splits)
    assert config.threads == 1
    for _ in fit(hasher, loss, splits, config, cache=tmp_path):
        assert torch.get_num_threads() == 2  # for whoever takes the epoch
    assert seen == {"load_inputs": 2, "set_rates": 1}


@pytest.mark.parametrize(
    ("changes", "threads"),
    [
        ({}, 1),
        ({"mode": "fine-tune"}, 2),
        ({"loss": "olah", "size": 64}, 2),  # its head sees whole feature maps
        ({"loss": "itq"}, 2),  # fitted to all photos at once
        ({"hidden": 65536, "batch": 10**6}, 2),
        ({"threads": 3}, 3),
        ({"mode": "fine-tune", "threads": 1}, 1),
    ],
)
def test_threads_are_those_that_pay_unless_the_user_says_how_many(settings, splits, changes, threads):
    torch.set_num_threads(2)
    assert prepare(settings(**changes), splits)[0].threads == threads


class Crash(BaseException):
    """What no handler expects: the power goes."""


@pytest.mark.parametrize("checkpoint_every", [0.0, 1e9])
def test_a_run_that_crashed_goes_on_to_the_same_weights(run, settings, tmp_path, monkeypatch, checkpoint_every):
    config = settings(checkpoint_every=checkpoint_every)
    whole, _, _ = run(config, started(tmp_path / "whole", config))
    folder = started(tmp_path / "crashed", config)
    steps = iter(range(1, 100))
    with monkeypatch.context() as patch:
        patch.setattr(session, "set_rates", crash_at(session.set_rates, steps, 2 * STEPS + 1))
        with pytest.raises(Crash):
            run(config, folder)
    assert (folder / CHECKPOINT_FILE).exists() == (checkpoint_every == 0)
    assert len(history(folder)) >= 1  # epochs that may lie beyond the last checkpoint
    resumed, _, after = run(resume_config(folder), folder)
    assert_same_weights(resumed, whole)
    assert history(folder) == history(tmp_path / "whole")
    assert after[0].number == (2 if checkpoint_every == 0 else 1)


def crash_at(function, counter, number):
    def wrapped(*arguments):
        if next(counter) == number:
            raise Crash
        return function(*arguments)

    return wrapped


def test_a_full_disk_leaves_the_checkpoint_before_and_the_run_goes_on(run, settings, tmp_path, monkeypatch):
    config = settings(checkpoint_every=0.0)
    whole, _, _ = run(config, started(tmp_path / "whole", config))
    folder = started(tmp_path / "full", config)
    flush, calls = os.fsync, iter(range(1, 100))

    def fill_up(number):
        if next(calls) > 4:
            raise OSError(28, "No space left on device")
        flush(number)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fill_up)
        with pytest.raises(StorageError, match=r"the disk is full .*; make room and run the same command again"):
            run(config, folder)
    assert (folder / CHECKPOINT_FILE).is_file()
    resumed, _, _ = run(resume_config(folder), folder)
    assert_same_weights(resumed, whole)
    assert history(folder) == history(tmp_path / "whole")


def test_a_damaged_checkpoint_is_said_so(run, settings, tmp_path):
    config = settings()
    folder = started(tmp_path / "run", config)
    run(config, folder, stop_after=2)
    path = folder / CHECKPOINT_FILE
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(RunError, match=r"checkpoint\.safetensors: damaged checkpoint .*--overwrite"):
        run(config, folder)


def test_stopping_while_photos_are_read_loses_nothing(settings, splits, tmp_path, run):
    for mode in ("frozen", "fine-tune"):
        config, hasher, loss, _ = prepare(settings(mode=mode), splits)
        folder = started(tmp_path / mode, config)
        assert list(fit(hasher, loss, splits, config, folder=folder, cache=tmp_path, stop=lambda: True)) == []
        assert not (folder / CHECKPOINT_FILE).exists()
        assert len(run(resume_config(folder), folder)[2]) == 3


@pytest.fixture
def scored(monkeypatch):
    """scored([.3, .9]) makes validation give these scores, one after the other, and keeps the networks."""

    def script(scores):
        given, networks = iter(scores), []

        def validate(self):
            networks.append(state(self.hasher))
            return next(given)

        monkeypatch.setattr(session.Session, "validate", validate)
        return networks

    return script


@pytest.mark.parametrize("stop_after", [math.inf, 2 * STEPS + 1, 3 * STEPS])
def test_the_best_epoch_is_kept(run, settings, tmp_path, scored, stop_after):
    config = settings(epochs=4, evaluate_every=1, keep="best")
    folder = started(tmp_path / "run", config)
    networks = scored([0.3, 0.9, 0.5, 0.9])
    hasher, _, _ = run(config, folder, stop_after=stop_after)
    if stop_after < math.inf:
        hasher, _, _ = run(resume_config(folder), folder)
    assert [line["validation"] for line in history(folder)] == [0.3, 0.9, 0.5, 0.9]
    for kept in (hasher, Hasher.load(folder, device="cpu")):
        assert all(torch.equal(state(kept)[name], tensor) for name, tensor in networks[1].items())
    assert hasher.fingerprint == read_spec(folder).fingerprint


def test_the_last_epoch_is_kept_unless_asked_otherwise(run, settings, tmp_path, scored):
    config = settings(evaluate_every=1)
    networks = scored([0.9, 0.5, 0.1])
    hasher, _, _ = run(config, started(tmp_path / "run", config))
    assert all(torch.equal(state(hasher)[name], tensor) for name, tensor in networks[2].items())


def test_the_best_epoch_without_validation_is_the_last(run, settings, tmp_path):
    config = settings(keep="best", validation=0.0)
    hasher, _, _ = run(config, started(tmp_path / "run", config))
    assert_same_weights(Hasher.load(tmp_path / "run", device="cpu"), hasher)


def test_the_best_epoch_needs_a_place_to_be_kept(run, settings):
    with pytest.raises(ConfigError, match="needs a run folder"):
        run(settings(keep="best"))


def test_a_fingerprint_asked_for_before_training_is_not_kept(settings, splits, cache):
    config, hasher, loss, _ = prepare(settings(), splits)
    before = hasher.fingerprint
    list(fit(hasher, loss, splits, config, cache=cache))
    assert hasher.fingerprint != before


class Diverging(Loss):
    """Finite for two steps, then not a number."""

    steps = 0

    def forward(self, outputs, _):
        self.steps += 1
        return outputs.mean() * (math.nan if self.steps > 2 else 1)


def test_a_loss_that_is_no_number_ends_the_run_with_advice(settings, splits, cache):
    config, hasher, _, _ = prepare(settings(), splits)
    with pytest.raises(ConfigError, match="the loss is nan in epoch 1; lower --rate or --loss-rate"):
        list(fit(hasher, Diverging(), splits, config, cache=cache))


def test_one_class_is_nothing_to_tell_apart(settings, splits):
    one = Splits("pets", ("cat",), train=splits.train, queries=splits.queries, database=splits.database)
    with pytest.raises(DataError, match="pets: only one label, 'cat'; there is nothing to tell apart"):
        prepare(settings(), one)


def few(splits, count):
    train = splits.train.take(slice(count))
    return Splits(splits.name, splits.classes, train=train, queries=splits.queries, database=train)


@pytest.mark.parametrize("mode", ["frozen", "fine-tune"])
def test_fewer_photos_than_a_batch_are_one_batch(run, settings, splits, mode):
    hasher, _, epochs = run(settings(mode=mode, batch=100), splits=few(splits, 5))
    assert len(epochs) == 3
    assert all(math.isfinite(epoch.loss) for epoch in epochs)
    assert np.isfinite(hasher.outputs(splits.queries)).all()


@pytest.mark.parametrize("mode", ["frozen", "fine-tune"])
@pytest.mark.parametrize("validation", [0.0, 0.9])
@pytest.mark.parametrize("count", [2, 3])
def test_a_handful_of_photos_can_be_trained_on(run, settings, splits, count, validation, mode):
    hasher, _, epochs = run(settings(validation=validation, mode=mode), splits=few(splits, count))
    assert len(epochs) == 3
    assert np.isfinite(hasher.outputs(splits.queries)).all()


def test_one_photo_cannot(run, settings, splits):
    with pytest.raises(DataError, match="one photo is nothing to learn from"):
        run(settings(), splits=few(splits, 1))


@pytest.mark.parametrize("mode", ["frozen", "fine-tune"])
def test_unreadable_photos_are_reported_and_the_rest_is_trained_on(run, settings, spoilt, tmp_path, mode):
    config = settings(mode=mode)
    folder = started(tmp_path / "run", config)
    splits = spoilt({3: b"", 7: b"no photo"})
    _, _, epochs = run(config, folder, splits=splits)
    assert len(epochs) == 3
    problems = [json.loads(line) for line in (folder / PROBLEMS_FILE).read_text().splitlines()]
    assert sorted(problem["name"] for problem in problems) == ["3.png", "7.png"]
    assert all(problem["reason"] for problem in problems)
    run(config, folder)  # the photos mended
    assert not (folder / PROBLEMS_FILE).exists()


@pytest.mark.parametrize("mode", ["frozen", "fine-tune"])
def test_without_a_single_readable_photo_there_is_no_run(run, settings, spoilt, mode):
    with pytest.raises(DataError, match=r"none of the 30 training photos can be read; the first: .*0 bytes"):
        run(settings(mode=mode), splits=spoilt(dict.fromkeys(range(36), b"")))


@pytest.mark.parametrize("name", losses.names())
def test_every_method_trains_and_is_saved_and_loaded(settings, splits, cache, tmp_path, name):
    method = losses[name]
    config = settings(loss=name, epochs=1, mode="frozen", size=64 if method.needs_map else 32)
    config, hasher, loss, _ = prepare(config, splits)
    epochs = list(fit(hasher, loss, splits, config, cache=cache))
    assert len(epochs) == 1
    assert math.isfinite(epochs[0].loss)
    hasher.save(tmp_path)
    loaded = Hasher.load(tmp_path, device="cpu")
    assert loaded.encode(splits.queries) == hasher.encode(splits.queries)
    assert loaded.anchors.shape[0] == 3


def test_relevance_of_one_s_own_is_learned_and_validated_by(run, settings, tmp_path):
    table = tmp_path / "grades.csv"
    table.write_text(",red,green,blue\nred,1,1,1\ngreen,1,1,1\nblue,1,1,1\n")  # everything is relevant
    config = settings(relevance=str(table), loss="dhn", validation=0.3)
    _, loss, epochs = run(config)
    assert loss.related(torch.eye(3)).all()
    assert epochs[-1].validation == pytest.approx(1)
    assert run(settings(loss="dhn", validation=0.3))[2][-1].loss != epochs[-1].loss


def test_nested_codes_are_trained_and_resumed(run, settings, tmp_path):
    config = settings(lengths=(4, 8, 12), loss="mdsh")
    whole, loss, _ = run(config, started(tmp_path / "whole", config))
    assert whole.bits == 12
    assert len(loss.parts) == 3
    folder = started(tmp_path / "stopped", config)
    run(config, folder, stop_after=STEPS + 1)
    assert resume_config(folder).lengths == (4, 8, 12)
    assert_same_weights(run(resume_config(folder), folder)[0], whole)


@pytest.mark.parametrize("lengths", [(12, 4), (4, 4), (0, 4), (4, 300)])
def test_lengths_rise(lengths):
    with pytest.raises(ConfigError, match=r"lengths are numbers|bits must lie"):
        Config(lengths=lengths)


def test_auto_is_frozen_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve(Config()).mode == "frozen"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve(Config()).mode == "fine-tune"


def test_frozen_settings_are_those_found_to_suit():
    config = resolve(Config(mode="frozen", loss="hyp2"))
    assert (config.hidden, config.dropout, config.epochs, config.batch) == (1024, 0.5, 40, 100)
    assert (config.optimizer, config.rate, config.loss_rate, config.schedule) == ("sgd", 0.05, 0.002, "cosine")
    assert config.size == 160


@pytest.mark.parametrize(
    ("backbone", "rates", "size"),
    [("alexnet", (0.01, 0.001), 224), ("googlenet", (0.02, 0.02), 224), ("inception_v3", (0.02, 0.02), 299)],
)
def test_fine_tuning_follows_the_paper(backbone, rates, size):
    config = resolve(Config(mode="fine-tune", loss="hyp2", backbone=backbone))
    assert (config.rate, config.loss_rate) == rates
    assert (config.momentum, config.weight_decay, config.hidden) == (0.9, 5e-4, 0)
    assert (config.schedule, config.step_every, config.step_factor) == ("step", 10, 0.5)
    assert (config.epochs, config.batch, config.size) == (100, 100, size)


def test_the_authors_settings_win_over_ours_and_the_users_over_both(monkeypatch):
    method = losses["hyp2"]
    monkeypatch.setattr(method, "frozen_recipe", {"optimizer": "adamw", "rate": 0.001, "epochs": 7})
    monkeypatch.setattr(method, "recipe", {"optimizer": "adam", "rate": 0.003})
    frozen = resolve(Config(mode="frozen", loss="hyp2", epochs=3))
    assert (frozen.optimizer, frozen.rate, frozen.epochs, frozen.batch) == ("adamw", 0.001, 3, 100)
    tuned = resolve(Config(mode="fine-tune", loss="hyp2", backbone="googlenet"))
    assert (tuned.optimizer, tuned.rate, tuned.loss_rate) == ("adam", 0.003, 0.02)


def test_the_authors_own_settings_are_there_for_the_asking():
    """What their code does beyond what the reproduction's records were made with."""
    tuned = {name: resolve(Config(mode="fine-tune", loss=name, recipe="published")) for name in losses.names()}
    assert (tuned["idhn"].optimizer, tuned["idhn"].rate, tuned["idhn"].backbone_rate) == ("adam", 1e-3, 0.01)
    assert (tuned["orthohash"].batch, tuned["orthohash"].rate, tuned["orthohash"].backbone_rate) == (256, 1e-4, 0.1)
    assert (tuned["hashnet"].nesterov, tuned["hashnet"].rate, tuned["hashnet"].backbone_rate) == (True, 3e-3, 0.1)
    assert (tuned["proxy-anchor"].head_first, tuned["proxy-anchor"].batch) == (1.0, 180)
    assert resolve(Config(mode="fine-tune", loss="idhn", recipe="published", rate=0.5)).rate == 0.5
    for name, config in tuned.items():
        ours = resolve(Config(mode="fine-tune", loss=name))
        assert {setting: getattr(ours, setting) for setting in BEFORE} == BEFORE | {"batches": "equal"}
        assert losses[name].published or config == replace(ours, recipe="published")


def test_over_frozen_features_the_authors_settings_are_those_of_the_optimiser():
    config = resolve(Config(mode="frozen", loss="orthohash", recipe="published"))
    assert (config.optimizer, config.rate, config.batch) == ("adam", 1e-4, 256)
    assert (config.hidden, config.epochs, config.schedule) == (1024, 40, "cosine")
    assert [resolve(Config(mode="frozen", loss=name, recipe="published")).views for name in ("dhd", "hyp2")] == [2, 1]


@pytest.mark.parametrize("mode", ["frozen", "fine-tune"])
@pytest.mark.parametrize("name", losses.names())
def test_every_recipe_leaves_nothing_open(mode, name):
    config = resolve(Config(mode=mode, loss=name))
    chosen = ("hidden", "dropout", "epochs", "batch", "optimizer", "rate", "loss_rate", "momentum", "weight_decay")
    for setting in (*chosen, "schedule", "step_every", "step_factor", "clip", "size", *BEFORE):
        assert getattr(config, setting) is not None, setting


def test_resolving_twice_changes_nothing():
    config = resolve(Config())
    assert resolve(config) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "hyp3"}, "did you mean 'hyp2'"),
        ({"loss_options": {"betta": 1}}, "loss 'hyp2-ap' has no option 'betta'"),
        ({"backbone": "resnet5"}, "no backbone is called"),
        ({"device": "gpu"}, "device 'gpu' cannot be used here"),
    ],
)
def test_names_that_do_not_exist_are_refused_before_anything_is_done(settings, splits, changes, message):
    with pytest.raises(ConfigError, match=message):
        prepare(settings(**changes), splits)


OWN = """
import torch
from hyphash.losses import Loss

class Mine(Loss):
    frozen_recipe = {"epochs": 2}

    def __init__(self, *, bits, classes, weight=1.0):
        super().__init__()
        self.weight = weight

    def forward(self, outputs, labels):
        return self.weight * (outputs.tanh() - labels.mean()).square().mean()

class NoLoss: ...
"""


def test_a_loss_of_the_users_own_can_be_trained_with(run, settings, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    config = settings(loss=f"{tmp_path}/own.py:Mine", loss_options={"weight": 2.0}, epochs=None)
    folder = started(tmp_path / "run", config)
    hasher, _, epochs = run(config, folder)
    assert len(epochs) == 2
    assert Hasher.load(folder).fingerprint == hasher.fingerprint


def test_a_class_that_is_no_loss_is_refused(settings, splits, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(ConfigError, match="must be a class derived from"):
        prepare(settings(loss=f"{tmp_path}/own.py:NoLoss"), splits)


def test_one_call_trains_on_a_folder_of_photos(photo, tmp_path):
    for colour, name in (((130, 0, 0), "red"), ((0, 130, 0), "green")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(12):
            (tmp_path / "photos" / name / f"{i}.png").write_bytes(photo(i, colour=colour))
    options = {"backbone": "timm:test_resnet", "weights": "none", "size": 32, "epochs": 1, "hidden": 8, "device": "cpu"}
    hasher = train(
        tmp_path / "photos", into=tmp_path / "run", cache=tmp_path / "cache", bits=16, mode="frozen", **options
    )
    assert sorted(hasher.classes) == ["green", "red"]
    assert Hasher.load(tmp_path / "run").fingerprint == hasher.fingerprint
    with pytest.raises(RunError, match="there is a run already"):
        train(tmp_path / "photos", into=tmp_path / "run", mode="frozen", **options)
    with pytest.raises(ConfigError, match="train: unknown setting 'bit'; did you mean 'bits'"):
        train(tmp_path / "photos", into=tmp_path / "other", bit=3)


SEVERAL = "timm:test_resnet+timm:test_efficientnet"


def test_several_backbones_train_a_head_and_go_on_where_they_stopped(run, settings, splits, tmp_path):
    config = settings(backbone=SEVERAL, size=None, epochs=10)
    whole, _, epochs = run(config)
    assert epochs[-1].loss < epochs[0].loss
    folder = started(tmp_path / "run", config)
    run(config, folder, stop_after=7)
    hasher, _, _ = run(resume_config(folder), folder)
    assert_same_weights(hasher, whole)
    loaded = Hasher.load(folder, device="cpu")
    assert loaded.spec.backbone == SEVERAL
    assert_array_equal(loaded.outputs(splits.queries), hasher.outputs(splits.queries))


def test_several_backbones_stay_frozen_and_keep_their_sizes(settings, splits, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    resolved = resolve(settings(backbone=SEVERAL, mode="auto", size=None))
    assert (resolved.mode, resolved.size) == ("frozen", None)
    with pytest.raises(ConfigError, match="use --mode frozen"):
        resolve(settings(backbone=SEVERAL, mode="fine-tune"))
    with pytest.raises(ConfigError, match="feature map of one backbone"):
        prepare(settings(backbone=SEVERAL, loss="olah"), splits)


def test_training_on_views_goes_on_where_it_stopped_and_ends_elsewhere_than_without(run, settings, tmp_path):
    config = settings(views=3)
    whole, _, _ = run(config)
    folder = started(tmp_path / "run", config)
    run(config, folder, stop_after=7)
    hasher, _, _ = run(resume_config(folder), folder)
    assert_same_weights(hasher, whole)
    without, _, _ = run(settings())
    assert not torch.equal(without.network.head.hash.weight, whole.network.head.hash.weight)
    assert torch.equal(without.network.head.trunk.mean, whole.network.head.trunk.mean)  # of the photos as they are


def test_views_are_of_frozen_features_and_one_where_nobody_asks(settings):
    assert resolve(settings()).views == 1
    assert resolve(settings(mode="fine-tune")).views == 1
    with pytest.raises(ConfigError, match="use --mode frozen"):
        resolve(settings(mode="fine-tune", views=2))
