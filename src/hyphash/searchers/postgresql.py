"""Searchers inside the tables of a store in PostgreSQL, where they are never behind.

`postgresql` compares the query with every code (`bit_count(code # query)`, a parallel scan of a narrow table that no
index can shortcut) and needs no extension. `postgresql-approximate` asks an HNSW index of pgvector for `ef_search`
candidates and ranks these by (distance, id); results beyond these are the nearest of all others, so that pages fit
together. Its index is built when photos have come (`tidy`), and for coming codes before they are in use; until then,
and for searches by radius or by tables, or with filters for which the index names too few, every code is looked at.

Both are written without an address, then they look where the store is, or with that of the store. Options of the
approximate one: `m`, `ef_construction` and `build_memory` (MB) for building the index, `ef_search` for searching.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.errors import ConfigError
from hyphash.searchers import Filter, Found, Searcher, searchers
from hyphash.stores import Generation, Position, Store, require_hasher
from hyphash.stores.address import Address
from hyphash.stores.postgresql import OPTIONS, PostgreSQL
from hyphash.stores.postgresql.schema import run

if TYPE_CHECKING:
    from hyphash.stores.postgresql.session import PostgreSQLSession

DISTANCE = "bit_count(c.code # %(query)s)"  # no index can answer this, so it is always exact
BYTES_IN_INDEX = 600  # of a photo while the HNSW index is built, with room to spare
MOST = 1000  # candidates that HNSW can be asked for

Rows = list[tuple[Any, ...]]


@searchers("postgresql")
class InTables(Searcher):
    """Every search looks at all codes in the tables of the store."""

    inside = "postgresql"
    filters = frozenset({"labels"})
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

    create = open

    def close(self) -> None:
        """The connections are the store's."""

    def position(self) -> Position | None:
        return self.store.state().position

    def follow(self) -> None:
        """It is where the store is."""

    def search(
        self,
        query: Codes,
        k: int,
        *,
        fingerprint: str,
        offset: int = 0,
        only: Filter = Filter(),  # noqa: B008 (frozen)
        tables: NDArray[np.float32] | None = None,
        catch_up: bool = True,  # noqa: ARG002 (it is never behind)
    ) -> Found:
        def work(session: "PostgreSQLSession") -> Found:
            require_hasher(session.state(), fingerprint, self.store.shown)
            query.require_length(session.state().bits)
            ranking = Ranking(session, query, only)
            total = ranking.total()
            rows = self._nearest(ranking, k, offset, total) if tables is None else ranking.best(tables, k, offset)
            ids, distances, *scores = np.array(rows, object).reshape(len(rows), 2 + (tables is not None)).T
            floats = scores[0].astype(np.float32) if scores else None
            return Found(ids.astype(np.int64), distances.astype(np.int32), floats, total)

        return self.store.read(work, "searching")

    def _nearest(self, ranking: "Ranking", k: int, offset: int, total: int) -> Rows:  # noqa: ARG002 (of the other one)
        return ranking.nearest(k, offset)

    def prepare(self) -> None:
        """The coming codes are in a table of their own already."""

    def rebuild(self) -> None:
        """There is nothing that is derived."""

    def tidy(self) -> None:
        """The store does that."""

    def verify(self) -> list[str]:
        return []

    def compact(self) -> None:
        """The store does that."""


@searchers("postgresql-approximate")
class InTablesApproximate(InTables):
    """The same tables with an index that names likely neighbours (HNSW of pgvector)."""

    exact: ClassVar[bool] = False

    def _nearest(self, ranking: "Ranking", k: int, offset: int, total: int) -> Rows:
        rows = None
        if ranking.only.radius is None and self._indexed(ranking.session, ranking.session.state().generation):
            rows = ranking.nearest_by_index(k, offset, candidates=int(self.options["ef_search"]), total=total)
        return ranking.nearest(k, offset) if rows is None else rows

    def prepare(self) -> None:
        self._build(coming=True)

    def rebuild(self) -> None:
        self._build(anew=True)

    def tidy(self) -> None:
        if self.store.read(lambda session: not self._indexed(session, session.state().generation)):
            self._build()

    def _indexed(self, session: "PostgreSQLSession", generation: int) -> bool:
        statement = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"
        return run(session.tx, statement, [f"{session.schema.codes(generation)}_nearest"]).fetchone() == (True,)

    def _build(self, *, coming: bool = False, anew: bool = False) -> None:
        """Build the index of the codes in use, or of the coming ones, if it is not there. Other writers wait."""

        def work(session: "PostgreSQLSession") -> None:
            state = session.state()
            if coming and not state.coming:
                return
            codes = state.in_preparation if coming else state.in_use
            run(session.tx, "CREATE EXTENSION IF NOT EXISTS vector")
            if anew:
                run(session.tx, f"DROP INDEX IF EXISTS {session.schema.codes(codes.number)}_nearest")
            if not self._indexed(session, codes.number):
                self._create_index(session, codes)

        self.store.write(work, "building the index")

    def _create_index(self, session: "PostgreSQLSession", codes: Generation) -> None:
        """In memory, with at most `build_memory` MB of it: on disk it takes many times as long."""
        table = session.schema.codes(codes.number)
        rows = session.number(f"SELECT count(*) FROM {table}")
        wanted = min(rows * BYTES_IN_INDEX >> 20, int(self.options["build_memory"]))
        run(
            session.tx,
            "SELECT set_config('maintenance_work_mem', %s, true) "
            "WHERE pg_size_bytes(current_setting('maintenance_work_mem')) < %s",
            [f"{wanted}MB", wanted << 20],
        )
        run(
            session.tx,
            f"CREATE INDEX codes_{codes.number}_nearest ON {table} USING hnsw (code bit_hamming_ops) "
            f"WITH (m = {int(self.options['m'])}, ef_construction = {int(self.options['ef_construction'])})",
        )


@dataclass(frozen=True)
class Ranking:
    """One query against the codes in use, in one transaction."""

    session: "PostgreSQLSession"
    query: Codes
    only: Filter

    def total(self) -> int:
        """How many photos may be found."""
        if self.only.radius is not None:
            return self._number(f"SELECT count(*) FROM {self._allowed}")
        photos = f"SELECT count(*) FROM {self.session.schema.name}.photos p WHERE"
        if self.only.by_label:
            return self._number(f"{photos} {self._conditions}")
        excluded = self._number(f"{photos} id = ANY(%(excluded)s)") if self.only.excluded else 0
        return self.session.state().photos - excluded

    def nearest(self, k: int, offset: int) -> Rows:
        """(id, distance) by (distance, id)."""
        return self._rows(
            f"SELECT id, {DISTANCE} AS distance FROM {self._allowed} ORDER BY distance, id "
            "LIMIT %(k)s OFFSET %(offset)s",
            k=k, offset=offset,
        )  # fmt: skip

    def nearest_by_index(self, k: int, offset: int, *, candidates: int, total: int) -> Rows | None:
        """Like `nearest`: first the candidates that HNSW names, then all others; None if it cannot name enough.

        It is asked for equally many on whichever page, or a photo could be on two of them and another on none.
        """
        if candidates > MOST:
            return None
        settings = "set_config('hnsw.ef_search', %s, true), set_config('hnsw.iterative_scan', 'strict_order', true)"
        run(self.session.tx, f"SELECT {settings}", [str(candidates)])
        rows = self._rows(
            f"SELECT id, {DISTANCE} FROM {self._allowed} ORDER BY c.code <~> %(query)s LIMIT %(candidates)s",
            candidates=candidates,
        )
        if len(rows) < min(candidates, total):
            return None
        page = sorted(rows, key=lambda row: (row[1], row[0]))[offset : offset + k]
        if offset + k <= len(rows) or len(rows) == total:
            return page
        named = tuple(row[0] for row in rows)
        others = replace(self, only=replace(self.only, excluded=(*self.only.excluded, *named)))
        return page + others.nearest(k - len(page), max(0, offset - len(rows)))

    def best(self, tables: NDArray[np.float32], k: int, offset: int) -> Rows:
        """(id, distance, Σ_j tables[j, byte j of the code]) by (sum, id)."""
        from hyphash.stores.postgresql.bits import REVERSED

        swapped = tables[:, np.frombuffer(REVERSED, np.uint8)]  # the server sees each byte from its other end
        terms = [f"(%(tables)s::float4[])[{1 + 256 * j} + get_byte(bytes, {4 + j})]" for j in range(len(tables))]
        return self._rows(
            f"SELECT id, distance, {' + '.join(terms)} AS score FROM (SELECT id, {DISTANCE} AS distance, "
            f"bit_send(c.code) AS bytes FROM {self._allowed} OFFSET 0) AS allowed "  # OFFSET 0: bit_send once a row
            "ORDER BY score, id LIMIT %(k)s OFFSET %(offset)s",
            tables=swapped.ravel().tolist(), k=k, offset=offset,
        )  # fmt: skip

    @property
    def _allowed(self) -> str:
        """FROM and WHERE of the codes that may be found."""
        schema = self.session.schema
        photos = f"JOIN {schema.name}.photos p USING (id)" if self.only.by_label else ""
        return f"{schema.codes(self.session.state().generation)} c {photos} WHERE {self._conditions}"

    @property
    def _conditions(self) -> str:
        conditions = ["true"]
        if self.only.by_label:
            conditions.append("p.labels @> %(carrying)s::text[] AND p.labels <> '{}'")
        if self.only.excluded:
            conditions.append("id <> ALL(%(excluded)s)")
        if self.only.radius is not None:
            conditions.append(f"{DISTANCE} <= %(radius)s")
        return " AND ".join(conditions)

    def _rows(self, statement: str, **values: Any) -> Rows:
        from hyphash.stores.postgresql.bits import Code

        values |= {
            "query": Code(self.query.packed[0].tobytes(), self.query.bits),
            "carrying": list(self.only.carrying),
            "excluded": list(self.only.excluded),
            "radius": self.only.radius,
        }
        return run(self.session.tx, statement, values).fetchall()

    def _number(self, statement: str) -> int:
        return int(self._rows(statement)[0][0])


def _place(address: Address) -> tuple[Any, ...]:
    """What says which tables an address means."""
    host = address.options["host"] or address.host
    return host, address.port, address.database, address.options["collection"]
