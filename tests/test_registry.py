"""Names for classes: by decorator, from the modules of a package, from entry points, from a user's file."""

import sys
import threading
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from hyphash import registry as registry_module
from hyphash.errors import ConfigError
from hyphash.registry import Registry


class Circle: ...


class Square: ...


@pytest.fixture
def shapes():
    shapes = Registry("shape")
    shapes("square")(Square)
    shapes("circle")(Circle)
    return shapes


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `plugins_<n>` whose modules register themselves; returns its name and its folder."""
    name = f"plugins_{tmp_path.name.replace('-', '_')}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from hyphash.registry import Registry\nthings = Registry('thing', package=__name__)\n"
    )
    (folder / "first.py").write_text(f"from {name} import things\n@things('first')\nclass First: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name, folder
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


def load(name):
    __import__(name)
    return sys.modules[name].things


def test_a_class_is_found_by_its_name(shapes):
    assert shapes["square"] is Square
    assert shapes["circle"] is Circle


def test_the_decorator_returns_the_class_itself(shapes):
    assert shapes("another square")(Square) is Square


def test_names_are_sorted_and_iterated(shapes):
    assert shapes.names() == ["circle", "square"]
    assert list(shapes) == ["circle", "square"]
    assert "square" in shapes
    assert "triangle" not in shapes


def test_an_unknown_name_gets_the_nearest_and_the_list(shapes):
    with pytest.raises(
        ConfigError, match=r"no shape is called 'sqare'; did you mean 'square'\? known: circle, square$"
    ):
        shapes["sqare"]


def test_a_name_like_no_other_gets_the_list_alone(shapes):
    with pytest.raises(ConfigError, match=r"no shape is called 'xyz'; known: circle, square$"):
        shapes["xyz"]


def test_an_empty_registry_says_that_it_knows_none():
    with pytest.raises(ConfigError, match="known: none"):
        Registry("shape")["square"]


def test_two_classes_cannot_share_a_name(shapes):
    with pytest.raises(ConfigError, match="two things want to be the shape 'square'"):
        shapes("square")(Circle)
    assert shapes["square"] is Square


def test_the_same_class_may_register_twice(shapes):
    assert shapes("square")(Square) is Square


def test_modules_are_imported_when_a_name_is_asked_for_and_not_before(package):
    name, _ = package
    things = load(name)
    assert f"{name}.first" not in sys.modules
    assert things.names() == ["first"]
    assert f"{name}.first" in sys.modules


def test_a_module_that_fails_to_import_fails_every_time(package):
    name, folder = package
    (folder / "second.py").write_text("import a_module_that_is_not_there\n")
    things = load(name)
    for _ in range(2):  # the registry must not take itself for complete after the first failure
        with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
            things["second"]


def test_threads_that_ask_at_once_all_get_their_answer(package):
    name, folder = package
    (folder / "second.py").write_text(
        f"import time\ntime.sleep(0.2)\nfrom {name} import things\n@things('second')\nclass Second: ...\n"
    )
    things = load(name)
    found = []
    threads = [threading.Thread(target=lambda: found.append(things["second"].__name__)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert found == ["Second"] * 4


def test_a_module_may_ask_for_names_while_it_is_imported(package):
    name, folder = package
    (folder / "zlast.py").write_text(f"from {name} import things\nassert 'first' in things\n")
    assert load(name).names() == ["first"]


def plugin(monkeypatch, *points):
    monkeypatch.setattr(registry_module, "entry_points", lambda group: [p for p in points if p.group == group])


def test_entry_points_are_found(monkeypatch):
    plugin(monkeypatch, EntryPoint("ordered", "collections:OrderedDict", "test.things"))
    things = Registry("thing", entry_points="test.things")
    from collections import OrderedDict

    assert things["ordered"] is OrderedDict
    assert things.names() == ["ordered"]


def test_a_built_in_is_not_replaced_by_an_entry_point(monkeypatch):
    plugin(monkeypatch, EntryPoint("square", "collections:OrderedDict", "test.things"))
    things = Registry("thing", entry_points="test.things")
    things("square")(Square)
    assert things.names() == ["square"]
    assert things["square"] is Square


def test_a_broken_plugin_is_named(monkeypatch):
    plugin(monkeypatch, EntryPoint("broken", "no_such_module:Thing", "test.things"))
    with pytest.raises(ConfigError, match=r"the thing 'broken' of an installed package \(no_such_module:Thing\)"):
        Registry("thing", entry_points="test.things").names()


def test_a_file_is_not_run_because_something_names_it(shapes, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Triangle: ...\n")
    with pytest.raises(ConfigError, match="is code of your own; register it through an entry point"):
        shapes[f"{file}:Triangle"]
    assert not (tmp_path / "ran").exists()
    assert shapes.load("square") is Square


def test_a_file_and_class_can_be_named(shapes, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("class Triangle:\n    sides = 3\n")
    triangle = shapes.load(f"{file}:Triangle")
    assert triangle.sides == 3
    assert shapes.load(f"{file}:Triangle") is triangle  # one class, however often it is named
    assert shapes.names() == ["circle", "square"]  # and it has not become a name of the registry


def test_files_of_the_same_name_are_told_apart(shapes, tmp_path):
    for sides, folder in ((3, tmp_path / "a"), (5, tmp_path / "b")):
        folder.mkdir()
        (folder / "mine.py").write_text(f"class Shape:\n    sides = {sides}\n")
    assert shapes.load(f"{tmp_path}/a/mine.py:Shape").sides == 3
    assert shapes.load(f"{tmp_path}/b/mine.py:Shape").sides == 5


def test_a_dataclass_in_a_users_file_works(shapes, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Point:\n    x: int = 1\n"
    )
    assert shapes.load(f"{file}:Point")().x == 1


def test_a_relative_path_is_found_from_the_working_directory(shapes, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("class Line: ...\n")
    monkeypatch.chdir(tmp_path)
    assert shapes.load("mine.py:Line").__name__ == "Line"


def test_a_file_that_is_not_there_is_named(shapes, tmp_path):
    with pytest.raises(ConfigError, match=f"there is no file {tmp_path}/mine.py"):
        shapes.load(f"{tmp_path}/mine.py:Triangle")


@pytest.mark.parametrize("attribute", ["Triangel", ""])
def test_a_class_that_the_file_lacks_is_named(shapes, tmp_path, attribute):
    file = tmp_path / "mine.py"
    file.write_text("class Triangle: ...\n")
    with pytest.raises(ConfigError, match=f"defines no '{attribute}'"):
        shapes.load(f"{file}:{attribute}")


@pytest.mark.parametrize("content", ["def broken(:\n", "raise RuntimeError('on purpose')\n", "import no_such_module\n"])
def test_a_broken_file_is_an_error_of_the_users(shapes, tmp_path, content):
    file = tmp_path / "mine.py"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"mine\.py cannot be imported: .*Error"):
        shapes.load(f"{file}:Triangle")
    file.write_text("class Triangle: ...\n")  # mended, it works at once
    assert shapes.load(f"{file}:Triangle").__name__ == "Triangle"


def test_a_folder_is_no_file(shapes, tmp_path):
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(ConfigError, match="there is no file"):
        shapes.load(f"{Path(tmp_path, 'folder.py')}:Triangle")
