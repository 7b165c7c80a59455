"""The collection as a whole, against what it says itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fastapi.testclient import TestClient
from PIL import Image

from hyphash.collection import Collection

Get = Callable[..., Any]


def test_says_what_it_serves(reader: TestClient, get: Get) -> None:
    facts = get(reader, "/api/collection")
    assert facts["photos"] == 66
    assert facts["untagged"] == 6
    assert facts["bits"] == 32
    assert facts["read_only"] is True
    assert facts["by_radius"] is True


def test_completes_labels(reader: TestClient, get: Get) -> None:
    every = get(reader, "/api/labels")
    assert [answer["photos"] for answer in every] == sorted((a["photos"] for a in every), reverse=True)
    assert all(answer["learnt"] for answer in every)
    names = [answer["label"] for answer in get(reader, "/api/labels", having="Ca")]
    assert names[:2] in (["cat", "car"], ["car", "cat"])
    assert all("ca" in name for name in names)


def test_figures_agree_with_the_collection(reader: TestClient, made: Any, get: Get) -> None:
    with Collection.open(made.collection) as collection:
        expected = collection.stats()
        names = list(expected.labels)[:5]
        together = collection.cooccurrence(names).tolist()
        ids, places = collection.map()
    stats = get(reader, "/api/stats")
    assert stats["labels"] == expected.labels
    assert stats["balance"] == list(expected.balance)
    table = get(reader, "/api/cooccurrence", top=5)
    assert (table["labels"], table["counts"]) == (names, together)
    flat = get(reader, "/api/map")
    assert flat["ids"] == ids.tolist()
    assert np.allclose(np.c_[flat["x"], flat["y"]], places, atol=1e-4)
    assert len(flat["group"]) == len(ids)
    assert max(flat["group"]) < len(flat["groups"])
    assert get(reader, "/api/duplicates", radius=0)["groups"] == []


def test_copies_are_one_group(writer: TestClient, own: Path, tmp_path: Path, get: Get) -> None:
    assert get(writer, "/api/duplicates", radius=0)["groups"] == []
    for name in ("one.png", "two.png"):
        Image.new("RGB", (96, 96), "orange").save(tmp_path / name)
    with Collection.open(own) as collection:
        collection.add([tmp_path / "one.png", tmp_path / "two.png"])
    assert get(writer, "/api/duplicates", radius=0)["groups"] == [[67, 68]]
    assert writer.post("/api/duplicates/keep", json={"ids": [67, 68]}).status_code == 204
    assert get(writer, "/api/duplicates", radius=0)["groups"] == []


def test_the_rarest_label_of_a_photo_gives_its_colour_on_the_map(reader: TestClient, get: Get) -> None:
    flat = get(reader, "/api/map")
    assert flat["groups"] == [label["label"] for label in get(reader, "/api/labels")][:12]  # most frequent first
    for id, group in list(zip(flat["ids"], flat["group"], strict=True))[::7]:
        known = [flat["groups"].index(x) for x in get(reader, f"/api/photos/{id}")["labels"] if x in flat["groups"]]
        assert group == max(known, default=-1)
