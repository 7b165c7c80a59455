"""What is looked for: outputs put together from photos and labels, and how near the photos around them are.

What the labels of a query mean: their names, their roles, and where their scores come from.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hyphash.codes import Codes
from hyphash.collection import Collection, Verdict
from hyphash.collection import query as module
from hyphash.collection.query import QueryVector, encoded, outputs_of_code, probabilities, roles_of
from hyphash.errors import ConfigError, LabelError, OtherHasherError
from hyphash.hasher import unit
from hyphash.labels import sigmoid
from hyphash.photos import decode
from hyphash.searchers.filters import Filter
from hyphash.searchers.local.scores import features_of
from hyphash.stores import Facts, Photo


@pytest.fixture
def filled(collection: Collection, photos: list[Path]) -> Collection:
    collection.add(photos, labels=[["cat", "own"]] * 3 + [["dog", "sea"]] * 7)
    return collection


@pytest.fixture
def query(filled: Collection, hasher: Any) -> Callable[..., QueryVector]:
    return partial(QueryVector, filled.searcher, hasher, filled.sources)


def test_pages_that_cannot_be(query: Callable[..., QueryVector]) -> None:
    with pytest.raises(ConfigError, match="it is 'labels', 'hamming' or 'asymmetric'"):
        query().ranking(rank="euclid")  # type: ignore[arg-type]
    for k, offset in ((0, 0), (1, -1)):
        with pytest.raises(ConfigError, match="k is 1 or more, offset 0 or more"):
            query().ranking(k=k, offset=offset)


def test_wishes_are_added_up_as_unit_vectors(
    query: Callable[..., QueryVector], filled: Collection, hasher: Any, photos: list[Path]
) -> None:
    one, other = (encoded(hasher, path) for path in photos[:2])
    expected = hasher.to_codes((unit(one) + unit(other))[None])
    codes = {photo.id: Codes(np.frombuffer(photo.code, np.uint8)[None], 12) for photo in filled.photos()}
    naive = sorted((int(expected.distances(code)[0, 0]), id) for id, code in codes.items())
    found = query(near=[10 * one, other]).ranking()
    assert [(match.distance, match.id) for match in found] == naive
    assert (found.total, found.behind, found.asked) == (10, 0, ())
    assert [match.score for match in found] == pytest.approx([1 - 2 * distance / 12 for distance, _ in naive])


def test_a_photo_of_the_collection_does_not_find_itself(query: Callable[..., QueryVector], filled: Collection) -> None:
    found = query(like=filled.get(4)).ranking()
    assert 4 not in [match.id for match in found]
    assert (found.total, found.asked) == (9, ("dog", "sea"))
    assert {match.shared for match in found} == {(), ("dog", "sea")}


def test_a_label_that_no_hasher_knows_lies_amid_its_photos(
    query: Callable[..., QueryVector], filled: Collection, hasher: Any
) -> None:
    assert "own" not in hasher.classes
    middle = unit(np.mean([unit(outputs_of_code(hasher, filled.get(id).code)) for id in (1, 2, 3)], axis=0))
    expected = query(near=[middle]).ranking()
    labels = filled.sources.query([("own", "every")], "first", {}, hasher, scored=True)
    found = query(labels=labels).ranking(rank="hamming")
    assert [match.id for match in found] == [match.id for match in expected]
    assert found.asked == ("own",)
    with pytest.raises(LabelError, match="no photo here carries the label 'whale', and it was never learned"):
        filled.sources.query([("whale", "every")], "first", {}, hasher, scored=False)
    for wanted, unwanted in ((("cat", "dog"), ("cat",)), (("dog",), ("DOG",))):
        with pytest.raises(LabelError, match=f"'{unwanted[0].lower()}' is wanted and unwanted"):
            filled.sources.query(*roles_of(wanted, (), unwanted, "", ""), {}, hasher, scored=False)


def test_nothing_to_search_for(query: Callable[..., QueryVector]) -> None:
    with pytest.raises(ConfigError, match="nothing to search for; give a photo, the id of one, or labels"):
        query().ranking()


def test_asymmetric_scores_are_cosines(
    query: Callable[..., QueryVector], filled: Collection, hasher: Any, photos: list[Path]
) -> None:
    outputs = encoded(hasher, photos[5])
    found = query(near=[outputs]).ranking(rank="asymmetric", only=Filter(carrying=("dog",)))
    assert found.total == 7
    for match in found:
        signs = outputs_of_code(hasher, filled.get(match.id).code)
        assert match.score == pytest.approx(float(unit(outputs) @ unit(signs)), abs=1e-5)


@pytest.mark.parametrize("bits", [1, 5, 8, 11, 12])
def test_the_first_bits_rank_then_all(
    query: Callable[..., QueryVector], filled: Collection, hasher: Any, bits: int
) -> None:
    outputs = np.random.default_rng(bits).normal(size=12).astype(np.float32)
    near = query(near=[outputs])
    asked, codes = outputs > 0, {p.id: Codes(np.frombuffer(p.code, np.uint8)[None], 12) for p in filled.photos()}
    differ = {id: (code.unpacked()[0] != asked) for id, code in codes.items()}
    naive = sorted((int(d[:bits].sum()), int(d.sum()), id) for id, d in differ.items())
    found = near.ranking(rank="hamming", bits=bits)
    assert [(match.distance, match.id) for match in found] == [(whole, id) for _, whole, id in naive]
    assert [match.score for match in found] == pytest.approx([1 - 2 * whole / 12 for _, whole, _ in naive])
    pages = [
        match.id for offset in range(0, 10, 3) for match in near.ranking(rank="hamming", bits=bits, k=3, offset=offset)
    ]
    assert pages == [id for *_, id in naive]


def test_bits_that_no_code_has(query: Callable[..., QueryVector], filled: Collection) -> None:
    for rank, bits in (("hamming", 0), ("hamming", 13), ("asymmetric", 4)):
        with pytest.raises(
            ConfigError, match=f"bits={bits}: the first 1 … 12 bits of codes here rank, by hamming alone"
        ):
            query().ranking(rank=rank, bits=bits)  # type: ignore[arg-type]
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


def test_probabilities_are_read_from_pairs() -> None:
    assert probabilities(["dog=.8", " a=b =1"]) == {"dog": 0.8, "a=b": 1.0}
    for pair in ("dog", "dog=high", "="):
        with pytest.raises(ConfigError, match=r"such as dog=\.8"):
            probabilities([pair])


def test_each_label_has_a_role() -> None:
    roles, said = roles_of(["b", "a"], ["c"], ["d"], "", "")
    assert (roles, said) == ([("a", "every"), ("b", "every"), ("c", "some"), ("d", "unwanted")], "first")
    assert roles_of((), (), (), "a", "") == ([("a", "every")], "lacking")
    assert roles_of((), (), (), "", "a") == ([("a", "unwanted")], "ignored")
    for asked in ((["a"], (), (), "b", ""), ((), (), (), "a", "b")):
        with pytest.raises(ConfigError, match="by themselves"):
            roles_of(*asked)


def fill(collection: Collection, count: int) -> None:
    """Every third photo is `odd`, and shows it in its first two bits; every tenth is tagged otherwise."""
    rng = np.random.default_rng(0)
    bits = rng.random((count, 12)) < 0.5
    bits[::3, :2] = True
    words = [("odd",) if i % 3 == 0 else ("other",) if i % 10 == 1 else () for i in range(count)]
    photos = [
        Photo(path=f"{i}", facts=Facts(content=f"{i:064x}"), code=row.tobytes(), labels=words[i])
        for i, row in enumerate(Codes.from_bits(bits).packed)
    ]
    collection.store.upsert(photos, fingerprint=collection.hasher.fingerprint)


def test_a_label_is_fitted_from_its_carriers_whatever_share_of_them_is_taken(
    collection: Collection, hasher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(collection, 600)
    whole = []
    for carriers, others in ((2000, 8000), (50, 8000)):
        monkeypatch.setattr(module, "CARRIERS", carriers)
        monkeypatch.setattr(module, "OTHERS", others)
        term = module.LabelSources(collection.store).get("odd", hasher)
        assert term is not None
        weights = np.frombuffer(term.source, np.float32)
        _, codes, scores = collection.store.read(lambda session: session.derived(session.state().in_use))
        whole.append(float(sigmoid(features_of(codes, scores) @ weights[:-1] + weights[-1]).mean()))
    assert whole == pytest.approx([1 / 3, 1 / 3], abs=0.04)  # the share of photos that carry it
    assert module.LabelSources(collection.store).get("nobody", hasher) is None


def test_labels_have_the_names_that_are_known_here(collection: Collection, hasher: Any) -> None:
    fill(collection, 9)
    sources = collection.sources
    assert [sources.spelled(label, hasher) for label in ("ODD", "Cat", "odd")] == ["odd", "cat", "odd"]
    assert sources.spelled("whale", hasher, strict=False) == "whale"
    with pytest.raises(LabelError, match="did you mean 'other'"):
        sources.spelled("othr", hasher)
    query = sources.query([("CAT", "some"), ("odd", "unwanted")], "first", {"Cat": 0.5}, hasher, scored=False)
    assert [(term.label, term.role, term.at_least) for term in query.terms] == [
        ("cat", "some", 0.5),
        ("odd", "unwanted", 0.0),
    ]
    assert query.carried_by(["cat"])
    assert not query.carried_by(["cat", "odd"])


def test_a_label_is_not_fitted_to_the_codes_of_another_hasher(collection: Collection, tiny: Any) -> None:
    """The collection moved on between the question and the look at its codes."""
    fill(collection, 60)
    with pytest.raises(OtherHasherError):
        collection.sources.get("odd", tiny.TinyHasher(seed=1, bits=20))


def test_a_taught_label_is_fitted_anew_when_somebody_says_something_of_it(
    tiny: Any, photos: list[Path], tmp_path: Path
) -> None:
    hasher = tiny.TinyHasher(layer=True)
    with Collection.create(tmp_path / "taught", hasher) as collection:
        collection.add(photos, labels=[["mine"] if i < 3 else ["cat"] for i in range(8)] + [[], []])
        first = collection.sources.get("mine", hasher)
        collection.accept(9, "sea")
        assert collection.sources.get("mine", hasher) is first  # nobody spoke of it
        collection.refuse(10, "mine")
        second = collection.sources.get("mine", hasher)
        assert second is not first
        collection.accept(10, "mine")
        assert collection.sources.get("mine", hasher) is not second


# ── hierarchies ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_search_for_a_parent_finds_what_carries_its_children(collection, photos):
    collection.add(photos, labels=[["animal/dog"], ["animal/cat"], ["animal"], ["sea"], *[[]] * 6])
    assert collection.labels() == {"animal": 3, "animal/cat": 1, "animal/dog": 1, "sea": 1}
    for search in ({"labels": ["Animal"]}, {"any_of": ["animal"]}):
        found = collection.search(**search, k=10)
        assert {match.id for match in found if match.known} == {1, 2, 3}
        assert found.known == 3
    assert {match.id for match in collection.search(labels=["animal"], rank="hamming", carrying=["animal"])} == {
        1,
        2,
        3,
    }
    assert not {1, 2, 3} & {match.id for match in collection.search(labels=["sea"], unwanted=["animal"], k=10)}
    assert [photo.id for photo in collection.photos(carrying=["animal/dog"])] == [1]


def test_a_parent_that_was_learnt_by_its_children_alone_is_any_of_them(tiny, photos, tmp_path):
    """Nobody carries anything: the probability of an animal is that of a dog or a cat."""
    hasher = tiny.TinyHasher(layer=True, classes=("animal/cat", "animal/dog", "plant/tree", "sea"))
    with Collection.create(tmp_path / "learnt", hasher) as collection:
        collection.add(photos)

        def order(**query):
            return [(match.id, match.probability) for match in collection.search(**query, k=10)]

        both = ["animal/cat", "animal/dog"]
        assert order(labels=["animal"]) == order(any_of=["animal"]) == order(any_of=both)
        assert order(labels=["sea"], unwanted=["animal"]) == order(labels=["sea"], unwanted=both)
        assert order(labels=["sea", "animal"]) == order(labels=["sea"], any_of=both)
        assert len(order(labels=["animal", "plant"])) == 10  # by the places of their children
        assert len(order(labels=["animal"], rank="hamming")) == 10
        with pytest.raises(LabelError, match="animals"):
            collection.search(labels=["animals"])


def test_what_is_refused_and_accepted_makes_sense_in_a_tree(collection, photos):
    collection.add(photos[:1], labels=[["animal/dog", "sea"]])
    _, undo = collection.judge([Verdict(1, "animal", "refuse")])  # no animal, so no dog
    assert (collection.get(1).labels, collection.get(1).refused) == (("sea",), ("animal",))
    collection.judge(undo)
    assert (collection.get(1).labels, collection.get(1).refused) == (("animal", "animal/dog", "sea"), ())
    collection.refuse(1, "animal/dog")  # another animal
    assert (collection.get(1).labels, collection.get(1).refused) == (("animal", "sea"), ("animal/dog",))
    collection.refuse(1, "animal")
    _, undo = collection.judge([Verdict(1, "animal/cat", "accept")])
    assert (collection.get(1).labels, collection.get(1).refused) == (("animal", "animal/cat", "sea"), ("animal/dog",))
    collection.judge(undo)
    assert (collection.get(1).labels, collection.get(1).refused) == (("sea",), ("animal", "animal/dog"))
