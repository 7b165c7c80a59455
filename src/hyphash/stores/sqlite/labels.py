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
    states = [(change.after.id, _states(change.before), _states(change.after)) for change in changes]
    states = [(id, old, new) for id, old, new in states if old != new]
    numbers = _numbers(tx, {label for _, _, new in states for label in new})
    tx.executemany("DELETE FROM photo_labels WHERE photo = ?", [(id,) for id, old, _ in states if old])
    tx.executemany(
        "INSERT INTO photo_labels VALUES (?, ?, ?)",
        [(id, numbers[label], state) for id, _, new in states for label, state in new.items()],
    )
    more: Counter[str] = Counter()  # photos that carry a label from now on, less those that did
    carried = [(_carried(old), _carried(new)) for _, old, new in states]
    more.update(label for old, new in carried for label in new - old)
    more.subtract(label for old, new in carried for label in old - new)
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
    if photo is None:
        return {}
    states = dict.fromkeys(photo.refused, REFUSED) | dict.fromkeys(photo.labels, CARRIED)
    for label in photo.given or ():
        states[label] = states.get(label, 0) | GIVEN
    return states


def _carried(states: dict[str, int]) -> set[str]:
    return {label for label, state in states.items() if state & CARRIED}
