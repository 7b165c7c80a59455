"""A tiny hasher, a folder of tiny photos, and an empty collection."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from modules import loaded

from hyphash.collection import Collection


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    return loaded("collection/tiny.py")


@pytest.fixture
def hasher(tiny: ModuleType) -> Any:
    return tiny.TinyHasher()


@pytest.fixture
def draw(tiny: ModuleType) -> Callable[..., Path]:
    function: Callable[..., Path] = tiny.draw
    return function


@pytest.fixture
def photos(tmp_path: Path, draw: Callable[..., Path]) -> list[Path]:
    """Ten photos."""
    return [draw(tmp_path / "photos" / f"{i}.jpg", i) for i in range(10)]


@pytest.fixture
def collection(tmp_path: Path, hasher: Any) -> Iterator[Collection]:
    with Collection.create(tmp_path / "collection", hasher) as collection:
        yield collection


LABELS = [["cat"], ["cat", "sea"], ["dog"], ["dog", "sea"], [], ["cat"], ["own word"], ["own word"], [], ["sea"]]


@pytest.fixture
def filled(collection: Collection, photos: list[Path]) -> Collection:
    """The collection with these photos, some of them labelled."""
    collection.add(photos, labels=LABELS)
    return collection
