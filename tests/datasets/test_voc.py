"""PASCAL VOC: the two benchmarks, and photos of one's own in the same layout."""

import pytest

from hyphash.datasets import load_dataset
from hyphash.datasets.voc import CLASSES
from hyphash.errors import DataError, LabelError


def annotate(root, name, *objects, image=None):
    """A photo and its annotation; an object that ends in * is difficult."""
    items = "".join(
        f"<object><name>{item.rstrip('*')}</name><difficult>{int(item.endswith('*'))}</difficult>"
        "<part><name>head</name></part></object>"
        for item in objects
    )
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    image = image or f"{name}.jpg"
    (root / "Annotations" / f"{name}.xml").write_text(f"<annotation><filename>{image}</filename>{items}</annotation>")
    (root / "JPEGImages" / image).write_bytes(name.encode())


def write_set(root, name, *ids):
    (root / "ImageSets" / "Main" / f"{name}.txt").write_text("".join(f"{i}\n" for i in ids))


def names(part):
    return [part.name(i) for i in range(len(part))]


def labels(part):
    return [[CLASSES[j] for j in row.nonzero()[0]] for row in part.labels]


def devkit(root, year, train, queries):
    annotate(root, "1", "dog", "dog", "person")
    annotate(root, "2", "cat", "sofa*")
    annotate(root, "3", "car*")
    annotate(root, "4", "bus", "car")
    annotate(root, "5", "dog")
    write_set(root, train, 1, 2, 3)
    write_set(root, queries, 4, 5)
    assert root.name == year


@pytest.mark.parametrize(("name", "train", "queries"), [("VOC2007", "trainval", "test"), ("VOC2012", "train", "val")])
@pytest.mark.parametrize("place", ["VOCdevkit/{}", "{}"])
def test_the_benchmarks_have_the_papers_parts(tmp_path, name, train, queries, place):
    root = tmp_path / place.format(name)
    devkit(root, name, train, queries)
    for path in (tmp_path, root):
        splits = load_dataset(path)
        assert splits.name == name.lower()
        assert splits.classes == CLASSES
        assert len(CLASSES) == 20
        assert names(splits.train) == names(splits.database) == ["1.jpg", "2.jpg", "3.jpg"]
        assert names(splits.queries) == ["4.jpg", "5.jpg"]
        assert labels(splits.train) == [["dog", "person"], ["cat", "sofa"], ["car"]]
        assert splits.queries.read(0) == b"4"


def test_difficult_objects_count_unless_told_otherwise(tmp_path):
    devkit(tmp_path / "VOC2007", "VOC2007", "trainval", "test")
    splits = load_dataset(tmp_path, difficult=False)
    assert labels(splits.train) == [["dog", "person"], ["cat"]]
    assert splits.unlabelled == ("3.jpg",)
    assert "1 photo without labels left out" in splits.notes


def test_damage_in_a_devkit_is_named(tmp_path):
    root = tmp_path / "VOC2007"
    with pytest.raises(DataError, match=r"PASCAL VOC 2007 is not here.*trainval and test archives.*VOCdevkit/VOC2007"):
        load_dataset(tmp_path, name="voc2007")
    devkit(root, "VOC2007", "trainval", "test")
    (root / "JPEGImages" / "4.jpg").unlink()
    with pytest.raises(DataError, match=r"1 photo listed but not there: '4\.jpg'"):
        load_dataset(tmp_path)
    assert names(load_dataset(tmp_path, skip_missing=True).queries) == ["5.jpg"]
    (root / "Annotations" / "5.xml").write_text("<annotation><object>")
    with pytest.raises(LabelError, match=r"5\.xml: not an XML annotation"):
        load_dataset(tmp_path)
    (root / "Annotations" / "5.xml").write_text("<!DOCTYPE a><annotation/>")
    with pytest.raises(LabelError, match=r"5\.xml: an annotation that defines entities"):
        load_dataset(tmp_path)
    annotate(root, "5", "unicorn")
    with pytest.raises(LabelError, match=r"5\.xml: 'unicorn' is none of the 20 classes.*--dataset voc"):
        load_dataset(tmp_path)
    (root / "Annotations" / "5.xml").unlink()
    with pytest.raises(DataError, match=r"5\.xml: this annotation is missing"):
        load_dataset(tmp_path)
    write_set(root, "test", 1, 4)
    with pytest.raises(DataError, match="photo '1' is in both image sets"):
        load_dataset(tmp_path)
    (root / "ImageSets" / "Main" / "test.txt").unlink()
    with pytest.raises(DataError, match=r"test\.txt: this image set is missing"):
        load_dataset(tmp_path)


def test_own_photos_in_a_devkit_with_any_classes(tmp_path):
    annotate(tmp_path, "a", "unicorn", "gnome", image="a.png")
    annotate(tmp_path, "b", "unicorn")
    annotate(tmp_path, "c", "gnome")
    annotate(tmp_path, "d", "gnome*")
    splits = load_dataset(tmp_path, queries=1)
    assert splits.name == "voc"
    assert splits.classes == ("gnome", "unicorn")
    assert sorted(names(splits.train) + names(splits.queries)) == ["a.png", "b.jpg", "c.jpg", "d.jpg"]
    with pytest.raises(LabelError, match=r"d\.xml: photo 'd.jpg' has no labels"):
        load_dataset(tmp_path, difficult=False)
    write_set(tmp_path, "train", "a", "b")
    write_set(tmp_path, "val", "c")
    splits = load_dataset(tmp_path)
    assert names(splits.train) == names(splits.database) == ["a.png", "b.jpg"]
    assert names(splits.queries) == ["c.jpg"]
    assert any("split of ImageSets/Main" in note for note in splits.notes)


def test_the_photo_of_an_annotation_goes_by_the_name_of_the_annotation(tmp_path):
    for name in "abc":
        annotate(tmp_path, name, "gnome" if name == "a" else "elf", "dwarf")
    (tmp_path / "Annotations" / "a.xml").write_text(
        "<annotation><filename>IMG_0001.JPG</filename><object><name>gnome</name></object></annotation>"
    )
    splits = load_dataset(tmp_path, queries=1)
    assert "a.jpg" in names(splits.train) + names(splits.queries)
