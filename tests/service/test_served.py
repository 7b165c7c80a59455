"""A collection is served by its exported network, and by the new one after a move."""

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from fastapi.testclient import TestClient

from hyphash.collection import Collection
from hyphash.config import write_toml
from hyphash.encoder import ONNX_FILE, ORIGIN, OnnxEncoder, network_encoder
from hyphash.hasher import read_spec
from hyphash.service import ServedCollection, Settings, create_app
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
