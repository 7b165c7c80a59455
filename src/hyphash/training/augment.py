"""Training photos look a little different every time: mirrored, or also cropped and recoloured.

All of a batch at once, on its device, from torch's own random numbers: a function of the step's seed, without a word
from the host, so that a recorded step holds it too.
"""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

Augmentation = Literal["flip", "crop"]

ALL = slice(None)
LEAST = 0.35  # of a photo's area that a crop keeps
WIDEST = 4 / 3  # width to height of a crop, and height to width
JITTER = 0.2  # by how much contrast, saturation and brightness change at most


def augmented(images: Tensor, how: Augmentation, *, of: int | None = None, part: slice = ALL) -> Tensor:
    """The photos (n, 3, h, w), changed at random, as drawn for all `of` the batch that they are a part of."""
    of = of or len(images)
    if how == "flip":
        mirrored = torch.rand(of, 1, 1, 1, device=images.device) < 0.5
        return torch.where(mirrored[part], images.flip(3), images)
    draws = torch.rand(of, 8, device=images.device)[part]
    if not len(images):  # of many ranks and a small batch
        return images
    return recolour(crop(images, draws[:, :5]), draws[:, 5:]).contiguous(memory_format=torch.channels_last)


def crop(images: Tensor, draws: Tensor) -> Tensor:
    """A part of each photo, at the photo's size, half of them mirrored; by five numbers between 0 and 1 each.

    They are: whether it is mirrored, its area, its shape, and where it lies across and down.
    """
    mirrored, area, shape, across, down = draws.unbind(1)
    area, shape = LEAST + (1 - LEAST) * area, (2 * shape - 1) * math.log(WIDEST)
    width, height = (area * shape.exp()).sqrt().clamp(max=1), (area / shape.exp()).sqrt().clamp(max=1)
    window = images.new_zeros(len(images), 2, 3)  # from places in the result to places in the photo, both −1 to 1
    window[:, 0, 0] = width * torch.where(mirrored < 0.5, -1, 1)
    window[:, 1, 1] = height
    window[:, 0, 2], window[:, 1, 2] = (1 - width) * (2 * across - 1), (1 - height) * (2 * down - 1)
    places = affine_grid(window, list(images.shape), align_corners=False)
    return grid_sample(images, places, mode="bilinear", padding_mode="border", align_corners=False)


def recolour(images: Tensor, draws: Tensor) -> Tensor:
    """Photos with a little more or less contrast, saturation and brightness, by three numbers between 0 and 1 each.

    In units of the photo itself, so it does not matter how pixels were normalised.
    """
    contrast, saturation, brightness = (JITTER * (2 * draws - 1))[:, :, None, None, None].unbind(1)
    images = images + saturation * (images - images.mean(1, keepdim=True))
    whole = (1, 2, 3)
    mean, deviation = images.mean(whole, keepdim=True), images.std(whole, correction=0, keepdim=True)
    return images + contrast * (images - mean) + brightness * deviation
