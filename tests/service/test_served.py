"""A collection that is served: what routes have of it, its threads and its cache."""

import asyncio
import gc
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from hyphash.collection import Collection
from hyphash.config import write_toml
from hyphash.encoder import ONNX_FILE, ORIGIN, OnnxEncoder, network_encoder
from hyphash.errors import BusyError, LabelError
from hyphash.hasher import read_spec
from hyphash.searchers import Selected
from hyphash.searchers.filters import Filter
from hyphash.searchers.local import Local
from hyphash.service import ServedCollection, Settings, create_app
from hyphash.service.served import BoundedPool, CommitCache
from hyphash.service.uploads import SharedEncoder


def test_runs_on_onnx_where_that_was_written(made: Any) -> None:
    served = ServedCollection.open(made.collection, Settings())
    hasher = served.hasher
    assert isinstance(hasher.encoder, SharedEncoder)
    assert served.hasher is hasher
    assert isinstance(network_encoder(served.uploads.load(hasher.fingerprint).encoder), OnnxEncoder)
    served.close()


def other_hasher(run: Path, into: Path) -> Path:
    """The same network under another fingerprint, its bits turned round."""
    import onnx
    from onnx import helper, numpy_helper
    from safetensors.numpy import load_file, save_file

    shutil.copytree(run, into)
    model = onnx.load(into / ONNX_FILE)
    weights = numpy_helper.to_array(model.graph.initializer[0])
    bits = read_spec(run).bits
    turned = np.hstack([-weights[:, bits - 1 :: -1], weights[:, bits:]])
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(turned, "weights"))
    helper.set_model_props(model, {ORIGIN: "0123456789abcdef"})
    onnx.save_model(model, into / ONNX_FILE)
    learned = load_file(into / "weights.safetensors")
    learned["anchors"] = np.ascontiguousarray(-learned["anchors"][:, ::-1])
    save_file(learned, into / "weights.safetensors")
    write_toml(into / "hasher.toml", replace(read_spec(run), fingerprint="0123456789abcdef"))
    return into


def test_nobody_waits_for_dates_that_are_gathered_for_the_first_time(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyphash.service.served.GATHERED", 0.01)
    gathered, select = Event(), Local.select

    def slow(searcher: Local, only: Filter) -> Selected:
        assert gathered.wait(60)
        return select(searcher, only)

    monkeypatch.setattr(Local, "select", slow)
    served = ServedCollection.open(own, Settings())
    with TestClient(create_app(served), base_url="http://localhost") as client:
        for _ in range(3):
            assert client.get("/api/timeline").json() == {"months": [], "undated": 0, "unread": 66}
        gathered.set()
        while (answer := client.get("/api/timeline").json())["unread"]:
            pass
    assert answer == {"months": [], "undated": 66, "unread": 0}


def test_checksums_are_looked_at_again_and_again(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyphash.service.served.CHECKED", 0.001)
    looked = threading.Semaphore(0)
    monkeypatch.setattr(Local, "check", lambda _: looked.release())
    served = ServedCollection.open(own, Settings())
    assert all(looked.acquire(timeout=30) for _ in range(3))
    served.close()


def test_goes_on_with_the_new_hasher_after_a_move(own: Path, made: Any, tmp_path: Path) -> None:
    new = other_hasher(made.run, tmp_path / "new")
    served = ServedCollection.open(own, Settings())
    with TestClient(create_app(served), base_url="http://localhost") as client:
        photo = made.photo(3, "database")

        def found() -> Any:
            files = {"photo": (photo.name, photo.read_bytes(), "image/jpeg")}
            return client.post("/api/search", files=files, params={"k": 10}).json()

        before = found()
        with Collection.open(own) as writer:
            writer.reindex(new)
        after = found()
        assert [match["id"] for match in after["matches"]] == [match["id"] for match in before["matches"]]
        assert after["matches"][0]["distance"] == 0
        assert after["place"].startswith("0123456789abcdef.")
        old = client.get("/api/search", params={"place": before["place"]})
        assert old.status_code == 422
        assert "upload the photo again" in old.json()["error"]
        assert isinstance(served.collection.hasher.encoder, SharedEncoder)
        assert client.get("/api/collection").json()["fingerprint"] == "0123456789abcdef"


def test_searches_that_came_together_see_the_store_at_one_moment(own: Path) -> None:
    """Those that come later see what was changed by then, in whichever process."""
    served = ServedCollection.open(own, Settings())
    served.collection.search(like=1)  # reads the codes
    store = served.collection.store

    async def main() -> None:
        assert served.is_at_hand()
        before = store.state()
        with Collection.open(own) as writer:
            writer.remove([9])
        assert served.is_at_hand()
        assert store.state() == before
        await asyncio.sleep(0)  # whoever waits in the loop has been answered
        assert store.state().commit == before.commit + 1
        assert not served.is_at_hand()  # the codes of that commit have to be read

    asyncio.run(main())
    served.close()


def adding(served: ServedCollection) -> TestClient:
    headers = {"Authorization": "Bearer a-token-for-tests"}
    return TestClient(create_app(served), base_url="http://localhost", headers=headers, raise_server_exceptions=False)


def test_the_first_search_after_a_move_takes_no_place_of_the_old_hasher(own: Path, made: Any, tmp_path: Path) -> None:
    new = other_hasher(made.run, tmp_path / "new")
    with TestClient(create_app(ServedCollection.open(own, Settings())), base_url="http://localhost") as client:
        place = client.post("/api/search", files={"photo": made.photo().read_bytes()}).json()["place"]
        with Collection.open(own) as writer:
            writer.reindex(new)
        old = client.get("/api/search", params={"place": place})  # nobody has asked for anything since
        assert old.status_code == 422, old.json()["matches"][:1]
        assert "upload the photo again" in old.json()["error"]


def test_a_photo_that_comes_first_after_a_move_is_added(own: Path, made: Any, tmp_path: Path) -> None:
    new = other_hasher(made.run, tmp_path / "new")
    with adding(ServedCollection.open(own, Settings(token="a-token-for-tests"))) as client:
        with Collection.open(own) as writer:
            writer.reindex(new)
        added = client.post("/api/photos", files={"photo": ("b.jpg", made.photo().read_bytes() + b"\0")})
        assert added.status_code == 201, added.text
        found = client.post("/api/search", files={"photo": made.photo().read_bytes()}, params={"k": 2}).json()
        assert {match["id"]: match["distance"] for match in found["matches"]}[added.json()["id"]] == 0


def test_moves_leave_no_thread_behind(own: Path, made: Any, tmp_path: Path) -> None:
    runs = [other_hasher(made.run, tmp_path / "new"), made.run]
    with TestClient(create_app(ServedCollection.open(own, Settings())), base_url="http://localhost") as client:
        seen = []
        for move in range(4):
            with Collection.open(own) as writer:
                writer.reindex(runs[move % 2])
            assert client.post("/api/search", files={"photo": made.photo().read_bytes()}).status_code == 200
            seen.append(sum(thread.name == "encoder" for thread in threading.enumerate()))
    assert len(set(seen)) == 1, seen


def bounded(*, threads: int = 1, waiting: int = 0, seconds: float = 30.0) -> BoundedPool:
    return BoundedPool("test", threads=threads, waiting=waiting, seconds=seconds)


def test_gives_what_the_work_returns_or_raises() -> None:
    async def main() -> None:
        pool = bounded()
        assert await pool.run(lambda: 7) == 7
        with pytest.raises(LabelError):
            await pool.run(lambda: (_ for _ in ()).throw(LabelError("no")))
        assert pool.accepted == 0
        pool.close()

    asyncio.run(main())


def test_turns_away_what_has_no_place_to_wait() -> None:
    async def main() -> None:
        pool, gate = bounded(threads=2, waiting=3), Event()
        accepted = [asyncio.create_task(pool.run(gate.wait)) for _ in range(5)]
        await asyncio.sleep(0)
        assert pool.accepted == 5
        with pytest.raises(BusyError):
            await pool.run(lambda: None)
        gate.set()
        assert await asyncio.gather(*accepted) == [True] * 5
        assert await pool.run(lambda: 1) == 1
        pool.close()

    asyncio.run(main())


def test_nobody_hears_of_an_error_that_came_too_late(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        pool, gate = bounded(seconds=0.05), Event()

        def work() -> None:
            gate.wait()
            raise LabelError("late")

        with pytest.raises(BusyError):
            await pool.run(work)
        gate.set()
        while pool.accepted:
            await asyncio.sleep(0.01)
        pool.close()

    asyncio.run(main())
    gc.collect()
    assert caplog.text == ""


def test_work_that_takes_too_long_counts_until_it_ends() -> None:
    async def main() -> None:
        pool, gate, ran = bounded(waiting=1, seconds=0.2), Event(), []
        first = asyncio.create_task(pool.run(gate.wait))
        second = asyncio.create_task(pool.run(lambda: ran.append(1)))
        for task in (first, second):
            with pytest.raises(BusyError):
                await task
        assert pool.accepted == 1  # the second never began, the first cannot be stopped
        gate.set()
        while pool.accepted:
            await asyncio.sleep(0.01)
        assert ran == []
        assert await pool.run(lambda: 1) == 1
        pool.close()

    asyncio.run(main())


def test_values_are_found_once_for_each_commit() -> None:
    commit, found = 1, []
    cache = CommitCache(lambda: commit)

    def find() -> int:
        found.append(commit)
        return commit

    askers = [Thread(target=cache.get, args=(("a",), find)) for _ in range(8)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert found == [1]
    commit = 2
    while cache.get(("a",), find) != 2:  # a moment longer than it took to find
        pass
    assert found == [1, 2]
    assert cache.get(("b",), lambda: "other") == "other"
    for i in range(100):  # whoever asks for many different ones does not fill the memory
        assert cache.get(("map", i), lambda i=i: i) == i  # type: ignore[misc]
    assert len(cache._kept) <= 17
