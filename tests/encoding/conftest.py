"""A run whose network is a hand-made ONNX file, so that workers start without torch, and a folder of small photos."""

import hashlib
import io
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hyphash.config import write_toml
from hyphash.encoder import ONNX_FILE, ORIGIN
from hyphash.encoding.locations import PhotoRef
from hyphash.encoding.partitions import cut
from hyphash.hasher import SPEC_FILE, WEIGHTS_FILE, Spec
from hyphash.labels import Calibration
from hyphash.photos import Preprocessing

SIZE = 16


def _run(folder: Path, seed: int, bits: int = 20) -> Path:
    """outputs and logits of three labels = (colours averaged over 4 × 4 cells) · a random matrix"""
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    from safetensors.numpy import save_file

    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(48, bits + 3)).astype(np.float32)
    fingerprint = hashlib.sha256(matrix.tobytes()).hexdigest()[:16]
    nodes = [
        helper.make_node("AveragePool", ["images"], ["cells"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("Flatten", ["cells"], ["flat"]),
        helper.make_node("MatMul", ["flat", "matrix"], ["outputs"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("outputs", TensorProto.FLOAT, ["n", bits + 3])],
        [numpy_helper.from_array(matrix, "matrix")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {ORIGIN: fingerprint})
    folder.mkdir()
    onnx.save(model, folder / ONNX_FILE)
    classes = ("cat", "dog", "sea")
    anchors = rng.normal(size=(3, bits)).astype(np.float32)
    learned = {"anchors": anchors, **Calibration(*np.full((2, 3), 0.5, np.float32)).arrays()}
    save_file(learned, folder / WEIGHTS_FILE, {"format": "hyphash", "fingerprint": fingerprint})
    half = (0.5, 0.5, 0.5)
    write_toml(
        folder / SPEC_FILE,
        Spec(
            backbone="tiny", bits=bits, classes=classes, fingerprint=fingerprint,
            preprocessing=Preprocessing(size=SIZE, mean=half, std=half),
        ),
    )  # fmt: skip
    return folder


@pytest.fixture(scope="session")
def hasher_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _run(tmp_path_factory.mktemp("runs") / "run", seed=0)


@pytest.fixture(scope="session")
def other_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _run(tmp_path_factory.mktemp("runs") / "other", seed=1)


@pytest.fixture
def broken_run(hasher_run: Path, tmp_path: Path) -> Path:
    """A run whose network no worker can load."""
    broken = shutil.copytree(hasher_run, tmp_path / "broken")
    (broken / "network.onnx").write_bytes(b"damaged")
    return broken


def _picture(seed: int) -> bytes:
    colours = np.random.default_rng(seed).integers(0, 256, (4, 4, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(colours.repeat(8, axis=0).repeat(12, axis=1)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="session")
def picture() -> Callable[[int], bytes]:
    """picture(seed) gives the bytes of a photo of 48 × 32 pixels."""
    return _picture


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twenty photos in two folders."""
    for i in range(20):
        path = tmp_path / "photos" / ("a" if i < 10 else "b") / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_picture(i))
    return tmp_path / "photos"


@pytest.fixture(scope="session")
def rows_in() -> Callable[[Path], list[dict[str, Any]]]:
    """All rows of all shards in a folder, shard by shard."""

    def read(folder: Path) -> list[dict[str, Any]]:
        import pyarrow.parquet

        return [
            row
            for path in sorted(folder.glob("shard-*.parquet"))
            for row in pyarrow.parquet.read_table(path, partitioning=None).to_pylist()
        ]

    return read


GATE = '''
import os, sys

def wait(event, arguments):
    """Whoever opens a photo with a gate beside it waits until the test lets it through."""
    if event == "open" and isinstance(arguments[0], (str, os.PathLike)) and str(arguments[0]).endswith(".png"):
        gate = os.path.splitext(arguments[0])[0] + ".gate"
        if os.path.exists(gate):
            with open(gate, "rb") as held:
                held.read()

sys.addaudithook(wait)
'''


@pytest.fixture(scope="session", autouse=True)
def _gates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes that tests start, and those that these start, look for gates."""
    folder = tmp_path_factory.mktemp("gates")
    (folder / "sitecustomize.py").write_text(GATE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.syspath_prepend(folder)  # our own workers get this
        yield


def _gate(photo: Path) -> Path:
    """A named pipe: whoever opens the photo waits as long as somebody holds the other end. Unlinked, it is open."""
    gate = photo.with_suffix(".gate")
    os.mkfifo(gate)
    return gate


@pytest.fixture
def gate_of() -> Callable[[Path], Path]:
    return _gate


def _holder_of(pipe: Path, seconds: float = 150) -> tuple[int, int]:
    """Wait until a process reads the named pipe: its id, and our end, which makes it wait until that is closed."""
    stop, ours = monotonic() + seconds, -1
    while monotonic() < stop:
        try:
            ours = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK) if ours < 0 else ours
        except OSError:  # nobody reads it yet
            sleep(0.02)
            continue
        for held in Path("/proc").glob("[0-9]*/fd/*"):  # not at once: it is still on its way out of `open`
            number = int(held.parts[2])
            try:
                if number != os.getpid() and held.readlink() == pipe:
                    return number, ours
            except OSError:  # gone, or another user's
                continue
        sleep(0.02)
    raise AssertionError(f"nobody reads {pipe}")


@pytest.fixture
def holder_of() -> Callable[[Path], tuple[int, int]]:
    return _holder_of


@pytest.fixture
def kill_the_reader() -> Callable[..., AbstractContextManager[None]]:
    """kill_the_reader(photo, data): whoever reads the photo waits, is killed, and the next reader finds it there.

    With times=4 it is the fifth one who finds it.
    """

    @contextmanager
    def killing(photo: Path, data: bytes, times: int = 1) -> Iterator[None]:
        photo.write_bytes(data)
        gate = _gate(photo)
        killed: list[int] = []

        def kill() -> None:
            try:
                while len(killed) < times:
                    reader, pipe = _holder_of(gate)
                    if len(killed) == times - 1:
                        gate.unlink()
                    os.kill(reader, signal.SIGKILL)
                    os.close(pipe)
                    killed.append(reader)
                    while Path(f"/proc/{reader}").exists():
                        sleep(0.02)
            finally:
                gate.unlink(missing_ok=True)  # where nobody came: whoever comes yet shall not wait for ever

        thread = Thread(target=kill)
        thread.start()
        yield
        thread.join()
        assert len(killed) == times

    return killing


@pytest.fixture
def driver() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """driver("encode", …) starts the command line in a process of its own."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "hyphash", *map(str, args)]
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def photos_of() -> Callable[..., list[PhotoRef]]:
    """photos_of(source): the photos of all its partitions, as they come out in another process."""

    def photos(source: object, **options: Any) -> list[PhotoRef]:
        partitions = pickle.loads(pickle.dumps(cut(str(source), **options)))
        return [photo for partition in partitions for photo in partition.photos()]

    return photos


@pytest.fixture(scope="session")
def names(photos_of: Callable[..., list[PhotoRef]]) -> Callable[..., list[str]]:
    return lambda source, **options: [photo.name for photo in photos_of(source, **options)]


@pytest.fixture(scope="session")
def write_tar() -> Callable[..., Path]:
    """write_tar(path, [(name, data), …])"""

    def write(path: Path, members: list[tuple[str, bytes]], mode: Any = "w") -> Path:
        with tarfile.open(path, mode) as tar:
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return path

    return write


@pytest.fixture
def memory(picture: Callable[[int], bytes]) -> Iterator[Any]:
    """A file system of fsspec's that is none of this machine: memory://bucket/photos has three photos."""
    import fsspec

    system = fsspec.filesystem("memory")
    for i in range(3):
        system.pipe_file(f"/bucket/photos/{i}.png", picture(i))
    system.pipe_file("/bucket/photos/.hidden.png", b"x")
    yield system
    system.rm("/bucket", recursive=True)
