"""The engine of a collection on this machine: SQLite is the truth, a memory-mapped snapshot answers.

Every write is one transaction that also writes a row of `commits` and, for each photo whose code came, changed
or went, a row of `changes`. A reader that has the codes of commit 7 and finds commit 9 asks `changes` what
happened since; nobody ever has to be told anything.
"""

import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.engines import Caption, Choice, Engine, Found, Photo, State, check_codes, engines, merged, now
from hyphash.engines.local import snapshot
from hyphash.engines.local.database import Database, damaged
from hyphash.engines.local.labels import LabelBook, chunks, marks
from hyphash.engines.local.rows import (
    CAPTIONS,
    META,
    SCHEMA,
    UPSERT,
    Meta,
    any_pending,
    check_format,
    known_photos,
    read_meta,
    read_stamp,
    select,
    to_captions,
    to_meta,
    to_row,
    with_ids,
    write_meta,
)
from hyphash.engines.local.snapshot import Ids, Origin, View
from hyphash.errors import CodesError, CollectionError, ConfigError, OtherHasherError, StorageError

FILE = "collection.sqlite"
SMALL = 200_000  # a collection whose snapshot costs next to nothing to write


@engines("local")
class Local(Engine):
    """SQLite and a snapshot in the folder of the collection."""

    shared = False

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder = folder
        self.database = database
        self._labels = LabelBook()
        self._view: View | None = None
        self._lock = Lock()  # one thread at a time brings the view up to date

    @classmethod
    def create(cls, folder: Path, url: str, *, fingerprint: str, bits: int) -> "Local":
        _require_local(url)
        database = Database.create(folder / FILE, SCHEMA)
        engine = cls(folder, database)
        with database.writing("creating the collection") as tx:
            write_meta(tx, Meta(fingerprint, bits, generation=1, commit=0, pruned=0))
            tx.execute("INSERT INTO commits VALUES (0, ?, ?)", (secrets.token_hex(8), now()))
        return engine

    @classmethod
    def open(cls, folder: Path, url: str, *, wait: float = 30.0) -> "Local":
        _require_local(url)
        path = folder / FILE
        if not path.is_file():
            raise CollectionError(
                f"{folder}: {FILE} is missing; restore the folder from a backup, or index the photos into a new one"
            )
        database = Database(path, wait=wait)
        try:
            with database.reading() as tx:
                check_format(tx, path)
        except BaseException:
            database.close()
            raise
        return cls(folder, database)

    def close(self) -> None:
        self.database.close()
        self._view = None

    def state(self) -> State:
        meta = to_meta(self.database.row(META))
        return State(meta.fingerprint, meta.bits, meta.commit)

    # ── changes ──────────────────────────────────────────────────────────────────────────────────────────

    def upsert(self, photos: Sequence[Photo], *, fingerprint: str) -> list[int]:
        by_path = {photo.path: photo for photo in photos}
        with self.database.writing("adding photos") as tx:
            meta = self._commit(tx)
            self._require(meta, fingerprint)
            check_codes(photos, meta.bits)
            known = known_photos(tx, meta, by_path)
            stored = with_ids(tx, list(by_path.values()), known)
            time = now()
            tx.executemany(UPSERT, [to_row(photo, time) for photo in stored])
            fresh = [photo for photo in stored if photo.id not in known or known[photo.id].code != photo.code]
            new_codes = [(photo.id, meta.generation, photo.code) for photo in fresh]
            tx.executemany("INSERT OR REPLACE INTO codes VALUES (?, ?, ?)", new_codes)
            # a code that was prepared for a coming hasher shows the old content
            replaced = [(photo.id, meta.generation) for photo in fresh if photo.id in known]
            tx.executemany("DELETE FROM codes WHERE photo = ? AND generation > ?", replaced)
            self._note(tx, meta, (photo.id for photo in fresh))
            pairs = [(known.get(photo.id), photo) for photo in stored]
            self._labels.write(tx, meta.commit, [(before, merged(before, after)) for before, after in pairs])
        ids = {photo.path: photo.id for photo in stored}
        return [ids[photo.path] for photo in photos]

    def relabel(self, id: int, edit: Callable[[Photo], Photo]) -> Photo | None:
        with self.database.writing("changing labels") as tx:
            meta = self._commit(tx)
            before = next(iter(select(tx, meta, "p.id IN ({})", [id])), None)
            if before is None:
                return None
            edited = edit(before)
            after = replace(before, labels=edited.labels, refused=edited.refused, changed=now())
            self._labels.write(tx, meta.commit, [(before, after)])
            tx.execute("UPDATE photos SET changed = ? WHERE id = ?", (after.changed, id))
        return replace(after, labels=tuple(sorted(set(after.labels))), refused=tuple(sorted(set(after.refused))))

    def remove(self, ids: Iterable[int]) -> int:
        wanted = sorted(set(ids))
        with self.database.writing("removing photos") as tx:
            meta = self._commit(tx)
            gone: list[int] = []
            for some in chunks(wanted):
                gone += [id for (id,) in tx.execute(f"SELECT id FROM photos WHERE id IN ({marks(some)})", some)]
            self._labels.forget(tx, meta.commit, gone)
            for some in chunks(gone):
                tx.execute(f"DELETE FROM photos WHERE id IN ({marks(some)})", some)
            self._note(tx, meta, gone)
        return len(gone)

    def _commit(self, tx: sqlite3.Connection) -> Meta:
        """Start a change: the next commit number and its stamp."""
        meta = read_meta(tx)
        meta = replace(meta, commit=meta.commit + 1)
        tx.execute("INSERT INTO commits VALUES (?, ?, ?)", (meta.commit, secrets.token_hex(8), now()))
        write_meta(tx, meta)
        return meta

    def _note(self, tx: sqlite3.Connection, meta: Meta, ids: Iterable[int]) -> None:
        """Tell later readers whose codes have come, changed or gone."""
        tx.executemany("INSERT OR IGNORE INTO changes VALUES (?, ?)", [(meta.commit, id) for id in ids])

    def _require(self, meta: Meta, fingerprint: str) -> None:
        if fingerprint != meta.fingerprint:
            raise OtherHasherError(
                f"{self.folder}: its codes were made by the hasher {meta.fingerprint}, not by {fingerprint}; "
                "use that one, or move the collection to the other with `hyphash reindex`"
            )

    # ── questions ────────────────────────────────────────────────────────────────────────────────────────

    def get(self, ids: Sequence[int]) -> list[Photo]:
        with self.database.reading() as tx:
            found = {photo.id: photo for photo in select(tx, read_meta(tx), "p.id IN ({})", list(set(ids)))}
        return [found[id] for id in ids if id in found]

    def captions(self, ids: Sequence[int]) -> dict[int, Caption]:
        found: dict[int, Caption] = {}
        for some in chunks(ids):
            found |= to_captions(self.database.row(CAPTIONS.format(marks(some)), some))
        return found

    def find(self, *, paths: Sequence[str] = (), contents: Sequence[str] = ()) -> list[Photo]:
        with self.database.reading() as tx:
            meta = read_meta(tx)
            found = select(tx, meta, "p.path IN ({})", paths)
            found += select(tx, meta, "p.content IN ({})", [bytes.fromhex(content) for content in contents])
        return [photo for _, photo in sorted({photo.id: photo for photo in found}.items())]

    def page(self, offset: int, limit: int, *, carrying: Sequence[str] = (), untagged: bool = False) -> list[Photo]:
        with self._consistent() as (tx, meta, view):
            ids = self._allowed(tx, view, carrying, untagged)[offset : offset + limit]
            return select(tx, meta, "p.id IN ({})", ids.tolist())

    def page_after(self, id: int, limit: int) -> list[Photo]:
        with self.database.reading() as tx:
            ids = tx.execute("SELECT id FROM photos WHERE id > ? ORDER BY id LIMIT ?", (id, limit))
            return select(tx, read_meta(tx), "p.id IN ({})", [id for (id,) in ids])

    def count(self, *, carrying: Sequence[str] = (), untagged: bool = False) -> int:
        with self._consistent() as (tx, _, view):
            return len(self._allowed(tx, view, carrying, untagged))

    def _allowed(self, tx: sqlite3.Connection, view: View, carrying: Sequence[str], untagged: bool) -> Ids:
        if untagged:
            tagged = view.ids if carrying else self._labels.tagged(tx)
            return np.setdiff1d(view.ids, tagged, assume_unique=True)
        only = self._labels.carrying(tx, carrying)
        return view.ids if only is None else only

    def labels(self) -> dict[str, int]:
        with self.database.reading() as tx:
            return self._labels.counts(tx)

    def search(
        self,
        query: Codes,
        k: int,
        *,
        fingerprint: str,
        offset: int = 0,
        choice: Choice = Choice(),  # noqa: B008 (frozen)
        tables: NDArray[np.float32] | None = None,
    ) -> Found:
        meta, view, only = self._searched(choice)
        self._require(meta, fingerprint)
        query.require_length(meta.bits)
        return view.search(query, k, offset, choice=choice, only=only, tables=tables)

    def _searched(self, choice: Choice) -> tuple[Meta, View, Ids | None]:
        """The codes to search, and the ids that the labels of the choice allow, all at one commit."""
        view = self._view
        if view is not None and not choice.carrying and not choice.tagged:
            meta = to_meta(self.database.row(META))
            if view.origin.commit == meta.commit:  # all in memory is true: no transaction is needed
                return meta, view, None
        with self._consistent() as (tx, meta, view):
            only = self._labels.carrying(tx, choice.carrying)
            if choice.tagged and only is None:
                only = self._labels.tagged(tx)
            return meta, view, only

    def scan(self) -> Iterator[tuple[Ids, Codes]]:
        with self._consistent() as (_, _, view):
            part = view.merged()
        for start in range(0, len(part.ids), SMALL):
            yield part.ids[start : start + SMALL], part.codes[start : start + SMALL]

    def looks(self) -> Iterator[tuple[Ids, NDArray[np.uint64], NDArray[np.uint64]]]:
        with self.database.reading() as tx:
            cursor = tx.execute("SELECT id, look, substr(content, 1, 8) FROM photos ORDER BY id")
            while rows := cursor.fetchmany(SMALL):
                ids = np.fromiter((row[0] for row in rows), np.int64, len(rows))
                looks = b"".join(row[1] if len(row[1]) == 8 else bytes(8) for row in rows)
                contents = b"".join(row[2] for row in rows)
                yield ids, np.frombuffer(looks, np.uint64), np.frombuffer(contents, np.uint64)

    # ── the view ─────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _consistent(self) -> Iterator[tuple[sqlite3.Connection, Meta, View]]:
        """A transaction, what it sees in `meta`, and the codes at that very commit."""
        while True:
            with self.database.reading() as tx:
                meta = read_meta(tx)
                with self._lock:
                    view = self._view
                    if view is None or view.origin.commit <= meta.commit:
                        self._view = view = self.refreshed(tx, meta, view)
                if view.origin.commit == meta.commit:
                    yield tx, meta, view
                    return
            # another thread has seen a later commit than this transaction: look again

    def refreshed(self, tx: sqlite3.Connection, meta: Meta, view: View | None) -> View:
        def usable(view: View) -> bool:
            origin = view.origin
            return origin.generation == meta.generation and meta.pruned <= origin.commit <= meta.commit

        if view is None or not usable(view):
            view = snapshot.load(self.snapshot_file(meta.generation))
            if view is None or not usable(view) or read_stamp(tx, view.origin.commit) != view.origin.stamp:
                view = self.built(tx, meta)
                with suppress(StorageError, OSError):  # derived: a full or foreign disk is no reason to stop
                    view = snapshot.save(self.snapshot_file(meta.generation), view)
        if view.origin.commit == meta.commit:
            return view
        since = view.origin.commit
        touched = tx.execute("SELECT DISTINCT photo FROM changes WHERE number > ? ORDER BY photo", (since,))
        rows = tx.execute(
            "SELECT photo, code FROM codes WHERE generation = ? AND photo IN "
            "(SELECT photo FROM changes WHERE number > ?) ORDER BY photo",
            (meta.generation, since),
        ).fetchall()
        origin = Origin(meta.generation, meta.commit, read_stamp(tx, meta.commit))
        view = view.changed(origin, _ids(touched), snapshot.part_of(rows, view.bits))
        if len(view.extra.ids) > SMALL / 10 + len(view.base.ids) / 20:  # a long-lived reader: map it anew
            with suppress(StorageError, OSError):
                view = snapshot.save(self.snapshot_file(meta.generation), view)
        return view

    def built(self, tx: sqlite3.Connection, meta: Meta) -> View:
        """All codes of a generation, read from the truth."""
        cursor = tx.execute("SELECT photo, code FROM codes WHERE generation = ? ORDER BY photo", (meta.generation,))
        parts = [snapshot.empty_part(meta.bits)]
        try:
            while rows := cursor.fetchmany(SMALL):
                parts.append(snapshot.part_of(rows, meta.bits))
        except CodesError as error:
            raise damaged(self.database.path, str(error)) from error
        ids = np.concatenate([part.ids for part in parts])
        whole = snapshot.Part(ids, Codes.concatenate(part.codes for part in parts))
        origin = Origin(meta.generation, meta.commit, read_stamp(tx, meta.commit))
        return View(origin, whole, snapshot.empty_part(meta.bits), saved=-1)

    def snapshot_file(self, generation: int) -> Path:
        return self.folder / f"codes-{generation}.safetensors"

    def settle(self, *, always: bool = False) -> None:
        """Write a new snapshot if much has changed or its index is lost, and forget the changes that it contains."""
        with self._consistent() as (_, _, view):
            touched = len(view.extra.ids) + len(view.base.ids) - len(view.base)
            little = touched < len(view) / 100 and len(view) > SMALL
            if not view.lacks_index and (view.saved == view.origin.commit or (little and not always)):
                return
        path = self.snapshot_file(view.origin.generation)
        with suppress(StorageError, OSError):
            with self._lock:
                view = snapshot.save(path, view)
                if self._view is not None and self._view.origin == view.origin:
                    self._view = view
            with self.database.writing("tidying up") as tx:
                meta = read_meta(tx)
                if meta.generation == view.origin.generation and meta.pruned < view.saved:
                    tx.execute("DELETE FROM changes WHERE number <= ?", (view.saved,))
                    tx.execute("DELETE FROM commits WHERE number < ?", (view.saved,))
                    write_meta(tx, replace(meta, pruned=view.saved))

    # ── another hasher ───────────────────────────────────────────────────────────────────────────────────

    def prepare(self, fingerprint: str, bits: int) -> None:
        with self.database.writing("preparing for another hasher") as tx:
            meta = read_meta(tx)
            if meta.coming != fingerprint:
                tx.execute("DELETE FROM codes WHERE generation > ?", (meta.generation,))
                write_meta(tx, replace(meta, coming=fingerprint, coming_bits=bits))

    def pending(self, limit: int, *, after: int = 0) -> list[Photo]:
        with self.database.reading() as tx:
            meta = read_meta(tx)
            ids = tx.execute(
                "SELECT id FROM photos p WHERE id > ? AND NOT EXISTS "
                "(SELECT 1 FROM codes WHERE photo = p.id AND generation = ?) ORDER BY id LIMIT ?",
                (after, meta.generation + 1, limit),
            )
            return select(tx, meta, "p.id IN ({})", [id for (id,) in ids])

    def store(self, photos: Sequence[Photo], *, fingerprint: str) -> None:
        with self.database.writing("storing new codes") as tx:
            meta = read_meta(tx)
            self._require_coming(meta, fingerprint)
            check_codes(photos, meta.coming_bits)
            tx.executemany(
                "INSERT OR REPLACE INTO codes SELECT id, ?, ? FROM photos WHERE id = ? AND content = ?",
                [(meta.generation + 1, photo.code, photo.id, bytes.fromhex(photo.content)) for photo in photos],
            )

    def switch(self, fingerprint: str) -> bool:
        """All pending codes are there: write their snapshot first, so that readers change over in no time."""
        with self.database.reading() as tx:
            before = read_meta(tx)
            self._require_coming(before, fingerprint)
            if any_pending(tx, before):
                return False
            after = replace(before, generation=before.generation + 1, bits=before.coming_bits)
            with suppress(StorageError, OSError):
                snapshot.save(self.snapshot_file(after.generation), self.built(tx, after))
        with self.database.writing("switching to another hasher") as tx:
            meta = read_meta(tx)
            self._require_coming(meta, fingerprint)
            if any_pending(tx, meta, since=before.commit):
                return False
            meta = replace(self._commit(tx), fingerprint=meta.coming, bits=meta.coming_bits, coming="", coming_bits=0)
            write_meta(tx, replace(meta, generation=meta.generation + 1))
        return True

    def _require_coming(self, meta: Meta, fingerprint: str) -> None:
        if fingerprint != meta.coming:
            raise OtherHasherError(
                f"{self.folder}: codes are prepared for {meta.coming or 'no hasher'}, not for {fingerprint}; "
                "let one move to another hasher end before the next"
            )

    # ── care ─────────────────────────────────────────────────────────────────────────────────────────────

    def verify(self) -> list[str]:
        from hyphash.engines.local.care import findings

        return findings(self)

    def compact(self) -> None:
        from hyphash.engines.local.care import compact

        compact(self)


def _ids(rows: Iterable[tuple[int]]) -> Ids:
    return np.fromiter((id for (id,) in rows), np.int64)


def _require_local(url: str) -> None:
    if url != "local":
        raise ConfigError(f"engine {url!r}: the local engine has no address; write engine = 'local'")
