"""COCO: the benchmark with its two files, and photos of one's own with one."""

import json

import pytest

from hyphash.datasets import load_dataset
from hyphash.datasets.coco import read_instances
from hyphash.errors import ConfigError, DataError, LabelError

CATEGORIES = [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}, {"id": 3, "name": "car"}]


def write_instances(file, folder, label_sets, start=0, categories=CATEGORIES):
    """One photo for every set of category ids; sets may repeat an id, as photos show several dogs."""
    file.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for i, categories_of in enumerate(label_sets, start):
        (folder / f"{i:012}.jpg").write_bytes(str(i).encode())
        images.append({"id": i, "file_name": f"{i:012}.jpg", "width": 4, "height": 4})
        annotations += [
            {"id": len(annotations), "image_id": i, "category_id": c, "iscrowd": 0, "segmentation": [[1, 2, 3]]}
            for c in categories_of
        ]
    content = {"info": {"year": 2017}, "images": images, "annotations": annotations, "categories": categories}
    file.write_text(json.dumps(content))


def benchmark(root, year="2017"):
    sets = [[18, 18], [1], [3, 1], [18, 1], [], [3]]
    write_instances(root / f"annotations/instances_train{year}.json", root / f"train{year}", sets)
    write_instances(root / f"annotations/instances_val{year}.json", root / f"val{year}", [[18], [], [1, 3], [3]], 100)


def names(part):
    return [part.name(i) for i in range(len(part))]


@pytest.mark.parametrize("year", ["2017", "2014"])
def test_queries_come_from_val_and_training_photos_from_the_database(tmp_path, year):
    benchmark(tmp_path, year)
    splits = load_dataset(tmp_path, queries=2, train=3)
    assert splits.classes == ("person", "car", "dog")  # by category id
    assert len(splits.queries) == 2
    assert all(name.startswith(f"val{year}/") for name in names(splits.queries))
    assert len(splits.train) == 3
    assert set(names(splits.train)) < set(names(splits.database))
    assert len(splits.database) == 6  # eight labelled photos but the queries
    assert splits.unlabelled == (f"train{year}/000000000004.jpg", f"val{year}/000000000101.jpg")
    assert splits.train.read(0) == str(int(splits.train.name(0)[-16:-4])).encode()
    table = {
        name: part.labels[i].tolist()
        for part in (splits.queries, splits.database)
        for i, name in enumerate(names(part))
    }
    assert table[f"train{year}/000000000002.jpg"] == [1, 1, 0]
    assert table[f"train{year}/000000000000.jpg"] == [0, 0, 1]
    assert any("split drawn with seed 0: 2 queries from val, 3 training photos" in note for note in splits.notes)
    draws = {tuple(names(load_dataset(tmp_path, queries=2, train=3, seed=seed).train)) for seed in range(5)}
    assert len(draws) > 1


def test_all_of_val_are_queries_where_it_has_fewer(tmp_path):
    benchmark(tmp_path)
    splits = load_dataset(tmp_path)
    assert len(splits.queries) == 3
    assert names(splits.train) == names(splits.database)
    assert "all 3 labelled photos of val are queries" in splits.notes


def test_photos_in_a_folder_images(tmp_path):
    benchmark(tmp_path)
    (tmp_path / "images").mkdir()
    for part in ("train2017", "val2017"):
        (tmp_path / part).rename(tmp_path / "images" / part)
    splits = load_dataset(tmp_path)
    assert all(name.startswith("images/val2017/") for name in names(splits.queries))


def test_missing_photos_and_wrong_numbers(tmp_path):
    benchmark(tmp_path)
    (tmp_path / "val2017" / "000000000100.jpg").unlink()
    with pytest.raises(DataError, match=r"1 photo listed but not there: 'val2017/000000000100\.jpg'"):
        load_dataset(tmp_path)
    assert len(load_dataset(tmp_path, skip_missing=True).queries) == 2
    with pytest.raises(ConfigError, match="both are numbers of photos"):
        load_dataset(tmp_path, queries=0.5)


def test_own_photos_with_one_file(tmp_path):
    write_instances(tmp_path / "_annotations.coco.json", tmp_path, [[18], [1, 18], [1], [3], [3, 1]])
    for path in (tmp_path, tmp_path / "_annotations.coco.json"):
        splits = load_dataset(path, queries=0.2)
        assert splits.classes == ("car", "dog", "person")
        assert len(splits.queries) == 1
        assert len(splits.train) == len(splits.database) == 4
        assert any("held out as queries" in note for note in splits.notes)


@pytest.mark.parametrize("folder", ["images", "annotations/images", "images/default", "default"])
def test_own_photos_are_found_where_programs_put_them(tmp_path, folder):
    write_instances(tmp_path / "annotations/instances_default.json", tmp_path / folder, [[18], [1, 18], [1]])
    assert load_dataset(tmp_path, queries=1).queries.read(0) in (b"0", b"1", b"2")


def test_own_photos_without_objects_are_refused_or_left_out(tmp_path):
    write_instances(tmp_path / "x.json", tmp_path, [[18], [1, 18], [], [1]])
    with pytest.raises(LabelError, match=r"x\.json: photo '000000000002\.jpg' has no labels"):
        load_dataset(tmp_path / "x.json")
    assert load_dataset(tmp_path / "x.json", skip_unlabelled=True).unlabelled == ("000000000002.jpg",)


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        '{"images": [], "annotations": []}',
        '{"images": [{"id": 1, "file_name": "a"}], "annotations": [{"image_id": 1, "caption": "x"}], "categories": []}',
        '{"images": [{"id": 1, "file_name": "a"}], "annotations": [{"image_id": 2, "category_id": 1}], '
        '"categories": [{"id": 1, "name": "dog"}]}',
    ],
)
def test_other_json_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(DataError, match=r"x\.json: not a COCO file of instances .*images, annotations and categories"):
        load_dataset(tmp_path / "x.json")


def test_missing_or_mixed_files_say_the_way_out(tmp_path):
    with pytest.raises(DataError, match=r"COCO is not here.*annotations/instances_train2017\.json"):
        load_dataset(tmp_path, name="coco")
    benchmark(tmp_path)
    write_instances(tmp_path / "annotations/instances_val2017.json", tmp_path / "val2017", [[1]], 100, CATEGORIES[1:])
    with pytest.raises(DataError, match=r"instances_val2017\.json: other categories than instances_train2017\.json"):
        load_dataset(tmp_path)
    (tmp_path / "annotations/instances_val2017.json").rename(tmp_path / "annotations/other.json")
    with pytest.raises(DataError, match=r"several JSON files: instances_train2017\.json, other\.json"):
        load_dataset(tmp_path)


def test_outlines_are_dropped_while_reading(tmp_path):
    write_instances(tmp_path / "x.json", tmp_path, [[18, 18], [1, 3]])
    instances = read_instances(tmp_path / "x.json")
    assert instances.labels == ({"dog"}, {"person", "car"})
    assert instances.images == ("000000000000.jpg", "000000000001.jpg")
