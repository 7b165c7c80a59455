"""Exact search over packed codes: the nearest, all within a radius, and histograms for evaluation; and an Index, built
once, saved, memory-mapped, appended to, that finds the nearest in sub-linear time.

Answers are ordered by (distance, id), always: no choice of instructions, threads or plan changes them.

>>> database = Codes.from_bits([[0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 0, 0]])
>>> distances, ids = search(Codes.from_bits([[1, 0, 0]]), database, k=3)
>>> distances.tolist(), ids.tolist()
([[0, 1, 1]], [[2, 0, 3]])
>>> [found.tolist() for found in Index.build(database).search(Codes.from_bits([[1, 0, 0]]), k=3)]
[[[0, 1, 1]], [[2, 0, 3]]]

Two modules compute, with the same functions, but that the twin makes no tables: the native one, and its twin in numpy
where none could be built. They are given arguments that are checked, and their answers are equal.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hyphash.codes import Codes, bytes_for, numbers
from hyphash.errors import CodesError, LabelError
from hyphash.hamming import twin
from hyphash.hamming.segments import MAX_SEGMENT, Segment, read_index, tables_for, write_index
from hyphash.hamming.twin import Floats, Found, Histogram, Mask, Packed, Planes, PlanesFound
from hyphash.machine import default_threads

__all__ = [
    "Backend", "Histogram", "Index", "backend", "byte_tables", "check_labels", "histogram", "search", "search_planes",
    "search_tables", "within",
]  # fmt: skip

TAIL = 1 << 16  # codes of an index that are scanned, in some microseconds, before they are worth a segment

if TYPE_CHECKING or os.environ.get("HYPHASH_KERNEL") == "numpy":  # for comparisons
    kernel = twin
else:
    try:
        from hyphash.hamming import native as kernel
    except ImportError:  # no compiler was at hand when hyphash was installed
        kernel = twin


@dataclass(frozen=True)
class Backend:
    """What computes the distances, with which instructions and on how many threads."""

    name: str
    instructions: str
    threads: int


def backend() -> Backend:
    """What runs here, for `hyphash doctor`."""
    return Backend(kernel.name, kernel.instructions(), default_threads())


def search(queries: Codes, database: Codes, k: int, *, mask: Mask = None, threads: int | None = None) -> Found:
    """The k nearest codes of each query: distances and ids, shape (queries, min(k, codes allowed)).

    `mask` says for each code of the database whether it may be found. One query is spread over `threads` as well
    as many; None means all cores.
    """
    queries.require_length(database.bits)
    return kernel.search(queries, database, how_many(k, len(database), mask), mask, threads or default_threads())


def within(
    queries: Codes, database: Codes, radius: int, *, mask: Mask = None, threads: int | None = None
) -> list[Found]:
    """For each query the distances and ids of all codes at most `radius` bits away."""
    queries.require_length(database.bits)
    check_mask(mask, len(database))
    if radius < 0:
        raise CodesError(f"a radius is 0 or more bits, not {radius}")
    return kernel.within(queries, database, min(radius, database.bits), mask, threads or default_threads())


def histogram(
    queries: Codes,
    database: Codes,
    query_labels: NDArray[np.uint8],
    database_labels: NDArray[np.uint8],
    *,
    threads: int | None = None,
) -> Histogram:
    """How many photos lie at which distance of each query, how many are relevant, and their gains.

    Labels are multi-hot, one row a photo. The base of every measure that treats ties fairly.
    """
    check_labels(queries, database, query_labels, database_labels)
    return kernel.histogram(queries, database, query_labels, database_labels, threads or default_threads())


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
    tables: NDArray[np.float32] = -(padded.reshape(-1, size, 8) @ signs.T)
    return tables


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
    return kernel.search_tables(tables, database, k, mask, threads or default_threads())


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
    near = np.ascontiguousarray(tables, np.float32), codes
    return kernel.search_planes(planes, none, count, max(k, 0), near, mask, border, threads or default_threads())


def how_many(k: int, size: int, mask: Mask) -> int:
    """How many codes can be found: k, or all that the mask allows."""
    if k < 1:
        raise CodesError(f"k must be 1 or more, not {k}")
    check_mask(mask, size)
    return min(k, size if mask is None else int(np.count_nonzero(mask)))


def check_mask(mask: Mask, size: int) -> None:
    if mask is not None and (mask.dtype != np.bool_ or mask.shape != (size,)):
        raise CodesError(f"a mask has one boolean for each of the {size} codes, not {mask.dtype} of shape {mask.shape}")


def check_labels(
    queries: Codes, database: Codes, query_labels: NDArray[np.uint8], database_labels: NDArray[np.uint8]
) -> None:
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
        self._buffer = np.empty((0, bytes_for(bits)), np.uint8)  # the tail, with room to grow
        self._contents = self._contents_of((), self._buffer)

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
            tail = self._grow(contents.tail, codes.packed)
            segments = contents.segments
            if len(tail) >= TAIL and kernel.indexes:
                segments = self._with_segment(segments, Codes(tail, self.bits))
                tail = self._buffer = np.empty((0, bytes_for(self.bits)), np.uint8)
            self._contents = self._contents_of(segments, tail)
            return first_id

    def search(self, queries: Codes, k: int, *, mask: Mask = None, threads: int | None = None) -> Found:
        """The k nearest codes of each query by (distance, id), as `hamming.search` finds them.

        `mask` says for each code whether it may be found. Many queries in one call are spread over `threads`.
        """
        queries.require_length(self.bits)
        contents = self._contents
        k = how_many(k, contents.count, mask)
        if threads is None:
            threads = 1 if len(queries) == 1 else default_threads()
        return kernel.search_snapshot(contents.snapshot, queries, k, mask, threads)

    def codes(self) -> Codes:
        """All codes in the order of their ids."""
        contents = self._contents
        parts = [segment.codes() for segment in contents.segments]
        return Codes.concatenate([*parts, Codes(contents.tail, self.bits)])

    def save(self, path: str | Path) -> None:
        """Write the index to a file, all or nothing: whoever opens it finds the old one or the new."""
        contents = self._contents
        write_index(Path(path), self.bits, contents.segments, contents.tail, note=self.note)

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = False) -> "Index":
        """Map an index file into memory, which reads little of it; `verify` reads and checks all."""
        bits, segments, tail, note = read_index(Path(path), verify=verify)
        index = cls(bits)
        index._buffer, index._contents, index.note = tail, index._contents_of(segments, tail), note
        return index

    def copy(self) -> "Index":
        """An index of the same codes, to append to while this one stays as it is. They share their memory."""
        index = Index(self.bits)
        index._buffer, index._contents, index.note = self._contents.tail, self._contents, self.note
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

    def _contents_of(self, segments: tuple[Segment, ...], tail: NDArray[np.uint8]) -> Contents:
        count = sum(segment.count for segment in segments) + len(tail)
        return Contents(segments, tail, kernel.snapshot(self.bits, segments, tail), count)

    def _grow(self, tail: NDArray[np.uint8], new: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The tail with new codes behind it. Searches that run keep their shorter view of the same buffer."""
        size = len(tail) + len(new)
        if size > len(self._buffer):
            self._buffer = np.empty((max(size, 2 * len(self._buffer)), tail.shape[1]), np.uint8)
            self._buffer[: len(tail)] = tail
        self._buffer[len(tail) : size] = new
        return self._buffer[:size]

    def _with_segment(self, segments: tuple[Segment, ...], codes: Codes) -> tuple[Segment, ...]:
        """One more segment, joined with those before that are not much larger: few segments, each rarely rebuilt."""
        from hyphash.hamming import native

        while segments and segments[-1].count < 2 * len(codes):
            if segments[-1].count + len(codes) > MAX_SEGMENT:
                break
            codes = Codes.concatenate([segments[-1].codes(), codes])
            segments = segments[:-1]
        first_id = sum(segment.count for segment in segments)
        if len(codes) > MAX_SEGMENT:
            raise CodesError(f"append at most {MAX_SEGMENT} codes at a time, not {len(codes)}")
        tables = tables_for(self.bits, len(codes))
        distinct, arrays = native.build_tables(codes, tables, default_threads())
        return (*segments, Segment(self.bits, tables, first_id, len(codes), distinct, arrays))
