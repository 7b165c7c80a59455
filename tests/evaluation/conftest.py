"""Labels of the real Flickr-25k pack, read without its photos."""

import io
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="session")
def flickr_labels(shared_data: Path) -> np.ndarray:
    parts = sorted((shared_data / "flickr25k").glob("flickr25k_128.npz.part?"))
    with np.load(io.BytesIO(b"".join(part.read_bytes() for part in parts))) as pack:
        return pack["labels"]
