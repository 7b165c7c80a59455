"""Searchers inside the tables of a store in PostgreSQL, where they are never behind.

`postgresql` compares the query with every code and needs no extension. `postgresql-approximate` asks an HNSW index of
pgvector for `ef_search` candidates and ranks these by (distance, id); results beyond these are the nearest of all
others, so that pages fit together. Its index is built when photos have come (`tidy`), and for coming codes before they
are in use; until then, and for searches by radius or by tables, or with filters for which the index names too few,
every code is looked at. Searches by scores of labels or facts of files are made by the local searcher. Both are written
without an address, then they look where the store is, or with that of the store; `docs/engines.md` has the options.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from hyphash.errors import ConfigError
from hyphash.searchers import Found, Query, Searcher, searchers
from hyphash.stores import Generation, Position, Row, Store
from hyphash.stores.address import Address
from hyphash.stores.postgresql import OPTIONS, PostgreSQL
from hyphash.stores.postgresql.session import REVERSED, Code, PostgreSQLSession

DISTANCE = "bit_count(c.code # %(query)s)"  # no index can answer this, so it is always exact
BYTES_IN_INDEX = 600  # of a photo while the HNSW index is built, with room to spare
MOST = 1000  # candidates that HNSW can be asked for


@searchers("postgresql")
class InTables(Searcher):
    """Every search looks at all codes in the tables of the store."""

    inside = "postgresql"
    store: PostgreSQL

    def __init__(self, folder: Path, store: PostgreSQL, address: Address) -> None:
        super().__init__(folder, store)
        self.options = address.options

    @classmethod
    def open(cls, folder: Path, url: str, store: Store) -> Self:
        name = url.partition("://")[0]
        if not isinstance(store, PostgreSQL):
            raise ConfigError(
                f"{name} searches in the tables of a store in PostgreSQL, and {store.shown} is none; "
                "name the store with --store postgresql://…, or another engine"
            )
        address = Address.parse(url, options=OPTIONS) if "://" in url else store.address
        if _place(address) != _place(store.address):
            raise ConfigError(
                f"{address.shown}: its store is elsewhere, in {store.shown}; a searcher in PostgreSQL looks at the "
                "tables of its store: name it without an address, or another engine"
            )
        return cls(folder, store, address)

    def position(self) -> Position | None:
        return self.store.state().position

    def follow(self) -> None:
        """It is where the store is."""

    def close(self) -> None:
        self._here.close()

    def rebuild(self) -> None:
        """All that is derived is what searches by labels have here."""
        self._here.drop()

    def search(self, query: Query) -> Found:
        if query.labels is not None or query.only.by_facts:
            return self._here.search(query)

        def work(session: PostgreSQLSession) -> Found:
            query.require_fit(session.state(), self.store.shown)
            return self._ranked(session, query)

        return self.store.read(work, "searching")

    def _ranked(self, session: PostgreSQLSession, query: Query) -> Found:
        ranking = Ranking(session, query)
        return ranking.nearest() if query.tables is None else ranking.best(query.tables)


@searchers("postgresql-approximate")
class InTablesApproximate(InTables):
    """The same tables with an index that names likely neighbours (HNSW of pgvector)."""

    exact: ClassVar[bool] = False

    def _ranked(self, session: PostgreSQLSession, query: Query) -> Found:
        by_table, by_distance = super()._ranked, query.tables is None and query.only.radius is None
        if not by_distance or not self._indexed(session, session.state().generation):
            return by_table(session, query)
        named = Ranking(session, query).named(int(self.options["ef_search"]))
        return query.completed(named, partial(by_table, session)) if named else by_table(session, query)

    def prepare(self) -> None:
        self._build(coming=True)

    def rebuild(self) -> None:
        super().rebuild()
        self._build(anew=True)

    def tidy(self) -> None:
        if self.store.read(lambda session: not self._indexed(session, session.state().generation)):
            self._build()

    def _indexed(self, session: PostgreSQLSession, generation: int) -> bool:
        statement = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(?)"
        return bool(session.value(statement, [f"{session.codes_table(generation)}_nearest"]))

    def _build(self, *, coming: bool = False, anew: bool = False) -> None:
        """Build the index of the codes in use, or of the coming ones, if it is not there. Other writers wait."""

        def work(session: PostgreSQLSession) -> None:
            state = session.state()
            if coming and not state.coming:
                return
            codes = state.in_preparation if coming else state.in_use
            session.run("CREATE EXTENSION IF NOT EXISTS vector")
            if anew:
                session.run(f"DROP INDEX IF EXISTS {session.codes_table(codes.number)}_nearest")
            if not self._indexed(session, codes.number):
                self._create_index(session, codes)

        self.store.write(work, "building the index")

    def _create_index(self, session: PostgreSQLSession, codes: Generation) -> None:
        """In memory, with at most `build_memory` MB of it: on disk it takes many times as long."""
        table = session.codes_table(codes.number)
        rows = session.value(f"SELECT count(*) FROM {table}")
        wanted = min(rows * BYTES_IN_INDEX >> 20, int(self.options["build_memory"]))
        more = "SELECT set_config('maintenance_work_mem', ?, true)"
        less = "pg_size_bytes(current_setting('maintenance_work_mem')) < ?"
        session.run(f"{more} WHERE {less}", [f"{wanted}MB", wanted << 20])
        session.run(
            f"CREATE INDEX codes_{codes.number}_nearest ON {table} USING hnsw (code bit_hamming_ops) "
            f"WITH (m = {int(self.options['m'])}, ef_construction = {int(self.options['ef_construction'])})"
        )


@dataclass(frozen=True)
class Ranking:
    """One query against the codes in use, in one transaction."""

    session: PostgreSQLSession
    query: Query

    def nearest(self) -> Found:
        """By (distance, id)."""
        return self._found(f"SELECT id, {DISTANCE} AS distance FROM {self._allowed} ORDER BY distance, id {self._page}")

    def named(self, candidates: int) -> Found | None:
        """The candidates that HNSW names, by (distance, id); None if it cannot name enough."""
        if candidates > MOST:
            return None
        settings = "set_config('hnsw.ef_search', ?, true), set_config('hnsw.iterative_scan', 'strict_order', true)"
        self.session.run(f"SELECT {settings}", [str(candidates)])
        nearest = f"SELECT id, {DISTANCE} FROM {self._allowed} ORDER BY c.code <~> %(query)s LIMIT {candidates}"
        found = self._found(nearest)
        if len(found.ids) < min(candidates, found.total):
            return None
        order = np.lexsort((found.ids, found.distances))
        return replace(found, ids=found.ids[order], distances=found.distances[order])

    def best(self, tables: NDArray[np.float32]) -> Found:
        """By (Σ_j tables[j, byte j of the code], id)."""
        swapped = tables[:, np.frombuffer(REVERSED, np.uint8)]  # the server sees each byte from its other end
        terms = [f"(%(tables)s::float4[])[{1 + 256 * j} + get_byte(bytes, {4 + j})]" for j in range(len(tables))]
        return self._found(
            f"SELECT id, distance, {' + '.join(terms)} AS score FROM (SELECT id, {DISTANCE} AS distance, "
            f"bit_send(c.code) AS bytes FROM {self._allowed} OFFSET 0) AS allowed "  # OFFSET 0: bit_send once a row
            f"ORDER BY score, id {self._page}",
            tables=swapped.ravel().tolist(),
        )

    def _found(self, statement: str, **values: Any) -> Found:
        """What a statement gives: ids, distances, and scores if there are tables."""
        rows = self._rows(statement, **values)
        ids, distances, *scores = np.array(rows, object).reshape(len(rows), 2 + ("tables" in values)).T
        floats = scores[0].astype(np.float32) if scores else None
        return Found(ids.astype(np.int64), distances.astype(np.int32), floats, self._total())

    def _total(self) -> int:
        """How many photos may be found."""
        only, photos = self.query.only, f"SELECT count(*) FROM {self.session.tables}.photos p WHERE"
        if only.radius is not None:
            return int(self._rows(f"SELECT count(*) FROM {self._allowed}")[0][0])
        if only.by_label:
            return int(self._rows(f"{photos} {self._conditions}")[0][0])
        excluded = self._rows(f"{photos} id = ANY(%(excluded)s)")[0][0] if only.excluded else 0
        return self.session.state().photos - int(excluded)

    @property
    def _page(self) -> str:
        return f"LIMIT {int(self.query.k)} OFFSET {int(self.query.offset)}"

    @property
    def _allowed(self) -> str:
        """FROM and WHERE of the codes that may be found."""
        session = self.session
        photos = f"JOIN {session.tables}.photos p USING (id)" if self.query.only.by_label else ""
        return f"{session.codes_table(session.state().generation)} c {photos} WHERE {self._conditions}"

    @property
    def _conditions(self) -> str:
        conditions, only = ["true"], self.query.only
        if only.by_label:
            conditions.append("p.labels @> %(carrying)s::text[] AND p.labels <> '{}'")
        if only.excluded:
            conditions.append("id <> ALL(%(excluded)s)")
        if only.radius is not None:
            conditions.append(f"{DISTANCE} <= {int(only.radius)}")
        return " AND ".join(conditions)

    def _rows(self, statement: str, **values: Any) -> list[Row]:
        code, only = self.query.code, self.query.only
        values |= {"carrying": list(only.carrying), "excluded": list(only.excluded)}
        values["query"] = Code(code.packed[0].tobytes(), code.bits)
        return self.session.run(statement, values).fetchall()


def _place(address: Address) -> tuple[Any, ...]:
    """What says which tables an address means."""
    host = address.options["host"] or address.host
    return host, address.port, address.database, address.options["collection"]
