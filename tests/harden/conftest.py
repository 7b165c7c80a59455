"""The tiny hashers of the tests of collections and of encoding."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from modules import loaded


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    return loaded("collection/tiny.py")


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Path]:
    """Writes a run whose network is ONNX."""
    function: Callable[..., Path] = loaded("encoding/conftest.py")._run
    return function
