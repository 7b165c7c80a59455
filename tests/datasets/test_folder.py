"""The user's own photos in every form: tables, JSON lines, folders, keywords."""

import csv
import io
import json
import struct
import unicodedata

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import hyphash.datasets.folder as folder_module
from hyphash.datasets import load_dataset
from hyphash.datasets.folder import detect, photos_under
from hyphash.errors import ConfigError, DataError, LabelError


def draw(path, colour="red"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), colour).save(path)
    return path


def tree(root, *names):
    """Photos of different content (any bytes do: nothing is decoded)."""
    for i, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"photo" + bytes([i]))


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def contents(splits):
    """Everything in a dataset that does not depend on the form it was read from."""
    parts = (splits.train, splits.queries, splits.database)
    return splits.classes, [[(part.name(i), part.labels[i].tolist()) for i in range(len(part))] for part in parts]


TABLE = "image,labels\na.jpg,dog|sea\nb.jpg,cat\nc.jpg,sea\nd.jpg,cat|dog\n"
PHOTOS = ("a.jpg", "b.jpg", "c.jpg", "d.jpg")


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_table_with_lists_of_labels(tmp_path):
    tree(tmp_path, *PHOTOS)
    splits = load_dataset(write(tmp_path / "labels.csv", TABLE))
    assert splits.classes == ("cat", "dog", "sea")
    labels = {name: row for part in contents(splits)[1] for name, row in part}
    assert labels == {"a.jpg": [0, 1, 1], "b.jpg": [1, 0, 0], "c.jpg": [0, 0, 1], "d.jpg": [1, 1, 0]}
    assert contents(load_dataset(tmp_path)) == contents(splits)  # the folder finds its labels.csv


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_tables_from_any_spreadsheet_read_alike(tmp_path, separator, encoding, newline):
    tree(tmp_path, *PHOTOS)
    plain = load_dataset(write(tmp_path / "plain.csv", TABLE))
    text = TABLE.replace(",", f" {separator} ").replace("|", " | ").replace("\n", newline) + newline
    other = load_dataset(write(tmp_path / "other.csv", text, encoding))
    assert contents(other) == contents(plain)
    assert other.notes == plain.notes


@pytest.mark.parametrize("header", ["image", "File", "FILENAME", " path "])
def test_the_image_column_has_several_names(tmp_path, header):
    tree(tmp_path, *PHOTOS)
    splits = load_dataset(write(tmp_path / "labels.csv", TABLE.replace("image", header)))
    assert len(splits.train) + len(splits.queries) == 4


def test_quotes_unicode_and_spaces_in_names(tmp_path):
    name, label = "Bild Ü, 1 – Kopie.jpg", "Café"
    tree(tmp_path, unicodedata.normalize("NFD", name), "b.jpg", "c.jpg")
    text = f'image,labels\n"{unicodedata.normalize("NFC", name)}", {label} \n'
    text += f"b.jpg,{unicodedata.normalize('NFD', label)}|sea\nc.jpg,sea\n"
    splits = load_dataset(write(tmp_path / "labels.csv", text), queries=1)
    assert splits.classes == (label, "sea")
    assert all((tmp_path / part.name(i)).exists() for part in (splits.train, splits.queries) for i in range(len(part)))


labels_strategy = st.lists(
    st.sets(st.sampled_from(["dog", "cat", "sea", "tall tree", "Ärger", "a,b", 'q"q']), min_size=1),
    min_size=4,
    max_size=12,
).filter(lambda sets: len(set.union(*sets)) > 1)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sets=labels_strategy, separator=st.sampled_from(",;\t"), seed=st.integers(0, 3))
def test_all_forms_of_the_same_table_load_equal(tmp_path, sets, separator, seed):
    names = [f"{i}.jpg" for i in range(len(sets))]
    tree(tmp_path, *names)
    classes = sorted(set.union(*sets))
    lists, columns = io.StringIO(), io.StringIO()
    first, second = csv.writer(lists, delimiter=separator), csv.writer(columns, delimiter=separator)
    first.writerow(["image", "labels"])
    second.writerow(["image", *reversed(classes)])
    lines = ""
    for name, labels in zip(names, sets, strict=True):
        first.writerow([name, "|".join(labels)])
        second.writerow([name, *(int(label in labels) for label in reversed(classes))])
        lines += json.dumps({"image": name, "labels": sorted(labels)}) + "\n"
    outcomes = []
    for file, text in (("l.csv", lists.getvalue()), ("c.csv", columns.getvalue()), ("j.jsonl", lines)):
        try:
            outcomes.append(contents(load_dataset(write(tmp_path / file, text), seed=seed)))
        except DataError as error:  # nobody can be held out: then in no form
            outcomes.append(str(error).split(": ", 1)[1])
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_a_table_with_one_column_per_label(tmp_path):
    tree(tmp_path, *PHOTOS)
    text = "image,sea,dog,cat,never\na.jpg,1,1,0,0\nb.jpg,0,,1,0\nc.jpg,1.0,0.0,false,0\nd.jpg,0,true,1,0\n"
    splits = load_dataset(write(tmp_path / "labels.csv", text))
    assert contents(splits) == contents(load_dataset(write(tmp_path / "lists.csv", TABLE)))


def test_a_split_column_with_its_synonyms(tmp_path):
    tree(tmp_path, *PHOTOS)
    text = "split,image,labels\nTrain,a.jpg,dog\ntest,b.jpg,cat\ngallery,c.jpg,cat\ntrain|database,d.jpg,cat|dog\n"
    splits = load_dataset(write(tmp_path / "labels.csv", text))
    names = [[part.name(i) for i in range(len(part))] for part in (splits.train, splits.queries, splits.database)]
    assert names == [["a.jpg", "d.jpg"], ["b.jpg"], ["c.jpg", "d.jpg"]]
    with pytest.raises(DataError, match=r"labels.csv:3: split 'val' is unknown; write train, queries or database"):
        load_dataset(write(tmp_path / "labels.csv", text.replace("test", "val")))


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("a.jpg,dog\nb.jpg,cat\n", DataError, r":1: no column 'image' or .* start the file with a line such as"),
        ("image\na.jpg\n", DataError, r":1: no column"),
        ("image,split\na.jpg,train\n", DataError, ":1: no labels in the header"),
        ("image,dog,dog\na.jpg,1,0\n", LabelError, ":1: column 'dog' has no name or stands there twice"),
        ("image,dog,,cat\na.jpg,1,0,1\n", LabelError, ":1: column '' has no name"),
        ("image,labels\n\na.jpg,dog,cat\n", DataError, ":3: 3 cells where the header has 2; labels are separated by"),
        ("image,labels\na.jpg\n", DataError, ":2: 1 cells where the header has 2"),
        ("image,labels\n,dog\n", DataError, ":2: no photo is named; fill in the column 'image'"),
        ("image,dog,cat\na.jpg,1,2\n", LabelError, ":2: '2' in the column 'cat', which is neither 0 nor 1"),
        ('image,labels\na.jpg,"dog\nb.jpg,cat\n', DataError, r"not a CSV row .*check its quotes"),
        ("image,labels\n", DataError, "no photos are listed"),
        ("", DataError, "no photos are listed"),
    ],
)
def test_what_is_wrong_in_a_table_is_said_with_its_line(tmp_path, text, error, words):
    tree(tmp_path, *PHOTOS)
    with pytest.raises(error, match=r"labels\.csv.*" + words):
        load_dataset(write(tmp_path / "labels.csv", text))


def test_text_that_is_not_utf8_is_refused_with_its_line(tmp_path):
    with pytest.raises(DataError, match=r"labels.csv:3: not UTF-8 text; save the file as UTF-8"):
        load_dataset(write(tmp_path / "labels.csv", "image,labels\na.jpg,dog\nb.jpg,Käse\n", "latin-1"))


def test_lines_are_counted_over_quoted_line_breaks(tmp_path):
    tree(tmp_path, *PHOTOS)
    text = 'image,labels,remark\na.jpg,dog,"two\nlines"\nb.jpg,,x\n'
    with pytest.raises(LabelError, match=r"labels.csv:4: photo 'b.jpg' has no labels"):
        load_dataset(write(tmp_path / "labels.csv", text))


def test_remarks_on_columns_lists_and_photos_that_are_not_used(tmp_path):
    tree(tmp_path, *PHOTOS, "unlisted.jpg", ".hidden.jpg", "notes.txt")
    text = TABLE.replace("labels", "labels,spilt").replace("\n", ",x\n").replace("spilt,x", "spilt")
    notes = load_dataset(write(tmp_path / "labels.csv", text.replace("dog|sea", '"dog, sea"'))).notes
    assert "columns not used: spilt" in notes
    assert "labels are separated by | only, so 'dog, sea' is one label" in notes
    assert "1 photo in the same folders not listed in labels.csv" in notes


def test_photos_may_lie_elsewhere_on_the_users_machine(tmp_path):
    tree(tmp_path, "photos/a.jpg", "photos/sub/b.jpg", "lists/c.jpg")
    (tmp_path / "lists").mkdir(exist_ok=True)
    text = f"image,labels\n../photos/a.jpg,dog\n{tmp_path}/photos/sub/b.jpg,dog|cat\nc.jpg,cat\n"
    splits = load_dataset(write(tmp_path / "lists" / "labels.csv", text), queries=1)
    for part in (splits.train, splits.queries):
        assert [part.read(i)[:5] for i in range(len(part))] == [b"photo"] * len(part)


# ── JSON lines ───────────────────────────────────────────────────────────────────────────────────────────


def test_json_lines_with_a_split(tmp_path):
    tree(tmp_path, *PHOTOS)
    records = [
        {"image": "a.jpg", "labels": ["dog", " sea "], "split": "train", "stars": 5},
        {"file": "b.jpg", "labels": ["sea"], "split": "query"},
    ]
    text = "\ufeff" + "\n\n".join(json.dumps(record) for record in records) + "\n"
    splits = load_dataset(write(tmp_path / "labels.jsonl", text))
    assert contents(splits)[1] == [[("a.jpg", [1, 1])], [("b.jpg", [0, 1])], [("a.jpg", [1, 1])]]
    assert "keys not used: stars" in splits.notes


@pytest.mark.parametrize(
    ("line", "error", "words"),
    [
        ("{nonsense", DataError, "not a line of JSON"),
        ("[1, 2]", DataError, "not a JSON object"),
        ('{"labels": ["dog"]}', DataError, "no photo is named"),
        ('{"image": 7, "labels": ["dog"]}', DataError, "no photo is named"),
        ('{"image": "a.jpg", "labels": "dog|cat"}', LabelError, "are not a list of words"),
        ('{"image": "a.jpg", "labels": [1]}', LabelError, "are not a list of words"),
        ('{"image": "a.jpg"}', LabelError, "photo 'a.jpg' has no labels"),
        ('{"image": "a.jpg", "labels": ["dog"], "split": "val"}', DataError, "split 'val' is unknown"),
        ('{"image": "a.jpg", "labels": ["dog"], "split": 3}', DataError, "split 3 is not a word"),
    ],
)
def test_what_is_wrong_in_json_lines_is_said_with_its_line(tmp_path, line, error, words):
    tree(tmp_path, *PHOTOS)
    text = f'{{"image": "b.jpg", "labels": ["cat"]}}\n{line}\n'
    with pytest.raises(error, match=rf"labels\.jsonl:2: .*{words}"):
        load_dataset(write(tmp_path / "labels.jsonl", text))


# ── folders ──────────────────────────────────────────────────────────────────────────────────────────────


def test_one_folder_per_label_and_copies_get_all_labels(tmp_path):
    tree(tmp_path, "dog/1.jpg", "dog/deep/2.jpg", "sea/3.jpg", "sea/4.jpg", "dog/.hidden.jpg", "__MACOSX/dog/1.jpg")
    (tmp_path / "sea" / "renamed.jpg").write_bytes((tmp_path / "dog" / "1.jpg").read_bytes())
    splits = load_dataset(tmp_path, queries=1)
    found = {name: row for part in contents(splits)[1] for name, row in part}
    assert found == {"dog/1.jpg": [1, 1], "dog/deep/2.jpg": [1, 0], "sea/3.jpg": [0, 1], "sea/4.jpg": [0, 1]}
    assert "photos with the same content as others, merged with them: 1" in splits.notes


def test_only_files_that_look_alike_are_read(tmp_path, monkeypatch):
    data = {"dog/1.jpg": b"same", "dog/2.jpg": b"same", "sea/3.jpg": b"diff", "sea/4.jpg": b"longer", "sea/5.jpg": b""}
    data |= {"sea/empty.jpg": b"", "sea/6.jpg": b"x" * 5000 + b"a", "dog/7.jpg": b"x" * 5000 + b"b"}
    for name, content in data.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    read = {"_head": [], "digest": []}
    for step, names in read.items():
        function = getattr(folder_module, step)
        monkeypatch.setattr(folder_module, step, lambda path, f=function, n=names: n.append(path.name) or f(path))
    splits = load_dataset(tmp_path, queries=1)
    assert sorted(read["_head"]) == ["1.jpg", "2.jpg", "3.jpg", "6.jpg", "7.jpg"]
    assert sorted(read["digest"]) == ["1.jpg", "2.jpg", "6.jpg", "7.jpg"]
    assert len(splits.train) + len(splits.queries) == 7  # empty files are no copies of each other


def test_folders_train_and_queries_hold_folders_per_label(tmp_path):
    tree(tmp_path, "train/dog/1.jpg", "train/cat/2.jpg", "test/dog/3.jpg", "test/cat/4.jpg")
    splits = load_dataset(tmp_path)
    assert splits.classes == ("cat", "dog")
    assert [splits.queries.name(i) for i in range(2)] == ["test/cat/4.jpg", "test/dog/3.jpg"]
    (tmp_path / "test/dog/5.jpg").write_bytes((tmp_path / "train/dog/1.jpg").read_bytes())
    with pytest.raises(DataError, match=r"train/dog/1.jpg: the same photo as .*5.jpg in another part"):
        load_dataset(tmp_path)
    tree(tmp_path, "val/dog/9.jpg")
    with pytest.raises(DataError, match="name the folders train, queries and database"):
        load_dataset(tmp_path)


def test_photos_outside_of_the_label_folders_have_no_labels(tmp_path):
    tree(tmp_path, "dog/1.jpg", "dog/2.jpg", "sea/3.jpg", "loose.jpg")
    with pytest.raises(LabelError, match=r"loose.jpg: photo 'loose.jpg' has no labels; .*--skip-unlabelled"):
        load_dataset(tmp_path)
    assert load_dataset(tmp_path, skip_unlabelled=True).unlabelled == ("loose.jpg",)


def test_links_are_followed_once(tmp_path):
    tree(tmp_path, "photos/dog/1.jpg", "elsewhere/2.jpg")
    (tmp_path / "photos" / "cat").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "photos" / "dog" / "loop").symlink_to(tmp_path / "photos")
    assert list(photos_under(tmp_path / "photos")) == ["cat/2.jpg", "dog/1.jpg"]
    (tmp_path / "photos" / "cat" / "collection.toml").write_text("")  # what a collection keeps, it has already
    assert list(photos_under(tmp_path / "photos")) == ["dog/1.jpg"]


# ── keywords ─────────────────────────────────────────────────────────────────────────────────────────────


def with_keywords(path, *words):
    draw(path)
    fields = b"".join(b"\x1c\x02\x19" + struct.pack(">H", len(word)) + word.encode() for word in words)
    block = b"8BIM\x04\x04\0\0" + struct.pack(">I", len(fields)) + fields + b"\0" * (len(fields) % 2)
    body = b"Photoshop 3.0\0" + block
    jpeg = path.read_bytes()
    path.write_bytes(jpeg[:2] + b"\xff\xed" + struct.pack(">H", len(body) + 2) + body + jpeg[2:])


def test_keywords_in_the_files_are_labels(tmp_path):
    with_keywords(tmp_path / "a.jpg", "dog", "sea")
    with_keywords(tmp_path / "b.jpg", "dog")
    with_keywords(tmp_path / "c.jpg", "sea")
    (tmp_path / "empty.jpg").touch()
    splits = load_dataset(tmp_path, queries=1)  # nothing else says what the labels are
    assert splits.classes == ("dog", "sea")
    assert len(splits.train) == 2
    assert "1 photo left out, unreadable: empty.jpg" in splits.notes
    draw(tmp_path / "bare.jpg")
    with pytest.raises(LabelError, match=r"photo 'bare.jpg' has no labels"):
        load_dataset(tmp_path)


def test_keywords_may_be_asked_for_instead_of_a_table_or_folders(tmp_path):
    for name, word in (("x/a.jpg", "dog"), ("x/b.jpg", "sea"), ("y/c.jpg", "dog"), ("y/d.jpg", "sea")):
        with_keywords(tmp_path / name, word)
    write(tmp_path / "labels.csv", "image,labels\nx/a.jpg,one\nx/b.jpg,two\ny/c.jpg,two\n")
    assert load_dataset(tmp_path, labels_from="keywords").classes == ("dog", "sea")
    assert load_dataset(tmp_path, labels_from="folders").classes == ("x", "y")
    assert load_dataset(tmp_path, labels_from="file").classes == ("one", "two")
    assert load_dataset(tmp_path).classes == ("one", "two")


def test_photos_without_any_labels_say_what_to_do(tmp_path):
    draw(tmp_path / "a.jpg")
    with pytest.raises(LabelError, match=r"no photo carries keywords; .*folder per label.*labels\.csv"):
        load_dataset(tmp_path)
    with pytest.raises(DataError, match=r"no label file here; write labels\.csv"):
        load_dataset(tmp_path, labels_from="file")
    with pytest.raises(ConfigError, match="one of auto, file, folders, keywords"):
        load_dataset(tmp_path, labels_from="tags")
    with pytest.raises(ConfigError, match="need the folder with the photos"):
        load_dataset(write(tmp_path / "l.csv", TABLE), labels_from="keywords")


# ── which kind ───────────────────────────────────────────────────────────────────────────────────────────


def test_an_empty_folder_and_other_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="no photos here; hyphash reads JPEG"):
        load_dataset(tmp_path)
    with pytest.raises(DataError, match=r"x.xlsx: not a label file; hyphash reads \.csv"):
        load_dataset(write(tmp_path / "x.xlsx", "PK"))


def test_several_label_files_need_a_choice(tmp_path):
    tree(tmp_path, *PHOTOS)
    write(tmp_path / "one.csv", TABLE)
    assert len(load_dataset(tmp_path).train)
    write(tmp_path / "two.jsonl", "")
    with pytest.raises(DataError, match=r"several label files: one.csv, two.jsonl; give the path"):
        load_dataset(tmp_path)
    write(tmp_path / "labels.csv", TABLE)
    assert len(load_dataset(tmp_path).train)


@pytest.mark.parametrize(
    ("places", "kind"),
    [
        (["sample.json", "labels.csv"], "sample"),
        (["flickr25k_128.npz"], "flickr25k"),
        (["flickr25k_128.npz.part0", "flickr25k_128.npz.part1"], "flickr25k"),
        (["mirflickr/im1.jpg"], "flickr25k"),
        (["mirflickr25k_annotations_v080/clouds.txt"], "flickr25k"),
        (["VOCdevkit/VOC2007/Annotations/1.xml"], "voc2007"),
        (["VOC2012/Annotations/1.xml"], "voc2012"),
        (["JPEGImages/1.jpg", "Annotations/1.xml"], "voc"),
        (["VOCdevkit/VOC2020/Annotations/1.xml"], "voc"),
        (["annotations/instances_val2017.json"], "coco"),
        (["_annotations.coco.json"], "coco"),
        (["Groundtruth/AllLabels/Labels_sky.txt"], "nuswide"),
        (["train.txt.gz", "test.txt.gz"], "nuswide"),
        (["train.txt", "photo.jpg"], "folder"),
        (["labels.csv", "photo.jpg"], "folder"),
        (["dog/1.jpg", "array.npz"], "folder"),
    ],
)
def test_the_kind_of_dataset_is_found_out(tmp_path, places, kind):
    tree(tmp_path, *places)
    assert detect(tmp_path) == kind


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("x.npz", "flickr25k"),
        ("x.npz.part0", "flickr25k"),
        ("x.json", "coco"),
        ("x.csv", "folder"),
        ("x.jsonl", "folder"),
    ],
)
def test_the_kind_of_a_file_is_found_out(tmp_path, file, kind):
    tree(tmp_path, file)
    assert detect(tmp_path / file) == kind


def test_two_devkits_need_a_choice(tmp_path):
    tree(tmp_path, "VOCdevkit/VOC2007/a", "VOCdevkit/VOC2012/a")
    with pytest.raises(DataError, match="choose one with --dataset voc2007 or voc2012"):
        detect(tmp_path)


def test_many_photos_are_listed_without_opening_one(tmp_path, monkeypatch):
    names = [f"{i % 50}/{i}.jpg" for i in range(3000)]
    for label in range(50):
        (tmp_path / str(label)).mkdir()
    for i, name in enumerate(names):
        with (tmp_path / name).open("wb") as file:
            file.truncate(i + 1)
    monkeypatch.setattr("hyphash.photos.decode", None)
    monkeypatch.setattr(folder_module, "read_bytes", None)
    monkeypatch.setattr(folder_module, "digest", None)
    text = "image,labels\n" + "".join(f"{name},{name.split('/')[0]}\n" for name in names)
    by_folder, by_table = load_dataset(tmp_path), load_dataset(write(tmp_path / "all.csv", text))
    assert len(by_folder.train) + len(by_folder.queries) == 3000
    assert by_table.classes == by_folder.classes
    assert np.array_equal(by_table.train.labels.sum(0) + by_table.queries.labels.sum(0), [60] * 50)
