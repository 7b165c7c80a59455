"""Segments: immutable parts of an index, the distinct codes of a range of ids in tables.

The bits of a code are cut into substrings, one table each. A table's directory leads from the value v of its
substring to entries[directory[v]:directory[v + 1]], one for each distinct code with this value. What an entry says
depends on the length of the codes (see `entry_type`). The ids of entry i start at ids[starts[table, i]], ascend, and
end with one whose highest bit is set. How the tables are searched stands in kernel/buckets.hpp.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import MAX_BITS, Codes, bytes_for

SPARE = 128  # entries after the last one of a table, so that a vector may be read from any entry
ALIGN = 64  # bytes; sections are filled up to this
LAST = np.uint32(1 << 31)  # marks the last id of a code
MAX_SEGMENT = 1 << 31  # codes in one segment, whose ids are 32-bit numbers

U32 = NDArray[np.uint32]


class Tables(NamedTuple):
    """The arrays of a segment. They may be longer than they need to be."""

    directories: U32  # of all tables, one after the other, 2^width + 1 numbers each
    entries: NDArray[np.uint8]  # (tables, stride) entries as bytes
    starts: U32  # (tables, distinct codes); none if the directory leads to ids at once
    ids: U32  # relative to the first id of the segment, with LAST
    rows: NDArray[np.uint8]  # all codes in the order of their ids


@dataclass(frozen=True)
class Segment:
    bits: int
    tables: int
    first_id: int
    count: int
    distinct: int
    arrays: Tables

    @property
    def stride(self) -> int:
        return stride_for(self.bits, self.tables, self.distinct)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def codes(self) -> Codes:
        """The codes in the order of their ids."""
        size = bytes_for(self.bits)
        return Codes(self.arrays.rows[: self.count * size].reshape(-1, size), self.bits)


def tables_for(bits: int, count: int) -> int:
    """How many tables: one for each 16 bits or so; a single direct one for short codes, if it is not mostly empty."""
    if bits <= 16 or (bits <= 24 and 1 << bits <= 16 * count):
        return 1
    return max(2, (bits + 8) // 16)


def substring(bits: int, tables: int, table: int) -> tuple[int, int]:
    """First bit and number of bits of a table's substring."""
    start = bits * table // tables
    return start, bits * (table + 1) // tables - start


def directory_length(bits: int, tables: int) -> int:
    return sum((1 << substring(bits, tables, t)[1]) + 1 for t in range(tables))


def entry_type(bits: int, tables: int) -> type[np.uint32] | type[np.uint64] | None:
    """The type of an entry.

    None: the substring is the whole code, and the directory leads to ids at once. Up to 64 bits: the rest of the
    code, without the substring. Above: the first id of the code.
    """
    if tables == 1:
        return None
    return np.uint32 if bits > 64 or bits - bits // tables <= 32 else np.uint64


def entry_bytes(bits: int, tables: int) -> int:
    kind = entry_type(bits, tables)
    return 0 if kind is None else np.dtype(kind).itemsize


def stride_for(bits: int, tables: int, distinct: int) -> int:
    return 0 if entry_type(bits, tables) is None else distinct + SPARE


def section_sizes(bits: int, tables: int, count: int, distinct: int) -> list[int]:
    """Bytes of each array of a segment; ValueError where none has these numbers, and the kernel would go astray."""
    fits = 1 <= bits <= MAX_BITS and tables in (tables_for(bits, 0), tables_for(bits, MAX_SEGMENT))
    if not fits or not 0 <= distinct <= count <= MAX_SEGMENT or not isinstance(count, int):
        raise ValueError(f"no segment has {tables} tables for {distinct} of {count} codes of {bits} bits")
    width = entry_bytes(bits, tables)
    sizes = (
        directory_length(bits, tables) * 4,
        stride_for(bits, tables, distinct) * tables * width,
        distinct * tables * 4 if width else 0,
        count * 4,
        count * bytes_for(bits),
    )
    return [-(-size // ALIGN) * ALIGN for size in sizes]


def empty_tables(bits: int, tables: int, count: int, distinct: int) -> Tables:
    """Room for the arrays of a segment, filled with zeros."""
    return as_tables([np.zeros(size, np.uint8) for size in section_sizes(bits, tables, count, distinct)])


def as_tables(sections: list[NDArray[np.uint8]]) -> Tables:
    directories, entries, starts, ids, rows = sections
    return Tables(directories.view(np.uint32), entries, starts.view(np.uint32), ids.view(np.uint32), rows)
