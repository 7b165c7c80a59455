"""Index: built once, saved, memory-mapped, appended to; exact answers in sub-linear time.

>>> index = Index.build(Codes.from_bits([[0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 0, 0]]))
>>> distances, ids = index.search(Codes.from_bits([[1, 0, 0]]), k=3)
>>> distances.tolist(), ids.tolist()
([[0, 1, 1]], [[2, 0, 3]])
"""

from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes, bytes_for
from hyphash.errors import CodesError
from hyphash.hamming import dispatch
from hyphash.hamming.dispatch import how_many
from hyphash.hamming.segments import MAX_SEGMENT, Segment, read_index, tables_for, write_index
from hyphash.hamming.twin import Found, Mask
from hyphash.machine import default_threads

TAIL = 1 << 16  # codes that are scanned, in some microseconds, before they are worth a segment


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
            if len(tail) >= TAIL and dispatch.kernel.indexes:
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
        return dispatch.kernel.search_snapshot(contents.snapshot, queries, k, mask, threads)

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
        return Contents(segments, tail, dispatch.kernel.snapshot(self.bits, segments, tail), count)

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
