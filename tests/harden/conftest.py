"""The tiny hashers of the tests of collections and of encoding."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


def _loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(name).stem, Path(__file__).parents[1] / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    return _loaded("collection/tiny.py")


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Path]:
    """Writes a run whose network is ONNX."""
    function: Callable[..., Path] = _loaded("encoding/conftest.py")._run
    return function
