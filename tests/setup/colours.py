"""A small world to train in: photos whose labels are the colours in them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hyphash.config import Config
from hyphash.datasets import Split, Splits

COLOURS = ("red", "green", "blue")


@dataclass(frozen=True)
class Memory:
    """Photos that are in memory."""

    content: tuple[bytes, ...]

    def __len__(self) -> int:
        return len(self.content)

    def name(self, index: int) -> str:
        return f"{index}.png"

    def path(self, _: int) -> Path | None:
        return None

    def read(self, index: int) -> bytes:
        return self.content[index]


@pytest.fixture(scope="session")
def splits(photo: Callable[..., bytes]) -> Splits:
    """36 photos with one or two of three colours: 30 to train on, which are the database too, and 6 queries."""
    labels = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1], [1, 0, 1]] * 6, np.uint8)
    photos = Memory(tuple(photo(i, size=36, colour=tuple(row * 130)) for i, row in enumerate(labels)))
    train, queries = (Split(photos, rows, labels[rows]) for rows in (np.arange(30), np.arange(30, 36)))
    return Splits("colours", COLOURS, train=train, queries=queries, database=train)


@pytest.fixture
def settings() -> Callable[..., Config]:
    """settings(...) is a config for a few seconds at most."""

    def make(**changes: Any) -> Config:
        small: dict[str, Any] = {
            "backbone": "timm:test_resnet", "weights": "none", "size": 32, "mode": "frozen", "device": "cpu",
            "bits": 12, "hidden": 16, "epochs": 3, "batch": 7, "evaluate_every": 2,
        }  # fmt: skip
        return Config(**(small | changes))

    return make


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "shared-cache"
