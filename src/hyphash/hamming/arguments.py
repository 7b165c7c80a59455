"""Checks that all kinds of search share."""

import numpy as np

from hyphash.errors import CodesError
from hyphash.hamming.twin import Mask


def how_many(k: int, size: int, mask: Mask) -> int:
    """How many codes can be found: k, or all that the mask allows."""
    if k < 1:
        raise CodesError(f"k must be 1 or more, not {k}")
    check_mask(mask, size)
    return min(k, size if mask is None else int(np.count_nonzero(mask)))


def check_mask(mask: Mask, size: int) -> None:
    if mask is not None and (mask.dtype != np.bool_ or mask.shape != (size,)):
        raise CodesError(f"a mask has one boolean for each of the {size} codes, not {mask.dtype} of shape {mask.shape}")
