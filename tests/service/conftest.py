"""A sample of drawn scenes, a hasher that fits it and runs on ONNX, and collections of both."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import uvicorn
from fastapi.testclient import TestClient
from numpy.typing import NDArray

from hyphash.collection import Collection
from hyphash.config import write_toml
from hyphash.datasets import load_dataset, read_rows
from hyphash.datasets.sample import draw
from hyphash.encoder import ONNX_FILE, ORIGIN
from hyphash.hasher import SPEC_FILE, WEIGHTS_FILE, Spec
from hyphash.labels import Calibration
from hyphash.photos import Preprocessing, decode, read_bytes
from hyphash.service import ServedCollection, Settings, create_app
from hyphash.service.server import configured

BITS, SIZE, SCENES, UNTAGGED = 32, 12, 60, 6
SURE = 5.0  # the logit of a label that a scene has, where the network is not wrong
FINGERPRINT = "5e41ce5e41ce5e41"
TOKEN = "a-token-for-tests"


@dataclass(frozen=True)
class Place:
    """Where the drawn sample, the saved hasher and the collection are."""

    sample: Path
    run: Path
    collection: Path
    unopened: Path  # a copy of it. To copy what SQLite has open in this process would take away its locks

    def photo(self, i: int = 0, part: str = "queries") -> Path:
        return self.sample / part / f"{i:05}.jpg"


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Everything, made once; tests that write get a copy of the collection."""
    folder = tmp_path_factory.mktemp("service")
    place = Place(folder / "sample", folder / "run", folder / "collection", folder / "unopened")
    draw(place.sample, train=SCENES, queries=UNTAGGED, size=96, workers=1)
    splits = load_dataset(place.sample, "sample")
    save_hasher(place.run, place.sample, splits.classes, splits.database.labels)
    photos = read_rows(place.sample, "sample").photos
    labels = [[splits.classes[c] for c in row.nonzero()[0]] for row in photos.labels]
    for i in range(SCENES, SCENES + UNTAGGED):
        labels[i] = []
    with Collection.create(place.collection, place.run) as collection:
        assert collection.add(photos, labels=labels).added == SCENES + UNTAGGED
    shutil.copytree(place.collection, place.unopened)
    return place


def save_hasher(folder: Path, sample: Path, classes: tuple[str, ...], labels: NDArray[np.uint8]) -> None:
    """A linear network that sends each scene to the middle of its labels' anchors and has a label layer (ridge)."""
    preprocessing = Preprocessing(size=SIZE, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    files = sorted((sample / "database").glob("*.jpg"))
    pixels = np.stack([preprocessing.pixels(decode(read_bytes(file))) for file in files])
    images = preprocessing.normalise(pixels).reshape(len(files), -1)
    anchors = np.random.default_rng(0).normal(size=(len(classes), BITS)).astype(np.float32)
    wanted = np.hstack([labels @ anchors, SURE * (2.0 * labels - 1)])
    kernel = images @ images.T + 0.1 * np.eye(len(images))
    weights = (images.T @ np.linalg.solve(kernel, wanted)).astype(np.float32)
    folder.mkdir()
    write_network(folder / ONNX_FILE, weights)
    share = labels.mean(axis=0).astype(np.float32)
    save_learned(folder, anchors=anchors, **Calibration(np.full_like(share, 0.5), share).arrays())
    spec = Spec(backbone="linear", bits=BITS, classes=classes, preprocessing=preprocessing, fingerprint=FINGERPRINT)
    write_toml(folder / SPEC_FILE, spec)


def save_learned(folder: Path, **arrays: NDArray[Any]) -> None:
    from safetensors.numpy import save_file

    save_file(arrays, folder / WEIGHTS_FILE, {"format": "hyphash", "fingerprint": FINGERPRINT})


def write_network(path: Path, weights: NDArray[np.float32]) -> None:
    from onnx import TensorProto, helper, numpy_helper, save_model

    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["photos", 3, SIZE, SIZE])
    outputs = helper.make_tensor_value_info("outputs", TensorProto.FLOAT, ["photos", weights.shape[1]])
    nodes = [
        helper.make_node("Flatten", ["images"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["outputs"]),
    ]
    graph = helper.make_graph(nodes, "linear", [images], [outputs], [numpy_helper.from_array(weights, "weights")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    helper.set_model_props(model, {ORIGIN: FINGERPRINT})
    save_model(model, path)


@pytest.fixture(scope="session")
def token() -> str:
    return TOKEN


@pytest.fixture(scope="session")
def reader(made: Place) -> Iterator[TestClient]:
    """A client of a read-only service."""
    app = create_app(ServedCollection.open(made.collection, Settings()))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def own(made: Place, tmp_path: Path) -> Path:
    """A copy of the collection for a test that changes it."""
    return Path(shutil.copytree(made.unopened, tmp_path / "collection"))


@pytest.fixture
def writer(own: Path) -> Iterator[TestClient]:
    """A client that has the token."""
    app = create_app(ServedCollection.open(own, Settings(token=TOKEN)))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with TestClient(app, base_url="http://localhost", headers=headers, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="session")
def refused(made: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client that has the token, for tests whose changes must all be refused."""
    own = shutil.copytree(made.unopened, tmp_path_factory.mktemp("refused") / "collection")
    app = create_app(ServedCollection.open(own, Settings(token=TOKEN)))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with TestClient(app, base_url="http://localhost", headers=headers, raise_server_exceptions=False) as client:
        before = client.get("/api/collection").json()
        yield client
        assert client.get("/api/collection").json() == before


@contextmanager
def running(served: ServedCollection) -> Iterator[str]:
    """A real server in a thread, for browsers and for requests that a test client cannot make; its address."""
    config = configured(served)
    config.port, config.timeout_graceful_shutdown = 0, 5
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)


@pytest.fixture(scope="session")
def address_of() -> Callable[[ServedCollection], AbstractContextManager[str]]:
    return running


@pytest.fixture(scope="session")
def site(made: Place) -> Iterator[str]:
    """The address of a read-only service."""
    with running(ServedCollection.open(made.collection, Settings())) as address:
        yield address


@pytest.fixture
def own_site(own: Path) -> Iterator[str]:
    """The address of a service whose collection may be changed with TOKEN."""
    with running(ServedCollection.open(own, Settings(token=TOKEN))) as address:
        yield address


@pytest.fixture(scope="session")
def get() -> Callable[..., Any]:
    """get(client, path, …) is what an address answers, which must go well."""

    def ask(client: TestClient, path: str, **params: Any) -> Any:
        answer = client.get(path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask
