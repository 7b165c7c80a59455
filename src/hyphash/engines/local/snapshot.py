"""All codes at one commit: a memory-mapped file, and beside it in memory what has changed since.

The file is a derived thing. It is taken for what it says only if the database knows its commit by the same
random stamp, so a file that belongs to another past (a restored backup) is never mixed in.

A large snapshot has an index in a file of its own, that notes whose codes it holds. It is written before the
snapshot; without it, or while it is another's, the codes are scanned.
"""

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyphash import hamming
from hyphash.codes import Codes, bytes_for
from hyphash.engines import Choice, Found
from hyphash.errors import CodesError, StorageError
from hyphash.files import write_atomically
from hyphash.hamming import Index

INDEXED = 500_000  # from so many codes on an index pays: fewer are scanned in the time that a search takes anyway
SHARE = 500  # of so many codes one may be asked for: to find more, all cores scan faster than one walks the index
FEW = 8  # one photo in so many, and it is faster to copy their codes than to pass over the others
GUESSED = 100  # from so many ids on it is faster to guess where they stand than to look them up
FORMAT = "hyphash-snapshot"
VERSION = "1"

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_] | None
Ranked = tuple[NDArray[np.int32] | NDArray[np.float32], Ids]


@dataclass(frozen=True)
class Origin:
    """Which codes these are: of which hasher, at which commit."""

    generation: int
    commit: int
    stamp: str

    @property
    def note(self) -> str:
        return f"generation {self.generation}, commit {self.commit} {self.stamp}"


@dataclass(frozen=True)
class Part:
    """Codes by ascending id; those that are not `visible` are no longer what the database holds."""

    ids: Ids
    codes: Codes
    visible: Mask = None  # None: all
    index: Index | None = None  # of all codes, hidden ones too

    def __len__(self) -> int:
        return self._size

    @cached_property
    def _size(self) -> int:
        return len(self.ids) if self.visible is None else int(np.count_nonzero(self.visible))

    def rows(self, ids: Ids) -> Ids:
        """Where the photos with these ids (ascending) stand, for those that are here and visible."""
        if not len(self.ids) or not len(ids):
            return np.empty(0, np.int64)
        last = len(self.ids) - 1
        rows: Ids
        if len(ids) < GUESSED:
            rows = np.minimum(np.searchsorted(self.ids, ids), last)
        else:
            rows = np.clip(ids - self.ids[0], 0, last)  # right where no id is left out before it
            wrong = np.flatnonzero(self.ids[rows] != ids)
            rows[wrong] = np.minimum(np.searchsorted(self.ids, ids[wrong]), last)
        rows = rows[self.ids[rows] == ids]
        return rows if self.visible is None else rows[self.visible[rows]]

    def taken(self, ids: Ids) -> "Part":
        """The photos with these ids, ascending, for those that are here."""
        rows = self.rows(ids)
        return Part(self.ids[rows], self.codes[rows])

    def narrowed(self, ids: Ids) -> "Part":
        """Only the photos with these ids: copied out if they are few, else marked."""
        if len(ids) * FEW < len(self.ids):
            return self.taken(ids)
        visible = np.zeros(len(self.ids), np.bool_)
        visible[self.rows(ids)] = True
        return replace(self, visible=visible)

    def nearest(self, query: Codes, k: int) -> Ranked:
        """The k nearest by (distance, id)."""
        if self.index and k * SHARE <= len(self):
            distances, rows = self.index.search(query, k, mask=self.visible)
        else:
            distances, rows = hamming.search(query, self.codes, k, mask=self.visible)
        return distances[0], self.ids[rows[0]]

    def best(self, tables: NDArray[np.float32], k: int) -> Ranked:
        """The k with the least sum of table entries by (sum, id)."""
        scores, rows = hamming.search_tables(tables[None], self.codes, k, mask=self.visible)
        return scores[0], self.ids[rows[0]]

    def within(self, query: Codes, radius: int) -> "Part":
        """Only the photos at most `radius` bits away."""
        if not len(self):
            return self
        rows = np.sort(hamming.within(query, self.codes, radius, mask=self.visible)[0][1])
        return Part(self.ids[rows], self.codes[rows])

    def without_hidden(self) -> "Part":
        return self if self.visible is None else Part(self.ids[self.visible], self.codes[self.visible])


@dataclass(frozen=True)
class View:
    """All codes at one commit: those of the file, and those that have come or changed since. Never altered."""

    origin: Origin
    base: Part
    extra: Part
    saved: int  # commit of the file; −1: there is none

    def __len__(self) -> int:
        return len(self.base) + len(self.extra)

    @property
    def bits(self) -> int:
        return self.base.codes.bits

    @property
    def lacks_index(self) -> bool:
        return self.base.index is None and worth_an_index(self.base)

    @cached_property
    def ids(self) -> Ids:
        """All ids, ascending."""
        base = self.base.ids if self.base.visible is None else self.base.ids[self.base.visible]
        if not len(self.extra.ids):
            return base
        ids = np.concatenate([base, self.extra.ids])
        return np.sort(ids) if len(base) and base[-1] > self.extra.ids[0] else ids

    def changed(self, origin: Origin, touched: Ids, codes: Part) -> "View":
        """The view at a later commit: `touched` ids have changed, those in `codes` are still there."""
        rows = self.base.rows(touched)
        visible = self.base.visible
        if len(rows):
            visible = np.ones(len(self.base.ids), np.bool_) if visible is None else visible.copy()
            visible[rows] = False
        stay = ~np.isin(self.extra.ids, touched)
        extra = _joined(Part(self.extra.ids[stay], self.extra.codes[stay]), codes)
        return View(origin, replace(self.base, visible=visible), extra, self.saved)

    def merged(self) -> Part:
        """Everything in one part."""
        if self.base.visible is None and not len(self.extra.ids):
            return self.base
        return _joined(self.base.without_hidden(), self.extra)

    def codes_of(self, ids: Ids) -> Codes:
        """The codes of photos by ascending id, for those that are here."""
        return _joined(self.base.taken(ids), self.extra.taken(ids)).codes

    def search(
        self,
        query: Codes,
        k: int,
        offset: int,
        *,
        choice: Choice,
        only: Ids | None,
        tables: NDArray[np.float32] | None,
    ) -> Found:
        """See Engine.search; `only` are the ids that the labels of the choice allow, ascending."""
        excluded = np.array(sorted(choice.excluded), np.int64)
        values, ids, total = [np.empty(0, np.float32)], [np.empty(0, np.int64)], 0
        for whole in (self.base, self.extra):
            part = whole if only is None else whole.narrowed(only)
            part = part if choice.radius is None else part.within(query, choice.radius)
            allowed = len(part)
            total += allowed - len(part.rows(excluded))
            wanted = min(offset + k + len(excluded), allowed)  # these drop out again below
            if wanted:
                found = part.nearest(query, wanted) if tables is None else part.best(tables, wanted)
                values.append(found[0].astype(np.float32))
                ids.append(found[1])
        every, scores = np.concatenate(ids), np.concatenate(values)
        if len(excluded):
            stay = ~np.isin(every, excluded, kind="sort")  # they are few: a table of them would cost more
            scores, every = scores[stay], every[stay]
        order = np.lexsort((every, scores))[offset : offset + k]
        if tables is None:
            return Found(every[order], scores[order].astype(np.int32), None, total)
        return Found(every[order], self._distances(query, every[order]), scores[order], total)

    def _distances(self, query: Codes, ids: Ids) -> NDArray[np.int32]:
        """Bits that differ between the query and each of these photos."""
        order = np.argsort(ids)
        distances = np.empty(len(ids), np.int32)
        distances[order] = query.distances(self.codes_of(ids[order]))[0]
        return distances


def empty_part(bits: int) -> Part:
    return Part(np.empty(0, np.int64), Codes.empty(bits))


def part_of(rows: list[tuple[int, bytes]], bits: int) -> Part:
    """A part from (id, code) rows by ascending id."""
    ids = np.fromiter((row[0] for row in rows), np.int64, len(rows))
    packed = np.frombuffer(b"".join(row[1] for row in rows), np.uint8)
    if packed.size != len(rows) * bytes_for(bits):
        raise CodesError(f"some codes have not {bits} bits")
    return Part(ids, Codes(packed.reshape(len(rows), bytes_for(bits)), bits))


def save(path: Path, view: View) -> View:
    """Write the snapshot file, and its index if it is large; the same view on top of them."""
    from safetensors.numpy import save_file

    part = view.merged()
    tensors: dict[str, NDArray[Any]] = {
        "codes": np.ascontiguousarray(part.codes.packed),
        "ids": np.ascontiguousarray(part.ids),
    }
    origin = view.origin
    header = {
        "format": FORMAT,
        "version": VERSION,
        "bits": str(view.bits),
        "generation": str(origin.generation),
        "commit": str(origin.commit),
        "stamp": origin.stamp,
    }
    with suppress(StorageError, OSError):  # a snapshot without an index is better than none
        _save_index(index_file(path), view, part)
    write_atomically(path, lambda draft: save_file(tensors, draft, header))
    return load(path) or view


def index_file(path: Path) -> Path:
    """Where the index of the snapshot at `path` lies."""
    return path.with_suffix(".index")


def worth_an_index(part: Part) -> bool:
    return len(part.ids) >= INDEXED and hamming.backend().name == "native"  # numpy scans, index or not


def _save_index(path: Path, view: View, part: Part) -> None:
    """Write the index of a part that holds everything in a view."""
    if not worth_an_index(part):
        path.unlink(missing_ok=True)
        return
    base, extra = view.base, view.extra
    only_more = base.visible is None and (not len(extra.ids) or extra.ids[0] > base.ids[-1])
    index = base.index.copy() if base.index and only_more else Index(view.bits)
    index.append(part.codes[len(index) :])
    index.note = view.origin.note
    index.save(path)


def _load_index(path: Path, origin: Origin, part: Part) -> Index | None:
    """Map the index of a part; None if there is none, it is not whole, or another's."""
    try:
        index = Index.open(path)
    except (CodesError, OSError):
        return None
    return index if (index.note, len(index), index.bits) == (origin.note, len(part.ids), part.codes.bits) else None


def load(path: Path) -> View | None:
    """Map a snapshot file into memory; None if there is none, or it is not whole."""
    try:
        header, start = _header(path)
        facts = header["__metadata__"]
        if (facts["format"], facts["version"]) != (FORMAT, VERSION):
            return None
        ids = _mapped(path, header["ids"], start, np.dtype("<i8"))
        packed = _mapped(path, header["codes"], start, np.dtype(np.uint8))
        codes = Codes(packed, int(facts["bits"]))
        if len(ids) != len(codes):
            return None
        origin = Origin(int(facts["generation"]), int(facts["commit"]), facts["stamp"])
        part = Part(ids, codes)
        if worth_an_index(part):
            part = replace(part, index=_load_index(index_file(path), origin, part))
        return View(origin, part, empty_part(codes.bits), origin.commit)
    except (OSError, ValueError, KeyError, TypeError, CodesError):
        return None  # derived: whoever asked builds it again


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The JSON header of a safetensors file, and where its data starts."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > 100_000:
            raise ValueError("not a snapshot")
        header = json.loads(file.read(length))
    end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    if path.stat().st_size != 8 + length + end:
        raise ValueError("cut off")
    return header, 8 + length


def _mapped(path: Path, entry: dict[str, Any], start: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A tensor of the file as an array that the operating system reads when it is looked at."""
    shape = tuple(entry["shape"])
    if not all(shape):
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", offset=start + entry["data_offsets"][0], shape=shape).view(np.ndarray)


def _joined(one: Part, other: Part) -> Part:
    """Two parts without hidden rows as one."""
    if not len(other.ids):
        return one
    if not len(one.ids):
        return other
    ids = np.concatenate([one.ids, other.ids])
    packed = np.concatenate([one.codes.packed, other.codes.packed])
    if one.ids[-1] > other.ids[0]:
        order = np.argsort(ids, kind="stable")
        ids, packed = ids[order], packed[order]
    return Part(ids, Codes(packed, one.codes.bits))
