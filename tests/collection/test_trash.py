"""Duplicates go into the trash and come back; nothing is lost on the way, and nothing goes by itself."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hyphash.collection import Collection, trash
from hyphash.collection.duplicates import resolve
from hyphash.errors import NoSuchPhotoError, NotMovedError
from hyphash.photos import PhotoBytes

Draw = Callable[..., Path]


@pytest.fixture
def three(collection: Collection, tmp_path: Path, draw: Draw) -> Collection:
    """A photo and two smaller ones of the same, with labels of their own."""
    files = [draw(tmp_path / "photos" / f"{i}.jpg", 1, size=(96 // i, 64 // i)) for i in (1, 2, 3)]
    collection.add(files, labels=[["cat"], ["cat"], ["sea"]])
    collection.accept(2, "mine")
    collection.refuse(2, "dog")
    return collection


def said(collection: Collection) -> dict[int, Any]:
    photos = collection.photos()
    return {photo.id: (photo.path, photo.labels, photo.refused, photo.given) for photo in photos}


def test_the_best_stays_with_all_labels_and_the_others_come_back_as_they_were(
    three: Collection, tmp_path: Path
) -> None:
    before, data = said(three), (tmp_path / "photos" / "2.jpg").read_bytes()
    undo = resolve(three, 1, [1, 2, 3, 99])
    assert {id: (labels, refused) for id, (_, labels, refused, _) in said(three).items()} == {
        1: (("cat", "mine", "sea"), ("dog",))
    }
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["1.jpg"]
    assert (three.folder / "trash" / "2" / "2.jpg").read_bytes() == data
    three.compact()
    assert [(row.id, row.labels) for row in three.store.removed()] == [(2, ("cat", "mine")), (3, ("sea",))]
    assert trash.restore(three, [2, 3, 99]) == [2, 3]
    three.judge(undo)
    assert said(three) == before
    assert (tmp_path / "photos" / "2.jpg").read_bytes() == data
    assert list((three.folder / "trash").iterdir()) == three.store.removed() == []
    assert trash.restore(three, [2]) == trash.restore(three, []) == []
    told = [(line.what, line.photos) for line in three.log.recent(3)]
    assert told == [("restored", 2), ("trashed", 2), ("added", 3)]


def test_what_is_in_the_trash_can_be_seen(three: Collection) -> None:
    small = three.thumbnail(2)
    resolve(three, 1, [2])
    three.compact()
    assert trash.thumbnail(three, 2) == small
    with three.thumbnails.database.writing("losing thumbnails") as tx:
        tx.execute("DELETE FROM thumbnails")
    assert trash.thumbnail(three, 2) == small
    three.remove([3])  # whose file stays where it is
    for id in (1, 3, 9):
        with pytest.raises(NoSuchPhotoError, match=f"no photo {id} in the trash"):
            trash.thumbnail(three, id)


def test_an_emptied_trash_is_gone_and_nothing_else(three: Collection, tmp_path: Path) -> None:
    resolve(three, 1, [2])
    three.remove([3])
    (left := three.folder / "trash" / "7").mkdir()  # by a crash, long ago
    os.utime(left, (1, 1))
    assert trash.empty(three) == 1
    assert trash.empty(three) == 0
    assert list((three.folder / "trash").iterdir()) == three.store.removed() == []
    assert three.add(tmp_path / "photos").removed == 1  # 3.jpg, whose file is where it was
    assert sorted(path.name for path in (tmp_path / "photos").iterdir()) == ["1.jpg", "3.jpg"]


def test_sidecars_go_with_a_photo_and_come_back_with_it(three: Collection, tmp_path: Path, draw: Draw) -> None:
    folder = tmp_path / "photos"
    for name in ("2.jpg.xmp", "2.xmp", "3.xmp"):
        (folder / name).write_text(name)
    draw(folder / "3.png", 9)  # whose sidecar 3.xmp is, too
    resolve(three, 1, [2, 3])
    assert sorted(path.name for path in folder.iterdir()) == ["1.jpg", "3.png", "3.xmp"]
    assert sorted(path.name for path in (three.folder / "trash" / "2").iterdir()) == ["2.jpg", "2.jpg.xmp", "2.xmp"]
    (folder / "2.xmp").write_text("another")
    with pytest.raises(NotMovedError, match=r"2\.xmp: there is another file"):
        trash.restore(three, [2])
    (folder / "2.xmp").unlink()
    assert trash.restore(three, [2, 3]) == [2, 3]
    assert {path.name: path.read_text() for path in folder.glob("*.xmp")} == {
        name: name for name in ("2.jpg.xmp", "2.xmp", "3.xmp")
    }
    assert list((three.folder / "trash").iterdir()) == []
    resolve(three, 1, [2])
    assert trash.empty(three) == 1
    assert list((three.folder / "trash").iterdir()) == []
    assert not (folder / "2.jpg.xmp").exists()


def test_photos_that_the_collection_keeps_come_back_too(three: Collection, tmp_path: Path) -> None:
    data = (tmp_path / "photos" / "2.jpg").read_bytes()
    upload = three.add_bytes(data, "upload.jpg", labels=["own"])
    resolve(three, 1, [upload.id])
    os.utime(next((three.folder / "originals").glob("??/*")), (1, 1))
    three.compact()  # what is in the trash is not swept
    assert trash.restore(three, [upload.id]) == [upload.id]
    assert (three.original(upload.id), three.get(upload.id).labels) == (data, ("own",))


@pytest.mark.parametrize("spoil", ["changed", "link", "pack", "gone", "read-only"])
def test_what_cannot_be_moved_is_refused_before_anything_is_done(
    three: Collection, tmp_path: Path, spoil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "photos" / "2.jpg"
    id = 2
    if spoil == "changed":
        file.write_bytes(file.read_bytes() + b"\0")
    elif spoil == "link":
        file.rename(tmp_path / "elsewhere.jpg")
        file.symlink_to(tmp_path / "elsewhere.jpg")
    elif spoil == "pack":
        id = 4
        three.add(PhotoBytes([("pack/1", file.read_bytes())]))
    elif spoil == "gone":
        file.unlink()
    else:
        monkeypatch.setattr(os, "access", lambda *_: False)
    before = said(three)
    with pytest.raises(NotMovedError):
        resolve(three, 1, [3, id])
    assert said(three) == before
    assert (tmp_path / "photos" / "3.jpg").exists()
    with pytest.raises(NoSuchPhotoError):
        resolve(three, 99, [1])


def test_a_move_that_fails_leaves_all_as_it_was(
    three: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = said(three)
    rename = Path.rename

    def refused(self: Path, target: Path) -> Path:
        if self.name == "3.jpg":
            raise OSError(errno.EACCES, "no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(NotMovedError, match="may not be written"):
        trash.put(three, three.store.get([2, 3]))
    monkeypatch.undo()
    assert [row.id for row in three.store.removed()] == [2]  # that one has gone its way
    assert trash.restore(three, [2]) == [2]
    assert said(three) == before


def test_files_move_between_disks_and_over_nobody(
    three: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "photos" / "2.jpg"
    file.chmod(0o640)
    before, facts = said(three), file.stat()

    def elsewhere(self: Path, target: Path) -> Path:
        raise OSError(errno.EXDEV, "another disk")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", elsewhere)
        trash.put(three, three.store.get([2]))
        assert not file.exists()
        file.write_bytes(b"a file of somebody else")
        with pytest.raises(NotMovedError, match="another file"):
            trash.restore(three, [2])
        file.unlink()
        trash.restore(three, [2])
    assert said(three) == before
    assert (file.stat().st_mode, file.stat().st_mtime_ns) == (facts.st_mode, facts.st_mtime_ns)


def test_a_photo_that_somebody_took_out_of_the_trash_by_hand_is_itself(three: Collection, tmp_path: Path) -> None:
    before = said(three)
    trash.put(three, three.store.get([2]))
    shutil.move(three.folder / "trash" / "2" / "2.jpg", tmp_path / "photos" / "2.jpg")
    assert three.add(tmp_path / "photos").added == 1
    assert said(three) == before


def test_a_store_from_a_stranger_does_not_choose_what_is_written(three: Collection, tmp_path: Path) -> None:
    trash.put(three, three.store.get([2]))
    for path in (tmp_path / ".bashrc", "relative.jpg"):
        three.store.write(lambda session, path=path: session.run("UPDATE removed SET path = ?", [str(path)]), "evil")
        place = three.folder / "trash" / "2"
        next(place.iterdir()).rename(place / Path(path).name)
        with pytest.raises(NotMovedError, match="move it yourself"):
            trash.restore(three, [2])
        assert not (tmp_path / path).exists()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["resolve", "restore"])
def test_a_kill_at_any_line_loses_nothing(three: Collection, tmp_path: Path, what: str) -> None:
    if what == "restore":
        trash.put(three, three.store.get([2, 3]))
    three.close()
    world = tmp_path / "world"
    (world / "begin").mkdir(parents=True)
    for name in ("photos", "collection"):
        (tmp_path / name).rename(world / "begin" / name)
    (world / "begin").rename(tmp_path / "kept")
    _rewrite_paths(tmp_path / "kept" / "collection", tmp_path / "photos", world / "now" / "photos")
    (tmp_path / "kept").rename(world / "begin")
    script = Path(__file__).with_name("trasher.py")
    done = subprocess.run([sys.executable, script, world, what], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines, status = map(int, done.stdout.split())
    assert status == 0
    assert lines > 20


def _rewrite_paths(folder: Path, old: Path, new: Path) -> None:
    with Collection.open(folder) as collection:

        def work(session: Any) -> None:
            for table in ("photos", "removed"):
                session.run(f"UPDATE {table} SET path = replace(path, ?, ?)", [str(old), str(new)])

        collection.store.write(work, "moving")
        collection.rebuild()  # no commit told the engine of it


@pytest.mark.parametrize("when", ["before it moves", "and misses it then", "after"])
def test_a_photo_that_another_process_takes_in_meanwhile_keeps_its_file(
    three: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It saw the file where it was, just before that went into the trash, and stores it before or after that."""
    file, move = tmp_path / "photos" / "2.jpg", trash.move

    def late(source: Path, target: Path) -> None:
        if source == file:
            three.add([file])
        move(source, target)
        if when == "and misses it then":  # as a watcher that finds its file gone
            assert len(three.prune()) == 0

    if when != "after":
        monkeypatch.setattr(trash, "move", late)
    data, before = file.read_bytes(), said(three)[2]
    trash.put(three, [three.get(2)])
    monkeypatch.setattr(trash, "move", move)
    if when == "after":
        shutil.copy(three.folder / "trash" / "2" / "2.jpg", file)
        three.add([file])
        file.unlink()
        trash.empty(three)
    assert file.read_bytes() == data
    assert said(three)[2] == before
    assert three.store.removed() == []
