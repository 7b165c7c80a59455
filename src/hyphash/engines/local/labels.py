"""The labels of photos in SQLite: who carries which, what the source said, what people refused."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hyphash.engines import Photo

CARRIED, GIVEN, REFUSED = 1, 2, 4  # bits of photo_labels.state
MANY = 500  # values in one statement; old builds of SQLite take 999
ANY = ""  # no label is called that
CACHED = 25_000_000  # ids kept in memory: 200 MB at most

T = TypeVar("T")


@dataclass(frozen=True)
class Words:
    """The labels of one photo, each kind sorted."""

    carried: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


class LabelBook:
    """Reads and writes labels; keeps the ids of photos with a label for as long as they are true."""

    def __init__(self) -> None:
        self._cache: dict[str, tuple[int, NDArray[np.int64]]] = {}  # label → (changed at commit, photos)
        self._lock = Lock()

    def write(self, tx: sqlite3.Connection, commit: int, pairs: Sequence[tuple[Photo | None, Photo]]) -> None:
        """Give each photo of (before, after) the labels it has after."""
        pairs = [(before, after) for before, after in pairs if _states(before) != _states(after)]
        numbers = self._numbers(tx, {label for pair in pairs for photo in pair for label in _states(photo)})
        tx.executemany("DELETE FROM photo_labels WHERE photo = ?", [(pair[1].id,) for pair in pairs if pair[0]])
        tx.executemany(
            "INSERT INTO photo_labels VALUES (?, ?, ?)",
            [(after.id, numbers[word], state) for _, after in pairs for word, state in _states(after).items()],
        )
        more: Counter[str] = Counter()
        for before, after in pairs:
            old, new = set(before.labels if before else ()), set(after.labels)
            more.update(dict.fromkeys(new - old, 1))
            more.update(dict.fromkeys(old - new, -1))
        update = "UPDATE labels SET changed = ?, photos = photos + ? WHERE name = ?"
        tx.executemany(update, [(commit, count, label) for label, count in more.items()])

    def forget(self, tx: sqlite3.Connection, commit: int, ids: Sequence[int]) -> None:
        """Photos are about to be removed, and their labels with them."""
        lost: Counter[int] = Counter()
        for some in chunks(ids):
            query = f"SELECT label FROM photo_labels WHERE state & {CARRIED} AND photo IN ({marks(some)})"
            lost.update(label for (label,) in tx.execute(query, some))
        update = "UPDATE labels SET changed = ?, photos = photos - ? WHERE id = ?"
        tx.executemany(update, [(commit, count, label) for label, count in lost.items()])

    def carrying(self, tx: sqlite3.Connection, labels: Sequence[str]) -> NDArray[np.int64] | None:
        """The ids of the photos that carry all these labels, ascending; None if none is asked for."""
        if not labels:
            return None
        lists = sorted((self._photos(tx, label) for label in set(labels)), key=len)
        ids = lists[0]
        for other in lists[1:]:
            ids = np.intersect1d(ids, other, assume_unique=True)
        return ids

    def tagged(self, tx: sqlite3.Connection) -> NDArray[np.int64]:
        """The ids of the photos that carry any label, ascending."""
        changed = tx.execute("SELECT coalesce(max(changed), 0) FROM labels").fetchone()[0]
        query = f"SELECT DISTINCT photo FROM photo_labels WHERE state & {CARRIED} ORDER BY photo"
        return self._kept(ANY, changed, lambda: tx.execute(query))

    def counts(self, tx: sqlite3.Connection) -> dict[str, int]:
        """Labels and how many photos carry each, most frequent first."""
        return dict(tx.execute("SELECT name, photos FROM labels WHERE photos ORDER BY photos DESC, name").fetchall())

    def _photos(self, tx: sqlite3.Connection, label: str) -> NDArray[np.int64]:
        row = tx.execute("SELECT id, changed FROM labels WHERE name = ?", (label,)).fetchone()
        if row is None:
            return np.empty(0, np.int64)
        query = f"SELECT photo FROM photo_labels WHERE label = ? AND state & {CARRIED} ORDER BY photo"
        return self._kept(label, row[1], lambda: tx.execute(query, (row[0],)))

    def _kept(self, label: str, changed: int, read: Callable[[], Iterable[tuple[int]]]) -> NDArray[np.int64]:
        """Ids from memory if they are of this commit, else as they are read."""
        with self._lock:
            commit, ids = self._cache.pop(label, (-1, np.empty(0, np.int64)))
        if commit != changed:
            ids = np.fromiter((id for (id,) in read()), np.int64)
        with self._lock:
            self._cache[label] = changed, ids  # at the end: those at the start were not asked for the longest
            while sum(len(kept) for _, kept in self._cache.values()) > CACHED and len(self._cache) > 1:
                del self._cache[next(iter(self._cache))]
        return ids

    @staticmethod
    def _numbers(tx: sqlite3.Connection, names: set[str]) -> dict[str, int]:
        """The numbers of labels; new ones are entered."""
        ordered = sorted(names)
        tx.executemany(
            "INSERT OR IGNORE INTO labels (name, changed, photos) VALUES (?, 0, 0)", [(name,) for name in ordered]
        )
        numbers: dict[str, int] = {}
        for some in chunks(ordered):
            numbers.update(tx.execute(f"SELECT name, id FROM labels WHERE name IN ({marks(some)})", some))
        return numbers


def read_labels(tx: sqlite3.Connection, ids: Sequence[int]) -> dict[int, Words]:
    """The labels of photos by id; photos without any are left out."""
    states: dict[int, dict[str, int]] = {}
    for some in chunks(ids):
        rows = tx.execute(
            "SELECT photo, name, state FROM photo_labels JOIN labels ON id = label "
            f"WHERE photo IN ({marks(some)}) ORDER BY name",
            some,
        )
        for photo, name, state in rows:
            states.setdefault(photo, {})[name] = state
    return {
        photo: Words(*(_having(words, bit) for bit in (CARRIED, GIVEN, REFUSED))) for photo, words in states.items()
    }


def chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), MANY):
        yield values[start : start + MANY]


def marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def _having(words: dict[str, int], bit: int) -> tuple[str, ...]:
    return tuple(word for word, state in words.items() if state & bit)


def _states(photo: Photo | None) -> dict[str, int]:
    """Each label of a photo with its bits; what is carried is not refused."""
    states: dict[str, int] = {}

    def mark(labels: Iterable[str] | None, bit: int) -> None:
        for label in labels or ():
            states[label] = states.get(label, 0) | bit

    if photo is not None:
        mark(photo.labels, CARRIED)
        mark(photo.given, GIVEN)
        mark(set(photo.refused) - set(photo.labels), REFUSED)
    return states
