"""How the values of options are read."""

import pytest

from hyphash.cli.options import data_options, numbers, options_from, weights_options
from hyphash.errors import ConfigError


def test_values_are_toml_where_they_can_be_and_text_elsewhere():
    pairs = ["beta=0.5", "epochs = 3", "fast=true", "sizes=[1, 2]", "name=dog=cat", "empty="]
    read = {"beta": 0.5, "epochs": 3, "fast": True, "sizes": [1, 2], "name": "dog=cat", "empty": ""}
    assert options_from(pairs, "--set") == read


@pytest.mark.parametrize("pair", ["beta", "=3", " =3"])
def test_what_is_no_pair_is_refused_with_an_example(pair):
    with pytest.raises(ConfigError, match=r"--set takes key=value, such as --set beta=0\.5"):
        options_from([pair], "--set")


def test_options_of_a_dataset_are_those_that_were_set():
    assert data_options(None) == {}
    assert data_options(["labels=24"], skip_missing=True, labels_from="file") == {
        "skip_missing": True, "labels_from": "file", "labels": 24,
    }  # fmt: skip


def test_numbers_have_commas_between():
    assert numbers("12, 48,", "--bits") == (12, 48)
    with pytest.raises(ConfigError, match="--bits takes whole numbers"):
        numbers("12;48", "--bits")


def test_weights_are_those_of_all_or_of_one_backbone(tmp_path):
    assert weights_options([]) == {}
    assert weights_options(["a.pth", "none"]) == {"weights": "none"}  # the last counts
    own = {"resnet50_keras": "b=c.pth", "alexnet": "none"}
    assert weights_options(["resnet50_keras=b=c.pth", "alexnet=none"]) == {"weights_by_backbone": own}
    (tmp_path / "a=b.pth").touch()  # a file may be called so
    assert weights_options([str(tmp_path / "a=b.pth")]) == {"weights": str(tmp_path / "a=b.pth")}
