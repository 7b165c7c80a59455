"""Suggested labels: what scores say, and where there are none, what the nearest tagged photos carry and anchors say.

Also which photos to ask a person about, and what becomes of the answer.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.collection.query import LabelSources, encoded, outputs_of_code
from hyphash.collection.records import Verdict
from hyphash.datasets import spelled, with_parents
from hyphash.errors import LabelError
from hyphash.hasher import Hasher, Outputs, Tag
from hyphash.labels import Logits, sigmoid
from hyphash.searchers import LabelTerm, Query, Searcher
from hyphash.searchers.filters import Filter
from hyphash.searchers.local.scores import features_of
from hyphash.stores import Photo

if TYPE_CHECKING:
    from PIL.Image import Image

    from hyphash.collection import Collection

SAMPLES, SAMPLE = 4, 500  # parts of the untagged photos, and photos in each, of which the most telling are found
NEIGHBOURS = 100
REACH = 24  # the vote of a photo falls by e^−24 from the same code to the opposite one
FEW = 200  # tagged photos below which others are learnt from that stand for many
SURE = 10  # carriers that a label is taken to have beside its own where it is told how much is to be learnt of it
NEW = 32  # labels that the hasher never saw, those with most carriers, that are learnt of
TAUGHT = 8  # labels that the hasher never saw whose layers are asked, the best by vote


def suggest(collection: "Collection", photo: "int | str | Path | bytes | Image", *, k: int = 10) -> list[Tag]:
    """Labels that a photo, here (by id) or not yet, seems to lack, best first."""

    def attempt(hasher: Hasher) -> list[Tag]:
        known = collection.get(photo) if isinstance(photo, int) else None
        row = outputs_of_code(hasher, known.code) if known else encoded(hasher, cast("bytes", photo))
        return suggested(collection.searcher, hasher, row, known, collection.sources)

    return collection.with_hasher(attempt)[:k]


def suggested(
    searcher: Searcher, hasher: Hasher, row: Outputs, photo: Photo | None, sources: LabelSources | None = None
) -> list[Tag]:
    """Labels for a photo in the collection with these outputs, or for another with outputs and logits, best first.

    A label that the hasher has learnt has the probability that its score stands for; one that it never saw has that
    of the layer over bits and scores which its carriers teach (`sources`). Without a label layer the neighbours vote:
    score = (Σ_i w_i·[neighbour i carries it] + max(cosine to its anchor, 0)) / (Σ_i w_i + 1), w_i = e^(−24·d_i/bits):
    the anchors weigh as much as one photo with the same code. Each is the best there is; see docs/serve.md.
    """
    outputs, logits = row[None, : hasher.width], row[None, hasher.width :]
    if photo is not None and hasher.calibration is not None and len(photo.scores) == hasher.calibration.width:
        logits = hasher.calibration.unpack(np.frombuffer(photo.scores, np.uint8)[None])
    votes = _votes(searcher, hasher, outputs[0], photo, by_anchors=hasher.calibration is None or not logits.size)
    tags = {label: Tag(label, score) for label, score in votes.items()}
    if hasher.calibration is not None and logits.size:
        tags |= {tag.label: tag for tag in hasher.tags(outputs, logits)[0]}
        new = sorted(votes.keys() - set(hasher.classes), key=lambda label: (-votes[label], label))
        values = features_of(hasher.to_codes(outputs), hasher.calibration.pack(logits))
        for term, (found,) in _taught(sources, hasher, new[:TAUGHT], values) if sources else ():
            tags[term.label] = Tag(term.label, p := float(sigmoid(found)), p >= term.threshold)
    if not tags:
        raise LabelError("nothing to suggest: the hasher knows no labels, and no photo here carries one; label some")
    seen = {*photo.labels, *photo.refused} if photo else set()
    return sorted((tag for tag in tags.values() if tag.label not in seen), key=lambda tag: (-tag.score, tag.label))


def _votes(
    searcher: Searcher, hasher: Hasher, outputs: Outputs, photo: Photo | None, *, by_anchors: bool
) -> dict[str, float]:
    """What the nearest tagged photos carry and anchors say; with a product quantiser, all neighbours count the same."""
    votes, weight, quantizer = defaultdict[str, float](float), 1.0, hasher.quantizer
    if by_anchors and hasher.anchors is not None:
        votes |= {tag.label: max(tag.score, 0.0) for tag in hasher.tags(outputs[None])[0]}
    only = Filter(tagged=True, excluded=(photo.id,) if photo else ())
    tables = quantizer.tables(outputs[None])[0] if quantizer else None
    code, fingerprint = hasher.to_codes(outputs[None]), hasher.fingerprint
    found = searcher.search(Query(code, NEIGHBOURS, only=only, tables=tables, fingerprint=fingerprint))
    captions = searcher.store.captions(found.ids.tolist())
    for id, distance in zip(found.ids.tolist(), found.distances.tolist(), strict=True):
        if id in captions:  # else it was removed since
            vote = 1.0 if quantizer else float(np.exp(-REACH * distance / hasher.bits))
            weight += vote
            for label in captions[id].labels:
                votes[label] += vote
    return {label: score / weight for label, score in votes.items()}


def _taught(
    sources: LabelSources, hasher: Hasher, labels: Iterable[str], values: NDArray[np.float32]
) -> Iterator[tuple[LabelTerm, Logits]]:
    """What the layers of labels that the hasher never saw say of bits and scores, (n, width) → (n,) each."""
    for term in (sources.get(label, hasher) for label in labels):
        if term is not None and isinstance(term.source, bytes):
            weights = np.frombuffer(term.source, np.float32)
            yield term, values @ weights[:-1] + weights[-1]


def to_tag(collection: "Collection", k: int = 100, *, passed: Iterable[int] = ()) -> list[Photo]:
    """Photos without labels, those first that teach most; of many, samples spread over all are looked at."""
    untagged, out = collection.store.count(untagged=True), set(passed)
    starts = range(0, untagged, max(untagged // SAMPLES, SAMPLE))
    found = [photo for start in starts for photo in collection.store.page(start, SAMPLE, untagged=True)]
    left = [photo for photo in found if photo.id not in out]
    collection.current_hasher()
    return collection.with_hasher(lambda hasher: telling(hasher, left, k, collection.sources))


def telling(hasher: Hasher, photos: Sequence[Photo], k: int, sources: LabelSources) -> list[Photo]:
    """The photos that teach most, in the order to look at them; see docs/labels.md for what it is worth.

    While few are tagged, those that stand for most others: with the next one, the distances of all photos to the
    nearest that was taken or tagged have the least sum. Later those that most is to be learnt from: the next one has
    the largest Σ H(p) / (carriers + 10) over labels, H the entropy of the probability that it carries a label.
    """
    if not photos:
        return []
    codes = Codes(np.array([np.frombuffer(photo.code, np.uint8) for photo in photos]), hasher.bits)
    tagged, known, _ = sources.store.read(lambda session: session.derived_of(session.ids_carrying(())[:FEW]))
    if len(tagged) >= FEW:
        order = np.argsort(-_doubts(hasher, photos, codes, sources), kind="stable")[:k].tolist()
    else:
        order = _standing_for_most(codes.signs().astype(np.float32), known.signs().astype(np.float32), k)
    return [photos[i] for i in order]


def _standing_for_most(signs: NDArray[np.float32], taken: NDArray[np.float32], k: int) -> list[int]:
    """Rows of codes, greedily; a gain only ever falls, so that it is worked out anew for the largest alone."""
    distances, order = (signs.shape[1] - signs @ signs.T) / 2, list[int]()
    far = ((signs.shape[1] - signs @ taken.T) / 2).min(1, initial=signs.shape[1])
    gains = np.maximum(far - distances, 0).sum(1)  # by how much a photo would bring all of them nearer
    while len(order) < min(k, len(signs)):
        best = int(gains.argmax())
        gains[best] = np.maximum(far - distances[best], 0).sum()
        if gains.argmax() == best:
            order.append(best)
            gains[best] = -1.0
            far = np.minimum(far, distances[best])
    return order


def _doubts(hasher: Hasher, photos: Sequence[Photo], codes: Codes, sources: LabelSources) -> NDArray[np.float64]:
    """How much is to be learnt from each photo about the labels that photos carry."""
    carriers, known = sources.store.labels(), hasher.calibration
    width = known.width if known else 0
    scores = b"".join(photo.scores[:width].ljust(width, b"\0") for photo in photos)
    packed = np.frombuffer(scores, np.uint8).reshape(len(photos), width)
    counts = [carriers.pop(label, np.inf) for label in hasher.classes if known]
    logits = [known.unpack(packed) if known else np.zeros((len(photos), 0))]
    for term, found in _taught(sources, hasher, list(carriers)[:NEW], features_of(codes, packed)):
        logits.append(found[:, None])
        counts.append(carriers[term.label])
    x = np.concatenate(logits, axis=1, dtype=float)
    entropy = np.logaddexp(0, x) - x * sigmoid(x)
    return np.asarray((entropy / (np.array(counts) + SURE)).sum(axis=1))


def judge(collection: "Collection", verdicts: Iterable[Verdict]) -> tuple[list[Photo], list[Verdict]]:
    """Accept, refuse or forget labels of many photos: those that are there, and the verdicts that take it back."""
    of = {id: list(said) for id, said in groupby(sorted(verdicts, key=lambda v: v.id), key=lambda v: v.id)}
    changes = collection.store.relabel_all({id: partial(judged, verdicts=said) for id, said in of.items()})
    undo = [verdict for change in changes if change.before for verdict in undoing(change.before, change.after)]
    return [change.after for change in changes], undo


def accept(collection: "Collection", id: int, label: str) -> Photo:
    """Give a photo one more label, such as a suggested one."""
    judge(collection, [Verdict(id, label, "accept")])
    return collection.get(id)


def refuse(collection: "Collection", id: int, label: str) -> Photo:
    """A photo shall not carry a label, nor be offered it again."""
    judge(collection, [Verdict(id, label, "refuse")])
    return collection.get(id)


def relabel(collection: "Collection", id: int, labels: Iterable[str]) -> Photo:
    """Give a photo these labels and no others; with animal/dog it is an animal, too."""
    wanted = with_parents(labels)
    collection.store.relabel(id, lambda photo: replace(photo, labels=wanted))
    return collection.get(id)


def judged(photo: Photo, verdicts: Iterable[Verdict]) -> Photo:
    """A photo after these verdicts; the last one of a label counts. What is no animal is no dog, and a dog is one."""
    said = {label: verdict.said for verdict in verdicts for label in spelled([verdict.label])}
    accepted, refused = ([label for label, what in said.items() if what == word] for word in ("accept", "refuse"))
    refused += [label for label in photo.refused if label not in {*said, *with_parents(accepted)}]
    carried = [label for label in photo.labels if label not in said and not {*with_parents([label])} & {*refused}]
    return replace(photo, labels=with_parents(carried + accepted), refused=spelled(refused))


def undoing(before: Photo, after: Photo) -> list[Verdict]:
    """The verdicts that take a change of labels back, and with it what became of parents and children."""

    def said(photo: Photo, label: str) -> Literal["accept", "refuse", "forget"]:
        return "accept" if label in photo.labels else "refuse" if label in photo.refused else "forget"

    labels = sorted({*before.labels, *before.refused, *after.labels, *after.refused})
    return [Verdict(after.id, one, said(before, one)) for one in labels if said(before, one) != said(after, one)]
