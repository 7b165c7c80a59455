"""What is looked for: a place in code space, put together from photos and labels, and the ranking around it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.collection.records import Match, Ranking
from hyphash.errors import ConfigError, LabelError
from hyphash.hasher import Hasher, Outputs, middle, unit
from hyphash.photos import Raw, pixels_of
from hyphash.searchers import Filter, Found, Query, Searcher
from hyphash.stores import Photo

if TYPE_CHECKING:
    from PIL.Image import Image

CARRIERS = 1000  # photos that are enough to tell where a label lies

Rank = Literal["hamming", "asymmetric"]


class QueryVector:
    """A place in code space: the sum of the unit vectors of all that shall be near."""

    def __init__(self, searcher: Searcher, hasher: Hasher) -> None:
        self.searcher = searcher
        self.store = searcher.store
        self.hasher = hasher
        self._wishes: list[Outputs] = []
        self._length = 0.0  # of the outputs of a photo; only a product quantiser cares
        self._like: Photo | None = None
        self._asked: set[str] = set()  # labels that a match may share

    def near(self, outputs: Outputs) -> None:
        """Near to a photo with these outputs."""
        self._wishes.append(unit(outputs))
        self._length = float(np.linalg.norm(outputs))

    def near_photo(self, photo: Photo) -> None:
        """Near to a photo of the collection, which itself is not found."""
        self.near(outputs_of_code(self.hasher, photo.code))
        self._like = photo
        self._asked |= set(photo.labels)

    def near_labels(self, wanted: tuple[str, ...], unwanted: tuple[str, ...]) -> None:
        """Near to the middle of the wanted labels, away from the unwanted, as in Hasher.label_outputs."""
        if wanted or unwanted:
            self._wishes.append(middle(wanted, unwanted, self._label))
            self._asked |= set(wanted)

    def _label(self, label: str) -> Outputs:
        """The place of a label: its anchor, or for one the hasher never saw the middle of its photos."""
        if self.hasher.anchors is not None and label in self.hasher.classes:
            return self.hasher.label_outputs([label])
        photos = self.store.page(0, CARRIERS, carrying=[label])
        if not photos:
            raise LabelError(
                f"neither the hasher knows the label {label!r} nor does a photo here carry it; "
                f"known are {', '.join(self.hasher.classes[:40])}"
            )
        return unit(np.mean([unit(outputs_of_code(self.hasher, photo.code)) for photo in photos], axis=0))

    def ranking(
        self, *, k: int = 10, offset: int = 0, rank: Rank = "hamming", carrying: tuple[str, ...] = (),
        radius: int | None = None, catch_up: bool = True,
    ) -> Ranking:  # fmt: skip
        """The photos around this place; see `Collection.search`."""
        quantizer = self.hasher.quantizer
        if rank not in ("hamming", "asymmetric"):
            raise ConfigError(f"rank {rank!r}: it is 'hamming' or 'asymmetric'")
        if k < 1 or offset < 0:
            raise ConfigError(f"k={k}, offset={offset}: k is 1 or more, offset 0 or more")
        if radius is not None and quantizer is not None:
            raise ConfigError("a radius counts bits, but a product quantiser's codes are no bits; leave it out")
        outputs = self._outputs()
        code = self.hasher.to_codes(outputs[None])
        tables = None
        if quantizer is not None:
            tables = quantizer.tables(outputs[None])[0]
        elif rank == "asymmetric":
            tables = hamming.byte_tables(outputs[None])[0]
        only = Filter(carrying=carrying, radius=radius, excluded=() if self._like is None else (self._like.id,))
        query = Query(
            code, k, offset=offset, only=only, tables=tables, fingerprint=self.hasher.fingerprint, catch_up=catch_up
        )
        found = self.searcher.search(query)
        return Ranking(self._matches(found, code), offset, found.total, tuple(sorted(self._asked)), found.behind)

    def _outputs(self) -> Outputs:
        if not self._wishes:
            raise ConfigError("nothing to search for; give a photo, the id of one, or labels")
        outputs = unit(np.sum(self._wishes, axis=0))
        if self.hasher.quantizer is not None:  # real lengths count there, not only directions
            anchors = self.hasher.anchors
            usual = 1.0 if anchors is None else float(np.linalg.norm(anchors, axis=1).mean())
            outputs = outputs * np.float32(self._length or usual)
        return outputs

    def _matches(self, found: Found, code: Codes) -> tuple[Match, ...]:
        ids, distances = found.ids.tolist(), found.distances.tolist()
        captions = self.store.captions(ids)
        if self.hasher.quantizer is not None:
            pieces = {photo.id: _pieces(photo.code, code) for photo in self.store.get(ids)}
            distances = [pieces.get(id, 0) for id in ids]
        matches = []
        for id, distance, score in zip(ids, distances, self._scores(found).tolist(), strict=True):
            if id in captions:  # else it was removed since
                path, labels = captions[id]
                shared = tuple([label for label in labels if label in self._asked])
                matches.append(Match(id, path, distance, score, labels, shared))
        return tuple(matches)

    def _scores(self, found: Found) -> NDArray[np.floating[Any]]:
        bits = self.hasher.bits
        if found.scores is None:
            return 1 - 2 * found.distances / bits
        return -found.scores / (1.0 if self.hasher.quantizer is not None else np.sqrt(bits))


def _pieces(one: bytes, other: Codes) -> int:
    """In how many pieces two codes of a product quantiser differ."""
    return sum(a != b for a, b in zip(one, other.packed[0].tobytes(), strict=False))


def outputs_of_code(hasher: Hasher, code: bytes) -> Outputs:
    """Where a stored code lies, (bits,): its signs, or what a product quantiser makes of it."""
    codes = Codes(np.frombuffer(code, np.uint8)[None], hasher.bits)
    outputs: Outputs = hasher.quantizer.decode(codes) if hasher.quantizer else codes.signs().astype(np.float32)
    return outputs.reshape(-1)


def encoded(hasher: Hasher, photo: "str | Path | bytes | Image") -> Outputs:
    """The outputs of one photo, (bits,)."""
    if isinstance(photo, bytes):
        pixels = pixels_of(Raw("photo", photo), preprocessing=hasher.encoder.preprocessing)
        return hasher.outputs_of_pixels(pixels[None]).reshape(-1)
    return hasher.outputs([photo]).reshape(-1)
