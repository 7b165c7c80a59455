"""A hasher that needs no labels: codes and everyday words from the ImageNet classifier that comes with the backbone.

Its codes are ITQ's, of the classifier's logits, and fitted to its own classes, each as the features that it looks for:
no photo is looked at, so the first one can be encoded at once, and the codes of all such hashers can be compared. On
4,000 photos of Flickr-25k they find more than those of ITQ fitted to these photos (docs/start.md).
"""

import tomllib
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hyphash.hasher import Hasher
from hyphash.labels import BELOW, Calibration, logit, sigmoid
from hyphash.losses import heads
from hyphash.networks import GuessHead, first_of, packaged_weights

BACKBONE = "efficientnet_lite0"
WARMTH = 2.0  # what logits of classes are divided by: a photo of many things is sure of none
SIZE, SHIFT = 0.8, -1.0  # logit of a word = logit of its probability − .8 · logit of its share of the classes − 1:
# logistic regression over 15 words and the labels of 4,000 training photos of Flickr-25k (docs/start.md)
HIGHEST = 6.0  # logit that is stored


@cache
def everyday_words() -> dict[str, list[int]]:
    """Each word with the ImageNet classes that show it."""
    table = tomllib.loads(files("hyphash").joinpath("everyday.toml").read_text())
    return {word: [i for part in text.split() for i in _classes(part)] for word, text in table.items()}


def _classes(part: str) -> range:
    """
    >>> list(_classes("7-9")), list(_classes("24"))
    ([7, 8, 9], [24])
    """
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)


def starter(*, bits: int = 48, device: str = "auto") -> Hasher:
    """The hasher to begin with: nothing in it was learned from anybody's photos."""
    hasher, _ = Hasher.create(classes=(), bits=bits, backbone=BACKBONE, head="itq", device=device)
    state = packaged_weights(BACKBONE)
    weight, bias = state["classifier.weight"].float(), state["classifier.bias"].float()
    fitted: Any = heads["itq"](features=len(weight), bits=bits, classes=0)
    fitted.fit(weight @ weight.T, seed=0)
    hasher.network.head.hash.load_state_dict({"weight": fitted.hash.weight @ weight, "bias": fitted.hash(bias)})
    add_guesses(hasher, weight)
    return hasher


@torch.no_grad()
def add_guesses(hasher: Hasher, features: Tensor) -> None:
    """Let a hasher guess the everyday words that it has not learned, beside the labels that it has.

    The anchor of a word is the mean output of these `features` (n, width), each by the probability that it shows it.
    """
    words = {word: classes for word, classes in everyday_words().items() if word not in hasher.classes}
    state = packaged_weights(BACKBONE)
    layer = GuessHead(state["classifier.weight"].shape[1], len(state["classifier.weight"]), len(words))
    for column, classes in enumerate(words.values()):
        layer.members[classes, column] = 1
    share = layer.members.mean(0)
    layer.shift.copy_(SHIFT - SIZE * torch.logit(share))
    layer.classifier.load_state_dict({name: state[f"classifier.{name}"] / WARMTH for name in ("weight", "bias")})
    hasher.network.guesses = layer.to(hasher.device)
    shown = layer(features.to(hasher.device)).sigmoid()
    outputs = first_of(hasher.network.head.eval()(features.to(hasher.device)))
    anchors = ((shown.T @ outputs) / shown.sum(0)[:, None]).cpu().numpy()
    hasher.anchors = anchors if hasher.anchors is None else np.concatenate([hasher.anchors, anchors])
    priors = sigmoid((SHIFT + (1 - SIZE) * torch.logit(share)).numpy())
    own = Calibration(np.full_like(priors, 0.5), priors, (logit(priors) - BELOW).astype(np.float32), HIGHEST)
    hasher.calibration = hasher.calibration.beside(own) if hasher.calibration else own
    spec = hasher.spec
    hasher.spec = replace(spec, classes=(*spec.classes, *words), guessed=tuple(words), fingerprint="")
