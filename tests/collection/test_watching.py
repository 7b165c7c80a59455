"""Real files come, change, move and go under the eyes of a watch."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from hyphash.collection import Collection, watching
from hyphash.collection.watching import Watch, is_remote, remember, watched
from hyphash.errors import BusyError, ConfigError
from hyphash.photos.metadata import Packet

Draw = Callable[..., Path]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TICK": 0.1, "SETTLED": 0.3, "POLLED": 100}.items():
        monkeypatch.setattr(watching, name, value)
    monkeypatch.setattr("hyphash.collection.intake.SETTLED", 2e8)


@pytest.fixture
def world(collection: Collection, photos: list[Path]) -> Collection:
    """Five photos that were indexed, and five that were not yet."""
    for photo in photos[5:]:
        photo.rename(photo.parent.parent / photo.name)
    collection.add(photos[0].parent)
    collection.accept(1, "mine")
    remember(collection.folder, photos[0].parent, "none")
    return collection


@contextmanager
def watches(collection: Collection, hasher: Any, **options: Any) -> Iterator[Collection]:
    """A watch with a collection of its own in a thread."""
    stop, failed = Event(), list[BaseException]()
    with Collection.open(collection.folder, hasher=hasher) as own:

        def work() -> None:
            try:
                Watch(own).run(stop.is_set, **options)
            except BaseException as error:
                failed.append(error)

        thread = Thread(target=work)
        thread.start()
        try:
            yield own
        finally:
            stop.set()
            thread.join()
    assert failed == []


def until(check: Callable[[], Any]) -> None:
    end = time.monotonic() + 120  # a machine may be busy
    while not check():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


def names(collection: Collection) -> dict[str, tuple[int, tuple[str, ...]]]:
    return {Path(photo.path).name: (photo.id, photo.labels) for photo in collection.photos()}


def happened(collection: Collection) -> list[tuple[str, int]]:
    return [(line.what, line.photos) for line in reversed(collection.log.recent(100))]


@pytest.mark.parametrize("poll", [False, True])
def test_photos_that_come_change_move_and_go(world: Collection, hasher: Any, tmp_path: Path, poll: bool) -> None:
    folder = tmp_path / "photos"
    shutil.copy(tmp_path / "5.jpg", folder / "while-nobody-watched.jpg")
    with watches(world, hasher, poll=poll):
        until(lambda: "while-nobody-watched.jpg" in names(world))
        shutil.copy(tmp_path / "6.jpg", folder / "new.jpg")
        until(lambda: "new.jpg" in names(world))
        content = world.get(names(world)["new.jpg"][0]).facts.content
        shutil.copy(tmp_path / "7.jpg", folder / "new.jpg")
        later = time.time() + 5  # who polls sees times of whole seconds
        os.utime(folder / "new.jpg", (later, later))
        until(lambda: world.get(names(world)["new.jpg"][0]).facts.content != content)
        (folder / "0.jpg").rename(folder / "moved.jpg")
        until(lambda: names(world).get("moved.jpg") == (1, ("mine",)))
        (folder / "1.jpg").unlink()
        until(lambda: "1.jpg" not in names(world))
        world.remove([3])
        (folder / "2.jpg").touch()
        (folder / ".hidden.jpg").write_bytes((tmp_path / "8.jpg").read_bytes())
        (tmp_path / "more").mkdir()
        shutil.copy(tmp_path / "8.jpg", tmp_path / "more" / "8.jpg")
        (tmp_path / "more").rename(folder / "more")  # as a whole
        until(lambda: "8.jpg" in names(world))
        assert not {"2.jpg", ".hidden.jpg"} & set(names(world))
        (folder / "more").rename(tmp_path / "away")
        until(lambda: "8.jpg" not in names(world))
    told = [line for line in happened(world) if line[0] != "updated"]
    assert told == [
        ("added", 5), ("added", 1), ("added", 1), ("moved", 1), ("forgotten", 1), ("removed", 1), ("added", 1),
        ("forgotten", 1),
    ]  # fmt: skip


def test_a_changed_sidecar_brings_its_labels(world: Collection, hasher: Any, tmp_path: Path) -> None:
    remember(world.folder, tmp_path / "photos", "keywords")
    sidecar = tmp_path / "photos" / "1.jpg.xmp"
    sidecar.write_bytes(Packet().having(["cat"]))
    assert world.add(tmp_path / "photos", labels={"1.jpg": ["cat"]}).updated == 1
    with watches(world, hasher):
        sidecar.write_bytes(Packet().having(["dog", "sea"]))
        until(lambda: names(world)["1.jpg"][1] == ("dog", "sea"))
        shutil.copy(sidecar, tmp_path / "photos" / "2.xmp")
        until(lambda: names(world)["2.jpg"][1] == ("dog", "sea"))
        sidecar.unlink()
        until(lambda: names(world)["1.jpg"][1] == ())
    assert names(world)["0.jpg"] == (1, ("mine",))


def test_a_file_that_is_still_being_written_is_waited_for(world: Collection, hasher: Any, tmp_path: Path) -> None:
    data = (tmp_path / "6.jpg").read_bytes()
    with watches(world, hasher), (tmp_path / "photos" / "slow.jpg").open("wb", buffering=0) as file:
        for part in range(10):
            file.write(data[len(data) * part // 10 : len(data) * (part + 1) // 10])
            time.sleep(0.1)  # a look or two each
        until(lambda: "slow.jpg" in names(world))
    assert [what for what, _ in happened(world)] == ["added", "added"]  # never left out


def test_bursts_come_in_batches_and_labels_as_index_reads_them(
    collection: Collection, hasher: Any, tmp_path: Path, draw: Draw
) -> None:
    folder = tmp_path / "photos"
    (folder / "dog").mkdir(parents=True)
    remember(collection.folder, folder, "folders")
    remember(collection.folder, folder, "folders")
    assert watched(collection.folder) == {folder: "folders"}
    for i in range(60):
        draw(tmp_path / "burst" / f"{i}.jpg", i)
    with watches(collection, hasher):
        (tmp_path / "burst").rename(folder / "cat")
        draw(folder / "dog" / "1.jpg", 99)
        until(lambda: len(collection) == 61)
        assert collection.labels() == {"cat": 60, "dog": 1}
    assert len(happened(collection)) < 6
    (folder / "labels.csv").write_text("image,labels\ndog/1.jpg,mine\n")
    remember(collection.folder, folder, "auto")
    with watches(collection, hasher):
        (folder / "labels.csv").write_text("image,labels\ndog/1.jpg,yours\ncat/1.jpg,\n")
        until(lambda: collection.labels() == {"cat": 59, "yours": 1})


def test_a_photo_that_was_copied_and_then_deleted_keeps_what_was_said(
    world: Collection, hasher: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "photos"
    with watches(world, hasher):
        shutil.copy2(folder / "0.jpg", folder / "copy.jpg")
        until(lambda: "copy.jpg" in names(world))
        (folder / "0.jpg").unlink()
        until(lambda: "0.jpg" not in names(world))
        assert names(world)["copy.jpg"][1] == ("mine",)


def test_a_disk_that_is_away_is_not_forgotten_and_what_fails_is_tried_again(
    world: Collection, hasher: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "photos"
    with watches(world, hasher) as own:
        for photo in list(folder.iterdir()):
            photo.rename(tmp_path / f"away-{photo.name}")
        until(lambda: ("failed", 0) in happened(world))
        assert len(world) == 5
        put, failures = own.store.put, [BusyError("somebody is writing"), BusyError("somebody is writing")]

        def late(*arguments: Any, **options: Any) -> Any:
            if failures:
                raise failures.pop()
            return put(*arguments, **options)

        monkeypatch.setattr(own.store, "put", late)
        shutil.copy(tmp_path / "6.jpg", folder / "new.jpg")
        until(lambda: "new.jpg" in names(world))
    assert happened(world).count(("failed", 0)) == 2  # each told once


def test_what_cannot_be_watched_is_told(collection: Collection, tmp_path: Path, monkeypatch: Any) -> None:
    with pytest.raises(ConfigError, match="name one"):
        Watch(collection)
    (tmp_path / "photos").mkdir()
    remember(collection.folder, tmp_path / "photos", "auto")
    (tmp_path / "photos").rmdir()
    with pytest.raises(ConfigError, match="no such folder"):
        Watch(collection).run(lambda: True)
    remember(collection.folder, tmp_path / "no folder", "auto")
    assert list(watched(collection.folder)) == [tmp_path / "photos"]


def test_folders_on_other_machines_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_remote(tmp_path)
    mounts = "/dev/sda / ext4 rw 0 0\nnas:/p /mnt/my\\040nas nfs4 rw 0 0\n/dev/sdb /mnt/my\\040nas/usb ext4 rw 0 0\n"
    monkeypatch.setattr(Path, "read_text", lambda _: mounts)
    assert [is_remote(Path(path)) for path in ("/mnt/my nas/a", "/mnt/my nas/usb/a", "/mnt")] == [True, False, False]
    monkeypatch.setattr(Path, "read_text", lambda _: (_ for _ in ()).throw(OSError))
    assert not is_remote(tmp_path)
