"""Photos in, outputs and codes out; saved and loaded, the same; nothing bad is run or taken in."""

import io
import tomllib
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from safetensors.torch import load_file, save_file

from hyphash.codes import Codes
from hyphash.datasets import Split
from hyphash.encoder import BATCH, OnnxEncoder
from hyphash.errors import ConfigError, LabelError, MissingExtraError, PhotoError, RunError, StorageError, WeightsError
from hyphash.hasher import (
    SPEC_FILE,
    WEIGHTS_FILE,
    Hasher,
    as_source,
    read_spec,
    require_whole,
    rows_of_pixels,
    unit,
    write_checksums,
)
from hyphash.labels import Calibration
from hyphash.networks import LabelHead
from hyphash.photos import PhotoFiles, decode


def by_hand(hasher, images):
    """What the hasher should give: resized, normalised and run, one photo at a time."""
    preprocessing = hasher.spec.preprocessing
    outputs = []
    for image in images:
        small = image.convert("RGB").resize(
            (preprocessing.size,) * 2, Image.Resampling[preprocessing.interpolation.upper()]
        )
        values = (np.asarray(small) / 255 - preprocessing.mean) / preprocessing.std
        with torch.inference_mode():
            network = hasher.network.eval()
            outputs.append(network(torch.tensor(values.transpose(2, 0, 1)[None], dtype=torch.float32))[0].numpy())
    return np.array(outputs)


def images_of(paths):
    return [Image.open(path) for path in paths]


def test_outputs_are_those_of_the_network_over_preprocessed_photos(tiny_hasher, photo_files):
    hasher, paths = tiny_hasher(), photo_files(5)
    outputs = hasher.outputs(paths)
    assert outputs.shape == (5, 12)
    assert outputs.dtype == np.float32
    assert_allclose(outputs, by_hand(hasher, images_of(paths)), rtol=1e-4, atol=1e-5)
    assert len(np.unique(outputs.round(4), axis=0)) == 5  # different photos, different outputs


def test_codes_are_the_signs_of_the_outputs(tiny_hasher, photo_files):
    hasher, paths = tiny_hasher(), photo_files(5)
    assert hasher.encode(paths) == Codes.from_outputs(hasher.outputs(paths))
    assert_array_equal(hasher.encode(paths).unpacked(), hasher.outputs(paths) > 0)


def test_paths_images_generators_and_splits_give_the_same(tiny_hasher, photo_files):
    hasher, paths = tiny_hasher(), photo_files(4)
    expected = hasher.outputs(paths)
    labels = np.ones((4, 3), np.uint8)
    split = Split(PhotoFiles([p.name for p in paths], paths[0].parent), np.arange(4), labels)
    for photos in (
        map(str, paths),
        (p for p in paths),
        images_of(paths),
        iter(images_of(paths)),
        split,
        PhotoFiles(paths),
    ):
        assert_array_equal(hasher.outputs(photos), expected)


def test_order_is_kept_over_many_batches(tiny_hasher, photo_files):
    hasher, paths = tiny_hasher(), photo_files(7)
    chosen = np.random.default_rng(0).integers(0, 7, 2 * BATCH + 9)
    assert_allclose(hasher.outputs([paths[i] for i in chosen]), hasher.outputs(paths)[chosen], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("photos", [[], iter(()), PhotoFiles([])])
def test_no_photos_give_no_codes(tiny_hasher, photos):
    codes = tiny_hasher().encode(photos)
    assert (len(codes), codes.bits) == (0, 12)


@pytest.mark.parametrize("photos", ["cat.jpg", Image.new("RGB", (4, 4))])
def test_a_single_photo_that_is_no_list_is_refused(tiny_hasher, photos):
    with pytest.raises(ConfigError, match="give a list of photos"):
        tiny_hasher().encode(photos)


def test_paths_and_images_together_are_refused(photo_files):
    with pytest.raises(ConfigError, match="all photos as paths or all as Pillow images"):
        as_source([photo_files(1)[0], Image.new("RGB", (4, 4))])


def test_outputs_do_not_depend_on_the_networks_mode(tiny_hasher, photo_files):
    hasher, paths = tiny_hasher(hidden=16), photo_files(2)
    expected = hasher.outputs(paths)
    hasher.network.train()
    assert_array_equal(hasher.outputs(paths), expected)


def test_bad_photos_are_reported_and_the_others_encoded(tiny_hasher, photo_files):
    hasher, paths = tiny_hasher(), photo_files(6)
    good = hasher.outputs([paths[i] for i in (0, 2, 5)])
    paths[1].write_bytes(b"")
    paths[3].write_bytes(b"no photo")
    paths[4].unlink()
    seen = []
    encoded = hasher.encode_photos(PhotoFiles(paths), progress=lambda done, of: seen.append((done, of)))
    assert_array_equal(encoded.rows, [0, 2, 5])
    assert_array_equal(encoded.values, good)
    assert [problem.name for problem in encoded.problems] == [str(paths[i]) for i in (1, 3, 4)]
    assert ["0 bytes" in encoded.problems[0].reason, "not a photo" in encoded.problems[1].reason] == [True, True]
    assert seen[-1] == (6, 6)


def test_only_bad_photos_give_problems_alone(tiny_hasher, tmp_path):
    seen, photos = [], PhotoFiles([tmp_path / f"{i}.jpg" for i in range(BATCH + 3)])
    encoded = tiny_hasher().encode_photos(photos, progress=lambda *done: seen.append(done))
    assert seen == [(BATCH, BATCH + 3), (BATCH + 3, BATCH + 3)]
    assert encoded.values.shape == (0, 12)
    assert encoded.rows.tolist() == []
    assert len(encoded.problems) == BATCH + 3


def test_encode_raises_on_the_first_bad_photo(tiny_hasher, photo_files):
    paths = photo_files(3)
    paths[1].write_bytes(b"")
    with pytest.raises(PhotoError, match=r"001\.png: an empty file"):
        tiny_hasher().encode(paths)


def test_a_photo_whose_reader_is_not_installed_is_reported_too(tiny_hasher, photo_files, monkeypatch):
    def reader(data, name, **options):
        if name.endswith("001.png"):
            raise MissingExtraError("reading HEIC photos", "heic")
        return decode(data, name, **options)

    monkeypatch.setattr("hyphash.photos.decode", reader)
    encoded = tiny_hasher().encode_photos(PhotoFiles(photo_files(3)))
    assert_array_equal(encoded.rows, [0, 2])
    assert "pip install 'hyphash[heic]'" in encoded.problems[0].reason


@pytest.mark.parametrize(
    "settings", [{}, {"hidden": 8, "dropout": 0.2}, {"on_map": True}, {"bits": 1}, {"bits": 256}, {"mirror": True}]
)
def test_a_saved_hasher_comes_back_the_same(tiny_hasher, photo_files, tmp_path, settings):
    hasher, paths = tiny_hasher(**settings), photo_files(3)
    hasher.save(tmp_path / "new" / "run")
    loaded = Hasher.load(tmp_path / "new" / "run", device="cpu")
    assert loaded.spec == hasher.spec
    assert (loaded.bits, loaded.classes) == (hasher.bits, hasher.classes)
    assert loaded.fingerprint == hasher.fingerprint != ""
    assert_array_equal(loaded.anchors, hasher.anchors)
    assert_array_equal(loaded.outputs(paths), hasher.outputs(paths))


def test_a_hasher_without_anchors_comes_back_without(tiny_hasher, tmp_path):
    tiny_hasher(anchors=False).save(tmp_path)
    assert Hasher.load(tmp_path).anchors is None
    assert Hasher.to_encode(tmp_path, late=True).anchors is None


def test_a_quantised_hasher_comes_back_the_same(tiny_hasher, photo_files, tmp_path):
    from hyphash.quantizer import Quantizer

    hasher, paths = tiny_hasher(anchors=False), photo_files(3)
    hasher.quantizer = Quantizer(np.random.default_rng(0).normal(size=(2, 256, 6)), bits=12)
    hasher.save(tmp_path)
    loaded = Hasher.load(tmp_path)
    assert_array_equal(loaded.quantizer.codewords, hasher.quantizer.codewords)
    assert loaded.encode(paths) == hasher.encode(paths) == hasher.quantizer.encode(hasher.outputs(paths))
    assert len(loaded.encode([])) == 0


def test_anchors_can_be_read_without_the_network(tiny_hasher, tmp_path):
    hasher = tiny_hasher()
    hasher.save(tmp_path)
    assert_array_equal(Hasher.to_encode(tmp_path, late=True).anchors, hasher.anchors)


def test_a_timm_backbone_and_unicode_classes_survive(tiny_hasher, tmp_path):
    classes = ("Katze 🐈", "sea, wide", 'quo"ted', "new\nline")
    tiny_hasher(classes=classes).save(tmp_path)
    assert read_spec(tmp_path).classes == classes
    assert read_spec(tmp_path).backbone == "timm:test_resnet"


def test_the_fingerprint_tells_weights_and_preprocessing_apart(tiny_hasher):
    others = ({"seed": 1}, {"size": 40}, {"bits": 13}, {"hidden": 8}, {"anchors": False}, {"mirror": True})
    prints = {tiny_hasher(**settings).fingerprint for settings in ({}, *others)}
    assert len(prints) == 7
    assert tiny_hasher().fingerprint == tiny_hasher().fingerprint


def test_saving_changed_weights_changes_the_fingerprint(tiny_hasher, tmp_path):
    hasher = tiny_hasher()
    before = hasher.fingerprint
    with torch.no_grad():
        hasher.network.head.hash.bias += 1
    hasher.save(tmp_path)
    assert read_spec(tmp_path).fingerprint == hasher.fingerprint != before


def test_an_empty_folder_holds_no_hasher(tmp_path):
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(RunError, match="holds no trained hasher"):
            Hasher.load(folder)


@pytest.fixture
def saved(tiny_hasher, tmp_path):
    tiny_hasher().save(tmp_path)
    return tmp_path


def edit_spec(folder, old, new):
    text = (folder / SPEC_FILE).read_text()
    assert old in text
    (folder / SPEC_FILE).write_text(text.replace(old, new))


@pytest.mark.parametrize("version", ["2", '"1"', "0"])
def test_another_format_is_refused(saved, version):
    edit_spec(saved, "format = 1", f"format = {version}")
    with pytest.raises(RunError, match="this hyphash reads 1; use the version that wrote it"):
        Hasher.load(saved)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bits = 12", "bits = 0"),
        ("bits = 12", "bits = 300"),
        ("bits = 12", 'bits = "12"'),
        ("bits = 12", ""),
        ("bits = 12", "bits = 12\nbeta = 3"),
        ("format = 1", "format = 1\n["),
        ("size = 32", "size = -1"),
        ("timm:test_resnet", "timm:test_resnot"),
        ("timm:test_resnet", "test_resnet"),
        ('head = "default"', 'head = "mine"'),
    ],
)
def test_a_damaged_description_is_an_error_of_ours(saved, old, new):
    edit_spec(saved, old, new)
    with pytest.raises(ConfigError):
        Hasher.load(saved)


@pytest.mark.parametrize(
    ("old", "new"),
    [("bits = 12", "bits = 13"), ("timm:test_resnet", "timm:test_resnet2"), ("hidden = 0", "hidden = 7")],
)
def test_weights_that_do_not_fit_the_description_are_refused(saved, old, new):
    edit_spec(saved, old, new.replace("test_resnet2", "test_efficientnet"))
    with pytest.raises(WeightsError, match=r"weights\.safetensors: does not fit"):
        Hasher.load(saved)


def test_anchors_for_other_classes_are_refused(saved):
    edit_spec(saved, '    "sea",\n', "")
    with pytest.raises(WeightsError, match="3 anchors for 2 classes"):
        Hasher.load(saved)


@pytest.mark.parametrize(
    "anchors",
    [
        np.float32(3.0), np.zeros(3, np.float32), np.zeros((3, 13), np.float32), np.zeros((3, 4, 3), np.float32),
        np.full((3, 12), np.nan, np.float32), np.zeros((3, 12), np.int64), np.zeros((3, 12), np.complex64),
    ],
)  # fmt: skip
def test_odd_anchors_are_refused_in_plain_words(saved, anchors):
    from safetensors.numpy import load_file, save_file

    weights = load_file(saved / WEIGHTS_FILE) | {"anchors": np.asarray(anchors)}
    with suppress(KeyError):  # safetensors does not know all kinds
        save_file(weights, saved / WEIGHTS_FILE, {"fingerprint": read_spec(saved).fingerprint})
        for load in (Hasher.load, partial(Hasher.to_encode, late=True)):
            with pytest.raises(WeightsError, match=r"weights\.safetensors: "):
                load(saved)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("size = 32", "size = 1000000"), ("hidden = 0", "hidden = -1"), ("hidden = 0", "hidden = 10000000000"),
        ("dropout = 0.5", "dropout = nan"), ("dropout = 0.5", "dropout = 2.0"),
    ],
)  # fmt: skip
def test_odd_sizes_are_refused_in_plain_words(saved, old, new):
    edit_spec(saved, old, new)
    with pytest.raises(ConfigError, match=r"hasher\.toml"):
        Hasher.load(saved)


def test_a_file_that_was_noted_and_has_changed_is_not_loaded(saved):
    write_checksums(saved)
    require_whole(saved)
    data = bytearray((saved / WEIGHTS_FILE).read_bytes())
    data[-1] ^= 1
    (saved / WEIGHTS_FILE).write_bytes(data)
    write_checksums(saved)  # what was noted stays
    with pytest.raises(WeightsError, match=r"weights\.safetensors: damaged, not the hasher that was installed"):
        Hasher.load(saved)


def test_missing_weights_are_named(saved):
    (saved / WEIGHTS_FILE).unlink()
    for load in (Hasher.load, partial(Hasher.to_encode, late=True)):
        with pytest.raises(WeightsError, match=r"weights\.safetensors"):
            load(saved)


@pytest.mark.parametrize("share", [0, 0.001, 0.5, 0.999])
def test_cut_weights_are_refused(saved, share):
    whole = (saved / WEIGHTS_FILE).read_bytes()
    (saved / WEIGHTS_FILE).write_bytes(whole[: int(len(whole) * share)])
    for load in (Hasher.load, partial(Hasher.to_encode, late=True)):
        with pytest.raises(WeightsError, match=r"weights\.safetensors: not "):
            load(saved)


def test_a_missing_tensor_is_refused(saved):
    tensors = load_file(saved / WEIGHTS_FILE)
    del tensors["network.head.hash.weight"]
    save_file(tensors, saved / WEIGHTS_FILE)
    with pytest.raises(WeightsError, match=r"does not fit .*head\.hash\.weight"):
        Hasher.load(saved)


def test_weights_of_one_save_and_the_description_of_another_are_refused(tiny_hasher, saved):
    """What a crash between the two files of a save would leave: codes would claim another's fingerprint."""
    description = (saved / SPEC_FILE).read_bytes()
    tiny_hasher(seed=1).save(saved)
    (saved / SPEC_FILE).write_bytes(description)
    with pytest.raises(WeightsError, match="come from different runs or moments"):
        Hasher.load(saved)


@pytest.mark.parametrize("setting", ['backbone = "timm:test_resnet"', 'head = "default"'])
def test_loading_never_runs_code_that_the_description_names(saved, setting):
    trap = saved / "trap.py"
    trap.write_text(f"open({str(saved / 'sprung')!r}, 'w').close()\nclass Trap: ...\n")
    edit_spec(saved, setting, f'{setting.split(" = ")[0]} = "{trap}:Trap"')
    with pytest.raises(ConfigError, match="register it through an entry point"):
        Hasher.load(saved)
    assert not (saved / "sprung").exists()


def test_a_full_disk_leaves_the_hasher_that_was_there(tiny_hasher, saved, monkeypatch):
    before = Hasher.load(saved).fingerprint

    def full(number):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(StorageError, match=r"weights\.safetensors: the disk is full"):
            tiny_hasher(seed=1).save(saved)
    assert Hasher.load(saved).fingerprint == before
    assert sorted(p.name for p in saved.iterdir()) == [SPEC_FILE, WEIGHTS_FILE]


def test_what_is_written_is_toml_and_safetensors(saved):
    table = tomllib.loads((saved / SPEC_FILE).read_text())
    assert table["classes"] == ["cat", "dog", "sea"]
    assert {name.partition(".")[0] for name in load_file(saved / WEIGHTS_FILE)} == {"network", "anchors"}


def test_a_description_from_before_backbones_stood_side_by_side_is_read(tiny_hasher, saved):
    hasher = Hasher.load(saved)
    edit_spec(saved, "beside = []\n", "")
    assert Hasher.load(saved).spec == hasher.spec
    assert Hasher.load(saved).fingerprint == tiny_hasher().fingerprint


def test_each_backbone_has_a_preprocessing(saved):
    edit_spec(saved, 'backbone = "timm:test_resnet"', 'backbone = "timm:test_resnet+resnet18"')
    with pytest.raises(ConfigError, match=r"hasher\.toml: one preprocessing for each of .*, not 1"):
        Hasher.load(saved)


def test_a_label_stands_at_its_anchor(tiny_hasher):
    hasher = tiny_hasher()
    assert_allclose(hasher.label_outputs(["dog"]), hasher.anchors[1] / np.linalg.norm(hasher.anchors[1]), rtol=1e-5)
    for _ in range(2):
        assert_array_equal(hasher.label_place("dog"), hasher.label_outputs(["dog"]))
        hasher.anchors = -hasher.anchors  # what was remembered of others does not count


def test_several_labels_stand_in_the_middle_of_their_anchors(tiny_hasher):
    """Theorem 2: the same cosine to each of two anchors, whatever their lengths."""
    hasher = tiny_hasher()
    hasher.anchors[0] *= 10
    place = hasher.label_outputs(["cat", "sea"])
    to_anchors = unit(hasher.anchors) @ place
    assert to_anchors[0] == pytest.approx(to_anchors[2], abs=1e-5)
    a, b = unit(hasher.anchors)[[0, 2]]
    assert_allclose(place, (a + b) / np.linalg.norm(a + b), rtol=1e-5, atol=1e-6)
    assert_allclose(place, hasher.label_outputs(["sea", "cat"]), rtol=1e-5, atol=1e-6)


def test_unwanted_labels_push_away(tiny_hasher):
    hasher = tiny_hasher()
    anchors = unit(hasher.anchors)
    with_sea, without = hasher.label_outputs(["cat"]), hasher.label_outputs(["cat"], ["sea"])
    assert anchors[2] @ without < anchors[2] @ with_sea
    assert_allclose(without, unit(anchors[0] - anchors[2] / 3), rtol=1e-5, atol=1e-6)
    assert_allclose(hasher.label_outputs([], ["sea"]), -anchors[2], rtol=1e-5)
    assert hasher.label_outputs([], ["sea"]).shape == (12,)


@pytest.mark.parametrize(
    ("wanted", "unwanted", "message"),
    [
        ([], [], "name at least one label"),
        (["cow"], [], "never saw the label 'cow'; it knows 3 others"),
        (["cat"], ["cow"], "never saw the label 'cow'"),
        (["Dgo"], [], r"never saw the label 'Dgo'; did you mean 'dog'\?"),
        (["cat", "dog"], ["dog"], "'dog' is wanted and unwanted at once"),
    ],
)
def test_labels_that_make_no_query_are_refused(tiny_hasher, wanted, unwanted, message):
    with pytest.raises(LabelError, match=message):
        tiny_hasher().label_outputs(wanted, unwanted)


def test_a_hasher_without_anchors_knows_no_labels(tiny_hasher):
    hasher = tiny_hasher(anchors=False)
    with pytest.raises(LabelError, match="knows no labels"):
        hasher.label_outputs(["cat"])
    with pytest.raises(LabelError, match="knows no labels"):
        hasher.tags(np.ones((1, 12), np.float32))


def test_tags_are_ordered_by_the_cosine_to_the_anchors(tiny_hasher):
    hasher = tiny_hasher()
    outputs = np.random.default_rng(1).normal(size=(6, 12)).astype(np.float32)
    for output, tags in zip(outputs, hasher.tags(outputs), strict=True):
        naive = {
            label: float(output @ anchor / np.linalg.norm(output) / np.linalg.norm(anchor))
            for label, anchor in zip(hasher.classes, hasher.anchors, strict=True)
        }
        assert [tag.label for tag in tags] == sorted(naive, key=naive.get, reverse=True)
        assert [tag.score for tag in tags] == pytest.approx([naive[tag.label] for tag in tags], abs=1e-5)


def test_a_photo_at_an_anchor_is_tagged_with_it(tiny_hasher):
    hasher = tiny_hasher()
    best = [tags[0] for tags in hasher.tags(3 * hasher.anchors)]
    assert [tag.label for tag in best] == ["cat", "dog", "sea"]
    assert [tag.score for tag in best] == pytest.approx([1, 1, 1], abs=1e-5)


def test_equal_scores_keep_the_order_of_the_classes(tiny_hasher):
    tags = tiny_hasher().tags(np.zeros((1, 12), np.float32))
    assert [(tag.label, tag.score) for tag in tags[0]] == [("cat", 0), ("dog", 0), ("sea", 0)]


@pytest.mark.parametrize("bits", [0, 257])
def test_lengths_beyond_the_limits_are_refused(tiny_hasher, bits):
    with pytest.raises(ConfigError, match="bits must lie between 1 and 256"):
        tiny_hasher(bits=bits)


def test_large_jpegs_are_read_smaller_with_hardly_a_difference(tiny_hasher, photo, tmp_path):
    """A file may be decoded at a fraction of its size; the same photo given as an image is not."""
    smooth = Image.open(io.BytesIO(photo(3, size=8))).resize((512, 512), Image.Resampling.BICUBIC)
    smooth.save(tmp_path / "large.jpg", quality=95)
    hasher = tiny_hasher()
    from_file, from_image = hasher.outputs([tmp_path / "large.jpg"]), hasher.outputs([smooth])
    assert np.abs(from_file - from_image).max() < 0.05 * np.abs(from_image).max()


def with_labels(hasher, scale=1.0):
    """The hasher with a label layer that nobody trained."""
    torch.manual_seed(5)
    features = hasher.network.backbone.features
    hasher.network.labels = LabelHead(features, 8, len(hasher.classes)).requires_grad_(False)
    hasher.network.labels.last.weight *= scale
    hasher.network.labels.last.bias *= scale
    count = len(hasher.classes)
    hasher.calibration = Calibration(np.full(count, 0.5, np.float32), np.full(count, 0.1, np.float32))
    hasher.spec = replace(hasher.spec, fingerprint="")
    return hasher


def test_a_label_layer_leaves_outputs_and_codes_as_they_are(tiny_hasher, photo_files):
    paths = photo_files(5)
    plain, hasher = tiny_hasher(), with_labels(tiny_hasher())
    hasher.network.load_state_dict(plain.network.state_dict(), strict=False)
    assert_array_equal(hasher.outputs(paths), plain.outputs(paths))
    assert hasher.encode(paths) == plain.encode(paths)
    assert hasher.encode([]).bits == 12
    encoded = hasher.encode_photos(PhotoFiles(paths))
    assert_array_equal(encoded.values, plain.outputs(paths))
    assert plain.encode_photos(PhotoFiles(paths)).logits is None
    images = hasher.on_torch().images(
        np.stack([hasher.encoder.preprocessing.pixels(image) for image in images_of(paths)])
    )
    with torch.inference_mode():
        expected = hasher.network.labels(hasher.network.features(images)).numpy()
    assert_allclose(encoded.logits, expected, rtol=1e-4, atol=1e-5)


def test_what_a_collection_stores_is_the_code_and_the_scores_of_labels(tiny_hasher, photo_files):
    hasher = with_labels(tiny_hasher())
    pixels = np.stack([hasher.encoder.preprocessing.pixels(image) for image in images_of(photo_files(5))])
    rows = hasher.packed_rows(pixels)
    assert_array_equal(rows[:, :2], hasher.to_codes(hasher.outputs(pixels)).packed)
    assert_array_equal(rows[:, 2:], hasher.calibration.pack(rows_of_pixels(hasher, pixels)[:, 12:]))
    assert hasher.packed_rows(pixels[:0]).shape == (0, 2 + hasher.calibration.width)
    assert_array_equal(tiny_hasher().packed_rows(pixels).shape, (5, 2))


@pytest.mark.parametrize("device", ["cpu", "onnx"])
@pytest.mark.slow
def test_a_label_layer_is_saved_exported_and_part_of_the_fingerprint(tiny_hasher, photo_files, tmp_path, device):
    hasher, paths = tiny_hasher(), photo_files(5)
    before = hasher.fingerprint
    hasher = with_labels(hasher)
    assert hasher.fingerprint != before
    encoded = hasher.encode_photos(PhotoFiles(paths))
    exported = hasher.export(tmp_path) if device == "onnx" else hasher.save(tmp_path)
    again = Hasher.load(tmp_path, device=device)
    assert again.fingerprint == hasher.fingerprint
    found = again.encode_photos(PhotoFiles(paths))
    assert_allclose(found.values, encoded.values, rtol=1e-3, atol=1e-5)
    assert_allclose(found.logits, encoded.logits, rtol=1e-3, atol=1e-5)
    assert exported is None or exported.difference < 1e-4
    assert_array_equal(again.calibration.thresholds, hasher.calibration.thresholds)


@pytest.mark.slow
def test_an_export_whose_logits_differ_is_refused(tiny_hasher, tmp_path, monkeypatch):
    outputs = OnnxEncoder.outputs
    wrong = np.r_[np.ones(12), np.full(3, 1.01)].astype(np.float32)
    monkeypatch.setattr(OnnxEncoder, "outputs", lambda self, pixels: outputs(self, pixels) * wrong)
    with pytest.raises(WeightsError, match="differ from the original"):
        with_labels(tiny_hasher(), scale=1e-3).export(tmp_path)  # outputs are far larger than logits


def test_a_label_layer_for_other_labels_is_refused(tiny_hasher, tmp_path):
    hasher = with_labels(tiny_hasher())
    hasher.calibration = Calibration(np.ones(2, np.float32), np.ones(2, np.float32))
    hasher.save(tmp_path)
    with pytest.raises(WeightsError, match="a label layer of 2 for 3 classes"):
        Hasher.load(tmp_path)


def test_tags_of_a_label_layer_are_probabilities_with_a_threshold(tiny_hasher):
    hasher = with_labels(tiny_hasher())
    ((best, next_, last),) = hasher.tags(np.ones((1, 12), np.float32), np.array([[-1.0, 2.0, 0.1]], np.float32))
    assert [tag.label for tag in (best, next_, last)] == [hasher.classes[i] for i in (1, 2, 0)]
    assert best.score == pytest.approx(1 / (1 + np.exp(-2)))
    assert [best.carried, next_.carried, last.carried] == [True, True, False]
