"""Near-duplicates: photos with the same content, or that look all but the same and have codes that agree.

Codes alone cannot tell: they put photos of the same things together. The hash of a thumbnail (64 bits of light and
dark) survives scaling and compression and differs between two photos of the same thing.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from hyphash.codes import Codes
from hyphash.collection import trash
from hyphash.collection.records import Verdict
from hyphash.errors import ConfigError, StorageError
from hyphash.files import append_json, read_json_lines
from hyphash.photos import decode
from hyphash.stores import Ids, Photo, Store, Words, gathered

if TYPE_CHECKING:
    from hyphash.collection import Collection

KEPT = "kept.jsonl"  # groups of photos that people keep all of
PLAIN = 6  # a hash with fewer ones or zeros is that of a wall or a sky, and proves nothing
MAX_RADIUS = 15


def compared(collection: "Collection", ids: Sequence[int]) -> list[tuple[Photo, float, bool]]:
    """Photos side by side, each with its sharpness and whether it is the same file as the first, the best.

    That has more pixels, else is sharper (by more than a tenth), else has more bytes.
    """

    def worth(found: tuple[Photo, float]) -> tuple[float, ...]:
        (photo, sharpness), facts = found, found[0].facts
        return facts.width * facts.height, round(math.log(sharpness, 1.1)), facts.size, -photo.id

    photos = [(photo, _sharpness(collection.thumbnail(photo.id))) for photo in collection.store.get(ids)]
    photos.sort(key=worth, reverse=True)
    return [(photo, sharpness, photo.facts.content == photos[0][0].facts.content) for photo, sharpness in photos]


def _sharpness(thumbnail: bytes) -> float:
    """The variance of the Laplacian: how much light and dark differ from pixel to pixel."""
    grey = np.pad(np.asarray(decode(thumbnail).convert("L"), np.float32), 1, "edge")
    around = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:]
    return round(float((around - 4 * grey[1:-1, 1:-1]).var()), 1) + 0.1


def resolve(collection: "Collection", keep: int, others: Sequence[int]) -> list[Verdict]:
    """Move others into the trash, and what was said of them to the photo that stays; the verdicts that undo that."""
    best, going = collection.get(keep), collection.store.get([id for id in others if id != keep])
    for photo in going:
        trash.require_movable(collection, photo)
    _, undo = collection.judge(inherited(best, going))
    trash.put(collection, going)
    return undo


def keep_all(collection: "Collection", ids: Iterable[int]) -> None:
    """These photos are none too many, however alike: remembered, until another one joins their group."""
    append_json(collection.folder / KEPT, {"photos": sorted(ids)})


def inherited(photo: Photo, going: Sequence[Photo]) -> list[Verdict]:
    """What was said of other photos that are the same, and not yet of this one."""
    said: dict[str, Literal["accept", "refuse"]] = {label: "refuse" for other in going for label in other.refused}
    said |= {label: "accept" for other in going for label in other.labels}
    return [Verdict(photo.id, label, what) for label, what in said.items() if label not in photo.labels + photo.refused]


def groups(collection: "Collection", radius: int = 4) -> list[tuple[int, ...]]:
    """Groups of ids, the largest first: of copies, or of hashes `radius` bits apart at most, maybe through others."""
    if not 0 <= radius <= MAX_RADIUS:
        raise ConfigError(f"radius {radius}: it lies between 0 (the same hash) and {MAX_RADIUS} of 64 bits")
    ids, hashes, contents, codes = _everything(collection.store)
    ones = np.bitwise_count(hashes)
    clear = np.flatnonzero((ones >= PLAIN) & (ones <= 64 - PLAIN))
    one, other = _near(hashes[clear], radius)
    one, other = clear[one], clear[other]
    agree = np.bitwise_count(codes.packed[one] ^ codes.packed[other]).sum(axis=1) * 4 <= codes.bits
    _, first, which = np.unique(contents, return_index=True, return_inverse=True)  # of each content, and where that is
    one, other = np.append(one[agree], np.arange(len(ids))), np.append(other[agree], first[which])
    members = _components(len(ids), one, other)
    order = np.argsort(members, kind="stable")
    parts = np.split(ids[order], np.flatnonzero(np.diff(members[order])) + 1)
    kept = _kept(collection.folder / KEPT)
    found = [tuple(part.tolist()) for part in parts if len(part) > 1]
    found = [group for group in found if not {*group} <= kept.get(group[0], set())]
    return sorted(found, key=lambda group: (-len(group), group))


def _kept(path: Path) -> dict[int, set[int]]:
    """The photos that are kept with each one."""
    try:
        return {id: {*line["photos"]} for line in read_json_lines(path) for id in line["photos"]}
    except (KeyError, TypeError) as error:
        raise StorageError(f"{path}: a damaged line ({error}); mend it or delete the file") from error


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
