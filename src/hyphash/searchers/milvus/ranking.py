"""Rankings by (distance, id) out of a server that cuts ties wherever it likes.

Milvus returns the nearest rows, but which of those at the last distance is up to chance. Those are asked for once
more, with a range of one distance and by ids from below, so that the ones with the smallest ids are sure to come.
"""

from dataclasses import dataclass

from hyphash.searchers.milvus.server import LIMIT, Server, both

SPARE = 128  # rows asked for beyond those wanted: often enough to see the end of the last distance
MANY = 2048  # rows with which a range of ids is too wide to have been seen whole, and is narrowed

Hit = tuple[int, int]  # distance, id


@dataclass(frozen=True, kw_only=True)
class Search:
    """One query against the rows of a collection that fulfil a condition."""

    server: Server
    collection: str
    code: bytes
    where: str
    last: int  # about the highest id
    level: str  # consistency of the first request
    again: str  # and of those that follow

    def nearest(self, wanted: int) -> list[Hit]:
        """The `wanted` nearest by (distance, id), at most LIMIT, of the rows that the index looks at."""
        limit = min(wanted + SPARE, LIMIT)
        found = sorted(self._ask(limit, self.where, self.level))
        if len(found) < limit or not wanted:
            return found[:wanted]
        cut = found[wanted - 1][0]
        if found[-1][0] > cut:
            return found[:wanted]
        nearer = [hit for hit in found if hit[0] < cut]
        return nearer + self._between(cut, cut, wanted - len(nearer), level=self.again)

    def within(self, radius: int) -> list[Hit]:
        """All rows at most `radius` bits away, by (distance, id)."""
        return sorted(self._between(0, radius, None, level=self.level))

    def _between(self, low: int, high: int, wanted: int | None, *, level: str) -> list[Hit]:
        """Rows at distances low … high: the first by id, at least `wanted` if there are so many, or all."""
        limit = LIMIT if wanted is None else min(max(MANY, wanted + 1), LIMIT)
        found: list[Hit] = []
        after, width, end = 0, max(self.last, 1), max(self.last, 1)
        while after < end and (wanted is None or len(found) < wanted):
            above = f"id > {after}" if after else ""
            below = f"id <= {after + width}" if after + width < end else ""  # the last range has no end
            where = both(self.where, above, below)
            hits = self._ask(limit, where, level, radius=high + 1, range_filter=low)
            level = self.again
            if len(hits) >= limit and width > 1:
                width = max(1, width // 8)
                continue
            found += sorted(hits, key=lambda hit: hit[1])
            after, width = after + width, width * 4
        return found[:wanted]

    def _ask(self, limit: int, where: str, level: str, **params: int) -> list[Hit]:
        return self.server.search(self.collection, self.code, limit, where=where, level=level, **params)
