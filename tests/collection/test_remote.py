"""A collection whose engine is on a server: the folder keeps hasher, address and thumbnails, all else is as ever."""

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from fastapi.testclient import TestClient

from hyphash.collection import Collection
from hyphash.errors import ConfigError, EngineError, OtherHasherError
from hyphash.service import ServedCollection, Settings, create_app
from hyphash.service.served import AWAY


@pytest.fixture
def url(postgres_server: Any) -> str:
    address: str = postgres_server.url(patience=30)
    return address


@pytest.fixture
def remote(tmp_path: Path, hasher: Any, url: str) -> Iterator[Collection]:
    with Collection.create(tmp_path / "remote", hasher, engine=url) as collection:
        yield collection


@pytest.fixture(params=["postgres_server", "milvus_server", "postgres_server and milvus_server"])
def on_each(request: pytest.FixtureRequest, tmp_path: Path, hasher: Any) -> Iterator[Collection]:
    """A collection on one server after the other, and on both."""
    urls = [request.getfixturevalue(name).url(patience=30) for name in request.param.split(" and ")]
    where = {"store": urls[0], "engine": urls[1]} if len(urls) > 1 else {"engine": urls[0]}
    with Collection.create(tmp_path / "remote", hasher, **where) as collection:
        yield collection


def facts(collection: Collection) -> list[Any]:
    return [(p.id, p.path, p.facts.content, p.code, p.labels, p.given, p.refused) for p in collection.all_photos()]


def test_it_does_all_that_a_local_collection_does(
    on_each: Collection, collection: Collection, photos: list[Path], tiny: Any, tmp_path: Path
) -> None:
    """Twins: the same work on both, the same answers from both."""
    remote = on_each
    other, exports = tiny.TinyHasher(bits=33, seed=1), []
    for twin in (remote, collection):
        assert twin.add(photos, labels=[["cat"], ["dog", "sea"]] * 5).added == 10
        assert twin.add(photos, labels=[["cat"], ["dog", "sea"]] * 5).unchanged == 10
        twin.relabel(3, ["mine"])
        twin.accept(4, "bird")
        twin.refuse(5, "cat")
        assert twin.remove([10]) == 1
    questions: list[Callable[[Collection], Any]] = [
        facts,
        lambda c: c.labels(),
        lambda c: list(c.search(photos[2], k=5)),
        lambda c: list(c.search(labels=["dog"], unwanted=["cat"], k=9, rank="asymmetric")),
        lambda c: list(c.search(like=4, carrying=["sea"], radius=7)),
        lambda c: c.suggest(6),
        lambda c: c.duplicates(15),
        lambda c: [photo.id for photo in c.photos(untagged=True)],
        lambda c: (c.stats().photos, c.stats().distinct, c.stats().balance),
        lambda c: c.thumbnail(1),
        Collection.verify,
    ]
    for question in questions:
        assert question(remote) == question(collection)
    for twin in (remote, collection):
        assert twin.reindex(other) == ()
        twin.compact()
        twin.export(tmp_path / "export.jsonl")
        exports.append([line.partition('"added"')[0] for line in (tmp_path / "export.jsonl").read_text().splitlines()])
    assert exports[0] == exports[1]
    assert facts(remote) == facts(collection)
    assert remote.verify() == []


def test_the_folder_holds_hasher_address_and_thumbnails_alone(
    remote: Collection, photos: list[Path], url: str, postgres_server: Any
) -> None:
    remote.add(photos)
    assert tomllib.loads((remote.folder / "collection.toml").read_text()) == {
        "format": 2,
        "store": url,
        "engine": "postgresql",
    }
    files = {path.name for path in remote.folder.iterdir()}
    assert files - {"activity.jsonl", "collection.toml", "hashers", "thumbnails.sqlite"} <= {"originals"} | {
        f"thumbnails.sqlite-{part}" for part in ("wal", "shm")
    }
    in_folder = sum(path.stat().st_size for path in remote.folder.rglob("*") if path.is_file())
    assert remote.stats().bytes == in_folder + remote.store.bytes_elsewhere() > in_folder


def test_a_password_in_the_address_is_kept_from_other_users(
    tmp_path: Path, hasher: Any, photos: list[Path], url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server trusts everybody, so that any password will do."""
    first, second = (url.replace("postgres@", f"postgres:{word}@") for word in ("Erstes", "Zweites"))
    settings = tmp_path / "remote" / "collection.toml"
    Collection.into(tmp_path / "remote", hasher, engine=first).close()
    assert settings.stat().st_mode & 0o777 == 0o600
    Collection.into(tmp_path / "remote", hasher, engine=url).close()
    assert "Erstes" in settings.read_text()
    Collection.into(tmp_path / "remote", hasher, engine=second).close()  # has been changed on the server
    assert "Zweites" in settings.read_text()
    assert settings.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match=r"its photos are in postgresql.*leave the engine out") as told:
        Collection.into(tmp_path / "remote", hasher, engine=first.replace("collection=", "collection=not_"))
    assert "Erstes" not in str(told.value)
    assert "Zweites" not in str(told.value) + caplog.text
    with Collection.open(tmp_path / "remote", hasher=hasher) as collection:
        assert collection.add(photos[:3]).added == 3


def test_a_second_machine_joins(
    remote: Collection, tmp_path: Path, hasher: Any, photos: list[Path], url: str, tiny: Any
) -> None:
    remote.add(photos[:6], labels=[["cat"]] * 6)
    with Collection.into(tmp_path / "elsewhere", hasher, engine=url) as second:
        assert len(second) == 6
        assert second.add(photos, labels=[["cat"]] * 10).added == 4
        assert second.search(labels=["cat"], k=3).total == 10
        assert second.thumbnail(1) == remote.thumbnail(1)  # made from the photo, which both can read
    assert len(remote) == 10
    with pytest.raises(OtherHasherError, match="reindex"):
        Collection.into(tmp_path / "third", tiny.TinyHasher(seed=1), engine=url)
    assert not (tmp_path / "third").exists()


def test_many_machines_share_a_store_and_a_searcher(
    tmp_path: Path, hasher: Any, photos: list[Path], url: str, milvus_server: Any
) -> None:
    place = {"store": url, "engine": milvus_server.url()}
    with (
        Collection.into(tmp_path / "here", hasher, **place) as here,
        Collection.into(tmp_path / "there", hasher, **place) as there,
    ):
        here.add(photos[:6], labels=[["cat"]] * 6)
        there.add(photos[5:], labels=[["cat"]] * 5)
        here.relabel(10, ["dog"])
        for machine in (here, there):
            assert [match.id for match in machine.search(labels=["cat"], carrying=["dog"])] == [10]
            assert machine.search(photos[2], k=3).total == 10
            assert machine.verify() == []
        there.rebuild()
        assert here.search(photos[2], k=3).total == 10


def test_a_second_folder_on_milvus_alone_is_told_how_to_share(
    tmp_path: Path, hasher: Any, photos: list[Path], milvus_server: Any
) -> None:
    url = milvus_server.url()
    with Collection.into(tmp_path / "first", hasher, engine=url) as first:
        first.add(photos)
        with pytest.raises(ConfigError, match=r"photos of another store.*--store postgresql://"):
            Collection.into(tmp_path / "second", hasher, engine=url)
        assert not (tmp_path / "second").exists()
        assert first.search(photos[0], k=3).total == 10


def test_photos_are_added_while_milvus_is_away(
    tmp_path: Path, hasher: Any, photos: list[Path], milvus_server: Any
) -> None:
    with Collection.into(tmp_path / "remote", hasher, engine=milvus_server.url(patience=1)) as collection:
        collection.add(photos[:5], labels=[["cat"]] * 5)
        assert collection.search(photos[0], k=9).total == 5
        milvus_server.kill()
        try:
            assert collection.add(photos, labels=[["cat"]] * 10).added == 5
            assert (len(collection), collection.labels()) == (10, {"cat": 10})
            with pytest.raises(EngineError, match=r"failed for 1 seconds.*see that the server runs"):
                collection.search(photos[0], k=9)
        finally:
            milvus_server.start()
    with Collection.open(tmp_path / "remote", hasher=hasher) as collection:
        collection.searcher.server.patience = 60  # it takes a while to be up
        assert collection.search(photos[0], k=9).total == 10
        assert collection.verify() == []


def test_a_machine_knows_nothing_of_folders_that_it_does_not_see(
    remote: Collection, tmp_path: Path, hasher: Any, photos: list[Path], url: str
) -> None:
    """Two machines: the folder `theirs` is hidden from the second, as another disk is."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for folder in (theirs, ours):
        folder.mkdir()
        for photo in photos[:4]:
            (folder / photo.name).write_bytes(photo.read_bytes())
    remote.add(theirs)
    theirs.rename(tmp_path / "hidden")
    with Collection.into(tmp_path / "elsewhere", hasher, engine=url) as second:
        result = second.add(ours)
        assert (result.added, result.moved) == (4, 0)
        missing = second.missing()
        assert (list(missing), missing.elsewhere) == ([], 4)
    (tmp_path / "hidden").rename(theirs)
    assert [photo.path for photo in remote.photos()] == [
        *map(str, sorted(theirs.iterdir())),
        *map(str, sorted(ours.iterdir())),
    ]
    (theirs / photos[0].name).rename(theirs / "new name.jpg")
    (theirs / photos[1].name).unlink()
    missing = remote.missing()
    assert ([photo.id for photo in missing], missing.elsewhere) == ([1, 2], 0)
    assert remote.add(theirs).moved == 1
    assert remote.get(1).path == str(theirs / "new name.jpg")


def test_an_approximate_engine_states_its_recall(
    tmp_path: Path, hasher: Any, photos: list[Path], postgres_server: Any, collection: Collection
) -> None:
    url = postgres_server.url(scheme="postgresql-approximate")
    for engine in (url, "local"):
        with Collection.into(tmp_path / engine[:5], hasher, engine=engine) as twin:
            assert twin.recall(5) == {5: 1.0}  # nothing to be found, all of it found
            twin.add(photos)
            assert twin.recall(1, 10, queries=4) == {1: 1.0, 10: 1.0}
            assert twin.searcher.exact == (engine == "local")


def test_it_serves_and_survives_its_server(
    remote: Collection, hasher: Any, photos: list[Path], postgres_server: Any
) -> None:
    remote.add(photos, labels=[["cat"], ["dog"]] * 5)
    served = ServedCollection(Collection.open(remote.folder, hasher=hasher), Settings(token="a-token-for-tests"))
    with TestClient(create_app(served), base_url="http://localhost") as client:
        header = {"Authorization": "Bearer a-token-for-tests"}
        found = client.get("/api/search", params={"label": "dog", "k": 4}).json()
        assert found["total"] == 10
        postgres_server.kill()
        postgres_server.start()
        assert client.get("/ready").status_code == 200
        assert client.get("/api/search", params={"label": "dog", "k": 4}).json() == found
        changed = client.put("/api/photos/1/labels", json={"labels": ["own"]}, headers=header)
        assert changed.status_code == 200, changed.text
    assert remote.get(1).labels == ("own",)  # its connections died as well
    assert remote.search(photos[3], k=1)[0].distance == 0


def test_a_server_that_is_gone_is_told_to_clients(
    tmp_path: Path, hasher: Any, postgres_server: Any, photos: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    url = postgres_server.url(user="postgres:hush-hush")
    with Collection.create(tmp_path / "remote", hasher, engine=url) as collection:
        collection.add(photos[:2], labels=[["cat"]] * 2)
        served = ServedCollection(Collection.open(collection.folder, hasher=hasher), Settings())
        far = ServedCollection(
            Collection.open(collection.folder, hasher=hasher), Settings(host="0.0.0.0", token="8 letters")
        )
        with (
            TestClient(create_app(served), base_url="http://localhost") as client,
            TestClient(create_app(far), base_url="http://192.0.2.7") as other,
        ):
            postgres_server.kill()
            for address in ("/ready", "/api/search?label=cat", "/api/photos/1"):
                answer = client.get(address)
                assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)
                assert "engine behind the collection does not answer: postgresql://postgres@" in answer.json()["error"]
                assert f"failed for {AWAY:g} seconds" in answer.json()["error"]  # not the minute of other programs
                assert "hush" not in answer.text
            assert other.get("/ready").json() == {
                "error": "the engine behind the collection does not answer; try again"
            }
            assert "hyphash_photos NaN" in client.get("/metrics").text
            postgres_server.start()
            assert client.get("/ready").status_code == 200
            assert client.get("/api/search?label=cat").json()["total"] == 2
    assert "Traceback" not in caplog.text


def test_an_engine_that_hangs_is_not_ready(remote: Collection, hasher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyphash.service.served.READY", 0.2)
    served, gate = ServedCollection(Collection.open(remote.folder, hasher=hasher), Settings()), Event()
    with TestClient(create_app(served), base_url="http://localhost") as client:
        monkeypatch.setattr(served.collection.store, "state", gate.wait)
        for _ in range(2):
            answer = client.get("/ready")
            assert answer.status_code == 503
            assert "its engine has not answered for 0.2 s" in answer.json()["error"]
        gate.set()
        assert client.get("/ready").status_code == 200
