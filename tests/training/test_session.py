"""What a session trains on, and what it leaves to the hasher: batches, held-out photos, anchors, fitted heads."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from hyphash.codes import Codes
from hyphash.config import Config
from hyphash.errors import ConfigError, RunError
from hyphash.evaluation import Rankings, mean_average_precision
from hyphash.files import read_json_lines
from hyphash.losses import build
from hyphash.training import Epoch, fit, prepare, resolve
from hyphash.training.inputs import FeatureInputs
from hyphash.training.ranks import SINGLE
from hyphash.training.runs import HISTORY_FILE, open_run, resume_config
from hyphash.training.session import Session, become, draw_batches, hold_out, mean_outputs, seed_step, take_quantizer


@pytest.mark.parametrize(("batch", "steps"), [(8, 4), (9, 3), (13, 2), (26, 1), (27, 1), (100, 1)])
def test_cut_batches_have_every_photo_once_an_epoch_but_for_one_left_alone(settings, batch, steps):
    rows = torch.arange(100, 127)
    seen = [draw_batches(rows, settings(batch=batch, batches="cut"), epoch) for epoch in range(2)]
    assert [len(batches) for batches in seen] == [steps, steps]
    for batches in seen:
        together = torch.cat(batches).sort().values
        assert len(together) == (26 if 27 % batch == 1 else 27)
        assert torch.isin(together, rows).all()
        assert len(together.unique()) == len(together)
    assert not torch.equal(torch.cat(seen[0]), torch.cat(seen[1]))  # another order every epoch


@given(n=st.integers(2, 600), batch=st.integers(1, 700), epoch=st.integers(0, 3))
@example(n=3, batch=2, epoch=0)  # a half, which rounds to a batch too many
def test_equal_batches_have_every_photo_once_an_epoch(n, batch, epoch):
    batches = draw_batches(torch.arange(100, 100 + n), Config(batch=batch), epoch)
    sizes = [len(rows) for rows in batches]
    assert torch.equal(torch.cat(batches).sort().values, torch.arange(100, 100 + n))
    assert max(sizes) - min(sizes) <= 1
    assert batch == 1 or min(sizes) > 1
    assert len(sizes) == max(1, round(n / batch)) or (batch, n % 2) == (2, 1)


@pytest.mark.parametrize(
    ("n", "share", "held"), [(30, 0.1, 3), (30, 0.0, 0), (2, 0.9, 0), (3, 0.9, 1), (9000, 0.1, 500)]
)
def test_the_validation_part_is_apart_from_the_rest(settings, n, share, held):
    rows, held_out = hold_out(n, settings(validation=share), torch.device("cpu"))
    assert len(held_out) == held
    assert sorted(rows.tolist() + held_out.tolist()) == list(range(n))


def test_held_out_photos_are_never_trained_on(settings, splits, cache, monkeypatch):
    seen, batch = set(), FeatureInputs.batch

    def watch(self, rows, *, augment, **part):
        if augment:
            seen.update(rows.tolist())
        return batch(self, rows, augment=augment, **part)

    monkeypatch.setattr(FeatureInputs, "batch", watch)
    config, hasher, loss, _ = prepare(settings(validation=0.2), splits)
    list(fit(hasher, loss, splits, config, cache=cache))
    _, held_out = hold_out(30, config, torch.device("cpu"))
    assert seen == set(range(30)) - set(held_out.tolist())


def test_proxies_are_anchors_where_the_loss_has_them(run, settings):
    hasher, loss, _ = run(settings(loss="hyp2"))
    assert_array_equal(hasher.anchors, loss.proxies.detach().numpy())


@pytest.mark.parametrize("mode", ["frozen", "fine-tune"])
def test_mean_outputs_are_anchors_where_it_has_none(run, settings, splits, mode):
    hasher, _, _ = run(settings(loss="pair", validation=0.0, mode=mode))
    outputs = hasher.outputs(splits.train)
    for label, anchor in enumerate(hasher.anchors):
        own = [output for output, labels in zip(outputs, splits.train.labels, strict=True) if labels[label]]
        assert_allclose(anchor, np.mean(own, axis=0), rtol=0.02, atol=0.02)  # features are kept as float16


def test_a_label_that_no_photo_carries_has_its_anchor_at_zero():
    labels = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert_array_equal(mean_outputs(np.array([[1, 2], [3, 4]], np.float32), labels), [[2, 3], [0, 0]])


def test_fitted_methods_need_frozen_features(run, settings):
    with pytest.raises(ConfigError, match="lsh is fitted to frozen features; use --mode frozen"):
        run(settings(loss="lsh", mode="fine-tune"))


def test_a_fitted_method_is_one_record(run, settings, tmp_path):
    config = settings(loss="itq")
    folder = tmp_path / "run"
    open_run(folder, resolve(config))
    _, _, epochs = run(config, folder)
    assert [Epoch(**line) for line in read_json_lines(folder / HISTORY_FILE)] == epochs
    assert (epochs[0].number, epochs[0].of) == (0, 0)
    with pytest.raises(RunError, match="this run is finished"):
        resume_config(folder)


def test_held_out_photos_are_the_queries_and_the_others_the_database(tiny_hasher, settings):
    hasher, config = tiny_hasher(anchors=False), settings(validation=0.2, top=10)
    rng = torch.Generator().manual_seed(0)
    inputs = FeatureInputs(torch.randn(30, 96, generator=rng).half(), (torch.rand(30, 3, generator=rng) < 0.4).float())
    session = Session(hasher, build("pair", bits=12, classes=3), inputs, config, None, SINGLE)
    rows, held_out = (part.numpy() for part in hold_out(30, config, torch.device("cpu")))
    codes = Codes.from_outputs(hasher.network.head.eval()(inputs.values.float()).detach().numpy())
    labels = inputs.labels.numpy().astype(np.uint8)
    expected = mean_average_precision(
        Rankings(codes[held_out], codes[rows], labels[held_out], labels[rows]), top=10, protocol="strict"
    )
    assert len(held_out) == 6
    assert session.validate() == pytest.approx(expected)


def test_a_quantiser_is_taken_from_a_head_that_learns_one(tiny_hasher):
    plain = tiny_hasher()
    take_quantizer(plain)
    assert plain.quantizer is None
    learned = tiny_hasher(head="dqn", anchors=False)
    take_quantizer(learned)
    assert_array_equal(learned.quantizer.codewords, learned.network.head.codewords().detach().numpy())


def blurred(n, seed):
    """Features that tell eight labels apart only over many photos."""
    draw = torch.Generator().manual_seed(seed)
    places = torch.randn(8, 96, generator=torch.Generator().manual_seed(99))
    labels = (torch.rand(n, 8, generator=draw) < 0.25).float()
    labels[torch.arange(n), torch.randint(8, (n,), generator=draw)] = 1
    return FeatureInputs((labels @ places + 5 * torch.randn(n, 96, generator=draw)).half(), labels)


def learned(tiny_hasher, photos, batches, loss):
    """mAP of photos that were not trained on, the mean of three runs over so many photos."""
    settings = {
        "loss": loss, "mode": "frozen", "batch": 100, "batches": batches, "epochs": 15, "optimizer": "sgd", "rate": 0.1,
        "loss_rate": 0.01, "validation": 0.0, "precision": "float32",
    }  # fmt: skip
    scores = []
    for seed in range(3):
        config = resolve(Config(seed=seed, **settings))
        hasher = tiny_hasher(seed=seed, classes=tuple("abcdefgh"), anchors=False)
        session = Session(hasher, build(loss, bits=12, classes=8), blurred(photos, seed), config, None, SINGLE)
        point = session.start()
        while point.epoch < config.epochs:
            point, _ = session.run_epoch(point, lambda: False)
        unseen = blurred(300, 1000)
        codes = Codes.from_outputs(hasher.network.head.eval()(unseen.values.float()).detach().numpy())
        labels, queries, database = unseen.labels.numpy().astype(np.uint8), np.arange(100), np.arange(100, 300)
        rankings = Rankings(codes[queries], codes[database], labels[queries], labels[database])
        scores.append(mean_average_precision(rankings, top=100, protocol="strict"))
    return np.mean(scores)


@pytest.mark.parametrize("loss", ["hashnet", "hyp2-ap"])
def test_any_number_of_photos_trains_as_well_as_one_that_divides_evenly(tiny_hasher, loss):
    even, equal, cut = (learned(tiny_hasher, *how, loss) for how in ((200, "equal"), (204, "equal"), (204, "cut")))
    assert equal > even - 0.015
    assert cut < equal - 0.02  # the four that are left over count as much as a hundred


def test_a_step_draws_what_torch_draws_from_its_seed(settings):
    seed_step(settings(seed=3), 5, 7)
    drawn = torch.rand(4)
    torch.manual_seed((3 * 1_000_003 + 5) * 1_000_003 + 7)
    assert torch.equal(drawn, torch.rand(4))


def test_taking_another_hasher_is_becoming_it(tiny_hasher, photo_files):
    hasher, other, paths = tiny_hasher(), tiny_hasher(seed=1), photo_files(2)
    become(hasher, other)
    assert_array_equal(hasher.outputs(paths), other.outputs(paths))
    assert hasher.fingerprint == other.fingerprint
    assert_array_equal(hasher.anchors, other.anchors)
