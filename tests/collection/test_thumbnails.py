"""What a collection keeps of its photos: by content, each once, until no photo needs it."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hyphash.collection.thumbnails import GRACE, Originals, Thumbnails

ONE, TWO, THREE = (f"{number}" * 64 for number in (1, 2, 3))


@pytest.fixture
def thumbnails(tmp_path: Path) -> Iterator[Thumbnails]:
    thumbnails = Thumbnails(tmp_path)
    yield thumbnails
    thumbnails.close()


def test_a_thumbnail_is_found_by_content(thumbnails: Thumbnails, tmp_path: Path) -> None:
    thumbnails.put({ONE: b"one", TWO: b"two"})
    thumbnails.put({})
    thumbnails.put({ONE: b"one again"})
    assert (thumbnails.get(ONE), thumbnails.get(TWO), thumbnails.get(THREE)) == (b"one again", b"two", None)
    other = Thumbnails(tmp_path)
    assert other.get(TWO) == b"two"
    other.close()


def test_thumbnails_that_nobody_needs_are_swept_away(thumbnails: Thumbnails, monkeypatch: pytest.MonkeyPatch) -> None:
    many = {f"{number:064x}": b"jpeg" for number in range(1200)}  # more than are looked at together
    thumbnails.put(many)
    kept = set(list(many)[::7])
    thumbnails.sweep(lambda contents: kept & set(contents))
    assert {content for content in many if thumbnails.get(content)} == set(many)  # photos may be on their way
    monkeypatch.setattr("hyphash.collection.thumbnails.GRACE", -1)
    thumbnails.sweep(lambda contents: kept & set(contents))
    assert {content for content in many if thumbnails.get(content)} == kept
    thumbnails.put({ONE: b"one"})
    monkeypatch.undo()
    thumbnails.put({ONE: b"one"})  # put again, it is new again
    thumbnails.sweep(lambda _: set())
    assert thumbnails.get(ONE) == b"one"


def test_a_database_that_was_deleted_is_made_again(thumbnails: Thumbnails, tmp_path: Path) -> None:
    thumbnails.put({ONE: b"one"})
    thumbnails.close()
    for file in tmp_path.glob("thumbnails.sqlite*"):
        file.unlink()
    again = Thumbnails(tmp_path)
    assert again.get(ONE) is None
    again.put({ONE: b"one"})
    assert (again.get(ONE), again.verify()) == (b"one", [])
    again.close()


def test_verify_tells_what_sqlite_finds(thumbnails: Thumbnails, tmp_path: Path) -> None:
    thumbnails.put({f"{number:064x}": os.urandom(3000) for number in range(50)})
    assert thumbnails.verify() == []
    with thumbnails.database.asking() as connection:
        connection.execute("PRAGMA writable_schema = ON")
        table = "CREATE TABLE thumbnails (content BLOB PRIMARY KEY, jpeg BLOB CHECK (length(jpeg) < 9))"
        connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'thumbnails'", (table,))
    thumbnails.close()
    again = Thumbnails(tmp_path)
    found = " ".join(again.verify())
    again.close()
    assert "delete this file, thumbnails are made again" in found


def test_an_original_is_kept_once_and_whole(tmp_path: Path) -> None:
    originals = Originals(tmp_path)
    assert originals.path(ONE) is None
    originals.keep(ONE, b"bytes of a photo")
    path = originals.path(ONE)
    assert path is not None
    assert path.read_bytes() == b"bytes of a photo"
    os.utime(path, (1, 1))
    inode = path.stat().st_ino
    originals.keep(ONE, b"bytes of a photo")
    assert path.stat().st_ino == inode  # not written again
    assert path.stat().st_mtime > 1  # but young: nobody sweeps it away before its photo is there


def test_old_originals_that_nobody_needs_are_swept_away(tmp_path: Path) -> None:
    originals = Originals(tmp_path)
    for content in (ONE, TWO, THREE):
        originals.keep(content, b"x")
    for content in (ONE, TWO):
        path = originals.path(content)
        assert path is not None
        os.utime(path, (path.stat().st_mtime - 2 * GRACE,) * 2)
    assert list(originals.contents()) == [ONE, TWO, THREE]
    originals.sweep([ONE, TWO, THREE], lambda contents: {ONE} & set(contents))
    # the third may belong to a photo that is just being added
    assert [originals.path(content) is not None for content in (ONE, TWO, THREE)] == [True, False, True]


def test_only_files_with_names_of_ours_are_originals(tmp_path: Path) -> None:
    originals = Originals(tmp_path / "c")
    originals.keep(ONE, b"x")
    (tmp_path / "c" / "originals" / "22").mkdir()
    (tmp_path / "c" / "originals" / "22" / TWO).symlink_to(tmp_path / "letter")
    (tmp_path / "c" / "originals" / "11" / f".{ONE}.1.draft").touch()  # of an upload that was killed
    (tmp_path / "c" / "originals" / "11" / "notes").touch()
    (tmp_path / "c" / "originals" / "11" / THREE).touch()  # at home elsewhere
    (tmp_path / "letter").write_bytes(b"mine")
    assert list(originals.contents()) == [ONE]
    assert originals.path(TWO) is None


def test_an_original_that_is_damaged_is_told(tmp_path: Path) -> None:
    originals = Originals(tmp_path)
    content = hashlib.sha256(b"bytes of a photo").hexdigest()
    originals.keep(content, b"bytes of a photo")
    assert originals.verify() == []
    path = originals.path(content)
    assert path is not None
    path.write_bytes(b"bytes of a phots")
    assert originals.verify() == [f"{path}: damaged; restore it from a backup, or add the photo again"]


def test_a_damaged_database_of_thumbnails_is_not_to_be_restored(thumbnails: Thumbnails, tmp_path: Path) -> None:
    thumbnails.put({f"{number:064x}": os.urandom(3000) for number in range(50)})
    thumbnails.close()
    path = tmp_path / "thumbnails.sqlite"
    path.write_bytes(path.read_bytes()[:4096] + os.urandom(20_000))
    again = Thumbnails(tmp_path)
    assert all("delete this file, thumbnails are made again" in words for words in again.verify())
    again.close()
