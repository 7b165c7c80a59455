"""What a step of training takes in: cached features, decoded photos in memory, or photos decoded as they are needed."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hyphash.datasets import Split
from hyphash.encoder import BATCH, Encoded, encode_rows, run, to_images
from hyphash.errors import DataError, PhotoError
from hyphash.features import Found, Lacking, Look, Stop, compute_features, encode_lacking, looks_of
from hyphash.hasher import Hasher, Progress
from hyphash.photos import PhotoSource, Problem, decoded, decoders
from hyphash.training.augment import ALL, Augmentation, augmented
from hyphash.training.ranks import SINGLE, Ranks
from hyphash.workers import Workers

MEMORY_SHARE = 0.5  # of what is free, for decoded photos


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
    if frozen:
        features = shared_features(hasher, photos, cache=cache, views=views, progress=progress, stop=stop, ranks=ranks)
        if features is None:
            return None, ()
        values = torch.from_numpy(features.values).to(hasher.device)
        labels = _labels(photos, features.rows, hasher)
        inputs: Inputs = FeatureInputs(values[:, 0], labels, values) if views > 1 else FeatureInputs(values, labels)
        problems = features.problems
    else:
        read = _decode(hasher, photos, progress, stop, ranks)
        if read is None:
            return None, ()
        rows, pixels, problems = read
        labels = _labels(photos, rows, hasher)
        if pixels is None:
            workers = decoders(len(photos), among=ranks.local_size)
            inputs = StreamedInputs(photos.take(rows), labels, hasher, workers)
        else:
            inputs = PixelInputs(pixels, labels, hasher)
    if not len(inputs):
        raise DataError(f"none of the {len(photos)} training photos can be read; the first: {problems[0].reason}")
    return inputs, problems


def shared_features(
    hasher: Hasher,
    photos: Split,
    *,
    cache: Path,
    views: int,
    progress: Progress | None,
    stop: Stop | None,
    ranks: Ranks,
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

    features = None
    if ranks.first:
        features = compute_features(
            hasher, photos, cache=cache, views=views, progress=progress, stop=stopped, encode=encode
        )
        if features is None:
            return None
    elif any(stopped() for _ in encode(looks_of(hasher, views), photos, [])):
        return None
    problems = _all_gather_problems(features.problems if features else (), ranks)  # those of the first rank
    values, rows = (ranks.broadcast_array(getattr(features, name, None)) for name in ("values", "rows"))
    assert values is not None
    assert rows is not None
    return Encoded(values, rows, problems)


def _share(rows: list[int], ranks: Ranks) -> list[int]:
    """The rows that this rank takes: each takes a batch in turn, so that what they gather comes in order."""
    starts = range(ranks.rank * BATCH, len(rows), ranks.size * BATCH)
    return [row for start in starts for row in rows[start : start + BATCH]] if ranks.size > 1 else rows


def _gathered(mine: Iterator[Encoded], ranks: Ranks) -> Iterator[Encoded]:
    """What all ranks have encoded, batch by batch."""
    found = next(mine, None)
    while ranks.all_reduce_any(found is not None)[0]:
        own = found or Encoded(np.empty(0), np.empty(0, np.int64), ())
        values, rows = ranks.all_gather_rows(own.values), ranks.all_gather_rows(own.rows)
        yield Encoded(values, rows, _all_gather_problems(own.problems, ranks))
        found = next(mine, None)


def _labels(photos: Split, rows: np.ndarray, hasher: Hasher) -> Tensor:
    return torch.from_numpy(photos.labels[rows]).to(hasher.device, torch.float32)


def _decode(
    hasher: Hasher, photos: Split, progress: Progress | None, stop: Stop | None, ranks: Ranks
) -> tuple[np.ndarray, Tensor | None, tuple[Problem, ...]] | None:
    """All photos as one tensor of bytes; None for the tensor if it would not fit, but every photo is tried once."""
    preprocessing = hasher.spec.preprocessing
    shape = (len(photos), preprocessing.size, preprocessing.size, 3)
    needed, memory = math.prod(shape), MEMORY_SHARE * _free_bytes(torch.device("cpu")) / ranks.local_size
    on_device = hasher.device.type != "cpu" and needed < MEMORY_SHARE * _free_bytes(hasher.device)
    fits = not ranks.all_reduce_any(not (on_device or needed < memory))[0]
    store = torch.empty(shape, dtype=torch.uint8) if fits else None
    rows: list[int] = []
    problems: list[Problem] = []
    workers = decoders(len(photos) // ranks.size, among=ranks.local_size)
    mine = encode_rows(
        photos, _share([*range(len(photos))], ranks), preprocessing, lambda pixels: pixels if fits else pixels[:, :0],
        batch=BATCH, workers=workers,
    )  # fmt: skip
    for found in _gathered(mine, ranks):
        problems += found.problems
        if store is not None and len(found.rows):
            store[len(rows) : len(rows) + len(found.rows)] = torch.from_numpy(found.values)
        rows += found.rows.tolist()
        if progress:
            progress(len(rows) + len(problems), len(photos))
        if ranks.all_reduce_any(bool(stop and stop()))[0]:
            return None
    kept = None if store is None else store[: len(rows)].to(hasher.device if on_device else "cpu")
    return np.array(rows, np.int64), kept, tuple(problems)


def _all_gather_problems(own: Sequence[Problem], ranks: Ranks) -> tuple[Problem, ...]:
    tables = [asdict(problem) for problem in own]
    return tuple(Problem(**table) for rank in range(ranks.size) for table in ranks.broadcast_object(tables, rank))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 4 << 30  # not Linux: a modest guess


def outputs_of(
    hasher: Hasher,
    inputs: Inputs,
    rows: Tensor,
    *,
    batch: int = 512,
    ranks: Ranks = SINGLE,
    forward: Callable[[Tensor], Any] | None = None,
) -> np.ndarray:
    """Outputs of some of the inputs, or what `forward` gives, as they are now. Ranks take whole batches each."""
    model = hasher.network.head if isinstance(inputs, FeatureInputs) else hasher.network
    batches_ = torch.split(rows, batch)
    mine = batches_[ranks.share(len(batches_))]
    if not mine:
        return ranks.all_gather_rows(np.empty((0, 0), np.float32))
    return ranks.all_gather_rows(run(model, (inputs.batch(part, augment=None) for part in mine), forward))
