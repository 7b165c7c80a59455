"""Suggested labels: from the neighbours and the anchors, accepted and refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hyphash.codes import Codes
from hyphash.collection import Collection, Verdict
from hyphash.hasher import Hasher, unit
from hyphash.labels import fit_logistic, sigmoid
from hyphash.searchers.local.scores import features_of
from hyphash.stores import Facts, Photo


def test_suggestions_are_accepted_and_refused_one_by_one(
    collection: Collection, hasher: Any, photos: list[Path]
) -> None:
    collection.add(photos[:1])
    (photo,) = collection.photos(untagged=True)
    offered = [tag.label for tag in collection.suggest(photo.id)]
    assert sorted(offered) == sorted(hasher.classes)
    signs = Codes(np.frombuffer(photo.code, np.uint8)[None], 12).signs().astype(np.float32)
    assert offered == [tag.label for tag in hasher.tags(signs)[0]]
    assert collection.accept(photo.id, offered[0]).labels == (offered[0],)
    assert collection.refuse(photo.id, offered[1]).refused == (offered[1],)
    assert [tag.label for tag in collection.suggest(photo.id)] == offered[2:]
    assert collection.photos(untagged=True) == []
    collection.refuse(photo.id, offered[0])
    assert collection.get(photo.id).labels == ()
    collection.accept(photo.id, offered[1])  # people may change their mind
    assert collection.get(photo.id).refused == (offered[0],)


def test_suggestions_follow_the_neighbours(filled: Collection, hasher: Any, photos: list[Path]) -> None:
    """Against the formula, written out naively."""
    code = Codes(np.frombuffer(filled.get(5).code, np.uint8)[None], 12)
    cosines = unit(hasher.anchors) @ unit(code.signs()[0].astype(np.float32))
    expected = {label: max(float(cosine), 0) for label, cosine in zip(hasher.classes, cosines, strict=True)}
    total = 1.0
    for photo in filled.photos():
        if photo.labels:
            weight = np.exp(-2.0 * code.distances(Codes(np.frombuffer(photo.code, np.uint8)[None], 12))[0, 0])
            total += weight
            for label in photo.labels:
                expected[label] = expected.get(label, 0) + weight
    tags = filled.suggest(5)
    assert {tag.label: tag.score for tag in tags} == pytest.approx({k: v / total for k, v in expected.items()})
    assert [tag.score for tag in tags] == sorted((tag.score for tag in tags), reverse=True)
    assert filled.suggest(photos[6], k=1)[0].label == "own word"


def test_scores_say_what_learnt_labels_are_suggested(tiny: Any, photos: list[Path], tmp_path: Path) -> None:
    """Labels that the hasher never saw have the probability of the layer that their carriers teach."""
    hasher: Hasher = tiny.TinyHasher(layer=True)
    with Collection.create(tmp_path / "scored", hasher) as collection:
        collection.add(photos, labels=[["mine"] if i % 2 else ["cat"] for i in range(8)] + [[], []])
        assert hasher.calibration is not None
        stored = [np.frombuffer(photo.scores, np.uint8) for photo in collection.photos()]
        expected = dict(
            zip(hasher.classes, sigmoid(hasher.calibration.unpack(stored[9][None])[0]).tolist(), strict=True)
        )
        codes = Codes(np.array([np.frombuffer(photo.code, np.uint8) for photo in collection.photos()]), 12)
        values = features_of(codes, np.array(stored))
        carried = np.arange(10)[:, None] % 2 * (np.arange(10)[:, None] < 8)
        layer = fit_logistic(values[:10], carried)
        tags = {tag.label: tag for tag in collection.suggest(10)}
        assert tags.pop("mine").score == pytest.approx(float(sigmoid(layer.logits(values[9:]))[0, 0]), abs=1e-4)
        assert {label: tag.score for label, tag in tags.items()} == pytest.approx(expected)
        assert {label for label, tag in tags.items() if tag.carried} == {x for x, p in expected.items() if p >= 0.5}
        outside = {tag.label: tag.score for tag in collection.suggest(photos[9])}  # a file: its scores are not rounded
        assert outside.pop("mine") > 0
        assert outside == pytest.approx(expected, abs=0.2)


def test_verdicts_are_taken_back_by_those_that_stood(filled: Collection) -> None:
    filled.refuse(5, "bird")
    before = filled.photos()
    verdicts = [Verdict(1, " cat ", "refuse"), Verdict(1, "sea", "accept"), Verdict(5, "bird", "accept"),
                Verdict(7, "own word", "forget"), Verdict(99, "cat", "accept")]  # fmt: skip
    photos, undo = filled.judge(verdicts)
    assert [(photo.id, photo.labels, photo.refused) for photo in photos] == [
        (1, ("sea",), ("cat",)), (5, ("bird",), ()), (7, (), ()),
    ]  # fmt: skip
    assert [v.said for v in undo] == ["accept", "forget", "refuse", "accept"]
    filled.judge(undo)
    assert [(p.labels, p.refused) for p in filled.photos()] == [(p.labels, p.refused) for p in before]


def test_the_first_photos_to_tag_stand_for_most_others(tiny: Any, tmp_path: Path) -> None:
    """Against the rule, written out naively: of all that are not tagged, whichever hasher says it."""
    for hasher, tagged in ((tiny.TinyHasher(layer=True), 0), (tiny.TinyHasher(), 3)):
        with _filled(tmp_path / f"{tagged}", hasher, tagged) as (collection, codes, _):
            distances, taken = codes.distances(codes), list(range(tagged))
            while len(taken) < tagged + 8:
                sums = {i: distances[tagged:, [*taken, i]].min(1).sum() for i in range(20) if i not in taken}
                taken.append(min(sums, key=lambda i: sums[i]))
            assert [photo.id - 1 for photo in collection.to_tag(8)] == taken[tagged:]
            assert {photo.id for photo in collection.to_tag(30)} == {*range(1 + tagged, 21)}
            for photo in collection.photos():
                collection.relabel(photo.id, ["seen"])
            assert collection.to_tag(5) == []


def test_later_those_teach_most_of_which_rare_labels_are_unsure(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the rule, written out naively; a label that the hasher never saw is told by its carriers."""
    monkeypatch.setattr("hyphash.collection.tags.FEW", 6)
    for name, hasher in (("scored", tiny.TinyHasher(layer=True)), ("bare", tiny.TinyHasher())):
        with _filled(tmp_path / name, hasher, 6) as (collection, codes, packed):
            values = features_of(codes, packed)
            p = {"mine": sigmoid(fit_logistic(values, np.arange(20)[:, None] < 3).logits(values)[:, 0])}
            if hasher.calibration is None:
                p["cat"] = sigmoid(fit_logistic(values, np.arange(20)[:, None] < 6).logits(values)[:, 0])
            else:
                p["cat"] = sigmoid(hasher.calibration.unpack(packed))[:, hasher.classes.index("cat")]
            entropy = {label: -(q * np.log(q) + (1 - q) * np.log(1 - q)) for label, q in p.items()}
            doubts = entropy["mine"] / (3 + 10) + entropy["cat"] / (6 + 10)
            expected = sorted(range(6, 20), key=lambda i: -doubts[i])
            assert [photo.id - 1 for photo in collection.to_tag(14)] == expected


@contextmanager
def _filled(folder: Path, hasher: Any, tagged: int) -> Iterator[tuple[Collection, Codes, Any]]:
    """Twenty photos drawn at random; the first ones carry cat, and three of these a label of our own."""
    rng = np.random.default_rng(0)
    logits, codes = rng.normal(size=(20, 4)).astype(np.float32) * 3, Codes.from_outputs(rng.normal(size=(20, 12)))
    packed = hasher.calibration.pack(logits) if hasher.calibration else np.empty((20, 0), np.uint8)
    photos = [
        Photo(
            path=str(i), facts=Facts(f"{i:064x}"), code=codes.packed[i].tobytes(), scores=packed[i].tobytes(),
            labels=("cat", "mine")[: 1 + (i < 3)] if i < tagged else (),
        )
        for i in range(20)
    ]  # fmt: skip
    with Collection.create(folder, hasher) as collection:
        collection.store.upsert(photos, fingerprint=hasher.fingerprint)
        yield collection, codes, packed


def test_photos_to_tag_come_from_all_parts_of_a_large_collection(
    filled: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyphash.collection.tags.SAMPLE", 1)
    for photo in filled.photos():
        filled.relabel(photo.id, [])
    assert {photo.id for photo in filled.to_tag()} == {1, 3, 5, 7, 9}
    assert {photo.id for photo in filled.to_tag(passed=[1, 3])} == {5, 7, 9}
    assert len(filled.to_tag(2)) == 2
