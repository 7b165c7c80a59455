"""Photos changed at random: laws of each change, and a naive twin of the crop."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from hyphash.training.augment import JITTER, LEAST, WIDEST, augmented, crop, recolour

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
