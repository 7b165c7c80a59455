"""NUS-WIDE: lists of a published split, and the official layout with a drawn one."""

import gzip

import numpy as np
import pytest

from hyphash.datasets import load_dataset
from hyphash.datasets.nuswide import FREQUENT, draw_parts
from hyphash.errors import ConfigError, DataError


def write_list(path, rows):
    text = "".join(f"{name} {' '.join(map(str, values))}\n" for name, values in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)


def photos(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())


def names(part):
    return [part.name(i) for i in range(len(part))]


TRAIN = [("images/1_1.jpg", [1, 0, 0]), ("images/2_2.jpg", [0, 1, 1])]
TEST = [("images/3_3.jpg", [0, 1, 0])]
DATABASE = [("images/4_4.jpg", [0, 0, 1]), ("images/5_5.jpg", [1, 0, 1]), ("images/2_2.jpg", [0, 1, 1])]


@pytest.mark.parametrize("ending", ["txt", "txt.gz"])
def test_lists_bring_their_own_split(tmp_path, ending):
    photos(tmp_path, *(name for name, _ in TRAIN + TEST + DATABASE))
    for part, rows in (("train", TRAIN), ("test", TEST), ("database", DATABASE)):
        write_list(tmp_path / f"{part}.{ending}", rows)
    (tmp_path / "classes.txt").write_text("sky\nsea\ndog\n")
    splits = load_dataset(tmp_path)
    assert splits.name == "nuswide"
    assert splits.classes == ("sky", "sea", "dog")
    assert names(splits.train) == ["images/1_1.jpg", "images/2_2.jpg"]
    assert names(splits.queries) == ["images/3_3.jpg"]
    assert sorted(names(splits.database)) == ["images/2_2.jpg", "images/4_4.jpg", "images/5_5.jpg"]
    assert splits.train.labels.tolist() == [[1, 0, 0], [0, 1, 1]]
    assert splits.queries.read(0) == b"images/3_3.jpg"
    assert splits.notes == ()


def test_photos_are_found_in_the_official_folders_too(tmp_path):
    write_list(tmp_path / "train.txt", TRAIN)
    write_list(tmp_path / "test.txt", TEST)
    photos(tmp_path, "Flickr/actor/1_1.jpg", "Flickr/airplane/2_2.jpg", "Flickr/actor/3_3.jpg")
    splits = load_dataset(tmp_path)
    assert splits.queries.read(0) == b"Flickr/actor/3_3.jpg"
    assert splits.database.rows.tolist() == splits.train.rows.tolist()
    assert "no database.txt: the training photos stand in for the database" in splits.notes
    assert splits.classes == ("label 1", "label 2", "label 3")


def test_lists_without_photos_still_have_labels(tmp_path):
    write_list(tmp_path / "train.txt", TRAIN)
    write_list(tmp_path / "test.txt", TEST)
    splits = load_dataset(tmp_path)
    assert len(splits.train) == 2
    assert f"labels only: none of the photos is in {tmp_path}" in splits.notes
    photos(tmp_path, "images/1_1.jpg")
    with pytest.raises(DataError, match=r"2 photos listed but not there: 'images/2_2\.jpg', 'images/3_3\.jpg'"):
        load_dataset(tmp_path)
    photos(tmp_path, "images/3_3.jpg")
    assert names(load_dataset(tmp_path, skip_missing=True).train) == ["images/1_1.jpg"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([("a.jpg", [1, 0, 0]), ("b.jpg", [1, 0])], r"train.txt:2: not a photo followed by a 0 or 1"),
        ([("a.jpg", [1, 2, 0])], r"train.txt:1: not a photo followed by"),
        ([("a.jpg", [])], r"train.txt:1: not a photo followed by"),
        ([], r"train.txt: an empty list"),
        ([("a.jpg", [1, 0])], r"the lists differ in their number of labels"),
        ([("images/3_3.jpg", [0, 1, 0])], r"1 photo in the queries and in another part as well"),
        ([("images/3_3.jpg", [1, 1, 0])], r"test.txt:1: photo 'images/3_3.jpg' has other labels"),
    ],
)
def test_what_is_wrong_in_a_list_is_said_with_its_line(tmp_path, rows, words):
    write_list(tmp_path / "train.txt", rows)
    write_list(tmp_path / "test.txt", TEST)
    with pytest.raises(DataError, match=words):
        load_dataset(tmp_path)


def test_damaged_lists_and_class_names_are_refused(tmp_path):
    write_list(tmp_path / "train.txt", TRAIN)
    (tmp_path / "test.txt.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"test.txt.gz: cannot be read"):
        load_dataset(tmp_path)
    write_list(tmp_path / "test.txt.gz", TEST)
    (tmp_path / "classes.txt").write_text("sky\nsea\n")
    with pytest.raises(DataError, match=r"classes.txt: 2 names for 3 labels"):
        load_dataset(tmp_path)


# ── the official layout ──────────────────────────────────────────────────────────────────────────────────


def write_official(root, n=240, concepts=("lake", "sky", "rare", "dog")):
    rng = np.random.default_rng(0)
    table = rng.random((n, len(concepts))) < [0.3, 0.6, 0.01, 0.2][: len(concepts)]
    for j, concept in enumerate(concepts):
        file = root / "Groundtruth" / "AllLabels" / f"Labels_{concept}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{int(value)}\r\n" for value in table[:, j]))
    listed = [f"actor\\{i:04}_{i}.jpg" for i in range(n)]
    (root / "ImageList").mkdir()
    (root / "ImageList" / "Imagelist.txt").write_text("\r\n".join(listed) + "\r\n")
    photos(root, *(f"Flickr/{name}".replace("\\", "/") for name in listed))
    return table


def test_the_official_layout_takes_the_most_frequent_labels(tmp_path):
    table = write_official(tmp_path)
    splits = load_dataset(tmp_path, labels=3, queries_per_label=4, train_per_label=10)
    assert splits.classes == ("sky", "lake", "dog")
    labelled = table[:, [1, 0, 3]].any(axis=1)
    assert [len(splits.queries), len(splits.train)] == [12, 30]
    assert len(splits.database) == labelled.sum() - 42
    assert len(splits.unlabelled) == (~labelled).sum()
    assert not set(names(splits.train)) & set(names(splits.database))
    assert not set(names(splits.queries)) & set(names(splits.database))
    for part in (splits.train, splits.queries, splits.database):
        for i in range(len(part)):
            row = int(part.name(i).rsplit("_", 1)[1].removesuffix(".jpg"))
            assert part.labels[i].tolist() == table[row, [1, 0, 3]].tolist()
            assert part.read(i).decode() == f"Flickr/actor/{row:04}_{row}.jpg"
    again = load_dataset(tmp_path, labels=3, queries_per_label=4, train_per_label=10)
    other = load_dataset(tmp_path, labels=3, queries_per_label=4, train_per_label=10, seed=1)
    assert names(again.queries) == names(splits.queries) != names(other.queries)
    assert any("split drawn with seed 0" in note for note in splits.notes)


def test_the_halves_of_the_official_layout_make_the_whole(tmp_path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    table = write_official(whole)
    (halves / "ImageList").mkdir(parents=True)
    (halves / "Groundtruth" / "TrainTestLabels").mkdir(parents=True)
    listed = (whole / "ImageList" / "Imagelist.txt").read_text().split()
    for half, rows in (("Train", slice(0, 100)), ("Test", slice(100, None))):
        (halves / "ImageList" / f"{half}Imagelist.txt").write_text("\n".join(listed[rows]))
        for j, concept in enumerate(("lake", "sky", "rare", "dog")):
            file = halves / "Groundtruth" / "TrainTestLabels" / f"Labels_{concept}_{half}.txt"
            file.write_text("\n".join(str(int(value)) for value in table[rows, j]))
    options = {"labels": 3, "queries_per_label": 4, "train_per_label": 10}
    one, two = load_dataset(whole, **options), load_dataset(halves, **options)
    assert np.array_equal(one.train.labels, two.train.labels)
    assert [name.removeprefix("Flickr/") for name in names(one.train)] == names(two.train)


def test_each_label_draws_its_number_of_photos():
    table = (np.random.default_rng(3).random((500, 5)) < 0.4).astype(np.uint8)
    parts = draw_parts(table, "abcde", queries=7, train=20, seed=0)
    assert [len(part) for part in parts[:3]] == [100, 35, 365]
    assert sorted(np.concatenate(parts[:3])) == list(range(500))
    assert (table[parts.queries].sum(axis=0) >= 7).all()
    assert (table[parts.train].sum(axis=0) >= 20).all()
    with pytest.raises(DataError, match="photos left with the label 'a', fewer than 400"):
        draw_parts(table, "abcde", queries=400, train=1, seed=0)


def test_damage_and_wrong_options_say_the_way_out(tmp_path):
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match=r"NUS-WIDE page.*Groundtruth/AllLabels.*train.txt"):
            load_dataset(place, name="nuswide")
    write_official(tmp_path)
    with pytest.raises(ConfigError, match="labels go from 2 to 81"):
        load_dataset(tmp_path, labels=1)
    with pytest.raises(DataError, match="label files of 4 concepts, 21 are needed"):
        load_dataset(tmp_path)
    labels = tmp_path / "Groundtruth" / "AllLabels"
    (labels / "Labels_sky.txt").write_text("1\n0\n")
    with pytest.raises(DataError, match="2 labels of 'sky' for 240 photos"):
        load_dataset(tmp_path, labels=3)
    (labels / "Labels_sky.txt").write_text("1\n7\n")
    with pytest.raises(DataError, match=r"Labels_sky.txt: something else than a 0 or 1"):
        load_dataset(tmp_path, labels=3)


def test_the_lists_of_the_paper(shared_data):
    splits = load_dataset(shared_data / "nuswide")
    assert [len(splits.train), len(splits.queries)] == [10_500, 2_100]
    assert splits.classes == FREQUENT
    column = {label: splits.train.labels[:, j].astype(bool) for j, label in enumerate(FREQUENT)}
    assert column["sky"][column["clouds"]].mean() > 0.8  # the order of the columns makes sense
    assert column["water"][column["ocean"]].mean() > 0.8
    assert column["plants"][column["flowers"]].mean() > 0.4
    assert column["ocean"][column["beach"]].mean() > 0.4
