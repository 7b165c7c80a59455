"""A hasher without torch and photos of a few pixels, for tests that start processes and count milliseconds."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from hyphash.encoder import Weights
from hyphash.hasher import Hasher, Outputs, Spec
from hyphash.labels import Calibration
from hyphash.photos import Preprocessing

CLASSES = ("bird", "cat", "dog", "sea")
SIZE = 16


class TinyEncoder:
    """Outputs are a fixed random projection of the pixels."""

    batch = 64

    def __init__(self, width: int, rng: np.random.Generator) -> None:
        self.preprocessing = Preprocessing(size=SIZE, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
        self.projection = rng.normal(size=(SIZE * SIZE * 3, width)).astype(np.float32)
        self.encoded = 0  # photos that the network had to look at

    def outputs(self, pixels: NDArray[np.uint8]) -> Outputs:
        self.encoded += len(pixels)
        values = self.preprocessing.normalise(pixels).reshape(len(pixels), -1)
        # photo by photo: the sum must not depend on what else is in the batch
        return np.stack([(row[:, None] * self.projection).sum(axis=0) for row in values])

    def weights(self) -> Weights:
        return {"network.projection": self.projection}


def TinyHasher(  # noqa: N802
    *, bits: int = 12, seed: int = 0, classes: tuple[str, ...] = CLASSES, layer: bool = False
) -> Hasher:
    """A hasher around a TinyEncoder; with a label `layer` the encoder gives logits too, of a few units."""
    rng = np.random.default_rng(seed)
    encoder = TinyEncoder(bits + len(classes) * layer, rng)
    encoder.projection[:, bits:] /= 20
    half = np.full(len(classes), 0.5, np.float32)
    anchors = rng.normal(size=(len(classes), bits)).astype(np.float32)
    spec = Spec(backbone="tiny", bits=bits, classes=classes, preprocessing=encoder.preprocessing)
    return Hasher(spec, encoder, anchors=anchors, calibration=Calibration(half, half / 5) if layer else None)


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
