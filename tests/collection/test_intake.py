"""What a collection takes in: what is known is neither read nor decoded again, what cannot be is told.

And how it moves to another hasher while the old one keeps answering.
"""

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

from hyphash.collection import Collection
from hyphash.collection.folder import place_of
from hyphash.collection.intake import Intake, Seen, as_source, describe, moved_from
from hyphash.errors import CollectionError, LabelError, OtherHasherError, PhotoError
from hyphash.photos import PhotoBytes, PhotoFiles, Preprocessing, Problem, Raw, pixels_of
from hyphash.stores import Photo, Removed

SEES = Preprocessing(size=8, mean=(0.5,) * 3, std=(0.5,) * 3)


@dataclass
class Known:
    """All that intake asks of where photos are kept."""

    photos: list[Photo] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)  # how many paths at once

    def find(self, *, paths: Iterable[str] = (), contents: Iterable[str] = ()) -> list[Photo]:
        paths, contents = set(paths), set(contents)
        self.asked += [len(paths)] if paths else []
        return [photo for photo in self.photos if photo.path in paths or photo.facts.content in contents]

    def removed(self, *, contents: Iterable[str]) -> list[Removed]:  # noqa: ARG002
        return []


def looked(known: Known, source: Any, labels: Any = None, **options: Any) -> list[Seen | Problem]:
    return [seen for _, seen in Intake(known, SEES, source, labels, **options).look(ahead=4)]


def stored(*seen: Seen | Problem) -> Known:
    """A collection that has stored what was seen."""
    fine = [one.photo for one in seen if isinstance(one, Seen)]
    return Known([replace(photo, id=number, code=b"code") for number, photo in enumerate(fine, 1)])


@pytest.fixture
def old(photos: list[Path]) -> list[Path]:
    """Three photos that nobody will change in this very moment."""
    for path in photos[:3]:
        os.utime(path, (1e9, 1e9))
    return photos[:3]


def test_a_new_photo_is_read_decoded_and_drawn_small(old: list[Path]) -> None:
    (seen, *_) = looked(Known(), PhotoFiles(old), [["sea", "dog"], [], ["cat"]])
    assert isinstance(seen, Seen)
    data = old[0].read_bytes()
    photo = seen.photo
    assert (photo.id, photo.path, photo.facts.content) == (0, str(old[0]), hashlib.sha256(data).hexdigest())
    assert (photo.facts.size, photo.facts.modified, photo.facts.width, photo.facts.height) == (
        len(data),
        10**18,
        48,
        32,
    )
    assert (photo.labels, photo.given) == (("dog", "sea"), ("dog", "sea"))
    assert (seen.write, seen.twins, seen.data) == (True, (), None)
    assert seen.pixels is not None
    assert seen.pixels.shape == (8, 8, 3)
    assert seen.thumbnail is not None
    assert seen.thumbnail[:2] == b"\xff\xd8"


def test_a_file_with_the_same_size_and_time_is_not_even_read(old: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    known = stored(*looked(Known(), PhotoFiles(old)))
    monkeypatch.setattr(PhotoFiles, "read", lambda *_: pytest.fail("read again"))
    for seen in looked(known, PhotoFiles(old)):
        assert isinstance(seen, Seen)
        assert (seen.write, seen.pixels) == (False, None)
    relabelled = looked(known, PhotoFiles(old), {str(old[1]): ["sea"]})
    assert [seen.write for seen in relabelled if isinstance(seen, Seen)] == [False, True, False]


def test_a_file_that_was_only_touched_is_read_and_not_decoded(old: list[Path]) -> None:
    known = stored(*looked(Known(), PhotoFiles(old)))
    os.utime(old[0], (1.1e9, 1.1e9))
    touched, *others = looked(known, PhotoFiles(old))
    assert isinstance(touched, Seen)
    assert (touched.write, touched.pixels) == (True, None)
    assert touched.photo.facts.modified == 11 * 10**17
    assert not any(seen.write for seen in others if isinstance(seen, Seen))


def test_a_young_file_may_change_without_its_time_changing(photos: list[Path]) -> None:
    (seen,) = looked(Known(), PhotoFiles(photos[:1]))
    assert isinstance(seen, Seen)
    assert seen.photo.facts.modified == 0
    (again,) = looked(stored(seen), PhotoFiles(photos[:1]))
    assert isinstance(again, Seen)
    assert (again.photo.id, again.photo.facts, again.write) == (1, seen.photo.facts, False)


def test_a_changed_file_keeps_its_id(old: list[Path]) -> None:
    known = stored(*looked(Known(), PhotoFiles(old)))
    old[1].write_bytes(old[2].read_bytes() + b"\0")
    changed = looked(known, PhotoFiles(old))[1]
    assert isinstance(changed, Seen)
    assert (changed.photo.id, changed.write) == (2, True)
    assert changed.pixels is not None


def test_a_copy_is_known_by_its_content(old: list[Path], tmp_path: Path) -> None:
    known = stored(*looked(Known(), PhotoFiles(old)))
    (tmp_path / "copy.jpg").write_bytes(old[2].read_bytes())
    (copy,) = looked(known, PhotoFiles([tmp_path / "copy.jpg"]), keep=True)
    assert isinstance(copy, Seen)
    assert (copy.write, copy.pixels, copy.thumbnail) == (True, None, None)
    assert (copy.photo.code, copy.photo.facts.width, copy.photo.id) == (b"code", 48, 0)
    assert [twin.id for twin in copy.twins] == [3]
    assert copy.data == old[2].read_bytes()


def test_whole_files_come_along_where_they_are_kept(old: list[Path]) -> None:
    (seen,) = looked(Known(), PhotoFiles(old[:1]), keep=True)
    assert isinstance(seen, Seen)
    assert seen.data == old[0].read_bytes()


def test_what_cannot_be_used_is_told_by_its_key_among_the_others(old: list[Path], tmp_path: Path) -> None:
    old[1].write_bytes(b"no photo")
    bad_name = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jpg"))
    bad_name.write_bytes(old[0].read_bytes())
    known = Known()
    found = looked(known, PhotoFiles([*old, tmp_path / "none.jpg", bad_name]))
    assert [isinstance(seen, Problem) for seen in found] == [False, True, False, True, True]
    assert [seen.name for seen in found if isinstance(seen, Problem)][:2] == [str(old[1]), str(tmp_path / "none.jpg")]
    assert "not Unicode" in found[4].reason  # type: ignore[union-attr]
    assert known.asked == [4]  # never for a name that cannot be stored


def test_a_file_that_is_named_twice_comes_once_with_its_last_labels(
    old: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(old[0].parent)
    (seen,) = looked(Known(), PhotoFiles([old[0], Path(old[0].name)]), [["sea"], ["dog"]])
    assert isinstance(seen, Seen)
    assert (seen.photo.path, seen.photo.given) == (str(old[0]), ("dog",))


def test_photos_that_are_no_files_are_known_by_their_names(old: list[Path]) -> None:
    source = PhotoBytes([("pack/1", old[0].read_bytes())])
    (seen,) = looked(Known(), source, {"pack/1": ["sea"]})
    assert isinstance(seen, Seen)
    assert (seen.photo.path, seen.photo.facts.modified, seen.photo.given) == ("pack/1", 0, ("sea",))
    (again,) = looked(stored(seen), source)
    assert isinstance(again, Seen)
    assert (again.write, again.photo.given) == (False, None)


def test_labels_are_one_set_for_each_photo(old: list[Path]) -> None:
    with pytest.raises(LabelError, match="3 photos but labels for 1"):
        Intake(Known(), SEES, PhotoFiles(old), [["sea"]])  # type: ignore[arg-type]


def test_processes_take_in_what_threads_do(photos: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for path in photos:
        os.utime(path, (1_700_000_000, 1_700_000_000))  # a young file's time is not kept, and they get older meanwhile
    source = PhotoFiles(photos * 20)
    copies = [PhotoBytes([(f"{path}-{i}", path.read_bytes()) for i in range(13) for path in photos]), source]
    found = []
    for cores in (1, 4):
        monkeypatch.setenv("HYPHASH_THREADS", str(cores))
        found.append([seen for photos_ in copies for seen in looked(Known(), photos_, keep=True)])
    for one, other in zip(*found, strict=True):
        assert isinstance(one, Seen)
        assert isinstance(other, Seen)
        assert (one.photo, one.write, one.thumbnail, one.data) == (
            other.photo, other.write, other.thumbnail, other.data
        )  # fmt: skip
        np.testing.assert_array_equal(one.pixels, other.pixels)  # type: ignore[arg-type]


def test_photos_come_as_a_folder_a_file_a_list_or_a_source(photos: list[Path]) -> None:
    folder = as_source(photos[0].parent)
    assert sorted(folder.name(i) for i in range(len(folder))) == [path.name for path in photos]
    assert folder.path(0) == photos[0].parent / folder.name(0)
    assert as_source(str(photos[0])).path(0) == photos[0]
    assert len(as_source(map(str, photos))) == 10
    assert as_source(folder) is folder
    with pytest.raises(PhotoError, match="no such photo or folder"):
        as_source(photos[0].with_name("none"))


def test_a_photo_has_moved_if_the_file_of_a_twin_is_gone(old: list[Path], tmp_path: Path) -> None:
    here, gone, pack = (
        replace(stored(*looked(Known(), PhotoFiles(old[:1]))).photos[0], id=number, path=path)
        for number, path in enumerate((str(old[0]), str(tmp_path / "gone.jpg"), "pack/1"), 1)
    )
    assert moved_from([here, pack, gone], set(), shared=False) == gone
    assert moved_from([here, pack, gone], {gone.id}, shared=False) is None
    assert [place_of(photo, shared=False) for photo in (here, gone, pack)] == ["here", "gone", "here"]
    elsewhere = replace(gone, path="/another/machine/x.jpg")
    assert [place_of(elsewhere, shared=shared) for shared in (False, True)] == ["gone", "elsewhere"]


def test_of_a_photo_in_a_folder_that_may_not_be_read_nobody_can_tell(
    old: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    photo = stored(*looked(Known(), PhotoFiles(old[:1]))).photos[0]

    def refuse(path: Path, **_: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)  # root may read all
    assert place_of(photo, shared=False) == "elsewhere"


def with_exif(path: Path) -> None:
    """A photo of 3 May 2019, 14:30:05, by a Canon, south of the equator."""
    exif, image = Image.Exif(), Image.open(path)
    exif[ExifTags.Base.Make], exif[ExifTags.Base.Model] = "Canon", "EOS\x00 80D"
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "2019:05:03 14:30:05"
    exif.get_ifd(ExifTags.IFD.GPSInfo).update({1: "S", 2: (33.0, 51.0, 24.999), 3: "E", 4: (151.0, 12.0, 40.0)})
    image.save(path, exif=exif)
    os.utime(path, (1e9, 1e9))


def test_what_the_camera_wrote_is_taken_in(old: list[Path]) -> None:
    with_exif(old[0])
    first, second, _ = looked(Known(), PhotoFiles(old))
    assert isinstance(first, Seen)
    assert isinstance(second, Seen)
    facts = first.photo.facts
    assert (facts.taken, facts.camera) == (1_556_893_805, "Canon EOS 80D")
    assert (facts.latitude, facts.longitude) == (-33.856944, 151.211111)
    assert (second.photo.facts.taken, second.photo.facts.camera, second.photo.facts.latitude) == (None, "", None)


def test_photos_of_an_earlier_version_are_read_once_more(old: list[Path]) -> None:
    """They are neither decoded nor encoded; a twin, and a photo that has no more to say, are filled in as well."""
    with_exif(old[0])
    old[1].write_bytes(old[0].read_bytes())
    os.utime(old[1], (1e9, 1e9))
    known = stored(*looked(Known(), PhotoFiles([old[0], old[2]])))
    known.photos = [
        replace(photo, facts=replace(photo.facts, taken=None, camera=None, latitude=None, longitude=None))
        for photo in known.photos
    ]
    first, twin, silent = looked(known, PhotoFiles(old), decode=pytest.fail)
    assert isinstance(first, Seen)
    assert isinstance(twin, Seen)
    assert isinstance(silent, Seen)
    assert first.write
    assert first.photo.facts == replace(twin.photo.facts, modified=first.photo.facts.modified)
    assert (first.photo.facts.camera, silent.photo.facts.camera, silent.write) == ("Canon EOS 80D", "", True)
    known = Known([first.photo, silent.photo])
    assert [seen.write for seen in looked(known, PhotoFiles([old[0], old[2]])) if isinstance(seen, Seen)] == [False] * 2


def test_files_of_an_earlier_version_are_looked_at_again_in_the_background(
    collection: Collection, photos: list[Path]
) -> None:
    """One that is gone, and one that has changed, stay as they are; stopped, it goes on where it was."""
    with_exif(photos[0])
    collection.add(photos, labels=[["cat"]] * 10)
    before = collection.photos()
    silent = {photo.id: replace(photo.facts, taken=None, camera=None) for photo in before}
    collection.store.relabel_all({id: lambda p: replace(p, facts=silent[p.id]) for id in silent})
    photos[3].unlink()
    photos[4].write_bytes(photos[5].read_bytes())
    assert collection.timeline().undated == 10
    told: list[tuple[int, int]] = []
    describe(collection, lambda *count: told.append(count), stop=lambda: True)
    assert (told, collection.timeline().undated) == ([], 10)
    describe(collection, lambda *count: told.append(count), stop=lambda: False)
    assert told == [(10, 10)]
    assert [photo.facts.camera is None for photo in collection.photos()] == [i in (3, 4) for i in range(10)]
    assert [replace(p, changed="") for p in collection.photos() if p.facts.camera is not None] == [
        replace(p, changed="") for i, p in enumerate(before) if i not in (3, 4)
    ]
    assert collection.timeline().undated == 9
    assert collection.verify() == []


def codes(collection: Collection) -> dict[str, bytes]:
    return {photo.path: photo.code for photo in collection.photos(limit=1000)}


def test_all_codes_change_at_once_and_nothing_else_does(collection: Collection, tiny: Any, photos: list[Path]) -> None:
    collection.add(photos, labels=[["cat"]] * 10)
    collection.relabel(3, ["mine"])
    before = {photo.id: (photo.path, photo.labels, photo.given, photo.added) for photo in collection.photos()}
    other = tiny.TinyHasher(bits=33, seed=1)
    steps: list[tuple[int, int]] = []
    assert collection.reindex(other, progress=lambda done, total: steps.append((done, total))) == ()
    assert steps[-1] == (10, 10)
    expected = other.encode(photos).packed
    assert codes(collection) == {str(path): row.tobytes() for path, row in zip(photos, expected, strict=True)}
    assert {p.id: (p.path, p.labels, p.given, p.added) for p in collection.photos()} == before
    assert collection.hasher.bits == collection.stats().bits == 33
    assert collection.verify() == []
    with Collection.open(collection.folder, hasher=other) as again:
        assert again.search(photos[2], k=1)[0].id == 3
    collection.compact()
    assert collection.verify() == []
    assert [path.name for path in collection.folder.glob("codes-*")] == ["codes-2.safetensors"]


def test_scores_of_labels_come_with_the_codes(collection: Collection, tiny: Any, photos: list[Path]) -> None:
    """Also of a copy, which is not encoded; one who moves to a hasher without a label layer has none."""
    for hasher in (tiny.TinyHasher(layer=True), tiny.TinyHasher(seed=2)):
        collection.add(photos)
        collection.add_bytes(photos[3].read_bytes(), "copy.jpg")
        collection.reindex(hasher)
        sees = hasher.spec.preprocessing
        pixels = np.array([pixels_of(Raw(path.name, path.read_bytes()), preprocessing=sees) for path in photos])
        expected = [row[2:].tobytes() for row in hasher.packed_rows(pixels)]
        assert [photo.scores for photo in collection.photos()] == [*expected, expected[3]]
        assert len(expected[0]) == (2 if hasher.calibration else 0)
        assert collection.verify() == []


def test_the_old_hasher_answers_until_the_end(collection: Collection, tiny: Any, photos: list[Path]) -> None:
    collection.add(photos)
    expected = [match.id for match in collection.search(photos[4], k=10)]
    other = tiny.TinyHasher(bits=33, seed=1)
    reader = Collection.open(collection.folder, hasher=collection.hasher)
    answers: list[list[int]] = []
    original = other.packed_rows

    def spy(pixels: Any) -> Any:
        answers.append([match.id for match in reader.search(photos[4], k=10)])
        return original(pixels)

    other.packed_rows = spy
    collection.reindex(other)
    assert answers == [expected]
    with reader:  # the reader notices by itself; labels need no network
        assert reader.search(labels=["cat"], k=10).total == 10
        assert reader.hasher.fingerprint == other.fingerprint
        assert reader.search(like=4, k=1)[0].distance <= 33


def test_photos_that_come_and_change_meanwhile(
    collection: Collection, tiny: Any, photos: list[Path], draw: Callable[..., Path]
) -> None:
    collection.add(photos)
    other = tiny.TinyHasher(bits=9, seed=1)
    original, rounds = other.packed_rows, iter(range(99))

    def busy(pixels: Any) -> Any:
        if (round := next(rounds)) < 2:
            draw(photos[5], 1000 + round)
            collection.add([draw(photos[0].with_name(f"late{round}.jpg"), 500 + round), photos[5]])
            collection.remove([round + 1])
        return original(pixels)

    other.packed_rows = busy
    collection.reindex(other)
    present = [path for path in photos[0].parent.iterdir() if path not in photos[:2]]
    assert codes(collection) == {str(path): other.encode([path]).packed[0].tobytes() for path in present}
    assert collection.verify() == []


def test_an_interrupted_move_goes_on(collection: Collection, tiny: Any, photos: list[Path], monkeypatch: Any) -> None:
    monkeypatch.setattr(tiny.TinyEncoder, "batch", 4)
    collection.add(photos)
    other = tiny.TinyHasher(seed=1)
    before = codes(collection)

    def stop(done: int, total: int) -> None:
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collection.reindex(other, progress=stop)
    assert codes(collection) == before
    assert collection.hasher.fingerprint != other.fingerprint
    other.encoder.encoded = 0
    collection.reindex(other)
    assert other.encoder.encoded == 2


def test_photos_whose_files_are_gone_or_changed_are_encoded_from_thumbnails(
    collection: Collection, tiny: Any, photos: list[Path], draw: Callable[..., Path]
) -> None:
    collection.add(photos)
    photos[0].unlink()
    draw(photos[1], 4321)
    problems = collection.reindex(tiny.TinyHasher(seed=1))
    reasons = {problem.name: problem.reason for problem in problems}
    assert set(reasons) == {str(photos[0]), str(photos[1])}
    assert "encoded from its thumbnail" in reasons[str(photos[0])]
    assert "changed since" in reasons[str(photos[1])]
    assert len(collection) == 10


def test_a_photo_that_is_lost_stops_the_move(
    collection: Collection, tiny: Any, photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.add(photos)
    before = codes(collection)
    photos[0].unlink()
    monkeypatch.setattr("hyphash.collection.folder.GRACE", -1)
    collection.thumbnails.sweep(lambda _: set())
    other = tiny.TinyHasher(seed=1)
    with pytest.raises(
        CollectionError, match=r"0.jpg: there is no such photo.*not here either.*the old hasher answers"
    ):
        collection.reindex(other)
    assert codes(collection) == before
    collection.remove([1])
    collection.reindex(other)
    assert len(collection) == 9


def test_codes_of_the_old_hasher_are_refused_afterwards(collection: Collection, tiny: Any, photos: list[Path]) -> None:
    collection.add(photos[:5])
    with Collection.open(collection.folder, hasher=collection.hasher) as writer:
        collection.reindex(tiny.TinyHasher(seed=1))
        with pytest.raises(OtherHasherError, match="reindex"):
            writer.add(photos)
    assert len(collection) == 5


def test_the_same_hasher_is_nothing_to_do(collection: Collection, hasher: Any, photos: list[Path]) -> None:
    collection.add(photos)
    commit = collection.store.state().commit
    assert collection.reindex(hasher) == ()
    assert collection.store.state().commit == commit
