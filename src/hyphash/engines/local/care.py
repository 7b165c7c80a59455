"""Looking after the local engine: is everything as it should be, and what can be thrown away."""

import sqlite3
from typing import TYPE_CHECKING

import numpy as np

from hyphash.codes import bytes_for
from hyphash.engines.local.labels import CARRIED
from hyphash.engines.local.rows import Meta, read_meta
from hyphash.errors import CodesError, CollectionError

if TYPE_CHECKING:
    from hyphash.engines.local import Local

BLOCK = 100_000  # photos whose old codes are wiped out in one transaction


def findings(engine: "Local") -> list[str]:
    """All that is wrong with the database and the snapshot, in words."""
    path = engine.database.path
    try:
        with engine.database.reading() as tx:
            found = [f"{path}: {row[0]}" for row in tx.execute("PRAGMA integrity_check") if row[0] != "ok"]
            if found:  # what lies in broken pages is not worth reading
                return found
            for table, _, parent, _ in tx.execute("PRAGMA foreign_key_check"):
                found.append(f"{path}: a row of {table} belongs to a row of {parent} that is not there")
            meta = read_meta(tx)
            return found + _bad_codes(engine, tx, meta) + _bad_counts(engine, tx) + _bad_snapshot(engine, tx, meta)
    except CollectionError as error:
        return [str(error)]


def _bad_codes(engine: "Local", tx: sqlite3.Connection, meta: Meta) -> list[str]:
    path = engine.database.path
    lacking = tx.execute(
        "SELECT p.path FROM photos p WHERE NOT EXISTS (SELECT 1 FROM codes WHERE photo = p.id AND generation = ?)",
        (meta.generation,),
    )
    found = [f"{path}: {photo} has no code; index it again" for (photo,) in lacking]
    wrong = tx.execute(
        "SELECT p.path, length(code) FROM codes JOIN photos p ON p.id = photo "
        "WHERE generation = ? AND length(code) != ?",
        (meta.generation, bytes_for(meta.bits)),
    )
    found += [f"{path}: {photo} has a code of {size} bytes; index it again" for photo, size in wrong]
    return found


def _bad_counts(engine: "Local", tx: sqlite3.Connection) -> list[str]:
    wrong = tx.execute(
        "SELECT name, photos FROM labels WHERE photos != "
        f"(SELECT count(*) FROM photo_labels WHERE label = labels.id AND state & {CARRIED})"
    )
    return [f"{engine.database.path}: {count} is the wrong number of photos with {name!r}" for name, count in wrong]


def _bad_snapshot(engine: "Local", tx: sqlite3.Connection, meta: Meta) -> list[str]:
    """Compare what readers see, the snapshot and the changes since, with the truth."""
    try:
        truth = engine.built(tx, meta).base
        view = engine.refreshed(tx, meta, None).merged()
    except (CollectionError, CodesError) as error:
        return [str(error)]
    if np.array_equal(truth.ids, view.ids) and truth.codes == view.codes:
        return []
    return [
        f"{engine.snapshot_file(meta.generation)}: not what the database holds; delete it, it is made again by itself"
    ]


def compact(engine: "Local") -> None:
    """Wipe out codes of former hashers, write a fresh snapshot, and give back unused pages."""
    with engine.database.reading() as tx:
        meta = read_meta(tx)
        last = tx.execute("SELECT coalesce(max(id), 0) FROM photos").fetchone()[0]
    for start in range(0, last + 1, BLOCK):  # in parts: other writers get their turn
        with engine.database.writing("compacting") as tx:
            tx.execute(
                "DELETE FROM codes WHERE photo >= ? AND photo < ? AND generation < ?",
                (start, start + BLOCK, read_meta(tx).generation),
            )
    engine.settle(always=True)
    kept = {engine.snapshot_file(generation).stem for generation in (meta.generation, meta.generation + 1)}
    for path in engine.folder.glob("codes-*"):  # snapshots and their indexes
        if path.stem not in kept:
            path.unlink(missing_ok=True)
    with engine.database.alone("compacting") as connection:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
