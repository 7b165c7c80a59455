"""Tar files of samples."""

import json
import tarfile
from pathlib import Path

import pytest

from hyphash.encoding import tars
from hyphash.errors import PhotoError


def test_samples_of_a_tar_file(tmp_path, picture, photos_of, write_tar):
    members = [
        ("one/a.jpg", picture(1)), ("one/a.json", json.dumps({"labels": ["sea", "dog"]}).encode()),
        ("one/b.seg.png", picture(2)), ("one/b.png", picture(3)), ("one/b.txt", b"cat\nsea|sky\n"),
        ("c.cls", b"7"), ("c.JPG", picture(4)),
        ("d.jpg", picture(5)), ("d.json", b"{damaged"),
        ("e.json", b"{}"), ("._f.jpg", b"x"), ("g.mp4", b"film"), ("h", b"no ending"),
        ("i.jpg", picture(6)), ("i.json", b'{"label": "' + b"x" * tars.MAX_NOTE + b'"}'),
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
    monkeypatch.setattr(tars, "HELD", held)
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
