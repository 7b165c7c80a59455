"""Which kernel computes, the native one, or its numpy twin where none could be built; and what neither is asked."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.errors import CodesError, LabelError
from hyphash.hamming import twin
from hyphash.hamming.segments import Segment, Tables
from hyphash.hamming.twin import Floats, Found, Histogram, Mask, Packed, Planes, PlanesFound
from hyphash.machine import default_threads


class Kernel(Protocol):
    """What both modules, `native` and `twin`, offer. Arguments come checked; answers are the same."""

    name: str
    indexes: bool  # whether it searches the tables of segments; else it makes none and scans

    def instructions(self) -> str: ...
    def search(self, queries: Codes, database: Codes, k: int, mask: Mask, threads: int) -> Found: ...
    def within(self, queries: Codes, database: Codes, radius: int, mask: Mask, threads: int) -> list[Found]: ...
    def histogram(
        self, queries: Codes, database: Codes, query_labels: Packed, database_labels: Packed, threads: int
    ) -> Histogram: ...
    def search_tables(
        self, tables: NDArray[np.float32], database: Codes, k: int, mask: Mask, threads: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]: ...
    def search_planes(
        self, planes: Planes, none: Planes, count: int, k: int, near: tuple[Floats, Packed], mask: Mask, border: float,
        threads: int,
    ) -> PlanesFound: ...  # fmt: skip
    def build_tables(self, codes: Codes, tables: int, threads: int) -> tuple[int, Tables]: ...  # if it indexes
    def snapshot(self, bits: int, segments: Sequence[Segment], tail: Packed) -> Any: ...
    def search_snapshot(self, snapshot: Any, queries: Codes, k: int, mask: Mask, threads: int) -> Found: ...


@dataclass(frozen=True)
class Backend:
    """What computes the distances, with which instructions and on how many threads."""

    name: str
    instructions: str
    threads: int


def _load() -> ModuleType:
    if os.environ.get("HYPHASH_KERNEL") == "numpy":  # for comparisons
        return twin
    try:
        from hyphash.hamming import native
    except ImportError:  # no compiler was at hand when hyphash was installed
        return twin
    return native


current = _load()


def kernel() -> Kernel:
    return cast(Kernel, current)


def backend() -> Backend:
    """What runs here, for `hyphash doctor`."""
    return Backend(kernel().name, kernel().instructions(), default_threads())


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
