"""Segments: immutable parts of an index, the distinct codes of a range of ids in tables.

The bits of a code are cut into substrings, one table each. A table's directory leads from the value v of its
substring to entries[directory[v]:directory[v + 1]], one for each distinct code with this value. What an entry says
depends on the length of the codes (see `entry_type`). The ids of entry i start at ids[starts[table, i]], ascend, and
end with one whose highest bit is set. How the tables are searched stands in kernel/buckets.hpp.

An index file is a safetensors file whose sections are mapped into memory as they are. The header states format,
version, the segments, and a checksum of every section and of itself. To open one, its header, the sizes of all sections
and the content of small ones are checked; the rest is read when it is searched, and the kernel goes nowhere that a
damaged table might send it.
"""

import json
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import MAX_BITS, Codes, bytes_for
from hyphash.errors import CodesError
from hyphash.files import write_atomically
from hyphash.machine import default_threads

SPARE = 128  # entries after the last one of a table, so that a vector may be read from any entry
ALIGN = 64  # bytes; sections are filled up to this
LAST = np.uint32(1 << 31)  # marks the last id of a code
MAX_SEGMENT = 1 << 31  # codes in one segment, whose ids are 32-bit numbers
FORMAT, VERSION = "hyphash-index", "2"
KINDS = {"|u1": "U8", "<u4": "U32", "<i4": "I32", "<i8": "I64"}  # of tensors, as safetensors calls them
LANES = 1 << 13
SMALL = 1 << 22  # bytes; a section up to here is checked whenever it is opened: tails and most directories

U32 = NDArray[np.uint32]
Bytes = NDArray[np.uint8]


class Tables(NamedTuple):
    """The arrays of a segment. They may be longer than they need to be."""

    directories: U32  # of all tables, one after the other, 2^width + 1 numbers each
    entries: Bytes  # (tables, stride) entries as bytes
    starts: U32  # (tables, distinct codes); none if the directory leads to ids at once
    ids: U32  # relative to the first id of the segment, with LAST
    rows: Bytes  # all codes in the order of their ids


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


def entry_type(bits: int, tables: int) -> type[np.uint32] | type[np.uint64] | None:
    """The type of an entry.

    None: the substring is the whole code, and the directory leads to ids at once. Up to 64 bits: the rest of the
    code, without the substring. Above: the first id of the code.
    """
    if tables == 1:
        return None
    return np.uint32 if bits > 64 or bits - bits // tables <= 32 else np.uint64


def stride_for(bits: int, tables: int, distinct: int) -> int:
    return 0 if entry_type(bits, tables) is None else distinct + SPARE


def used_sizes(bits: int, tables: int, count: int, distinct: int) -> tuple[int, ...]:
    """Bytes of each array of a segment that something stands in."""
    kind = entry_type(bits, tables)
    return (
        sum((1 << substring(bits, tables, table)[1]) + 1 for table in range(tables)) * 4,
        stride_for(bits, tables, distinct) * tables * (np.dtype(kind).itemsize if kind else 0),
        distinct * tables * 4 if kind else 0,
        count * 4,
        count * bytes_for(bits),
    )


def section_sizes(bits: int, tables: int, count: int, distinct: int) -> list[int]:
    """Bytes of each array of a segment; ValueError where none has these numbers, and the kernel would go astray."""
    fits = 1 <= bits <= MAX_BITS and tables in (tables_for(bits, 0), tables_for(bits, MAX_SEGMENT))
    if not fits or not 0 <= distinct <= count <= MAX_SEGMENT or not isinstance(count, int):
        raise ValueError(f"no segment has {tables} tables for {distinct} of {count} codes of {bits} bits")
    return [-(-size // ALIGN) * ALIGN for size in used_sizes(bits, tables, count, distinct)]


def empty_tables(bits: int, tables: int, count: int, distinct: int) -> Tables:
    """Room for the arrays of a segment, filled with zeros."""
    return as_tables([np.zeros(size, np.uint8) for size in section_sizes(bits, tables, count, distinct)])


def as_tables(sections: list[Bytes]) -> Tables:
    directories, entries, starts, ids, rows = sections
    return Tables(directories.view(np.uint32), entries, starts.view(np.uint32), ids.view(np.uint32), rows)


def build_tables(kernel: Any, codes: Codes, tables: int) -> tuple[int, Tables]:
    """How many distinct codes there are, and their tables."""
    packed, bits, threads = np.ascontiguousarray(codes.packed), codes.bits, default_threads()
    order = np.empty(len(codes), np.uint32)
    words = np.empty(len(codes) if bits <= 64 else 0, np.uint64)
    distinct = kernel.sort_codes(bits, tables, threads, packed, order, words)
    arrays = empty_tables(bits, tables, len(codes), distinct)
    arrays.ids[: len(codes)] = order
    arrays.rows[: packed.size] = packed.reshape(-1)
    used, stride = used_sizes(bits, tables, len(codes), distinct), stride_for(bits, tables, distinct)
    directories, entries = arrays.directories[: used[0] // 4], arrays.entries[: used[1]]
    starts, ids = arrays.starts[: used[2] // 4], arrays.ids[: len(codes)]
    kernel.fill_tables(bits, tables, threads, distinct, stride, packed, ids, words, directories, entries, starts)
    return distinct, arrays


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────


def write_index(path: Path, bits: int, segments: tuple[Segment, ...], tail: Bytes, *, note: str) -> None:
    sections: dict[str, NDArray[Any]] = {"tail": tail.reshape(-1)}
    for number, segment in enumerate(segments):
        sections |= {f"{number}.{name}": array.view(np.uint8) for name, array in segment.arrays._asdict().items()}
    facts = json.dumps([[s.tables, s.first_id, s.count, s.distinct] for s in segments])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, sections, format=FORMAT, version=VERSION, bits=str(bits), note=note, segments=facts)


def write_tensors(path: Path, tensors: dict[str, NDArray[Any]], **metadata: str) -> None:
    """A safetensors file that also states a checksum of every tensor, and of its header."""
    arrays = {name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors, key=lambda n: -tensors[n].itemsize)}
    described: dict[str, Any] = {}
    at = 0
    for name, array in arrays.items():
        offsets, kind = [at, at := at + array.nbytes], KINDS[array.dtype.str]
        described[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": offsets}
    metadata["checksums"] = json.dumps({name: checksum(array) for name, array in arrays.items()})
    metadata["header"] = _header_checksum(metadata, described)
    text = json.dumps({"__metadata__": metadata, **described}, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGN)  # so that the tensors start aligned

    def fill(draft: Path) -> None:
        with draft.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for array in arrays.values():
                file.write(array.reshape(-1).view(np.uint8).data)

    write_atomically(path, fill)


def read_index(path: Path, *, verify: bool) -> tuple[int, tuple[Segment, ...], Bytes, str]:
    """Bits, segments, tail and note of the index at `path`, mapped into memory; all of it checked with `verify`."""
    if not path.is_file():
        raise CodesError(f"{path}: there is no such index")
    try:
        metadata, sections = _sections(path)
        bits, facts = int(metadata["bits"]), json.loads(metadata["segments"])
        for name, expected in json.loads(metadata["checksums"]).items():
            if (verify or len(sections[name]) <= SMALL) and checksum(sections[name]) != expected:
                raise _damaged(path, f"the checksum of section {name} is wrong")
        segments: list[Segment] = []
        for number, (tables, first_id, count, distinct) in enumerate(facts):
            arrays = [sections[f"{number}.{name}"] for name in Tables._fields]
            sizes = section_sizes(bits, tables, count, distinct)
            if first_id != sum(segment.count for segment in segments) or [len(array) for array in arrays] != sizes:
                raise _damaged(path, f"the tables of segment {number} have not the size that they should have")
            segments.append(Segment(bits, tables, first_id, count, distinct, as_tables(arrays)))
            if verify:
                _check(segments[-1], path)
        return bits, tuple(segments), sections["tail"].reshape(-1, bytes_for(bits)), metadata.get("note", "")
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, struct.error) as error:
        raise _damaged(path, str(error) or type(error).__name__) from error


def checksum(array: NDArray[Any]) -> str:
    """A hash of all bytes: h ← h · P + row (mod 2^64) over rows of LANES words, then one sum over the lanes.

    P and the weights are odd, so that any change of one word changes the sum.
    """
    section = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    state, prime = np.zeros(LANES, np.uint64), np.uint64(0x9E3779B97F4A7C15)
    whole = len(section) // (8 * LANES) * (8 * LANES)
    for row in section[:whole].view(np.uint64).reshape(-1, LANES):
        state *= prime
        state += row
    last = np.pad(section[whole:], (0, 8 * LANES + whole - len(section)))
    weights = 2 * np.arange(LANES, dtype=np.uint64) + 1
    total = int(((state * prime + last.view(np.uint64)) * weights).sum()) + len(section)
    return f"{total % 2**64:016x}"


def _header_checksum(metadata: dict[str, str], tensors: dict[str, Any]) -> str:
    stated = {key: value for key, value in metadata.items() if key != "header"}
    return f"{zlib.crc32(json.dumps([stated, tensors], sort_keys=True).encode()):08x}"


def map_tensors(path: Path) -> tuple[dict[str, str], dict[str, Any], Bytes]:
    """Metadata of a safetensors file, what it says of its tensors, and the bytes of these, mapped into memory."""
    data = np.memmap(path, np.uint8, "r").view(np.ndarray)
    if (length := int.from_bytes(data[:8].tobytes(), "little")) > len(data) - 8:
        raise ValueError("the header is cut off")
    tensors = json.loads(data[8 : 8 + length].tobytes())
    return tensors.pop("__metadata__"), tensors, data[8 + length :]


def _sections(path: Path) -> tuple[dict[str, str], dict[str, Bytes]]:
    metadata, tensors, body = map_tensors(path)
    if metadata["format"] != FORMAT:
        raise CodesError(f"{path}: not an index of hyphash")
    if metadata["version"] != VERSION:
        raise CodesError(
            f"{path}: written in format {metadata['version']}, this hyphash reads {VERSION}; "
            "install the version that wrote it, or build the index again"
        )
    if metadata["header"] != _header_checksum(metadata, tensors):
        raise _damaged(path, "the checksum of the header is wrong")
    if len(body) != max(tensor["data_offsets"][1] for tensor in tensors.values()):
        raise _damaged(path, f"{len(body)} bytes are not as many as it should have")
    return metadata, {name: body[slice(*tensor["data_offsets"])] for name, tensor in tensors.items()}


def _check(segment: Segment, path: Path) -> None:
    """Whether every number in the tables leads to a place that exists."""
    bits, tables, arrays = segment.bits, segment.tables, segment.arrays
    kind = entry_type(bits, tables)
    entries = segment.count if kind is None else segment.distinct
    at = 0
    ids = arrays.ids[: segment.count]
    sound = len(ids) > 0 and ids[-1] >= LAST and bool((ids & ~LAST).max() < segment.count)
    for table in range(tables):
        end = at + (1 << substring(bits, tables, table)[1]) + 1
        directory = arrays.directories[at:end]
        sound &= directory[0] == 0 and directory[-1] == entries and bool((directory[1:] >= directory[:-1]).all())
        at = end
    if kind is not None:
        sound &= bool(arrays.starts.max(initial=0) < segment.count)
    if bits > 64:
        sound &= bool(arrays.entries.view(np.uint32).max(initial=0) < segment.count)
    if not sound:
        raise _damaged(path, "its tables contradict each other")


def _damaged(path: Path, why: str) -> CodesError:
    return CodesError(f"{path}: damaged index ({why}); build it again from the codes")
