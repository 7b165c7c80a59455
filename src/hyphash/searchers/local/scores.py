"""Scores of labels, ready to be scanned: a plane for each label, of 4 bits a photo (two photos a byte) or of a byte.

A photo stores its scores together (`hyphash.labels`); here and in the snapshot they lie label by label, so that a query
reads only the planes of its labels. Photos that keep but their best labels are listed by label instead, and a plane of
bytes is made when it is asked for: photos that are not on the list have the label's prior.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.hamming.twin import half_bytes
from hyphash.labels import ENTRY, KEPT
from hyphash.searchers import LabelTerm
from hyphash.stores import Ids, Scores

Plane = NDArray[np.uint8]
Tensors = dict[str, NDArray[Any]]

LISTED = KEPT * ENTRY.itemsize  # bytes of a photo that keeps only its best labels; more than those of any other
CHUNK = 1 << 16  # photos that are looked at together
PLANES = 32  # that are kept once they were made


class LabelScores:
    """The scores of a block of photos, as a snapshot has them; without any, all are the lowest."""

    def __init__(self, count: int, tensors: Tensors) -> None:
        self.count = count
        self.tensors = tensors
        self._made: dict[int | bytes, Plane] = {}

    @classmethod
    def of(cls, *parts: Scores) -> "LabelScores":
        """From the scores as photos store them; a part of no bytes has the lowest."""
        width = max((part.shape[1] for part in parts), default=0)
        padded = [np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts]
        packed = np.concatenate(padded or [np.empty((0, 0), np.uint8)])
        if packed.shape[1] == LISTED:
            entries = np.ascontiguousarray(packed).view(ENTRY).ravel()
            order = np.argsort(entries["label"], kind="stable")
            starts = np.searchsorted(entries["label"][order], np.arange((1 << 16) + 1))
            rows, values = (order // KEPT).astype(np.uint32), entries["score"][order]
            return cls(len(packed), {"scores": packed, "starts": starts, "rows": rows, "values": values})
        halves = (half for byte in packed.T for half in (byte & 15, byte >> 4))
        return cls(len(packed), {"scores": np.stack([to_plane(half) for half in halves])} if packed.size else {})

    @property
    def packed(self) -> Scores:
        """As photos store them."""
        scores = self.tensors.get("scores", np.empty((0, 0), np.uint8))
        if "rows" in self.tensors:
            return scores
        packed = np.empty((self.count, len(scores) // 2), np.uint8)
        for byte, (low, high) in enumerate(zip(scores[::2], scores[1::2], strict=True)):
            packed[:, byte] = (half_bytes(low) | half_bytes(high) << 4)[: self.count]
        return packed

    def plane(self, term: LabelTerm, codes: Callable[[], Codes]) -> Plane:
        """The plane of a label; one that has to be made is kept."""
        source, scores = term.source, self.tensors.get("scores", ())
        if isinstance(source, int) and "rows" not in self.tensors:
            return scores[source] if source < len(scores) else as_plane(np.zeros(self.count, np.uint8), term)
        assert source is not None, f"{term.label} has no scores"
        if (plane := self._made.get(source)) is None:
            numbers = self._listed(source, term.unkept) if isinstance(source, int) else self._fitted(term, codes())
            if len(self._made) >= PLANES:
                self._made.clear()
            plane = self._made[source] = as_plane(numbers, term)
        return plane

    def _listed(self, label: int, unkept: int) -> NDArray[np.uint8]:
        numbers = np.full(self.count, unkept, np.uint8)
        start, end = self.tensors["starts"][label : label + 2].tolist()
        numbers[self.tensors["rows"][start:end]] = self.tensors["values"][start:end]
        return numbers

    def _fitted(self, term: LabelTerm, codes: Codes) -> NDArray[np.uint8]:
        """Of a label whose logits follow from the stored bits and scores of others: the nearest of the term's."""
        assert isinstance(term.source, bytes)
        weights, packed = np.frombuffer(term.source, np.float32), self.packed
        width = (len(weights) - 1 - codes.bits) // 2
        if packed.shape[1] not in (width, LISTED):  # photos of another time than those that it was fitted on
            packed = np.zeros((self.count, width), np.uint8)
        numbers = np.empty(self.count, np.uint8)
        for rows in (slice(start, start + CHUNK) for start in range(0, self.count, CHUNK)):
            logits = features_of(codes[rows], packed[rows]) @ weights[:-1] + weights[-1]
            numbers[rows] = np.searchsorted((term.logits[1:] + term.logits[:-1]) / 2, logits, "right")
        return numbers


def features_of(codes: Codes, scores: Scores) -> NDArray[np.float32]:
    """What a label can be told by that has no scores of its own: bits and scores of others, each within ±1."""
    signs = codes.signs().astype(np.float32)
    if scores.shape[1] in (0, LISTED):
        return signs
    return np.concatenate([signs, half_bytes(scores) / np.float32(7.5) - 1], axis=1)


def as_plane(numbers: NDArray[np.uint8], term: LabelTerm) -> Plane:
    """The plane of a label whose photos have these scores: of bytes, or of 4 bits where that is enough."""
    return numbers if len(term.logits) > 16 else to_plane(numbers)


def to_plane(numbers: NDArray[np.uint8]) -> Plane:
    """Numbers of 4 bits, two a byte, the first in the low half."""
    even = np.pad(numbers, (0, len(numbers) % 2))
    return even[::2] | even[1::2] << np.uint8(4)


def numbers_at(plane: Plane, rows: Ids, levels: int = 16) -> NDArray[np.uint8]:
    """The scores of some photos, each one of so many."""
    if levels > 16:
        return plane[rows]
    return plane[rows >> 1] >> (rows & 1).astype(np.uint8) * np.uint8(4) & np.uint8(15)
