"""Fixtures that many test files share."""

import importlib
import io
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import programs
import psutil
import pytest
from hypothesis import HealthCheck, settings
from PIL import Image

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: nets are tiny, processes many; threads would only wait

# How long an example takes says something about the machine, not about the code.
settings.register_profile("hyphash", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("hyphash"), max_examples=25)  # `make check`
settings.load_profile("hyphash")

# ── which tests need what ────────────────────────────────────────────────────────────────────────────────

MARKS = {"servers": "server", "cluster": "cluster", "browser": "browser"}  # fixture → marker
MARKS |= {"world": "slow", "worked": "slow"}  # several processes that train together
# What takes long, so that processes end together.
FIRST = "milvus", "cluster", "postgres", "browser", "slow", "tests/training/test_training.py"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the fixtures that they use, and sort them into groups, each of which one process runs.

    A group is a file, or the tests of a server that all share.
    """
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        shared = [name for name in ("milvus", "postgres") if f"{name}_server" in fixtures or name in _named_by(item)]
        for fixture in MARKS.keys() & (fixtures | {"servers"} if shared else fixtures):
            item.add_marker(MARKS[fixture])
        group = shared[0] if shared else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
        groups.setdefault(group, []).append(item)
    items[:] = [item for group in sorted(groups, key=lambda name: _rank(name, groups[name])) for item in groups[group]]


def pytest_collection_finish(session: pytest.Session) -> None:
    """xdist writes groups into the names of tests; where a pytest does not let it, files fall apart without a word."""
    if getattr(session.config.option, "loadgroup", False):
        assert all("@" in item.nodeid for item in session.items), "this pytest-xdist forgets groups: see pyproject.toml"


def _rank(group: str, items: list[pytest.Item]) -> int:
    marks = {group} | {mark.name for item in items for mark in item.iter_markers()}
    return next((rank for rank, name in enumerate(FIRST) if name in marks), len(FIRST))


def _named_by(item: pytest.Item) -> str:
    """The parameters that a test is called with, addresses aside: a fixture may choose its server by one of them."""
    call = getattr(item, "callspec", None)
    words = map(str, call.params.values()) if call else ()
    return " ".join(word for word in words if "://" not in word)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for package in (package for mark in item.iter_markers("needs") for package in mark.args):
        if not programs.program(package):
            pytest.skip(f"needs {package}, which is not installed here")


SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the real Flickr-25k pack, NUS-WIDE lists and trained outputs; tests skip without it."""
    folder = Path(os.environ.get("HYPHASH_TEST_DATA", SHARED / "data"))
    if not (folder / "flickr25k").is_dir():
        pytest.skip(f"real data not found in {folder}; set HYPHASH_TEST_DATA to run this test")
    return folder


@pytest.fixture(scope="session")
def shared_weights() -> Path:
    """The folder with real ImageNet weights; tests skip without it."""
    folder = Path(os.environ.get("HYPHASH_TEST_WEIGHTS", SHARED / "weights"))
    if not (folder / "alexnet_conv.pth").is_file():
        pytest.skip(f"real weights not found in {folder}; set HYPHASH_TEST_WEIGHTS to run this test")
    return folder


# ── real servers, started when the first test asks for one ───────────────────────────────────────────────


@pytest.fixture(scope="session")
def servers(pytestconfig: pytest.Config) -> ModuleType:
    assert "server" not in pytestconfig.option.markexpr.partition("not")[2], "this test lacks the marker `server`"
    return importlib.import_module("servers")  # of tests/setup, which pytest has on its path


@pytest.fixture(scope="session")
def postgres_server(servers: ModuleType) -> Iterator[Any]:
    server = servers.PostgresServer()
    yield server
    server.stop()


RUNNING: list[Any] = []


@pytest.fixture(scope="session")
def milvus_server(servers: ModuleType) -> Iterator[Any]:
    RUNNING.append(servers.MilvusServer())
    yield RUNNING[0]
    _stop_milvus()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Stop Milvus with the last test of its group: it keeps a third of a core busy when nobody asks it anything."""
    yield
    if nextitem is None or _group(nextitem) != _group(item):
        _stop_milvus()


def _group(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    return str(mark.args[0]) if mark else ""


def _stop_milvus() -> None:
    while RUNNING:
        RUNNING.pop().stop()


def _worker_processes() -> "set[psutil.Process]":
    found = set()
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if any("hyphash.workers" in word for word in child.cmdline()):
                found.add(child)
    return found


@pytest.fixture
def worker_processes() -> "Callable[[], set[psutil.Process]]":
    """worker_processes() are the workers that this process has now, and had not when the test began."""
    others = _worker_processes()
    return lambda: _worker_processes() - others


def _photo(seed: int, *, size: int = 40, colour: tuple[int, int, int] = (0, 0, 0), kind: str = "PNG") -> bytes:
    """A small photo: noise, the same for the same seed, around a colour."""
    noise = np.random.default_rng(seed).integers(0, 120, (size, size, 3))
    file = io.BytesIO()
    Image.fromarray((noise + colour).astype(np.uint8)).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="session")
def photo() -> Callable[..., bytes]:
    """photo(seed, size=, colour=, kind=) gives the bytes of a small photo."""
    return _photo


@pytest.fixture
def photo_files(tmp_path: Path) -> Callable[..., list[Path]]:
    """photo_files(n) writes n different photos and returns their paths."""

    def write(count: int, folder: str = "photos") -> list[Path]:
        (tmp_path / folder).mkdir(exist_ok=True)
        paths = [tmp_path / folder / f"{i:03}.png" for i in range(count)]
        for i, path in enumerate(paths):
            path.write_bytes(_photo(i))
        return paths

    return write


@pytest.fixture
def tiny_hasher() -> Callable[..., Any]:
    """tiny_hasher(...) makes an untrained hasher over timm's smallest network at 32 pixels."""

    def make(*, seed: int = 0, anchors: bool = True, **settings: Any) -> Any:
        import torch

        from hyphash.hasher import Hasher

        torch.manual_seed(seed)
        defaults = {"classes": ("cat", "dog", "sea"), "bits": 12, "backbone": "timm:test_resnet", "size": 32}
        hasher, _ = Hasher.create(weights="none", device="cpu", **(defaults | settings))
        if anchors:
            shape = (len(hasher.classes), hasher.bits)
            hasher.anchors = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        return hasher

    return make
