"""Training in the small world of tests/setup/colours.py."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from colours import Memory, cache, settings, splits  # noqa: F401 (fixtures)

from hyphash.datasets import Split, Splits
from hyphash.training import fit, prepare


@pytest.fixture
def spoilt(splits: Splits) -> Callable[..., Splits]:
    """spoilt({3: b""}) is the splits with other bytes for photo 3."""

    def spoil(changes: dict[int, bytes]) -> Splits:
        content = list(splits.train.photos.content)  # type: ignore[attr-defined]
        for index, data in changes.items():
            content[index] = data
        photos = Memory(tuple(content))
        train = Split(photos, splits.train.rows, splits.train.labels)
        return Splits("spoilt", splits.classes, train=train, queries=train, database=train)

    return spoil


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run(splits: Splits, cache: Path) -> Callable[..., Any]:
    """run(config, folder, stop_after=) trains one session and returns the hasher, the loss and the epochs."""

    def train_some(config, folder=None, *, stop_after=math.inf, splits=splits, **options):
        config, hasher, loss, _ = prepare(config, splits)
        steps = []
        set_progress = loss.set_progress  # called at the beginning of every step
        loss.set_progress = lambda progress: (steps.append(progress), set_progress(progress))
        stop = lambda: len(steps) >= stop_after  # noqa: E731
        epochs = list(fit(hasher, loss, splits, config, folder=folder, cache=cache, stop=stop, **options))
        return hasher, loss, epochs

    return train_some
