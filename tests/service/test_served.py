"""A collection is served by its exported network, and by the new one after a move."""

import shutil
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
from hyphash.service.batching import BatchedEncoder


def test_runs_on_onnx_where_that_was_written(made: Any) -> None:
    served = ServedCollection.open(made.collection, Settings())
    hasher = served.hasher
    assert isinstance(hasher.encoder, BatchedEncoder)
    assert served.hasher is hasher
    assert isinstance(network_encoder(hasher.encoder), OnnxEncoder)
    served.close()


def other_hasher(run: Path, into: Path) -> Path:
    """The same network under another fingerprint, its bits turned round."""
    import onnx
    from onnx import helper, numpy_helper
    from safetensors.numpy import load_file, save_file

    shutil.copytree(run, into)
    model = onnx.load(into / ONNX_FILE)
    weights = numpy_helper.to_array(model.graph.initializer[0])
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(-weights[:, ::-1], "weights"))
    helper.set_model_props(model, {ORIGIN: "0123456789abcdef"})
    onnx.save_model(model, into / ONNX_FILE)
    anchors = load_file(into / "weights.safetensors")["anchors"]
    save_file({"anchors": np.ascontiguousarray(-anchors[:, ::-1])}, into / "weights.safetensors")
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
        assert isinstance(served.collection.hasher.encoder, BatchedEncoder)
        assert client.get("/api/collection").json()["fingerprint"] == "0123456789abcdef"
