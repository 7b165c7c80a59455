"""Some photos, wherever their bytes come from, and decoded on many cores: whatever a photo does to its process."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hyphash.errors import ConfigError, MissingExtraError, PhotoError
from hyphash.photos import (
    Chosen,
    PhotoBytes,
    PhotoFiles,
    Preprocessing,
    Problem,
    Raw,
    decoded,
    decoders,
    looked_at,
    pixels_of,
    read_bytes,
)
from hyphash.workers import Workers

SMALL = Preprocessing(size=8, mean=(0.5,) * 3, std=(0.5,) * 3)


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


def length(raw: Raw) -> int:
    return len(raw.data)


def troubled(raw: Raw) -> str:
    """What the name of a photo says happens."""
    match raw.name:
        case "bad":
            raise PhotoError("bad: damaged")
        case "heic":
            raise MissingExtraError("reading HEIC photos", "heic")
        case "deadly":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "wrong":
            raise ConfigError("wrong: no such thing")
        case "fault":
            raise KeyError("nobody")
    return raw.name.upper()


def looks(workers: Workers, *names: str) -> list[object]:
    return [found for _, found in looked_at(names, lambda name: Raw(name, b""), troubled, workers=workers)]


@pytest.mark.parametrize("processes", [0, 1, 3])
def test_every_photo_comes_in_order(processes):
    with Workers(processes) as workers:
        found = list(looked_at(range(100), lambda i: Raw(str(i), bytes(i)), length, workers=workers, ahead=20))
    assert found == [(i, i) for i in range(100)]


@pytest.mark.parametrize("processes", [0, 2])
def test_what_needs_no_look_passes_among_the_others(processes):
    def read(i):
        if i % 3 == 0:
            raise PhotoError(f"{i}: gone")
        return -i if i % 3 == 1 else Raw(str(i), bytes(i))

    with Workers(processes) as workers:
        found = [result for _, result in looked_at(range(30), read, length, workers=workers)]
    assert [str(result) for result in found[::3]] == [f"{i}: gone" for i in range(0, 30, 3)]
    assert found[1::3] == [-i for i in range(1, 30, 3)]
    assert found[2::3] == list(range(2, 30, 3))


def test_processes_see_what_threads_see(photo_files, tmp_path):
    paths = [*photo_files(20), tmp_path / "none.jpg"]
    paths[7].write_bytes(b"no photo at all")
    alone = list(decoded(PhotoFiles(paths), SMALL, workers=Workers(0)))
    with Workers(2) as workers:
        beside = list(decoded(PhotoFiles(paths), SMALL, workers=workers))
    assert [i for i, _ in beside] == list(range(21))
    for (_, one), (_, other) in zip(alone, beside, strict=True):
        assert type(one) is type(other)
        assert_array_equal(str(one), str(other)) if isinstance(one, Problem) else assert_array_equal(one, other)
    assert [i for i, found in beside if isinstance(found, Problem)] == [7, 20]
    assert [found.name for _, found in beside if isinstance(found, Problem)] == [str(paths[7]), str(paths[20])]


@pytest.mark.parametrize("processes", [0, 2])
def test_what_is_wrong_with_a_photo_is_its_result(processes):
    with Workers(processes) as workers:
        a, bad, heic, b = looks(workers, "a", "bad", "heic", "b")
    assert (a, b) == ("A", "B")
    assert str(bad) == "bad: damaged"
    assert str(heic).startswith("heic: ")
    assert "hyphash[heic]" in str(heic)


def test_a_photo_that_ends_its_process_is_reported_and_the_others_come():
    with Workers(1) as workers:
        found = looks(workers, "a", "deadly", "c", "deadly", "b")
        assert found[::2] == ["A", "C", "B"]
        assert all(isinstance(found[i], PhotoError) and "deadly: it ended" in str(found[i]) for i in (1, 3))
        assert looks(workers, "d") == ["D"]


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize(("name", "kind"), [("wrong", ConfigError), ("fault", (RuntimeError, KeyError))])
def test_other_errors_are_raised_where_they_are_asked(processes, name, kind):
    with Workers(processes) as workers, pytest.raises(kind, match=r"wrong: no such thing|nobody"):
        looks(workers, "a", name)


@pytest.mark.parametrize(
    ("cores", "photos", "among", "expected"),
    [(2, 10**6, 1, 0), (16, 10**6, 1, 16), (16, 10, 1, 0), (16, 200, 1, 3), (16, 10**6, 4, 4), (16, 10**6, 8, 0)],
)
def test_there_are_as_many_as_pay(monkeypatch, cores, photos, among, expected):
    monkeypatch.setenv("HYPHASH_THREADS", str(cores))
    workers = decoders(photos, among=among)
    assert workers.processes == expected
    assert workers.threads == (expected or cores)


def test_pixels_are_what_a_network_sees(photo_files):
    (path,) = photo_files(1)
    pixels = pixels_of(Raw("photo", Path(path).read_bytes()), preprocessing=SMALL)
    assert pixels.shape == (8, 8, 3)
    assert pixels.dtype == np.uint8


def test_decoding_stops_when_nobody_listens(photo_files, monkeypatch):
    paths, read = photo_files(1) * 500, []

    class Counted(PhotoFiles):
        def read(self, i):
            read.append(i)
            return super().read(i)

    monkeypatch.setenv("HYPHASH_THREADS", "2")
    stream = decoded(Counted(paths), SMALL)
    assert next(stream)[0] == 0
    stream.close()
    time.sleep(0.05)
    assert len(read) < 50  # it runs ahead, but only a little
