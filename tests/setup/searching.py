"""Codes that the tests of hamming search, and every way of computing that this processor has."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.hamming import _kernel

ENGINES = ["numpy", *_kernel.available()]
LENGTHS = [1, 7, 12, 16, 17, 24, 25, 32, 36, 40, 48, 53, 64, 65, 96, 128, 200, 256]


@contextmanager
def running(engine: str, threads: int = 2) -> Iterator[None]:
    """Let `hyphash.hamming` compute in one particular way."""
    before = _kernel.instructions()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hamming, "kernel", None if engine == "numpy" else _kernel)
        patch.setenv("HYPHASH_THREADS", str(threads))
        if engine != "numpy":
            _kernel.choose(engine)
        try:
            yield
        finally:
            _kernel.choose(before)


def draw_codes(rng: np.random.Generator, count: int, bits: int, distinct: int) -> Codes:
    """Random codes with few distinct values: ties and duplicates everywhere."""
    pool = rng.integers(0, 2, (distinct, bits), dtype=np.uint8)
    return Codes.from_bits(pool[rng.integers(0, distinct, count)])


def clustered(rng: np.random.Generator, count: int, bits: int) -> Codes:
    """Codes around a few centres: duplicates, ties, crowded buckets and far ones."""
    centres = rng.integers(0, 2, (int(rng.integers(1, 30)), bits), dtype=np.uint8)
    noise = rng.random((count, bits)) < rng.choice([0.0, 0.02, 0.4])
    return Codes.from_bits(centres[rng.integers(0, len(centres), count)] ^ noise)


def assert_same(ours: Any, theirs: Any) -> None:
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_array_equal(ours[1], theirs[1])
