"""What is looked for: a place in code space, put together from photos and labels, and the ranking around it."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.collection.label_query import LabelSources, at_or_below
from hyphash.collection.records import Match, Ranking
from hyphash.errors import ConfigError, LabelError
from hyphash.hasher import Hasher, Outputs, middle, rows_of_pixels, unit
from hyphash.photos import Raw, pixels_of, read_bytes
from hyphash.searchers import Found, LabelQuery, Query, Searcher
from hyphash.searchers.filters import EVERYTHING, Filter
from hyphash.stores import Photo

if TYPE_CHECKING:
    from PIL.Image import Image

CARRIERS = 1000  # photos that are enough to tell where a label lies
LIKENESS = 1.0  # what the cosine to a photo weighs beside the log-probability of labels; see docs/search.md

Rank = Literal["labels", "hamming", "asymmetric"]


class QueryVector:
    """A place in code space, the sum of the unit vectors of all that shall be near, and labels that shall be there."""

    def __init__(self, searcher: Searcher, hasher: Hasher, sources: LabelSources) -> None:
        self.searcher = searcher
        self.store = searcher.store
        self.hasher = hasher
        self.sources = sources
        self._photos: list[Outputs] = []
        self._length = 0.0  # of the outputs of a photo; only a product quantiser cares
        self._like: Photo | None = None
        self._labels = LabelQuery()
        self._shared: set[str] = set()  # labels that a match may share

    def near(self, outputs: Outputs) -> None:
        """Near to a photo with these outputs."""
        self._photos.append(unit(outputs))
        self._length = float(np.linalg.norm(outputs))

    def near_photo(self, photo: Photo) -> None:
        """Near to a photo of the collection, which itself is not found."""
        self.near(outputs_of_code(self.hasher, photo.code))
        self._like = photo
        self._shared |= set(photo.labels)

    def near_labels(self, labels: LabelQuery) -> None:
        """With these labels."""
        self._labels = labels
        self._shared |= set(labels.names("every", "some"))

    def _label(self, label: str) -> Outputs:
        """The place of a label: its anchor, or for one the hasher never saw the middle of its photos."""
        photos = self.store.page(0, CARRIERS, carrying=[label]) if label not in self.hasher.classes else []
        if self.hasher.anchors is not None and not photos and (learnt := at_or_below(label, self.hasher.classes)):
            places = [self.hasher.label_place(one) for one in learnt]
            return places[0] if len(places) == 1 else unit(np.sum(places, axis=0))
        if not photos and self.hasher.calibration is None:
            raise LabelError(f"neither the hasher knows the label {label!r} nor does a photo here carry it; label some")
        places = [unit(outputs_of_code(self.hasher, photo.code)) for photo in photos]
        return unit(np.sum([*places, np.zeros(self.hasher.width, np.float32)], axis=0))

    def ranking(
        self, *, k: int = 10, offset: int = 0, rank: Rank | None = None, only: Filter = EVERYTHING,
        bits: int | None = None, catch_up: bool = True,
    ) -> Ranking:  # fmt: skip
        """The photos around this place, or with these labels; see `Collection.search`."""
        if rank not in (None, "labels", "hamming", "asymmetric"):
            raise ConfigError(f"rank {rank!r}: it is 'labels', 'hamming' or 'asymmetric'")
        if k < 1 or offset < 0:
            raise ConfigError(f"k={k}, offset={offset}: k is 1 or more, offset 0 or more")
        if only.radius is not None and self.hasher.quantizer is not None:
            raise ConfigError("a radius counts bits, but a product quantiser's codes are no bits; leave it out")
        if bits is not None and (rank != "hamming" or self.hasher.quantizer or not 1 <= bits <= self.hasher.bits):
            raise ConfigError(
                f"bits={bits}: the first 1 … {self.hasher.bits} bits of codes here rank, by hamming alone, none of "
                "a product quantiser; leave it out"
            )
        carrying = tuple(self.sources.spelled(label, self.hasher, strict=False) for label in only.carrying)
        only = replace(only, carrying=carrying, excluded=() if self._like is None else (self._like.id,))
        if not self._photos and not self._labels.terms and (only.by_facts or only.by_label) and rank is None:
            return self._newest(only, k, offset)
        labels = self._label_query(rank)
        outputs = self._outputs(by_labels=labels is None or not self._photos)
        code = self.hasher.to_codes(outputs[None])
        tables = prefix_tables(code, bits) if bits else self._tables(outputs, rank, labels)
        query = Query(
            code, k, offset=offset, only=only, tables=tables, bits=bits, labels=labels, catch_up=catch_up,
            fingerprint=self.hasher.fingerprint,
        )  # fmt: skip
        found = self.searcher.search(query)
        found = replace(found, scores=None) if bits else found
        return Ranking(
            self._matches(found, code), offset, found.total, tuple(sorted(self._shared)), known=found.known,
            probable=found.probable, rank="labels" if labels else rank or "hamming", behind=found.behind,
            bordered=labels is not None and tables is None,
        )  # fmt: skip

    def _newest(self, only: Filter, k: int, offset: int) -> Ranking:
        """All photos that a filter allows, where nothing else is asked for: those that were taken last first."""
        selected = self.searcher.select(only)
        ids = selected.newest(offset, k).tolist()
        captions = self.store.captions(ids)
        shown = {id: captions[id]._asdict() for id in ids if id in captions}
        matches = tuple(Match(id=id, distance=0, score=0.0, shared=(), **caption) for id, caption in shown.items())
        return Ranking(matches, offset, len(selected.ids), rank="taken")

    def _label_query(self, rank: Rank | None) -> LabelQuery | None:
        """The labels to rank by; None: their place in code space stands for them."""
        labels = self._labels
        needed = labels.said != "first" or any(term.role == "some" or term.at_least for term in labels.terms)
        if rank in ("hamming", "asymmetric") and needed:
            raise ConfigError(f"rank {rank!r} goes by codes alone; leave it out to search by what scores say")
        if rank in ("hamming", "asymmetric") or not labels.terms or any(term.source is None for term in labels.terms):
            if needed or rank == "labels":
                raise LabelError("nothing tells how probable these labels are: the hasher has no label layer, and no "
                                 "photo here carries them all; label some, or train a hasher")  # fmt: skip
            return None
        return replace(labels, said="counts") if labels.said == "first" and self._photos else labels

    def _tables(self, outputs: Outputs, rank: Rank | None, labels: LabelQuery | None) -> NDArray[np.float32] | None:
        """What the bytes of a code add up to, where that ranks; beside labels, −LIKENESS · the cosine."""
        if labels is not None and not self._photos:
            return None
        quantizer, beside = self.hasher.quantizer, labels is not None
        if quantizer is not None:  # |q − x|² / 2|q|² is 1 − the cosine, about
            weight = np.float32(LIKENESS / 2 / max(float(outputs @ outputs), 1e-12) if beside else 1)
            return cast(NDArray[np.float32], quantizer.tables(outputs[None])[0] * weight)
        weight = np.float32(LIKENESS / np.sqrt(self.hasher.bits) if beside else 1)
        return hamming.byte_tables(outputs[None] * weight)[0] if beside or rank == "asymmetric" else None

    def _outputs(self, *, by_labels: bool) -> Outputs:
        """The place of all that shall be near, labels among it or not."""
        if not self._photos and not self._labels.terms:
            raise ConfigError("nothing to search for; give a photo, the id of one, or labels, or narrow by a filter")
        labels, wishes = self._labels, list(self._photos)
        if labels.terms and by_labels:
            wishes.append(middle(labels.names("every", "some"), labels.names("unwanted"), self._label))
        outputs = unit(np.sum(wishes, axis=0))
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
        p = [None] * len(ids) if found.probabilities is None else found.probabilities.tolist()
        for id, distance, score, probability in zip(ids, distances, self._scores(found).tolist(), p, strict=True):
            if id in captions:  # else it was removed since
                path, labels, *shape = captions[id]
                shared = tuple([label for label in labels if label in self._shared])
                known = probability is not None and self._labels.carried_by(labels)
                matches.append(Match(id, path, distance, score, labels, shared, probability, known, *shape))
        return tuple(matches)

    def _scores(self, found: Found) -> NDArray[np.floating[Any]]:
        bits = self.hasher.bits
        if found.scores is None:
            return 1 - 2 * found.distances / bits
        if found.probabilities is not None:
            return -found.scores
        return -found.scores / (1.0 if self.hasher.quantizer is not None else np.sqrt(bits))


def prefix_tables(code: Codes, bits: int) -> NDArray[np.float32]:
    """What ranks by the first bits of a code, and those that are equally near there by the others; sums are exact."""
    signs = code.signs().astype(np.float32)
    signs[:, bits:] *= np.float32(2.0 ** -(code.bits - bits).bit_length())
    tables: NDArray[np.float32] = hamming.byte_tables(signs)[0]
    return tables


def _pieces(one: bytes, other: Codes) -> int:
    """In how many pieces two codes of a product quantiser differ."""
    return sum(a != b for a, b in zip(one, other.packed[0].tobytes(), strict=False))


def outputs_of_code(hasher: Hasher, code: bytes) -> Outputs:
    """Where a stored code lies, (bits,): its signs, or what a product quantiser makes of it."""
    codes = Codes(np.frombuffer(code, np.uint8)[None], hasher.bits)
    outputs: Outputs = hasher.quantizer.decode(codes) if hasher.quantizer else codes.signs().astype(np.float32)
    return outputs.reshape(-1)


def encoded(hasher: Hasher, photo: "str | Path | bytes | Image") -> Outputs:
    """The outputs of one photo, (bits,), followed by the logits of its labels where there is a label layer."""
    sees = hasher.encoder.preprocessing
    if isinstance(photo, str | Path):
        pixels = pixels_of(Raw(str(photo), read_bytes(photo)), preprocessing=sees)
    else:
        pixels = pixels_of(Raw("photo", photo), preprocessing=sees) if isinstance(photo, bytes) else sees.pixels(photo)
    row: Outputs = rows_of_pixels(hasher, pixels[None])[0]
    return row
