"""Engines on PostgreSQL: `postgresql://…` looks at every code, `postgresql-approximate://…` at those HNSW names.

Every change is one transaction that first locks the row of the collection, and leaves a random stamp in `commits`.
If the server goes away before it has answered, the next attempt looks for its stamp: nothing is done twice.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.engines import Choice, Engine, Found, Photo, State, check_codes, engines, merged, now, numbered
from hyphash.engines.address import Address, Value
from hyphash.engines.postgres.tables import Meta, Tables, newest, run
from hyphash.errors import CollectionError, ConfigError, MissingExtraError, OtherHasherError

if TYPE_CHECKING:
    from hyphash.engines.postgres.ranking import Ranking, Rows
    from hyphash.engines.postgres.server import Connection

BYTES_IN_INDEX = 600  # of a photo while the HNSW index is built, with room to spare
OPTIONS: dict[str, Value] = {
    "collection": "hyphash",  # the schema
    "partitions": 0,  # tables that photos and codes are spread over; 0: not spread
    "patience": 60.0,  # seconds that a server may stay away
    "sslmode": "", "sslrootcert": "", "sslcert": "", "sslkey": "", "target_session_attrs": "", "host": "",
}  # fmt: skip
PART = 100_000  # photos that are read at once in a walk through all

Ids = NDArray[np.int64]
T = TypeVar("T")


@engines("postgresql")
class Postgres(Engine):
    """A schema of tables in a database."""

    options: ClassVar[dict[str, Value]] = OPTIONS

    def __init__(self, address: Address, *, wait: float = 30.0) -> None:
        try:
            from hyphash.engines.postgres.server import Server
        except ImportError as error:
            raise MissingExtraError("an engine on PostgreSQL", "postgres") from error
        schema = str(address.options["collection"])
        if not re.fullmatch("[a-z_][a-z0-9_]{0,49}", schema) or schema.startswith("pg_"):
            raise ConfigError(f"collection {schema!r}: a name has a … z, 0 … 9 and _, and does not start with pg_")
        self.server = Server(address, wait=wait)
        self.tables = Tables(schema, address.shown)

    @classmethod
    def create(cls, folder: Path, url: str, *, fingerprint: str, bits: int) -> Self:  # noqa: ARG003 (all is elsewhere)
        """A new, empty engine; or the one that is there, if it is of the same hasher: another machine joins."""
        address = Address.parse(url, options=cls.options)
        engine, partitions = cls(address), int(address.options["partitions"])
        wanted = Meta(newest(), fingerprint, bits, generation=1, commit=0, photos=0, last_id=0, partitions=partitions)

        def attempt(tx: "Connection") -> None:
            run(tx, "SELECT pg_advisory_xact_lock(hashtext(%s))", [engine.tables.schema])
            if not engine.tables.exist(tx):
                engine.tables.create(tx, wanted)
            meta = engine.tables.meta(tx)
            engine._require(meta, fingerprint)
            if "partitions" in address.given and meta.partitions != partitions:
                raise ConfigError(f"{address.shown}: the collection that is there has {meta.partitions} partitions")

        with engine._closed_on_error():
            engine.server.writing(attempt, "creating the collection")
        return engine

    @classmethod
    def open(cls, folder: Path, url: str, *, wait: float = 30.0) -> Self:
        engine = cls(Address.parse(url, options=cls.options), wait=wait)

        def outdated(tx: "Connection") -> bool:
            if not engine.tables.exist(tx):
                raise CollectionError(
                    f"{folder}: there is no collection {engine.tables.schema!r} in {engine.tables.shown}; restore the "
                    "database from a backup, or index the photos into a new folder"
                )
            return engine.tables.format(tx) < newest()

        with engine._closed_on_error():
            if engine.server.reading(outdated, "opening the collection"):
                engine.server.writing(engine.tables.migrate, "bringing the tables up to date")
            engine.state()
        return engine

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.server.close()

    def hurry(self, seconds: float) -> None:
        self.server.patience = min(self.server.patience, seconds)

    def state(self) -> State:
        meta = self._ask(lambda _, meta: meta)
        return State(meta.fingerprint, meta.bits, meta.commit)

    def _ask(self, work: Callable[["Connection", Meta], T], what: str = "reading") -> T:
        """Read at one moment."""
        return self.server.reading(lambda tx: work(tx, self.tables.meta(tx)), what)

    def _change(self, work: Callable[["Connection", Meta], T], what: str) -> T:
        """Change something, exactly once: an attempt whose answer got lost may have left its stamp."""
        stamp = secrets.token_hex(8)
        results: list[T] = []

        def attempt(tx: "Connection") -> T:
            meta = self.tables.meta(tx, lock=True)  # waits for an attempt of ours that may still be at work, too
            if not results or not self.tables.committed(tx, stamp):
                meta = replace(meta, commit=meta.commit + 1)
                self.tables.commit(tx, meta, stamp, what)
                results.append(work(tx, meta))
            return results[-1]

        return self.server.writing(attempt, what)

    def _require(self, meta: Meta, fingerprint: str) -> None:
        if fingerprint != meta.fingerprint:
            raise OtherHasherError(
                f"{self.tables.shown}: its codes were made by the hasher {meta.fingerprint}, not by {fingerprint}; "
                "use that one, or move the collection to the other with `hyphash reindex`"
            )

    # ── changes ──────────────────────────────────────────────────────────────────────────────────────────

    def upsert(self, photos: Sequence[Photo], *, fingerprint: str) -> list[int]:
        by_path = {photo.path: photo for photo in photos}

        def work(tx: "Connection", meta: Meta) -> list[int]:
            self._require(meta, fingerprint)
            check_codes(photos, meta.bits)
            named = [photo.id for photo in photos if photo.id]
            found = self.tables.select(tx, meta, "p.path = ANY(%s)", [list(by_path)])
            found += self.tables.select(tx, meta, "p.id = ANY(%s)", [named]) if named else []
            known = {photo.id: photo for photo in found}
            stored = numbered(by_path.values(), known.values(), meta.last_id)
            after = [merged(known.get(photo.id), photo) for photo in stored]
            self.tables.write(tx, meta, [(photo, _shows_other(known.get(photo.id), photo)) for photo in after], now())
            ids = {photo.path: photo.id for photo in stored}
            new = len(set(ids.values()) - set(known))
            self.tables.update(tx, photos=meta.photos + new, last_id=max([meta.last_id, *ids.values()]))
            return [ids[photo.path] for photo in photos]

        return self._change(work, "adding photos") if photos else []

    def relabel(self, id: int, edit: Callable[[Photo], Photo]) -> Photo | None:
        def work(tx: "Connection", meta: Meta) -> Photo | None:
            for before in self.tables.select(tx, meta, "p.id = %s", [id]):
                edited = edit(before)
                after = replace(before, labels=edited.labels, refused=edited.refused)
                self.tables.write(tx, meta, [(after, False)], now())
            return next(iter(self.tables.select(tx, meta, "p.id = %s", [id])), None)

        return self._change(work, "changing labels")

    def remove(self, ids: Iterable[int]) -> int:
        wanted = sorted(set(ids))

        def work(tx: "Connection", meta: Meta) -> int:
            generations = [meta.generation, meta.generation + 1] if meta.coming else [meta.generation]
            for table in map(self.tables.codes, generations):
                run(tx, f"DELETE FROM {table} WHERE id = ANY(%s)", [wanted])
            gone = run(tx, f"DELETE FROM {self.tables.schema}.photos WHERE id = ANY(%s)", [wanted]).rowcount
            self.tables.update(tx, photos=meta.photos - gone)
            return gone

        return self._change(work, "removing photos")

    # ── questions ────────────────────────────────────────────────────────────────────────────────────────

    def get(self, ids: Sequence[int]) -> list[Photo]:
        photos = self._ask(lambda tx, meta: self.tables.select(tx, meta, "p.id = ANY(%s)", [list(set(ids))]))
        found = {photo.id: photo for photo in photos}
        return [found[id] for id in ids if id in found]

    def find(self, *, paths: Sequence[str] = (), contents: Sequence[str] = ()) -> list[Photo]:
        def work(tx: "Connection", meta: Meta) -> list[Photo]:
            found = self.tables.select(tx, meta, "p.path = ANY(%s)", [list(paths)]) if paths else []
            digests = [bytes.fromhex(content) for content in contents]
            return found + (self.tables.select(tx, meta, "p.content = ANY(%s)", [digests]) if digests else [])

        return [photo for _, photo in sorted({photo.id: photo for photo in self._ask(work)}.items())]

    def page(self, offset: int, limit: int, *, carrying: Sequence[str] = (), untagged: bool = False) -> list[Photo]:
        where, values = _carrying(carrying, untagged)
        limits = f"OFFSET {int(offset)} LIMIT {int(limit)}"
        return self._ask(lambda tx, meta: self.tables.select(tx, meta, where, values, limits))

    def page_after(self, id: int, limit: int) -> list[Photo]:
        return self._ask(lambda tx, meta: self.tables.select(tx, meta, "p.id > %s", [id], f"LIMIT {int(limit)}"))

    def count(self, *, carrying: Sequence[str] = (), untagged: bool = False) -> int:
        where, values = _carrying(carrying, untagged)

        def work(tx: "Connection", meta: Meta) -> int:
            if not values and not untagged:
                return meta.photos
            return _number(tx, f"SELECT count(*) FROM {self.tables.schema}.photos p WHERE {where}", values)

        return self._ask(work)

    def labels(self) -> dict[str, int]:
        statement = (
            f"SELECT label, count(*) FROM {self.tables.schema}.photos, unnest(labels) AS label "
            'GROUP BY label ORDER BY count(*) DESC, label COLLATE "C"'
        )
        return self._ask(lambda tx, _: dict(run(tx, statement).fetchall()), "counting labels")

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
        from hyphash.engines.postgres.ranking import Ranking

        def work(tx: "Connection", meta: Meta) -> Found:
            self._require(meta, fingerprint)
            query.require_length(meta.bits)
            ranking = Ranking(tx, self.tables, meta, query, choice)
            total = ranking.total()
            rows = self._nearest(ranking, k, offset, total) if tables is None else ranking.best(tables, k, offset)
            ids, distances, *scores = np.array(rows, object).reshape(len(rows), 2 + (tables is not None)).T
            floats = scores[0].astype(np.float32) if scores else None
            return Found(ids.astype(np.int64), distances.astype(np.int32), floats, total)

        return self._ask(work, "searching")

    def _nearest(self, ranking: "Ranking", k: int, offset: int, total: int) -> "Rows":  # noqa: ARG002 (of the other engine)
        return ranking.nearest(k, offset)

    def scan(self) -> Iterator[tuple[Ids, Codes]]:
        from hyphash.engines.postgres.wire import codes_copied

        meta = self._ask(lambda _, meta: meta)
        table, after = self.tables.codes(meta.generation), 0  # these codes to the end, whatever comes into use

        def part(tx: "Connection") -> tuple[Ids, Codes]:
            select = f"SELECT id, code FROM {table} WHERE id > {after} ORDER BY id LIMIT {PART}"
            return codes_copied(tx, select, meta.bits)

        while len((found := self.server.reading(part, "reading codes"))[0]):
            yield found
            after = int(found[0][-1])

    def looks(self) -> Iterator[tuple[Ids, NDArray[np.uint64], NDArray[np.uint64]]]:
        from hyphash.engines.postgres.wire import copied

        after = 0

        def part(tx: "Connection") -> NDArray[np.void]:
            select = (
                "SELECT id, CASE length(look) WHEN 8 THEN look ELSE decode('0000000000000000', 'hex') END, "
                f"substr(content, 1, 8) FROM {self.tables.schema}.photos WHERE id > {after} ORDER BY id LIMIT {PART}"
            )
            return copied(tx, select, {"id": ">i8", "look": "<u8", "content": "<u8"})

        while len(rows := self.server.reading(part, "reading looks")):
            yield rows["id"].astype(np.int64), rows["look"].astype(np.uint64), rows["content"].astype(np.uint64)
            after = int(rows["id"][-1])

    # ── another hasher ───────────────────────────────────────────────────────────────────────────────────

    def prepare(self, fingerprint: str, bits: int) -> None:
        def work(tx: "Connection", meta: Meta) -> None:
            if bits != meta.bits:
                self.tables.require_no_users(tx)
            if meta.coming != fingerprint:
                self.tables.add_codes(tx, meta, meta.generation + 1, bits)
                self.tables.update(tx, coming=fingerprint, coming_bits=bits)

        self._change(work, "preparing for another hasher")

    def pending(self, limit: int, *, after: int = 0) -> list[Photo]:
        limits = f"LIMIT {int(limit)}"
        return self._ask(lambda tx, meta: self.tables.select(tx, meta, self.tables.pending(meta), [after], limits))

    def store(self, photos: Sequence[Photo], *, fingerprint: str) -> None:
        def work(tx: "Connection", meta: Meta) -> None:
            self._require_coming(meta, fingerprint)
            check_codes(photos, meta.coming_bits)
            self.tables.write_coming(tx, meta, photos)

        self._change(work, "storing new codes")

    def switch(self, fingerprint: str) -> bool:
        def work(tx: "Connection", meta: Meta) -> bool:
            self._require_coming(meta, fingerprint)
            coming = meta.generation + 1
            if self.tables.select(tx, meta, self.tables.pending(meta), [0], "LIMIT 1"):
                return False
            self.tables.show_codes(tx, coming, other_bits=meta.coming_bits != meta.bits)
            self.tables.update(
                tx, fingerprint=meta.coming, bits=meta.coming_bits, generation=coming, coming="", coming_bits=0
            )
            return True

        return self._change(work, "switching to another hasher")

    def _require_coming(self, meta: Meta, fingerprint: str) -> None:
        if fingerprint != meta.coming:
            raise OtherHasherError(
                f"{self.tables.shown}: codes are prepared for {meta.coming or 'no hasher'}, not for {fingerprint}; "
                "let one move to another hasher end before the next"
            )

    # ── care ─────────────────────────────────────────────────────────────────────────────────────────────

    def settle(self) -> None:
        """Let the server look at what has come, so that it plans well; stamps of long ago are asked for by nobody."""

        def work(tx: "Connection") -> None:
            meta = self.tables.meta(tx)
            run(tx, f"DELETE FROM {self.tables.schema}.commits WHERE time < now() - interval '1 day'")
            run(tx, f"ANALYZE {self.tables.schema}.photos, {self.tables.codes(meta.generation)}")

        self.server.writing(work, "settling")

    def verify(self) -> list[str]:
        from hyphash.engines.postgres.care import findings

        return self._ask(lambda tx, meta: findings(tx, self.tables, meta), "checking")

    def compact(self) -> None:
        """Drop codes of former hashers, and let the server use again what removed photos took."""

        def work(tx: "Connection", meta: Meta) -> None:
            for generation in range(1, meta.generation):
                self.tables.drop_codes(tx, generation)

        self._change(work, "compacting")
        self.server.alone(f"VACUUM ANALYZE {self.tables.schema}.photos", "compacting")
        generation = self._ask(lambda _, meta: meta.generation)
        self.server.alone(f"VACUUM ANALYZE {self.tables.codes(generation)}", "compacting")

    def bytes_elsewhere(self) -> int:
        statement = (
            "SELECT coalesce(sum(pg_table_size(oid) + pg_indexes_size(oid)), 0)::bigint FROM pg_class "
            "WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r'"
        )
        return self._ask(lambda tx, _: _number(tx, statement, [self.tables.schema]))


@engines("postgresql-approximate")
class PostgresApproximate(Postgres):
    """The same tables with an index that names likely neighbours (HNSW of pgvector), built when photos settle.

    Searches with a radius or with tables, and those that go deeper than `ef_search`, look at every code.
    """

    exact: ClassVar[bool] = False
    options: ClassVar[dict[str, Value]] = OPTIONS | {
        "m": 16, "ef_construction": 64, "ef_search": 200, "build_memory": 1024,
    }  # fmt: skip

    def _nearest(self, ranking: "Ranking", k: int, offset: int, total: int) -> "Rows":
        rows = None
        if ranking.choice.radius is None and self._indexed(ranking.tx, ranking.meta):
            candidates = int(self.server.address.options["ef_search"])
            rows = ranking.nearest_by_index(k, offset, candidates=candidates, total=total)
        return ranking.nearest(k, offset) if rows is None else rows

    def settle(self) -> None:
        super().settle()
        if self._ask(lambda tx, meta: not self._indexed(tx, meta)):
            self._change(self._build, "building the index")

    def _indexed(self, tx: "Connection", meta: Meta) -> bool:
        statement = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"
        return run(tx, statement, [f"{self.tables.codes(meta.generation)}_nearest"]).fetchone() == (True,)

    def _build(self, tx: "Connection", meta: Meta) -> None:
        options = self.server.address.options
        run(tx, "CREATE EXTENSION IF NOT EXISTS vector")
        if not self._indexed(tx, meta):
            self._give_memory(tx, meta)
            run(
                tx,
                f"CREATE INDEX codes_{meta.generation}_nearest ON {self.tables.codes(meta.generation)} "
                f"USING hnsw (code bit_hamming_ops) WITH (m = {int(options['m'])}, "
                f"ef_construction = {int(options['ef_construction'])})",
            )

    def _give_memory(self, tx: "Connection", meta: Meta) -> None:
        """Let the index be built in memory, at most `build_memory` MB of it: on disk it takes many times as long."""
        codes = _number(tx, f"SELECT count(*) FROM {self.tables.codes(meta.generation)}")
        wanted = min(codes * BYTES_IN_INDEX >> 20, int(self.server.address.options["build_memory"]))
        run(
            tx,
            "SELECT set_config('maintenance_work_mem', %s, true) "
            "WHERE pg_size_bytes(current_setting('maintenance_work_mem')) < %s",
            [f"{wanted}MB", wanted << 20],
        )


def _shows_other(before: Photo | None, after: Photo) -> bool:
    """Whether a photo is new or shows something else than before."""
    return before is None or (before.content, before.code) != (after.content, after.code)


def _carrying(labels: Sequence[str], untagged: bool) -> tuple[str, list[list[str]]]:
    """A condition on labels, and its values."""
    where = ["true"] + ["p.labels @> %s::text[]"] * bool(labels) + ["p.labels = '{}'"] * untagged
    return " AND ".join(where), [list(labels)] if labels else []


def _number(tx: "Connection", statement: str, values: Sequence[object] | None = None) -> int:
    row = run(tx, statement, values).fetchone()
    assert row is not None
    return int(row[0])
