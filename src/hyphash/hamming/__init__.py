"""Exact search over packed codes: the nearest, all within a radius, and histograms for evaluation; and an Index, built
once, saved, memory-mapped, appended to, that finds the nearest in sub-linear time.

Answers are ordered by (distance, id), always: no choice of instructions, threads or plan changes them.

>>> database = Codes.from_bits([[0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 0, 0]])
>>> distances, ids = search(Codes.from_bits([[1, 0, 0]]), database, k=3)
>>> distances.tolist(), ids.tolist()
([[0, 1, 1]], [[2, 0, 3]])
>>> [found.tolist() for found in Index.build(database).search(Codes.from_bits([[1, 0, 0]]), k=3)]
[[[0, 1, 1]], [[2, 0, 3]]]

The compiled kernel computes, or its twin in numpy where none could be built, which makes no tables. Both are given
arguments that are checked, and their answers are equal.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hyphash.codes import Codes, bytes_for, numbers
from hyphash.errors import CodesError, LabelError
from hyphash.hamming import twin
from hyphash.hamming.segments import MAX_SEGMENT, Segment, build_tables, read_index, tables_for, write_index
from hyphash.hamming.twin import Floats, Found, Histogram, Mask, Packed, Planes, PlanesFound
from hyphash.machine import default_threads

__all__ = [
    "Backend", "Histogram", "Index", "backend", "byte_tables", "check_labels", "histogram", "search", "search_planes",
    "search_tables", "within",
]  # fmt: skip

TAIL = 1 << 16  # codes of an index that are scanned, in some microseconds, before they are worth a segment
SPARSE = 8  # with fewer than one code in this many allowed, the allowed ones are copied out and searched alone
NEVER_SCAN = False  # tests of the tables set this: a small segment is usually scanned

kernel: Any = None  # as in _kernel.pyi; None: its twin computes
if os.environ.get("HYPHASH_KERNEL") != "numpy":  # for comparisons
    with suppress(ImportError):  # no compiler was at hand when hyphash was installed
        from hyphash.hamming import _kernel as kernel


@dataclass(frozen=True)
class Backend:
    """What computes the distances, with which instructions and on how many threads."""

    name: str
    instructions: str
    threads: int


def backend() -> Backend:
    """What runs here, for `hyphash doctor`."""
    name, instructions = ("native", kernel.instructions()) if kernel else ("numpy", "numpy")
    return Backend(name, instructions, default_threads())


def search(queries: Codes, database: Codes, k: int, *, mask: Mask = None, threads: int | None = None) -> Found:
    """The k nearest codes of each query: distances and ids, shape (queries, min(k, codes allowed)).

    `mask` says for each code of the database whether it may be found. One query is spread over `threads` as well
    as many; None means all cores.
    """
    queries.require_length(database.bits)
    k = how_many(k, len(database), mask)
    if not kernel:
        return twin.search(queries, database, k, mask)
    kept = None
    if mask is not None and np.count_nonzero(mask) * SPARSE < len(mask):
        kept = np.flatnonzero(mask)
        database, mask = database[kept], None
    distances, ids = _room(len(queries), k)
    near, far, bits = _rows(queries), _rows(database), database.bits
    kernel.search(bits, threads or default_threads(), bits, k, near, far, _flags(mask), None, distances, ids)
    return distances, ids if kept is None else kept[ids]


def within(
    queries: Codes, database: Codes, radius: int, *, mask: Mask = None, threads: int | None = None
) -> list[Found]:
    """For each query the distances and ids of all codes at most `radius` bits away."""
    queries.require_length(database.bits)
    check_mask(mask, len(database))
    if radius < 0:
        raise CodesError(f"a radius is 0 or more bits, not {radius}")
    bits, radius, threads = database.bits, min(radius, database.bits), threads or default_threads()
    if not kernel:
        return twin.within(queries, database, radius, mask)
    near, far, allowed, counts = _rows(queries), _rows(database), _flags(mask), np.zeros(len(queries), np.int64)
    kernel.count_within(bits, threads, radius, near, far, allowed, counts)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    distances, ids = _room(offsets[-1])
    kernel.search(bits, threads, radius, 0, near, far, allowed, offsets, distances, ids)
    return list(zip(np.split(distances, offsets[1:-1]), np.split(ids, offsets[1:-1]), strict=True))[: len(queries)]


def histogram(
    queries: Codes, database: Codes, query_labels: Packed, database_labels: Packed, *, threads: int | None = None
) -> Histogram:
    """How many photos lie at which distance of each query, how many are relevant, and their gains.

    Labels are multi-hot, one row a photo. The base of every measure that treats ties fairly.
    """
    check_labels(queries, database, query_labels, database_labels)
    many = query_labels.sum(axis=1, dtype=np.int64).max(initial=0) > 255
    if not kernel or many or not query_labels.shape[1]:
        return twin.histogram(queries, database, query_labels, database_labels)
    wanted, offered = np.packbits(query_labels, axis=1), np.packbits(database_labels, axis=1)
    found, size = Histogram.empty(len(queries), database.bits), (threads or default_threads(), wanted.shape[1])
    arrays = _rows(queries), _rows(database), wanted, offered, found.count, found.relevant, found.gain, found.exp_gain
    kernel.histogram(database.bits, *size, *arrays)
    return found


def byte_tables(outputs: ArrayLike) -> NDArray[np.float32]:
    """Look-up tables for asymmetric search, (queries, bytes, 256): real outputs against binary codes.

    table[q, j, b] = −Σ_i output[q, 8j + i] · (+1 if bit i of b else −1), so that the sum over the bytes of a
    code is minus the inner product of the outputs with the code's signs: smaller is nearer.
    """
    values = np.asarray(numbers(outputs), np.float32)
    size = bytes_for(values.shape[1])
    padded = np.zeros((len(values), size * 8), np.float32)
    padded[:, : values.shape[1]] = values
    patterns = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    signs = patterns.astype(np.float32) * 2 - 1  # (256, 8)
    return -(padded.reshape(-1, size, 8) @ signs.T)


def search_tables(
    tables: NDArray[np.float32], database: Codes, k: int, *, mask: Mask = None, threads: int | None = None
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The k codes with the least sum of table entries: scores and ids, ordered by (score, id).

    With `byte_tables` this ranks by the real outputs of a query; with tables of distances to centroids, and
    codes whose bytes name centroids, it is the search of a product quantiser.
    """
    tables = np.ascontiguousarray(tables, np.float32)
    size = database.packed.shape[1]
    if tables.ndim != 3 or tables.shape[1:] != (size, 256):
        raise CodesError(
            f"tables for {database.bits}-bit codes have the shape (queries, {size}, 256), not {tables.shape}"
        )
    if np.isnan(tables).any():
        raise CodesError("some table entries are not numbers (NaN)")
    k = how_many(k, len(database), mask)
    if not kernel:
        return twin.search_tables(tables, database, k, mask)
    scores, ids = np.empty((len(tables), k), np.float32), np.empty((len(tables), k), np.int64)
    if k:
        arrays = tables, _rows(database), _flags(mask), scores, ids
        kernel.search_tables(size, threads or default_threads(), k, len(tables), *arrays)
    return scores, ids


def search_planes(
    planes: Planes, count: int, k: int, *, some: Planes = (), near: tuple[Floats, Packed] | None = None,
    mask: Mask = None, border: float = np.inf, threads: int | None = None,
) -> PlanesFound:  # fmt: skip
    """The k of `count` rows that cost least, by (cost, row): each of their numbers costs what its table says.

    A plane comes with its table: of 256 costs, and a byte a row, or of 16, and 4 bits a row, row 2i in the low half of
    byte i and row 2i + 1 in the high one. Costs add up; of planes in `some` one is enough: together they cost
    −log(1 − Π(1 − e^−cost)). `near` adds what tables say of the bytes of codes. A row of infinite cost is not found.
    Also counted are the rows whose planes cost at most `border`, codes aside: k of 0 only counts.
    """
    tables, codes = near or (np.empty((0, 256), np.float32), np.empty((count, 0), np.uint8))
    fit = tables.shape == (codes.shape[1], 256) and len(codes) == count
    for plane, table in (*planes, *some):
        fit &= table.shape in ((16,), (256,)) and plane.size == (count if table.size == 256 else -(-count // 2))
    if not fit or any(np.isnan(table).any() for table in (tables, *(table for _, table in (*planes, *some)))):
        raise CodesError(f"a table of numbers for each plane of {count} rows, and for each byte of their codes")
    check_mask(mask, count)
    with np.errstate(divide="ignore"):
        none = [(plane, np.log1p(-np.exp(-table))) for plane, table in some]
    tables, codes, k = np.ascontiguousarray(tables, np.float32), np.ascontiguousarray(codes), min(max(k, 0), count)
    if not kernel:
        return twin.search_planes(planes, none, count, k, (tables, codes), mask, border)
    sums, ids, counts = np.empty(k, np.float32), np.empty(k, np.int64), np.empty(2, np.int64)
    every, others = ([np.ascontiguousarray(plane) for plane, _ in group] for group in (planes, none))
    costs = [np.ascontiguousarray(table, np.float32) for _, table in (*planes, *none)]
    most, by_code = np.array([border], np.float32), (codes.shape[1], codes, tables)
    kernel.rank_planes(
        count, threads or default_threads(), k, every, others, costs, *by_code, most, _flags(mask), sums, ids, counts
    )
    found = min(k, int(counts[1]))
    return PlanesFound(sums[:found], ids[:found], int(counts[0]), int(counts[1]))


def how_many(k: int, size: int, mask: Mask) -> int:
    """How many codes can be found: k, or all that the mask allows."""
    if k < 1:
        raise CodesError(f"k must be 1 or more, not {k}")
    check_mask(mask, size)
    return min(k, size if mask is None else int(np.count_nonzero(mask)))


def _rows(codes: Codes) -> Packed:
    return np.ascontiguousarray(codes.packed)


def _flags(mask: Mask) -> Mask:
    return None if mask is None else np.ascontiguousarray(mask)


def _room(*shape: int) -> Found:
    return np.empty(shape, np.int32), np.empty(shape, np.int64)


def check_mask(mask: Mask, size: int) -> None:
    if mask is not None and (mask.dtype != np.bool_ or mask.shape != (size,)):
        raise CodesError(f"a mask has one boolean for each of the {size} codes, not {mask.dtype} of shape {mask.shape}")


def check_labels(queries: Codes, database: Codes, query_labels: Packed, database_labels: Packed) -> None:
    """Queries and database that can be compared, each with one row of labels for every code."""
    queries.require_length(database.bits)
    for what, codes, labels in (("queries", queries, query_labels), ("database codes", database, database_labels)):
        if labels.ndim != 2 or len(labels) != len(codes):
            raise LabelError(f"{len(codes)} {what} but labels of shape {labels.shape}")
        if labels.max(initial=0) > 1:
            raise LabelError(f"labels of the {what} are 0 or 1, not {labels.max()}")
    if query_labels.shape[1] != database_labels.shape[1]:
        raise LabelError(f"the queries have {query_labels.shape[1]} classes, the database {database_labels.shape[1]}")


@dataclass(frozen=True)
class Contents:
    """All codes at one moment. A search works on one of these; an append replaces it by another."""

    segments: tuple[Segment, ...]
    tail: NDArray[np.uint8]  # packed codes that are in no segment yet
    snapshot: Any  # the same, as the kernel wants it
    count: int


class Index:
    """Codes with ids 0, 1, 2 …, searched exactly. Answers equal those of `hamming.search`, ties included.

    Any number of threads may search while one appends: each search sees the codes of one moment.
    """

    def __init__(self, bits: int) -> None:
        self.bits = Codes.empty(bits).bits
        self.note = ""  # goes into the file: whose codes these are, say
        self._lock = Lock()
        self._contents = self._contents_of((), Codes.empty(bits).packed)

    @classmethod
    def build(cls, codes: Codes) -> "Index":
        index = cls(codes.bits)
        index.append(codes)
        return index

    def append(self, codes: Codes) -> int:
        """Add codes; the id of the first of them."""
        codes.require_length(self.bits)
        with self._lock:
            contents = self._contents
            first_id = contents.count
            if not len(codes):
                return first_id
            segments, tail = contents.segments, np.concatenate([contents.tail, codes.packed])
            if len(tail) >= TAIL and kernel:
                segments, tail = self._with_segment(segments, Codes(tail, self.bits)), Codes.empty(self.bits).packed
            self._contents = self._contents_of(segments, tail)
            return first_id

    def search(self, queries: Codes, k: int, *, mask: Mask = None, threads: int | None = None) -> Found:
        """The k nearest codes of each query by (distance, id), as `hamming.search` finds them; one takes one thread."""
        queries.require_length(self.bits)
        contents = self._contents
        k = how_many(k, contents.count, mask)
        if threads is None:
            threads = 1 if len(queries) == 1 else default_threads()
        if not kernel:
            return twin.search(queries, contents.snapshot(), k, mask)
        distances, ids = _room(len(queries), k)
        try:
            kernel.search_snapshot(contents.snapshot, threads, k, _rows(queries), _flags(mask), distances, ids)
        except IndexError as error:
            raise CodesError(f"damaged index ({error}); build it again from the codes") from error
        return distances, ids

    def codes(self) -> Codes:
        """All codes in the order of their ids."""
        return self._joined(self._contents.segments, self._contents.tail)

    def save(self, path: str | Path) -> None:
        """Write the index to a file, all or nothing: whoever opens it finds the old one or the new."""
        contents = self._contents
        write_index(Path(path), self.bits, contents.segments, contents.tail, note=self.note)

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = False) -> "Index":
        """Map an index file into memory, which reads little of it; `verify` reads and checks all."""
        bits, segments, tail, note = read_index(Path(path), verify=verify)
        index = cls(bits)
        index._contents, index.note = index._contents_of(segments, tail), note
        return index

    def copy(self) -> "Index":
        """An index of the same codes, to append to while this one stays as it is. They share their memory."""
        index = Index(self.bits)
        index._contents, index.note = self._contents, self.note
        return index

    @property
    def nbytes(self) -> int:
        """Memory that the codes and their tables take."""
        contents = self._contents
        return sum(segment.nbytes for segment in contents.segments) + contents.tail.nbytes

    @property
    def distinct(self) -> int:
        """Distinct codes, counted in each segment."""
        contents = self._contents
        return sum(segment.distinct for segment in contents.segments) + len(contents.tail)

    def __len__(self) -> int:
        return self._contents.count

    def __repr__(self) -> str:
        return f"Index({len(self)} × {self.bits} bits)"

    def _contents_of(self, segments: tuple[Segment, ...], tail: Packed) -> Contents:
        inside = sum(segment.count for segment in segments)
        if kernel:
            described = [(s.tables, s.first_id, s.count, s.distinct, s.stride, *s.arrays) for s in segments]
            snapshot = kernel.snapshot(self.bits, described, tail, inside, NEVER_SCAN)
        else:
            snapshot = cache(lambda: self._joined(segments, tail))  # put together when first searched
        return Contents(segments, tail, snapshot, inside + len(tail))

    def _joined(self, segments: tuple[Segment, ...], tail: Packed) -> Codes:
        return Codes.concatenate([*(segment.codes() for segment in segments), Codes(tail, self.bits)])

    def _with_segment(self, segments: tuple[Segment, ...], codes: Codes) -> tuple[Segment, ...]:
        """One more segment, joined with those before that are not much larger: few segments, each rarely rebuilt."""
        while segments and segments[-1].count < 2 * len(codes):
            if segments[-1].count + len(codes) > MAX_SEGMENT:
                break
            codes = Codes.concatenate([segments[-1].codes(), codes])
            segments = segments[:-1]
        first_id = sum(segment.count for segment in segments)
        if len(codes) > MAX_SEGMENT:
            raise CodesError(f"append at most {MAX_SEGMENT} codes at a time, not {len(codes)}")
        tables = tables_for(self.bits, len(codes))
        return (*segments, Segment(self.bits, tables, first_id, len(codes), *build_tables(kernel, codes, tables)))
