"""Exact Hamming search in numpy: the same answers as the native kernel, where none could be built.

Nothing here holds more than about 64 MB beside its result: the database goes by in chunks, and only what may
still be among the nearest is kept. Arguments come checked from `hyphash.hamming`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes

Packed = NDArray[np.uint8]
Floats = NDArray[np.float32]
Mask = NDArray[np.bool_] | None
Planes = Sequence[tuple[Packed, Floats]]  # numbers of rows, and what each number stands for
Found = tuple[NDArray[np.int32], NDArray[np.int64]]  # distances and ids
Value = TypeVar("Value", np.uint16, np.float32)

CHUNK = 1 << 16  # database codes looked at together
PAIRS = 1 << 20  # (query, code) pairs looked at together: 8 MB of 64-bit words


@dataclass(frozen=True)
class Histogram:
    """Per query and distance, arrays of shape (queries, bits + 1)."""

    count: NDArray[np.int64]  # photos at this distance
    relevant: NDArray[np.int64]  # of them, with gain > 0
    gain: NDArray[np.int64]  # Σ gain, where gain is the number of labels shared with the query
    exp_gain: NDArray[np.float64]  # Σ (2^gain − 1)

    @classmethod
    def empty(cls, queries: int, bits: int) -> "Histogram":
        count, relevant, gain = (np.zeros((queries, bits + 1), np.int64) for _ in range(3))
        return cls(count, relevant, gain, np.zeros((queries, bits + 1)))


class PlanesFound(NamedTuple):
    """What a scan over planes of scores found."""

    sums: Floats
    rows: NDArray[np.int64]
    within: int  # how many finite sums are at most the border
    finite: int


def search(queries: Codes, database: Codes, k: int, mask: Mask) -> Found:
    """The k nearest codes of each query by (distance, id); k is at most the number of codes allowed."""
    distances, ids = _least(len(queries), database, mask, k, _distances(queries), np.uint16)
    return distances.astype(np.int32), ids


def within(queries: Codes, database: Codes, radius: int, mask: Mask) -> list[Found]:
    """All codes no farther than `radius` from each query, ordered by (distance, id)."""
    found = [(np.empty(0, np.int64), np.empty(0, np.uint16), np.empty(0, np.int64))]  # query, distance, id
    for rows, chunks in _blocks(len(queries), database, mask, _distances(queries)):
        for near, chunk_ids in chunks:
            which, at = np.nonzero(near <= radius)
            found.append((which + rows.start, near[which, at], chunk_ids[at]))
    of, distances, ids = (np.concatenate(column) for column in zip(*found, strict=True))
    order, ends = np.lexsort((ids, distances, of)), np.cumsum(np.bincount(of, minlength=len(queries)))[:-1]
    parts = np.split(distances[order].astype(np.int32), ends), np.split(ids[order], ends)
    return list(zip(*parts, strict=True))[: len(queries)]


def histogram(queries: Codes, database: Codes, query_labels: Packed, database_labels: Packed) -> Histogram:
    """How many photos lie at which distance of each query, how many are relevant, and their gains."""
    bits = database.bits
    result = Histogram.empty(len(queries), bits)
    wanted, offered = query_labels.astype(np.float32), database_labels.astype(np.float32)
    gains = np.arange(int(query_labels.sum(axis=1, dtype=np.int64).max(initial=0)) + 1)
    for rows, found in _blocks(len(queries), database, None, _distances(queries)):
        both = np.zeros((rows.stop - rows.start, (bits + 1) * len(gains)), np.int64)  # (query, distance × gain)
        for near, ids in found:
            shared = wanted[rows] @ offered[ids[0] : ids[-1] + 1].T  # small integers: exact in float32
            cells = near * np.int64(len(gains)) + shared.astype(np.int64)
            for i, row in enumerate(cells):
                both[i] += np.bincount(row, minlength=both.shape[1])
        table = both.reshape(-1, bits + 1, len(gains))
        result.count[rows], result.relevant[rows] = table.sum(axis=2), table[:, :, 1:].sum(axis=2)
        result.gain[rows] = table @ gains
        result.exp_gain[rows] = (table * (np.exp2(gains) - 1)).sum(axis=2)
    return result


def search_tables(tables: Floats, database: Codes, k: int, mask: Mask) -> tuple[Floats, NDArray[np.int64]]:
    """The k codes of least Σ_j table[j, byte j] by (score, id). Bytes are added in order, in float32."""

    def sums(rows: slice, codes: Packed) -> Floats:
        result = np.zeros((rows.stop - rows.start, len(codes)), np.float32)
        for j, byte in enumerate(codes.T):
            result += tables[rows, j][:, byte]
        return result

    return _least(len(tables), database, mask, k, sums, np.float32)


def search_planes(
    planes: Planes, none: Planes, count: int, k: int, near: tuple[Floats, Packed], mask: Mask, border: float
) -> PlanesFound:
    """The k least costs by (cost, row); tables of `none` have log(1 − p). All is added in order, in float32."""
    best, within, finite = (np.empty(0, np.float32), np.empty(0, np.int64)), 0, 0
    for start in range(0, count, CHUNK):
        rows = slice(start, min(start + CHUNK, count))
        costs = _added(planes, rows)
        if none:
            with np.errstate(divide="ignore"):
                costs += -np.log(-np.expm1(_added(none, rows).astype(np.float64))).astype(np.float32)
        kept = np.flatnonzero(costs < np.inf if mask is None else (costs < np.inf) & mask[rows])
        within += int(np.count_nonzero(costs[kept] <= np.float32(border)))
        finite += len(kept)
        sums = np.zeros(len(kept), np.float32)
        for table, byte in zip(near[0], near[1][rows][kept].T, strict=True):
            sums += table[byte]
        best = _merge(best, sums + costs[kept], kept + start, k)
    return PlanesFound(*best, within, finite)


def _added(planes: Planes, rows: slice) -> Floats:
    """What the numbers of some rows, from an even one on, stand for in all planes together."""
    sums = np.zeros(rows.stop - rows.start, np.float32)
    for plane, table in planes:
        wide = len(table) == 256
        numbers = plane[rows] if wide else half_bytes(plane[rows.start // 2 : (rows.stop + 1) // 2])[: len(sums)]
        sums += table[numbers]
    return sums


def half_bytes(packed: Packed) -> Packed:
    """Two numbers of 4 bits from each byte, the low one first: (…, n) → (…, 2n)."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def as_words(packed: Packed) -> NDArray[np.uint64]:
    """Codes as rows of 64-bit words, filled up with zeros."""
    return np.pad(packed, ((0, 0), (0, -packed.shape[1] % 8))).view(np.uint64)


def _distances(queries: Codes) -> Callable[[slice, Packed], NDArray[np.uint16]]:
    """A function of some queries and some codes: how far they are from each other."""
    words = as_words(queries.packed)

    def distances(rows: slice, codes: Packed) -> NDArray[np.uint16]:
        near, far = words[rows], as_words(codes)
        result = np.zeros((len(near), len(far)), np.uint16)
        for j in range(far.shape[1]):
            result += np.bitwise_count(near[:, j, None] ^ far[None, :, j])
        return result

    return distances


def _blocks(
    count: int, database: Codes, mask: Mask, values: Callable[[slice, Packed], NDArray[Value]]
) -> Iterator[tuple[slice, Iterator[tuple[NDArray[Value], NDArray[np.int64]]]]]:
    """Blocks of queries, and for each its values with the codes that the mask allows, chunk by chunk, and their ids."""

    def chunks(rows: slice) -> Iterator[tuple[NDArray[Value], NDArray[np.int64]]]:
        for start in range(0, len(database), CHUNK):
            codes = database.packed[start : start + CHUNK]
            kept = np.arange(len(codes)) if mask is None else np.flatnonzero(mask[start : start + CHUNK])
            if len(kept):
                yield values(rows, codes if mask is None else codes[kept]), kept + start

    per_block = min(256, max(1, PAIRS // max(1, min(CHUNK, len(database)))))
    for start in range(0, count, per_block):
        rows = slice(start, min(start + per_block, count))
        yield rows, chunks(rows)


def _least(
    count: int, database: Codes, mask: Mask, k: int, values: Callable[[slice, Packed], NDArray[Value]],
    kind: type[Value],
) -> tuple[NDArray[Value], NDArray[np.int64]]:  # fmt: skip
    """For each of `count` queries the k least values by (value, id), and their ids."""
    least, least_ids = np.empty((count, k), kind), np.empty((count, k), np.int64)
    for rows, found in _blocks(count, database, mask, values):
        best = [(np.empty(0, kind), np.empty(0, np.int64))] * (rows.stop - rows.start)
        for block, ids in found:
            best = [_merge(one, row, ids, k) for one, row in zip(best, block, strict=True)]
        for i, one in enumerate(best, rows.start):
            least[i], least_ids[i] = one
    return least, least_ids


def _merge(
    best: tuple[NDArray[Value], NDArray[np.int64]], row: NDArray[Value], ids: NDArray[np.int64], k: int
) -> tuple[NDArray[Value], NDArray[np.int64]]:
    """The k least of `best` (ordered) and `row` by (value, id), where the ids of `row` are greater."""
    values, known = best
    if len(values) == k:  # an equal value with a greater id cannot push anything out
        hits = np.flatnonzero(row < values[-1]) if k else np.empty(0, np.int64)
        row, ids = row[hits], ids[hits]
    elif len(row) > k:
        hits = np.flatnonzero(row <= np.partition(row, k - 1)[k - 1])
        row, ids = row[hits], ids[hits]
    if not len(ids):
        return best
    values, known = np.concatenate([values, row]), np.concatenate([known, ids])
    order = np.argsort(values, kind="stable")[:k]
    return values[order], known[order]
