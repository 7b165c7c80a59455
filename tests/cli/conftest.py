"""A small journey through the commands that several test files look at."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hyphash import encoder
from hyphash.cli import main


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Call the command line in this process: `run("search", folder, …)` → exit code, output, errors."""

    def call(*args: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["hyphash", *map(str, args)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        return Ran(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from hyphash.datasets.sample import draw

    folder = tmp_path_factory.mktemp("cli") / "sample"
    draw(folder, train=60, queries=12, size=64, workers=1)
    return folder


@pytest.fixture(scope="session")
def trained(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder: few photos, few steps, a small untrained backbone."""
    from hyphash import train

    folder = tmp_path_factory.mktemp("runs") / "run"
    cache = tmp_path_factory.mktemp("cache")
    train(
        sample, into=folder, cache=cache, bits=12, backbone="timm:test_resnet", weights="none", size=32, hidden=16,
        epochs=3, device="cpu", mode="frozen",
    )  # fmt: skip
    return folder


@pytest.fixture(scope="session")
def indexed(sample: Path, trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of the sample's database."""
    from hyphash import Collection, load_dataset

    folder = tmp_path_factory.mktemp("collections") / "collection"
    splits = load_dataset(sample)
    names = [[splits.classes[c] for c in row.nonzero()[0]] for row in splits.database.labels]
    with Collection.into(folder, trained) as collection:
        collection.add(splits.database, labels=names)
    return folder


WRITTEN: dict[tuple[str, str], bytes] = {}


@pytest.fixture
def export_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch writes a network as ONNX once, which takes seconds; exports after that get a copy, compared as ever."""
    write_onnx = encoder.write_onnx

    def write(network: Any, path: Path, *, fingerprint: str, **facts: Any) -> None:
        if (fingerprint, path.name) in WRITTEN:
            path.write_bytes(WRITTEN[fingerprint, path.name])
        else:
            write_onnx(network, path, fingerprint=fingerprint, **facts)
            WRITTEN[fingerprint, path.name] = path.read_bytes()

    monkeypatch.setattr(encoder, "write_onnx", write)
