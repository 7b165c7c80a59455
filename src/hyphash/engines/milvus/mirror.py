"""The codes of a collection on Milvus in this process, for rankings that Milvus cannot make."""

from collections.abc import Sequence
from threading import Lock

import numpy as np

from hyphash.codes import Codes
from hyphash.engines.local.snapshot import Origin, Part, View, empty_part
from hyphash.engines.local.snapshot import part_of as part_of_pairs
from hyphash.engines.milvus.ledger import Ledger, removed_since
from hyphash.engines.milvus.rows import code_of
from hyphash.engines.milvus.server import Row, Server


class Mirror:
    """All ids and codes at the last commit that anybody asked for."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._view: View | None = None
        self._lock = Lock()

    def clear(self) -> None:
        self._view = None

    def at(self, ledger: Ledger, level: str) -> View:
        """The codes at the commit of `ledger`, or later."""
        with self._lock:
            view = self._view
            if view is None or view.origin.generation != ledger.generation or view.origin.commit < ledger.pruned:
                view = self._built(ledger, level)
            elif view.origin.commit < ledger.commit:
                view = self._changed(view, ledger, level)
            self._view = view
            return view

    def _built(self, ledger: Ledger, level: str) -> View:
        parts = [empty_part(ledger.bits)]
        parts += [part_of(rows, ledger.bits) for rows in self.server.walk(ledger.photos, "", ["code"], level)]
        whole = Part(np.concatenate([part.ids for part in parts]), Codes.concatenate(part.codes for part in parts))
        return View(_origin(ledger), whole, empty_part(ledger.bits), saved=-1)

    def _changed(self, view: View, ledger: Ledger, level: str) -> View:
        since = view.origin.commit
        written = [
            part_of(rows, ledger.bits) for rows in self.server.walk(ledger.photos, f"commit > {since}", ["code"], level)
        ]
        new = Part(
            np.concatenate([np.empty(0, np.int64), *(part.ids for part in written)]),
            Codes.concatenate([Codes.empty(ledger.bits), *(part.codes for part in written)]),
        )
        gone = np.array(sorted(removed_since(self.server, ledger, since, level)), np.int64)
        view = view.changed(_origin(ledger), np.union1d(new.ids, gone), new)
        if len(view.extra.ids) > 1000 + len(view.base.ids) / 10:
            view = View(view.origin, view.merged(), empty_part(ledger.bits), saved=-1)
        return view


def part_of(rows: Sequence[Row], bits: int) -> Part:
    """A part from rows by ascending id."""
    return part_of_pairs([(int(row["id"]), code_of(row)) for row in rows], bits)


def _origin(ledger: Ledger) -> Origin:
    return Origin(ledger.generation, ledger.commit, ledger.stamp)
