"""Which kernel computes, the native one, or its numpy twin where none could be built; and what neither is asked.

Both modules have the same functions, but that the twin makes no tables; arguments come checked, and answers are equal.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.errors import CodesError, LabelError
from hyphash.hamming import twin
from hyphash.hamming.twin import Mask
from hyphash.machine import default_threads

if TYPE_CHECKING or os.environ.get("HYPHASH_KERNEL") == "numpy":  # for comparisons
    kernel = twin
else:
    try:
        from hyphash.hamming import native as kernel
    except ImportError:  # no compiler was at hand when hyphash was installed
        kernel = twin


@dataclass(frozen=True)
class Backend:
    """What computes the distances, with which instructions and on how many threads."""

    name: str
    instructions: str
    threads: int


def backend() -> Backend:
    """What runs here, for `hyphash doctor`."""
    return Backend(kernel.name, kernel.instructions(), default_threads())


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
