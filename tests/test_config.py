"""Settings in and out of TOML: nothing is ignored, nothing is guessed."""

import dataclasses
import typing
from dataclasses import dataclass, fields
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyphash.config import BEFORE, Config, from_table, read_config, read_toml, to_table, write_config, write_toml
from hyphash.errors import ConfigError

NAMES = [f.name for f in fields(Config)]
NUMBERS = [  # name, least, greatest
    ("bits", 1, 256), ("size", 8, 4096), ("hidden", 0, 65536), ("dropout", 0, 0.99), ("epochs", 0, 10**6),
    ("batch", 1, 10**6), ("rate", 0, 1000), ("loss_rate", 0, 1000), ("momentum", 0, 0.9999), ("clip", 0, 1e9),
    ("weight_decay", 0, 10), ("validation", 0, 0.9), ("evaluate_every", 1, 10**6), ("top", 1, 10**9),
    ("step_every", 1, 10**6), ("step_factor", 0, 1), ("checkpoint_every", 0, 1e9), ("seed", 0, 2**32 - 1),
    ("threads", 1, 4096), ("views", 1, 12), ("backbone_rate", 0, 1000), ("warm_up", 0, 10**6),
    ("head_first", 0, 10**6), ("body_rate", 0, 1000),
]  # fmt: skip
HINTS = typing.get_type_hints(Config)

text = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | text
tables = st.dictionaries(text, scalars | st.lists(scalars, max_size=3), max_size=3)


def values(name: str) -> st.SearchStrategy[Any]:
    """Values that a setting may have."""
    hint = HINTS[name]
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    if type(None) in typing.get_args(hint):
        return st.none() | values_of(name, options[0])
    return values_of(name, hint)


def values_of(name: str, hint: Any) -> st.SearchStrategy[Any]:
    if typing.get_origin(hint) is Literal:
        return st.sampled_from(typing.get_args(hint))
    limits = {name: (low, high) for name, low, high in NUMBERS}
    if hint is int:
        return st.integers(*limits[name])
    if hint is float:
        return st.floats(*limits[name])
    if hint == tuple[int, ...]:
        return st.sets(st.integers(1, 256), max_size=4).map(lambda numbers: tuple(sorted(numbers)))
    if hint == dict[str, str]:
        return st.dictionaries(text, text, max_size=3)
    return {bool: st.booleans(), str: text}.get(hint, tables)


configs = st.builds(Config, **{name: values(name) for name in NAMES})


@given(configs)
def test_any_config_comes_back_from_toml(tmp_path_factory, config):
    path = tmp_path_factory.mktemp("config") / "config.toml"
    write_config(path, config)
    assert read_config(path) == config


def test_the_default_config_comes_back(tmp_path):
    write_config(tmp_path / "config.toml", Config())
    assert read_config(tmp_path / "config.toml") == Config()


def test_settings_left_open_are_not_written(tmp_path):
    write_config(tmp_path / "config.toml", Config(epochs=3))
    table = read_toml(tmp_path / "config.toml")
    assert table["epochs"] == 3
    assert "batch" not in table


def test_a_config_states_its_format_and_another_one_is_refused(tmp_path):
    path = tmp_path / "config.toml"
    write_config(path, Config())
    assert read_toml(path)["format"] == 3
    path.write_text("format = 4\nbits = 12\n")
    with pytest.raises(ConfigError, match=r"config\.toml: format 4, this hyphash reads 1 to 3"):
        read_config(path)
    path.write_text("bits = 12\n")
    assert read_config(path, bits=24, epochs=3) == Config(bits=24, epochs=3)


def test_a_run_of_format_1_means_what_was_done_before_a_setting_existed(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("format = 1\nbits = 12\n")
    old = read_config(path)
    assert {name: getattr(old, name) for name in BEFORE} == BEFORE
    assert old.batches == "cut"
    path.write_text("bits = 12\n")  # a file of the user's
    assert read_config(path).batches == Config().batches == "equal"
    path.write_text("format = 2\nbits = 12\n")  # from before the label layer
    assert read_config(path) == Config(bits=12, label_layer=False)


def test_a_table_may_be_partial():
    assert from_table(Config, {"bits": 12}, "test") == Config(bits=12)


def test_a_whole_number_does_for_a_real_one():
    rate = from_table(Config, {"rate": 1}, "test").rate
    assert rate == 1.0
    assert isinstance(rate, float)


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().bits = 3


@pytest.mark.parametrize(
    ("key", "hint"),
    [("bit", "did you mean 'bits'"), ("bach", "did you mean 'batch'"), ("xyz", "known are .*batch, batches, bits")],
)
def test_an_unknown_setting_is_an_error_with_a_suggestion(tmp_path, key, hint):
    path = tmp_path / "config.toml"
    path.write_text(f"{key} = 1\n")
    with pytest.raises(ConfigError, match=rf"config\.toml: unknown setting '{key}'; {hint}"):
        read_config(path)


@pytest.mark.parametrize(
    ("setting", "kind"),
    [
        ({"bits": "48"}, "int"),
        ({"bits": 48.0}, "int"),
        ({"bits": True}, "int"),
        ({"rate": "fast"}, "float"),
        ({"rate": True}, "float"),
        ({"loss": 3}, "str"),
        ({"compile": 1}, "bool"),
        ({"loss_options": "beta"}, "dict"),
        ({"dataset": ["folder"]}, "str"),
    ],
)
def test_a_wrong_type_is_named(setting, kind):
    (name,) = setting
    with pytest.raises(ConfigError, match=f"here: {name} must be of type {kind}, not "):
        from_table(Config, setting, "here")


@pytest.mark.parametrize("name", ["batches", "mode", "recipe", "augment", "optimizer", "schedule", "keep", "precision"])
@pytest.mark.parametrize("value", ["fastest", 3, True, ["sgd"]])
def test_a_choice_that_does_not_exist_lists_those_that_do(name, value):
    with pytest.raises(ConfigError, match=rf"here: {name} must be one of .*, .*, not "):
        from_table(Config, {name: value}, "here")


@pytest.mark.parametrize(("name", "low", "high"), NUMBERS)
def test_limits_are_allowed_and_nothing_beyond(name, low, high):
    for allowed in (low, high):
        assert getattr(Config(**{name: allowed}), name) == allowed
    for beyond in (low - 1, high * 1.01 + 1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=f"{name} must lie between"):
            Config(**{name: beyond})


def test_every_number_has_limits():
    kinds = (int, float, int | None, float | None)
    assert {name for name in NAMES if HINTS[name] in kinds} == {name for name, _, _ in NUMBERS}


def test_a_limit_broken_in_a_file_names_the_file(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("bits = 257\n")
    with pytest.raises(ConfigError, match=r"config\.toml: bits must lie between 1 and 256, not be 257"):
        read_config(path)


def test_filled_takes_the_first_that_has_a_value():
    config = Config(epochs=7).filled({"batch": 10}, {"batch": 20, "epochs": 5, "rate": 0.5})
    assert (config.epochs, config.batch, config.rate) == (7, 10, 0.5)
    assert config.momentum is None


def test_filled_leaves_what_is_set_even_to_zero():
    assert Config(hidden=0, clip=0.0).filled({"hidden": 1024, "clip": 1.0}) == Config(hidden=0, clip=0.0)


def test_filled_checks_limits_too():
    with pytest.raises(ConfigError, match="momentum"):
        Config().filled({"momentum": 1.5})


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int
    mean: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner
    names: tuple[str, ...] = ()
    anything: Any = None


def test_nested_dataclasses_and_tuples_come_back(tmp_path):
    outer = Outer(inner=Inner(size=3, mean=(0.5, 1.0)), names=("a", "b|c"), anything=True)
    write_toml(tmp_path / "outer.toml", outer)
    assert from_table(Outer, read_toml(tmp_path / "outer.toml"), "outer") == outer


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"inner": {"size": 3, "mean": [1], "colour": 1}}, "outer: inner: unknown setting 'colour'"),
        ({"inner": {"size": 3, "mean": ["a", "b"]}}, "outer: inner: mean must be of type float"),
        ({"inner": {"size": 3}}, "outer: inner: .*missing .*'mean'"),
        ({"inner": 3}, "outer: inner must be of type Inner"),
        ({}, "outer: .*missing .*'inner'"),
        ({"inner": {"size": 3, "mean": [1, 2]}, "names": "ab"}, "outer: names must be of type tuple"),
    ],
)
def test_errors_inside_say_where(table, message):
    with pytest.raises(ConfigError, match=message):
        from_table(Outer, table, "outer")


def test_nothing_is_written_for_none_inside_tables():
    assert to_table(Config(loss_options={"beta": None, "margin": 0.5}))["loss_options"] == {"margin": 0.5}


def test_a_byte_order_mark_does_not_hurt(tmp_path):
    (tmp_path / "config.toml").write_bytes(b"\xef\xbb\xbfbits = 12\n")
    assert read_config(tmp_path / "config.toml").bits == 12


@pytest.mark.parametrize("content", [b"bits = \n", b"\xff\xfe\x00", b"bits = 1\nbits = 2\n"])
def test_what_is_not_toml_is_said_so(tmp_path, content):
    (tmp_path / "config.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.toml: not a TOML file"):
        read_config(tmp_path / "config.toml")


def test_a_missing_file_is_said_so(tmp_path):
    with pytest.raises(ConfigError, match="there is no such file"):
        read_config(tmp_path / "config.toml")


def test_a_folder_is_said_so(tmp_path):
    with pytest.raises(ConfigError, match="not a TOML file"):
        read_config(tmp_path)
