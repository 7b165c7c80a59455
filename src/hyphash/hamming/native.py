"""The native kernel under the same names as its numpy twin. Importing this fails where no kernel was built."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.errors import CodesError
from hyphash.hamming import _kernel, twin
from hyphash.hamming import segments as parts
from hyphash.hamming.segments import Segment, Tables
from hyphash.hamming.twin import Found, HistogramArrays, Mask, Packed

name = "native"
indexes = True
NEVER_SCAN = False  # tests of the tables set this: a small segment is usually scanned
SPARSE = 8  # with fewer than one code in this many allowed, the allowed ones are copied out and searched alone


def instructions() -> str:
    return _kernel.instructions()


def search(queries: Codes, database: Codes, k: int, mask: Mask, threads: int) -> Found:
    if mask is not None and np.count_nonzero(mask) * SPARSE < len(mask):
        kept = np.flatnonzero(mask)
        distances, ids = search(queries, database[kept], k, None, threads)
        return distances, kept[ids]
    distances = np.empty((len(queries), k), np.int32)
    ids = np.empty((len(queries), k), np.int64)
    _kernel.search(
        database.bits,
        threads,
        database.bits,
        k,
        np.ascontiguousarray(queries.packed),
        np.ascontiguousarray(database.packed),
        None if mask is None else np.ascontiguousarray(mask),
        None,
        distances,
        ids,
    )
    return distances, ids


def within(queries: Codes, database: Codes, radius: int, mask: Mask, threads: int) -> list[Found]:
    near, far = np.ascontiguousarray(queries.packed), np.ascontiguousarray(database.packed)
    allowed = None if mask is None else np.ascontiguousarray(mask)
    counts = np.zeros(len(queries), np.int64)
    _kernel.count_within(database.bits, threads, radius, near, far, allowed, counts)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    distances, ids = np.empty(offsets[-1], np.int32), np.empty(offsets[-1], np.int64)
    _kernel.search(database.bits, threads, radius, 0, near, far, allowed, offsets, distances, ids)
    return list(zip(np.split(distances, offsets[1:-1]), np.split(ids, offsets[1:-1]), strict=True))[: len(queries)]


def histogram(
    queries: Codes, database: Codes, query_labels: Packed, database_labels: Packed, threads: int
) -> HistogramArrays:
    if query_labels.sum(axis=1, dtype=np.int64).max(initial=0) > 255 or not query_labels.shape[1]:
        return twin.histogram(queries, database, query_labels, database_labels, threads)
    shape = (len(queries), database.bits + 1)
    count, relevant, gain = (np.empty(shape, np.int64) for _ in range(3))
    exp_gain = np.empty(shape)
    wanted, offered = np.packbits(query_labels, axis=1), np.packbits(database_labels, axis=1)
    _kernel.histogram(
        database.bits,
        threads,
        wanted.shape[1],
        np.ascontiguousarray(queries.packed),
        np.ascontiguousarray(database.packed),
        wanted,
        offered,
        count,
        relevant,
        gain,
        exp_gain,
    )
    return count, relevant, gain, exp_gain


def search_tables(
    tables: NDArray[np.float32], database: Codes, k: int, mask: Mask, threads: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    scores = np.empty((len(tables), k), np.float32)
    ids = np.empty((len(tables), k), np.int64)
    if k:
        _kernel.search_tables(
            database.packed.shape[1],
            threads,
            k,
            len(tables),
            tables,
            np.ascontiguousarray(database.packed),
            None if mask is None else np.ascontiguousarray(mask),
            scores,
            ids,
        )
    return scores, ids


def build_tables(codes: Codes, tables: int, threads: int) -> tuple[int, Tables]:
    packed, bits = np.ascontiguousarray(codes.packed), codes.bits
    order = np.empty(len(codes), np.uint32)
    words = np.empty(len(codes) if bits <= 64 else 0, np.uint64)
    distinct = _kernel.sort_codes(bits, tables, threads, packed, order, words)
    arrays = parts.empty_tables(bits, tables, len(codes), distinct)
    arrays.ids[: len(codes)] = order
    arrays.rows[: packed.size] = packed.reshape(-1)
    direct = parts.entry_type(bits, tables) is None
    stride = parts.stride_for(bits, tables, distinct)
    _kernel.fill_tables(
        bits,
        tables,
        threads,
        distinct,
        stride,
        packed,
        arrays.ids[: len(codes)],
        words,
        arrays.directories[: parts.directory_length(bits, tables)],
        arrays.entries[: stride * tables * parts.entry_bytes(bits, tables)],
        arrays.starts[: 0 if direct else distinct * tables],
    )
    return distinct, arrays


def snapshot(bits: int, segments: Sequence[Segment], tail: Packed) -> Any:
    described = [(s.tables, s.first_id, s.count, s.distinct, s.stride, *s.arrays) for s in segments]
    return _kernel.snapshot(bits, described, tail, sum(segment.count for segment in segments), NEVER_SCAN)


def search_snapshot(snapshot: Any, queries: Codes, k: int, mask: Mask, threads: int) -> Found:
    distances = np.empty((len(queries), k), np.int32)
    ids = np.empty((len(queries), k), np.int64)
    allowed = None if mask is None else np.ascontiguousarray(mask)
    try:
        _kernel.search_snapshot(snapshot, threads, k, np.ascontiguousarray(queries.packed), allowed, distances, ids)
    except IndexError as error:
        raise CodesError(f"damaged index ({error}); build it again from the codes") from error
    return distances, ids
