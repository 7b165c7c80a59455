"""Searches, against what the collection itself finds; outputs of an uploaded photo on their way through an address."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from hyphash.collection import Collection
from hyphash.errors import ConfigError
from hyphash.service import ServedCollection, Settings, create_app
from hyphash.service.search import outputs_from, outputs_text

Get = Callable[..., Any]


class Fake:
    fingerprint = "abc"
    bits = width = 3
    quantizer = None


@given(st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3))
def test_place_is_what_it_was(values: list[float]) -> None:
    outputs = np.array(values, np.float32)
    text = outputs_text(outputs, Fake())  # type: ignore[arg-type]
    assert text.isascii()
    assert set("&=?#%+/ ").isdisjoint(text)
    assert_array_equal(outputs_from(text, Fake()), outputs)  # type: ignore[arg-type]


NO_PLACES = ("", "abc", "abc.", "abc.AAAA", "xyz.AAAAAAAAAAAAAAAA", "abc.AADAfwAAwH8AAMB_", "abc.é", ".")


@pytest.mark.parametrize("text", NO_PLACES)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        outputs_from(text, Fake())  # type: ignore[arg-type]


def upload(path: Path) -> dict[str, Any]:
    return {"photo": (path.name, path.read_bytes(), "image/jpeg")}


def test_finds_what_the_collection_finds(reader: TestClient, made: Any, get: Get) -> None:
    with Collection.open(made.collection) as collection:
        label = next(iter(collection.labels()))
        for rank in ("hamming", "asymmetric"):
            expected = collection.search(labels=[label], rank=rank, k=7, offset=2)
            found = get(reader, "/api/search", label=label, rank=rank, k=7, offset=2)
            assert [m["id"] for m in found["matches"]] == [m.id for m in expected]
            assert [m["distance"] for m in found["matches"]] == [m.distance for m in expected]
            assert found["total"] == 66
            assert found["asked"] == [label]
        assert all(("/" not in m["name"]) for m in found["matches"])


def test_labels_are_found_where_they_were_taught(reader: TestClient, get: Get) -> None:
    found = get(reader, "/api/search", label="dog", rank="asymmetric", k=5)
    assert [m["shared"] for m in found["matches"]].count(["dog"]) >= 4


def test_wanted_unwanted_and_filters_work_together(reader: TestClient, made: Any, get: Get) -> None:
    with Collection.open(made.collection) as collection:
        one, other = list(collection.labels())[:2]
        expected = collection.search(labels=[one], unwanted=[other], carrying=[one], radius=14, k=50)
    found = get(reader, "/api/search", label=one, unwanted=other, carrying=one, radius=14, k=50)
    assert [m["id"] for m in found["matches"]] == [m.id for m in expected]
    assert found["total"] == expected.total
    assert all(one in m["labels"] and m["distance"] <= 14 for m in found["matches"])


def test_more_like_this_shares_the_labels_of_the_photo(reader: TestClient, get: Get) -> None:
    photo = get(reader, "/api/photos/1")
    found = get(reader, "/api/search", like=1, k=10)
    assert found["asked"] == photo["labels"]
    assert 1 not in [m["id"] for m in found["matches"]]
    for match in found["matches"]:
        assert match["shared"] == [label for label in match["labels"] if label in photo["labels"]]


def test_upload_finds_itself_first_and_pages_by_its_place(reader: TestClient, made: Any, get: Get) -> None:
    photo = made.photo(3, "database")
    whole = reader.post("/api/search", files=upload(photo), params={"k": 20}).json()
    assert whole["matches"][0]["name"] == photo.name
    assert whole["matches"][0]["distance"] == 0
    pages = [get(reader, "/api/search", place=whole["place"], k=5, offset=offset) for offset in (0, 5, 10, 15)]
    assert [m for page in pages for m in page["matches"]] == whole["matches"]


def test_upload_and_labels_together(reader: TestClient, made: Any) -> None:
    photo = made.photo(3, "database")
    with Collection.open(made.collection) as collection:
        expected = collection.search(photo, labels=["dog"], k=10)
    found = reader.post("/api/search", files=upload(photo), params={"label": "dog", "k": 10}).json()
    assert [m["id"] for m in found["matches"]] == [m.id for m in expected]


def test_pages_make_one_ranking(reader: TestClient, get: Get) -> None:
    whole = get(reader, "/api/search", label="cat", k=66)["matches"]
    parts = [get(reader, "/api/search", label="cat", k=7, offset=offset)["matches"] for offset in range(0, 70, 7)]
    assert [m for part in parts for m in part] == whole
    assert len({m["id"] for m in whole}) == 66


def test_filters_and_months(reader: TestClient, made: Any, get: Get) -> None:
    """A shortcut answers searches; the route that it stands in for knows the same filters."""
    with Collection.open(made.collection) as collection:
        label = next(iter(collection.labels()))
        kept = collection.get(1)
        facts = replace(kept.facts, taken=1_556_893_805, camera="Pixel 7", latitude=48.2, longitude=16.375)
        collection.store.upsert([replace(kept, facts=facts)], fingerprint=collection.hasher.fingerprint)
    try:
        asked = {"taken": "2019-05", "camera": "pixel", "near": "48.2,16.37,1km", "size": "..9MB", "added": "30d"}
        for query in (asked, asked | {"label": label}, asked | {"type": Path(kept.path).suffix}):
            found = get(reader, "/api/search", **query)
            assert ([m["id"] for m in found["matches"]], found["total"]) == ([1], 1)
        assert get(reader, "/api/search", **asked)["rank"] == "taken"
        answer = get(reader, "/api/photos/1")
        assert (answer["taken"], answer["camera"]) == ("2019-05-03T14:30:05", "Pixel 7")
        assert (answer["latitude"], answer["longitude"]) == (48.2, 16.375)
        assert answer["folder"] == Path(kept.path).parent.name
        month = [{"month": "2019-05", "photos": 1}]
        assert get(reader, "/api/timeline") == {"months": month, "undated": 65, "unread": 0}
        assert get(reader, "/api/timeline", camera="pixel") == {"months": month, "undated": 0, "unread": 0}
        like = get(reader, "/api/timeline", like=1)
        assert (like["months"], like["undated"]) == ([], 65)
        refused = reader.get("/api/search", params={"taken": "May"})
        assert refused.status_code == 422
        assert "taken 'May' cannot be understood; write it like 2019" in refused.json()["error"]
    finally:
        with Collection.open(made.collection) as collection:
            collection.store.upsert([kept], fingerprint=collection.hasher.fingerprint)


def test_what_is_in_memory_is_found_without_a_thread(own: Path, get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the same as by one; whatever takes longer, or has changed since, is left to a thread."""
    served = ServedCollection.open(own, Settings())
    at_hand: list[dict[str, Any]] = [
        {"label": "dog", "rank": "hamming"}, {"label": ["dog", "cat"], "rank": "hamming", "k": 5, "offset": 3},
        {"unwanted": "dog", "rank": "hamming"}, {"like": 3}, {"like": 3, "label": "cat", "rank": "hamming"},
    ]  # fmt: skip
    others = [
        {"label": "dog"}, {"like": 3, "rank": "asymmetric"}, {"like": 3, "offset": 999}, {"like": 3, "radius": 9},
        {"label": "never heard of", "rank": "hamming"}, {"like": 3, "carrying": "dog"}, {"like": 3, "camera": "x"},
    ]  # fmt: skip
    with TestClient(create_app(served), base_url="http://localhost") as client:
        by_thread = [get(client, "/api/search", **query) for query in at_hand]  # the first one reads the codes
        served.pools["quick"].close()
        monkeypatch.setattr(served.pools["quick"], "most", 0)
        assert [get(client, "/api/search", **query) for query in at_hand] == by_thread
        assert {client.get("/api/search", params=query).status_code for query in others} == {503}
        with Collection.open(own) as writer:
            writer.remove([9])
        assert client.get("/api/search", params=at_hand[0]).status_code == 503
