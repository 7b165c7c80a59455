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

from hyphash.codes import Codes, bytes_for

SPARE = 128  # entries after the last one of a table, so that a vector may be read from any entry
ALIGN = 64  # bytes; sections are filled up to this
LAST = np.uint32(1 << 31)  # marks the last id of a code

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


def empty_tables(bits: int, tables: int, count: int, distinct: int) -> Tables:
    """Room for the arrays of a segment, filled with zeros."""
    width = entry_bytes(bits, tables)
    sizes = (
        directory_length(bits, tables) * 4,
        stride_for(bits, tables, distinct) * tables * width,
        distinct * tables * 4 if width else 0,
        count * 4,
        count * bytes_for(bits),
    )
    sections = [np.zeros(-(-size // ALIGN) * ALIGN, np.uint8) for size in sizes]
    return as_tables(sections)


def as_tables(sections: list[NDArray[np.uint8]]) -> Tables:
    directories, entries, starts, ids, rows = sections
    return Tables(directories.view(np.uint32), entries, starts.view(np.uint32), ids.view(np.uint32), rows)


def build(codes: Codes, tables: int) -> tuple[int, Tables]:
    """The number of distinct codes, and their tables, in numpy; the kernel makes the same ones."""
    order, is_new = _sorted(codes, tables)
    first_ids = order[is_new]
    distinct = codes.packed[first_ids]
    arrays = empty_tables(codes.bits, tables, len(codes), len(distinct))
    arrays.ids[: len(codes)] = order
    arrays.ids[np.flatnonzero(is_new)[1:] - 1] |= LAST
    arrays.ids[len(codes) - 1] |= LAST
    arrays.rows[: codes.packed.size] = codes.packed.reshape(-1)
    kind = entry_type(codes.bits, tables)
    if kind is None:
        _fill_directory(arrays.directories, _values(codes.packed, codes.bits, tables, 0), codes.bits)
        return len(distinct), arrays
    starts = arrays.starts[: tables * len(distinct)].reshape(tables, -1)
    entries = arrays.entries.view(kind)[: tables * (len(distinct) + SPARE)].reshape(tables, -1)
    at = 0
    for table in range(tables):
        values = _values(distinct, codes.bits, tables, table)
        told = first_ids if codes.bits > 64 else _rests(distinct, codes.bits, tables, table)
        by_value = np.argsort(values, kind="stable")
        entries[table, : len(distinct)] = told[by_value]
        starts[table] = np.flatnonzero(is_new)[by_value]
        at += _fill_directory(arrays.directories[at:], values, substring(codes.bits, tables, table)[1])
    return len(distinct), arrays


def _fill_directory(directory: U32, values: NDArray[np.uint64], width: int) -> int:
    """Where each value's entries start; the length of the directory."""
    directory[1 : (1 << width) + 1] = np.cumsum(np.bincount(values.astype(np.int64), minlength=1 << width))
    return (1 << width) + 1


def _sorted(codes: Codes, tables: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The order by (first substring, rest, id), and which codes in it are not equal to the one before."""
    first = _values(codes.packed, codes.bits, tables, 0)
    if codes.bits > 64:
        order = np.lexsort((*codes.packed.T[::-1], first))
    else:
        order = np.lexsort((_rests(codes.packed, codes.bits, tables, 0), first))
    ordered = codes.packed[order]
    return order, np.r_[True, (ordered[1:] != ordered[:-1]).any(axis=1)][: len(codes)]


def _words(packed: NDArray[np.uint8], start: int = 0) -> NDArray[np.uint64]:
    """Eight bytes of each code from byte `start` on, as one number."""
    padded = np.zeros((len(packed), 8), np.uint8)
    part = packed[:, start : start + 8]
    padded[:, : part.shape[1]] = part
    return padded.view(np.uint64)[:, 0]


def _values(packed: NDArray[np.uint8], bits: int, tables: int, table: int) -> NDArray[np.uint64]:
    start, width = substring(bits, tables, table)
    return _words(packed, start // 8) >> np.uint64(start % 8) & np.uint64((1 << width) - 1)


def _rests(packed: NDArray[np.uint8], bits: int, tables: int, table: int) -> NDArray[np.uint64]:
    """Codes of up to 64 bits without the bits of a table's substring."""
    start, width = substring(bits, tables, table)
    words = _words(packed)
    low = words & np.uint64((1 << start) - 1)
    return low if start + width >= 64 else low | words >> np.uint64(start + width) << np.uint64(start)
