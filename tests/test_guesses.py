"""Everyday words from ImageNet's classes, and a hasher that needs no photo to begin with."""

import numpy as np
import pytest
import torch
from torchvision.models._meta import _IMAGENET_CATEGORIES as CATEGORIES

from hyphash.guesses import add_guesses, everyday_words, starter
from hyphash.hasher import Hasher
from hyphash.labels import Calibration, sigmoid
from hyphash.networks import LabelHead, packaged_weights


@pytest.fixture(scope="module")
def hasher():
    return starter(device="cpu")


@pytest.fixture(scope="module")
def prototypes():
    """What each class looks for, as features."""
    return packaged_weights("efficientnet_lite0")["classifier.weight"].float()


def words_of(hasher, features):
    rows = hasher.network.eval().on_features(features).detach().numpy()
    return [[tag.label for tag in tags] for tags in hasher.tags(rows[:, : hasher.bits], rows[:, hasher.bits :])]


def test_words_name_classes_that_show_them():
    words = everyday_words()
    assert 140 <= len(words) <= 160
    assert all(classes and min(classes) >= 0 and max(classes) < 1000 for classes in words.values())
    for word, shown in {
        "dog": "beagle",
        "car": "sports car",
        "bird": "robin",
        "beach": "seashore",
        "food": "pizza",
    }.items():
        assert CATEGORIES.index(shown) in words[word]
    assert len(words["dog"]) == 118
    assert {CATEGORIES[i] for i in words["owl"]} == {"great grey owl"}


def test_the_classes_of_a_word_are_guessed_to_show_it(hasher, prototypes):
    classes = [CATEGORIES.index(name) for name in ("beagle", "pizza", "church", "flamingo")]
    for found, word in zip(words_of(hasher, prototypes[classes]), ("dog", "pizza", "church", "flamingo"), strict=True):
        assert word in found[:3]


def test_a_word_has_the_probability_of_its_classes(hasher, prototypes):
    """The layer as it stands in the docs, written once more."""
    features = prototypes[:50].relu()
    layer, weights = hasher.network.guesses, packaged_weights("efficientnet_lite0")
    logits = (features @ weights["classifier.weight"].T + weights["classifier.bias"]).double().numpy() / 2
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    for column, classes in enumerate(everyday_words().values()):
        said, share = p[:, classes].sum(1), len(classes) / 1000
        expected = np.log(said / (1 - said)) - 0.8 * np.log(share / (1 - share)) - 1
        assert np.allclose(layer(features)[:, column].numpy(), expected, atol=1e-3)


def test_every_starter_is_the_same_and_says_that_it_guesses(hasher, tmp_path):
    hasher.save(tmp_path)
    loaded = Hasher.load(tmp_path, device="cpu")
    assert loaded.fingerprint == hasher.fingerprint == starter(device="cpu").fingerprint
    assert set(loaded.spec.guessed) == set(loaded.classes) == set(everyday_words())
    pixels = np.random.default_rng(0).integers(0, 256, (2, 160, 160, 3), np.uint8)
    assert (loaded.packed_rows(pixels) == hasher.packed_rows(pixels)).all()
    assert len(loaded.packed_rows(pixels)[0]) == 6 + loaded.calibration.width


def test_bits_tell_classes_apart(hasher, prototypes):
    codes = hasher.to_codes(hasher.network.head(prototypes).detach().numpy())
    assert len(np.unique(codes.packed, axis=0)) > 950
    dogs, birds = (codes[everyday_words()[word]] for word in ("dog", "bird"))
    assert dogs.distances(dogs).mean() < dogs.distances(birds).mean() - 5


def test_learned_labels_stay_and_words_that_they_name_are_not_guessed(prototypes):
    hasher, _ = Hasher.create(classes=("dog", "own word"), device="cpu")
    hasher.network.labels = LabelHead(1280, 8, 2)
    hasher.anchors = np.ones((2, 48), np.float32)
    half = np.full(2, 0.5, np.float32)
    hasher.calibration = Calibration(half, half / 5)
    before = hasher.network.eval().on_features(prototypes[:5]).detach()
    add_guesses(hasher, prototypes)
    after = hasher.network.on_features(prototypes[:5]).detach()
    assert torch.equal(after[:, :50], before)
    assert hasher.classes[:2] == ("dog", "own word")
    assert "dog" not in hasher.spec.guessed
    assert len(hasher.spec.guessed) == len(everyday_words()) - 1
    assert after.shape[1] == 48 + len(hasher.classes)
    assert len(hasher.anchors) == len(hasher.calibration.priors) == len(hasher.classes)
    assert [tag.guessed for tag in hasher.tags(after[:1, :48].numpy(), after[:1, 48:].numpy())[0]].count(False) == 2


def test_unsure_of_everything_no_word_is_likely(hasher):
    """Where all classes are alike, a word has its prior."""
    nothing = torch.zeros(1, 1280)
    found = sigmoid(hasher.network.guesses(nothing)[0].numpy())
    assert np.abs(found - hasher.calibration.priors).max() < 0.02
    assert found.max() < 0.3
