"""Routes that show photos, and the collection as a whole."""

import io
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fastapi.testclient import TestClient
from PIL import Image

from hyphash.collection import Collection

Get = Callable[..., Any]


def test_lists_photos(reader: TestClient, made: Any, get: Get) -> None:
    page = get(reader, "/api/photos", offset=10, limit=5)
    assert [photo["id"] for photo in page["photos"]] == [11, 12, 13, 14, 15]
    assert page["total"] == 66
    untagged = get(reader, "/api/photos", untagged=True)
    assert untagged["total"] == 6
    assert all(photo["labels"] == [] for photo in untagged["photos"])
    photo = get(reader, "/api/photos/1")
    assert photo["path"] == str(made.photo(0, "database"))  # told on loopback
    assert (photo["width"], photo["height"]) == (96, 96)
    behind_a_proxy = reader.get("/api/photos/1", headers={"X-Forwarded-For": "203.0.113.7"}).json()
    assert behind_a_proxy["path"] is None


def test_where_files_lie_is_told_to_nobody_behind_a_proxy(writer: TestClient, own: Path) -> None:
    """A photo whose file is another by now and whose thumbnail is lost, and a note that is damaged."""
    with sqlite3.connect(own / "collection.sqlite") as tables, sqlite3.connect(own / "thumbnails.sqlite") as pictures:
        tables.execute("UPDATE photos SET content = zeroblob(32) WHERE id = 1")
        pictures.execute("DELETE FROM thumbnails")
    (own / "refined.toml").write_text("moved = 5")
    for path in ("photos/1/thumbnail", "photos/1/picture", "photos/1/original", "duplicates/compare?id=1", "refine"):
        answer = writer.get(f"/api/{path}", headers={"X-Forwarded-For": "203.0.113.7"})
        assert answer.status_code == (200 if path == "refine" else 404 if "original" in path else 415), answer.text
        assert "/" not in answer.json().get("error", ""), answer.text


def test_pictures_of_a_photo(reader: TestClient, made: Any) -> None:
    for path, side in (("thumbnail", 96), ("picture?size=64", 64)):
        answer = reader.get(f"/api/photos/1/{path}")
        assert answer.headers["content-type"] == "image/jpeg"
        assert Image.open(io.BytesIO(answer.content)).size == (side, side)
        again = reader.get(f"/api/photos/1/{path}", headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    answer = reader.get("/api/photos/1/original")
    assert answer.content == made.photo(0, "database").read_bytes()
    assert answer.headers["content-type"] == "image/jpeg"
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''00000.jpg"


def test_original_that_is_gone_leaves_the_thumbnail(writer: TestClient, own: Path, tmp_path: Path, get: Get) -> None:
    photo = tmp_path / "gone.png"
    Image.new("RGB", (300, 200), "red").save(photo)
    with Collection.open(own) as collection:
        collection.add(photo)
    id = get(writer, "/api/photos", limit=1, offset=66)["photos"][0]["id"]
    photo.unlink()
    assert writer.get(f"/api/photos/{id}/original").status_code == 404
    assert writer.get(f"/api/photos/{id}/picture").status_code == 200
    assert writer.get(f"/api/photos/{id}/thumbnail").status_code == 200


def test_suggests_labels(reader: TestClient, get: Get) -> None:
    tags = get(reader, "/api/photos/61/suggestions", k=4)
    assert len(tags) == 4
    assert [tag["score"] for tag in tags] == sorted((tag["score"] for tag in tags), reverse=True)
    assert [tag["likely"] for tag in tags] == [tag["score"] >= 0.5 for tag in tags]  # the thresholds of this hasher


def test_photos_to_tag_leave_out_those_that_were_passed_over(reader: TestClient, get: Get) -> None:
    every = get(reader, "/api/photos", telling=True, limit=200)
    assert every["total"] == 6
    ids = [photo["id"] for photo in every["photos"]]
    assert sorted(ids) == [61, 62, 63, 64, 65, 66]
    assert ids == [photo["id"] for photo in get(reader, "/api/photos", telling=True)["photos"]]
    left = get(reader, "/api/photos", telling=True, limit=3, passed=ids[:2])["photos"]
    assert len(left) == 3
    assert not {photo["id"] for photo in left} & set(ids[:2])
    assert get(reader, "/api/photos", telling=True, passed=ids)["photos"] == []


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


def test_completes_the_last_level_of_a_label(writer: TestClient, get: Get) -> None:
    for id, label in ((61, "animal/zebra"), (62, "animal/zebra"), (63, "zebrano"), (64, "unzebra")):
        writer.post(f"/api/photos/{id}/accept", json={"label": label}).raise_for_status()
    found = [answer["label"] for answer in get(writer, "/api/labels", having="Zebra")]
    assert found == ["animal/zebra", "zebrano", "unzebra"]
    writer.post("/api/photos/65/accept", json={"label": "zebra"}).raise_for_status()
    assert get(writer, "/api/labels", having="zebra")[0]["label"] == "zebra"  # as it was typed


def test_labels_that_photos_all_but_surely_lack_come_most_first(writer: TestClient, own: Path, get: Get) -> None:
    with Collection.open(own) as collection:
        for photo in collection.photos(0, 8, carrying=["person"]):
            collection.relabel(photo.id, [label for label in photo.labels if label != "person"])
        expected = {}
        for label in collection.hasher.classes:
            matches = collection.search(missing=label, k=100)
            expected[label] = sum((match.probability or 0) >= 0.95 for match in matches)
    found = get(writer, "/api/labels/lacking")
    assert {one["label"]: one["photos"] for one in found} == {label: n for label, n in expected.items() if n}
    assert expected["person"] > 3
    assert found == sorted(found, key=lambda one: -one["photos"])
    assert get(writer, "/api/labels/lacking", k=1) == found[:1]


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
