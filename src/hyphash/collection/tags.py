"""Suggested labels: what scores say, and where there are none, what the nearest tagged photos carry and anchors say.

Also which photos to ask a person about, and what becomes of the answer.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.collection.label_query import LabelSources
from hyphash.collection.records import Verdict
from hyphash.datasets import spelled
from hyphash.errors import LabelError
from hyphash.hasher import Hasher, Outputs, Tag
from hyphash.labels import Logits, sigmoid
from hyphash.searchers import Filter, Query, Searcher
from hyphash.searchers.local.scores import features_of
from hyphash.stores import Photo

NEIGHBOURS = 100
REACH = 24  # the vote of a photo falls by e^−24 from the same code to the opposite one
TAUGHT = 8  # labels that the hasher never saw whose layers are asked, the best by vote


def suggested(
    searcher: Searcher, hasher: Hasher, outputs: Outputs, photo: Photo | None, sources: LabelSources | None = None,
    logits: Logits | None = None,
) -> list[Tag]:  # fmt: skip
    """Labels for a photo with these outputs, and `logits` where it is not in the collection, best first.

    A label that the hasher has learnt has the probability that its score stands for; one that it never saw has that
    of the layer over bits and scores which its carriers teach (`sources`). Without a label layer the neighbours vote:
    score = (Σ_i w_i·[neighbour i carries it] + max(cosine to its anchor, 0)) / (Σ_i w_i + 1), w_i = e^(−24·d_i/bits):
    the anchors weigh as much as one photo with the same code. On held-out training photos of Flickr-25k each is the
    best of those that can be had; see docs/labels.md.
    """
    if photo is not None and hasher.calibration is not None and len(photo.scores) == hasher.calibration.width:
        logits = hasher.calibration.unpack(np.frombuffer(photo.scores, np.uint8)[None])[0]
    votes = _votes(searcher, hasher, outputs, photo, by_anchors=logits is None)
    tags = {label: Tag(label, score) for label, score in votes.items()}
    if logits is not None:
        tags |= {tag.label: tag for tag in hasher.tags(outputs[None], logits[None])[0]}
        if sources is not None:
            new = sorted(votes.keys() - set(hasher.classes), key=lambda label: (-votes[label], label))
            tags |= _taught(sources, hasher, outputs, logits, new[:TAUGHT])
    if not tags:
        raise LabelError("nothing to suggest: the hasher knows no labels, and no photo here carries one; label some")
    seen = {*photo.labels, *photo.refused} if photo else set()
    return sorted((tag for tag in tags.values() if tag.label not in seen), key=lambda tag: (-tag.score, tag.label))


def _votes(
    searcher: Searcher, hasher: Hasher, outputs: Outputs, photo: Photo | None, *, by_anchors: bool
) -> dict[str, float]:
    votes: defaultdict[str, float] = defaultdict(float)
    if by_anchors and hasher.anchors is not None:
        votes |= {tag.label: max(tag.score, 0.0) for tag in hasher.tags(outputs[None])[0]}
    weight = 1.0
    for distance, neighbour in _neighbours(searcher, hasher, outputs, photo):
        vote = float(np.exp(-REACH * distance / hasher.bits))
        weight += vote
        for label in neighbour.labels:
            votes[label] += vote
    return {label: score / weight for label, score in votes.items()}


def _taught(
    sources: LabelSources, hasher: Hasher, outputs: Outputs, logits: Logits, labels: Sequence[str]
) -> dict[str, Tag]:
    """What the layers of labels say that the hasher never saw."""
    assert hasher.calibration is not None
    values = features_of(hasher.to_codes(outputs[None]), hasher.calibration.pack(logits[None]))[0]
    tags = {}
    for label, term in ((label, sources.get(label, hasher)) for label in labels):
        if term is not None and isinstance(term.source, bytes):
            weights = np.frombuffer(term.source, np.float32)
            p = float(sigmoid(values @ weights[:-1] + weights[-1]))
            tags[label] = Tag(label, p, p >= term.threshold)
    return tags


def telling(hasher: Hasher, photos: Sequence[Photo], k: int) -> list[Photo]:
    """The photos that teach most, in the order to look at them: scores are unsure of them, and they differ.

    The next is that with the largest H·d: H sums the entropy of its labels' probabilities, d is the distance of its
    code to the nearest that was taken before.
    """
    if not photos:
        return []
    codes = Codes(np.array([np.frombuffer(photo.code, np.uint8) for photo in photos]), hasher.bits)
    unsure, far, order = _entropy(hasher, photos), np.ones(len(photos)), list[int]()
    for _ in range(min(k, len(photos))):
        best = int((unsure * (far + 1e-6)).argmax())
        order.append(best)
        unsure[best] = -1.0
        far = np.minimum(far, codes[[best]].distances(codes)[0] / hasher.bits)
    return [photos[i] for i in order]


def _entropy(hasher: Hasher, photos: Sequence[Photo]) -> NDArray[np.float64]:
    """Of the labels of each photo, in sum; 1 where there are no scores."""
    calibration = hasher.calibration
    if calibration is None or any(len(photo.scores) != calibration.width for photo in photos):
        return np.ones(len(photos))
    scores = np.array([np.frombuffer(photo.scores, np.uint8) for photo in photos])
    p = sigmoid(calibration.unpack(scores).astype(float))
    return np.asarray(-(p * np.log(p) + (1 - p) * np.log1p(-p)).sum(axis=1))


def judged(photo: Photo, verdicts: Iterable[Verdict]) -> Photo:
    """A photo after these verdicts; the last one of a label counts."""
    said = {label: verdict.said for verdict in verdicts for label in spelled([verdict.label])}
    labels, refused = ([label for label in some if label not in said] for some in (photo.labels, photo.refused))
    labels += [label for label, what in said.items() if what == "accept"]
    refused += [label for label, what in said.items() if what == "refuse"]
    return replace(photo, labels=spelled(labels), refused=spelled(refused))


def standing(photo: Photo, verdict: Verdict) -> Verdict:
    """What is said so far of the photo and the label of a verdict."""
    carried, refused = (set(spelled([verdict.label])) <= set(some) for some in (photo.labels, photo.refused))
    return replace(verdict, said="accept" if carried else "refuse" if refused else "forget")


def _neighbours(searcher: Searcher, hasher: Hasher, outputs: Outputs, photo: Photo | None) -> list[tuple[int, Photo]]:
    """The nearest tagged photos and their distances; of a product quantiser, all count the same."""
    quantizer = hasher.quantizer
    query = Query(
        hasher.to_codes(outputs[None]),
        NEIGHBOURS,
        only=Filter(tagged=True, excluded=(photo.id,) if photo else ()),
        tables=quantizer.tables(outputs[None])[0] if quantizer else None,
        fingerprint=hasher.fingerprint,
    )
    found = searcher.search(query)
    photos = {photo.id: photo for photo in searcher.store.get(found.ids.tolist())}
    distances = found.distances.tolist() if quantizer is None else [0] * len(found.ids)
    return [(d, photos[id]) for d, id in zip(distances, found.ids.tolist(), strict=True) if id in photos]
