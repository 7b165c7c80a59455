"""A collection that somebody sent: nothing outside of its folder is written, deleted, run or waited for."""

import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from hyphash.collection import Collection
from hyphash.errors import CollectionError, ConfigError, HyphashError, PhotoError, StorageError

FILES = ("thumbnails.sqlite-writer", "collection.sqlite-wal", "thumbnails.sqlite", "codes-1.safetensors", "note")


@pytest.fixture
def sent(collection: Collection, photos: list[Path]) -> Path:
    """A collection of three files and of a photo that it keeps, closed."""
    collection.add(photos[:3])
    collection.add_bytes(photos[4].read_bytes(), "upload.jpg")
    collection.close()
    return collection.folder


def written(file: Path, statement: str, *values: Any) -> None:
    """Change a database as somebody else would."""
    connection = sqlite3.connect(file)
    connection.execute(statement, values)
    connection.commit()
    connection.close()


@pytest.mark.parametrize("name", [*FILES, "hashers"])
def test_links_are_refused(sent: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "bashrc").write_text("alias ls=ls")
    if name == "hashers":
        (sent / name).rename(tmp_path / "moved")
    else:
        (sent / name).unlink(missing_ok=True)
    (sent / name).symlink_to(tmp_path / ("moved" if name == "hashers" else "bashrc"))
    with pytest.raises(StorageError, match=f"{name}: a link or a special file; a collection holds"):
        Collection.open(sent)
    assert (tmp_path / "bashrc").read_text() == "alias ls=ls"


@pytest.mark.parametrize("place", ["hashers/0000000000000000", "hashers/{}/network.onnx", "originals/ff"])
def test_links_further_down_are_refused(sent: Path, tmp_path: Path, place: str) -> None:
    (hasher,) = (sent / "hashers").iterdir()
    (sent / place.format(hasher.name)).symlink_to(tmp_path)
    with pytest.raises(StorageError, match="a link or a special file"):
        Collection.open(sent)


def test_a_link_that_comes_later_is_not_written_through(sent: Path, tmp_path: Path) -> None:
    with Collection.open(sent) as opened:
        (tmp_path / "bashrc").write_text("alias ls=ls")
        (sent / "thumbnails.sqlite-writer").symlink_to(tmp_path / "bashrc")
        opened.thumbnails.put({"0" * 64: b"jpeg"})
        opened.relabel(1, ["cat"])
    assert (tmp_path / "bashrc").read_text() == "alias ls=ls"


def test_compact_deletes_nothing_but_its_own(sent: Path, tmp_path: Path) -> None:
    objects = tmp_path / "objects"
    kept = (
        objects / ("ab" + "0" * 62),
        sent / "codes-of-mine.csv",
        sent / "hashers" / "mine",
        sent / "originals" / "x",
    )
    for path in kept:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
        os.utime(path, (1, 1))
    with Collection.open(sent) as opened:
        (sent / "originals" / "ab").symlink_to(objects)
        opened.compact()
    assert all(path.exists() for path in kept)


def test_a_killed_upload_is_swept(sent: Path) -> None:
    (original,) = (sent / "originals").glob("??/*")
    drafts = original.with_name(f".{original.name}.4711.draft"), sent / "hashers" / ".0123456789abcdef.1.draft"
    drafts[0].write_bytes(b"half")
    drafts[1].mkdir()
    for draft in drafts:
        os.utime(draft, (1, 1))
    with Collection.open(sent) as opened:
        opened.compact()
        assert opened.original(4)
    assert not any(draft.exists() for draft in drafts)


def test_an_original_that_compact_sweeps_is_there_when_its_photo_is(
    sent: Path, photos: list[Path], hasher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The photo comes back at the moment when `compact` has just decided that nobody needs its file."""
    data = photos[4].read_bytes()
    with Collection.open(sent, hasher=hasher) as opened, Collection.open(sent, hasher=hasher) as visitor:
        opened.remove([4])
        (original,) = (sent / "originals").glob("??/*")
        put = visitor.store.put

        def late(*arguments: Any, **options: Any) -> Any:
            os.utime(original, (1, 1))  # the hour is over
            opened.compact()
            assert not original.exists()
            return put(*arguments, **options)

        monkeypatch.setattr(visitor.store, "put", late)
        added = visitor.add_bytes(data, "upload.jpg")
        assert visitor.original(added.id) == data


def test_compact_leaves_a_hasher_that_a_move_begins_with(sent: Path, hasher: Any, tiny: Any) -> None:
    with Collection.open(sent, hasher=hasher) as opened:
        opened.reindex(tiny.TinyHasher(seed=1))
        opened.store.prepare(hasher.fingerprint, hasher.bits)
        for folder in (sent / "hashers").iterdir():
            os.utime(folder, (1, 1))
        opened.compact()
        assert len(list((sent / "hashers").iterdir())) == 2


@pytest.mark.parametrize("column", ["fingerprint", "coming"])
@pytest.mark.parametrize("text", ["../../../elsewhere", "/etc", "ABCDEF0123456789", "0" * 17, "0123456789abcde\n"])
def test_a_fingerprint_is_no_path(sent: Path, column: str, text: str) -> None:
    written(sent / "collection.sqlite", "UPDATE meta SET value = ? WHERE key = ?", text, column)
    with pytest.raises(CollectionError, match="a hasher has 16 hex digits"):
        Collection.open(sent)


def test_a_run_whose_fingerprint_is_a_path_is_refused(sent: Path, tmp_path: Path) -> None:
    (hasher,) = (sent / "hashers").iterdir()
    shutil.copytree(hasher, tmp_path / "run")
    spec = tmp_path / "run" / "hasher.toml"
    spec.write_text(spec.read_text().replace(hasher.name, "../../../elsewhere"))
    with pytest.raises(ConfigError, match="a fingerprint has 16 hex digits"):
        Collection.into(tmp_path / "new", tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["collection", "photos", "run"]


@pytest.mark.parametrize("setting", ["store", "engine"])
def test_no_program_is_run_because_a_collection_names_it(sent: Path, tmp_path: Path, setting: str) -> None:
    program = tmp_path / "evil.py"
    program.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Evil: ...\n")
    names = {"store": "sqlite", "engine": "local"} | {setting: f"{program}:Evil"}
    (sent / "collection.toml").write_text("format = 2\n" + "".join(f"{k} = {v!r}\n" for k, v in names.items()))
    with pytest.raises(HyphashError, match="is code of your own"):
        Collection.open(sent)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_photo_that_is_no_file_is_not_waited_for(sent: Path, tmp_path: Path, hasher: Any, kind: str) -> None:
    path = tmp_path / "trap.jpg" if kind == "fifo" else Path("/dev/zero")
    if kind == "fifo":
        os.mkfifo(path)
    written(sent / "collection.sqlite", "UPDATE photos SET path = ? WHERE id = 1", str(path))
    written(sent / "thumbnails.sqlite", "DELETE FROM thumbnails")
    with Collection.open(sent, hasher=hasher) as opened:
        for look in (opened.thumbnail, opened.original):
            with pytest.raises(PhotoError, match="not a regular file"):
                look(1)
        (problem,) = opened.add([path]).problems
        assert "cannot be read (not a regular file)" in problem.reason


def test_an_original_is_not_taken_from_where_a_link_leads(
    collection: Collection, photos: list[Path], tmp_path: Path
) -> None:
    """A folder that others may write into is indexed: what a link in it leads to is not served."""
    (tmp_path / "shared" / "below").mkdir(parents=True)
    photos[0].rename(tmp_path / "secret.jpg")
    photos[1].rename(tmp_path / "shared" / "below" / "1.jpg")
    (tmp_path / "shared" / "0.jpg").symlink_to(tmp_path / "secret.jpg")
    (tmp_path / "shared" / "1.jpg").symlink_to("below/1.jpg")
    assert collection.add(sorted((tmp_path / "shared").glob("*.jpg"))).added == 2
    with pytest.raises(PhotoError, match=r"0.jpg: leads out of its folder"):
        collection.original(1)
    assert collection.original(2)
    assert collection.thumbnail(1)
