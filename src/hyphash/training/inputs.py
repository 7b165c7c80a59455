"""What a step of training takes in: cached features, decoded photos in memory, or photos decoded as they are needed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hyphash.datasets import Split
from hyphash.errors import DataError
from hyphash.features import compute_features
from hyphash.hasher import BATCH, Hasher, Problem, Progress, batches, decoded, first_of, to_images

MEMORY_SHARE = 0.5  # of what is free, for decoded photos


class Inputs(Protocol):
    """Training photos by row, with their labels."""

    @property
    def labels(self) -> Tensor:
        """(n, classes) float32, on the device."""

    def __len__(self) -> int: ...

    def batch(self, rows: Tensor, *, augment: bool) -> Tensor:
        """What the network (or, over frozen features, the head) takes for these rows."""


@dataclass(frozen=True)
class FeatureInputs:
    """Cached features of a frozen backbone; a step trains the head alone."""

    values: Tensor  # (n, features) or (n, features, h, w), float16
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: Tensor, *, augment: bool) -> Tensor:  # noqa: ARG002 (features cannot be mirrored)
        return self.values[rows].float()


@dataclass(frozen=True)
class PixelInputs:
    """Photos decoded once, as bytes, on the device where they fit."""

    pixels: Tensor  # (n, size, size, 3) uint8
    labels: Tensor
    hasher: Hasher

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: Tensor, *, augment: bool) -> Tensor:
        pixels = self.pixels[rows.to(self.pixels.device)]
        images = to_images(pixels, self.hasher.spec.preprocessing, self.hasher.device)
        return flip_some(images) if augment else images


@dataclass(frozen=True)
class StreamedInputs:
    """Photos that do not fit into memory: decoded for each batch."""

    photos: Split
    labels: Tensor
    hasher: Hasher

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: Tensor, *, augment: bool) -> Tensor:
        chosen = self.photos.take(rows.cpu().numpy())
        pixels = []
        for _, photo in decoded(chosen, self.hasher.spec.preprocessing):
            if isinstance(photo, Exception):
                raise photo
            pixels.append(photo)
        images = to_images(torch.from_numpy(np.stack(pixels)), self.hasher.spec.preprocessing, self.hasher.device)
        return flip_some(images) if augment else images


def flip_some(images: Tensor) -> Tensor:
    """Each photo mirrored with probability one half."""
    mirrored = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    return torch.where(mirrored, images.flip(3), images)


def load_inputs(
    hasher: Hasher,
    photos: Split,
    *,
    frozen: bool,
    cache: Path,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> tuple[Inputs | None, tuple[Problem, ...]]:
    """The training photos that can be read, and the problems with the others. None when stopped on the way."""
    if frozen:
        features = compute_features(hasher, photos, cache=cache, progress=progress, stop=stop)
        if features is None:
            return None, ()
        values = torch.from_numpy(features.values).to(hasher.device)
        inputs: Inputs = FeatureInputs(values, _labels(photos, features.rows, hasher))
        problems = features.problems
    else:
        rows, pixels, problems = _decode(hasher, photos, progress, stop)
        if stop and stop():
            return None, ()
        labels = _labels(photos, rows, hasher)
        inputs = (
            StreamedInputs(photos.take(rows), labels, hasher) if pixels is None else PixelInputs(pixels, labels, hasher)
        )
    if not len(inputs):
        raise DataError(f"none of the {len(photos)} training photos can be read; the first: {problems[0].reason}")
    return inputs, problems


def _labels(photos: Split, rows: np.ndarray, hasher: Hasher) -> Tensor:
    return torch.from_numpy(photos.labels[rows]).to(hasher.device, torch.float32)


def _decode(
    hasher: Hasher, photos: Split, progress: Progress | None, stop: Callable[[], bool] | None
) -> tuple[np.ndarray, Tensor | None, tuple[Problem, ...]]:
    """All photos as one tensor of bytes; None for the tensor if it would not fit, but every photo is tried once."""
    size = hasher.spec.preprocessing.size
    needed = len(photos) * size * size * 3
    device = hasher.device if needed < MEMORY_SHARE * _free_bytes(hasher.device) else torch.device("cpu")
    fits = needed < MEMORY_SHARE * _free_bytes(device)
    store = torch.empty((len(photos), size, size, 3), dtype=torch.uint8) if fits else None
    rows: list[int] = []
    problems: list[Problem] = []
    for indices, pixels, bad in batches(photos, hasher.spec.preprocessing, batch=BATCH):
        problems += bad
        if store is not None and indices:
            store[len(rows) : len(rows) + len(indices)] = torch.from_numpy(pixels)
        rows += indices
        if progress:
            progress(len(rows) + len(problems), len(photos))
        if stop and stop():
            break
    kept = None if store is None else store[: len(rows)].to(device)
    return np.array(rows, np.int64), kept, tuple(problems)


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 4 << 30  # not Linux: a modest guess


def outputs_of(hasher: Hasher, inputs: Inputs, rows: Tensor, *, batch: int = 512) -> np.ndarray:
    """Outputs of some of the inputs, as they are now."""
    model = hasher.network.head if isinstance(inputs, FeatureInputs) else hasher.network
    model.eval()
    with torch.inference_mode():
        parts = [first_of(model(inputs.batch(part, augment=False))).float().cpu() for part in torch.split(rows, batch)]
    return torch.cat(parts).numpy()
