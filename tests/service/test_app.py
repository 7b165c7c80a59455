"""The API, route by route, against what the collection itself says."""

import io
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from hyphash.collection import Collection
from hyphash.service import ServedCollection, Settings, create_app
from hyphash.service.monitoring import JsonLines


def get(client: TestClient, path: str, **params: Any) -> Any:
    answer = client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def upload(path: Path) -> dict[str, Any]:
    return {"photo": (path.name, path.read_bytes(), "image/jpeg")}


def test_says_what_it_serves(reader: TestClient) -> None:
    facts = get(reader, "/api/collection")
    assert facts["photos"] == 66
    assert facts["untagged"] == 6
    assert facts["bits"] == 32
    assert facts["read_only"] is True
    assert facts["by_radius"] is True


def test_finds_what_the_collection_finds(reader: TestClient, made: Any) -> None:
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


def test_labels_are_found_where_they_were_taught(reader: TestClient) -> None:
    found = get(reader, "/api/search", label="dog", rank="asymmetric", k=5)
    assert [m["shared"] for m in found["matches"]].count(["dog"]) >= 4


def test_wanted_unwanted_and_filters_work_together(reader: TestClient, made: Any) -> None:
    with Collection.open(made.collection) as collection:
        one, other = list(collection.labels())[:2]
        expected = collection.search(labels=[one], unwanted=[other], carrying=[one], radius=14, k=50)
    found = get(reader, "/api/search", label=one, unwanted=other, carrying=one, radius=14, k=50)
    assert [m["id"] for m in found["matches"]] == [m.id for m in expected]
    assert found["total"] == expected.total
    assert all(one in m["labels"] and m["distance"] <= 14 for m in found["matches"])


def test_more_like_this_shares_the_labels_of_the_photo(reader: TestClient) -> None:
    photo = get(reader, "/api/photos/1")
    found = get(reader, "/api/search", like=1, k=10)
    assert found["asked"] == photo["labels"]
    assert 1 not in [m["id"] for m in found["matches"]]
    for match in found["matches"]:
        assert match["shared"] == [label for label in match["labels"] if label in photo["labels"]]


def test_upload_finds_itself_first_and_pages_by_its_place(reader: TestClient, made: Any) -> None:
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


def test_pages_make_one_ranking(reader: TestClient) -> None:
    whole = get(reader, "/api/search", label="cat", k=66)["matches"]
    parts = [get(reader, "/api/search", label="cat", k=7, offset=offset)["matches"] for offset in range(0, 70, 7)]
    assert [m for part in parts for m in part] == whole
    assert len({m["id"] for m in whole}) == 66


def test_lists_photos(reader: TestClient, made: Any) -> None:
    page = get(reader, "/api/photos", offset=10, limit=5)
    assert [photo["id"] for photo in page["photos"]] == [11, 12, 13, 14, 15]
    assert page["total"] == 66
    untagged = get(reader, "/api/photos", untagged=True)
    assert untagged["total"] == 6
    assert all(photo["labels"] == [] for photo in untagged["photos"])
    photo = get(reader, "/api/photos/1")
    assert photo["path"] == str(made.photo(0, "database"))  # told on loopback
    assert (photo["width"], photo["height"]) == (96, 96)


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


def test_original_that_is_gone_leaves_the_thumbnail(writer: TestClient, own: Path, tmp_path: Path) -> None:
    photo = tmp_path / "gone.png"
    Image.new("RGB", (300, 200), "red").save(photo)
    with Collection.open(own) as collection:
        collection.add(photo)
    id = get(writer, "/api/photos", limit=1, offset=66)["photos"][0]["id"]
    photo.unlink()
    assert writer.get(f"/api/photos/{id}/original").status_code == 404
    assert writer.get(f"/api/photos/{id}/picture").status_code == 200
    assert writer.get(f"/api/photos/{id}/thumbnail").status_code == 200


def test_completes_labels(reader: TestClient) -> None:
    every = get(reader, "/api/labels")
    assert [answer["photos"] for answer in every] == sorted((a["photos"] for a in every), reverse=True)
    assert all(answer["learnt"] for answer in every)
    names = [answer["label"] for answer in get(reader, "/api/labels", having="Ca")]
    assert names[:2] in (["cat", "car"], ["car", "cat"])
    assert all("ca" in name for name in names)


def test_figures_agree_with_the_collection(reader: TestClient, made: Any) -> None:
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


def test_suggests_labels(reader: TestClient) -> None:
    tags = get(reader, "/api/photos/61/suggestions", k=4)
    assert len(tags) == 4
    assert [tag["score"] for tag in tags] == sorted((tag["score"] for tag in tags), reverse=True)


# ── changes ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_adds_a_photo_once_and_removes_it(writer: TestClient, made: Any) -> None:
    photo = made.photo(0)
    assert photo.is_file()
    data = {"photo": ("../../etc/new.jpg", io.BytesIO(_other(photo)), "image/jpeg")}
    added = writer.post("/api/photos", files=data, data={"label": ["dog", "my own"]})
    assert added.status_code == 201
    id = added.json()["id"]
    answer = get(writer, f"/api/photos/{id}")
    assert (answer["name"], answer["labels"]) == ("new.jpg", ["dog", "my own"])
    assert writer.get(f"/api/photos/{id}/original").content == _other(photo)
    assert get(writer, "/api/search", label="my own", k=1)["matches"][0]["id"] == id
    assert writer.delete(f"/api/photos/{id}").status_code == 204
    assert writer.delete(f"/api/photos/{id}").status_code == 404
    assert get(writer, "/api/collection")["photos"] == 66


def _other(photo: Path) -> bytes:
    file = io.BytesIO()
    Image.open(photo).rotate(90).save(file, "JPEG")
    return file.getvalue()


def test_relabels_accepts_and_refuses(writer: TestClient) -> None:
    answer = writer.put("/api/photos/61/labels", json={"labels": ["  sea ", "dog", "dog"]})
    assert answer.json()["labels"] == ["dog", "sea"]
    assert get(writer, "/api/photos", carrying="sea")["photos"][0]["id"] == 61
    assert writer.post("/api/photos/61/accept", json={"label": "cat"}).json()["labels"] == ["cat", "dog", "sea"]
    refused = writer.post("/api/photos/61/refuse", json={"label": "dog"}).json()
    assert (refused["labels"], refused["refused"]) == (["cat", "sea"], ["dog"])
    offered = [tag["label"] for tag in get(writer, "/api/photos/61/suggestions", k=30)]
    assert not {"cat", "dog", "sea"} & set(offered)
    assert get(writer, "/api/collection")["untagged"] == 5


CHANGES = [
    ("POST", "/api/photos", {"files": {"photo": ("a.jpg", b"x")}}),
    ("DELETE", "/api/photos/1", {}),
    ("PUT", "/api/photos/1/labels", {"json": {"labels": []}}),
    ("POST", "/api/photos/1/accept", {"json": {"label": "a"}}),
    ("POST", "/api/photos/1/refuse", {"json": {"label": "a"}}),
]


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
def test_changes_need_the_token(
    reader: TestClient, refused: TestClient, method: str, path: str, body: dict[str, Any]
) -> None:
    assert reader.request(method, path, **body).status_code == 403
    assert reader.request(method, path, headers={"Authorization": "Bearer "}, **body).status_code == 403
    for wrong in ("", "Bearer", "Bearer wrong", "Basic a-token-for-tests", "Bearer a-token-for-test", "Bearer ü"):
        answer = refused.request(method, path, headers={"Authorization": wrong.encode()}, **body)
        assert answer.status_code == 401, wrong
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "token" in answer.json()["error"]


def test_every_change_is_in_the_list_above(reader: TestClient) -> None:
    paths = reader.get("/openapi.json").json()["paths"]
    guarded = {
        (method.upper(), path)
        for path, methods in paths.items()
        for method, facts in methods.items()
        if "security" in facts
    }
    listed = {(method, path.replace("/1", "/{id}")) for method, path, _ in CHANGES}
    assert guarded == listed
    others = {method.upper() for methods in paths.values() for method in methods} - {"GET"}
    free = {(m, p) for p, methods in paths.items() for m in (x.upper() for x in methods) if m in others} - guarded
    assert free == {("POST", "/api/search")}


# ── operation ────────────────────────────────────────────────────────────────────────────────────────────────


def test_health_and_readiness(own: Path) -> None:
    served = ServedCollection.open(own, Settings())
    with TestClient(create_app(served), base_url="http://localhost", raise_server_exceptions=False) as client:
        assert get(client, "/health") == get(client, "/ready") == {"status": "ok"}
        served.collection.store.close()
        assert client.get("/ready").status_code == 500
        assert get(client, "/health") == {"status": "ok"}


def test_metrics_count_requests_by_route(reader: TestClient, made: Any) -> None:
    def value(name: str) -> float:
        lines = [line for line in reader.get("/metrics").text.splitlines() if line.startswith(name + " ")]
        return float(lines[0].split()[1]) if lines else 0.0

    route = 'hyphash_requests_total{method="GET",route="/api/photos/{id}",status="404"}'
    batches = "hyphash_batch_photos_sum"
    before, encoded = value(route), value(batches)
    for id in (4444, 5555):
        assert reader.get(f"/api/photos/{id}").status_code == 404
    reader.post("/api/search", files=upload(made.photo()))
    assert value(route) == before + 2
    assert value(batches) == encoded + 1
    assert value("hyphash_photos") == 66
    reader.get("/api/invented/9999")
    assert "invented" not in reader.get("/metrics").text


def test_logs_are_lines_of_json(reader: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "hyphash.service"):
        reader.get("/api/photos/4444%0a%22x", headers={"Authorization": "Bearer secret"})
        reader.get("/health")
    assert len(caplog.records) == 1  # the health of the service is not news
    line = JsonLines().format(caplog.records[0])
    assert "\n" not in line
    assert "secret" not in line
    facts = json.loads(line)
    assert facts["path"] == '/api/photos/4444\n"x'
    assert (facts["level"], facts["event"], facts["method"], facts["status"]) == ("info", "request", "GET", 422)
    assert facts["ms"] > 0


def test_faults_of_ours_are_admitted_without_their_details(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = ServedCollection.open(own, Settings())
    monkeypatch.setattr(served.collection, "get", lambda _: 1 / 0)
    with TestClient(create_app(served), base_url="http://localhost", raise_server_exceptions=False) as client:
        answer = client.get("/api/photos/1")
        assert answer.status_code == 500
        assert "ZeroDivisionError" not in answer.text
        assert "fault" in answer.json()["error"]
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert 'route="/api/photos/{id}",status="500"' in client.get("/metrics").text


def test_labels_come_in_one_spelling(writer: TestClient) -> None:
    answer = writer.post("/api/photos/61/accept", json={"label": "Cafe\u0301"}).json()
    assert answer["labels"] == ["Caf\u00e9"]
    found = get(writer, "/api/search", label="Cafe\u0301", k=1)
    assert found["asked"] == found["matches"][0]["shared"] == ["Caf\u00e9"]


def test_nothing_is_described_that_loads_from_elsewhere(reader: TestClient) -> None:
    assert reader.get("/openapi.json").json()["info"]["title"] == "hyphash"
    assert reader.get("/docs").status_code == reader.get("/redoc").status_code == 404
