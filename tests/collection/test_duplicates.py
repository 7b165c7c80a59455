"""Near-duplicates: groups, plain pictures, and pairs against brute force."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hyphash.collection import Collection
from hyphash.collection.duplicates import _near, keep_all
from hyphash.errors import ConfigError, StorageError


def test_copies_and_variants_form_groups(collection: Collection, photos: list[Path], draw: Callable[..., Path]) -> None:
    for i, size, quality in ((0, (96, 64), 90), (0, (48, 32), 60), (1, (120, 80), 75)):
        draw(photos[0].parent / f"again-{i}-{quality}.jpg", i, size=size, quality=quality)
    collection.add(photos[0].parent)
    names = [sorted(Path(collection.get(id).path).name for id in group) for group in collection.duplicates()]
    assert names == [["0.jpg", "again-0-60.jpg", "again-0-90.jpg"], ["1.jpg", "again-1-75.jpg"]]


def test_a_group_that_is_kept_is_shown_again_only_with_another_photo(
    collection: Collection, photos: list[Path], draw: Callable[..., Path]
) -> None:
    twins = [draw(photos[0].parent / f"again-{i}.jpg", 0, size=(48 * i, 32 * i)) for i in (2, 3, 4)]
    collection.add([*photos, *twins[:2]])
    assert collection.duplicates() == [(1, 11, 12)]
    keep_all(collection, [12, 1, 11])
    assert collection.duplicates() == []
    collection.remove([11])
    assert collection.duplicates() == []
    collection.add(twins[2:])
    assert collection.duplicates() == [(1, 12, 13)]
    for line in ("[1]", '{"photos": 7}', "{}", "{"):
        (collection.folder / "kept.jsonl").write_text(f"{line}\n")
        with pytest.raises(StorageError, match=r"kept\.jsonl: a damaged line"):
            collection.duplicates()


def test_plain_pictures_are_duplicates_only_if_they_are_copies(collection: Collection, tmp_path: Path) -> None:
    for name, colour in (("a", "#101010"), ("b", "#121212"), ("c", "#101010")):
        Image.new("RGB", (40, 40), colour).save(tmp_path / f"{name}.png")
    collection.add([tmp_path / f"{name}.png" for name in "abc"])
    assert collection.duplicates() == [(1, 3)]


def test_near_looks_are_the_same_as_by_brute_force() -> None:
    rng = np.random.default_rng(0)
    base = rng.integers(0, 2**64, 60, dtype=np.uint64)
    flips = np.array(
        [sum(1 << int(b) for b in rng.choice(64, n, replace=False)) for n in rng.integers(0, 9, 60)], np.uint64
    )
    looks = np.concatenate([base, base ^ flips, base[:10]])
    for radius in (0, 1, 4, 7, 15):
        found = {tuple(sorted(pair)) for pair in zip(*(part.tolist() for part in _near(looks, radius)), strict=True)}
        close = np.bitwise_count(looks[:, None] ^ looks[None]) <= radius
        assert found == {(i, j) for i, j in zip(*np.nonzero(close), strict=True) if i < j}


def test_a_radius_has_limits(collection: Collection) -> None:
    assert collection.duplicates() == []
    with pytest.raises(ConfigError, match="between 0"):
        collection.duplicates(radius=40)
