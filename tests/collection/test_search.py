"""Search by photo, by labels, by both, by another photo; filters, pages."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from hyphash.codes import Codes
from hyphash.collection import Collection, Match
from hyphash.collection.query import LIKENESS, outputs_of_code
from hyphash.collection.records import Timeline
from hyphash.collection.tags import suggested
from hyphash.errors import CollectionError, ConfigError, LabelError, PhotoError
from hyphash.hasher import unit
from hyphash.labels import sigmoid
from hyphash.quantizer import Quantizer
from hyphash.searchers.filters import Filter
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
    assert best == Match(5, str(photos[4]), 0, 1.0, (), (), width=48, height=32)


def test_by_labels(filled: Collection, hasher: Any) -> None:
    ranking = filled.search(labels=["sea", "cat"], unwanted=["dog"], rank="hamming", k=10)
    assert pairs(ranking) == ranked(filled, hasher.label_outputs(["cat", "sea"], ["dog"]))
    assert {match.id: match.shared for match in ranking}[2] == ("cat", "sea")
    assert {match.id: match.shared for match in ranking}[4] == ("sea",)
    for match in ranking:
        assert match.score == pytest.approx(1 - 2 * match.distance / 12)


def test_by_photo_and_labels(filled: Collection, hasher: Any, photos: list[Path]) -> None:
    place = unit(hasher.outputs([photos[0]])[0]) + hasher.label_outputs(["sea", "cat"], ["dog"])
    found = filled.search(photos[0], labels=["cat", "sea"], unwanted=["dog"], rank="hamming", k=10)
    assert pairs(found) == ranked(filled, place)


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
    with pytest.raises(
        LabelError, match=r"no photo here carries the label 'unicorn'.*collection stats` lists those that"
    ):
        filled.search(labels=["unicorn"])


def test_a_hasher_without_anchors_searches_labels_by_their_photos(filled: Collection, hasher: Any) -> None:
    hasher.anchors = None
    assert filled.search(labels=["own word"], k=3)[0].id in (7, 8)
    with pytest.raises(LabelError, match="never learned"):
        filled.search(labels=["bird"])
    assert {tag.label for tag in filled.suggest(5)} == {"cat", "dog", "own word", "sea"}
    for photo in filled.photos():
        filled.relabel(photo.id, [])
    with pytest.raises(LabelError, match="label some"):
        filled.suggest(1)


# ── by scores ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def scored(tiny: Any, photos: list[Path], tmp_path: Path) -> Iterator[Collection]:
    """A collection whose hasher has a label layer."""
    with Collection.create(tmp_path / "scored", tiny.TinyHasher(layer=True)) as collection:
        collection.add(photos, labels=LABELS)
        yield collection


LABELS = [["cat"], ["cat", "sea"], ["dog"], ["dog", "sea"], [], ["cat"], ["own word"], ["own word"], [], ["sea"]]


def probability(collection: Collection, id: int, label: str) -> float:
    """What the stored score of a photo says; one where it carries the label."""
    photo, calibration = collection.get(id), collection.hasher.calibration
    assert calibration is not None
    logits = calibration.unpack(np.frombuffer(photo.scores, np.uint8)[None])[0]
    return 1.0 if label in photo.labels else float(sigmoid(logits)[collection.hasher.classes.index(label)])


def test_photos_that_carry_the_labels_come_first_then_those_that_probably_do(scored: Collection) -> None:
    ranking = scored.search(labels=["CAT", "sea"], unwanted=["dog"], k=10)
    assert (ranking.rank, ranking.bordered, ranking.known) == ("labels", True, 1)
    assert ranking[0].id == 2
    assert (ranking[0].known, ranking[0].probability) == (True, 1.0)
    assert {3, 4} & {match.id for match in ranking} == set()  # they carry the unwanted one
    assert ranking.total == len(ranking) == 8
    for match in ranking[1:]:
        cat, sea, dog = (probability(scored, match.id, label) for label in ("cat", "sea", "dog"))
        assert match.probability == pytest.approx(cat * sea * (1 - dog), rel=1e-4)
        assert not match.known
    order = [(-(match.probability or 0), match.id) for match in ranking[1:]]
    assert order == sorted(order)
    assert ranking.probable == sum(-p >= 0.125 for p, _ in order)  # all thresholds are ½
    pages = [scored.search(labels=["cat", "sea"], unwanted=["dog"], k=3, offset=offset) for offset in (0, 3, 6)]
    assert [match for page in pages for match in page] == list(ranking)
    scored.refuse(1, "sea")
    assert 1 not in [match.id for match in scored.search(labels=["cat", "sea"], k=10)]


def test_any_of_some_labels_and_probabilities_that_they_must_have(scored: Collection) -> None:
    ranking = scored.search(any_of=["cat", "bird"], k=10)
    assert ranking.known == 3
    for match in ranking[3:]:
        none = np.prod([1 - probability(scored, match.id, label) for label in ("cat", "bird")])
        assert match.probability == pytest.approx(1 - none, rel=1e-4)
    likely = scored.search(at_least={"Bird": 0.7}, k=10)
    expected = [id for id in range(1, 11) if probability(scored, id, "bird") >= 0.7]
    assert sorted(match.id for match in likely) == expected
    assert 0 < likely.total == len(expected) < 10
    either = scored.search(any_of=["bird", "cat"], at_least={"bird": 0.7}, k=10)
    assert {match.id for match in either} >= {1, 2, 6, *expected}  # a cat need be no bird
    with pytest.raises(ConfigError, match="between 0 and 1"):
        scored.search(at_least={"bird": 7})


def test_labels_that_are_missing_and_those_that_are_wrong(scored: Collection) -> None:
    scored.refuse(5, "sea")
    missing = scored.search(missing="Sea", k=10)
    assert sorted(match.id for match in missing) == [1, 3, 6, 7, 8, 9]
    wrong = scored.search(wrong="sea", k=10)
    assert sorted(match.id for match in wrong) == [2, 4, 10]
    scores = {photo.id: probability(scored, photo.id, "sea") for photo in scored.photos()}
    assert [match.id for match in missing] == sorted([1, 3, 6, 7, 8, 9], key=lambda id: (-scores[id], id))
    assert missing.probable == sum(scores[match.id] >= 0.5 for match in missing)
    for photo in (2, 4, 10):
        scored.relabel(photo, [])
    scores = {id: probability(scored, id, "sea") for id in (2, 4, 10)}
    assert [match.id for match in wrong] == sorted(scores, key=lambda id: (scores[id], id))
    with pytest.raises(ConfigError, match="by themselves"):
        scored.search(missing="sea", labels=["cat"])


def test_a_photo_and_labels_make_one_ranking(scored: Collection, photos: list[Path]) -> None:
    ranking = scored.search(photos[4], labels=["sea"], k=10)
    assert (ranking.rank, ranking.bordered, ranking.known) == ("labels", False, 3)
    signs = Codes(np.stack([np.frombuffer(scored.get(m.id).code, np.uint8) for m in ranking]), 12).signs()
    cosines = signs @ unit(scored.hasher.outputs([photos[4]])[0]) / np.sqrt(12)
    for match, cosine in zip(ranking, cosines, strict=True):
        assert match.known == ("sea" in match.labels)
        p = probability(scored, match.id, "sea")
        assert match.probability == pytest.approx(p, rel=1e-4)
        assert match.score == pytest.approx(np.log(p) + LIKENESS * cosine, abs=1e-3)
    assert [match.score for match in ranking] == sorted((match.score for match in ranking), reverse=True)


def test_labels_without_scores_are_told_by_the_photos_that_carry_them(filled: Collection, scored: Collection) -> None:
    """Also those that a hasher with a label layer never saw; it is seen at once where people change their minds."""
    for collection in (filled, scored):
        ranking = collection.search(labels=["Own Word"], k=10)
        assert (ranking.rank, ranking.known) == ("labels", 2)
        assert {match.id for match in ranking[:2]} == {7, 8}
        assert all(0 < (match.probability or 0) < 1 for match in ranking[2:])
        collection.accept(1, "own word")
        assert {match.id for match in collection.search(labels=["own word"], k=3)} == {1, 7, 8}
    assert filled.search(labels=["bird"]).rank == "hamming"  # an anchor, but nobody carries it
    with pytest.raises(LabelError, match="nothing tells how probable"):
        filled.search(labels=["bird"], rank="labels")
    with pytest.raises(ConfigError, match="goes by codes alone"):
        filled.search(any_of=["cat", "dog"], rank="hamming")


def test_a_near_miss_is_asked_about(scored: Collection) -> None:
    for miss, meant in (("brid", "bird"), ("own wrd", "own word")):
        with pytest.raises(LabelError, match=f"{miss!r}, and it was never learned; did you mean {meant!r}"):
            scored.search(labels=[miss])


def test_a_label_that_stands_below_another_is_asked_about(scored: Collection) -> None:
    scored.relabel(1, ["thing/animal/Zebra/foal"])
    with pytest.raises(LabelError, match="'zebra', and it was never learned; did you mean 'thing/animal/Zebra'"):
        scored.search(labels=["zebra"])
    assert scored.search(labels=["bird"]).unlike == ""
    scored.accept(2, "animal/bird")  # the hasher knows birds, photos carry animal/bird
    found = scored.search(labels=["bird"], k=10)
    assert (found.unlike, len(found)) == ("no photo here carries the label 'bird'; did you mean 'animal/bird'?", 10)
    assert scored.search(labels=["animal/bird"]).unlike == ""
    scored.accept(3, "bird")
    assert scored.search(labels=["bird"]).unlike == ""


def test_a_query_unlike_anything_says_so(scored: Collection, draw: Any, tmp_path: Path) -> None:
    assert scored.search(labels=["cat"]).unlike == ""
    for id in range(1, 11):
        scored.refuse(id, "sea")
    scored.refuse(10, "cat")
    nobody = scored.search(labels=["bird", "cat"], unwanted=["dog"], at_least={"bird": 0.99}, carrying=["own word"])
    assert not len(nobody) or nobody.unlike
    codes = Codes.from_bits(np.random.default_rng(0).random((200, 12)) < np.r_[[0.5] * 6, [0.0] * 6])
    photos = [
        Photo(path=f"{i}", facts=Facts(content=f"{i:064x}"), code=row.tobytes()) for i, row in enumerate(codes.packed)
    ]
    scored.store.upsert(photos, fingerprint=scored.hasher.fingerprint)
    strange, usual = np.ones(12, np.float32), np.r_[np.ones(6), -np.ones(6)].astype(np.float32)
    assert scored.search(outputs=usual).unlike == ""
    scored.remove(range(1, 11))
    assert "6 bits away; 99 of 100 have one within" in scored.search(outputs=strange).unlike


def test_filters_and_pages(filled: Collection) -> None:
    whole = filled.search(labels=["sea"], rank="hamming", k=10)
    cats = filled.search(labels=["sea"], carrying=["cat"], rank="hamming", k=10)
    assert pairs(cats) == [(m.distance, m.id) for m in whole if "cat" in m.labels]
    assert cats.total == 3
    near = filled.search(labels=["sea"], radius=5, rank="hamming", k=10)
    assert pairs(near) == [pair for pair in pairs(whole) if pair[0] <= 5]
    assert near.total == len(near)
    pages = [filled.search(labels=["sea"], rank="hamming", k=4, offset=offset) for offset in (0, 4, 8, 12)]
    assert [pair for page in pages for pair in pairs(page)] == pairs(whole)
    assert [page.offset for page in pages] == [0, 4, 8, 12]
    assert filled.search(labels=["sea"], carrying=["nobody carries this"]).total == 0
    assert whole[1:3] == tuple(whole)[1:3]


def described(collection: Collection, **facts: Any) -> None:
    """Photos 1, 2, … have these facts."""
    for name, values in facts.items():
        photos = [collection.get(id) for id in range(1, len(values) + 1)]
        changed = [replace(p, facts=replace(p.facts, **{name: v})) for p, v in zip(photos, values, strict=True)]
        collection.store.upsert(changed, fingerprint=collection.hasher.fingerprint)


DAY = 86_400


def test_filters_narrow_every_search_and_stand_for_themselves(filled: Collection, photos: list[Path]) -> None:
    described(filled, taken=[DAY * day for day in (40, 10, 70, 10, 41, 42)], camera=["Canon", "Pixel"] * 5)
    only = Filter.parse(taken="1970-02", camera="canon")
    for asked in ({"labels": ["sea"]}, {"photo": photos[8]}, {"like": 2}, {"labels": ["sea"], "rank": "hamming"}):
        whole = filled.search(**asked)  # type: ignore[arg-type]
        found = filled.search(**asked, only=only)  # type: ignore[arg-type]
        assert [m.id for m in found] == [m.id for m in whole if m.id in (1, 5)]
        assert found.total == 2
    alone = filled.search(only=only)
    assert [(m.id, m.path, m.width) for m in alone] == [(5, str(photos[4]), 48), (1, str(photos[0]), 48)]
    assert (alone.rank, alone.total) == ("taken", 2)
    newest = filled.search(only=Filter.parse(folder="photos"), k=4, offset=1)
    assert ([m.id for m in newest], newest.total) == ([6, 5, 1, 2], 10)
    assert [m.id for m in filled.search(carrying=["Sea"], only=Filter.parse(taken="1970"))] == [2, 4]
    assert filled.search(carrying=["nobody"]).total == 0


def test_photos_by_month(filled: Collection) -> None:
    described(filled, taken=[DAY * day for day in (40, 10, 70, 10, 41, -1)])

    def told(timeline: Timeline) -> tuple[dict[str, int], int]:
        return {month.month: month.photos for month in timeline.months}, timeline.undated

    assert told(filled.timeline()) == ({"1969-12": 1, "1970-01": 2, "1970-02": 2, "1970-03": 1}, 4)
    assert told(filled.timeline(Filter.parse(taken="1970-02.."))) == ({"1970-02": 2, "1970-03": 1}, 0)
    assert told(filled.timeline(Filter(carrying=("sea",)))) == ({"1970-01": 2}, 1)
    found = [match for match in filled.search(labels=["cat"]) if match.id in (1, 6, 9)]
    assert told(filled.timeline(among=found)) == ({"1969-12": 1, "1970-02": 1}, 1)
    assert told(filled.timeline(Filter(carrying=("nobody",)))) == ({}, 0)


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


@pytest.mark.slow
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
