"""What codes look like without any query: how apart label sets lie, and how well the bits are used."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes

Floats = NDArray[np.float64]
PAIRS = 1 << 20  # (centre, centre) distances held at once: 8 MB
ROWS = 1 << 14  # codes looked at together


@dataclass(frozen=True, kw_only=True)
class Separation:
    """How near photos lie to those with the same labels, and how far from those with none in common.

    A cluster is all photos with the same set of labels (photos without labels are left out), its centre the
    mean of their ±1 codes. None where there is nothing to measure.
    """

    d_intra: float | None  # mean over photos: ℓ2 distance to the centre of their cluster; small is good
    d_inter: float | None  # mean over clusters: ℓ2 distance to the nearest centre that shares no label
    clusters: int


@dataclass(frozen=True, kw_only=True)
class BitUse:
    """How much of what the bits could say they do say."""

    balance: tuple[float, ...]  # per bit, the share of codes in which it is set; .5 is best
    correlation: float | None  # mean |correlation| between two bits that are not constant; 0 is best
    constant: int  # bits that are the same in all codes
    distinct: int  # different codes


def separation(codes: Codes, labels: NDArray[np.uint8]) -> Separation:
    """d_intra and d_inter of photos with these codes and labels."""
    labelled = labels.any(axis=1)
    sets, cluster = label_sets(labels[labelled])
    signs, sizes = codes[labelled].signs(), np.bincount(cluster, minlength=len(sets))
    sums = [np.bincount(cluster, weights=bit, minlength=len(sets)) for bit in signs.T]
    centres = np.stack(sums, axis=1) / sizes[:, None]
    chunks = [slice(start, start + ROWS) for start in range(0, len(signs), ROWS)]
    own = sum(float(np.linalg.norm(signs[rows] - centres[cluster[rows]], axis=1).sum()) for rows in chunks)
    apart = nearest_unrelated(centres, sets)
    return Separation(
        d_intra=own / len(signs) if len(signs) else None,
        d_inter=float(apart.mean()) if len(apart) else None,
        clusters=len(sets),
    )


def nearest_unrelated(centres: Floats, sets: NDArray[np.uint8]) -> Floats:
    """The distance from each centre that has any to the nearest one whose label set shares no label.

    Numbers of half the length say which centres may be the nearest; the nearest of these is then found exactly.
    """
    bits = centres.shape[1]
    barrier = 8.0 * bits + 1  # a shared label lies farther than any two centres: ‖a − b‖² ≤ 4·bits
    doubt = bits * (bits + 4) * 2.0**-22  # how far off the difference of two such numbers may be
    squares = (centres**2).sum(axis=1).astype(np.float32)
    left = np.hstack([-2 * centres, barrier * sets]).astype(np.float32)
    right = np.hstack([centres, sets]).astype(np.float32)
    found = []
    step = max(1, PAIRS // max(1, len(centres)))
    for start in range(0, len(centres), step):
        # ‖a − b‖² + barrier · shared labels, less ‖a‖², which is the same for the whole row
        distance = left[start : start + step] @ right.T
        distance += squares
        least = distance.min(axis=1, keepdims=True)
        one, other = np.divmod(np.flatnonzero(distance <= least + doubt), len(centres))
        one += start
        apart = _apart(centres, one, other)
        apart[(sets[one] & sets[other]).any(axis=1)] = np.inf
        nearest = np.minimum.reduceat(apart, np.flatnonzero(np.diff(one, prepend=-1)))
        found.append(nearest[np.isfinite(nearest)])
    return np.concatenate(found) if found else np.empty(0)


def _apart(centres: Floats, one: NDArray[np.int64], other: NDArray[np.int64]) -> Floats:
    """The distances of pairs of centres, of which there are many where codes are all alike."""
    chunks = [slice(start, start + ROWS) for start in range(0, len(one), ROWS)]
    parts = [np.linalg.norm(centres[one[rows]] - centres[other[rows]], axis=1) for rows in chunks]
    return np.concatenate(parts)


def bit_use(codes: Codes) -> BitUse:
    together = np.zeros((codes.bits, codes.bits))
    for start in range(0, len(codes), ROWS):
        ones = codes[start : start + ROWS].unpacked().astype(np.float32)
        together += ones.T @ ones  # whole numbers: exact
    both = together / max(len(codes), 1)
    share = np.diag(both)
    varying = (share > 0) & (share < 1)
    spread = np.sqrt(share * (1 - share))[varying]
    covariance = both[np.ix_(varying, varying)] - np.outer(share[varying], share[varying])
    others = ~np.eye(len(spread), dtype=bool)
    correlation = np.abs(covariance / np.outer(spread, spread))[others]
    return BitUse(
        balance=tuple(share.tolist()),
        correlation=float(correlation.mean()) if len(correlation) else None,
        constant=int((~varying).sum()),
        distinct=len(distinct_rows(codes.packed)[0]),
    )


def label_sets(labels: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The different label sets among photos, multi-hot, and which of them each photo has."""
    packed, which = distinct_rows(np.packbits(labels, axis=1))
    return np.unpackbits(packed, axis=1, count=labels.shape[1]), which


def distinct_rows(rows: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The different rows of bytes in their order, and which of them each row is."""
    if not 0 < rows.shape[1] <= 8:
        distinct, which = np.unique(rows, axis=0, return_inverse=True)
        return distinct, which.reshape(-1)
    wide = np.zeros((len(rows), 8), np.uint8)  # as numbers they are sorted many times faster than as rows
    wide[:, : rows.shape[1]] = rows
    numbers, which = np.unique(wide.view(">u8")[:, 0].astype(np.uint64), return_inverse=True)
    return numbers.astype(">u8").view(np.uint8).reshape(-1, 8)[:, : rows.shape[1]], which
