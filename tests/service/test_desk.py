"""Places survive the way through an address; figures are found once; a new hasher is taken up."""

import shutil
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from hyphash.collection import Collection
from hyphash.config import write_toml
from hyphash.encoder import ONNX_FILE, ORIGIN, OnnxEncoder, network_encoder
from hyphash.hasher import read_spec
from hyphash.service import Desk, Settings, create_app
from hyphash.service.batching import BatchedEncoder
from hyphash.service.desk import Figures, PlaceError, place_outputs, place_text


class Fake:
    fingerprint = "abc"
    bits = 3
    quantizer = None


@given(st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3))
def test_place_is_what_it_was(values: list[float]) -> None:
    outputs = np.array(values, np.float32)
    text = place_text(Fake(), outputs)  # type: ignore[arg-type]
    assert text.isascii()
    assert set("&=?#%+/ ").isdisjoint(text)
    assert_array_equal(place_outputs(Fake(), text), outputs)  # type: ignore[arg-type]


NO_PLACES = ("", "abc", "abc.", "abc.AAAA", "xyz.AAAAAAAAAAAAAAAA", "abc.AADAfwAAwH8AAMB_", "abc.é", ".")


@pytest.mark.parametrize("text", NO_PLACES)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(PlaceError):
        place_outputs(Fake(), text)  # type: ignore[arg-type]


def test_figures_are_found_once_for_each_commit() -> None:
    commit, found = 1, []
    figures = Figures(lambda: commit)

    def find() -> int:
        found.append(commit)
        return commit

    askers = [Thread(target=figures.get, args=(("a",), find)) for _ in range(8)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert found == [1]
    commit = 2
    while figures.get(("a",), find) != 2:  # a moment longer than it took to find
        pass
    assert found == [1, 2]
    assert figures.get(("b",), lambda: "other") == "other"
    for i in range(100):  # whoever asks for many different ones does not fill the memory
        assert figures.get(("map", i), lambda i=i: i) == i  # type: ignore[misc]
    assert len(figures._kept) <= 17


def test_runs_on_onnx_where_that_was_written(made: Any) -> None:
    desk = Desk.open(made.collection, Settings())
    hasher = desk.hasher
    assert isinstance(hasher.encoder, BatchedEncoder)
    assert desk.hasher is hasher
    assert isinstance(network_encoder(hasher.encoder), OnnxEncoder)
    desk.close()


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
    desk = Desk.open(own, Settings())
    with TestClient(create_app(desk), base_url="http://localhost") as client:
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
        assert isinstance(desk.collection.hasher.encoder, BatchedEncoder)
        assert client.get("/api/collection").json()["fingerprint"] == "0123456789abcdef"
