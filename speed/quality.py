"""How good label queries and suggested labels are, with any run over frozen features.

    hyphash train FLICKR25K --dataset flickr25k --bits 48 --mode frozen --set validation=0.0 --into RUN
    python speed/quality.py RUN FLICKR25K

Precision of the first 100 photos: with one label, with two that at least 100 photos carry together, and with one
wanted and one unwanted label for several weights of the unwanted one; then mAP of suggested labels.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hyphash.collection import Collection
from hyphash.collection.query import Rank, outputs_of_code
from hyphash.collection.tags import suggested
from hyphash.datasets import Split, load_dataset
from hyphash.features import default_cache
from hyphash.hasher import Hasher, Outputs, unit
from hyphash.stores import Facts, Photo
from hyphash.training.inputs import load_inputs, outputs_of

TOP, TOGETHER, TAGGED = 100, 100, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path)
    given = parser.parse_args()
    splits, hasher = load_dataset(given.data, "flickr25k"), Hasher.load(given.run, device="cpu")
    outputs = outputs_for(hasher, splits.database)
    with tempfile.TemporaryDirectory() as folder, Collection.create(Path(folder) / "c", hasher) as collection:
        fill(collection, hasher, outputs, splits.database)
        label_queries(collection, splits.classes)
        tags(collection, hasher, splits.queries.take(slice(TAGGED)))
    unwanted(hasher, outputs, splits.database.labels > 0)


def outputs_for(hasher: Hasher, photos: Split) -> Outputs:
    inputs, _ = load_inputs(hasher, photos, frozen=True, cache=default_cache())
    assert inputs is not None
    return outputs_of(hasher, inputs, torch.arange(len(inputs)))


def fill(collection: Collection, hasher: Hasher, outputs: Outputs, photos: Split) -> None:
    words = [tuple(sorted(hasher.classes[j] for j in np.flatnonzero(row))) for row in photos.labels]
    rows = [
        Photo(path=f"{i}", facts=Facts(content=f"{i:064x}"), code=code.tobytes(), labels=words[i])
        for i, code in enumerate(hasher.to_codes(outputs).packed)
    ]
    collection.store.upsert(rows, fingerprint=hasher.fingerprint)


def label_queries(collection: Collection, classes: tuple[str, ...]) -> None:
    together = collection.cooccurrence(classes)
    pairs = [[classes[i], classes[j]] for i in range(len(classes)) for j in range(i) if together[i, j] >= TOGETHER]
    ranks: tuple[Rank, ...] = ("asymmetric", "hamming")
    for rank in ranks:

        def precision(wanted: list[str], rank: Rank = rank) -> float:
            found = collection.search(labels=wanted, rank=rank, k=TOP)
            return float(np.mean([set(wanted) <= set(match.labels) for match in found]))

        one, two = np.mean([precision([label]) for label in classes]), np.mean([precision(pair) for pair in pairs])
        print(f"{rank}: precision@{TOP} {one:.3f} with one label, {two:.3f} with two ({len(pairs)} pairs)")


def tags(collection: Collection, hasher: Hasher, queries: Split) -> None:
    scores = np.zeros(queries.labels.shape)
    for i, code in enumerate(hasher.to_codes(outputs_for(hasher, queries)).packed):
        for tag in suggested(collection.searcher, hasher, outputs_of_code(hasher, code.tobytes()), None):
            scores[i, hasher.classes.index(tag.label)] = tag.score
    shown = np.flatnonzero(queries.labels.any(0))
    found = np.mean([average_precision(scores[:, j], queries.labels[:, j]) for j in shown])
    print(f"suggested labels of {len(queries)} photos: mAP {found:.3f}")


def average_precision(scores: NDArray[np.float64], relevant: NDArray[np.uint8]) -> float:
    hits = np.flatnonzero(relevant[np.argsort(-scores, kind="stable")])
    return float(np.mean(np.arange(1, len(hits) + 1) / (hits + 1)))


def unwanted(hasher: Hasher, outputs: Outputs, carried: NDArray[np.bool_]) -> None:
    """Asymmetric rankings around wanted − weight · unwanted, all pairs of which either case has 100 photos."""
    assert hasher.anchors is not None
    anchors, signs = unit(hasher.anchors), np.where(outputs > 0, 1, -1).astype(np.float32)
    both = carried.T.astype(int) @ carried.astype(int)
    alone = both.diagonal()[:, None] - both
    pairs = np.argwhere((both >= TOGETHER) & (alone >= TOGETHER))
    for weight in (0.0, 0.25, 1 / 3, 0.5, 1.0):
        seen = []
        for w, u in pairs:
            scores = signs @ (anchors[w] - np.float32(weight) * anchors[u])
            top = np.argpartition(-scores, TOP)[:TOP]
            seen.append(((carried[top, w] & ~carried[top, u]).mean(), carried[top, u].mean()))
        right, wrong = np.mean(seen, axis=0)
        print(
            f"unwanted at {weight:.2f}: {right:.3f} wanted and not unwanted, {wrong:.3f} unwanted ({len(pairs)} pairs)"
        )


if __name__ == "__main__":
    main()
