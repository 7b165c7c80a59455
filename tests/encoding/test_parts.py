"""Sources: folders, lists, patterns, tar files, Parquet, URLs."""

import io
import json
import pickle
import tarfile
from pathlib import Path

import pyarrow as arrow
import pytest
from pyarrow import parquet

from hyphash.encoding import parts, places
from hyphash.encoding.parts import PER_SHARD, Photos, Rows, Tar, cut
from hyphash.errors import ConfigError, DataError, LabelError, PhotoError


def raws(source, **options):
    """The photos of a source, as they come out in another process."""
    return [pickle.loads(pickle.dumps(raw)) for part in cut(str(source), **options) for raw in part.raws()]


def names(source, **options):
    return [raw.name for raw in raws(source, **options)]


def write_tar(path, members, mode="w"):
    with tarfile.open(path, mode) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_folder_in_order_without_what_is_hidden(folder):
    (folder / ".hidden.png").write_bytes(b"x")
    (folder / "notes.md").write_text("no photo")
    assert names(folder) == [str(path) for path in sorted(folder.rglob("[!.]*.png"))]
    assert names(f"file://{folder}") == names(folder)


def test_shards_have_the_asked_size_and_few_photos_make_many_shards_at_need(folder, monkeypatch):
    assert [part.count for part in cut(str(folder), per_shard=6)] == [6, 6, 6, 2]
    assert [part.count for part in cut(str(folder))] == [20]
    listed = folder / "list.txt"
    listed.write_text("".join(f"{i}.jpg\n" for i in range(1000)))
    assert [part.count for part in cut(str(listed))] == [64] * 15 + [40]
    assert PER_SHARD == 10_000
    monkeypatch.setattr(parts, "PER_SHARD", 100)
    listed.write_text("".join(f"{i}.jpg\n" for i in range(6401)))
    assert [part.count for part in cut(str(listed))] == [100] * 64 + [1]
    assert cut(str(listed)) == cut(str(listed))
    with pytest.raises(ConfigError):
        cut(str(folder), per_shard=0)


def test_a_pattern_a_photo_and_a_list(folder, tmp_path):
    assert names(folder / "*" / "1?.png") == [str(folder / "b" / f"{i}.png") for i in range(10, 20)]
    assert names(folder / "a" / "00.png") == [str(folder / "a" / "00.png")]
    listed = tmp_path / "list.txt"
    listed.write_text(
        f"photos/a/03.png\n\n{folder}/a/01.png\nphotos/a/03.png\nmemory://x/y.jpg\n", encoding="utf-8-sig"
    )
    assert names(listed) == [str(folder / "a" / "03.png"), str(folder / "a" / "01.png"), "memory://x/y.jpg"]


def test_a_label_file_brings_labels(folder):
    (folder / "labels.csv").write_text("image,labels\na/01.png,dog|sea\na/02.png,\ngone.png,cat\n")
    found = raws(folder / "labels.csv")
    assert [(Path(raw.name).name, raw.labels) for raw in found] == [
        ("01.png", ("dog", "sea")), ("02.png", ()), ("gone.png", ("cat",)),
    ]  # fmt: skip
    with pytest.raises(PhotoError, match=r"gone\.png"):
        found[2].read()


def test_sources_that_are_none(folder, tmp_path):
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


# ── tar files ────────────────────────────────────────────────────────────────────────────────────────────


def test_samples_of_a_tar_file(tmp_path, picture):
    members = [
        ("one/a.jpg", picture(1)), ("one/a.json", json.dumps({"labels": ["sea", "dog"]}).encode()),
        ("one/b.seg.png", picture(2)), ("one/b.png", picture(3)), ("one/b.txt", b"cat\nsea|sky\n"),
        ("c.cls", b"7"), ("c.JPG", picture(4)),
        ("d.jpg", picture(5)), ("d.json", b"{damaged"),
        ("e.json", b"{}"), ("._f.jpg", b"x"), ("g.mp4", b"film"), ("h", b"no ending"),
    ]  # fmt: skip
    tar = write_tar(tmp_path / "shard.tar", members)
    found = raws(tar)
    assert [(raw.name, raw.labels) for raw in found] == [
        (f"file://{tar}#one/a.jpg", ("dog", "sea")),
        (f"file://{tar}#one/b.png", ("cat", "sea", "sky")),
        (f"file://{tar}#c.JPG", ("7",)),
        (f"file://{tar}#d.jpg", None),
    ]
    assert [raw.read() for raw in found] == [picture(i) for i in (1, 3, 4, 5)]
    assert not Path(found[0].name).is_absolute()  # no file that a collection could look for


def test_many_tar_files_one_shard_each(tmp_path, picture):
    tars = [write_tar(tmp_path / f"s-{i:02}.tar", [(f"{i}.png", picture(i))]) for i in range(3)]
    packed = write_tar(tmp_path / "s-03.tar.gz", [("3.png", picture(3))], "w:gz")
    assert cut(str(tmp_path)) == [Tar(str(path), path.stat().st_size) for path in [*tars, packed]]
    assert [raw.read() for raw in raws(tmp_path)] == [picture(i) for i in range(4)]
    assert names(f"{tmp_path}/s-{{00..01}}.tar") == [f"file://{tar}#{i}.png" for i, tar in enumerate(tars[:2])]


def test_a_tar_file_that_is_cut_off_or_has_no_photos(tmp_path, picture):
    whole = write_tar(tmp_path / "whole.tar", [(f"{i}.png", picture(i)) for i in range(4)])
    (tmp_path / "cut.tar").write_bytes(whole.read_bytes()[:3000])
    *fine, broken = raws(tmp_path / "cut.tar")
    assert [raw.read() for raw in fine] == [picture(i) for i in range(len(fine))]
    with pytest.raises(PhotoError, match="cut off"):
        broken.read()
    (nothing,) = raws(write_tar(tmp_path / "none.tar", [("a.json", b"{}")]))
    with pytest.raises(PhotoError, match="no photo among 1"):
        nothing.read()


# ── Parquet ──────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_of_parquet(tmp_path, picture):
    path = tmp_path / "photos.parquet"
    columns = {
        "id": list(range(100, 110)),
        "image": [picture(i) for i in range(9)] + [None],
        "labels": [["dog", "cat"], None, [], *([["sea"]] * 7)],
    }
    parquet.write_table(arrow.table(columns), path, row_group_size=3)
    cuts = cut(str(path), per_shard=5)
    assert [(part.first, part.last, part.count, part.before) for part in cuts if isinstance(part, Rows)] == [
        (0, 2, 6, 0), (2, 4, 4, 6),
    ]  # fmt: skip
    found = raws(path, per_shard=5)
    assert [raw.name for raw in found] == [f"file://{path}#{i}" for i in range(100, 110)]
    assert [raw.labels for raw in found[:4]] == [("cat", "dog"), None, (), ("sea",)]
    assert [raw.read() for raw in found[:9]] == [picture(i) for i in range(9)]
    with pytest.raises(PhotoError, match="no photo in this row"):
        found[9].read()


def test_parquet_as_hugging_face_writes_it_and_without_names(tmp_path, picture):
    path = tmp_path / "hub.parquet"
    photos = [{"bytes": picture(1), "path": "cat.jpg"}, {"bytes": picture(2), "path": None}]
    parquet.write_table(arrow.table({"image": photos, "label": [3, 5]}), path)
    assert [(raw.name, raw.labels, raw.read()) for raw in raws(path)] == [
        (f"file://{path}#cat.jpg", ("3",), picture(1)),
        (f"file://{path}#1", ("5",), picture(2)),
    ]
    parquet.write_table(arrow.table({"words": ["a"], "numbers": [1]}), path)
    with pytest.raises(DataError, match="words, numbers"):
        raws(path)


# ── URLs ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def memory(picture):
    import fsspec

    system = fsspec.filesystem("memory")
    for i in range(3):
        system.pipe_file(f"/bucket/photos/{i}.png", picture(i))
    system.pipe_file("/bucket/photos/.hidden.png", b"x")
    yield system
    system.rm("/bucket", recursive=True)


def test_photos_behind_a_url(memory, picture):
    found = raws("memory://bucket/photos")
    assert [raw.name for raw in found] == [f"memory:///bucket/photos/{i}.png" for i in range(3)]
    assert [raw.read() for raw in found] == [picture(i) for i in range(3)]
    assert len(raws("memory://bucket/photos/[12].png")) == 2
    memory.rm("/bucket/photos/1.png")
    with pytest.raises(PhotoError, match=r"1\.png"):
        found[1].read()
    memory.pipe_file("/bucket/photos/2.png", b"")
    with pytest.raises(PhotoError, match="0 bytes"):
        found[2].read()
    with pytest.raises(DataError, match="no such"):
        cut("memory://bucket/other")


def test_packs_behind_a_url(memory, tmp_path, picture):
    memory.pipe_file("/bucket/t/a.tar", write_tar(tmp_path / "a.tar", [("x.png", picture(7))]).read_bytes())
    table = io.BytesIO()
    parquet.write_table(arrow.table({"jpg": [picture(8)]}), table)
    memory.pipe_file("/bucket/p/a.parquet", table.getvalue())
    memory.pipe_file("/bucket/list.txt", b"photos/0.png\n")
    assert [(raw.name, raw.read()) for raw in raws("memory://bucket/t")] == [
        ("memory:///bucket/t/a.tar#x.png", picture(7))
    ]
    assert [(raw.name, raw.read()) for raw in raws("memory://bucket/p/*.parquet")] == [
        ("memory:///bucket/p/a.parquet#0", picture(8))
    ]
    assert [raw.read() for raw in raws("memory://bucket/list.txt")] == [picture(0)]


def test_a_missing_package_is_named(monkeypatch):
    from fsspec.registry import known_implementations

    known = {"class": "no_such_s3fs.S3FileSystem", "err": "Install s3fs"}
    monkeypatch.setitem(known_implementations, "cloudy", known)
    with pytest.raises(ConfigError, match="pip install no_such_s3fs"):
        cut("cloudy://bucket/photos")
    with pytest.raises(ConfigError, match="unknown"):
        cut("nonsense://bucket/photos")


def test_passwords_do_not_get_into_names():
    with pytest.raises(ConfigError, match="password in the URL") as refused:
        cut("ftp://me:secret@host/photos")
    assert "secret" not in str(refused.value)
    assert places.normal("s3://bucket/a:b@c.jpg") == "s3://bucket/a:b@c.jpg"


def test_a_place_that_does_not_answer_at_once_is_asked_again(memory, monkeypatch, picture):
    (part,) = cut("memory://bucket/photos")
    assert isinstance(part, Photos)
    first = next(part.raws())
    calls = []
    real = type(memory).cat_file

    def shaky(self, path, **options):
        calls.append(path)
        if len(calls) < 3:
            raise ConnectionError("reset")
        return real(self, path, **options)

    monkeypatch.setattr(type(memory), "cat_file", shaky)
    assert first.read() == picture(0)
    assert len(calls) == 3


def test_labels_of_a_label_file_are_checked(folder):
    (folder / "labels.jsonl").write_text('{"image": "a/01.png", "labels": "dog"}\n')
    with pytest.raises(LabelError):
        cut(str(folder / "labels.jsonl"))
