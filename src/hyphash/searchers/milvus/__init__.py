"""Searchers on a Milvus server, stand-alone or a cluster.

    milvus://user:password@host:19530/DATABASE?collection=NAME&consistency=Strong&partitions=N

Codes are rows with a binary vector, searched by Hamming distance on the server; photos, labels and paths are in the
store (`copies.py` says how the rows follow it). Options, each with a default: `collection` (hyphash), `consistency` of
searches (Strong, Session, Bounded, Eventually), `partitions` (0: none; else by id), `shards` (1) that writes are spread
over, `replicas` (1) that searches are spread over, `tls` (false) with the files `ca` (who has signed the server's
certificate), `cert` and `key` (one's own), `patience` (60): seconds that the server may be away. `milvus-approximate`
has `lists` (1024) and `probes` (64): clusters of the index, and how many of them a query looks at.

While Milvus is away the store takes photos; a search says so after `patience`. One that asks for no catching up gets
what is there and learns by how many commits it is behind. With another consistency than Strong a search may miss for a
moment what has been pushed just before it.

One name belongs to one store, whose identity every collection NAME_1, NAME_2 … has among its properties; photos of
another store are refused. An empty NAME_1 that is there already, with the fields `id`, `code`, `labels` (numbers that
stand for labels), `tagged` (and `part`, the key of partitions), is taken: so it can be made with settings of one's own.
Other partitions, shards or lists than those it was built with come into effect when it is rebuilt. A photo may carry
4,096 labels of any length. Name the server alike on all machines: by another name of the host it is another copy.

Searching needs the privileges Query and Search on NAME_1 (NAME_2 … after a rebuild or another hasher); catching
up needs besides Upsert and Delete, building Flush, GetFlushState, CreateIndex, Load, GetLoadState, GetLoadingProgress
and Compaction, and the global CreateCollection and DropCollection. If one is missing, the error names it.

Rankings by tables and pages deeper than 16,384, or than an approximate index looks, are not for Milvus: they are made
by the local searcher, from codes of the store.

What remains is a limit of a server without transactions: a request that was sent in time, and that the network delays
until its sender has lost the lock on the store and another has pushed the same photo anew, leaves an old row. `verify`
compares all rows with the store, and rebuilding mends it.
"""

import logging
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.errors import ConfigError, EngineError
from hyphash.searchers import Filter, Found, Searcher, searchers
from hyphash.searchers.local import Local
from hyphash.searchers.milvus.building import Builder, Copy
from hyphash.searchers.milvus.copies import Copies
from hyphash.searchers.milvus.ranking import Hit, Search
from hyphash.searchers.milvus.rows import label_number
from hyphash.searchers.milvus.server import EVENTUALLY, LIMIT, STRONG, GoneError, Layout, Server, both
from hyphash.stores import Position, State, Store
from hyphash.stores.address import Address

LEVELS = (STRONG, "Session", "Bounded", EVENTUALLY)
OPTIONS: dict[str, Any] = {
    "collection": "hyphash",
    "consistency": STRONG,
    "partitions": 0,
    "shards": 1,
    "replicas": 1,
    "tls": False,
    "ca": "",  # files with certificates, for tls
    "cert": "",
    "key": "",
    "patience": 60.0,
}

log = logging.getLogger(__name__)


@searchers("milvus")
class Milvus(Searcher):
    """Codes on a Milvus server; every search looks at all of them."""

    filters = frozenset({"labels"})
    options: ClassVar[dict[str, Any]] = OPTIONS

    def __init__(self, folder: Path, store: Store, address: Address) -> None:
        super().__init__(folder, store)
        self.address = address
        self.level: str = address.options["consistency"]
        # with one replica whatever a search has seen the next one sees as well
        self.again = EVENTUALLY if address.options["replicas"] == 1 else self.level
        self.server = Server(address)
        self.builder = Builder(store, self.server, self.layout)
        self.copies = Copies(self.builder)
        self._here = Local(folder, store)
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="milvus")

    @classmethod
    def create(cls, folder: Path, url: str, store: Store) -> Self:
        """Make the collection at once: what is wrong with the address is better heard now."""
        searcher = cls.open(folder, url, store)
        try:
            searcher.follow()
        except BaseException:
            searcher.close()
            raise
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

    def layout(self, bits: int) -> Layout:
        """What a collection is made of."""
        shards, partitions, replicas = (self.address.options[name] for name in ("shards", "partitions", "replicas"))
        return Layout(bits=bits, index="BIN_FLAT", build={}, shards=shards, partitions=partitions, replicas=replicas)

    def search_params(self) -> dict[str, Any]:
        return {}

    # ── searching ────────────────────────────────────────────────────────────────────────────────────────

    def search(
        self,
        query: Codes,
        k: int,
        *,
        fingerprint: str,
        offset: int = 0,
        only: Filter = Filter(),  # noqa: B008 (frozen)
        tables: NDArray[np.float32] | None = None,
        catch_up: bool = True,
    ) -> Found:
        if tables is not None or (offset + k > LIMIT and only.radius is None and self.exact):
            more: dict[str, Any] = {"fingerprint": fingerprint, "catch_up": catch_up}
            return self._here.search(query, k, offset=offset, only=only, tables=tables, **more)
        try:
            found = self.copies.current(fingerprint=fingerprint, catch_up=catch_up)
            return self._found(*found, query, k, offset, only)
        except GoneError:  # another process has built a new one, or it is lost
            self.copies.forget()
            found = self.copies.current(fingerprint=fingerprint, catch_up=catch_up)
            return self._found(*found, query, k, offset, only)

    def _found(self, state: State, copy: Copy, query: Codes, k: int, offset: int, only: Filter) -> Found:
        query.require_length(state.bits)
        where = _condition(only)
        search = Search(
            server=self.server, collection=copy.collection, code=query.packed[0].tobytes(), where=where,
            last=state.last_id, level=self.level, again=self.again, params=self.search_params(),
        )  # fmt: skip
        behind = state.commit - copy.position.commit
        if only.radius is not None:
            hits = search.within(only.radius)
            return _page(hits[offset : offset + k], len(hits), behind)
        total = self._pool.submit(self.server.count, copy.collection, where, self.level)
        hits = search.nearest(min(offset + k, LIMIT)) if offset + k else []
        page = _page(hits[offset : offset + k], total.result(), behind)
        if self.exact or len(hits) >= min(offset + k, page.total):
            return page
        return self._completed(page, state, query, k, offset, only, hits)

    def _completed(
        self, page: Found, state: State, query: Codes, k: int, offset: int, only: Filter, hits: Sequence[Hit]
    ) -> Found:
        """A page whose end is beyond what the index looks at: all other photos come after its hits."""
        others = replace(only, excluded=(*only.excluded, *(id for _, id in hits)))
        left, at = k - len(page.ids), max(0, offset - len(hits))
        rest = self._here.search(query, left, offset=at, only=others, fingerprint=state.fingerprint)
        distances = np.concatenate([page.distances, rest.distances])
        return replace(page, ids=np.concatenate([page.ids, rest.ids]), distances=distances)

    # ── following ────────────────────────────────────────────────────────────────────────────────────────

    def require_ready(self) -> None:
        if current := self.store.read(self.builder.note).current:
            self.server.properties(current.collection)

    def position(self) -> Position | None:
        return self.copies.position()

    def follow(self) -> None:
        self.copies.current()

    def prepare(self) -> None:
        self.builder.prepare()

    def rebuild(self) -> None:
        self.builder.build()

    def tidy(self) -> None:
        """Catch up, and have the index built over what has come. Photos are safe although Milvus may be away."""
        try:
            self.follow()
            self.copies.flush()
        except EngineError as error:
            log.warning("%s; the photos are stored, and can be searched when it has caught up", error)

    def verify(self) -> list[str]:
        return self.copies.differences()

    def compact(self) -> None:
        self.copies.compact()


@searchers("milvus-approximate")
class MilvusApproximate(Milvus):
    """Codes on a Milvus server; a search looks at those in the `probes` nearest of `lists` clusters."""

    exact = False
    options: ClassVar[dict[str, Any]] = OPTIONS | {"lists": 1024, "probes": 64}

    def layout(self, bits: int) -> Layout:
        return replace(super().layout(bits), index="BIN_IVF_FLAT", build={"nlist": self.address.options["lists"]})

    def search_params(self) -> dict[str, Any]:
        return {"nprobe": self.address.options["probes"]}


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


def _condition(only: Filter) -> str:
    """Which rows a filter allows, in the language of Milvus."""
    return both(
        f"array_contains_all(labels, {[label_number(label) for label in only.carrying]})" if only.carrying else "",
        "tagged == true" if only.tagged else "",
        f"id not in {sorted(set(only.excluded))}" if only.excluded else "",
    )


def _page(hits: Sequence[Hit], total: int, behind: int) -> Found:
    ids = np.array([id for _, id in hits], np.int64)
    return Found(ids, np.array([distance for distance, _ in hits], np.int32), None, total, behind)
