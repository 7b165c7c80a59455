"""Codes and photos that the tests of several stores and searchers draw."""

import hashlib

import numpy as np

from hyphash.codes import Codes
from hyphash.stores import Facts, Photo


def trained_like(count: int, *, bits: int, seed: int = 0) -> Codes:
    """Codes as a trained hasher makes them: around the places of label sets, 5 % of the bits astray."""
    centres = np.random.default_rng(99).integers(0, 2, (200, bits), np.uint8)
    rng = np.random.default_rng(seed)
    return Codes.from_bits(centres[rng.integers(0, 200, count)] ^ (rng.random((count, bits)) < 0.05))


def photos_with(codes: Codes, *, start: int = 0) -> list[Photo]:
    """Photos with these codes, numbered from `start`; labelled `even`, `odd` and `three`, and not at all, by turns."""
    labels = [("even",), ("odd", "three"), ()]
    return [
        Photo(
            path=f"/photos/{i}.jpg", code=row.tobytes(), labels=labels[i % 3], given=labels[i % 3],
            facts=Facts(
                content=hashlib.sha256(b"%d" % i).hexdigest(), thumbnail_hash=i.to_bytes(8, "little")
            ),
        )
        for i, row in enumerate(codes.packed, start)
    ]  # fmt: skip
