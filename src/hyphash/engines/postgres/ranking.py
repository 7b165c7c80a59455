"""Searching in PostgreSQL: the statements that rank codes by (distance, id) or by sums of table entries."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.engines import Choice
from hyphash.engines.postgres.tables import Meta, Tables, run
from hyphash.engines.postgres.wire import REVERSED, Code

if TYPE_CHECKING:
    from hyphash.engines.postgres.server import Connection

DISTANCE = "bit_count(c.code # %(query)s)"  # no index can answer this, so it is always exact
MOST = 1000  # candidates that HNSW can be asked for

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Ranking:
    """One query against the codes in use, in one transaction."""

    tx: "Connection"
    tables: Tables
    meta: Meta
    query: Codes
    choice: Choice

    def total(self) -> int:
        """How many photos may be found."""
        if self.choice.radius is not None:
            return self._number(f"SELECT count(*) FROM {self._allowed}")
        photos = f"SELECT count(*) FROM {self.tables.schema}.photos p WHERE"
        if self._by_label:
            return self._number(f"{photos} {self._conditions}")
        excluded = self._number(f"{photos} id = ANY(%(excluded)s)") if self.choice.excluded else 0
        return self.meta.photos - excluded

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
        run(self.tx, f"SELECT {settings}", [str(candidates)])
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
        others = replace(self, choice=replace(self.choice, excluded=(*self.choice.excluded, *named)))
        return page + others.nearest(k - len(page), max(0, offset - len(rows)))

    def best(self, tables: NDArray[np.float32], k: int, offset: int) -> Rows:
        """(id, distance, Σ_j tables[j, byte j of the code]) by (sum, id)."""
        swapped = tables[:, np.frombuffer(REVERSED, np.uint8)]  # the server sees each byte from its other end
        terms = [f"(%(tables)s::float4[])[{1 + 256 * j} + get_byte(bytes, {4 + j})]" for j in range(len(tables))]
        return self._rows(
            f"SELECT id, distance, {' + '.join(terms)} AS score FROM (SELECT id, {DISTANCE} AS distance, "
            f"bit_send(c.code) AS bytes FROM {self._allowed} OFFSET 0) AS allowed "  # OFFSET 0: bit_send once a row
            "ORDER BY score, id LIMIT %(k)s OFFSET %(offset)s",
            tables=swapped.ravel().tolist(), k=k, offset=offset,
        )  # fmt: skip

    @property
    def _by_label(self) -> bool:
        return bool(self.choice.carrying) or self.choice.tagged

    @property
    def _allowed(self) -> str:
        """FROM and WHERE of the codes that may be found."""
        photos = f"JOIN {self.tables.schema}.photos p USING (id)" if self._by_label else ""
        return f"{self.tables.codes(self.meta.generation)} c {photos} WHERE {self._conditions}"

    @property
    def _conditions(self) -> str:
        conditions = ["true"]
        if self._by_label:
            conditions.append("p.labels @> %(carrying)s::text[] AND p.labels <> '{}'")
        if self.choice.excluded:
            conditions.append("id <> ALL(%(excluded)s)")
        if self.choice.radius is not None:
            conditions.append(f"{DISTANCE} <= %(radius)s")
        return " AND ".join(conditions)

    def _rows(self, statement: str, **values: Any) -> Rows:
        values |= {
            "query": Code(self.query.packed[0].tobytes(), self.query.bits),
            "carrying": list(self.choice.carrying),
            "excluded": list(self.choice.excluded),
            "radius": self.choice.radius,
        }
        return run(self.tx, statement, values).fetchall()

    def _number(self, statement: str) -> int:
        return int(self._rows(statement)[0][0])
