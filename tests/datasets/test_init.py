"""The parts every dataset shares: Splits, files and their names, options."""

import pickle
import unicodedata

import numpy as np
import pytest

from hyphash.datasets import (
    Finder,
    Parts,
    Remarks,
    Split,
    assemble,
    datasets,
    label_names,
    load_dataset,
    multi_hot,
    read_rows,
)
from hyphash.errors import ConfigError, DataError, LabelError, PhotoError
from hyphash.photos import PhotoFiles


def table(tmp_path, n=6):
    for i in range(n):
        (tmp_path / f"{i}.jpg").write_bytes(bytes([i + 1]))
    labels = np.array([[1, 0], [0, 1], [1, 1], [0, 0], [1, 0], [0, 1]], np.uint8)
    return PhotoFiles(tuple(f"{i}.jpg" for i in range(n)), tmp_path), labels


def rows(*numbers):
    return np.array(numbers, np.int64)


def test_every_dataset_is_found_by_name():
    assert {"coco", "flickr25k", "folder", "nuswide", "sample", "voc", "voc2007", "voc2012"} <= set(datasets.names())


def test_a_split_reads_its_own_photos(tmp_path):
    photos, labels = table(tmp_path)
    split = Split(photos, rows(4, 2), labels[[4, 2]])
    assert len(split) == 2
    assert split.name(0) == "4.jpg"
    assert split.path(1) == tmp_path / "2.jpg"
    assert split.read(1) == b"\x03"
    part = split.take(np.array([False, True]))
    assert part.name(0) == "2.jpg"
    assert part.labels.tolist() == [[1, 1]]
    (tmp_path / "4.jpg").unlink()
    with pytest.raises(PhotoError, match=r"4\.jpg: there is no such photo"):
        split.read(0)
    assert pickle.loads(pickle.dumps(split)).name(1) == "2.jpg"
    with pytest.raises(LabelError, match="2 photos but labels of shape"):
        Split(photos, rows(1, 2), labels)


def test_assemble_leaves_out_what_has_no_labels_and_says_so(tmp_path):
    photos, labels = table(tmp_path)
    splits = assemble(
        "x", "ab", photos, labels, parts=Parts(rows(0, 1, 3), rows(2), rows(4, 5)), remarks=Remarks()
    ).splits()
    assert splits.train.rows.tolist() == [0, 1]
    assert splits.classes == ("a", "b")
    assert splits.unlabelled == ("3.jpg",)
    assert splits.notes == ("1 photo without labels left out",)
    kept = assemble(
        "x", "ab", photos, labels, parts=Parts(rows(0, 3), rows(2), rows(4)), remarks=Remarks(), keep_unlabelled=True
    ).splits()
    assert kept.train.rows.tolist() == [0, 3]
    assert kept.notes == ()


def test_assemble_refuses_or_leaves_out_missing_files(tmp_path):
    photos, labels = table(tmp_path)
    (tmp_path / "1.jpg").unlink()
    parts = Parts(rows(0, 1), rows(2), rows(4, 5))
    with pytest.raises(DataError, match=r"1 photo listed but not there: '1\.jpg'.*--skip-missing"):
        assemble("x", "ab", photos, labels, parts=parts, remarks=Remarks())
    splits = assemble("x", "ab", photos, labels, parts=parts, remarks=Remarks(), skip_missing=True).splits()
    assert splits.train.rows.tolist() == [0]
    assert splits.missing == ("1.jpg",)
    assert assemble("x", "ab", photos, labels, parts=parts, remarks=Remarks(), labels_only=True).missing == ()


def test_assemble_refuses_queries_in_other_parts_and_empty_parts(tmp_path):
    photos, labels = table(tmp_path)
    with pytest.raises(DataError, match=r"1 photo in the queries and in another part as well, such as '4\.jpg'"):
        assemble("x", "ab", photos, labels, parts=Parts(rows(0), rows(2, 4), rows(4)), remarks=Remarks()).splits()
    with pytest.raises(DataError, match="no photos are left for the part 'train'"):
        assemble("x", "ab", photos, labels, parts=Parts(rows(3), rows(2), rows(4)), remarks=Remarks()).splits()


def test_unknown_options_and_names_are_errors(tmp_path):
    with pytest.raises(ConfigError, match="'folder' has no option 'sede'; it has labels_from, seed"):
        load_dataset(tmp_path, name="folder", sede=3)
    with pytest.raises(ConfigError, match="no dataset is called 'flicker25k'; did you mean 'flickr25k'"):
        load_dataset(tmp_path, name="flicker25k")
    with pytest.raises(DataError, match=r"nowhere: there is no such file or folder"):
        load_dataset(tmp_path / "nowhere")


def test_a_lenient_reading_leaves_out_what_is_refused_otherwise(tmp_path):
    for name in "abcd":
        (tmp_path / f"{name}.jpg").touch()
    (tmp_path / "labels.csv").write_text("image,labels\na.jpg,x\nb.jpg,y\nc.jpg,x|y\nd.jpg,\ngone.jpg,x\n")
    with pytest.raises(DataError, match=r"labels.csv:6: 1 photo listed but not there"):
        load_dataset(tmp_path)
    splits = load_dataset(tmp_path, lenient=True)
    assert (splits.missing, splits.unlabelled) == (("gone.jpg",), ("d.jpg",))
    with pytest.raises(LabelError, match=r"labels.csv:5"):
        load_dataset(tmp_path, lenient=True, skip_unlabelled=False)


def test_rows_are_each_photo_of_the_parts_once(tmp_path):
    photos, labels = table(tmp_path)
    parts = Parts(rows(4, 0), rows(2), rows(5, 0, 4), ("as drawn",))
    read = assemble("x", "ab", photos, labels, parts=parts, remarks=Remarks(["as read"]))
    assert read.photos.rows.tolist() == [0, 2, 4, 5]
    assert read.photos.labels.tolist() == labels[[0, 2, 4, 5]].tolist()
    assert read.notes == ("as read",)
    splits = read.splits()
    assert [split.rows.tolist() for split in (splits.train, splits.queries, splits.database)] == [
        [4, 0],
        [2],
        [5, 0, 4],
    ]
    assert splits.database.labels.tolist() == labels[[5, 0, 4]].tolist()
    assert splits.notes == (*read.notes, "as drawn")


def test_parts_are_drawn_when_they_are_asked_for(tmp_path):
    photos, labels = table(tmp_path)

    def refuse():
        raise DataError("no parts")

    read = assemble("x", "ab", photos, labels, parts=refuse, remarks=Remarks())
    assert len(read.photos) == 5
    with pytest.raises(DataError, match="no parts"):
        read.splits()


@pytest.mark.parametrize("text", ["a.jpg,x\nb.jpg,x\n", "a.jpg,x\nb.jpg,y\n"])
def test_labels_that_no_split_can_be_drawn_from_are_read(tmp_path, text):
    for name in "ab":
        (tmp_path / f"{name}.jpg").touch()
    (tmp_path / "labels.csv").write_text("image,labels\n" + text)
    read = read_rows(tmp_path / "labels.csv")
    assert label_names(read.photos.labels, read.classes) == [[line[-1]] for line in text.splitlines()]
    assert [read.photos.name(i) for i in range(2)] == ["a.jpg", "b.jpg"]
    assert read.notes == ()
    with pytest.raises(DataError, match=r"nothing to tell apart|no photo can be held out"):
        load_dataset(tmp_path / "labels.csv")


def test_multi_hot_matches_its_definition():
    rng = np.random.default_rng(0)
    classes = ["a", "b", "c", "d"]
    sets = [set(rng.choice(classes, rng.integers(0, 5), replace=False)) for _ in range(50)]
    assert multi_hot(sets, classes).tolist() == [[int(c in s) for c in classes] for s in sets]
    assert label_names(multi_hot(sets, classes), classes) == [sorted(s) for s in sets]


def test_finder_finds_either_spelling_of_a_name(tmp_path):
    decomposed, composed = (unicodedata.normalize(form, "Übung") for form in ("NFD", "NFC"))
    assert decomposed != composed
    (tmp_path / decomposed).mkdir()
    (tmp_path / decomposed / f"{decomposed}.jpg").touch()
    (tmp_path / f"{composed}.png").touch()
    finder = Finder(tmp_path)
    for name in (composed, decomposed):
        assert finder.find(f"{name}/{name}.jpg") == str(tmp_path / decomposed / f"{decomposed}.jpg")
        assert finder.find(f"{name}.png") == str(tmp_path / f"{composed}.png")
        assert finder.find(f"{name}\\{name}.jpg") is not None
    (tmp_path / f"{decomposed}.png").touch()  # now there are two files, and each has its own name
    finder = Finder(tmp_path)
    assert [finder.find(f"{name}.png") for name in (composed, decomposed)] == [
        str(tmp_path / f"{name}.png") for name in (composed, decomposed)
    ]
    assert finder.find("nothing.jpg") is None
    assert finder.find("nowhere/nothing.jpg") is None


def test_finder_takes_absolute_paths_and_paths_upward(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "a.jpg").touch()
    (tmp_path / "photos" / "b.jpg").touch()
    finder = Finder(tmp_path / "photos")
    above, inside = str(tmp_path / "a.jpg"), str(tmp_path / "photos" / "b.jpg")
    assert finder.find("../a.jpg") == finder.find(above) == above
    assert finder.relative(above) == above
    assert finder.find("./../photos/b.jpg") == finder.find(inside) == inside
    assert finder.relative(inside) == "b.jpg"
    assert finder.seen() == {inside}
