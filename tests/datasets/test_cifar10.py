"""CIFAR-10's binary version, on drawn files of a few photos."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from hyphash.datasets import cifar10, load_dataset
from hyphash.errors import DataError


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Six batches of forty photos, four a class: queries are two of each class, and ten are trained on."""
    monkeypatch.setattr(cifar10, "QUERIES", 2)
    monkeypatch.setattr(cifar10, "TRAIN", 10)
    folder, random = tmp_path / "cifar-10-batches-bin", np.random.default_rng(0)
    folder.mkdir()
    for name in cifar10.FILES:
        records = random.integers(0, 256, (40, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(40) % 10
        records.tofile(folder / name)
    return tmp_path


def test_the_small_split_has_so_many_of_each_class(root):
    splits = load_dataset(root)  # what it is is seen from its files
    assert splits.name == "cifar10"
    assert splits.queries.labels.sum(0).tolist() == [2] * 10
    assert splits.train.labels.sum(0).tolist() == [10] * 10
    assert len(splits.database) == 240 - 20
    assert set(splits.train.rows) < set(splits.database.rows)
    assert not set(splits.queries.rows) & set(splits.database.rows)
    other = load_dataset(root, seed=1)
    assert set(other.queries.rows) != set(splits.queries.rows)


def test_the_whole_split_takes_the_test_photos_as_queries(root):
    splits = load_dataset(root / "cifar-10-batches-bin", split="whole")
    assert splits.queries.rows.tolist() == list(range(200, 240))
    assert splits.train.rows.tolist() == splits.database.rows.tolist() == list(range(200))
    record = np.fromfile(root / "cifar-10-batches-bin" / "test_batch.bin", np.uint8).reshape(-1, 3073)[3]
    photo = np.asarray(Image.open(BytesIO(splits.queries.read(3))))
    assert (photo == record[1:].reshape(3, 32, 32).transpose(1, 2, 0)).all()
    assert splits.queries.labels[3].argmax() == record[0] == 3
    assert splits.classes[3] == "cat"


def test_what_cannot_be_read_says_why(root, tmp_path):
    folder = root / "cifar-10-batches-bin"
    with pytest.raises(DataError, match="splits small and whole, not 'half'"):
        load_dataset(root, split="half")
    (folder / "data_batch_2.bin").write_bytes(b"short")
    with pytest.raises(DataError, match=r"data_batch_2.bin: is not a batch"):
        load_dataset(root)
    (folder / "data_batch_2.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_2.bin is not here; get the binary version"):
        load_dataset(root)
    pickled = tmp_path / "other" / "cifar-10-batches-py"
    pickled.mkdir(parents=True)
    (pickled / "data_batch_1").write_bytes(b"\x80\x02}")
    with pytest.raises(DataError, match=r"data_batch_1 is the pickled version, .* cifar-10-binary.tar.gz"):
        load_dataset(tmp_path / "other")
