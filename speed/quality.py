"""How good label queries and suggested labels are, with any run over frozen features that has a label layer.

    hyphash train FLICKR25K --dataset flickr25k --bits 48 --mode frozen --set validation=0.0 --into RUN
    python speed/quality.py RUN FLICKR25K

The photos of the database stand in the collection without labels, which are kept outside and only judge: nothing was
fitted on them, nor on the queries. Precision of the first 100 photos: with one label, with two that at least 100 photos
carry together, with one wanted and one unwanted label; by stored scores, by codes, and where no scores are kept: by
layers over the bits that are fitted to the training photos, which stand there with their labels and are left out of the
answers. Then mAP of suggested labels and calibration on the queries, and what ten examples teach of a label, each taken
as new in turn.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.collection import Collection
from hyphash.collection.query import Rank
from hyphash.datasets import load_dataset
from hyphash.evaluation import EncodedSplit, encode_split
from hyphash.evaluation.labelling import average_precisions, labelling
from hyphash.features import default_cache
from hyphash.hasher import Hasher
from hyphash.labels import LabelLayer, fit_logistic
from hyphash.searchers import Filter, Query
from hyphash.searchers.local.scores import features_of
from hyphash.stores import Facts, Photo

TOP, TOGETHER, EXAMPLES, OTHERS = 100, 100, 10, 500
Search = Callable[[list[int], list[int]], Sequence[int]]  # labels, wanted and unwanted → photos, best first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path)
    given = parser.parse_args()
    splits, hasher = load_dataset(given.data, "flickr25k"), Hasher.load(given.run, device="cpu")
    train, queries, database = (
        encode_split(hasher, split, cache=default_cache()) for split in (splits.train, splits.queries, splits.database)
    )
    carried = database.split.labels > 0
    with tempfile.TemporaryDirectory() as folder, Collection.create(Path(folder) / "c", hasher) as collection:
        ids = fill(collection, hasher, database)
        ranks: tuple[Rank, ...] = ("labels", "asymmetric", "hamming")
        for rank in ranks:
            label_queries(rank, carried, searching(collection, ids, rank))
    bare = replace(hasher.spec, fingerprint="")
    plain = replace(hasher, spec=bare, calibration=None)  # without a label layer: no scores are kept
    with tempfile.TemporaryDirectory() as folder, Collection.create(Path(folder) / "c", plain) as collection:
        names = np.array(hasher.classes)
        tagged = fill(collection, plain, train, [tuple(names[has > 0].tolist()) for has in train.split.labels])
        ids = fill(collection, plain, database)
        label_queries("layer over the bits", carried, over_bits(collection, ids, tagged))
    with tempfile.TemporaryDirectory() as folder, Collection.create(Path(folder) / "c", hasher) as collection:
        tags(collection, fill(collection, hasher, queries), hasher, queries.split.labels)
    calibration(hasher, queries, database)
    new_labels(hasher, train, queries)


def fill(
    collection: Collection, hasher: Hasher, photos: EncodedSplit, labels: Sequence[tuple[str, ...]] = ()
) -> list[int]:
    """Put photos into a collection, without labels unless these are given; their ids."""
    scores = np.empty((len(photos.codes), 0), np.uint8)
    if hasher.calibration is not None:
        assert photos.logits is not None
        scores = hasher.calibration.pack(photos.logits)
    start = collection.count()
    rows = [
        Photo(
            path=f"{i}", facts=Facts(content=f"{i:064x}"), code=code.tobytes(), scores=row.tobytes(),
            labels=labels[i - start] if labels else (),
        )
        for i, (code, row) in enumerate(zip(photos.codes.packed, scores, strict=True), start)
    ]  # fmt: skip
    collection.store.upsert(rows, fingerprint=hasher.fingerprint)
    found = {photo.path: photo.id for photo in collection.store.find(paths=[row.path for row in rows])}
    return [found[row.path] for row in rows]


def searching(collection: Collection, ids: list[int], rank: Rank) -> Search:
    place, names = {id: i for i, id in enumerate(ids)}, collection.hasher.classes

    def search(wanted: list[int], unwanted: list[int]) -> list[int]:
        asked = [[names[label] for label in labels] for labels in (wanted, unwanted)]
        return [place[match.id] for match in collection.search(labels=asked[0], unwanted=asked[1], rank=rank, k=TOP)]

    return search


def over_bits(collection: Collection, ids: list[int], left_out: list[int]) -> Search:
    place, hasher = {id: i for i, id in enumerate(ids)}, collection.hasher
    code, only = Codes.from_bits(np.zeros((1, hasher.bits), bool)), Filter(excluded=tuple(left_out))

    def search(wanted: list[int], unwanted: list[int]) -> list[int]:
        roles = [(hasher.classes[i], role) for some, role in ((wanted, "every"), (unwanted, "unwanted")) for i in some]
        asked = collection.sources.query(roles, "first", {}, hasher, scored=True)
        query = Query(code, TOP, labels=asked, only=only, fingerprint=hasher.fingerprint)
        return [place[id] for id in collection.searcher.search(query).ids.tolist()]

    return search


def label_queries(name: str, carried: NDArray[np.bool_], search: Search) -> None:
    together = carried.T.astype(int) @ carried.astype(int)
    alone = together.diagonal()[:, None] - together
    ones = [([label], []) for label in range(len(together))]
    twos = [([i, j], []) for i, j in np.argwhere(np.tril(together >= TOGETHER, -1)).tolist()]
    without = [([i], [j]) for i, j in np.argwhere((together >= TOGETHER) & (alone >= TOGETHER)).tolist()]

    def precision(wanted: list[int], unwanted: list[int]) -> float:
        found = carried[search(wanted, unwanted)]
        return float((found[:, wanted].all(1) & ~found[:, unwanted].any(1)).mean())

    one, two, one_without = (np.mean([precision(*pair) for pair in pairs]) for pairs in (ones, twos, without))
    print(
        f"{name}: precision@{TOP} {one:.3f} with one label, {two:.3f} with two ({len(twos)} pairs), "
        f"{one_without:.3f} with one and without another ({len(without)} pairs)"
    )


def tags(collection: Collection, ids: list[int], hasher: Hasher, labels: NDArray[np.uint8]) -> None:
    scores = np.zeros(labels.shape)
    for i, id in enumerate(ids):
        for tag in collection.suggest(id, k=len(hasher.classes)):
            scores[i, hasher.classes.index(tag.label)] = tag.score
    print(f"suggested labels of {len(ids):,} photos: mAP {np.nanmean(average_precisions(scores, labels)):.3f}")


def calibration(hasher: Hasher, queries: EncodedSplit, database: EncodedSplit) -> None:
    assert hasher.calibration is not None
    assert queries.logits is not None
    assert database.logits is not None
    labels = queries.split.labels, database.split.labels
    found = labelling((queries.logits, database.logits), labels, hasher.calibration)
    for name, value, how in found.rows():
        print(f"{name}: {value:.4f} ({how})")


def new_labels(hasher: Hasher, train: EncodedSplit, queries: EncodedSplit) -> None:
    """Each label taken as new: ten photos that carry it and 500 that do not teach a layer over bits and scores."""
    rng, full = np.random.default_rng(0), average_precisions(queries.logits, queries.split.labels)
    assert hasher.calibration is not None
    seen, asked = (features_of(some.codes, hasher.calibration.pack(some.logits)) for some in (train, queries))
    taught = []
    for label, has in enumerate(train.split.labels.T > 0):
        others = np.arange(seen.shape[1]) != hasher.bits + label  # its own score is not known yet
        rows = np.r_[rng.choice(np.flatnonzero(has), EXAMPLES, False), rng.choice(np.flatnonzero(~has), OTHERS, False)]
        layer: LabelLayer = fit_logistic(seen[rows][:, others], has[rows, None])
        taught.append(average_precisions(layer.logits(asked[:, others]), queries.split.labels[:, [label]])[0])
    print(
        f"{EXAMPLES} examples of a new label: AP {np.nanmean(taught):.3f}, "
        f"where the layer that was trained with it has {np.nanmean(full):.3f} (mean over {len(full)} labels)"
    )


if __name__ == "__main__":
    main()
