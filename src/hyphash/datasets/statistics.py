"""What is in a dataset: sizes, labels per photo, label frequencies and pairs, η, and what cannot be used."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyphash.datasets import Labels, Split, Splits
from hyphash.photos import Preprocessing, Problem, decoded

CHUNK = 1024  # label sets compared with all others at a time
SMALL = Preprocessing(size=32, mean=(0, 0, 0), std=(1, 1, 1))  # of a JPEG all is read, fewer pixels are made


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """The figures of a dataset. Photos that stand in several parts count once, except in `parts`."""

    name: str
    classes: tuple[str, ...]
    parts: dict[str, int]  # photos in each part
    photos: int
    labels_per_photo: NDArray[np.int64]  # [i] = photos that carry i labels
    frequencies: NDArray[np.int64]  # photos that carry each label
    cooccurrence: NDArray[np.int64]  # [i, j] = photos that carry both; the frequencies on the diagonal
    eta: float  # of the training part
    unlabelled: tuple[str, ...]
    missing: tuple[str, ...]
    unreadable: tuple[Problem, ...] | None  # None: the photos were not decoded
    notes: tuple[str, ...]

    @property
    def mean_labels(self) -> float:
        """Labels on the average photo."""
        return float(self.frequencies.sum() / max(self.photos, 1))

    def record(self) -> dict[str, Any]:
        """The figures as plain values, for JSON."""
        return vars(self) | {
            "classes": len(self.classes),
            "labels_per_photo": {str(i): int(n) for i, n in enumerate(self.labels_per_photo) if n},
            "mean_labels": self.mean_labels,
            "frequencies": dict(zip(self.classes, self.frequencies.tolist(), strict=True)),
            "cooccurrence": self.cooccurrence.tolist(),
            "unreadable": None if self.unreadable is None else {bad.name: bad.reason for bad in self.unreadable},
        }


def statistics(data: Splits, *, check: bool = False, progress: Callable[[int, int], None] | None = None) -> Statistics:
    """The figures of a dataset.

    With `check` every photo is decoded to find the unreadable ones; `progress(done, all)` is called after each.
    """
    parts = {"train": data.train, "queries": data.queries, "database": data.database}
    pieces = _distinct(list(parts.values()))
    labels = np.concatenate([piece.labels for piece in pieces])
    bare = [piece.name(int(i)) for piece in pieces for i in np.flatnonzero(~piece.labels.any(axis=1))]
    together = cooccurrence(labels)
    return Statistics(
        name=data.name,
        classes=data.classes,
        parts={part: len(split) for part, split in parts.items()},
        photos=len(labels),
        labels_per_photo=np.bincount(labels.sum(axis=1, dtype=np.int64)),
        frequencies=together.diagonal().copy(),
        cooccurrence=together,
        eta=eta(data.train.labels),
        unlabelled=data.unlabelled + tuple(bare),
        missing=data.missing,
        unreadable=unreadable(pieces, progress) if check else None,
        notes=data.notes,
    )


def eta(labels: Labels) -> float:
    """η: the share of all M² ordered pairs of photos that share no label while both carry more than one.

    Photos with the same label set are counted together, and the sets compared in chunks: memory grows with
    the number of different label sets, not with M².

    >>> eta(np.array([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 0]], np.uint8))  # 2 of 9 pairs
    0.2222222222222222
    """
    several = labels[labels.sum(axis=1, dtype=np.int64) > 1]
    packed, counts = np.unique(np.packbits(several, axis=1), axis=0, return_counts=True)
    members = np.unpackbits(packed, axis=1, count=labels.shape[1]).astype(np.float32)
    weights = counts.astype(np.float64)  # exact: far below 2⁵³ pairs
    pairs = 0.0
    for start in range(0, len(members), CHUNK):
        apart = members[start : start + CHUNK] @ members.T == 0
        pairs += float(weights[start : start + CHUNK] @ (apart.astype(np.float64) @ weights))
    return pairs / max(len(labels), 1) ** 2


def cooccurrence(labels: Labels) -> NDArray[np.int64]:
    """How many photos carry labels i and j: YᵀY, in chunks that float32 adds up exactly."""
    total = np.zeros((labels.shape[1], labels.shape[1]), np.int64)
    for start in range(0, len(labels), 1 << 16):
        chunk = labels[start : start + (1 << 16)].astype(np.float32)
        total += (chunk.T @ chunk).astype(np.int64)
    return total


def unreadable(pieces: Sequence[Split], progress: Callable[[int, int], None] | None = None) -> tuple[Problem, ...]:
    """The problems of photos that cannot be decoded, in their order."""
    total, bad = sum(map(len, pieces)), []
    for done, (_, found) in enumerate((photo for piece in pieces for photo in decoded(piece, SMALL)), 1):
        if isinstance(found, Problem):
            bad.append(found)
        if progress is not None:
            progress(done, total)
    return tuple(bad)


def _distinct(splits: list[Split]) -> list[Split]:
    """The photos of all splits, each once: one split for every source of photos."""
    sources = {id(split.photos): split.photos for split in splits}
    pieces = []
    for key, photos in sources.items():
        own = [split for split in splits if id(split.photos) == key]
        rows, first = np.unique(np.concatenate([split.rows for split in own]), return_index=True)
        pieces.append(Split(photos, rows, np.concatenate([split.labels for split in own])[first]))
    return pieces
