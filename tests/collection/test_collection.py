"""Photos come, change, move and go; labels of people and of sources; damaged folders."""

import io
import os
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hyphash.codes import Codes
from hyphash.collection import Collection, Step
from hyphash.errors import CollectionError, ConfigError, LabelError, OtherHasherError, PhotoError

Draw = Callable[..., Path]


def settle(*paths: Path) -> None:
    """Make files old enough that their time proves something."""
    for path in paths:
        os.utime(path, (1_700_000_000, 1_700_000_000))


def by_path(collection: Collection) -> dict[str, Any]:
    return {photo.path: photo for photo in collection.photos(limit=10_000)}


def test_photos_that_processes_decode_are_stored_as_others_are(
    collection: Collection, hasher: Any, draw: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = [draw(tmp_path / "many" / f"{i:03}.jpg", i) for i in range(130)]
    photos[60].write_bytes(b"no photo")
    collection.add(photos)
    monkeypatch.setenv("HYPHASH_THREADS", "4")
    with Collection.create(tmp_path / "by-processes", hasher) as other:
        result = other.add(photos)
        one, two = (
            [(p.id, p.path, replace(p.facts, modified=0), p.code) for p in c.photos(limit=1000)]
            for c in (collection, other)
        )
        assert one == two
        assert all(other.thumbnail(photo[0]) == collection.thumbnail(photo[0]) for photo in one[:5])
    assert (result.added, len(result.problems)) == (129, 1)


def test_added_photos_have_the_codes_that_the_hasher_gives(
    collection: Collection, hasher: Any, photos: list[Path]
) -> None:
    result = collection.add(photos, labels=[["cat"]] * 4 + [["dog", "sea"]] * 6, batch=3)
    assert (result.added, result.updated, result.moved, result.unchanged, result.problems) == (10, 0, 0, 0, ())
    stored = by_path(collection)
    assert list(stored) == [str(path) for path in photos]
    codes = np.frombuffer(b"".join(photo.code for photo in stored.values()), np.uint8).reshape(10, -1)
    assert Codes(codes, 12) == hasher.encode(photos)
    assert stored[str(photos[5])].labels == ("dog", "sea")
    assert (stored[str(photos[5])].facts.width, stored[str(photos[5])].facts.height) == (48, 32)
    assert stored[str(photos[5])].facts.size == photos[5].stat().st_size
    assert collection.labels() == {"dog": 6, "sea": 6, "cat": 4}
    assert collection.verify() == []


def test_a_folder_is_walked_through(collection: Collection, photos: list[Path], draw: Draw) -> None:
    draw(photos[0].parent / "deeper" / "x.png", 77)
    (photos[0].parent / "notes.txt").write_text("not a photo")
    assert collection.add(photos[0].parent).added == 11
    assert len(collection) == 11


def test_photos_that_have_not_changed_are_not_even_read(
    collection: Collection, hasher: Any, photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(*photos)
    collection.add(photos)
    commit = collection.store.state().commit
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} was read"))
    assert collection.add(photos).unchanged == 10
    assert hasher.encoder.encoded == 10
    assert collection.store.state().commit == commit  # nothing was written either


def test_touched_files_are_recognised_by_content(collection: Collection, hasher: Any, photos: list[Path]) -> None:
    collection.add(photos)
    settle(*photos)
    assert collection.add(photos).unchanged == 10
    assert hasher.encoder.encoded == 10
    assert by_path(collection)[str(photos[3])].facts.modified == 1_700_000_000_000_000_000


def test_a_young_file_that_changes_within_its_tick_is_noticed(
    collection: Collection, tmp_path: Path, draw: Draw
) -> None:
    """Same size, same time, other content: only a time long past proves that nothing has changed."""
    path = tmp_path / "a.bmp"
    draw(path, 1)
    time = path.stat().st_mtime_ns
    collection.add([path])
    draw(path, 2)
    os.utime(path, ns=(time, time))
    assert collection.add([path]).updated == 1


def test_changed_photos_keep_their_id(collection: Collection, hasher: Any, photos: list[Path], draw: Draw) -> None:
    collection.add(photos, labels=[["cat"]] * 10)
    before = by_path(collection)[str(photos[2])]
    draw(photos[2], 99)
    result = collection.add(photos)
    assert (result.updated, result.unchanged) == (1, 9)
    after = by_path(collection)[str(photos[2])]
    assert after.id == before.id
    assert after.facts.content != before.facts.content
    assert after.labels == ("cat",)
    assert after.code == hasher.encode([photos[2]]).packed[0].tobytes()
    assert collection.thumbnail(after.id) != b""


def test_moved_photos_are_recognised_by_content(collection: Collection, hasher: Any, photos: list[Path]) -> None:
    collection.add(photos, labels=[[f"label {i}"] for i in range(10)])
    before = by_path(collection)
    folder = photos[0].parent.rename(photos[0].parent.with_name("renamed"))
    result = collection.add(folder)
    assert (result.moved, result.added) == (10, 0)
    assert hasher.encoder.encoded == 10  # nothing was encoded again
    after = by_path(collection)
    for old in photos:
        new = after[str(folder / old.name)]
        assert (new.id, new.labels, new.code) == (before[str(old)].id, before[str(old)].labels, before[str(old)].code)
    assert len(collection) == 10


def test_copies_are_photos_of_their_own_and_cost_no_encoding(
    collection: Collection, hasher: Any, photos: list[Path]
) -> None:
    collection.add(photos, labels=[["cat"]] * 10)
    shutil.copy(photos[0], photos[0].with_name("copy.jpg"))
    assert collection.add(photos[0].parent).added == 1
    assert hasher.encoder.encoded == 10
    assert len(collection) == 11
    assert by_path(collection)[str(photos[0].with_name("copy.jpg"))].labels == ()


def test_two_copies_that_move_become_two_photos_again(collection: Collection, photos: list[Path]) -> None:
    twin = photos[0].with_name("twin.jpg")
    shutil.copy(photos[0], twin)
    collection.add([photos[0], twin])
    ids = {photo.id for photo in collection.photos()}
    renamed = [path.rename(path.with_name(f"new-{path.name}")) for path in (photos[0], twin)]
    assert collection.add(renamed).moved == 2
    assert {photo.id for photo in collection.photos()} == ids


def test_bad_photos_are_reported_and_the_others_added(collection: Collection, photos: list[Path]) -> None:
    (photos[0].parent / "empty.jpg").touch()
    (photos[0].parent / "torn.jpg").write_bytes(photos[1].read_bytes()[:400])
    (photos[0].parent / "text.png").write_text("hello")
    result = collection.add([*photos, *photos[0].parent.glob("[et]*.???"), photos[0].parent / "nowhere.jpg"])
    assert result.added == 10
    names = {Path(problem.name).name: problem.reason for problem in result.problems}
    assert set(names) == {"empty.jpg", "torn.jpg", "text.png", "nowhere.jpg"}
    assert "0 bytes" in names["empty.jpg"]
    assert "no such photo" in names["nowhere.jpg"]
    assert collection.add(photos).problems == ()


def test_a_known_photo_that_became_unreadable_stays(collection: Collection, photos: list[Path]) -> None:
    collection.add(photos)
    photos[4].write_bytes(b"garbage")
    result = collection.add(photos)
    assert [problem.name for problem in result.problems] == [str(photos[4])]
    assert len(collection) == 10


def test_names_that_are_not_unicode_are_a_problem_of_one_photo(collection: Collection, photos: list[Path]) -> None:
    odd = Path(os.fsdecode(os.fsencode(photos[0].parent) + b"/caf\xe9.jpg"))
    shutil.copy(photos[0], odd)
    result = collection.add([*photos, odd])
    assert result.added == 10
    assert "rename it" in result.problems[0].reason


def test_steps_come_as_they_are_safe(collection: Collection, photos: list[Path]) -> None:
    steps: list[Step] = []
    for step in collection.adding(photos, batch=4):
        with Collection.open(collection.folder, hasher=collection.hasher) as other:
            paths = by_path(other)
        for record in step.photos:
            assert paths[record.path].id == record.id
        steps.append(step)
    assert [len(step.photos) for step in steps] == [4, 4, 2]
    assert [step.done for step in steps] == [4, 8, 10]


def test_an_interrupted_run_goes_on(collection: Collection, hasher: Any, photos: list[Path]) -> None:
    running = collection.adding(photos, batch=4)
    next(running)
    running.close()
    assert len(collection) == 4
    result = collection.add(photos, batch=4)
    assert (result.added, result.unchanged) == (6, 4)
    assert hasher.encoder.encoded == 10


def test_progress_ends_at_the_end(collection: Collection, photos: list[Path]) -> None:
    calls: list[tuple[int, int]] = []
    collection.add([*photos, photos[0]], batch=4, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (11, 11)
    assert len(collection) == 10
    collection.add([], progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (0, 0)


def test_labels_of_people_survive_those_of_the_source(collection: Collection, photos: list[Path]) -> None:
    collection.add(photos, labels=[["cat", "sea"]] * 10)
    id = by_path(collection)[str(photos[0])].id
    collection.relabel(id, ["cat", "mine"])
    assert collection.add(photos, labels=[["cat", "sea"]] * 10).unchanged == 10
    assert collection.get(id).labels == ("cat", "mine")
    assert collection.add(photos, labels=[["sea", "ship"]] * 10).updated == 10
    assert collection.get(id).labels == ("mine", "ship")
    assert collection.add(photos).unchanged == 10
    assert collection.get(id).labels == ("mine", "ship")


def test_labels_by_name_and_in_one_spelling(collection: Collection, photos: list[Path]) -> None:
    collection.add(photos, labels={str(photos[1]): [" cafe\u0301 ", "caf\u00e9", ""], str(photos[2]): []})
    stored = by_path(collection)
    assert stored[str(photos[1])].labels == ("caf\u00e9",)
    assert stored[str(photos[2])].given == ()
    assert stored[str(photos[3])].given is None
    with pytest.raises(LabelError, match="10 photos but labels for 1"):
        collection.add(photos, labels=[["cat"]])
    with pytest.raises(LabelError, match="come as a list"):
        collection.relabel(1, "cat")


def test_removed_photos_can_come_again(collection: Collection, photos: list[Path]) -> None:
    collection.add(photos)
    assert collection.remove([1, 2, 3, 77]) == 3
    with pytest.raises(CollectionError, match="no photo 2; it may have been removed"):
        collection.get(2)
    with pytest.raises(CollectionError, match="no photo 2"):
        collection.relabel(2, [])
    result = collection.add(photos)
    assert (result.added, result.unchanged) == (3, 7)
    assert min(photo.id for photo in collection.photos() if photo.id not in range(1, 11)) == 11


def test_what_a_person_removed_stays_removed_until_it_is_asked_for(collection: Collection, photos: list[Path]) -> None:
    folder = photos[0].parent
    collection.add(folder)
    collection.remove([1, 2])
    result = collection.add(folder)
    assert (result.unchanged, result.removed, len(collection)) == (8, 2, 8)
    photos[0].rename(renamed := folder / "renamed.jpg")
    assert collection.add(folder).removed == 2  # it is the same photo
    photos[1].write_bytes(photos[5].read_bytes() + b"\0")  # and this another one, by a name that was free
    assert (collection.add(folder).added, len(collection)) == (1, 9)
    renamed.write_bytes(photos[5].read_bytes())
    assert collection.add(folder).added == 1  # a copy of a photo that is here
    collection.prune()
    photos[0].write_bytes(photos[9].read_bytes())
    photos[9].unlink()
    assert collection.add(folder).moved == 1
    collection.remove([10])
    assert collection.add(folder, again=True).added == 1
    assert collection.add(folder).removed == 0
    collection.remove([11])
    assert collection.add([photos[1]]).added == 1  # by its name


def test_of_two_that_add_the_same_photos_at_once_one_says_so(
    collection: Collection, hasher: Any, photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.add(photos[:1])
    photos[0].write_bytes(photos[0].read_bytes() + b"\0")
    put, results = collection.store.put, []
    with Collection.open(collection.folder, hasher=hasher) as other:

        def late(*arguments: Any, **options: Any) -> Any:
            results.append(other.add(photos))
            return put(*arguments, **options)

        monkeypatch.setattr(collection.store, "put", late)
        results.append(collection.add(photos))
    assert [(result.added, result.updated, result.unchanged) for result in results] == [(9, 1, 0), (0, 0, 10)]


def test_a_photo_that_is_removed_while_it_is_looked_at_stays_removed(
    collection: Collection, photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.add(photos[:3])
    for photo in photos[:2]:
        photo.write_bytes(photo.read_bytes() + b"\0")
    put = collection.store.put

    def late(*arguments: Any, **options: Any) -> Any:
        collection.remove([1])
        return put(*arguments, **options)

    monkeypatch.setattr(collection.store, "put", late)
    result = collection.add(photos[0].parent)
    assert (result.added, result.updated, result.unchanged, result.removed) == (7, 1, 1, 1)
    assert 1 not in [photo.id for photo in collection.all_photos()]
    assert collection.verify() == []


def test_missing_files_are_found(collection: Collection, photos: list[Path]) -> None:
    collection.add(photos)
    photos[6].unlink()
    assert [photo.path for photo in collection.missing()] == [str(photos[6])]
    with pytest.raises(PhotoError, match="no such photo"):
        collection.original(7)
    assert collection.thumbnail(7)[:2] == b"\xff\xd8"


def test_a_local_collection_misses_the_photos_of_folders_that_are_gone(
    collection: Collection, photos: list[Path], tmp_path: Path
) -> None:
    collection.add(photos)
    photos[0].parent.rename(tmp_path / "new folder")
    missing = collection.missing()
    assert (len(missing), missing.elsewhere) == (10, 0)
    assert collection.add(tmp_path / "new folder").moved == 10


def test_photos_that_come_as_bytes_are_kept(collection: Collection, photos: list[Path]) -> None:
    data = photos[0].read_bytes()
    first = collection.add_bytes(data, "../../etc/holiday.jpg", labels=["sea"])
    again = collection.add_bytes(data, "holiday.jpg", labels=["sea"])
    other = collection.add_bytes(photos[1].read_bytes(), "holiday.jpg")
    assert (first.status, again.status, other.status) == ("added", "unchanged", "added")
    assert first.id == again.id != other.id
    assert collection.original(first.id) == data
    assert collection.get(first.id).path.endswith("/holiday.jpg")
    assert collection.get(first.id).labels == ("sea",)
    with pytest.raises(PhotoError, match="web page"):
        collection.add_bytes(b"<html>", "x.jpg")
    assert len(collection) == 2
    collection.remove([other.id])
    for path in (collection.folder / "originals").glob("??/*"):
        os.utime(path, (1, 1))
    collection.compact()
    assert collection.original(first.id) == data
    assert len(list((collection.folder / "originals").glob("??/*"))) == 1


def test_a_photo_of_a_pack_is_known_by_its_name(collection: Collection, photos: list[Path]) -> None:
    class Pack:
        def __len__(self) -> int:
            return 2

        def name(self, i: int) -> str:
            return f"im{i}.jpg"

        def path(self, _: int) -> Path | None:
            return None

        def read(self, i: int) -> bytes:
            return photos[i].read_bytes()

    assert collection.add(Pack(), labels=[["cat"], ["dog"]]).added == 2
    assert collection.add(Pack()).unchanged == 2
    assert [photo.path for photo in collection.photos()] == ["im0.jpg", "im1.jpg"]
    with pytest.raises(PhotoError, match="only its thumbnail"):
        collection.original(1)
    assert collection.thumbnail(1)


def test_thumbnails_are_small_upright_and_made_again(collection: Collection, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "tall.jpg"
    Image.new("RGB", (900, 600), "red").save(path, exif=exif)
    collection.add([path])
    photo = collection.photos()[0]
    assert (photo.facts.width, photo.facts.height) == (600, 900)
    with Image.open(io.BytesIO(collection.thumbnail(photo.id))) as image:
        assert max(image.size) == 256
        assert image.height > image.width
    collection.close()
    (collection.folder / "thumbnails.sqlite").unlink()
    with Collection.open(collection.folder, hasher=collection.hasher) as again:
        assert again.thumbnail(photo.id)[:2] == b"\xff\xd8"


def test_an_original_that_has_changed_is_not_passed_off(collection: Collection, photos: list[Path], draw: Draw) -> None:
    collection.add(photos)
    draw(photos[0], 1234)
    with pytest.raises(PhotoError, match="changed since it was indexed"):
        collection.original(1)


# ── folders that are not what they should be ─────────────────────────────────────────────────────────────


def test_nothing_is_made_where_something_is(tmp_path: Path, hasher: Any, collection: Collection) -> None:
    with pytest.raises(CollectionError, match="a collection is here already"):
        Collection.create(collection.folder, hasher)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(CollectionError, match="other things here"):
        Collection.create(tmp_path / "other", hasher)
    (tmp_path / "empty").mkdir()
    Collection.create(tmp_path / "empty", hasher).close()
    assert not list(tmp_path.glob(".*.draft"))


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match=r"no such folder.*hyphash index"):
        Collection.open(tmp_path / "nowhere")
    with pytest.raises(CollectionError, match=r"not a collection \(no collection.toml\)"):
        Collection.open(tmp_path)


def test_another_hasher_is_refused(collection: Collection, tiny: Any, photos: list[Path]) -> None:
    collection.add(photos)
    other = tiny.TinyHasher(seed=1)
    with pytest.raises(OtherHasherError, match="reindex"):
        Collection.open(collection.folder, hasher=other)
    with pytest.raises(OtherHasherError, match="reindex"):
        Collection.into(collection.folder, other)
    collection.hasher = other
    with pytest.raises(OtherHasherError):
        list(collection.adding([photos[0].rename(photos[0].with_name("new.png")), *photos[1:]]))


def test_damage_is_told(collection: Collection, photos: list[Path]) -> None:
    collection.add(photos)
    collection.close()
    database = collection.folder / "collection.sqlite"
    whole = database.read_bytes()
    for broken, words in (
        (b"not a database at all" * 100, "damaged.*restore the folder from a backup"),
        (b"", "damaged.*holds no collection"),
        (whole[:4096] + bytes(len(whole) - 4096), "damaged.*malformed"),
    ):
        database.write_bytes(broken)
        with pytest.raises(CollectionError, match=words), Collection.open(collection.folder) as opened:
            opened.photos()
    database.unlink()
    with pytest.raises(CollectionError, match=r"collection.sqlite is missing"):
        Collection.open(collection.folder)


def test_a_newer_format_is_refused(collection: Collection) -> None:
    collection.close()
    connection = sqlite3.connect(collection.folder / "collection.sqlite")
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(CollectionError, match=r"newer hyphash \(format 7.*pip install -U hyphash"):
        Collection.open(collection.folder)
    (collection.folder / "collection.toml").write_text('format = 9\nengine = "local"\n')
    with pytest.raises(CollectionError, match="format 9"):
        Collection.open(collection.folder)


def test_an_unknown_engine_is_named(collection: Collection) -> None:
    collection.close()
    (collection.folder / "collection.toml").write_text('format = 1\nengine = "oracle://x"\n')
    with pytest.raises(ConfigError, match="no engine is called 'oracle'"):
        Collection.open(collection.folder)


def test_verify_finds_what_was_tampered_with(collection: Collection, photos: list[Path]) -> None:
    collection.add(photos)
    connection = sqlite3.connect(collection.folder / "collection.sqlite")
    connection.execute("UPDATE codes SET code = x'0102' WHERE photo = 3")  # behind everybody's back
    connection.execute("DELETE FROM codes WHERE photo = 5")
    connection.commit()
    connection.close()
    found = " ".join(collection.verify())
    assert "5 has no code" not in found
    assert f"{photos[4]} has no code" in found
    assert "not what the store holds" in found


def test_a_closed_collection_says_so(collection: Collection) -> None:
    collection.close()
    with pytest.raises(CollectionError, match="was closed"):
        len(collection)


def test_compact_keeps_everything_that_counts(
    collection: Collection, photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyphash.collection.folder.GRACE", -1)
    collection.add(photos, labels=[["cat"]] * 10)
    collection.remove([1, 2])
    before = by_path(collection)
    thumbnails = {id: collection.thumbnail(id) for id in range(3, 11)}
    old = collection.folder / ".codes-1.safetensors.1.draft"
    old.touch()
    os.utime(old, (1, 1))
    collection.compact()
    assert by_path(collection) == before
    assert {id: collection.thumbnail(id) for id in range(3, 11)} == thumbnails
    connection = sqlite3.connect(collection.folder / "thumbnails.sqlite")
    assert connection.execute("SELECT count(*) FROM thumbnails").fetchone() == (8,)
    connection.close()
    assert not old.exists()
    assert collection.verify() == []
