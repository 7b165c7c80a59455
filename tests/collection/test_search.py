"""Search by photo, by labels, by both, by another photo; filters, pages."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from hyphash.codes import Codes
from hyphash.collection import Collection, Match
from hyphash.collection.query import outputs_of_code
from hyphash.collection.tags import suggested
from hyphash.errors import CollectionError, ConfigError, LabelError, PhotoError
from hyphash.hasher import unit
from hyphash.quantizer import Quantizer
from hyphash.stores import Facts, Photo


def ranked(collection: Collection, outputs: NDArray[np.float32]) -> list[tuple[int, int]]:
    """The naive ranking: (distance, id) of all photos."""
    query = Codes.from_outputs(outputs[None])
    codes = {photo.id: Codes(np.frombuffer(photo.code, np.uint8)[None], 12) for photo in collection.photos()}
    return sorted((int(query.distances(code)[0, 0]), id) for id, code in codes.items())


def pairs(matches: Any) -> list[tuple[int, int]]:
    return [(match.distance, match.id) for match in matches]


def test_by_photo(filled: Collection, hasher: Any, photos: list[Path]) -> None:
    expected = ranked(filled, hasher.outputs([photos[4]])[0])
    with Image.open(photos[4]) as image:
        for photo in (photos[4], str(photos[4]), photos[4].read_bytes(), image):
            assert pairs(filled.search(photo, k=10)) == expected
    assert pairs(filled.search(outputs=hasher.outputs([photos[4]])[0], k=10)) == expected
    best = filled.search(photos[4])[0]
    assert best == Match(5, str(photos[4]), 0, 1.0, (), ())


def test_by_labels(filled: Collection, hasher: Any) -> None:
    ranking = filled.search(labels=["sea", "cat"], unwanted=["dog"], k=10)
    assert pairs(ranking) == ranked(filled, hasher.label_outputs(["cat", "sea"], ["dog"]))
    assert {match.id: match.shared for match in ranking}[2] == ("cat", "sea")
    assert {match.id: match.shared for match in ranking}[4] == ("sea",)
    for match in ranking:
        assert match.score == pytest.approx(1 - 2 * match.distance / 12)


def test_by_photo_and_labels(filled: Collection, hasher: Any, photos: list[Path]) -> None:
    place = unit(hasher.outputs([photos[0]])[0]) + hasher.label_outputs(["sea", "cat"], ["dog"])
    assert pairs(filled.search(photos[0], labels=["cat", "sea"], unwanted=["dog"], k=10)) == ranked(filled, place)


def test_by_another_photo_of_the_collection(filled: Collection) -> None:
    ranking = filled.search(like=4, k=10)
    signs = Codes(np.frombuffer(filled.get(4).code, np.uint8)[None], 12).signs()[0].astype(np.float32)
    assert pairs(ranking) == [pair for pair in ranked(filled, signs) if pair[1] != 4]
    assert ranking.total == 9
    assert {match.id: match.shared for match in ranking}[3] == ("dog",)
    assert {match.id: match.shared for match in ranking}[2] == ("sea",)
    with pytest.raises(CollectionError, match="no photo 99"):
        filled.search(like=99)


def test_asymmetric_ranks_by_the_real_query(filled: Collection, hasher: Any) -> None:
    place = hasher.label_outputs(["bird"])
    ranking = filled.search(labels=["bird"], rank="asymmetric", k=10)
    codes = {p.id: Codes(np.frombuffer(p.code, np.uint8)[None], 12).signs()[0] for p in filled.photos()}
    cosine = {id: float(signs @ place) / np.sqrt(12) for id, signs in codes.items()}
    assert [match.id for match in ranking] == sorted(cosine, key=lambda id: (-round(cosine[id], 5), id))
    for match in ranking:
        assert match.score == pytest.approx(cosine[match.id], abs=1e-5)
        assert match.distance == {id: distance for distance, id in ranked(filled, place)}[match.id]


def test_labels_that_the_hasher_never_saw(filled: Collection) -> None:
    """Their place is the middle of the photos that carry them."""
    codes = np.stack([np.frombuffer(filled.get(id).code, np.uint8) for id in (7, 8)])
    middle = Codes(codes, 12).signs().astype(np.float32).mean(axis=0)
    ranking = filled.search(labels=["own word"], rank="asymmetric", k=10)
    assert {ranking[0].id, ranking[1].id} == {7, 8}
    assert ranking[0].shared == ("own word",)
    assert ranking[0].score == pytest.approx(max(Codes(codes, 12).signs() @ unit(middle)) / np.sqrt(12), abs=1e-5)
    with pytest.raises(LabelError, match=r"neither the hasher knows the label 'unicorn'.*bird, cat"):
        filled.search(labels=["unicorn"])


def test_a_hasher_without_anchors_searches_labels_by_their_photos(filled: Collection, hasher: Any) -> None:
    hasher.anchors = None
    assert filled.search(labels=["own word"], k=3)[0].id in (7, 8)
    with pytest.raises(LabelError, match="neither"):
        filled.search(labels=["bird"])
    assert {tag.label for tag in filled.suggest(5)} == {"cat", "dog", "own word", "sea"}
    for photo in filled.photos():
        filled.relabel(photo.id, [])
    with pytest.raises(LabelError, match="label some"):
        filled.suggest(1)


def test_filters_and_pages(filled: Collection) -> None:
    whole = filled.search(labels=["sea"], k=10)
    cats = filled.search(labels=["sea"], carrying=["cat"], k=10)
    assert pairs(cats) == [(m.distance, m.id) for m in whole if "cat" in m.labels]
    assert cats.total == 3
    near = filled.search(labels=["sea"], radius=5, k=10)
    assert pairs(near) == [pair for pair in pairs(whole) if pair[0] <= 5]
    assert near.total == len(near)
    pages = [filled.search(labels=["sea"], k=4, offset=offset) for offset in (0, 4, 8, 12)]
    assert [pair for page in pages for pair in pairs(page)] == pairs(whole)
    assert [page.offset for page in pages] == [0, 4, 8, 12]
    assert filled.search(labels=["sea"], carrying=["nobody carries this"]).total == 0
    assert whole[1:3] == tuple(whole)[1:3]


def test_nonsense_is_refused(filled: Collection, photos: list[Path]) -> None:
    with pytest.raises(ConfigError, match="nothing to search for"):
        filled.search()
    with pytest.raises(ConfigError, match="'hamming' or 'asymmetric'"):
        filled.search(labels=["cat"], rank="cosine")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="k is 1 or more"):
        filled.search(labels=["cat"], k=0)
    with pytest.raises(ConfigError, match="offset 0 or more"):
        filled.search(labels=["cat"], offset=-1)
    with pytest.raises(LabelError, match="wanted and unwanted"):
        filled.search(labels=["cat"], unwanted=["cat"])
    with pytest.raises(PhotoError, match="no such photo"):
        filled.search(photos[0].with_name("nowhere.jpg"))


def test_an_empty_collection_finds_nothing(collection: Collection, photos: list[Path]) -> None:
    for rank in ("hamming", "asymmetric"):
        ranking = collection.search(photos[0], rank=rank)  # type: ignore[arg-type]
        assert (len(ranking), ranking.total) == (0, 0)


def test_a_product_quantiser_ranks_by_its_own_distance(collection: Collection, hasher: Any, photos: list[Path]) -> None:
    rng = np.random.default_rng(2)
    hasher.quantizer = Quantizer(rng.normal(size=(2, 256, 6)).astype(np.float32), 12)
    collection.add(photos)
    outputs = hasher.outputs([photos[2]])[0]
    points = hasher.quantizer.decode(hasher.encode(photos))
    squared = np.square(points - outputs).sum(axis=1)
    ranking = collection.search(photos[2], k=10)
    assert [match.id - 1 for match in ranking] == np.argsort(squared, kind="stable").tolist()
    assert ranking[0].score == pytest.approx(-squared.min(), rel=1e-3)
    assert next(match for match in ranking if match.id == 3).distance == 0
    assert all(0 <= match.distance <= 2 for match in ranking)
    assert [match.id for match in collection.search(labels=["cat"], k=3)]
    with pytest.raises(ConfigError, match="radius counts bits"):
        collection.search(photos[2], radius=2)


def test_label_and_like_searches_need_no_torch(filled: Collection) -> None:
    program = f"""
import sys
sys.modules["torch"] = sys.modules["onnxruntime"] = None
from hyphash.collection import Collection
with Collection.open({str(filled.folder)!r}) as collection:
    print([match.id for match in collection.search(labels=["cat"], unwanted=["sea"])])
    print([match.id for match in collection.search(like=3, rank="asymmetric")])
    print([tag.label for tag in collection.suggest(5)])
    print(collection.stats().photos, len(collection.thumbnail(1)) > 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == str([match.id for match in filled.search(labels=["cat"], unwanted=["sea"])])
    assert lines[1] == str([match.id for match in filled.search(like=3, rank="asymmetric")])
    assert lines[2] == str([tag.label for tag in filled.suggest(5)])
    assert lines[3] == "10 True"


# ── real codes ───────────────────────────────────────────────────────────────────────────────────────────


def test_label_queries_and_tags_on_real_photos(shared_data: Path, tmp_path: Path, tiny: Any) -> None:
    """Flickr-25k, 48 bits of a trained AlexNet: the precision and mAP that the collection owes."""
    pack = _flickr(shared_data)
    outputs = np.load(shared_data / "flickr25k" / "outputs_48.npz")
    labels = pack["labels"][outputs["database_rows"]]
    classes = tuple(str(name) for name in pack["classes"])
    hasher = tiny.TinyHasher(bits=48, classes=classes)
    hasher.anchors = outputs["proxies"].astype(np.float32)
    codes = Codes.from_outputs(outputs["database"].astype(np.float32))
    words = [tuple(sorted(classes[j] for j in np.flatnonzero(row))) for row in labels]
    with Collection.create(tmp_path / "flickr", hasher) as collection:
        photos = [
            Photo(path=f"{i}", facts=Facts(content=f"{i:064x}"), code=row.tobytes(), labels=words[i])
            for i, row in enumerate(codes.packed)
        ]
        collection.store.upsert(photos, fingerprint=hasher.fingerprint)

        def precision(wanted: list[str]) -> float:
            found = collection.search(labels=wanted, rank="asymmetric", k=100)
            return float(np.mean([set(wanted) <= set(match.labels) for match in found]))

        ones = [precision([label]) for label in classes]
        together = collection.cooccurrence(classes)
        twos = [precision([classes[i], classes[j]]) for i in range(38) for j in range(i) if together[i, j] >= 100]
        assert np.mean(ones) >= 0.54
        assert np.mean(twos) >= 0.22
        queries = Codes.from_outputs(outputs["queries"].astype(np.float32))[:200]
        scores = np.zeros((len(queries), 38))
        for i, row in enumerate(queries.packed):
            place = outputs_of_code(hasher, row.tobytes())
            for tag in suggested(collection.searcher, hasher, place, None):
                scores[i, classes.index(tag.label)] = tag.score
        truth = pack["labels"][outputs["queries_rows"]][:200]
        shown = [j for j in range(38) if truth[:, j].any()]
        assert np.mean([_average_precision(scores[:, j], truth[:, j]) for j in shown]) >= 0.46


def _flickr(shared_data: Path) -> dict[str, Any]:
    import io

    parts = sorted((shared_data / "flickr25k").glob("flickr25k_128.npz.part?"))
    with np.load(io.BytesIO(b"".join(part.read_bytes() for part in parts))) as pack:
        return {name: pack[name] for name in ("labels", "classes")}


def _average_precision(scores: NDArray[np.float64], relevant: NDArray[np.uint8]) -> float:
    hits = np.flatnonzero(relevant[np.argsort(-scores, kind="stable")])
    return float(np.mean(np.arange(1, len(hits) + 1) / (hits + 1)))
