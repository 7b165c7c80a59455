"""Sources: folders, lists, patterns, label files, here and behind URLs."""

import io
from pathlib import Path

import pyarrow as arrow
import pytest
from pyarrow import parquet

from hyphash.encoding import partitions
from hyphash.encoding.partitions import PER_SHARD, cut
from hyphash.encoding.tars import Tar
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
