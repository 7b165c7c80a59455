"""Sources: folders, lists, patterns, label files, tar files, Parquet files, here and behind URLs."""

import io
import json
import tarfile
from pathlib import Path

import pyarrow as arrow
import pytest
from pyarrow import parquet

from hyphash.encoding import partitions
from hyphash.encoding.partitions import MAX_NOTE, PER_SHARD, RowGroups, Tar, cut
from hyphash.errors import ConfigError, DataError, LabelError, PhotoError


def test_a_folder_in_order_without_what_is_hidden(folder, names):
    (folder / ".hidden.png").write_bytes(b"x")
    (folder / "notes.md").write_text("no photo")
    assert names(folder) == [str(path) for path in sorted(folder.rglob("[!.]*.png"))]
    assert names(f"file://{folder}") == names(folder)


def test_shards_have_the_asked_size_and_few_photos_make_many_shards_at_need(folder, monkeypatch):
    assert [partition.count for partition in cut(str(folder), per_shard=6)] == [6, 6, 6, 2]
    assert [partition.count for partition in cut(str(folder))] == [20]
    listed = folder / "list.txt"
    listed.write_text("".join(f"{i}.jpg\n" for i in range(1000)))
    assert [partition.count for partition in cut(str(listed))] == [64] * 15 + [40]
    assert PER_SHARD == 10_000
    monkeypatch.setattr(partitions, "PER_SHARD", 100)
    listed.write_text("".join(f"{i}.jpg\n" for i in range(6401)))
    assert [partition.count for partition in cut(str(listed))] == [100] * 64 + [1]
    assert cut(str(listed)) == cut(str(listed))
    with pytest.raises(ConfigError):
        cut(str(folder), per_shard=0)


def test_a_pattern_a_photo_and_a_list(folder, tmp_path, names):
    assert names(folder / "*" / "1?.png") == [str(folder / "b" / f"{i}.png") for i in range(10, 20)]
    assert names(folder / "a" / "00.png") == [str(folder / "a" / "00.png")]
    listed = tmp_path / "list.txt"
    listed.write_text(
        f"photos/a/03.png\n\n{folder}/a/01.png\nphotos/a/03.png\nmemory://x/y.jpg\n", encoding="utf-8-sig"
    )
    assert names(listed) == [str(folder / "a" / "03.png"), str(folder / "a" / "01.png"), "memory://x/y.jpg"]


def test_a_label_file_brings_labels(folder, photos_of):
    (folder / "labels.csv").write_text("image,labels\na/01.png,dog|sea\na/02.png,\ngone.png,cat\n")
    found = photos_of(folder / "labels.csv")
    assert [(Path(photo.name).name, photo.labels) for photo in found] == [
        ("01.png", ("dog", "sea")), ("02.png", ()), ("gone.png", ("cat",)),
    ]  # fmt: skip
    with pytest.raises(PhotoError, match=r"gone\.png"):
        found[2].read()


@pytest.mark.parametrize("labels", [["cat"] * 3, ["a", "b", "c"]])
def test_labels_that_no_split_could_be_drawn_from(folder, labels, photos_of):
    rows = [f"a/0{i}.png,{label}" for i, label in enumerate(labels)]
    (folder / "labels.csv").write_text("\n".join(["image,labels", *rows]))
    assert [photo.labels for photo in photos_of(folder / "labels.csv")] == [(label,) for label in labels]


def test_sources_that_are_none(folder, tmp_path, write_tar):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.txt").write_text("letter.doc\n")
    (tmp_path / "latin.txt").write_bytes("ä.jpg".encode("latin-1"))
    (tmp_path / "nothing.txt").write_text("\n")
    (tmp_path / "letter.doc").write_text("dear photo")
    (tmp_path / "bad.parquet").write_text("no Parquet")
    for source in ("empty", "nowhere", "no*.jpg", "bad.txt", "latin.txt", "nothing.txt", "letter.doc", "bad.parquet"):
        with pytest.raises(DataError, match=source.split(".")[0].replace("*", r"\*")):
            cut(str(tmp_path / source))
    write_tar(folder / "more.tar", [])
    with pytest.raises(DataError, match="side by side"):
        cut(str(folder))


def test_labels_of_a_label_file_are_checked(folder):
    (folder / "labels.jsonl").write_text('{"image": "a/01.png", "labels": "dog"}\n')
    with pytest.raises(LabelError):
        cut(str(folder / "labels.jsonl"))


def test_many_tar_files_one_shard_each(tmp_path, picture, photos_of, names, write_tar):
    tars = [write_tar(tmp_path / f"s-{i:02}.tar", [(f"{i}.png", picture(i))]) for i in range(3)]
    packed = write_tar(tmp_path / "s-03.tar.gz", [("3.png", picture(3))], "w:gz")
    assert cut(str(tmp_path)) == [Tar(str(path), path.stat().st_size) for path in [*tars, packed]]
    assert [photo.read() for photo in photos_of(tmp_path)] == [picture(i) for i in range(4)]
    assert names(f"{tmp_path}/s-{{00..01}}.tar") == [f"file://{tar}#{i}.png" for i, tar in enumerate(tars[:2])]


@pytest.mark.parametrize("ending", ["tar", "parquet"])
@pytest.mark.parametrize("root", ["", "memory:/"])
def test_a_file_of_a_pattern_that_is_not_there_is_named(tmp_path, memory, root, ending):
    with pytest.raises(DataError, match=rf"s-00\.{ending}: there is no such file; correct the path or the pattern"):
        cut(f"{root}{tmp_path}/s-{{00..01}}.{ending}")


def test_photos_behind_a_url(memory, picture, photos_of):
    found = photos_of("memory://bucket/photos")
    assert [photo.name for photo in found] == [f"memory:///bucket/photos/{i}.png" for i in range(3)]
    assert [photo.read() for photo in found] == [picture(i) for i in range(3)]
    assert len(photos_of("memory://bucket/photos/[12].png")) == 2
    memory.rm("/bucket/photos/1.png")
    with pytest.raises(PhotoError, match=r"1\.png"):
        found[1].read()
    memory.pipe_file("/bucket/photos/2.png", b"")
    with pytest.raises(PhotoError, match="0 bytes"):
        found[2].read()
    with pytest.raises(DataError, match="no such"):
        cut("memory://bucket/other")


def test_packs_behind_a_url(memory, tmp_path, picture, photos_of, write_tar):
    memory.pipe_file("/bucket/t/a.tar", write_tar(tmp_path / "a.tar", [("x.png", picture(7))]).read_bytes())
    table = io.BytesIO()
    parquet.write_table(arrow.table({"jpg": [picture(8)]}), table)
    memory.pipe_file("/bucket/p/a.parquet", table.getvalue())
    memory.pipe_file("/bucket/list.txt", b"photos/0.png\n")
    assert [(photo.name, photo.read()) for photo in photos_of("memory://bucket/t")] == [
        ("memory:///bucket/t/a.tar#x.png", picture(7))
    ]
    assert [(photo.name, photo.read()) for photo in photos_of("memory://bucket/p/*.parquet")] == [
        ("memory:///bucket/p/a.parquet#0", picture(8))
    ]
    assert [photo.read() for photo in photos_of("memory://bucket/list.txt")] == [picture(0)]


def test_samples_of_a_tar_file(tmp_path, picture, photos_of, write_tar):
    members = [
        ("one/a.jpg", picture(1)), ("one/a.json", json.dumps({"labels": ["sea", "dog"]}).encode()),
        ("one/b.seg.png", picture(2)), ("one/b.png", picture(3)), ("one/b.txt", b"cat\nsea|sky\n"),
        ("c.cls", b"7"), ("c.JPG", picture(4)),
        ("d.jpg", picture(5)), ("d.json", b"{damaged"),
        ("e.json", b"{}"), ("._f.jpg", b"x"), ("g.mp4", b"film"), ("h", b"no ending"),
        ("i.jpg", picture(6)), ("i.json", b'{"label": "' + b"x" * MAX_NOTE + b'"}'),
    ]  # fmt: skip
    tar = write_tar(tmp_path / "shard.tar", members)
    found = photos_of(tar)
    assert [(photo.name, photo.labels) for photo in found] == [
        (f"file://{tar}#one/a.jpg", ("dog", "sea")),
        (f"file://{tar}#one/b.seg.png", ("cat", "sea", "sky")),
        (f"file://{tar}#one/b.png", ("cat", "sea", "sky")),
        (f"file://{tar}#c.JPG", ("7",)),
        (f"file://{tar}#d.jpg", None),
        (f"file://{tar}#i.jpg", None),
    ]
    assert [photo.read() for photo in found] == [picture(i) for i in (1, 2, 3, 4, 5, 6)]
    assert not Path(found[0].name).is_absolute()  # no file that a collection could look for


@pytest.mark.parametrize("held", [1 << 28, 0])
def test_every_photo_of_a_tar_file_comes_under_its_own_name(tmp_path, picture, monkeypatch, held, photos_of, write_tar):
    """Also those whose names have several dots, all of one sample, and too many of them to be held at once."""
    monkeypatch.setattr(partitions, "HELD", held)
    members = [
        ("IMG.cls", b"sea"), ("IMG.2024.1.jpg", picture(1)), ("IMG.2024.2.JPG", picture(2)),
        ("IMG.2024.2.json", b'["dog"]'), ("IMG.2024.3.png", picture(3)),
        ("7.jpg", picture(4)), ("7.png", picture(5)), ("7.jpeg.txt", b"no photo"),
    ]  # fmt: skip
    tar = write_tar(tmp_path / "shard.tar", members)
    found = photos_of(tar)
    assert [(photo.name.partition("#")[2], photo.labels) for photo in found] == [
        ("IMG.2024.1.jpg", ("sea",)), ("IMG.2024.2.JPG", ("dog",)), ("IMG.2024.3.png", ("sea",)),
        ("7.jpg", None), ("7.png", None),
    ]  # fmt: skip
    assert [photo.read() for photo in found] == [picture(i) for i in range(1, 6)]


def test_links_in_a_tar_file_are_told(tmp_path, picture, photos_of):
    (tmp_path / "a.png").write_bytes(picture(1))
    (tmp_path / "b.png").hardlink_to(tmp_path / "a.png")
    (tmp_path / "c.png").symlink_to("a.png")
    with tarfile.open(tmp_path / "links.tar", "w") as tar:
        for name in ("a.png", "b.png", "c.png"):
            tar.add(tmp_path / name, name)
    photo, *links = photos_of(tmp_path / "links.tar")
    assert photo.read() == picture(1)
    assert len(links) == 2
    for link in links:
        with pytest.raises(PhotoError, match=r"[bc]\.png: a link"):
            link.read()


def test_a_tar_file_that_is_cut_off_or_has_no_photos(tmp_path, picture, photos_of, write_tar):
    whole = write_tar(tmp_path / "whole.tar", [(f"{i}.png", picture(i)) for i in range(4)])
    (tmp_path / "cut.tar").write_bytes(whole.read_bytes()[:3000])
    *fine, broken = photos_of(tmp_path / "cut.tar")
    assert [photo.read() for photo in fine] == [picture(i) for i in range(len(fine))]
    with pytest.raises(PhotoError, match="cut off"):
        broken.read()
    (nothing,) = photos_of(write_tar(tmp_path / "none.tar", [("a.json", b"{}")]))
    with pytest.raises(PhotoError, match="no photo among 1"):
        nothing.read()


def test_rows_of_parquet(tmp_path, picture, photos_of):
    path = tmp_path / "photos.parquet"
    columns = {
        "id": list(range(100, 110)),
        "image": [picture(i) for i in range(9)] + [None],
        "labels": [["dog", "cat"], None, [], *([["sea"]] * 7)],
    }
    parquet.write_table(arrow.table(columns), path, row_group_size=3)
    cuts = cut(str(path), per_shard=5)
    assert all(isinstance(groups, RowGroups) for groups in cuts)
    assert [(groups.first, groups.last, groups.count, groups.before) for groups in cuts] == [
        (0, 2, 6, 0), (2, 4, 4, 6),
    ]  # fmt: skip
    found = photos_of(path, per_shard=5)
    assert [photo.name for photo in found] == [f"file://{path}#{i}/{100 + i}" for i in range(10)]
    assert [photo.labels for photo in found[:4]] == [("cat", "dog"), None, (), ("sea",)]
    assert [photo.read() for photo in found[:9]] == [picture(i) for i in range(9)]
    with pytest.raises(PhotoError, match="no photo in this row"):
        found[9].read()


def test_parquet_as_hugging_face_writes_it_and_without_names(tmp_path, picture, photos_of):
    path = tmp_path / "hub.parquet"
    photos = [{"bytes": picture(1), "path": "cat.jpg"}, {"bytes": picture(2), "path": None}]
    parquet.write_table(arrow.table({"image": photos, "label": [3, 5]}), path)
    assert [(photo.name, photo.labels, photo.read()) for photo in photos_of(path)] == [
        (f"file://{path}#0/cat.jpg", ("3",), picture(1)),
        (f"file://{path}#1", ("5",), picture(2)),
    ]
    parquet.write_table(arrow.table({"words": ["a"], "numbers": [1]}), path)
    with pytest.raises(DataError, match="words, numbers"):
        photos_of(path)


@pytest.mark.parametrize("groups", [3, 12])
def test_rows_with_one_name_are_photos_of_their_own(tmp_path, picture, groups, names):
    """… whose names do not depend on the cut."""
    path = tmp_path / "photos.parquet"
    columns = {"name": ["image.jpg"] * 5 + [None], "image": [picture(i) for i in range(6)]}
    parquet.write_table(arrow.table(columns), path, row_group_size=groups)
    assert names(path, per_shard=1) == [*(f"file://{path}#{i}/image.jpg" for i in range(5)), f"file://{path}#5"]


def test_a_damaged_row_group_costs_its_own_rows_alone(tmp_path, picture, photos_of):
    path = tmp_path / "photos.parquet"
    columns = {"image": [picture(i) for i in range(9)]}
    parquet.write_table(arrow.table(columns), path, row_group_size=3, compression="snappy", use_dictionary=False)
    footer = parquet.read_metadata(path)
    start, size = (
        getattr(footer.row_group(1).column(0), name) for name in ("data_page_offset", "total_compressed_size")
    )
    data = bytearray(path.read_bytes())
    data[start + 40 : start + size] = b"\xff" * (size - 40)
    path.write_bytes(data)
    found = photos_of(path)
    assert [photo.name.partition("#")[2] for photo in found] == ["0", "1", "2", "3", "6", "7", "8"]
    with pytest.raises(PhotoError, match=r"rows 3 to 5 are damaged \(.+\); copy it again$"):
        found[3].read()
    assert [photo.read() for photo in found[:3] + found[4:]] == [picture(i) for i in (0, 1, 2, 6, 7, 8)]


def test_a_parquet_file_that_is_overwritten_after_the_cut_is_told(tmp_path, picture):
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"jpg": [picture(8)] * 3}), path)
    (partition,) = cut(str(path))
    path.write_bytes(b"something else")
    (lost,) = partition.photos()
    with pytest.raises(PhotoError, match="rows 0 to 2 are damaged"):
        lost.read()
