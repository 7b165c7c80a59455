"""A hasher exported as ONNX gives the same codes, without torch."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from hyphash.errors import PhotoError, RunError, WeightsError
from hyphash.hasher import SPEC_FILE, WEIGHTS_FILE, Exported, ExportedHasher, Hasher, read_spec
from hyphash.onnx_network import ONNX_FILE, ROUNDING, OnnxNetwork, largest_difference

WITHOUT_TORCH = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision", "timm", "onnx", "onnxscript"):
            raise ImportError(f"no {name} here")
sys.meta_path.insert(0, Absent())
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Hasher, Path, Exported]:
    """A saved hasher with its export beside it; made once, for torch takes seconds to write ONNX."""
    import torch

    torch.manual_seed(0)
    hasher, _ = Hasher.create(
        classes=("cat", "dog", "sea"), bits=12, backbone="resnet18", weights="none", size=32, hidden=16, device="cpu"
    )
    hasher.anchors = np.random.default_rng(0).normal(size=(3, 12)).astype(np.float32)
    folder = tmp_path_factory.mktemp("run")
    hasher.save(folder)
    return hasher, folder, hasher.export(folder)


@pytest.fixture
def pixels() -> Any:
    return np.random.default_rng(1).integers(0, 256, (70, 32, 32, 3), np.uint8)  # more than one batch


def test_export_gives_the_outputs_of_its_origin(run: tuple[Hasher, Path, Exported], pixels: Any) -> None:
    hasher, folder, exported = run
    assert (exported.file, exported.photos) == (folder / ONNX_FILE, 32)
    assert 0 <= exported.difference <= ROUNDING
    light = Hasher.load(folder, device="onnx")
    assert isinstance(light, ExportedHasher)
    expected, outputs = hasher.outputs_of_pixels(pixels), light.outputs_of_pixels(pixels)
    assert_allclose(outputs, expected, atol=ROUNDING * np.abs(expected).max())
    sure = np.abs(expected) > ROUNDING * np.abs(expected).max()
    assert_array_equal((outputs > 0)[sure], (expected > 0)[sure])
    assert light.outputs_of_pixels(pixels[:0]).shape == (0, 12)


def test_photos_are_encoded_by_what_was_exported_where_there_is_no_gpu(
    run: tuple[Hasher, Path, Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    hasher, folder, _ = run
    for gpu, expected in ((False, ExportedHasher), (True, Hasher)):
        chosen: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
            patch.setattr(Hasher, "load", lambda _, *, device, chosen=chosen: chosen.append(device))
            Hasher.to_encode(folder)
            Hasher.to_encode(folder, device="cpu")
        assert chosen == ["onnx" if expected is ExportedHasher else "auto", "cpu"]
    assert type(Hasher.to_encode(folder, device="cpu")) is Hasher
    hasher.save(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert isinstance(Hasher.to_encode(folder), ExportedHasher)
    assert type(Hasher.to_encode(tmp_path)) is Hasher  # nothing was exported there


def test_codes_of_real_photos_are_the_same(run: tuple[Hasher, Path, Exported], shared_data: Path) -> None:
    from hyphash.datasets import load_dataset

    hasher, folder, _ = run
    photos = load_dataset(shared_data / "flickr25k").queries.take(slice(200))
    expected, outputs = hasher.outputs(photos), Hasher.load(folder, device="onnx").outputs(photos)
    differ = (expected > 0) != (outputs > 0)
    assert np.abs(expected[differ]).max(initial=0) <= ROUNDING * np.abs(expected).max()
    assert differ.mean() < 0.001


def test_export_carries_the_fingerprint_and_labels_of_its_origin(run: tuple[Hasher, Path, Exported]) -> None:
    hasher, folder, _ = run
    light = Hasher.load(folder, device="onnx")
    assert light.fingerprint == hasher.fingerprint
    assert_array_equal(light.label_outputs(["cat"], ["sea"]), hasher.label_outputs(["cat"], ["sea"]))


def test_folder_of_its_own_needs_no_weights_of_torch(
    run: tuple[Hasher, Path, Exported], tmp_path: Path, pixels: Any
) -> None:
    hasher, folder, _ = run
    light = Hasher.load(folder, device="onnx")
    light.save(tmp_path / "light")
    assert (tmp_path / "light" / WEIGHTS_FILE).stat().st_size < 1000
    again = Hasher.load(tmp_path / "light")  # torch is here, its weights are not
    assert isinstance(again, ExportedHasher)
    assert_array_equal(again.outputs_of_pixels(pixels), light.outputs_of_pixels(pixels))
    assert again.fingerprint == hasher.fingerprint


def test_loads_and_encodes_where_torch_is_absent(
    run: tuple[Hasher, Path, Exported], photo_files: Callable[..., list[Path]]
) -> None:
    hasher, folder, _ = run
    paths = photo_files(3)
    program = f"""{WITHOUT_TORCH}
import json
from hyphash.hasher import Hasher
hasher = Hasher.load({str(folder)!r})
print(json.dumps(hasher.outputs({[str(path) for path in paths]!r}).tolist()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    expected = hasher.outputs(paths)
    assert_allclose(json.loads(done.stdout), expected, atol=ROUNDING * np.abs(expected).max())


def test_without_torch_and_export_the_error_names_the_extra(run: tuple[Hasher, Path, Exported], tmp_path: Path) -> None:
    run[0].save(tmp_path / "plain")
    program = f"{WITHOUT_TORCH}\nfrom hyphash.hasher import Hasher\nHasher.load({str(tmp_path / 'plain')!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "hyphash[train]" in done.stderr


def test_importing_imports_no_runtime() -> None:
    program = "import sys, hyphash.hasher; print({'torch', 'onnxruntime', 'onnx'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "set()"


def test_network_of_another_hasher_is_refused(run: tuple[Hasher, Path, Exported]) -> None:
    with pytest.raises(WeightsError, match=r"not of ffff.*hyphash export"):
        OnnxNetwork(run[2].file, "ffff")


def test_export_into_the_folder_of_another_hasher_is_refused(
    run: tuple[Hasher, Path, Exported], tmp_path: Path, tiny_hasher: Callable[..., Hasher]
) -> None:
    tiny_hasher().save(tmp_path)
    before = read_spec(tmp_path)
    with pytest.raises(RunError, match="holds another hasher"):
        run[0].export(tmp_path)
    assert read_spec(tmp_path) == before
    assert not (tmp_path / ONNX_FILE).exists()


def test_missing_and_damaged_networks_say_what_to_do(run: tuple[Hasher, Path, Exported], tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="hyphash export"):
        OnnxNetwork(tmp_path / ONNX_FILE, "")
    (tmp_path / ONNX_FILE).write_bytes(run[2].file.read_bytes()[:1000])
    with pytest.raises(WeightsError, match="not a network"):
        OnnxNetwork(tmp_path / ONNX_FILE, run[0].fingerprint)


def test_export_that_differs_gets_no_name(
    run: tuple[Hasher, Path, Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = run[2].file.read_bytes()
    monkeypatch.setattr("hyphash.hasher.write_onnx", lambda _network, path, **_facts: path.write_bytes(written))
    call = OnnxNetwork.__call__
    monkeypatch.setattr(OnnxNetwork, "__call__", lambda self, images: call(self, images) * 1.01)
    with pytest.raises(WeightsError, match="differ from the original"):
        run[0].export(tmp_path / "light")
    assert list((tmp_path / "light").iterdir()) == []


def test_photos_to_check_with_must_be_readable(run: tuple[Hasher, Path, Exported], tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"no photo")
    with pytest.raises(PhotoError, match="none of the photos"):
        run[0].export(tmp_path / "light", [tmp_path / "a.jpg"])
    assert not (tmp_path / "light" / SPEC_FILE).exists()


@pytest.mark.parametrize(("off", "fine"), [(0.5, True), (2, False), (np.nan, False)])
def test_differences_are_measured_against_the_largest_output(off: float, fine: bool) -> None:
    original = np.array([[1.0, -50.0]], np.float32)
    exported = original + np.array([[off * ROUNDING * 50, 0]], np.float32)
    if fine:
        assert largest_difference(Path("x"), original, exported) == pytest.approx(off * ROUNDING, rel=1e-2)
    else:
        with pytest.raises(WeightsError):
            largest_difference(Path("x"), original, exported)
