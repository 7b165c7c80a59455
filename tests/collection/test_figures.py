"""A collection in figures: counts, balance, labels that go together, the map."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hyphash.collection import Collection


def test_stats(collection: Collection, hasher: Any, photos: list[Path]) -> None:
    collection.add(photos, labels=[["cat"], ["cat", "sea"], *[[]] * 8])
    stats = collection.stats()
    bits = hasher.encode(photos).unpacked()
    assert (stats.photos, stats.untagged, stats.labels, stats.bits) == (10, 8, {"cat": 2, "sea": 1}, 12)
    assert stats.balance == pytest.approx(bits.mean(axis=0))
    assert stats.distinct == len(np.unique(bits, axis=0))
    assert stats.bytes > 10_000
    assert collection.cooccurrence(["cat", "sea", "dog"]).tolist() == [[2, 1, 0], [1, 1, 0], [0, 0, 0]]


def test_the_map_keeps_likes_together(collection: Collection, photos: list[Path]) -> None:
    ids, places = collection.map()
    assert ids.shape == (0,)
    collection.add([*photos, *(path.rename(path.with_suffix(".jpeg")) for path in photos[:0])])
    ids, places = collection.map(limit=5)
    assert ids.tolist() == [1, 3, 5, 7, 9]
    assert np.abs(places).max() == pytest.approx(1)
    assert np.array_equal(collection.map(limit=5)[1], places)
