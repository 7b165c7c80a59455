"""Modules that are loaded when they are first used."""

import subprocess
import sys

import pytest

import hyphash
from hyphash.cli.lazy import lazy


def test_a_name_is_that_of_the_module():
    from hyphash.collection import watching

    assert lazy.collection.watching.Watch is watching.Watch
    assert lazy.Collection is hyphash.Collection


def test_what_is_none_is_none(monkeypatch):
    monkeypatch.setattr("hyphash.coding.nothing", None, raising=False)
    assert lazy.coding.nothing is None


def test_nothing_is_loaded_before_a_name_is_asked_for():
    program = (
        "import sys; from hyphash.cli.lazy import lazy; lazy.coding; print('hyphash.coding' in sys.modules); "
        "lazy.coding.margin; print('hyphash.coding' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).split() == ["False", "True"]


def test_what_is_not_there_is_an_error():
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        _ = lazy.nowhere.name
