"""Encoders: on torch, on ONNX without it, and loaded late, all give the same outputs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from hyphash.encoder import (
    ONNX_FILE,
    ROUNDING,
    LateEncoder,
    OnnxEncoder,
    TorchEncoder,
    choose_device,
    encode_rows,
    encode_stream,
    largest_difference,
    network_encoder,
    to_images,
)
from hyphash.errors import ConfigError, PhotoError, RunError, WeightsError
from hyphash.hasher import SPEC_FILE, WEIGHTS_FILE, Exported, Hasher, read_spec
from hyphash.photos import PhotoFiles, Preprocessing

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
        classes=("cat", "dog", "sea"),
        bits=12,
        backbone="timm:test_resnet",
        weights="none",
        size=32,
        hidden=16,
        device="cpu",
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
    assert isinstance(light.encoder, OnnxEncoder)
    expected, outputs = hasher.outputs(pixels), light.outputs(pixels)
    assert_allclose(outputs, expected, atol=ROUNDING * np.abs(expected).max())
    sure = np.abs(expected) > ROUNDING * np.abs(expected).max()
    assert_array_equal((outputs > 0)[sure], (expected > 0)[sure])
    assert light.outputs(pixels[:0]).shape == (0, 12)


def test_photos_are_encoded_by_what_was_exported_where_there_is_no_gpu(
    run: tuple[Hasher, Path, Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasher, folder, _ = run
    for gpu, expected in ((False, "onnx"), (True, "auto")):
        chosen: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr("hyphash.hasher.gpus", lambda gpu=gpu: ["cuda:0"] if gpu else [])
            patch.setattr(Hasher, "load", lambda _, *, device, chosen=chosen: chosen.append(device))
            Hasher.to_encode(folder)
            Hasher.to_encode(folder, device="cpu")
        assert chosen == [expected, "cpu"]
    assert isinstance(Hasher.to_encode(folder, device="cpu").encoder, TorchEncoder)
    hasher.save(tmp_path)
    monkeypatch.setattr("hyphash.hasher.gpus", list)
    assert isinstance(Hasher.to_encode(folder).encoder, OnnxEncoder)
    assert isinstance(Hasher.to_encode(tmp_path).encoder, TorchEncoder)  # nothing was exported there


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
    assert isinstance(again.encoder, OnnxEncoder)
    assert_array_equal(again.outputs(pixels), light.outputs(pixels))
    assert again.fingerprint == hasher.fingerprint


def test_loads_and_encodes_where_torch_is_absent(
    run: tuple[Hasher, Path, Exported], photo_files: Callable[..., list[Path]]
) -> None:
    hasher, folder, _ = run
    paths = photo_files(3)
    program = f"""{WITHOUT_TORCH}
import json
import os
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
        OnnxEncoder(run[2].file, run[0].encoder.preprocessing, fingerprint="ffff")


def test_export_into_the_folder_of_another_hasher_is_refused(
    run: tuple[Hasher, Path, Exported], tmp_path: Path, tiny_hasher: Callable[..., Hasher]
) -> None:
    tiny_hasher().save(tmp_path)
    before = read_spec(tmp_path)
    with pytest.raises(RunError, match="holds another hasher"):
        run[0].export(tmp_path)
    assert read_spec(tmp_path) == before
    assert not (tmp_path / ONNX_FILE).exists()


def test_missing_and_damaged_networks_say_what_to_do(
    run: tuple[Hasher, Path, Exported], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(WeightsError, match="hyphash export"):
        OnnxEncoder(tmp_path / ONNX_FILE, run[0].encoder.preprocessing, fingerprint="")
    written = run[2].file.read_bytes()
    for damaged in (written[:1000], written.replace(b"images", b"\xffmages", 1)):
        (tmp_path / ONNX_FILE).write_bytes(damaged)
        with pytest.raises(WeightsError, match="not a network"):
            OnnxEncoder(tmp_path / ONNX_FILE, run[0].encoder.preprocessing, fingerprint=run[0].fingerprint)
    assert not capsys.readouterr().out  # nor does onnxruntime tell what it tries


def test_export_that_differs_gets_no_name(
    run: tuple[Hasher, Path, Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = run[2].file.read_bytes()
    monkeypatch.setattr("hyphash.encoder.write_onnx", lambda _network, path, **_facts: path.write_bytes(written))
    outputs = OnnxEncoder.outputs
    monkeypatch.setattr(OnnxEncoder, "outputs", lambda self, pixels: outputs(self, pixels) * 1.01)
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


def test_what_a_head_returns_beside_the_outputs_is_not_exported(
    tiny_hasher: Callable[..., Hasher], tmp_path: Path
) -> None:
    hasher = tiny_hasher()
    hasher.network.register_forward_hook(lambda _network, _images, outputs: (outputs, outputs.sigmoid()))
    assert hasher.export(tmp_path / "light").difference <= ROUNDING


@pytest.mark.slow
def test_onnxruntime_reports_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    with pytest.raises(WeightsError, match="no such file"):
        OnnxEncoder(tmp_path / "network.onnx", TINY, fingerprint="0" * 16)
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"


def test_a_network_on_onnx_is_exported_as_it_is(run: tuple[Hasher, Path, Exported], tmp_path: Path) -> None:
    hasher = run[0]
    hasher.export(tmp_path / "light")
    light = Hasher.load(tmp_path / "light")
    assert light.export(tmp_path / "light").difference == 0  # into its own folder
    again = light.export(tmp_path / "again")
    assert (again.file, again.photos, again.bits_changed) == (tmp_path / "again" / ONNX_FILE, 32, 0)
    assert again.file.read_bytes() == (tmp_path / "light" / ONNX_FILE).read_bytes()
    assert Hasher.load(tmp_path / "again").fingerprint == hasher.fingerprint
    assert_array_equal(Hasher.load(tmp_path / "again").anchors, hasher.anchors)


def test_a_network_on_onnx_cannot_be_taken_apart_and_says_so(run: tuple[Hasher, Path, Exported]) -> None:
    light = Hasher.load(run[1], device="onnx")
    for ask in (lambda: light.network, lambda: light.device, light.on_torch):
        with pytest.raises(ConfigError, match="runs on ONNX"):
            ask()


def test_late_means_when_the_first_photo_comes(run: tuple[Hasher, Path, Exported], pixels: Any) -> None:
    hasher, folder, _ = run
    late = Hasher.to_encode(folder, device="cpu", late=True)
    assert isinstance(late.encoder, LateEncoder)
    assert late.encoder._loaded is None
    assert late.fingerprint == hasher.fingerprint
    assert_array_equal(late.label_outputs(["cat"]), hasher.label_outputs(["cat"]))
    assert late.outputs(pixels[:0]).shape == (0, 12)
    assert late.encoder._loaded is None
    assert_array_equal(late.outputs(pixels), hasher.outputs(pixels))
    assert late.encoder.whole is late.encoder.whole
    assert isinstance(network_encoder(late.encoder), TorchEncoder)
    assert late.network is network_encoder(late.encoder).network


def mean_of(pixels: Any) -> Any:
    return pixels.reshape(len(pixels), -1).mean(1)[:, None]


def test_a_stream_is_encoded_in_batches_and_what_has_no_pixels_comes_along() -> None:
    class Seen:
        def __init__(self, pixels: Any = None) -> None:
            self.pixels = pixels

    found = [Seen(np.full((2, 2, 3), i, np.uint8)) if i % 3 else Seen() for i in range(10)]
    sizes: list[int] = []

    def run(pixels: Any) -> Any:
        sizes.append(len(pixels))
        return mean_of(pixels)

    batches = list(encode_stream(enumerate(found), run, batch=2, most=4))
    assert [i for some in batches for i, _, _ in some] == list(range(10))
    assert [len(some) for some in batches] == [3, 3, 3, 1]
    assert sizes == [2, 2, 2]
    assert all(value is None if i % 3 == 0 else value == i for some in batches for i, _, value in some)
    assert [len(some) for some in encode_stream(enumerate([Seen()] * 5), run, batch=2, most=4)] == [4, 1]
    assert list(encode_stream([], run, batch=2)) == []


def test_batches_are_the_photos_and_the_problems_in_order(photo_files: Callable[..., list[Path]]) -> None:
    paths = photo_files(8)
    paths[3].write_bytes(b"")
    paths[5].unlink()
    sees = Preprocessing(size=8, mean=(0.5,) * 3, std=(0.5,) * 3)
    found = list(encode_rows(PhotoFiles(paths), range(1, 8), sees, lambda pixels: pixels, batch=3))
    assert [some.rows.tolist() for some in found] == [[1, 2], [4, 6], [7]]
    assert [some.values.shape for some in found] == [(2, 8, 8, 3), (2, 8, 8, 3), (1, 8, 8, 3)]
    assert [[p.name for p in some.problems] for some in found] == [[str(paths[3])], [str(paths[5])], []]
    (twice,) = encode_rows(PhotoFiles(paths), [7, 0, 7], sees, mean_of, batch=3)
    assert twice.rows.tolist() == [7, 0, 7]
    assert twice.values[0] == twice.values[2] != twice.values[1]


def test_network_input_is_the_normalisation_of_the_preprocessing() -> None:
    preprocessing = Preprocessing(size=5, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 5, 3), dtype=np.uint8)
    import torch

    images = to_images(torch.from_numpy(pixels), preprocessing, torch.device("cpu"))
    assert images.shape == (2, 3, 5, 5)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert_allclose(images.numpy(), preprocessing.normalise(pixels), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "cpu:x"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(ConfigError, match=f"device '{device}' cannot be used here"):
        choose_device(device)


@pytest.mark.slow
def test_several_backbones_are_saved_loaded_and_exported_like_one(
    tiny_hasher: Callable[..., Hasher], photo_files: Callable[..., list[Path]], tmp_path: Path
) -> None:
    hasher = tiny_hasher(backbone="timm:test_resnet@48+timm:test_efficientnet", size=None, mirror=True)
    paths = photo_files(5)
    outputs = hasher.outputs(paths)
    hasher.save(tmp_path / "run")
    loaded = Hasher.load(tmp_path / "run", device="cpu")
    assert loaded.spec == hasher.spec
    assert_array_equal(loaded.outputs(paths), outputs)
    exported = hasher.export(tmp_path / "run")
    assert 0 <= exported.difference <= ROUNDING
    light = Hasher.to_encode(tmp_path / "run", device="onnx", late=True)
    assert_allclose(light.outputs(paths), outputs, atol=ROUNDING * np.abs(outputs).max())
    assert light.fingerprint == hasher.fingerprint
    hasher.export(tmp_path / "light", paths)
    assert_array_equal(Hasher.load(tmp_path / "light").outputs(paths), light.outputs(paths))


def test_input_of_several_backbones_is_the_normalisation_of_each() -> None:
    import torch

    second = Preprocessing(size=4, mean=(0.3, 0.2, 0.1), std=(0.7, 0.6, 0.5))
    both = Preprocessing(size=5, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7), beside=(second,))
    pixels = np.random.default_rng(0).integers(0, 256, (2, *both.shape), np.uint8)
    images = to_images(torch.from_numpy(pixels), both, torch.device("cpu"))
    assert images.shape == (2, 3, 25 + 16)
    assert_allclose(images.numpy(), both.normalise(pixels), rtol=1e-5, atol=1e-6)


def network(change: Callable[[Any], None]) -> bytes:
    """A network of our make as ONNX, changed: outputs = images · 1."""
    from onnx import TensorProto, helper, numpy_helper

    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["photos", 3, 8, 8])
    outputs = helper.make_tensor_value_info("outputs", TensorProto.FLOAT, None)
    one = numpy_helper.from_array(np.ones(1, np.float32), "one")
    constant = helper.make_node("Constant", [], ["shape"], value=numpy_helper.from_array(np.array([0, -1])))
    nodes = [constant, *(helper.make_node(*parts) for parts in (
        ("Mul", ["images", "one"], ["times"]), ("Reshape", ["times", "shape"], ["outputs"]),
    ))]  # fmt: skip
    graph = helper.make_graph(nodes, "network", [images], [outputs], [one])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"hyphash.fingerprint": "0" * 16})
    change(model)
    content: bytes = model.SerializeToString()
    return content


def elsewhere(tensor: Any, place: str) -> None:
    from onnx import TensorProto

    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", place


HOSTILE: dict[str, Callable[[Any], None]] = {
    "initializer": lambda model: elsewhere(model.graph.initializer[0], "../../etc/passwd"),
    "attribute": lambda model: elsewhere(model.graph.node[0].attribute[0].t, "/etc/passwd"),
    "tensors": lambda model: elsewhere(model.graph.node[0].attribute.add(name="x").tensors.add(), "/etc/passwd"),
    "subgraph": lambda model: elsewhere(model.graph.node[0].attribute.add(name="x").g.initializer.add(), "x"),
    "sparse": lambda model: elsewhere(model.graph.sparse_initializer.add().values, "x"),
    "function": lambda model: elsewhere(model.functions.add().node.add().attribute.add(name="x").t, "x"),
    "training": lambda model: elsewhere(model.training_info.add().algorithm.initializer.add(), "x"),
}
TINY = Preprocessing(size=8, mean=(0.5,) * 3, std=(0.5,) * 3)


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_network_whose_values_lie_in_other_files_is_refused(tmp_path: Path, kind: str) -> None:
    """Whatever the runtime does with it; older ones read any file of the machine."""
    (tmp_path / "network.onnx").write_bytes(network(HOSTILE[kind]))
    with pytest.raises(WeightsError, match="its values lie in other files"):
        OnnxEncoder(tmp_path / "network.onnx", TINY, fingerprint="0" * 16)


def test_a_network_of_our_make_is_run_and_an_odd_one_is_an_error_of_ours(tmp_path: Path) -> None:
    path, pixels = tmp_path / "network.onnx", np.zeros((2, 8, 8, 3), np.uint8)
    path.write_bytes(network(lambda _: None))
    assert OnnxEncoder(path, TINY, fingerprint="0" * 16).outputs(pixels).shape == (2, 192)
    with pytest.raises(WeightsError, match="not a network"):
        OnnxEncoder(path, replace(TINY, size=9), fingerprint="0" * 16).outputs(np.zeros((2, 9, 9, 3), np.uint8))
    path.write_bytes(network(lambda model: model.graph.node.pop()))
    with pytest.raises(WeightsError, match="not a network"):
        OnnxEncoder(path, TINY, fingerprint="0" * 16)
    path.write_bytes(network(lambda _: None)[:-9])
    with pytest.raises(WeightsError, match="not a network"):
        OnnxEncoder(path, TINY, fingerprint="0" * 16)
