"""Routes that change the collection, or learn from it."""

import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from hyphash.collection import Collection
from hyphash.config import write_toml
from hyphash.photos.metadata import HIERARCHICAL, Packet
from hyphash.refining import Gain, Refinement, Stage, note
from hyphash.service import ServedCollection, Settings, create_app
from hyphash.service.changes import _kept_name

Get = Callable[..., Any]


def test_adds_a_photo_once_and_removes_it(writer: TestClient, made: Any, get: Get) -> None:
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


def test_relabels_accepts_and_refuses(writer: TestClient, get: Get) -> None:
    answer = writer.put("/api/photos/61/labels", json={"labels": ["  sea ", "dog", "dog"]})
    assert answer.json()["labels"] == ["dog", "sea"]
    assert get(writer, "/api/photos", carrying="sea")["photos"][0]["id"] == 61
    assert writer.post("/api/photos/61/accept", json={"label": "cat"}).json()["labels"] == ["cat", "dog", "sea"]
    refused = writer.post("/api/photos/61/refuse", json={"label": "dog"}).json()
    assert (refused["labels"], refused["refused"]) == (["cat", "sea"], ["dog"])
    offered = [tag["label"] for tag in get(writer, "/api/photos/61/suggestions", k=30)]
    assert not {"cat", "dog", "sea"} & set(offered)
    assert get(writer, "/api/collection")["untagged"] == 5


def test_verdicts_on_many_photos_are_one_change_and_are_taken_back(writer: TestClient, get: Get) -> None:
    writer.post("/api/photos/62/refuse", json={"label": "dog"})
    before = [get(writer, f"/api/photos/{id}") for id in (1, 61, 62)]
    commit = get(writer, "/api/collection")["commit"]
    verdicts = [{"id": id, "label": "dog", "said": "accept"} for id in (61, 62, 9999)]
    verdicts += [
        {"id": 1, "label": before[0]["labels"][0], "said": "refuse"},
        {"id": 61, "label": "a", "said": "forget"},
    ]
    answer = writer.post("/api/photos/verdicts", json={"verdicts": verdicts}).json()
    assert get(writer, "/api/collection")["commit"] == commit + 1
    assert [(photo["id"], photo["labels"]) for photo in answer["photos"][1:]] == [(61, ["dog"]), (62, ["dog"])]
    assert answer["photos"][0]["refused"] == before[0]["labels"][:1]
    again = writer.post("/api/photos/verdicts", json={"verdicts": answer["undo"]}).json()
    said = [[(photo["labels"], photo["refused"]) for photo in photos] for photos in (before, again["photos"])]
    assert said[0] == said[1]


@pytest.mark.parametrize("verdicts", [[], [{"id": 1, "label": "a", "said": "like"}], [{"id": 0, "label": "a"}], None])
def test_verdicts_that_say_nothing_are_refused(refused: TestClient, verdicts: Any) -> None:
    assert refused.post("/api/photos/verdicts", json={"verdicts": verdicts}).status_code == 422


def test_labels_come_in_one_spelling(writer: TestClient, get: Get) -> None:
    answer = writer.post("/api/photos/61/accept", json={"label": "Cafe\u0301"}).json()
    assert answer["labels"] == ["Caf\u00e9"]
    found = get(writer, "/api/search", label="Cafe\u0301", k=1)
    assert found["asked"] == found["matches"][0]["shared"] == ["Caf\u00e9"]


def test_duplicates_are_compared_resolved_and_taken_back(
    writer: TestClient, own: Path, made: Any, tmp_path: Path, get: Get
) -> None:
    files = [tmp_path / name for name in ("large.png", "small.jpg", "copy.png")]
    with Image.open(made.photo(0)) as image:
        image.resize((192, 192)).save(files[0])
        image.resize((96, 96)).save(files[1])
    files[2].write_bytes(files[0].read_bytes())
    with Collection.open(own) as collection:
        collection.add(files, labels=[["a"], ["b"], []])
    group = next(group for group in get(writer, "/api/duplicates", radius=4)["groups"] if 67 in group)
    assert {67, 69} <= set(group)
    best, copy, small = get(writer, "/api/duplicates/compare", id=[68, 69, 67, 9999])
    assert [photo["name"] for photo in (best, copy, small)] == [files[i].name for i in (0, 2, 1)]
    assert [photo["exact"] for photo in (best, copy, small)] == [True, True, False]
    assert (best["width"], small["width"], best["sharpness"] > 0) == (192, 96, True)
    answer = writer.post("/api/duplicates/resolve", json={"keep": 67, "others": [68, 69]})
    assert answer.status_code == 200, answer.text
    assert [(photo["id"], photo["labels"]) for photo in answer.json()["photos"]] == [(67, ["a", "b"])]
    assert [path.exists() for path in files] == [True, False, False]
    trash = get(writer, "/api/trash")
    assert [tuple(row[key] for key in ("id", "name", "labels")) for row in trash] == [
        (68, "small.jpg", ["b"]), (69, "copy.png", []),
    ]  # fmt: skip
    seen = writer.get("/api/trash/68/thumbnail")
    assert (seen.headers["content-type"], Image.open(io.BytesIO(seen.content)).size) == ("image/jpeg", (96, 96))
    assert [writer.get(f"/api/{place}/thumbnail").status_code for place in ("trash/67", "photos/68")] == [404, 404]
    back = writer.post("/api/trash/restore", json={"ids": [68, 9999]}).json()
    assert [(photo["id"], photo["labels"]) for photo in back] == [(68, ["b"])]
    undone = writer.post("/api/photos/verdicts", json={"verdicts": answer.json()["undo"]}).json()
    assert undone["photos"][0]["labels"] == ["a"]
    assert writer.post("/api/trash/empty").status_code == 204
    assert (get(writer, "/api/trash"), files[1].exists(), files[2].exists()) == ([], True, False)
    assert writer.post("/api/duplicates/resolve", json={"keep": 9999, "others": [1]}).status_code == 404
    files[1].write_bytes(b"something else")
    refused = writer.post("/api/duplicates/resolve", json={"keep": 67, "others": [68]})
    assert refused.status_code == 409
    assert "has changed since it was indexed" in refused.json()["error"]
    told = [(line["what"], line["photos"], line["names"]) for line in get(writer, "/api/activity", limit=4)]
    assert told == [
        ("emptied", 1, ["copy.png"]), ("restored", 1, ["small.jpg"]), ("trashed", 2, ["small.jpg", "copy.png"]),
        ("added", 3, [file.name for file in files]),
    ]  # fmt: skip


CHANGES = [
    ("POST", "/api/photos", {"files": {"photo": ("a.jpg", b"x")}}),
    ("DELETE", "/api/photos/1", {}),
    ("PUT", "/api/photos/1/labels", {"json": {"labels": []}}),
    ("POST", "/api/photos/1/accept", {"json": {"label": "a"}}),
    ("POST", "/api/photos/1/refuse", {"json": {"label": "a"}}),
    ("GET", "/api/tags", {}),
    ("GET", "/api/token", {}),
    ("POST", "/api/refine", {}),
    ("POST", "/api/photos/verdicts", {"json": {"verdicts": [{"id": 1, "label": "a", "said": "accept"}]}}),
    ("POST", "/api/duplicates/resolve", {"json": {"keep": 1, "others": [2]}}),
    ("POST", "/api/duplicates/keep", {"json": {"ids": [1, 2]}}),
    ("POST", "/api/trash/restore", {"json": {"ids": [1]}}),
    ("POST", "/api/trash/empty", {}),
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


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("a.jpg", "a.jpg"),
        ("../../etc/a.jpg", "a.jpg"),
        ("C:\\photos\\a.jpg", "a.jpg"),
        ("a\n\x00b\u202e.jpg", "ab.jpg"),
        ("x" * 300 + ".jpg", "x" * 196 + ".jpg"),
        ("雪.jpg", "雪.jpg"),
        ("photos/", "photo"),
        ("", "photo"),
    ],
)
def test_of_a_name_that_is_kept_which_can_be_printed_and_is_no_folder(given: str, kept: str) -> None:
    assert _kept_name(given) == kept


@pytest.mark.parametrize("switch", [True, False])
def test_tags_go_home_where_the_service_has_that_switch(
    own: Path, made: Any, token: str, tmp_path: Path, switch: bool
) -> None:
    photo, sidecar = tmp_path / "mine.jpg", tmp_path / "mine.jpg.xmp"
    photo.write_bytes(_other(made.photo(0)))
    with Collection.open(own) as collection:
        collection.add([photo])
    app = create_app(ServedCollection.open(own, Settings(token=token, write_tags=switch)))
    headers = {"Authorization": f"Bearer {token}"}
    with TestClient(app, base_url="http://localhost", headers=headers) as client:
        (found,) = client.get("/api/photos", params={"offset": 66}).json()["photos"]
        client.post(f"/api/photos/{found['id']}/accept", json={"label": "animal/dog"})
        assert sidecar.exists() == switch
        verdict = {"id": found["id"], "label": "sea", "said": "accept"}
        client.post("/api/photos/verdicts", json={"verdicts": [verdict]})
        (told,) = client.get("/api/tags", params={"offset": 66}).json()
        assert told["status"] == ("unchanged" if switch else "planned")
        assert (told["path"], told["files"]) == (str(photo), [] if switch else [str(sidecar)])
        proxied = {"X-Forwarded-For": "203.0.113.7"}  # where files lie is told to nobody behind a proxy
        (other,) = client.get("/api/tags", params={"offset": 66}, headers=proxied).json()
        assert other == told | {"path": photo.name, "files": [] if switch else [sidecar.name]}
        sidecar.write_bytes(Packet().having(["tree"], ours=[]))
        client.post(f"/api/photos/{found['id']}/refuse", json={"label": "sea"})
        (told,) = client.get("/api/tags", params={"offset": 66}).json()
        assert (told["status"], told["unknown"], told["labels"]) == ("conflict", ["tree"], ["animal/dog"])
        assert Packet(sidecar.read_bytes()).words(HIERARCHICAL) == ["tree"]  # left alone


def test_says_what_was_said_and_what_it_gained(writer: TestClient, own: Path, get: Get) -> None:
    before = get(writer, "/api/refine")
    assert before["said"] == before["since"] > 50
    assert (before["enough"], before["running"], before["last"]) == (True, False, None)
    gain = Gain(before=0.5, after=0.75, low=0.1, high=0.4, p=0.01)
    said = before["said"] - 3
    result = Refinement(
        moved=True, when="2026-01-01T00:00:00.000Z", said=said, photos=60, held_out=6, labels=4, search=gain,
        suggestions=gain,
    )  # fmt: skip
    write_toml(own / "refined.toml", result)
    writer.post("/api/photos/61/accept", json={"label": "cat"})
    after = get(writer, "/api/refine")
    assert (after["since"], after["enough"]) == (4, False)
    assert after["last"]["search"] == {"before": 0.5, "after": 0.75, "low": 0.1, "high": 0.4, "p": 0.01}


def test_begins_in_a_process_of_its_own_and_tells_how_it_ends(
    writer: TestClient, own: Path, get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This hasher runs on ONNX and cannot be trained further, which is said: by our program, not one that lies here."""
    (own / "hyphash.py").write_text("")
    monkeypatch.chdir(own)
    begun = writer.post("/api/refine")
    assert begun.status_code == 202, begun.text
    assert begun.json()["running"]
    again = writer.post("/api/refine")
    assert again.status_code == 409
    note(own, Stage(error="told as its last word"))  # the process is still there
    assert writer.post("/api/refine").status_code == 409
    for _ in range(600):
        if not (now := get(writer, "/api/refine"))["running"]:
            break
        time.sleep(0.1)
    assert "runs on ONNX" in now["error"]
    assert now["last"] is None


def test_shows_work_that_others_do(writer: TestClient, own: Path, get: Get) -> None:
    note(own, Stage("photos", 64, 400, process=os.getpid()))
    now = get(writer, "/api/refine")
    assert (now["running"], now["what"], now["done"], now["total"]) == (True, "photos", 64, 400)


def test_needs_the_token(reader: TestClient) -> None:
    assert reader.post("/api/refine").status_code == 403
    assert reader.get("/api/refine").status_code == 200
