"""Moving a collection to another hasher while the old one keeps answering."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hyphash.collection import Collection
from hyphash.errors import CollectionError, OtherHasherError
from hyphash.photos import Raw, pixels_of


def codes(collection: Collection) -> dict[str, bytes]:
    return {photo.path: photo.code for photo in collection.photos(limit=1000)}


def test_all_codes_change_at_once_and_nothing_else_does(collection: Collection, tiny: Any, photos: list[Path]) -> None:
    collection.add(photos, labels=[["cat"]] * 10)
    collection.relabel(3, ["mine"])
    before = {photo.id: (photo.path, photo.labels, photo.given, photo.added) for photo in collection.photos()}
    other = tiny.TinyHasher(bits=33, seed=1)
    steps: list[tuple[int, int]] = []
    assert collection.reindex(other, progress=lambda done, total: steps.append((done, total))) == ()
    assert steps[-1] == (10, 10)
    expected = other.encode(photos).packed
    assert codes(collection) == {str(path): row.tobytes() for path, row in zip(photos, expected, strict=True)}
    assert {p.id: (p.path, p.labels, p.given, p.added) for p in collection.photos()} == before
    assert collection.hasher.bits == collection.stats().bits == 33
    assert collection.verify() == []
    with Collection.open(collection.folder, hasher=other) as again:
        assert again.search(photos[2], k=1)[0].id == 3
    collection.compact()
    assert collection.verify() == []
    assert [path.name for path in collection.folder.glob("codes-*")] == ["codes-2.safetensors"]


def test_scores_of_labels_come_with_the_codes(collection: Collection, tiny: Any, photos: list[Path]) -> None:
    """Also of a copy, which is not encoded; one who moves to a hasher without a label layer has none."""
    for hasher in (tiny.TinyHasher(layer=True), tiny.TinyHasher(seed=2)):
        collection.add(photos)
        collection.add_bytes(photos[3].read_bytes(), "copy.jpg")
        collection.reindex(hasher)
        sees = hasher.spec.preprocessing
        pixels = np.array([pixels_of(Raw(path.name, path.read_bytes()), preprocessing=sees) for path in photos])
        expected = [row[2:].tobytes() for row in hasher.packed_rows(pixels)]
        assert [photo.scores for photo in collection.photos()] == [*expected, expected[3]]
        assert len(expected[0]) == (2 if hasher.calibration else 0)
        assert collection.verify() == []


def test_the_old_hasher_answers_until_the_end(collection: Collection, tiny: Any, photos: list[Path]) -> None:
    collection.add(photos)
    expected = [match.id for match in collection.search(photos[4], k=10)]
    other = tiny.TinyHasher(bits=33, seed=1)
    reader = Collection.open(collection.folder, hasher=collection.hasher)
    answers: list[list[int]] = []
    original = other.packed_rows

    def spy(pixels: Any) -> Any:
        answers.append([match.id for match in reader.search(photos[4], k=10)])
        return original(pixels)

    other.packed_rows = spy
    collection.reindex(other)
    assert answers == [expected]
    with reader:  # the reader notices by itself; labels need no network
        assert reader.search(labels=["cat"], k=10).total == 10
        assert reader.hasher.fingerprint == other.fingerprint
        assert reader.search(like=4, k=1)[0].distance <= 33


def test_photos_that_come_and_change_meanwhile(
    collection: Collection, tiny: Any, photos: list[Path], draw: Callable[..., Path]
) -> None:
    collection.add(photos)
    other = tiny.TinyHasher(bits=9, seed=1)
    original, rounds = other.packed_rows, iter(range(99))

    def busy(pixels: Any) -> Any:
        if (round := next(rounds)) < 2:
            draw(photos[5], 1000 + round)
            collection.add([draw(photos[0].with_name(f"late{round}.jpg"), 500 + round), photos[5]])
            collection.remove([round + 1])
        return original(pixels)

    other.packed_rows = busy
    collection.reindex(other)
    present = [path for path in photos[0].parent.iterdir() if path not in photos[:2]]
    assert codes(collection) == {str(path): other.encode([path]).packed[0].tobytes() for path in present}
    assert collection.verify() == []


def test_an_interrupted_move_goes_on(collection: Collection, tiny: Any, photos: list[Path], monkeypatch: Any) -> None:
    monkeypatch.setattr(tiny.TinyEncoder, "batch", 4)
    collection.add(photos)
    other = tiny.TinyHasher(seed=1)
    before = codes(collection)

    def stop(done: int, total: int) -> None:
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collection.reindex(other, progress=stop)
    assert codes(collection) == before
    assert collection.hasher.fingerprint != other.fingerprint
    other.encoder.encoded = 0
    collection.reindex(other)
    assert other.encoder.encoded == 2


def test_photos_whose_files_are_gone_or_changed_are_encoded_from_thumbnails(
    collection: Collection, tiny: Any, photos: list[Path], draw: Callable[..., Path]
) -> None:
    collection.add(photos)
    photos[0].unlink()
    draw(photos[1], 4321)
    problems = collection.reindex(tiny.TinyHasher(seed=1))
    reasons = {problem.name: problem.reason for problem in problems}
    assert set(reasons) == {str(photos[0]), str(photos[1])}
    assert "encoded from its thumbnail" in reasons[str(photos[0])]
    assert "changed since" in reasons[str(photos[1])]
    assert len(collection) == 10


def test_a_photo_that_is_lost_stops_the_move(
    collection: Collection, tiny: Any, photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.add(photos)
    before = codes(collection)
    photos[0].unlink()
    monkeypatch.setattr("hyphash.collection.thumbnails.GRACE", -1)
    collection.thumbnails.sweep(lambda _: set())
    other = tiny.TinyHasher(seed=1)
    with pytest.raises(
        CollectionError, match=r"0.jpg: there is no such photo.*not here either.*the old hasher answers"
    ):
        collection.reindex(other)
    assert codes(collection) == before
    collection.remove([1])
    collection.reindex(other)
    assert len(collection) == 9


def test_codes_of_the_old_hasher_are_refused_afterwards(collection: Collection, tiny: Any, photos: list[Path]) -> None:
    collection.add(photos[:5])
    with Collection.open(collection.folder, hasher=collection.hasher) as writer:
        collection.reindex(tiny.TinyHasher(seed=1))
        with pytest.raises(OtherHasherError, match="reindex"):
            writer.add(photos)
    assert len(collection) == 5


def test_the_same_hasher_is_nothing_to_do(collection: Collection, hasher: Any, photos: list[Path]) -> None:
    collection.add(photos)
    commit = collection.store.state().commit
    assert collection.reindex(hasher) == ()
    assert collection.store.state().commit == commit
