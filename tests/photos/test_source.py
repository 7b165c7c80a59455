"""Some photos, wherever their bytes come from: the same face."""

from pathlib import Path

import pytest

from hyphash.errors import PhotoError
from hyphash.photos import Chosen, PhotoBytes, PhotoFiles, read_bytes


def test_files_are_named_as_they_were_given(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("a/x.jpg", "y.jpg"):
        (tmp_path / name).write_bytes(name.encode())
    under, anywhere = PhotoFiles(["a/x.jpg", "y.jpg"], tmp_path), PhotoFiles([tmp_path / "a/x.jpg", tmp_path / "y.jpg"])
    assert len(under) == len(anywhere) == 2
    assert [under.name(0), anywhere.name(0)] == ["a/x.jpg", str(tmp_path / "a/x.jpg")]
    assert under.path(0) == anywhere.path(0) == tmp_path / "a/x.jpg"
    assert under.read(1) == anywhere.read(1) == b"y.jpg"
    assert PhotoFiles(["z.jpg"]).path(0) == Path("z.jpg")


def test_photos_in_memory_have_no_path():
    photos = PhotoBytes([("a", b"1"), ("b", b"2")])
    assert (len(photos), photos.name(1), photos.path(1), photos.read(1)) == (2, "b", None, b"2")


def test_some_of_the_photos_are_those():
    some = Chosen(PhotoBytes([("a", b"1"), ("b", b"2"), ("c", b"3")]), [2, 0])
    assert [(some.name(i), some.path(i), some.read(i)) for i in range(len(some))] == [
        ("c", None, b"3"),
        ("a", None, b"1"),
    ]


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "empty.jpg").touch()
    with pytest.raises(PhotoError, match=r"empty.jpg: an empty file"):
        read_bytes(tmp_path / "empty.jpg")
    with pytest.raises(PhotoError, match=r"none.jpg: there is no such photo"):
        read_bytes(tmp_path / "none.jpg")
    with pytest.raises(PhotoError, match="a folder, not a photo"):
        read_bytes(tmp_path)
    with pytest.raises(PhotoError, match="cannot be read"):
        read_bytes("a\0b.jpg")
    with pytest.raises(PhotoError, match="cannot be read"):
        read_bytes(tmp_path / ("x" * 300))
    (tmp_path / "a.jpg").write_bytes(b"abc")
    assert read_bytes(str(tmp_path / "a.jpg")) == b"abc"


def test_a_file_of_gigabytes_is_refused_unread(tmp_path):
    with (tmp_path / "film.jpg").open("wb") as file:
        file.truncate(1 << 31)  # sparse
    with pytest.raises(PhotoError, match=r"film.jpg: 2.1 GB are too much"):
        read_bytes(tmp_path / "film.jpg")
