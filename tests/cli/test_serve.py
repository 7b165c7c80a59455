"""`hyphash export` and `hyphash serve`"""

import json
import shutil

import pytest

from hyphash import Collection
from hyphash.encoder import ONNX_FILE, OnnxEncoder
from hyphash.hasher import Hasher

pytestmark = pytest.mark.usefixtures("export_once")


@pytest.mark.slow
def test_export_compares_on_the_photos_of_the_run(run, trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "run")
    ran = run("export", folder)
    assert ran.code == 0, ran.err
    assert "agrees with the original on 12 photos" in ran.out
    assert isinstance(Hasher.load(folder, device="onnx").encoder, OnnxEncoder)


@pytest.mark.slow
def test_export_of_what_was_exported_copies_it(run, trained, tmp_path):
    assert run("export", trained, "--into", tmp_path / "light").code == 0
    ran = run("export", tmp_path / "light", "--into", tmp_path / "again")
    assert ran.code == 0, ran.err
    assert (tmp_path / "again" / ONNX_FILE).read_bytes() == (tmp_path / "light" / ONNX_FILE).read_bytes()
    assert run("export", tmp_path / "light").code == 0


@pytest.mark.slow
def test_export_of_a_collection_serves_it_without_weights_of_torch(run, trained, sample, tmp_path):
    assert run("index", trained, sample, "--into", tmp_path / "c").code == 0
    ran = run("export", tmp_path / "c", "--json")
    told = json.loads(ran.out)
    assert told["photos"] == 64
    assert told["difference"] < 1e-4
    with Collection.open(tmp_path / "c", device="onnx") as collection:
        assert (collection.hasher.folder / ONNX_FILE).is_file()
        assert collection.search(sample / "database" / "00003.jpg", k=1)[0].distance == 0


@pytest.mark.slow
def test_export_without_the_photos_says_so(run, trained, sample, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "run")
    (folder / "config.toml").unlink()
    ran = run("export", folder, "--into", tmp_path / "light")
    assert ran.code == 0, ran.err
    assert "not here" in ran.err
    assert sorted(path.name for path in (tmp_path / "light").iterdir()) == [
        "hasher.toml", "network.onnx", "weights.safetensors",
    ]  # fmt: skip
    assert Hasher.load(tmp_path / "light").fingerprint == Hasher.load(folder, device="cpu").fingerprint


def test_serve_refuses_others_without_a_token(run, indexed, monkeypatch):
    monkeypatch.delenv("HYPHASH_TOKEN", raising=False)
    ran = run("serve", indexed, "--host", "0.0.0.0")
    assert ran.code == 2
    assert "--token" in ran.err


def test_serve_needs_a_collection(run, tmp_path):
    ran = run("serve", tmp_path, "--port", 0)
    assert ran.code == 2
    assert "not a collection" in ran.err
