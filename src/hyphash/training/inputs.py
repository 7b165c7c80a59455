"""What a step of training takes in: cached features, decoded photos in memory, or photos decoded as they are needed."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from hyphash.datasets import Split
from hyphash.encoder import BATCH, Encoded, encode_rows, run, to_images
from hyphash.errors import DataError, PhotoError
from hyphash.features import Found, Lacking, Look, Stop, compute_features, encode_lacking, looks_of
from hyphash.hasher import Hasher, Progress
from hyphash.photos import PhotoSource, Problem, decoded, decoders
from hyphash.training.ranks import SINGLE, Ranks
from hyphash.workers import Workers

Augmentation = Literal["flip", "crop"]

ALL = slice(None)
LEAST = 0.35  # of a photo's area that a crop keeps
WIDEST = 4 / 3  # width to height of a crop, and height to width
JITTER = 0.2  # by how much contrast, saturation and brightness change at most
MEMORY_SHARE = 0.5  # of what is free, for decoded photos
AT_ONCE = 512  # photos whose outputs are computed together
NOTHING = Encoded(np.empty(0), np.empty(0, np.int64), ())


class Inputs:
    """Training photos by row, with their labels."""

    labels: Tensor  # (n, classes) float32, on the device

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: Tensor, *, augment: Augmentation | None, part: slice = ALL) -> Tensor:
        """What the network (or, over frozen features, the head) takes for these rows, or for a part of them.

        Augmentation is drawn for all of the rows: a part looks as it does within the whole.
        """
        images = self.images(rows[part])
        return augmented(images, augment, of=len(rows), part=part) if augment else images

    def images(self, rows: Tensor) -> Tensor:
        """These photos as the network takes them, none changed."""
        raise NotImplementedError


@dataclass(frozen=True)
class FeatureInputs(Inputs):
    """Cached features of a frozen backbone; a step trains the head alone."""

    values: Tensor  # (n, features) or (n, features, h, w), float16: of the photos as they are
    labels: Tensor
    views: Tensor | None = None  # (n, views, …) where a step draws one of several looks at a photo; `values` come first

    def batch(self, rows: Tensor, *, augment: Augmentation | None, part: slice = ALL) -> Tensor:
        if not augment or self.views is None:
            return self.values[rows[part]].float()
        drawn = torch.randint(self.views.shape[1], (len(rows),), device=self.views.device)
        return self.views[rows[part], drawn[part]].float()


@dataclass(frozen=True)
class PixelInputs(Inputs):
    """Photos decoded once, as bytes, on the device where they fit."""

    pixels: Tensor  # (n, size, size, 3) uint8
    labels: Tensor
    hasher: Hasher

    def images(self, rows: Tensor) -> Tensor:
        pixels = self.pixels[rows.to(self.pixels.device)]
        return to_images(pixels, self.hasher.spec.preprocessing, self.hasher.device)


@dataclass(frozen=True)
class StreamedInputs(Inputs):
    """Photos that do not fit into memory: decoded for each batch."""

    photos: Split
    labels: Tensor
    hasher: Hasher
    workers: Workers

    def images(self, rows: Tensor) -> Tensor:
        chosen, preprocessing = self.photos.take(rows.cpu().numpy()), self.hasher.spec.preprocessing
        pixels = np.empty((len(chosen), preprocessing.size, preprocessing.size, 3), np.uint8)
        for i, photo in decoded(chosen, preprocessing, workers=self.workers):
            if isinstance(photo, Problem):
                raise PhotoError(photo.reason)
            pixels[i] = photo
        return to_images(torch.from_numpy(pixels), preprocessing, self.hasher.device)


def load_inputs(
    hasher: Hasher,
    photos: Split,
    *,
    frozen: bool,
    cache: Path,
    views: int = 1,
    progress: Progress | None = None,
    stop: Stop | None = None,
    ranks: Ranks = SINGLE,
) -> tuple[Inputs | None, tuple[Problem, ...]]:
    """The training photos that can be read, and the problems with the others. None when stopped on the way."""
    options: dict[str, Any] = {"progress": progress, "stop": stop, "ranks": ranks}
    place = hasher.device if frozen else _room(hasher, photos, ranks)
    if frozen:
        found = shared_features(hasher, photos, cache=cache, views=views, **options)
    else:
        found = _decode(hasher, photos, keep=place is not None, **options)
    if found is None:
        return None, ()
    if not len(found.rows):
        raise DataError(f"none of the {len(photos)} training photos can be read; the first: {found.problems[0].reason}")
    labels = torch.from_numpy(photos.labels[found.rows]).to(hasher.device, torch.float32)
    if place is None:
        workers = decoders(len(photos), among=ranks.local_size)
        return StreamedInputs(photos.take(found.rows), labels, hasher, workers), found.problems
    values = torch.from_numpy(found.values).to(place)
    if not frozen:
        return PixelInputs(values, labels, hasher), found.problems
    return FeatureInputs(*((values[:, 0], labels, values) if views > 1 else (values, labels))), found.problems


def shared_features(
    hasher: Hasher, photos: Split, *, views: int, stop: Stop | None, ranks: Ranks, **options: Any
) -> Encoded | None:
    """`compute_features` by all ranks: each takes a share of what the first rank's cache lacks.

    Only the first rank touches the cache, so it has one writer, whichever disk it lies on.
    """

    def stopped() -> bool:
        return ranks.all_reduce_any(bool(stop and stop()))[0]

    def encode(looks: Sequence[Look], photos: PhotoSource, lacking: Lacking) -> Iterator[Found]:
        for which, rows in ranks.broadcast_object(lacking):
            workers = decoders(len(rows) // ranks.size, among=ranks.local_size)
            mine = encode_lacking(looks, photos, [(which, _share(rows, ranks))], workers)
            for found in _gathered((found for _, found in mine), ranks):
                yield which, found

    features: Encoded | None = NOTHING
    if ranks.first:
        features = compute_features(hasher, photos, views=views, stop=stopped, encode=encode, **options)
    elif any(stopped() for _ in encode(looks_of(hasher, views), photos, [])):
        features = None
    if features is None:
        return None
    rows, problems = ranks.broadcast_object((features.rows, features.problems))  # those of the first rank
    return Encoded(ranks.broadcast_array(features.values), rows, problems)


def _share(rows: list[int], ranks: Ranks) -> list[int]:
    """The rows that this rank takes: each takes a batch in turn, so that what they gather comes in order."""
    starts = range(ranks.rank * BATCH, len(rows), ranks.size * BATCH)
    return [row for start in starts for row in rows[start : start + BATCH]] if ranks.size > 1 else rows


def _gathered(mine: Iterator[Encoded], ranks: Ranks) -> Iterator[Encoded]:
    """What all ranks have encoded, batch by batch."""
    found = next(mine, None)
    while ranks.all_reduce_any(found is not None)[0]:
        own = found or NOTHING
        values, rows = ranks.all_gather_rows(own.values), ranks.all_gather_rows(own.rows)
        told = [ranks.broadcast_object(own.problems, rank) for rank in range(ranks.size)]
        yield Encoded(values, rows, tuple(problem for some in told for problem in some))
        found = next(mine, None)


def _room(hasher: Hasher, photos: Split, ranks: Ranks) -> torch.device | None:
    """Where all photos fit as bytes: on the device, or else in memory; None where they do not, on any rank."""
    needed, memory = len(photos) * math.prod(hasher.spec.preprocessing.shape), torch.device("cpu")
    on_device = hasher.device.type != "cpu" and needed < MEMORY_SHARE * _free_bytes(hasher.device)
    fits = on_device or needed < MEMORY_SHARE * _free_bytes(memory) / ranks.local_size
    place = hasher.device if on_device else memory
    return None if ranks.all_reduce_any(not fits)[0] else place


def _decode(
    hasher: Hasher, photos: Split, *, keep: bool, progress: Progress | None, stop: Stop | None, ranks: Ranks
) -> Encoded | None:
    """All photos as bytes, where they are to be kept; every photo is tried once, whether they are or not."""
    sees, rows, problems = hasher.spec.preprocessing, list[int](), list[Problem]()
    store = np.empty((len(photos) if keep else 0, *sees.shape), np.uint8)
    own, pool = _share([*range(len(photos))], ranks), decoders(len(photos) // ranks.size, among=ranks.local_size)
    mine = encode_rows(photos, own, sees, lambda pixels: pixels if keep else pixels[:, :0], batch=BATCH, workers=pool)
    for found in _gathered(mine, ranks):
        if keep and len(found.rows):
            store[len(rows) : len(rows) + len(found.rows)] = found.values
        problems += found.problems
        rows += found.rows.tolist()
        if progress:
            progress(len(rows) + len(problems), len(photos))
        if ranks.all_reduce_any(bool(stop and stop()))[0]:
            return None
    return Encoded(store[: len(rows)], np.array(rows, np.int64), tuple(problems))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    return 4 << 30  # not Linux: a modest guess


def outputs_of(
    hasher: Hasher, inputs: Inputs, rows: Tensor, *, ranks: Ranks = SINGLE, forward: Callable[..., Any] | None = None
) -> np.ndarray:
    """Outputs of some of the inputs, or what `forward` gives, as they are now. Ranks take whole batches each."""
    model = hasher.network.head if isinstance(inputs, FeatureInputs) else hasher.network
    batches = torch.split(rows, AT_ONCE)
    mine = batches[ranks.share(len(batches))]
    if not mine:
        return ranks.all_gather_rows(np.empty((0, 0), np.float32))
    return ranks.all_gather_rows(run(model, (inputs.batch(part, augment=None) for part in mine), forward))


def augmented(images: Tensor, how: Augmentation, *, of: int | None = None, part: slice = ALL) -> Tensor:
    """The photos (n, 3, h, w), changed at random, as drawn for all `of` the batch that they are a part of.

    All at once, on their device, from torch's own random numbers: a function of the step's seed, without a word from
    the host, so that a recorded step holds it too.
    """
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
