"""Index files: a safetensors file whose sections are mapped into memory as they are.

The header states format, version, the segments, and a checksum of every section and of itself. A file is written
beside its place, forced to the disk and renamed: at no moment is there half an index. To open one, its header, the
sizes of all sections and the content of small ones are checked; the rest is read when it is searched, and the kernel
goes nowhere that a damaged table might send it.
"""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import bytes_for
from hyphash.errors import CodesError
from hyphash.files import write_atomically
from hyphash.hamming.segments import ALIGN, LAST, Segment, Tables, as_tables, entry_type, section_sizes, substring

FORMAT = "hyphash-index"
VERSION = "2"
SECTIONS = Tables._fields
LANES = 1 << 13
SMALL = 1 << 22  # bytes; a section up to here is checked whenever it is opened: tails and most directories

Bytes = NDArray[np.uint8]


def write(path: Path, bits: int, segments: tuple[Segment, ...], tail: Bytes, *, note: str) -> None:
    sections: dict[str, Bytes] = {"tail": np.ascontiguousarray(tail).reshape(-1)}
    for number, segment in enumerate(segments):
        for name in SECTIONS:
            array: NDArray[np.generic] = getattr(segment.arrays, name)
            sections[f"{number}.{name}"] = array.view(np.uint8)
    facts = [[s.tables, s.first_id, s.count, s.distinct] for s in segments]
    header = _header(bits, facts, sections, note)
    path.parent.mkdir(parents=True, exist_ok=True)

    def fill(draft: Path) -> None:
        with draft.open("wb") as file:
            file.write(header)
            for section in sections.values():
                file.write(section.data)

    write_atomically(path, fill)


def read(path: Path, *, verify: bool) -> tuple[int, tuple[Segment, ...], Bytes, str]:
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
            arrays = [sections[f"{number}.{name}"] for name in SECTIONS]
            sizes = section_sizes(bits, tables, count, distinct)
            if first_id != sum(segment.count for segment in segments) or [len(array) for array in arrays] != sizes:
                raise _damaged(path, f"the tables of segment {number} have not the size that they should have")
            segments.append(Segment(bits, tables, first_id, count, distinct, as_tables(arrays)))
            if verify:
                _check(segments[-1], path)
        return bits, tuple(segments), sections["tail"].reshape(-1, bytes_for(bits)), metadata.get("note", "")
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, struct.error) as error:
        raise _damaged(path, str(error) or type(error).__name__) from error


def checksum(section: Bytes) -> str:
    """A hash of all bytes: h ← h · P + row (mod 2^64) over rows of LANES words, then one sum over the lanes.

    P and the weights are odd, so that any change of one word changes the sum.
    """
    state, prime = np.zeros(LANES, np.uint64), np.uint64(0x9E3779B97F4A7C15)
    whole = len(section) // (8 * LANES) * (8 * LANES)
    for row in section[:whole].view(np.uint64).reshape(-1, LANES):
        state *= prime
        state += row
    last = np.zeros(8 * LANES, np.uint8)
    last[: len(section) - whole] = section[whole:]
    weights = 2 * np.arange(LANES, dtype=np.uint64) + 1
    total = int(((state * prime + last.view(np.uint64)) * weights).sum()) + len(section)
    return f"{total % 2**64:016x}"


def _header(bits: int, facts: list[list[int]], sections: dict[str, Bytes], note: str) -> bytes:
    tensors: dict[str, Any] = {}
    at = 0
    for name, section in sections.items():
        tensors[name] = {"dtype": "U8", "shape": [len(section)], "data_offsets": [at, at + len(section)]}
        at += len(section)
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "bits": str(bits),
        "note": note,
        "segments": json.dumps(facts),
        "checksums": json.dumps({name: checksum(section) for name, section in sections.items()}),
    }
    metadata["header"] = _header_checksum(metadata, tensors)
    text = json.dumps({"__metadata__": metadata, **tensors}).encode()
    text += b" " * (-(len(text) + 8) % ALIGN)  # so that the sections start aligned
    return struct.pack("<Q", len(text)) + text


def _header_checksum(metadata: dict[str, str], tensors: dict[str, Any]) -> str:
    stated = {key: value for key, value in metadata.items() if key != "header"}
    return f"{zlib.crc32(json.dumps([stated, tensors], sort_keys=True).encode()):08x}"


def map_tensors(path: Path) -> tuple[dict[str, str], dict[str, Any], Bytes]:
    """Metadata of a safetensors file, what it says of its tensors, and the bytes of these, mapped into memory."""
    data = np.memmap(path, np.uint8, "r").view(np.ndarray)
    length = int.from_bytes(data[:8].tobytes(), "little")
    if length > len(data) - 8:
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
