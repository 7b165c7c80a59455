"""The labels of photos in SQLite: who carries which, what the source said, what people refused."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from threading import Lock

import numpy as np

from hyphash.stores import Change, Ids, Photo
from hyphash.stores.sqlite.schema import CARRIED, GIVEN, REFUSED

CACHED = 25_000_000  # ids kept in memory: 200 MB at most


class IdCache:
    """Lists of ids, such as those of the photos with a label, for as long as they are true."""

    def __init__(self) -> None:
        self._lists: dict[tuple[str, ...], tuple[int, Ids]] = {}  # which → (changed at commit, ids)
        self._lock = Lock()

    def get(self, key: tuple[str, ...], changed: int, read: Callable[[], Iterable[tuple[int]]]) -> Ids:
        """Ids from memory if they are of this commit, else as they are read."""
        with self._lock:
            commit, ids = self._lists.pop(key, (-1, np.empty(0, np.int64)))
        if commit != changed:
            ids = np.fromiter((id for (id,) in read()), np.int64)
        with self._lock:
            self._lists[key] = changed, ids  # at the end: those at the start were not asked for the longest
            while sum(len(kept) for _, kept in self._lists.values()) > CACHED and len(self._lists) > 1:
                del self._lists[next(iter(self._lists))]
        return ids


def write_labels(tx: sqlite3.Connection, commit: int, changes: Sequence[Change]) -> None:
    """Give each photo the labels it has after."""
    changes = [change for change in changes if _states(change.before) != _states(change.after)]
    photos = [photo for change in changes for photo in (change.before, change.after)]
    numbers = _numbers(tx, {label for photo in photos for label in _states(photo)})
    known = [(change.after.id,) for change in changes if change.before]
    tx.executemany("DELETE FROM photo_labels WHERE photo = ?", known)
    tx.executemany(
        "INSERT INTO photo_labels VALUES (?, ?, ?)",
        [(c.after.id, numbers[word], state) for c in changes for word, state in _states(c.after).items()],
    )
    more: Counter[str] = Counter()
    for change in changes:
        old, new = set(change.before.labels if change.before else ()), set(change.after.labels)
        more.update(dict.fromkeys(new - old, 1))
        more.update(dict.fromkeys(old - new, -1))
    update = "UPDATE labels SET changed = ?, photos = photos + ? WHERE name = ?"
    tx.executemany(update, [(commit, count, label) for label, count in more.items()])


def ids_with(tx: sqlite3.Connection, cache: IdCache, label: str) -> Ids:
    """The photos that carry a label, ascending."""
    row = tx.execute("SELECT id, changed FROM labels WHERE name = ?", (label,)).fetchone()
    if row is None:
        return np.empty(0, np.int64)
    query = f"SELECT photo FROM photo_labels WHERE label = ? AND state & {CARRIED} ORDER BY photo"
    return cache.get(("with", label), row[1], lambda: tx.execute(query, (row[0],)))


def ids_with_any(tx: sqlite3.Connection, cache: IdCache) -> Ids:
    """The photos that carry any label, ascending."""
    changed = tx.execute("SELECT coalesce(max(changed), 0) FROM labels").fetchone()[0]
    query = f"SELECT DISTINCT photo FROM photo_labels WHERE state & {CARRIED} ORDER BY photo"
    return cache.get(("with any",), changed, lambda: tx.execute(query))


def _numbers(tx: sqlite3.Connection, names: set[str]) -> dict[str, int]:
    """The numbers of labels; new ones are entered."""
    ordered = [(name,) for name in sorted(names)]
    tx.executemany("INSERT OR IGNORE INTO labels (name, changed, photos) VALUES (?, 0, 0)", ordered)
    return {name: tx.execute("SELECT id FROM labels WHERE name = ?", (name,)).fetchone()[0] for (name,) in ordered}


def _states(photo: Photo | None) -> dict[str, int]:
    """Each label of a photo with its bits; what is carried is not refused."""
    states: Counter[str] = Counter()
    if photo is not None:
        states.update(dict.fromkeys(photo.labels, CARRIED))
        states.update(dict.fromkeys(photo.given or (), GIVEN))
        states.update(dict.fromkeys(set(photo.refused) - set(photo.labels), REFUSED))
    return states
