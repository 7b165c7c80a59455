"""The local searcher with the codes in an index of faiss: `faiss` looks at all codes, `faiss-approximate` at some.

    faiss
    faiss-approximate://?lists=1024&probes=64

A collection can be opened with any of these. What is in the snapshot lies in an index of faiss in memory; what has
changed since, and what a filter leaves over, is searched as `local` does it.
"""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.errors import ConfigError, needs_extra
from hyphash.searchers import Found, Query, searchers
from hyphash.searchers.local import Local
from hyphash.searchers.local.view import Block, Ranked, View
from hyphash.stores import Store
from hyphash.stores.address import Address

SPARE = 64  # codes asked for beyond those wanted: often enough to see the end of the last distance
FEW_HIDDEN = 1000  # so many codes that may not be found are asked for with the others and dropped
DEPTH = 200  # photos that an approximate index is asked for; those that follow are found among all others
A_LIST = 39  # codes that faiss wants for each list it makes
SAMPLE = 48  # codes for each list that the lists are made from
ROUNDS = 10  # of making them
GROWTH = 4  # lists made from so many times fewer codes are made anew

Rows = tuple[NDArray[np.int32], NDArray[np.int64]]  # distances and rows


@dataclass(frozen=True)
class FaissBlock(Block):
    """Codes that an index of faiss holds as well, all of them, in the same order."""

    faiss: Any = field(default=None, compare=False)
    exact: bool = True

    def nearest(self, query: Codes, k: int) -> Ranked:
        """The k nearest by (distance, id); if not `exact`, up to DEPTH the nearest that the index comes by."""
        hidden = len(self.ids) - len(self)
        depth = k if self.exact else min(DEPTH, len(self))
        if hidden > FEW_HIDDEN or k > depth:
            return super().nearest(query, k)
        distances, rows = self._found(query.packed, min(depth + hidden, len(self.ids)))
        if self.visible is not None:
            distances, rows = distances[self.visible[rows]], rows[self.visible[rows]]
        if len(rows) < depth:  # the lists that were looked at hold too few
            return super().nearest(query, k)
        return distances[:k], self.ids[rows[:k]]

    def _found(self, packed: NDArray[np.uint8], k: int) -> Rows:
        """The k nearest by (distance, row). faiss cuts ties at will: all at the last distance are asked for."""
        limit = min(k + SPARE, len(self.ids))
        distances, rows = self.faiss.search(packed, limit)
        order = np.lexsort((rows[0], distances[0]))
        distances, rows = distances[0][order], rows[0][order]
        if not self.exact:
            return distances[rows >= 0][:k], rows[rows >= 0][:k]
        cut = int(distances[k - 1])
        if limit < len(self.ids) and distances[-1] == cut:
            _, distances, rows = self.faiss.range_search(packed, cut + 1)
            order = np.lexsort((rows, distances))[:k]
            distances, rows = distances[order].astype(np.int32), rows[order]
        return distances[:k], rows[:k]


@searchers("faiss")
class Faiss(Local):
    """A flat index of faiss, which looks at all codes."""

    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, folder: Path, store: Store, settings: dict[str, Any]) -> None:
        super().__init__(folder, store)
        self.settings = settings

    @classmethod
    def open(cls, folder: Path, url: str, store: Store) -> Self:
        address = Address.parse(url if "://" in url else f"{url}://", options=cls.options)
        if address.host or address.database:
            raise ConfigError(f"engine {address.shown!r}: it lies in the folder of the collection; leave out the host")
        return cls(folder, store, dict(address.options))

    def _indexed(self, view: View) -> View:
        base = view.base
        if not len(base.ids):
            return view
        index = self._index(view.position.generation, base.codes)
        held = {one.name: getattr(base, one.name) for one in fields(Block)}
        block = FaissBlock(**held, faiss=index, exact=self.exact)
        return replace(view, base=block)

    def _index(self, generation: int, codes: Codes) -> Any:  # noqa: ARG002
        """An index of all codes, in their order. A code takes whole bytes; bits after the last are zero."""
        index = _faiss().IndexBinaryFlat(8 * codes.packed.shape[1])
        index.add(np.ascontiguousarray(codes.packed))
        return index


@searchers("faiss-approximate")
class FaissApproximate(Faiss):
    """An index of faiss that looks at the codes in the `probes` nearest of `lists` clusters."""

    exact = False
    options: ClassVar[dict[str, Any]] = {"lists": 1024, "probes": 64}
    _centres: tuple[int, int, Any] = (0, 0, None)  # of generation, made from so many codes

    def search(self, query: Query) -> Found:
        """What the index names is first on whichever page, or a photo might be on two of them."""
        depth = max(DEPTH - len(query.only.excluded), 0)
        if query.tables is not None or query.labels or query.only.radius is not None or query.end <= depth:
            return super().search(query)
        named = super().search(replace(query, k=depth, offset=0))
        return query.completed(named, super().search)  # deeper than DEPTH

    def _index(self, generation: int, codes: Codes) -> Any:
        faiss = _faiss()
        size = 8 * codes.packed.shape[1]
        lists = max(1, min(self.settings["lists"], len(codes) // A_LIST))
        made_for, made_from, centres = self._centres
        fresh = made_for != generation or made_from * GROWTH < len(codes)
        if fresh:
            centres = faiss.IndexBinaryFlat(size)
        index = faiss.IndexBinaryIVF(centres, size, lists if fresh else centres.ntotal)
        index.centres = centres  # faiss does not keep it alive
        packed = np.ascontiguousarray(codes.packed)
        if fresh:
            chosen = np.random.default_rng(0).permutation(len(packed))[: SAMPLE * lists]
            index.cp.niter = ROUNDS
            index.train(packed[np.sort(chosen)])
            self._centres = generation, len(codes), centres
        index.is_trained = True
        index.add(packed)
        index.nprobe = min(self.settings["probes"], index.nlist)
        return index


def _faiss() -> Any:
    with needs_extra("faiss", "the engine on faiss"):
        import faiss
    return faiss
