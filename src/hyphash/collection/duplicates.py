"""Near-duplicates: photos with the same content, or that look all but the same and have codes that agree.

Codes alone cannot tell: they put photos of the same things together. The hash of a thumbnail (64 bits of light and
dark) survives scaling and compression and differs between two photos of the same thing.
"""

from itertools import pairwise

import numpy as np

from hyphash.codes import Codes
from hyphash.errors import ConfigError
from hyphash.stores import Ids, Store, Words, gathered

PLAIN = 6  # a hash with fewer ones or zeros is that of a wall or a sky, and proves nothing
MAX_RADIUS = 15


def groups(store: Store, radius: int) -> list[tuple[int, ...]]:
    """Groups of ids: photos whose hashes differ in at most `radius` of 64 bits, directly or through others."""
    if not 0 <= radius <= MAX_RADIUS:
        raise ConfigError(f"radius {radius}: it lies between 0 (the same hash) and {MAX_RADIUS} of 64 bits")
    ids, hashes, contents, codes = _everything(store)
    ones = np.bitwise_count(hashes)
    clear = np.flatnonzero((ones >= PLAIN) & (ones <= 64 - PLAIN))
    one, other = _near(hashes[clear], radius)
    one, other = clear[one], clear[other]
    agree = np.bitwise_count(codes.packed[one] ^ codes.packed[other]).sum(axis=1) * 4 <= codes.bits
    same = _equal(contents)
    first = np.concatenate([one[agree], same[0]])
    second = np.concatenate([other[agree], same[1]])
    members = _components(len(ids), first, second)
    order = np.argsort(members, kind="stable")
    parts = np.split(ids[order], np.flatnonzero(np.diff(members[order])) + 1)
    found = [tuple(part.tolist()) for part in parts if len(part) > 1]
    return sorted(found, key=lambda group: (-len(group), group))


def _everything(store: Store) -> tuple[Ids, Words, Words, Codes]:
    """Ids, hashes, contents and codes of the photos that both walks through the store have seen."""
    code_ids, codes = gathered(store.scan(), store.state().bits)
    none = np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, np.uint64)
    ids, hashes, contents = map(np.concatenate, zip(none, *store.thumbnail_hashes(), strict=True))
    both, here, there = np.intersect1d(ids, code_ids, assume_unique=True, return_indices=True)
    return both, hashes[here], contents[here], codes[there]


def _near(hashes: Words, radius: int) -> tuple[Ids, Ids]:
    """All pairs of hashes at most `radius` bits apart.

    Cut into radius + 1 pieces, two such hashes have at least one piece in common: only those are compared.
    """
    ones, others = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    edges = np.linspace(0, 64, radius + 2).astype(np.uint64)
    for low, high in pairwise(edges):
        shifted = hashes >> low
        piece = shifted if high - low == 64 else shifted & np.uint64((1 << int(high - low)) - 1)
        order = np.argsort(piece, kind="stable")
        sorted_pieces = piece[order]
        start, step = np.arange(len(hashes)), 1
        while len(start):  # neighbours first, then those two apart, and so on to the end of each run
            start = start[start + step < len(hashes)]
            start = start[sorted_pieces[start] == sorted_pieces[start + step]]
            one, other = order[start], order[start + step]
            near = np.bitwise_count(hashes[one] ^ hashes[other]) <= radius
            ones.append(one[near])
            others.append(other[near])
            step += 1
    return np.concatenate(ones), np.concatenate(others)


def _equal(values: Words) -> tuple[Ids, Ids]:
    """Each value's place and that of the next equal one."""
    order = np.argsort(values, kind="stable")
    same = np.flatnonzero(values[order][1:] == values[order][:-1])
    return order[same], order[same + 1]


def _components(count: int, one: Ids, other: Ids) -> Ids:
    """For each of `count` nodes the least node that it is connected with."""
    least = np.arange(count)
    while True:
        both = np.minimum(least[one], least[other])
        lower = least.copy()
        np.minimum.at(lower, one, both)
        np.minimum.at(lower, other, both)
        lower = lower[lower]
        if np.array_equal(lower, least):
            return least
        least = lower
