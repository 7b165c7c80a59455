"""What a step takes in: the same photos whether they are kept in memory, read again each time, or as features."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from torch.testing import assert_close

from hyphash.errors import DataError, PhotoError
from hyphash.training import inputs as inputs_module
from hyphash.training.inputs import (
    JITTER,
    LEAST,
    WIDEST,
    FeatureInputs,
    PixelInputs,
    StreamedInputs,
    augmented,
    crop,
    load_inputs,
    outputs_of,
    recolour,
)


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


def test_outputs_do_not_depend_on_the_size_of_batches(load, hasher, monkeypatch):
    for inputs in (load()[0], load(frozen=True)[0]):
        rows = torch.tensor([8, 2, 2, 29, 0])
        whole = outputs_of(hasher, inputs, rows)
        assert whole.shape == (5, 12)
        assert whole.dtype == np.float32
        with monkeypatch.context() as small:
            small.setattr(inputs_module, "AT_ONCE", 2)
            assert_allclose(outputs_of(hasher, inputs, rows), whole, rtol=1e-4, atol=1e-5)


def test_free_memory_is_a_sensible_number():
    assert 1 << 20 < inputs_module._free_bytes(torch.device("cpu")) < 1 << 50


# Photos changed at random: laws of each change, and a naive twin of the crop.

SHARES = st.floats(0, 1)


def photos(n=6, size=9, seed=0):
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


def test_each_photo_is_mirrored_or_not():
    images = torch.randn(200, 3, 4, 5)
    torch.manual_seed(0)
    flipped = augmented(images, "flip")
    same = [torch.equal(a, b) for a, b in zip(flipped, images, strict=True)]
    mirrored = [torch.equal(a, b.flip(2)) for a, b in zip(flipped, images, strict=True)]
    assert all(s != m for s, m in zip(same, mirrored, strict=True))
    assert 60 < sum(mirrored) < 140  # about half
    torch.manual_seed(0)
    assert torch.equal(augmented(images, "flip"), flipped)


@pytest.mark.parametrize("how", ["flip", "crop"])
def test_the_same_seed_gives_the_same_photos_and_a_part_looks_as_within_the_whole(how):
    images, looks = photos(7), []
    for part in (slice(None), slice(2, 5), slice(3, 3)):
        torch.manual_seed(3)
        looks.append(augmented(images[part], how, of=7, part=part))
    assert_close(looks[1], looks[0][2:5])
    assert looks[2].shape == (0, 3, 9, 9)
    torch.manual_seed(4)
    assert not torch.equal(augmented(images, how), looks[0])


def test_the_whole_photo_is_a_crop_too_as_it_is_or_mirrored():
    images, whole = photos(2), torch.tensor([[1.0, 1, 0.5, 0.3, 0.8], [0.0, 1, 0.5, 0.3, 0.8]])
    assert_close(crop(images, whole), torch.stack([images[0], images[1].flip(2)]), rtol=1e-4, atol=1e-4)


@given(mirrored=st.booleans(), area=SHARES, shape=SHARES, across=SHARES, down=SHARES)
def test_a_crop_is_a_window_of_the_photo_at_its_size(mirrored, area, shape, across, down):
    """Bilinear interpolation by hand, pixel by pixel; the window lies within the photo."""
    image = photos(1, size=7)[0].numpy().astype(float)
    aspect = WIDEST ** (2 * shape - 1)
    kept = LEAST + (1 - LEAST) * area
    width, height = (7 * min(1, math.sqrt(kept * a)) for a in (aspect, 1 / aspect))
    left, top = (7 - width) * across, (7 - height) * down
    xs = [left + width * (i + 0.5) / 7 - 0.5 for i in range(7)]
    ys = [top + height * (i + 0.5) / 7 - 0.5 for i in range(7)]
    expected = np.array([[at(image, x, y) for x in (xs[::-1] if mirrored else xs)] for y in ys]).transpose(2, 0, 1)
    draws = torch.tensor([[0.0 if mirrored else 1.0, area, shape, across, down]])
    assert_close(crop(photos(1, size=7), draws)[0], torch.from_numpy(expected).float(), rtol=1e-3, atol=1e-3)


def at(image, x, y):
    x, y = min(max(x, 0), 6), min(max(y, 0), 6)
    i, j = min(int(x), 5), min(int(y), 5)
    above = image[:, j, i] * (1 - x + i) + image[:, j, i + 1] * (x - i)
    below = image[:, j + 1, i] * (1 - x + i) + image[:, j + 1, i + 1] * (x - i)
    return above * (1 - y + j) + below * (y - j)


def test_colours_change_a_little_and_not_at_all_in_the_middle():
    images = photos(2)
    assert_close(recolour(images, torch.full((2, 3), 0.5)), images)
    brighter = recolour(images, torch.tensor([[0.5, 0.5, 1.0]] * 2)) - images
    assert_close(brighter, JITTER * images.std((1, 2, 3), correction=0, keepdim=True).expand_as(images))
    more = recolour(images, torch.tensor([[1.0, 0.5, 0.5]] * 2))
    assert_close(more.mean((1, 2, 3)), images.mean((1, 2, 3)))
    assert_close(more.std((1, 2, 3)), (1 + JITTER) * images.std((1, 2, 3)))
    grey = images.mean(1, keepdim=True).expand_as(images)
    assert_close(recolour(grey, torch.tensor([[0.5, 1.0, 0.5]] * 2)), grey)  # grey has no colour to deepen


@given(scale=st.floats(0.1, 200), shift=st.floats(-100, 100))
def test_it_does_not_matter_how_pixels_were_normalised(scale, shift):
    images, draws = photos(2).double(), torch.rand(2, 3, generator=torch.Generator().manual_seed(1)).double()
    assert_close(recolour(images * scale + shift, draws), recolour(images, draws) * scale + shift, rtol=1e-6, atol=1e-6)
