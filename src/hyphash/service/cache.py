"""What takes long to find is found once for each state of the collection."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeVar, cast

T = TypeVar("T")
KEPT = 16  # values at once
STALE = 10  # a value may be old for so many times as long as it took to find


class CommitCache:
    """Values kept until the collection changes, and a little longer."""

    def __init__(self, commit: Callable[[], int]) -> None:
        self._commit = commit
        self._kept: dict[tuple[Any, ...], _Value] = {}
        self._lock = Lock()

    def get(self, key: tuple[Any, ...], find: Callable[[], T]) -> T:
        """What `find` gave for `key`; several who ask at once wait for one of them."""
        with self._lock:
            kept = self._kept.setdefault(key, _Value())
            for oldest in list(self._kept)[:-KEPT]:
                del self._kept[oldest]
        with kept.lock:
            commit = self._commit()
            if kept.commit != commit and time.monotonic() > kept.until:
                started = time.monotonic()
                kept.value = find()
                kept.commit = commit
                kept.until = time.monotonic() + STALE * (time.monotonic() - started)
            return cast(T, kept.value)


@dataclass
class _Value:
    commit: int = -1
    until: float = 0.0  # good even if the collection has changed
    value: Any = None
    lock: Lock = field(default_factory=Lock)
