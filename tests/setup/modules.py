"""Modules of tests that are no package, for the tests of other folders."""

import importlib.util
from pathlib import Path
from types import ModuleType


def loaded(name: str) -> ModuleType:
    """The file of this name below tests/, such as "collection/tiny.py"."""
    path = Path(__file__).parents[1] / name
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
