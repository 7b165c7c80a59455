"""Searchers on a Milvus server, stand-alone or a cluster.

    milvus://user:password@host:19530/DATABASE?collection=NAME&consistency=Strong&partitions=N

Codes are rows with a binary vector, searched by Hamming distance on the server; photos, labels and paths are in the
store (`building.py` says how the rows follow it). While Milvus is away the store takes photos; a search says so after
`patience`. With another consistency than Strong a search may miss for a moment what has been pushed just before it.

Rankings by tables or labels, filters by facts of files, and pages deeper than 16,384, or than an approximate index
looks, are not for Milvus: they are made by the local searcher, from codes of the store. `docs/engines.md` has the
options, the privileges that a user of the server needs, and what a collection is like that is made with settings of
one's own.

What remains is a limit of a server without transactions: a request that was sent in time, and that the network delays
until its sender has lost the lock on the store and another has pushed the same photo anew, leaves an old row. `verify`
compares all rows with the store, and rebuilding mends it.
"""

import logging
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from hyphash.errors import ConfigError, EngineError
from hyphash.searchers import Found, Query, Searcher, searchers
from hyphash.searchers.filters import Filter
from hyphash.searchers.milvus.building import ROW, STORE, WORTH_AN_INDEX, Builder, Copy, label_number, marks, to_rows
from hyphash.searchers.milvus.server import EVENTUALLY, LIMIT, STRONG, GoneError, Hit, Server
from hyphash.stores import SHOWN, Position, Session, State, Store, closed_on_error, read_toml
from hyphash.stores.address import Address

LEVELS = (STRONG, "Session", "Bounded", EVENTUALLY)
OPTIONS = read_toml(__package__, "options")
SPARE = 128  # rows asked for beyond those wanted: often enough to see the end of the last distance
MANY = 2048  # rows with which a range of ids is too wide to have been seen whole, and is narrowed

log = logging.getLogger(__name__)


@searchers("milvus")
class Milvus(Searcher):
    """Codes on a Milvus server; every search looks at all of them."""

    options: ClassVar[dict[str, Any]] = OPTIONS

    def __init__(self, folder: Path, store: Store, address: Address) -> None:
        super().__init__(folder, store)
        self.address = address
        self.level: str = address.options["consistency"]
        # with one replica whatever a search has seen the next one sees as well
        self.again = EVENTUALLY if address.options["replicas"] == 1 else self.level
        self.server = Server(address)
        self.builder = Builder(store, self.server)
        self._seen: dict[str, Position] = {}  # a collection, and where the store was when it was looked at
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="milvus")

    @classmethod
    def create(cls, folder: Path, url: str, store: Store) -> Self:
        """Make the collection at once: what is wrong with the address is better heard now."""
        searcher = cls.open(folder, url, store)
        with closed_on_error(searcher):
            searcher.follow()
        return searcher

    @classmethod
    def open(cls, folder: Path, url: str, store: Store) -> Self:
        return cls(folder, store, cls.address_of(url))

    @classmethod
    def address_of(cls, url: str) -> Address:
        if "://" not in url:
            url = f"{url}://localhost"
        address = Address.parse(url, options=cls.options)
        if address.options["consistency"] not in LEVELS:
            raise ConfigError(f"{address.shown}: consistency is one of {', '.join(LEVELS)}")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,199}", address.options["collection"]):
            raise ConfigError(f"{address.shown}: the name of a collection is made of letters, digits and _")
        if ":" in address.host:
            raise ConfigError(f"{address.shown}: pymilvus takes no numbers of IPv6; write the name of that host")
        _check_certificates(address)
        return address

    def close(self) -> None:
        self._pool.shutdown()
        self._here.close()
        self.server.close()

    def hurry(self, seconds: float) -> None:
        self.server.patience = min(self.server.patience, seconds)

    # ── searching ────────────────────────────────────────────────────────────────────────────────────────

    def search(self, query: Query) -> Found:
        deep = query.end > LIMIT and query.only.radius is None and self.exact
        if query.tables is not None or query.labels or query.only.by_facts or deep:
            return self._here.search(query)
        try:
            return self._found(query)
        except GoneError:  # another process has built a new one, or it is lost
            self._seen = {}
            return self._found(query)

    def _found(self, query: Query) -> Found:
        state, copy = self._current(query)
        where = _condition(query.only)
        ask = partial(self.server.search, copy.collection, query.code.packed[0].tobytes())
        search = Search(ask, where, last=state.last_id, level=self.level, again=self.again)
        behind = state.commit - copy.position.commit
        if query.only.radius is not None:
            hits = search.within(query.only.radius)
            return _to_found(hits[query.offset : query.end], len(hits), behind)
        total = self._pool.submit(self.server.count, copy.collection, where, self.level)
        hits = search.nearest(min(query.end, LIMIT)) if query.end else []
        if self.exact:
            return _to_found(hits[query.offset : query.end], total.result(), behind)
        return query.completed(_to_found(hits, total.result(), behind), self._here.search)

    # ── following ────────────────────────────────────────────────────────────────────────────────────────

    def require_ready(self) -> None:
        if current := self.store.read(self.builder.note).current:
            self.server.properties(current.collection)

    def position(self) -> Position | None:
        copy = self.store.read(lambda session: self.builder.note(session).usable(session))
        return copy.position if copy else None

    def follow(self) -> None:
        self._current()

    def prepare(self) -> None:
        self.builder.prepare()

    def rebuild(self) -> None:
        self._here.drop()
        self.builder.build()
        self.follow()

    def _current(self, query: Query | None = None) -> tuple[State, Copy]:
        """What the store holds, and the collection to search; one that is behind is brought up to date before."""

        def look(session: Session) -> tuple[State, Copy | None, bool]:
            state, copy = session.state(), self.builder.note(session).usable(session)
            seen = self._seen.get(copy.collection) if copy else None  # the store goes on from there: it is as it was
            known = seen is not None and (seen == state.position or session.stamp(seen.commit) == seen.stamp)
            return state, copy, known

        while True:
            state, copy, known = self.store.read(look)
            if query:
                query.require_fit(state, self.store.shown)
            if copy is None or not (known or self._usable(copy)):
                self.builder.build()
                continue
            self._seen = {copy.collection: state.position}
            if copy.position == state.position or (query and not query.catch_up):
                return state, copy
            with suppress(GoneError):  # which shows when it is looked at
                self.builder.push()

    def _usable(self, copy: Copy) -> bool:
        properties = self.server.properties(copy.collection)
        return self.store.read(lambda session: self.builder.sound(session, copy, properties))

    # ── maintenance ──────────────────────────────────────────────────────────────────────────────────────

    def tidy(self) -> None:
        """Catch up, and have the index built over what has come. Photos are safe although Milvus may be away."""
        try:
            _, copy = self._current()
            if self.builder.written >= WORTH_AN_INDEX:
                self.server.flush(copy.collection)
                self.builder.written = 0
        except EngineError as error:
            log.warning("%s; the photos are stored, and can be searched when it has caught up", error)

    def compact(self) -> None:
        """Drop what was left behind by builds that were interrupted, and have Milvus join its segments."""
        state, copy = self._current()
        kept = self.store.read(self.builder.note).collections
        left = {collection for collection, _ in self.builder.numbered()} - kept
        self.builder.drop({name for name in left if (self.server.properties(name) or {}).get(STORE) == state.identity})
        self.server.compact(copy.collection)

    def verify(self) -> list[str]:
        """Where the rows on Milvus differ from the store, in words."""
        note = self.store.read(self.builder.note)
        place, advice = self.server.address.shown, "build it anew with `hyphash collection rebuild`"
        if note.current and self.server.properties(note.current.collection) is None:
            return [f"{place}: the collection {note.current.collection!r} is gone; {advice}"]
        state, copy = self._current()
        theirs = [marks(rows) for rows in self.server.walk(copy.collection, ROW, STRONG)]
        ours = [
            marks(self.store.read(lambda session: to_rows(session, ids, codes)))  # noqa: B023 (made at once)
            for ids, codes in self.store.scan(state.in_use)
        ]
        suspects = np.setxor1d(np.concatenate([marks(()), *ours]), np.concatenate([marks(()), *theirs]))["id"]
        wrong = self.builder.differing(np.unique(suspects)[:LIMIT]) if len(suspects) else []
        return [f"{place}: photo {id} is not what the store holds; {advice}" for id in wrong[:SHOWN]]


@searchers("milvus-approximate")
class MilvusApproximate(Milvus):
    """Codes on a Milvus server; a search looks at those in the `probes` nearest of `lists` clusters."""

    exact = False
    options: ClassVar[dict[str, Any]] = OPTIONS | {"lists": 1024, "probes": 64}  # clusters; looked at by a query


@dataclass(frozen=True)
class Search:
    """One query against the rows of a collection that fulfil a condition, ranked by (distance, id).

    Milvus returns the nearest rows, but which of those at the last distance is up to chance. Those are asked for once
    more, with a range of one distance and by ids from below, so that the ones with the smallest ids are sure to come.
    """

    ask: Callable[..., list[Hit]]  # Server.search, of a collection and a code
    where: str
    last: int  # about the highest id
    level: str  # consistency of the first request
    again: str  # and of those that follow

    def nearest(self, wanted: int) -> list[Hit]:
        """The `wanted` nearest by (distance, id), at most LIMIT, of the rows that the index looks at."""
        limit = min(wanted + SPARE, LIMIT)
        found = sorted(self.ask(limit, where=self.where, level=self.level))
        if len(found) < limit or found[-1][0] > found[wanted - 1][0]:
            return found[:wanted]
        cut = found[-1][0]
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
            hits = self.ask(limit, where=where, level=level, radius=high + 1, range_filter=low)
            level = self.again
            if len(hits) >= limit and width > 1:
                width = max(1, width // 8)
                continue
            found += sorted(hits, key=lambda hit: hit[1])
            after, width = after + width, width * 4
        return found[:wanted]


def _check_certificates(address: Address) -> None:
    """Refuse options that do not go together, and files that are not there, before a server is asked."""
    files = {name: Path(address.options[name]) for name in ("ca", "cert", "key") if address.options[name]}
    if files and not address.options["tls"]:
        raise ConfigError(f"{address.shown}: {', '.join(files)} without tls=true would do nothing; add it")
    if len({"cert", "key"} & {*files}) == 1 or ("cert" in files and "ca" not in files):
        raise ConfigError(f"{address.shown}: a certificate of one's own is given by cert, key and ca together")
    for name, file in files.items():
        if not file.is_absolute() or not file.is_file() or not os.access(file, os.R_OK):
            raise ConfigError(f"{address.shown}: {name} names no file that can be read; write its whole path")


def both(*conditions: str) -> str:
    """One condition from several; empty ones ask for nothing."""
    return " and ".join(filter(None, conditions))


def _condition(only: Filter) -> str:
    """Which rows a filter allows, in the language of Milvus."""
    return both(
        f"array_contains_all(labels, {[label_number(label) for label in only.carrying]})" if only.carrying else "",
        "tagged == true" if only.tagged else "",
        f"id not in {sorted(set(only.excluded))}" if only.excluded else "",
    )


def _to_found(hits: Sequence[Hit], total: int, behind: int) -> Found:
    ids = np.array([id for _, id in hits], np.int64)
    return Found(ids, np.array([distance for distance, _ in hits], np.int32), None, total, behind)
