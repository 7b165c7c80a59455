"""What is looked for: labels, a place in code space put together from photos and labels, and the ranking around it.

A hasher with a label layer has scores in the store. For a label that it never saw, and for a hasher without a layer,
a logistic layer over stored bits and scores is fitted from the photos that carry the label, and kept until they change.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from operator import ne
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.collection.records import Match, Ranking
from hyphash.datasets import spelled, with_parents
from hyphash.errors import ConfigError, LabelError, did_you_mean
from hyphash.hasher import Hasher, Outputs, middle, rows_of_pixels, unit
from hyphash.labels import fit_logistic, logit, sigmoid
from hyphash.photos import Raw, pixels_of, read_bytes
from hyphash.searchers import Found, LabelQuery, LabelTerm, Query, Role, Said, Searcher
from hyphash.searchers.filters import EVERYTHING, Filter
from hyphash.searchers.local.scores import features_of
from hyphash.stores import Ids, Photo, Scores, Session, Store, require_hasher

if TYPE_CHECKING:
    from PIL.Image import Image

PLACED = 1000  # photos that are enough to tell where a label lies,
CARRIERS = 2000  # and to tell a label by,
OTHERS = 8000  # and of those that are not to be told by it
FEW = 500  # tagged photos without the label below which untagged ones are taken for such
LIKENESS = 1.0  # what the cosine to a photo weighs beside the log-probability of labels; see docs/search.md

Rank = Literal["labels", "hamming", "asymmetric"]


def probabilities(pairs: Iterable[str]) -> dict[str, float]:
    """What each label must have at least, of pairs such as dog=.8."""
    try:
        return {label.strip(): float(p) for label, _, p in (pair.rpartition("=") for pair in pairs)}
    except ValueError as error:
        raise ConfigError(f"a label and the probability that it must have, such as dog=.8 ({error})") from None


def roles_of(
    every: Iterable[str], some: Iterable[str], unwanted: Iterable[str], missing: str, wrong: str
) -> tuple[list[tuple[str, Role]], Said]:
    """Each label of a search with its role, and what is made of what people said."""
    asked: dict[Role, Iterable[str]] = {"every": every, "some": some, "unwanted": unwanted}
    roles = [(label, role) for role, labels in asked.items() for label in spelled(labels)]
    if (missing or wrong) and (roles or (missing and wrong)):
        raise ConfigError("labels that are missing, and labels that are wrong, are searched for by themselves")
    if missing:
        return [(missing, "every")], "lacking"
    return ([(wrong, "unwanted")], "ignored") if wrong else (roles, "first")


class LabelSources:
    """The labels of one collection; those that were fitted are kept while the same photos carry and refuse them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._fitted: dict[tuple[str, str], tuple[int, LabelTerm | None]] = {}  # by hasher and label; see _told

    def spelled(self, label: str, hasher: Hasher, *, strict: bool = True) -> str:
        """A label as the hasher or the photos have it, whatever its case; LabelError where neither knows it."""
        if label in hasher.classes or self.store.count(carrying=[label]):
            return label
        known = with_parents([*hasher.classes, *self.store.labels()])
        same = [one for one in known if one.casefold() == label.casefold()]
        if same or not strict:
            return [*same, label][0]
        meant = did_you_mean(label, known) or "`hyphash collection stats` lists those that photos carry"
        raise LabelError(f"no photo here carries the label {label!r}, and it was never learned; {meant}")

    def get(self, label: str, hasher: Hasher) -> LabelTerm | None:
        """Where the scores of a label come from, and what they mean; None: there is nothing to tell it by."""
        calibration = hasher.calibration
        if calibration is not None and label in hasher.classes:
            number = hasher.classes.index(label)
            levels = calibration.tables[number]
            unkept = int(np.abs(levels - logit(calibration.priors[number])).argmin())
            return LabelTerm(label, number, levels, float(calibration.thresholds[number]), unkept)
        key, told = (hasher.fingerprint, label), self.store.read(lambda session: _told(session, label))
        if self._fitted.get(key, (None, None))[0] != told:
            self._fitted[key] = told, self._fit(label, hasher)
        return self._fitted[key][1]

    def _fit(self, label: str, hasher: Hasher) -> LabelTerm | None:
        read = self.store.read(lambda session: (session.state(), _examples(session, label)))
        state, ((ids, codes, scores), carriers, odds) = read
        require_hasher(state, hasher.fingerprint, self.store.shown)  # the collection may have just moved to another
        carried = np.isin(ids, carriers)
        if not carried.any() or carried.all() or (hasher.quantizer is not None and not scores.shape[1]):
            return None
        features = features_of(codes, scores)
        layer = fit_logistic(features, carried[:, None])
        logits = layer.logits(features) - np.log(odds)
        levels = np.linspace(logits.min(), logits.max(), 256, dtype=np.float32)
        weights = np.append(layer.weights[0], layer.bias[0] - np.log(odds)).astype(np.float32)
        threshold = sigmoid(logit(layer.calibration.thresholds[0]) - np.log(odds))
        return LabelTerm(label, weights.tobytes(), levels, float(threshold))

    def _with_children(self, asked: list[tuple[str, Role]], hasher: Hasher) -> Iterator[tuple[str, Role, str]]:
        """Labels, roles, and what was asked for: of a label that was learnt by its kinds alone, any of these will do.

        Of several that are wanted all, each is told by the photos that carry it.
        """
        learnt = hasher.classes if hasher.calibration else ()
        children = {name: at_or_below(name, learnt) if name not in learnt else [] for name, _ in asked}
        wanted = [role == "every" for name, role in asked if role == "some" or (role == "every" and children[name])]
        for name, role in asked:
            if not children[name] or (role == "every" and wanted != [True]):
                yield name, role, name
                continue
            kind: Role = "some" if role == "every" else role
            for one in (*([name] if self.get(name, hasher) else ()), *children[name]):
                yield one, kind, name

    def query(
        self, roles: Iterable[tuple[str, Role]], said: Said, at_least: Mapping[str, float], hasher: Hasher, *,
        scored: bool,
    ) -> LabelQuery:  # fmt: skip
        """The labels of a search under their names here, `scored` with their scores where these are to be had.

        A label that must have some probability is wanted, unless it is one of some of which one is enough.
        """
        terms: dict[str, LabelTerm] = {}
        least = {self.spelled(label, hasher): p for label, p in at_least.items()}
        implied: list[tuple[str, Role]] = [(label, "every") for label in least]
        named = [(self.spelled(label, hasher), role) for label, role in (*roles, *implied)]
        for name, role, top in self._with_children(named, hasher) if scored else ((*one, one[0]) for one in named):
            found, asked = self.get(name, hasher) if scored else None, least.get(top, 0.0)
            term = replace(found, role=role, at_least=asked) if found else LabelTerm(name, role=role, at_least=asked)
            if (terms.setdefault(name, term).role == "unwanted") != (role == "unwanted"):
                raise LabelError(f"the label {name!r} is wanted and unwanted at once; leave one out")
        if odd := [f"{label}={p:g}" for label, p in least.items() if not 0 <= p <= 1]:
            raise ConfigError(f"at least {odd[0]}: a probability lies between 0 and 1")
        return LabelQuery(tuple(terms.values()), said)


def at_or_below(label: str, classes: Iterable[str]) -> list[str]:
    """The label, if it is a class, else those classes that are kinds of it: of animal, animal/dog."""
    return [label] if label in classes else [one for one in classes if one.startswith(f"{label}/")]


def _told(session: Session, label: str) -> int:
    """A number that changes with what is said of a label, and when there are twice as many photos."""
    people = session.ids_carrying([label]), session.ids_refusing(label)
    size = session.state().photos.bit_length(), len(session.ids_carrying(())).bit_length()
    return hash((*size, *(ids.tobytes() for ids in people)))


def _examples(session: Session, label: str) -> tuple[tuple[Ids, Codes, Scores], Ids, float]:
    """Photos to fit a label on, evenly spread; which carry it, and how many times rather these were taken."""
    carriers, others = session.ids_carrying([label]), session.ids_carrying(())
    if len(others) - len(carriers) < FEW:
        others = np.union1d(others, session.derived(session.state().in_use)[0])
    others = np.setdiff1d(np.union1d(others, session.ids_refusing(label)), carriers, assume_unique=True)
    steps = max(len(carriers) // CARRIERS, 1), max(len(others) // OTHERS, 1)
    taken = carriers[:: steps[0]], others[:: steps[1]]
    return session.derived_of(np.union1d(*taken)), taken[0], steps[1] / steps[0]


class QueryVector:
    """A place in code space, the sum of the unit vectors of all that shall be near, and labels that shall be there."""

    def __init__(
        self, searcher: Searcher, hasher: Hasher, sources: LabelSources, *, near: Iterable[Outputs] = (),
        like: Photo | None = None, labels: LabelQuery | None = None,
    ) -> None:  # fmt: skip
        """Near to photos with these outputs, and to one of the collection, which itself is not found."""
        self.searcher = searcher
        self.store = searcher.store
        self.hasher = hasher
        self.sources = sources
        photos = [*near, *([] if like is None else [outputs_of_code(hasher, like.code)])]
        self._photos = [unit(outputs) for outputs in photos]
        self._length = float(np.linalg.norm(photos[-1])) if photos else 0.0  # only a product quantiser cares
        self._like = like
        self._labels = labels or LabelQuery()
        self._shared = {*(like.labels if like else ()), *self._labels.names("every", "some")}  # what a match may share

    def _label(self, label: str) -> Outputs:
        """The place of a label: its anchor, or for one the hasher never saw the middle of its photos."""
        photos = self.store.page(0, PLACED, carrying=[label]) if label not in self.hasher.classes else []
        if self.hasher.anchors is not None and not photos and (learnt := at_or_below(label, self.hasher.classes)):
            places = [self.hasher.label_place(one) for one in learnt]
            return places[0] if len(places) == 1 else unit(np.sum(places, axis=0))
        if not photos and self.hasher.calibration is None:
            raise LabelError(f"no photo here carries the label {label!r}, and it was never learned; label some")
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
        if carrying or self._like:
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
        outputs = unit(np.add.reduce(wishes))  # np.sum takes longer
        if self.hasher.quantizer is not None:  # real lengths count there, not only directions
            anchors = self.hasher.anchors
            usual = 1.0 if anchors is None else float(np.linalg.norm(anchors, axis=1).mean())
            outputs = outputs * np.float32(self._length or usual)
        return outputs

    def _matches(self, found: Found, code: Codes) -> tuple[Match, ...]:
        ids, distances = found.ids.tolist(), found.distances.tolist()
        captions = self.store.captions(ids)
        if self.hasher.quantizer is not None:
            asked = code.packed[0].tolist()  # a distance is then in how many pieces two codes differ
            pieces = {photo.id: sum(map(ne, photo.code, asked)) for photo in self.store.get(ids)}
            distances = [pieces.get(id, 0) for id in ids]
        matches, shared = [], dict[tuple[str, ...], tuple[str, ...]]()  # many of them carry the same labels
        p = [None] * len(ids) if found.probabilities is None else found.probabilities.tolist()
        for id, distance, score, probability in zip(ids, distances, self._scores(found).tolist(), p, strict=True):
            if id in captions:  # else it was removed since
                path, labels, *shape = captions[id]
                if labels not in shared:
                    shared[labels] = tuple([label for label in labels if label in self._shared])
                known = probability is not None and self._labels.carried_by(labels)
                matches.append(Match(id, path, distance, score, labels, shared[labels], probability, known, *shape))
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
    return hamming.byte_tables(signs)[0]


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
    return rows_of_pixels(hasher, pixels[None])[0]
