"""What a step of training takes in: cached features, decoded photos in memory, or photos decoded as they are needed."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hyphash.datasets import Split
from hyphash.encoder import BATCH, Encoded, run, to_images
from hyphash.errors import DataError, PhotoError
from hyphash.features import Stop, compute_features, fresh_features, keep_features, missing_features
from hyphash.hasher import Hasher, Progress
from hyphash.photos import Preprocessing, Problem, batches, decoded, decoders
from hyphash.training.augment import ALL, Augmentation, augmented
from hyphash.training.ranks import SINGLE, Ranks
from hyphash.workers import Workers

MEMORY_SHARE = 0.5  # of what is free, for decoded photos
ROUND = 512  # photos that a rank decodes, or computes features of, before they are handed round


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

    values: Tensor  # (n, features) or (n, features, h, w), float16
    labels: Tensor

    def batch(self, rows: Tensor, *, augment: Augmentation | None, part: slice = ALL) -> Tensor:  # noqa: ARG002
        return self.values[rows[part]].float()


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
    progress: Progress | None = None,
    stop: Stop | None = None,
    ranks: Ranks = SINGLE,
) -> tuple[Inputs | None, tuple[Problem, ...]]:
    """The training photos that can be read, and the problems with the others. None when stopped on the way."""
    if frozen:
        compute = compute_features if ranks.size == 1 else partial(shared_features, ranks=ranks)
        features = compute(hasher, photos, cache=cache, progress=progress, stop=stop)
        if features is None:
            return None, ()
        values = torch.from_numpy(features.values).to(hasher.device)
        inputs: Inputs = FeatureInputs(values, _labels(photos, features.rows, hasher))
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
    hasher: Hasher, photos: Split, *, cache: Path, progress: Progress | None, stop: Stop | None, ranks: Ranks
) -> Encoded | None:
    """`compute_features` by all ranks: each takes a share of what the first rank's cache lacks.

    Only the first rank touches the cache, so it has one writer, whichever disk it lies on.
    """
    lacking = missing_features(hasher, photos, cache=cache) if ranks.first else []
    missing = np.array(ranks.broadcast_object(lacking), np.int64)
    workers = decoders(len(missing) // ranks.size, among=ranks.local_size)
    for done, mine in _rounds(missing, ranks):
        found = fresh_features(hasher, photos.take(mine), workers=workers)
        read, values = ranks.all_gather_rows(mine[found.rows]), ranks.all_gather_rows(found.values)
        if ranks.first:
            keep_features(hasher, photos.take(read), values, cache=cache)
        if progress:
            progress(len(photos) - len(missing) + done, len(photos))
        if ranks.all_reduce_any(bool(stop and stop()))[0]:
            return None
    features = compute_features(hasher, photos, cache=cache) if ranks.first else None
    problems = _all_gather_problems(features.problems if features else (), ranks)  # those of the first rank
    all_values, all_rows = (ranks.broadcast_array(getattr(features, name, None)) for name in ("values", "rows"))
    assert all_values is not None
    assert all_rows is not None
    return Encoded(all_values, all_rows, tuple(problems))


def _rounds(rows: np.ndarray, ranks: Ranks) -> Iterator[tuple[int, np.ndarray]]:
    """The rows that this rank takes in each round, and how many all ranks have had by the end of it."""
    for start in range(0, len(rows), ROUND * ranks.size):
        together = rows[start : start + ROUND * ranks.size]
        yield start + len(together), together[ranks.share(len(together))]


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
    for indices, pixels, bad in _shared_batches(photos, preprocessing, ranks, keep=fits):
        problems += bad
        if store is not None and len(indices):
            store[len(rows) : len(rows) + len(indices)] = torch.from_numpy(pixels)
        rows += indices
        if progress:
            progress(len(rows) + len(problems), len(photos))
        if ranks.all_reduce_any(bool(stop and stop()))[0]:
            return None
    kept = None if store is None else store[: len(rows)].to(hasher.device if on_device else "cpu")
    return np.array(rows, np.int64), kept, tuple(problems)


def _shared_batches(
    photos: Split, preprocessing: Preprocessing, ranks: Ranks, *, keep: bool
) -> Iterator[tuple[list[int], np.ndarray, list[Problem]]]:
    """`batches`, decoded by all ranks; pixels are handed round if they are to be kept."""
    if ranks.size == 1:
        yield from batches(photos, preprocessing, batch=BATCH)
        return
    workers = decoders(len(photos) // ranks.size, among=ranks.local_size)
    for _, mine in _rounds(np.arange(len(photos)), ranks):
        empty: tuple[list[int], np.ndarray, list[Problem]] = ([], np.empty(0, np.uint8), [])
        read, pixels, bad = next(batches(photos.take(mine), preprocessing, batch=ROUND, workers=workers), empty)
        indices, problems = ranks.all_gather_rows(mine[read]).tolist(), _all_gather_problems(bad, ranks)
        yield indices, ranks.all_gather_rows(pixels) if keep else pixels[:0], problems


def _all_gather_problems(own: Sequence[Problem], ranks: Ranks) -> list[Problem]:
    tables = [asdict(problem) for problem in own]
    return [Problem(**table) for rank in range(ranks.size) for table in ranks.broadcast_object(tables, rank)]


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 4 << 30  # not Linux: a modest guess


def outputs_of(hasher: Hasher, inputs: Inputs, rows: Tensor, *, batch: int = 512, ranks: Ranks = SINGLE) -> np.ndarray:
    """Outputs of some of the inputs, as they are now. Ranks take whole batches each: the outputs are those of one."""
    model = hasher.network.head if isinstance(inputs, FeatureInputs) else hasher.network
    batches_ = torch.split(rows, batch)
    mine = batches_[ranks.share(len(batches_))]
    outputs = run(model, (inputs.batch(part, augment=None) for part in mine)) if mine else np.empty((0, 0), np.float32)
    return ranks.all_gather_rows(outputs)
