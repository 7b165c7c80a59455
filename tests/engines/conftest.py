"""Real servers, started when the first test asks for one."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="session")
def servers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("servers", Path(__file__).with_name("servers.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def postgres_server(servers: ModuleType) -> Iterator[Any]:
    server = servers.PostgresServer()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def milvus_server(servers: ModuleType) -> Iterator[Any]:
    server = servers.MilvusServer()
    yield server
    server.stop()
