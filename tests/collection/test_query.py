"""What is looked for: outputs put together from photos and labels, and how near the photos around them are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hyphash.codes import Codes
from hyphash.collection import Collection
from hyphash.collection.label_query import roles_of
from hyphash.collection.query import QueryVector, encoded, outputs_of_code
from hyphash.errors import ConfigError, LabelError
from hyphash.hasher import unit
from hyphash.photos import decode
from hyphash.searchers.filters import Filter


@pytest.fixture
def filled(collection: Collection, photos: list[Path]) -> Collection:
    collection.add(photos, labels=[["cat", "own"]] * 3 + [["dog", "sea"]] * 7)
    return collection


@pytest.fixture
def query(filled: Collection, hasher: Any) -> QueryVector:
    return QueryVector(filled.searcher, hasher, filled.sources)


def test_pages_that_cannot_be(query: QueryVector) -> None:
    with pytest.raises(ConfigError, match="it is 'labels', 'hamming' or 'asymmetric'"):
        query.ranking(rank="euclid")  # type: ignore[arg-type]
    for k, offset in ((0, 0), (1, -1)):
        with pytest.raises(ConfigError, match="k is 1 or more, offset 0 or more"):
            query.ranking(k=k, offset=offset)


def test_wishes_are_added_up_as_unit_vectors(
    query: QueryVector, filled: Collection, hasher: Any, photos: list[Path]
) -> None:
    one, other = (encoded(hasher, path) for path in photos[:2])
    query.near(10 * one)
    query.near(other)
    expected = hasher.to_codes((unit(one) + unit(other))[None])
    codes = {photo.id: Codes(np.frombuffer(photo.code, np.uint8)[None], 12) for photo in filled.photos()}
    naive = sorted((int(expected.distances(code)[0, 0]), id) for id, code in codes.items())
    found = query.ranking()
    assert [(match.distance, match.id) for match in found] == naive
    assert (found.total, found.behind, found.asked) == (10, 0, ())
    assert [match.score for match in found] == pytest.approx([1 - 2 * distance / 12 for distance, _ in naive])


def test_a_photo_of_the_collection_does_not_find_itself(query: QueryVector, filled: Collection) -> None:
    photo = filled.get(4)
    query.near_photo(photo)
    found = query.ranking()
    assert 4 not in [match.id for match in found]
    assert (found.total, found.asked) == (9, ("dog", "sea"))
    assert {match.shared for match in found} == {(), ("dog", "sea")}


def test_a_label_that_no_hasher_knows_lies_amid_its_photos(query: QueryVector, filled: Collection, hasher: Any) -> None:
    assert "own" not in hasher.classes
    middle = unit(np.mean([unit(outputs_of_code(hasher, filled.get(id).code)) for id in (1, 2, 3)], axis=0))
    query.near_labels(filled.sources.query([("own", "every")], "first", {}, hasher, scored=True))
    by_hand = QueryVector(filled.searcher, hasher, filled.sources)
    by_hand.near(middle)
    expected = by_hand.ranking()
    found = query.ranking(rank="hamming")
    assert [match.id for match in found] == [match.id for match in expected]
    assert found.asked == ("own",)
    with pytest.raises(LabelError, match="neither the hasher knows the label 'whale' nor does a photo here carry it"):
        filled.sources.query([("whale", "every")], "first", {}, hasher, scored=False)
    for wanted, unwanted in ((("cat", "dog"), ("cat",)), (("dog",), ("DOG",))):
        with pytest.raises(LabelError, match=f"'{unwanted[0].lower()}' is wanted and unwanted"):
            filled.sources.query(*roles_of(wanted, (), unwanted, "", ""), {}, hasher, scored=False)


def test_nothing_to_search_for(query: QueryVector) -> None:
    with pytest.raises(ConfigError, match="nothing to search for; give a photo, the id of one, or labels"):
        query.ranking()


def test_asymmetric_scores_are_cosines(query: QueryVector, filled: Collection, hasher: Any, photos: list[Path]) -> None:
    outputs = encoded(hasher, photos[5])
    query.near(outputs)
    found = query.ranking(rank="asymmetric", only=Filter(carrying=("dog",)))
    assert found.total == 7
    for match in found:
        signs = outputs_of_code(hasher, filled.get(match.id).code)
        assert match.score == pytest.approx(float(unit(outputs) @ unit(signs)), abs=1e-5)


@pytest.mark.parametrize("bits", [1, 5, 8, 11, 12])
def test_the_first_bits_rank_then_all(query: QueryVector, filled: Collection, hasher: Any, bits: int) -> None:
    outputs = np.random.default_rng(bits).normal(size=12).astype(np.float32)
    query.near(outputs)
    asked, codes = outputs > 0, {p.id: Codes(np.frombuffer(p.code, np.uint8)[None], 12) for p in filled.photos()}
    differ = {id: (code.unpacked()[0] != asked) for id, code in codes.items()}
    naive = sorted((int(d[:bits].sum()), int(d.sum()), id) for id, d in differ.items())
    found = query.ranking(rank="hamming", bits=bits)
    assert [(match.distance, match.id) for match in found] == [(whole, id) for _, whole, id in naive]
    assert [match.score for match in found] == pytest.approx([1 - 2 * whole / 12 for _, whole, _ in naive])
    pages = [
        match.id for offset in range(0, 10, 3) for match in query.ranking(rank="hamming", bits=bits, k=3, offset=offset)
    ]
    assert pages == [id for *_, id in naive]


def test_bits_that_no_code_has(query: QueryVector, filled: Collection) -> None:
    for rank, bits in (("hamming", 0), ("hamming", 13), ("asymmetric", 4)):
        with pytest.raises(
            ConfigError, match=f"bits={bits}: the first 1 … 12 bits of codes here rank, by hamming alone"
        ):
            query.ranking(rank=rank, bits=bits)  # type: ignore[arg-type]
    first = filled.search(like=2, bits=4, k=9)
    assert first.rank == "hamming"
    assert [m.id for m in filled.search(like=2, bits=12, k=9)] == [m.id for m in filled.search(like=2, k=9)]


def test_a_photo_is_a_path_bytes_or_an_image(hasher: Any, photos: list[Path]) -> None:
    data = photos[0].read_bytes()
    by_path, by_bytes, by_image = (
        encoded(hasher, photo) for photo in (photos[0], data, decode(data, at_least=hasher.encoder.preprocessing.size))
    )
    assert by_path.shape == (12,)
    np.testing.assert_array_equal(by_path, by_bytes)
    np.testing.assert_array_equal(by_path, by_image)


def test_a_search_may_answer_before_it_has_caught_up(
    filled: Collection, hasher: Any, photos: list[Path], draw: Any, tmp_path: Path
) -> None:
    assert len(filled.search(photos[0], k=99)) == 10
    with Collection.open(filled.folder, hasher=hasher) as other:
        other.add([draw(tmp_path / "late.jpg", 77)])
        other.remove([2])
    early = filled.search(photos[0], k=99, catch_up=False)
    assert (early.behind, early.total, len(early)) == (2, 10, 9)  # of a photo that is gone there is nothing to show
    now = filled.search(photos[0], k=99)
    assert (now.behind, now.total, len(now)) == (0, 10, 10)
    filled.rebuild()
    assert filled.search(photos[0], k=99) == now
    assert filled.verify() == []
