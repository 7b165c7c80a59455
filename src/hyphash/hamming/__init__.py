"""Exact search over packed codes: the nearest, all within a radius, and histograms for evaluation.

Answers are ordered by (distance, id), always: no choice of instructions, threads or plan changes them.

>>> from hyphash.codes import Codes
>>> database = Codes.from_bits([[0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 0, 0]])
>>> distances, ids = search(Codes.from_bits([[1, 0, 0]]), database, k=3)
>>> distances.tolist(), ids.tolist()
([[0, 1, 1]], [[2, 0, 3]])
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hyphash.codes import Codes, bytes_for
from hyphash.errors import CodesError
from hyphash.hamming import dispatch
from hyphash.hamming.dispatch import Backend, backend, check_labels, check_mask, how_many
from hyphash.hamming.index import Index
from hyphash.hamming.twin import Floats, Found, Histogram, Mask, Packed, Planes, PlanesFound
from hyphash.machine import default_threads

__all__ = [
    "Backend", "Histogram", "Index", "backend", "byte_tables", "histogram", "search", "search_planes", "search_tables",
    "within",
]  # fmt: skip


def search(queries: Codes, database: Codes, k: int, *, mask: Mask = None, threads: int | None = None) -> Found:
    """The k nearest codes of each query: distances and ids, shape (queries, min(k, codes allowed)).

    `mask` says for each code of the database whether it may be found. One query is spread over `threads` as well
    as many; None means all cores.
    """
    queries.require_length(database.bits)
    return dispatch.kernel.search(
        queries, database, how_many(k, len(database), mask), mask, threads or default_threads()
    )


def within(
    queries: Codes, database: Codes, radius: int, *, mask: Mask = None, threads: int | None = None
) -> list[Found]:
    """For each query the distances and ids of all codes at most `radius` bits away."""
    queries.require_length(database.bits)
    check_mask(mask, len(database))
    if radius < 0:
        raise CodesError(f"a radius is 0 or more bits, not {radius}")
    return dispatch.kernel.within(queries, database, min(radius, database.bits), mask, threads or default_threads())


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
    return dispatch.kernel.histogram(queries, database, query_labels, database_labels, threads or default_threads())


def byte_tables(outputs: ArrayLike) -> NDArray[np.float32]:
    """Look-up tables for asymmetric search, (queries, bytes, 256): real outputs against binary codes.

    table[q, j, b] = −Σ_i output[q, 8j + i] · (+1 if bit i of b else −1), so that the sum over the bytes of a
    code is minus the inner product of the outputs with the code's signs: smaller is nearer.
    """
    values = np.asarray(outputs, np.float32)
    if values.ndim != 2 or not values.shape[1]:
        raise CodesError(f"outputs come as a table of one row a photo, not of shape {values.shape}")
    if np.isnan(values).any():
        raise CodesError("some outputs are not numbers (NaN); the network has diverged")
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
    return dispatch.kernel.search_tables(tables, database, k, mask, threads or default_threads())


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
    return dispatch.kernel.search_planes(
        planes, none, count, max(k, 0), near, mask, border, threads or default_threads()
    )
