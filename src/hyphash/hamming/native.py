"""The native kernel under the same names as its numpy twin. Importing this fails where no kernel was built."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.errors import CodesError
from hyphash.hamming import _kernel, twin
from hyphash.hamming.segments import Segment, Tables, empty_tables, stride_for, used_sizes
from hyphash.hamming.twin import Floats, Found, Histogram, Mask, Packed, Planes, PlanesFound

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
    distances, ids = np.empty((len(queries), k), np.int32), np.empty((len(queries), k), np.int64)
    near, far, bits = _rows(queries), _rows(database), database.bits
    _kernel.search(bits, threads, bits, k, near, far, _flags(mask), None, distances, ids)
    return distances, ids


def within(queries: Codes, database: Codes, radius: int, mask: Mask, threads: int) -> list[Found]:
    near, far, allowed = _rows(queries), _rows(database), _flags(mask)
    counts = np.zeros(len(queries), np.int64)
    _kernel.count_within(database.bits, threads, radius, near, far, allowed, counts)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    distances, ids = np.empty(offsets[-1], np.int32), np.empty(offsets[-1], np.int64)
    _kernel.search(database.bits, threads, radius, 0, near, far, allowed, offsets, distances, ids)
    return list(zip(np.split(distances, offsets[1:-1]), np.split(ids, offsets[1:-1]), strict=True))[: len(queries)]


def histogram(
    queries: Codes, database: Codes, query_labels: Packed, database_labels: Packed, threads: int
) -> Histogram:
    if query_labels.sum(axis=1, dtype=np.int64).max(initial=0) > 255 or not query_labels.shape[1]:
        return twin.histogram(queries, database, query_labels, database_labels, threads)
    near, far = _rows(queries), _rows(database)
    wanted, offered = np.packbits(query_labels, axis=1), np.packbits(database_labels, axis=1)
    result = Histogram.empty(len(queries), database.bits)
    arrays = result.count, result.relevant, result.gain, result.exp_gain
    _kernel.histogram(database.bits, threads, wanted.shape[1], near, far, wanted, offered, *arrays)
    return result


def search_tables(
    tables: NDArray[np.float32], database: Codes, k: int, mask: Mask, threads: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    scores, ids = np.empty((len(tables), k), np.float32), np.empty((len(tables), k), np.int64)
    if k:
        rows = _rows(database)
        _kernel.search_tables(rows.shape[1], threads, k, len(tables), tables, rows, _flags(mask), scores, ids)
    return scores, ids


def search_planes(
    planes: Planes, none: Planes, count: int, k: int, near: tuple[Floats, Packed], mask: Mask, border: float,
    threads: int,
) -> PlanesFound:  # fmt: skip
    k = min(k, count)
    sums, ids, counts = np.empty(k, np.float32), np.empty(k, np.int64), np.empty(2, np.int64)
    every, some = ([np.ascontiguousarray(plane) for plane, _ in group] for group in (planes, none))
    tables = [np.ascontiguousarray(table, np.float32) for _, table in (*planes, *none)]
    codes, most = np.ascontiguousarray(near[1]), np.array([border], np.float32)
    _kernel.rank_planes(
        count, threads, k, every, some, tables, codes.shape[1], codes, near[0], most, _flags(mask), sums, ids, counts
    )
    found = min(k, int(counts[1]))
    return PlanesFound(sums[:found], ids[:found], int(counts[0]), int(counts[1]))


def build_tables(codes: Codes, tables: int, threads: int) -> tuple[int, Tables]:
    packed, bits = _rows(codes), codes.bits
    order = np.empty(len(codes), np.uint32)
    words = np.empty(len(codes) if bits <= 64 else 0, np.uint64)
    distinct = _kernel.sort_codes(bits, tables, threads, packed, order, words)
    arrays = empty_tables(bits, tables, len(codes), distinct)
    arrays.ids[: len(codes)] = order
    arrays.rows[: packed.size] = packed.reshape(-1)
    used, stride = used_sizes(bits, tables, len(codes), distinct), stride_for(bits, tables, distinct)
    directories, entries = arrays.directories[: used[0] // 4], arrays.entries[: used[1]]
    starts, ids = arrays.starts[: used[2] // 4], arrays.ids[: len(codes)]
    _kernel.fill_tables(bits, tables, threads, distinct, stride, packed, ids, words, directories, entries, starts)
    return distinct, arrays


def snapshot(bits: int, segments: Sequence[Segment], tail: Packed) -> Any:
    described = [(s.tables, s.first_id, s.count, s.distinct, s.stride, *s.arrays) for s in segments]
    return _kernel.snapshot(bits, described, tail, sum(segment.count for segment in segments), NEVER_SCAN)


def search_snapshot(snapshot: Any, queries: Codes, k: int, mask: Mask, threads: int) -> Found:
    distances, ids = np.empty((len(queries), k), np.int32), np.empty((len(queries), k), np.int64)
    try:
        _kernel.search_snapshot(snapshot, threads, k, _rows(queries), _flags(mask), distances, ids)
    except IndexError as error:
        raise CodesError(f"damaged index ({error}); build it again from the codes") from error
    return distances, ids


def _rows(codes: Codes) -> Packed:
    return np.ascontiguousarray(codes.packed)


def _flags(mask: Mask) -> Mask:
    return None if mask is None else np.ascontiguousarray(mask)
