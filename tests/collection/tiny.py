"""A hasher without torch and photos of a few pixels, for tests that start processes and count milliseconds."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from hyphash.config import write_toml
from hyphash.hasher import SPEC_FILE, WEIGHTS_FILE, Hasher, Outputs, Spec
from hyphash.photos import Preprocessing

CLASSES = ("bird", "cat", "dog", "sea")
SIZE = 16


class TinyHasher(Hasher):
    """Outputs are a fixed random projection of the pixels."""

    def __init__(self, *, bits: int = 12, seed: int = 0, classes: tuple[str, ...] = CLASSES) -> None:
        rng = np.random.default_rng(seed)
        preprocessing = Preprocessing(size=SIZE, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
        self.spec = Spec(backbone="tiny", bits=bits, classes=classes, preprocessing=preprocessing)
        self.projection = rng.normal(size=(SIZE * SIZE * 3, bits)).astype(np.float32)
        self.anchors = rng.normal(size=(len(classes), bits)).astype(np.float32)
        self.quantizer = None
        self.spec = replace(self.spec, fingerprint=hashlib.sha256(self.projection.tobytes()).hexdigest()[:16])
        self.encoded = 0  # photos that the network had to look at

    def outputs_of_pixels(self, pixels: NDArray[np.uint8]) -> Outputs:
        self.encoded += len(pixels)
        values = self.spec.preprocessing.normalise(pixels).reshape(len(pixels), -1)
        # photo by photo: the sum must not depend on what else is in the batch
        return np.stack([(row[:, None] * self.projection).sum(axis=0) for row in values])

    def save(self, folder: str | Path) -> None:
        from safetensors.numpy import save_file

        assert self.anchors is not None
        save_file({"anchors": self.anchors, "network.projection": self.projection}, Path(folder) / WEIGHTS_FILE)
        write_toml(Path(folder) / SPEC_FILE, self.spec)


def draw(path: Path, seed: int, *, size: tuple[int, int] = (48, 32), quality: int = 90) -> Path:
    """A picture of a few rectangles that no other seed gives."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (48, 32), tuple(rng.integers(0, 256, 3).tolist()))
    pen = ImageDraw.Draw(image)
    for _ in range(6):
        left, top = rng.integers(0, 40), rng.integers(0, 26)
        box = (left, top, left + rng.integers(4, 30), top + rng.integers(4, 20))
        pen.rectangle([int(x) for x in box], tuple(rng.integers(0, 256, 3).tolist()))
    path.parent.mkdir(parents=True, exist_ok=True)
    image.resize(size).save(path, quality=quality)
    return path
