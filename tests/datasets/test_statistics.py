"""The figures of a dataset against their definitions, and against the paper's table."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

import hyphash.datasets.statistics as module
from hyphash.datasets import Split, Splits, load_dataset
from hyphash.datasets.statistics import cooccurrence, eta, statistics, unreadable
from hyphash.photos import PhotoFiles

tables = st.integers(1, 25).flatmap(
    lambda n: st.integers(1, 6).flatmap(lambda c: arrays(np.uint8, (n, c), elements=st.integers(0, 1)))
)


@given(labels=tables, chunk=st.sampled_from([1, 3, 1024]))
def test_eta_matches_its_definition(labels, chunk):
    pairs = 0
    for a in labels:
        for b in labels:  # ordered pairs, a photo with itself included in M²
            pairs += a.sum() > 1 and b.sum() > 1 and not (a & b).any()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", chunk)
        assert eta(labels) == pytest.approx(pairs / len(labels) ** 2, abs=1e-12)


@given(labels=tables)
def test_cooccurrence_matches_its_definition(labels):
    classes = range(labels.shape[1])
    naive = [[sum(int(row[i] and row[j]) for row in labels) for j in classes] for i in classes]
    assert cooccurrence(labels).tolist() == naive


def test_eta_of_many_photos_needs_no_table_of_pairs():
    labels = np.zeros((200_000, 64), np.uint8)  # M² would be 40 billion pairs
    labels[::2, :2] = 1
    labels[1::2, 2:4] = 1
    assert eta(labels) == 0.5
    assert cooccurrence(labels)[0, 1] == 100_000


def dataset(root):
    """Six photos: train = database = 0, 1, 2, 4; queries 3 and 5, one of them unreadable."""
    for i in range(6):
        Image.new("RGB", (40, 40), (i * 40, 0, 0)).save(root / f"{i}.png")
    (root / "5.png").write_bytes((root / "4.png").read_bytes()[:60])
    labels = np.array([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]], np.uint8)
    photos = PhotoFiles(tuple(f"{i}.png" for i in range(6)), root)
    rest, queries = np.array([0, 1, 2, 4]), np.array([3, 5])
    train = Split(photos, rest, labels[rest])
    return Splits(
        "x",
        ("a", "b", "c", "d"),
        train,
        Split(photos, queries, labels[queries]),
        train,
        notes=("n",),
        unlabelled=("u",),
    )


def test_photos_in_two_parts_count_once(tmp_path):
    figures = statistics(dataset(tmp_path))
    assert figures.parts == {"train": 4, "queries": 2, "database": 4}
    assert figures.photos == 6
    assert figures.frequencies.tolist() == [3, 3, 2, 2]
    assert figures.cooccurrence[0].tolist() == [3, 2, 1, 0]
    assert figures.labels_per_photo.tolist() == [0, 3, 2, 1]
    assert figures.mean_labels == pytest.approx(10 / 6)
    assert figures.eta == 2 / 16
    assert (figures.unlabelled, figures.notes, figures.unreadable) == (("u",), ("n",), None)


def test_unreadable_photos_are_found_with_their_reasons(tmp_path):
    calls = []
    figures = statistics(dataset(tmp_path), check=True, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(i, 6) for i in range(1, 7)]
    (bad,) = figures.unreadable
    assert bad.name == "5.png"
    assert bad.reason.startswith("5.png: damaged or cut off")
    assert json.loads(json.dumps(figures.record()))["unreadable"] == {"5.png": bad.reason}


def test_the_record_is_plain_json(tmp_path):
    record = json.loads(json.dumps(statistics(dataset(tmp_path)).record()))
    assert record["parts"] == {"train": 4, "queries": 2, "database": 4}
    assert record["frequencies"] == {"a": 3, "b": 3, "c": 2, "d": 2}
    assert record["labels_per_photo"] == {"1": 3, "2": 2, "3": 1}
    assert record["unreadable"] is None
    assert record["unlabelled"] == ["u"]


def test_photos_without_labels_are_named_once(tmp_path):
    splits = dataset(tmp_path)
    part = splits.train
    figures = statistics(replace(splits, queries=part, database=part))
    assert figures.parts == {"train": 4, "queries": 4, "database": 4}
    assert (figures.photos, figures.eta) == (4, 2 / 16)
    bare = Split(part.photos, part.rows, np.zeros((4, 2), np.uint8))
    unlabelled = statistics(replace(splits, train=bare, queries=bare, database=bare)).unlabelled
    assert unlabelled[len(splits.unlabelled) :] == ("0.png", "1.png", "2.png", "4.png")


def test_checking_goes_in_order_and_may_stop_early(tmp_path):
    (tmp_path / "empty.jpg").touch()
    names = ("0.png", "empty.jpg", "gone.jpg")
    dataset(tmp_path)
    split = Split(PhotoFiles(names, tmp_path), np.arange(3), np.ones((3, 2), np.uint8))
    seen = []
    first, second = unreadable([split], lambda done, total: seen.append((done, total)))
    assert first.name == "empty.jpg"
    assert "empty file" in first.reason
    assert "no such photo" in second.reason
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_the_papers_table_for_flickr25k(shared_data):
    figures = statistics(load_dataset(shared_data / "flickr25k"))
    assert figures.photos == 24_581
    assert figures.parts == {"train": 4_000, "queries": 1_000, "database": 19_581}
    assert len(figures.classes) == 38
    assert round(figures.eta, 3) == 0.286
    assert len(figures.unlabelled) == 419
    assert figures.labels_per_photo.sum() == 24_581


def test_the_papers_eta_for_nuswide(shared_data):
    figures = statistics(load_dataset(shared_data / "nuswide"))
    assert figures.parts["train"] == 10_500
    assert figures.parts["queries"] == 2_100
    assert len(figures.classes) == 21
    assert round(figures.eta, 3) == 0.242
