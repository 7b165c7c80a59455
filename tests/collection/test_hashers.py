"""The hasher inside a collection: it travels along, and is told when it is gone or not what it was."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest

from hyphash.collection import Collection, hashers
from hyphash.errors import CollectionError
from hyphash.hasher import Hasher


def test_a_real_hasher_travels_with_the_collection(tmp_path: Path, photos: list[Path]) -> None:
    hasher, _ = Hasher.create(
        classes=["cat", "dog"], bits=12, backbone="timm:test_resnet", weights="none", size=32, device="cpu"
    )
    hasher.anchors = np.random.default_rng(0).normal(size=(2, 12)).astype(np.float32)
    hasher.save(run := _folder(tmp_path / "run"))
    with Collection.into(tmp_path / "c", run, device="cpu") as collection:
        collection.add(photos)
    (run / "network.onnx").write_bytes(b"as if exported later")
    Collection.into(tmp_path / "c", run, device="cpu").close()
    assert len(list((tmp_path / "c" / "hashers").glob("*/network.onnx"))) == 1
    for exported in (tmp_path / "c").rglob("*.onnx"):
        exported.unlink()
    shutil.rmtree(run)
    with Collection.open(tmp_path / "c", device="cpu") as collection:
        assert collection.search(photos[3], k=1)[0].distance == 0
        code = collection.photos()[3].code
        assert code == hasher.encode([photos[3]]).packed[0].tobytes()
        assert [match.id for match in collection.search(labels=["cat"], k=10)] == [
            match.id for match in collection.search(outputs=hasher.label_outputs(["cat"]), k=10)
        ]
        assert collection.verify() == []


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_hasher_that_is_gone_or_altered_is_told(collection: Collection) -> None:
    (weights,) = collection.folder.glob("hashers/*/weights.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert "not the hasher that was installed" in collection.verify()[0]
    shutil.rmtree(collection.folder / "hashers")
    with pytest.raises(CollectionError, match="is missing from hashers/"):
        Collection.open(collection.folder)


def test_every_file_of_a_hasher_is_checked(tmp_path: Path, collection: Collection) -> None:
    (folder,) = (collection.folder / "hashers").iterdir()
    spec = folder / "hasher.toml"
    spec.write_text(spec.read_text() + "# changed\n")
    assert "hasher.toml: damaged, not the hasher that was installed" in collection.verify()[0]


def test_a_network_that_came_later_is_checked_too(collection: Collection, tmp_path: Path) -> None:
    (folder,) = (collection.folder / "hashers").iterdir()
    shutil.copytree(folder, run := tmp_path / "run")
    (run / "network.onnx").write_bytes(b"as if exported later")
    hashers.complete(run, collection.folder)
    assert collection.verify() == []
    (folder / "network.onnx").write_bytes(b"as if exported latez")
    assert "network.onnx: damaged" in collection.verify()[0]
    assert "write it again with `hyphash export`" in collection.verify()[0]


def test_a_hasher_of_former_times_has_a_checksum_of_its_weights(collection: Collection) -> None:
    (folder,) = (collection.folder / "hashers").iterdir()
    (folder / "checksums.sha256").unlink()
    (folder / "weights.sha256").write_text(hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest())
    assert collection.verify() == []
    (folder / "weights.sha256").write_text("0" * 64)
    assert "weights.safetensors: damaged" in collection.verify()[0]
