"""CIFAR-10, its binary version: 60,000 photos of 32 × 32 pixels with one label each.

    cifar-10-batches-bin/data_batch_1.bin … data_batch_5.bin, test_batch.bin      (a photo: label, red, green, blue)

| split  | queries                  | train               | database                  |
| small  | 1,000, 100 a class       | 5,000, 500 a class  | the 59,000 others         |
| whole  | 10,000 (test_batch.bin)  | 50,000              | the same 50,000           |
"""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hyphash.datasets import Parts, Rows, assemble, below, datasets
from hyphash.errors import DataError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
SIDE = 32
QUERIES, TRAIN = 100, 500  # of each class


@dataclass(frozen=True)
class Planes:
    """Photos as red, green and blue planes of bytes."""

    planes: NDArray[np.uint8]  # (n, 3, side, side)

    def __len__(self) -> int:
        return len(self.planes)

    def name(self, i: int) -> str:
        return f"{i:05}.png"

    def path(self, _: int) -> Path | None:
        return None

    def read(self, i: int) -> bytes:
        content = BytesIO()
        Image.fromarray(self.planes[i].transpose(1, 2, 0)).save(content, "PNG", compress_level=0)
        return content.getvalue()


@datasets("cifar10")
def cifar10(path: Path, *, split: Literal["small", "whole"] = "small", seed: int = 0) -> Rows:
    """CIFAR-10 in its binary version (cifar-10-batches-bin).

    split  small: 1,000 queries, 5,000 to train on, all others the database; whole: the test photos are the queries
    seed   which photos of a class are queries and which are trained on, with split=small
    """
    if split not in ("small", "whole"):
        raise DataError(f"cifar10 has the splits small and whole, not {split!r}")
    batches = [_read(path, name) for name in FILES]
    records = np.concatenate(batches)
    labels = np.eye(len(CLASSES), dtype=np.uint8)[records[:, 0]]
    photos = Planes(records[:, 1:].reshape(-1, 3, SIDE, SIDE))
    tested, everyone = len(records) - len(batches[-1]), np.arange(len(records))
    parts = Parts(everyone[:tested], everyone[tested:], everyone[:tested])
    if split == "small":
        parts = _draw(records[:, 0], seed)
    return assemble("cifar10", CLASSES, photos, labels, parts=parts)


def _draw(classes: NDArray[np.uint8], seed: int) -> Parts:
    """Queries and training photos of each class, drawn from all photos; what is no query is the database."""
    order = np.random.default_rng(seed).permutation(len(classes))
    drawn = [np.split(order[classes[order] == label], [QUERIES, QUERIES + TRAIN]) for label in range(len(CLASSES))]
    queries, train, _ = map(np.concatenate, zip(*drawn, strict=True))
    return Parts(np.sort(train), np.sort(queries), np.setdiff1d(order, queries))


def _read(path: Path, name: str) -> NDArray[np.uint8]:
    file = below(path, name)
    if file is None:
        pickled = below(path, "data_batch_1")
        why = f"{pickled} is the pickled version, which could run code; download" if pickled else "get"
        raise DataError(f"{path}: {name} is not here; {why} the binary version, cifar-10-binary.tar.gz, and unpack it")
    content = np.fromfile(file, np.uint8)
    if not len(content) or len(content) % (1 + 3 * SIDE**2) or content[:: 1 + 3 * SIDE**2].max() >= len(CLASSES):
        raise DataError(f"{file}: is not a batch of CIFAR-10's binary version; download it again")
    return content.reshape(-1, 1 + 3 * SIDE**2)
