"""What the labels of a query mean: their names, their roles, and where their scores come from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hyphash.codes import Codes
from hyphash.collection import Collection, Verdict
from hyphash.collection import label_query as module
from hyphash.collection.label_query import probabilities, roles_of
from hyphash.errors import ConfigError, LabelError, OtherHasherError
from hyphash.labels import sigmoid
from hyphash.searchers.local.scores import features_of
from hyphash.stores import Facts, Photo


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
