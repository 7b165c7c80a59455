"""What a step takes in: the same photos whether they are kept in memory, read again each time, or as features."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from hyphash.errors import DataError, PhotoError
from hyphash.training import inputs as inputs_module
from hyphash.training.inputs import FeatureInputs, PixelInputs, StreamedInputs, load_inputs, outputs_of


@pytest.fixture
def hasher(tiny_hasher):
    return tiny_hasher(classes=("red", "green", "blue"))


@pytest.fixture
def load(hasher, splits, tmp_path):
    """load(frozen=False) reads the training photos."""

    def make(photos=splits.train, **options):
        options = {"frozen": False, "cache": tmp_path / "cache"} | options
        return load_inputs(hasher, photos, **options)

    return make


@pytest.fixture
def little_memory(monkeypatch):
    monkeypatch.setattr(inputs_module, "_free_bytes", lambda _: 30 * 32 * 32 * 3)  # twice that is needed


def test_photos_that_fit_are_decoded_once(load, splits, hasher, monkeypatch):
    inputs, problems = load()
    assert isinstance(inputs, PixelInputs)
    assert problems == ()
    monkeypatch.setattr("hyphash.photos.decode", lambda *_, **__: pytest.fail("decoded again"))
    images = inputs.batch(torch.tensor([4, 0]), augment=None)
    assert images.shape == (2, 3, 32, 32)
    assert images.dtype == torch.float32


def test_photos_that_do_not_fit_are_read_for_every_batch(load, little_memory):
    streamed, problems = load()
    assert isinstance(streamed, StreamedInputs)
    assert problems == ()


@pytest.mark.parametrize("augment", [None, "flip", "crop"])
def test_both_give_the_same_batches(load, augment, monkeypatch):
    kept, _ = load()
    monkeypatch.setattr(inputs_module, "_free_bytes", lambda _: 0)
    streamed, _ = load()
    rows = torch.tensor([7, 3, 29, 3])
    batches = []
    for inputs in (kept, streamed):
        torch.manual_seed(0)
        batches.append(inputs.batch(rows, augment=augment))
        assert torch.equal(inputs.labels[rows], kept.labels[rows])
    assert torch.equal(*batches)


def test_features_are_what_the_head_takes(load, hasher, splits):
    inputs, _ = load(frozen=True)
    assert isinstance(inputs, FeatureInputs)
    rows = torch.tensor([5, 2])
    values = inputs.batch(rows, augment="flip")
    assert values.dtype == torch.float32
    outputs = hasher.network.head.eval()(values).detach().numpy()
    assert_allclose(outputs, hasher.outputs(splits.train)[[5, 2]], rtol=0.02, atol=0.02)


def test_a_step_draws_one_view_of_each_photo(load):
    inputs, _ = load(frozen=True, views=3)
    rows = torch.arange(30).repeat(20)
    torch.manual_seed(0)
    drawn = inputs.batch(rows, augment="flip")
    matches = torch.stack([(drawn == inputs.views[rows, view].float()).all(1) for view in range(3)], 1)
    assert (matches.sum(1) == 1).all()
    assert ((matches.float().mean(0) - 1 / 3).abs() < 0.08).all()  # each as often
    torch.manual_seed(0)
    assert torch.equal(inputs.batch(rows, augment="flip"), drawn)
    torch.manual_seed(0)
    part = slice(200, 400)
    assert torch.equal(inputs.batch(rows, augment="flip", part=part), drawn[part])  # as within the whole


def test_without_augmentation_photos_are_seen_as_they_are(load, hasher):
    inputs, _ = load(frozen=True, views=3)
    alone, _ = load(frozen=True)
    rows = torch.tensor([5, 2])
    before = torch.get_rng_state()
    assert torch.equal(inputs.batch(rows, augment=None), alone.batch(rows, augment="flip"))
    assert torch.equal(torch.get_rng_state(), before)  # nothing is drawn where there is no choice
    assert torch.equal(inputs.values, alone.values)
    assert_array_equal(outputs_of(hasher, inputs, rows), outputs_of(hasher, alone, rows))


@pytest.mark.parametrize("frozen", [False, True])
def test_labels_are_those_of_the_photos_that_could_be_read(load, spoilt, frozen, splits, hasher):
    broken = spoilt({0: b"", 13: b"no photo", 29: b""})
    inputs, problems = load(broken.train, frozen=frozen)
    good = [i for i in range(30) if i not in (0, 13, 29)]
    assert len(inputs) == 27
    assert sorted(problem.name for problem in problems) == ["0.png", "13.png", "29.png"]
    assert_array_equal(inputs.labels.numpy(), splits.train.labels[good])
    outputs = outputs_of(hasher, inputs, torch.arange(27))
    assert_allclose(outputs, hasher.outputs(splits.train)[good], rtol=0.02, atol=0.02)


def test_streamed_photos_skip_the_unreadable_too(load, spoilt, little_memory, splits, hasher):
    inputs, problems = load(spoilt({1: b""}).train)
    assert [problem.name for problem in problems] == ["1.png"]
    assert_array_equal(inputs.labels.numpy(), np.delete(splits.train.labels, 1, axis=0))
    outputs = outputs_of(hasher, inputs, torch.arange(29))
    assert_allclose(outputs, hasher.outputs(splits.train)[np.delete(np.arange(30), 1)], rtol=1e-3, atol=1e-4)


def test_a_streamed_photo_that_vanishes_is_named(load, little_memory, monkeypatch):
    inputs, _ = load()

    def vanish(self, i):
        raise PhotoError(f"{i}.png: there is no such photo")

    monkeypatch.setattr(type(inputs.photos), "read", vanish)
    with pytest.raises(PhotoError, match="there is no such photo"):
        inputs.batch(torch.tensor([3]), augment=None)


@pytest.mark.parametrize("frozen", [False, True])
def test_without_one_readable_photo_there_is_nothing_to_do(load, spoilt, frozen):
    with pytest.raises(DataError, match=r"none of the 30 training photos can be read; the first: .*0 bytes"):
        load(spoilt(dict.fromkeys(range(36), b"")).train, frozen=frozen)


@pytest.mark.parametrize("frozen", [False, True])
def test_stopping_on_the_way_gives_nothing(load, frozen):
    assert load(frozen=frozen, stop=lambda: True) == (None, ())


def test_progress_reaches_the_end(load, spoilt):
    seen = []
    load(spoilt({2: b""}).train, progress=lambda done, of: seen.append((done, of)))
    assert seen[-1] == (30, 30)


def test_outputs_do_not_depend_on_the_size_of_batches(load, hasher):
    for inputs in (load()[0], load(frozen=True)[0]):
        rows = torch.tensor([8, 2, 2, 29, 0])
        whole = outputs_of(hasher, inputs, rows)
        assert whole.shape == (5, 12)
        assert whole.dtype == np.float32
        assert_allclose(outputs_of(hasher, inputs, rows, batch=2), whole, rtol=1e-4, atol=1e-5)


def test_free_memory_is_a_sensible_number():
    assert 1 << 20 < inputs_module._free_bytes(torch.device("cpu")) < 1 << 50
