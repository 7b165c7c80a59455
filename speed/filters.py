"""Searches with filters by facts of photos, beside numpy over the same columns and SQLite with an index on each.

    python speed/filters.py [--quick]

One thread. The snapshot and its index are mapped as a collection has them. "first" marks the photos that a filter
allows and finds the 100 nearest of them; "again" is any further search with the same filter. numpy does both with whole
columns; SQLite only lists the ids that the filter allows. What is found is compared with what numpy finds.
"""

import argparse
import os
import sqlite3
import tempfile
from pathlib import Path

os.environ["HYPHASH_THREADS"] = "1"

import numpy as np
from numpy.typing import NDArray

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.searchers import Query
from hyphash.searchers.filters import EARTH, MICRO, NUMBERS, FactColumns, Filter, Span
from hyphash.searchers.local import snapshot
from hyphash.searchers.local.view import Block, Told, View
from hyphash.stores import Position
from measure import fastest, trained_codes

HOME = 48.2082, 16.3738  # most people take most photos there
FILTERS = {
    "a day": {"taken": "2019-05-03"}, "a month": {"taken": "2019-05"}, "half of the years": {"taken": "2012.."},
    "a camera": {"camera": "camera 7"}, "a folder": {"folder": "folder 77"}, "large files": {"size": "6MB.."},
    "5 km around home": {"near": f"{HOME[0]},{HOME[1]},5km"}, "a city elsewhere": {"near": "-10.5,100.25,50km"},
    "a year, a camera, at home": {"taken": "2019", "camera": "camera 7", "near": f"{HOME[0]},{HOME[1]},20km"},
}  # fmt: skip
BATCH = 100_000
IN_SQL = ("taken", "size", "latitude", "longitude", "kind")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few photos")
    count = 600_000 if parser.parse_args().quick else 10_000_000
    rng = np.random.default_rng(0)
    facts, codes = drawn(rng, count), trained_codes(rng, count, 48)
    query, words = codes[7], as_words(codes)
    database = in_sqlite(facts)
    nothing = Block(np.arange(0), Codes.empty(48))
    with tempfile.TemporaryDirectory() as folder:
        held = Block(np.arange(1, count + 1), codes, facts=facts)
        view = snapshot.save(Path(folder) / "codes-1.safetensors", View(Position(1, 1, "stamp"), held, nothing))
        print(f"{hamming.backend()}; {count:,} photos; load {os.getloadavg()[0]:.1f}")
        print(f"{'100 nearest of the photos of':<36} {'first':>10} {'again':>10} {'numpy':>10} {'SQLite':>10}   (ms)")
        whole = fastest(lambda: view.search(Query(query, 100, fingerprint=""), Told()), 5)
        show("all, 100 %", whole, whole, fastest(lambda: nearest(words, query), 2))
        for what, texts in FILTERS.items():
            compare(view, query, words, database, what, Filter.parse(**texts))


def show(what: str, first: float, *others: float) -> None:
    times = " ".join(f"{seconds * 1e3:10.2f}" for seconds in (first, *others))
    print(f"{what:<36} {times}   at most 50: {'met' if first <= 0.05 else 'MISSED'}", flush=True)


def compare(
    view: View, query: Codes, words: NDArray[np.uint64], database: sqlite3.Connection, what: str, only: Filter
) -> None:
    asked, columns = Query(query, 100, only=only, fingerprint=""), view.base.described
    found = view.search(asked, Told())

    def first() -> object:
        columns._masks.clear()
        return view.search(asked, Told())

    rows = np.flatnonzero(in_numpy(columns, only))
    if found.ids.tolist() != (rows[nearest(words[rows], query)] + 1).tolist():
        raise SystemExit(f"{what}: not what numpy finds")
    select, values = in_sql(only, columns)
    show(
        f"{what}, {found.total / len(view):.2%}", fastest(first, 5), fastest(lambda: view.search(asked, Told()), 5),
        fastest(lambda: nearest(words[in_numpy(columns, only)], query), 2),
        fastest(lambda: database.execute(select, values).fetchall(), 2),
    )  # fmt: skip


def drawn(rng: np.random.Generator, count: int) -> FactColumns:
    """Twenty-five years of photos, six in ten of them within some 20 km of home, a fifth that do not say where."""
    kinds = [(f"/photos/{i % 25}/folder {i}", f"Camera {i % 40}", ("jpeg", "heic")[i % 2]) for i in range(2000)]
    taken = rng.integers(365 * 30 * 1440, 365 * 55 * 1440, count)
    at_home, silent = rng.random(count) < 0.6, rng.random(count) < 0.2
    places = [
        np.where(at_home, rng.normal(side, 0.1, count), rng.uniform(-limit, limit, count)) * MICRO
        for side, limit in zip(HOME, (60, 180), strict=True)
    ]
    columns = np.stack([
        taken, taken + 5000, rng.lognormal(15, 0.6, count).clip(0, 2e9), np.full(count, 12_000_000),
        *(np.where(silent, -(2**31), place) for place in places), rng.integers(0, len(kinds), count),
    ])  # fmt: skip
    return FactColumns(columns.astype(np.int32), kinds)  # type: ignore[arg-type]


def in_numpy(facts: FactColumns, only: Filter) -> NDArray[np.bool_]:
    """Which photos a filter allows, whole columns at a time."""
    columns = dict(zip(NUMBERS, facts.columns, strict=True))
    mask = np.ones(facts.columns.shape[1], np.bool_)
    for name, span in vars(only).items():
        if isinstance(span, Span):
            mask &= (columns[name] >= span.first) & (columns[name] <= span.last)
    if only.camera or only.folder:
        mask &= np.isin(columns["kind"], kinds_of(facts, only))
    if only.near:
        north, east = (np.radians(columns[name] / MICRO) for name in ("latitude", "longitude"))
        here, there = np.radians(only.near[:2])
        half = np.sin((north - here) / 2) ** 2 + np.cos(north) * np.cos(here) * np.sin((east - there) / 2) ** 2
        mask &= (columns["latitude"] > -(2**31)) & (half <= np.sin(only.near.km / EARTH / 2) ** 2)
    return mask


def kinds_of(facts: FactColumns, only: Filter) -> list[int]:
    """By the last folder, which is all that is asked for here, and the camera."""
    names = [(folder.rpartition("/")[2], camera.lower()) for folder, camera, _ in facts.kinds]
    return [i for i, (folder, camera) in enumerate(names) if only.folder in ("", folder) and only.camera in camera]


def as_words(codes: Codes) -> NDArray[np.uint64]:
    return np.pad(codes.packed, ((0, 0), (0, 8 - codes.packed.shape[1]))).view(np.uint64).ravel()


def nearest(words: NDArray[np.uint64], query: Codes) -> NDArray[np.int64]:
    """The rows of the 100 nearest by (distance, row)."""
    distances = np.bitwise_count(words ^ as_words(query)[0])
    if len(words) > 100:
        rows = np.flatnonzero(distances <= np.partition(distances, 99)[99])
        return rows[np.argsort(distances[rows], kind="stable")[:100]]
    return np.argsort(distances, kind="stable")


def in_sqlite(facts: FactColumns) -> sqlite3.Connection:
    database = sqlite3.connect(":memory:")
    database.execute(f"CREATE TABLE photos (id INTEGER PRIMARY KEY, {', '.join(IN_SQL)})")
    columns, marks = facts.columns[[NUMBERS.index(name) for name in IN_SQL]], ", ".join("?" * (len(IN_SQL) + 1))
    for start in range(0, columns.shape[1], BATCH):
        some = enumerate(columns[:, start : start + BATCH].T.tolist(), start + 1)
        database.executemany(f"INSERT INTO photos VALUES ({marks})", ((id, *values) for id, values in some))
    for name in ("taken", "size", "latitude", "kind"):
        database.execute(f"CREATE INDEX by_{name} ON photos ({name})")
    database.execute("ANALYZE")
    return database


def in_sql(only: Filter, facts: FactColumns) -> tuple[str, list[float]]:
    """The same filter; of a circle the box around it, since SQLite has no sines everywhere."""
    where, values = ["true"], []
    for name, span in vars(only).items():
        if isinstance(span, Span):
            where.append(f"{name} BETWEEN ? AND ?")
            values += [*span]
    if only.camera or only.folder:
        where.append(f"kind IN ({', '.join(map(str, kinds_of(facts, only)))})")
    if only.near:
        tall = np.degrees(only.near.km / EARTH) * MICRO
        wide = tall / np.cos(np.radians(only.near.latitude))
        for name, side, reach in (("latitude", only.near.latitude, tall), ("longitude", only.near.longitude, wide)):
            where.append(f"{name} BETWEEN ? AND ?")
            values += [side * MICRO - reach, side * MICRO + reach]
    return f"SELECT id FROM photos WHERE {' AND '.join(where)}", values


if __name__ == "__main__":
    main()
