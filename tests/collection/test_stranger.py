"""A collection that somebody sent: nothing outside of its folder is written, deleted, run or waited for."""

import os
import shutil
import sqlite3
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hyphash.collection import Collection, trash
from hyphash.collection.watching import watched
from hyphash.datasets.folder import label_file
from hyphash.errors import CollectionError, ConfigError, HyphashError, PhotoError, RunError, StorageError
from hyphash.refining import due, progress

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


@pytest.mark.parametrize("name", ["weights.safetensors", "network.onnx"])
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_run_with_what_is_no_file_is_refused(sent: Path, tmp_path: Path, name: str, kind: str) -> None:
    (hasher,) = (sent / "hashers").iterdir()
    run = shutil.copytree(hasher, tmp_path / "run")
    (run / name).unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(run / name)
    else:
        (run / name).symlink_to("/dev/zero")
    for folder in (sent, tmp_path / "new"):
        with pytest.raises(RunError, match=f"{name}: neither a file nor a folder"):
            Collection.into(folder, run)


def test_a_label_file_that_is_none_is_not_waited_for(photos: list[Path]) -> None:
    os.mkfifo(photos[0].parent / "labels.csv")
    assert label_file(photos[0].parent) is None


def test_a_table_nested_without_end_is_refused(collection: Collection, tmp_path: Path) -> None:
    (tmp_path / "table.jsonl").write_text("[" * 100_000)
    with pytest.raises(CollectionError, match="not a line of JSON"):
        collection.import_(tmp_path / "table.jsonl")


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


@pytest.mark.parametrize("place", ["cut", "fifo", "link", "gone"])
def test_a_photo_that_is_added_again_is_there_whatever_lay_in_its_place(
    sent: Path, photos: list[Path], tmp_path: Path, place: str
) -> None:
    (original,) = (sent / "originals").glob("??/*")
    data = original.read_bytes()
    original.unlink()
    match place:
        case "cut":
            original.write_bytes(data[:99])
        case "fifo":
            os.mkfifo(original)
        case "link":
            original.symlink_to(tmp_path / "bashrc")
    with Collection.open(sent) as opened:
        for name in ("upload.jpg", "another.jpg"):
            assert opened.original(opened.add_bytes(data, name).id) == data
        assert opened.verify() == []
    assert not (tmp_path / "bashrc").exists()


def test_verify_tells_of_an_original_that_is_gone(sent: Path, photos: list[Path]) -> None:
    (original,) = (sent / "originals").glob("??/*")
    original.unlink()
    with Collection.open(sent) as opened:
        (found,) = opened.verify()
        assert found == (
            "photo 4, upload.jpg: its file is missing from originals/; "
            "copy it from a backup or from the collection that it came from, add the photo again, or remove it"
        )
        opened.add_bytes(photos[4].read_bytes(), "upload.jpg")
        assert opened.verify() == []


@pytest.mark.parametrize("value", [10**11, "text", 1.5, b""])
def test_a_thumbnail_that_is_no_picture_is_drawn_again(sent: Path, value: Any) -> None:
    written(sent / "thumbnails.sqlite", "UPDATE thumbnails SET jpeg = ?", value)
    with Collection.open(sent) as opened:
        assert opened.thumbnail(1)[:2] == b"\xff\xd8"


def test_the_trash_is_emptied_of_what_is_ours(sent: Path) -> None:
    mine = sent / "trash" / "mine" / "letter", sent / "trash" / ".DS_Store", sent / "trash" / "9"
    for file in mine:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
    (sent / "trash" / "8").mkdir()
    for path in (sent / "trash").iterdir():
        os.utime(path, (1, 1))
    with Collection.open(sent) as opened:
        trash.put(opened, [opened.get(1)])
        assert trash.empty(opened) == 1
    assert {path.name for path in (sent / "trash").iterdir()} == {"mine", ".DS_Store", "9"}


NESTED = "[" * 100_000
NOTES = {
    "activity.jsonl": ["{}", "[]", "5", '{"time": 1, "what": 2, "photos": 1e999, "names": 5, "reason": null}', NESTED],
    "kept.jsonl": ["{}", "[]", '{"photos": 5}', '{"photos": [[1]]}', NESTED],
    "watched.toml": ["folders = 5", "folders = [1]", f"a = {NESTED}"],
    "refined.toml": ["moved = 5", f"moved = {NESTED}", f"said = {'9' * 5000}"],
    "progress.json": ["[]", '["a", 1e999, 2, 3, "e"]', NESTED, '["photos", 1, 2, 3, ""]'],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in NOTES.items() for text in texts])
def test_notes_that_make_no_sense_are_left_out_or_an_error_of_ours(sent: Path, name: str, text: str) -> None:
    (sent / name).write_text(f"{text}\n")
    os.utime(sent / name, (4e9, 4e9))  # by a clock that was wrong: work of which nothing is heard has ended
    with Collection.open(sent) as opened:
        for look in (partial(opened.log.recent, 9), opened.duplicates, partial(watched, sent), partial(due, opened)):
            with suppress(HyphashError):
                look()
        if name == "activity.jsonl" and text != NESTED:
            assert opened.log.recent(9) == []
    assert not progress(sent).process


def test_names_that_are_no_text_can_be_shown(collection: Collection) -> None:
    collection.log.tell("left out", ["/photos/\udce4.jpg"])
    (told,) = collection.log.recent(9)
    assert told.names == ["?.jpg"]


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
