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


@pytest.mark.parametrize("labels", [["cat"] * 3, ["a", "b", "c"]])
def test_labels_that_no_split_could_be_drawn_from(folder, labels):
    rows = [f"a/0{i}.png,{label}" for i, label in enumerate(labels)]
    (folder / "labels.csv").write_text("\n".join(["image,labels", *rows]))
    assert [raw.labels for raw in raws(folder / "labels.csv")] == [(label,) for label in labels]


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
        ("i.jpg", picture(6)), ("i.json", b'{"label": "' + b"x" * parts.MAX_NOTE + b'"}'),
    ]  # fmt: skip
    tar = write_tar(tmp_path / "shard.tar", members)
    found = raws(tar)
    assert [(raw.name, raw.labels) for raw in found] == [
        (f"file://{tar}#one/a.jpg", ("dog", "sea")),
        (f"file://{tar}#one/b.seg.png", ("cat", "sea", "sky")),
        (f"file://{tar}#one/b.png", ("cat", "sea", "sky")),
        (f"file://{tar}#c.JPG", ("7",)),
        (f"file://{tar}#d.jpg", None),
        (f"file://{tar}#i.jpg", None),
    ]
    assert [raw.read() for raw in found] == [picture(i) for i in (1, 2, 3, 4, 5, 6)]
    assert not Path(found[0].name).is_absolute()  # no file that a collection could look for


@pytest.mark.parametrize("held", [1 << 28, 0])
def test_every_photo_of_a_tar_file_comes_under_its_own_name(tmp_path, picture, monkeypatch, held):
    """Also those whose names have several dots, all of one sample, and too many of them to be held at once."""
    monkeypatch.setattr(parts, "HELD", held)
    members = [
        ("IMG.cls", b"sea"), ("IMG.2024.1.jpg", picture(1)), ("IMG.2024.2.JPG", picture(2)),
        ("IMG.2024.2.json", b'["dog"]'), ("IMG.2024.3.png", picture(3)),
        ("7.jpg", picture(4)), ("7.png", picture(5)), ("7.jpeg.txt", b"no photo"),
    ]  # fmt: skip
    tar = write_tar(tmp_path / "shard.tar", members)
    found = raws(tar)
    assert [(raw.name.partition("#")[2], raw.labels) for raw in found] == [
        ("IMG.2024.1.jpg", ("sea",)), ("IMG.2024.2.JPG", ("dog",)), ("IMG.2024.3.png", ("sea",)),
        ("7.jpg", None), ("7.png", None),
    ]  # fmt: skip
    assert [raw.read() for raw in found] == [picture(i) for i in range(1, 6)]


def test_links_in_a_tar_file_are_told(tmp_path, picture):
    (tmp_path / "a.png").write_bytes(picture(1))
    (tmp_path / "b.png").hardlink_to(tmp_path / "a.png")
    (tmp_path / "c.png").symlink_to("a.png")
    with tarfile.open(tmp_path / "links.tar", "w") as tar:
        for name in ("a.png", "b.png", "c.png"):
            tar.add(tmp_path / name, name)
    photo, *links = raws(tmp_path / "links.tar")
    assert photo.read() == picture(1)
    assert len(links) == 2
    for link in links:
        with pytest.raises(PhotoError, match=r"[bc]\.png: a link"):
            link.read()


def test_many_tar_files_one_shard_each(tmp_path, picture):
    tars = [write_tar(tmp_path / f"s-{i:02}.tar", [(f"{i}.png", picture(i))]) for i in range(3)]
    packed = write_tar(tmp_path / "s-03.tar.gz", [("3.png", picture(3))], "w:gz")
    assert cut(str(tmp_path)) == [Tar(str(path), path.stat().st_size) for path in [*tars, packed]]
    assert [raw.read() for raw in raws(tmp_path)] == [picture(i) for i in range(4)]
    assert names(f"{tmp_path}/s-{{00..01}}.tar") == [f"file://{tar}#{i}.png" for i, tar in enumerate(tars[:2])]


@pytest.mark.parametrize("ending", ["tar", "parquet"])
@pytest.mark.parametrize("root", ["", "memory:/"])
def test_a_file_of_a_pattern_that_is_not_there_is_named(tmp_path, memory, root, ending):
    with pytest.raises(DataError, match=rf"s-00\.{ending}: there is no such file; correct the path or the pattern"):
        cut(f"{root}{tmp_path}/s-{{00..01}}.{ending}")


def test_a_place_that_may_not_be_read_is_named(tmp_path, memory, monkeypatch):
    (tmp_path / "folder.tar").mkdir()
    with pytest.raises(
        DataError, match=r"folder\.tar: cannot be read \(Is a directory\); correct the path or the rights"
    ):
        list(Tar(str(tmp_path / "folder.tar"), 0).raws())

    def refuse(self, path):
        raise PermissionError(path)

    monkeypatch.setattr(type(memory), "size", refuse)
    with pytest.raises(DataError, match=r"1\.tar: cannot be read \(PermissionError\)"):
        cut("memory://bucket/{1..2}.tar")


def test_a_store_that_fails_in_the_middle_is_no_damage(memory, tmp_path, picture, monkeypatch):
    """The shard is not made, and so comes another time."""
    table = io.BytesIO()
    parquet.write_table(arrow.table({"jpg": [picture(8)]}), table)
    memory.pipe_file("/bucket/p/a.parquet", table.getvalue())
    memory.pipe_file("/bucket/t/a.tar", write_tar(tmp_path / "a.tar", [("x.png", picture(7))]).read_bytes())
    sources = [cut("memory://bucket/p"), cut("memory://bucket/t")]
    real = places.opened

    class Shaky(io.BytesIO):
        def read(self, size=-1, /):
            if self.tell() < 8 and size != 0:
                raise ConnectionResetError(104, "reset")
            return super().read(size)

    monkeypatch.setattr(places, "opened", lambda place: Shaky(real(place).read()))
    for (part,) in sources:
        with pytest.raises(DataError, match=r"a\.(tar|parquet): reading ended .*the same command goes on"):
            list(part.raws())


def test_a_parquet_file_that_is_overwritten_after_the_cut_is_told(tmp_path, picture):
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"jpg": [picture(8)] * 3}), path)
    (part,) = cut(str(path))
    path.write_bytes(b"something else")
    (lost,) = part.raws()
    with pytest.raises(PhotoError, match="rows 0 to 2 are damaged"):
        lost.read()


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
    assert [raw.name for raw in found] == [f"file://{path}#{i}/{100 + i}" for i in range(10)]
    assert [raw.labels for raw in found[:4]] == [("cat", "dog"), None, (), ("sea",)]
    assert [raw.read() for raw in found[:9]] == [picture(i) for i in range(9)]
    with pytest.raises(PhotoError, match="no photo in this row"):
        found[9].read()


def test_parquet_as_hugging_face_writes_it_and_without_names(tmp_path, picture):
    path = tmp_path / "hub.parquet"
    photos = [{"bytes": picture(1), "path": "cat.jpg"}, {"bytes": picture(2), "path": None}]
    parquet.write_table(arrow.table({"image": photos, "label": [3, 5]}), path)
    assert [(raw.name, raw.labels, raw.read()) for raw in raws(path)] == [
        (f"file://{path}#0/cat.jpg", ("3",), picture(1)),
        (f"file://{path}#1", ("5",), picture(2)),
    ]
    parquet.write_table(arrow.table({"words": ["a"], "numbers": [1]}), path)
    with pytest.raises(DataError, match="words, numbers"):
        raws(path)


@pytest.mark.parametrize("groups", [3, 12])
def test_rows_with_one_name_are_photos_of_their_own(tmp_path, picture, groups):
    """… whose names do not depend on the cut."""
    path = tmp_path / "photos.parquet"
    columns = {"name": ["image.jpg"] * 5 + [None], "image": [picture(i) for i in range(6)]}
    parquet.write_table(arrow.table(columns), path, row_group_size=groups)
    assert names(path, per_shard=1) == [*(f"file://{path}#{i}/image.jpg" for i in range(5)), f"file://{path}#5"]


def test_a_damaged_row_group_costs_its_own_rows_alone(tmp_path, picture):
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
    found = raws(path)
    assert [raw.name.partition("#")[2] for raw in found] == ["0", "1", "2", "3", "6", "7", "8"]
    with pytest.raises(PhotoError, match=r"rows 3 to 5 are damaged \(.+\); copy it again$"):
        found[3].read()
    assert [raw.read() for raw in found[:3] + found[4:]] == [picture(i) for i in (0, 1, 2, 6, 7, 8)]


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
