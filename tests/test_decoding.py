"""Photos decoded in processes: the results of threads, whatever a photo does to its process."""

import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from numpy.testing import assert_array_equal

from hyphash.decoding import Decoders, File, in_lots, in_threads, on_all_cores, pixels_of
from hyphash.errors import ConfigError, MissingExtraError, PhotoError
from hyphash.hasher import PhotoFiles, decoded
from hyphash.photos import Preprocessing

SMALL = Preprocessing(size=8, mean=(0.5,) * 3, std=(0.5,) * 3)


def length(file: File) -> int:
    return len(file.data)


def troubled(file: File) -> str:
    """What the name of a file says happens."""
    match file.name:
        case "bad":
            raise PhotoError("bad: damaged")
        case "heic":
            raise MissingExtraError("reading HEIC photos", "heic")
        case "deadly":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "chatty":
            print("a library says hello")  # noqa: T201
            os.write(1, b"and so does its C code")
        case "wrong":
            raise ConfigError("wrong: no such thing")
        case "fault":
            raise KeyError("nobody")
    return file.name.upper()


def files(*names: str) -> list[File]:
    return [File(name, b"") for name in names]


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


@pytest.mark.parametrize("processes", [0, 1, 3])
def test_every_photo_comes_in_order(processes):
    photos = [File(str(i), bytes(i)) for i in range(100)]
    with Decoders(processes) as decoders:
        found = list(on_all_cores(length, photos, decoders=decoders, ahead=20))
    assert found == [(photo, len(photo.data)) for photo in photos]


def test_processes_see_what_threads_see(photo_files, tmp_path):
    paths = [*photo_files(20), tmp_path / "none.jpg"]
    paths[7].write_bytes(b"no photo at all")
    alone = list(decoded(PhotoFiles(paths), SMALL, decoders=Decoders(0)))
    with Decoders(2) as decoders:
        beside = list(decoded(PhotoFiles(paths), SMALL, decoders=decoders))
    assert [i for i, _ in beside] == list(range(21))
    for (_, one), (_, other) in zip(alone, beside, strict=True):
        assert type(one) is type(other)
        assert_array_equal(str(one), str(other)) if isinstance(one, PhotoError) else assert_array_equal(one, other)
    assert [i for i, found in beside if isinstance(found, PhotoError)] == [7, 20]


@pytest.mark.parametrize("processes", [0, 2])
def test_what_is_wrong_with_a_photo_is_its_result(processes):
    with Decoders(processes) as decoders:
        a, bad, heic, b = decoders.each(troubled, files("a", "bad", "heic", "b"))
    assert (a, b) == ("A", "B")
    assert str(bad) == "bad: damaged"
    assert str(heic).startswith("heic: ")
    assert "hyphash[heic]" in str(heic)


def test_a_photo_that_ends_its_process_is_reported_and_the_others_come():
    with Decoders(1) as decoders:
        found = decoders.each(troubled, files("a", "deadly", "chatty", "deadly", "b"))
        assert found[::2] == ["A", "CHATTY", "B"]
        assert all(isinstance(found[i], PhotoError) and "deadly: it ended" in str(found[i]) for i in (1, 3))
        assert decoders.each(troubled, files("c")) == ["C"]


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize(("name", "kind"), [("wrong", ConfigError), ("fault", (RuntimeError, KeyError))])
def test_other_errors_are_raised_where_they_are_asked(processes, name, kind):
    with Decoders(processes) as decoders, pytest.raises(kind, match=r"wrong: no such thing|nobody"):
        decoders.each(troubled, files("a", name))


def test_work_that_cannot_travel_does_no_harm():
    with Decoders(1) as decoders:
        with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
            decoders.each(lambda file: file.name, files("a"))
        assert decoders.each(troubled, files("b")) == ["B"]


def test_processes_are_started_when_needed_and_end_with_their_owner():
    before = children()
    decoders = Decoders(4)
    assert children() == before
    decoders.each(troubled, files("a"))
    decoders.each(troubled, files("b"))
    assert len(children() - before) == 1
    decoders.close()
    assert children() == before
    forgotten = Decoders(2)
    forgotten.each(troubled, files("a"))
    del forgotten
    assert children() == before


def test_a_plain_script_needs_no_guard_and_leaves_nothing_behind_when_it_is_killed(tmp_path, photo_files):
    """multiprocessing would run the script again in each process."""
    paths = photo_files(8)
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import time
        from pathlib import Path
        import psutil
        from hyphash.decoding import Decoders
        from hyphash.hasher import PhotoFiles, decoded
        from hyphash.photos import Preprocessing

        decoders = Decoders(2)
        photos = PhotoFiles([Path(path) for path in {[str(path) for path in paths]!r}])
        list(decoded(photos, Preprocessing(size=8, mean=(0.5,) * 3, std=(0.5,) * 3), decoders=decoders))
        print(*(child.pid for child in psutil.Process().children()), flush=True)
        time.sleep(60)
        """),
        encoding="utf-8",
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        started = [int(pid) for pid in process.stdout.readline().split()]
        assert 1 <= len(started) <= 2
        process.kill()
    until = time.monotonic() + 10
    while any(map(psutil.pid_exists, started)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, started))


def test_ctrl_c_is_for_the_one_that_asks_from_the_first_moment():
    """Not only once a process is up and ignores it: it is started deaf, and only it."""
    before = children()
    with Decoders(1) as decoders:
        decoders.each(troubled, files("a"))
        (decoder,) = children() - before
        assert signal.SIGINT in blocked(decoder)
        assert signal.SIGINT not in blocked(os.getpid())
        os.kill(decoder, signal.SIGINT)
        assert decoders.each(troubled, files("b")) == ["B"]


def blocked(pid: int) -> set[int]:
    """The signals that the main thread of a process is deaf to."""
    (mask,) = re.findall(r"SigBlk:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return {number for number in range(1, 65) if int(mask, 16) >> (number - 1) & 1}


@pytest.mark.parametrize(
    ("cores", "photos", "among", "expected"),
    [(2, 10**6, 1, 0), (16, 10**6, 1, 16), (16, 10, 1, 0), (16, 200, 1, 3), (16, 10**6, 4, 4), (16, 10**6, 8, 0)],
)
def test_there_are_as_many_as_pay(monkeypatch, cores, photos, among, expected):
    monkeypatch.setenv("HYPHASH_THREADS", str(cores))
    decoders = Decoders.for_photos(photos, among=among)
    assert decoders.processes == expected
    assert decoders.threads == (expected or cores)


def test_pixels_of_a_file_are_what_a_network_sees(photo_files):
    (path,) = photo_files(1)
    pixels = partial(pixels_of, preprocessing=SMALL)(File("photo", Path(path).read_bytes()))
    assert pixels.shape == (8, 8, 3)
    assert pixels.dtype == np.uint8


def test_threads_keep_the_order_and_stop_when_nobody_listens():
    begun = []

    def work(i):
        begun.append(i)
        time.sleep(0.001 * (i % 3))
        return -i

    assert list(in_threads(work, range(50), workers=4, ahead=10)) == [-i for i in range(50)]
    begun.clear()
    stream = in_threads(work, range(1000), workers=2, ahead=5)
    assert next(stream) == 0
    stream.close()
    assert len(begun) < 20


def test_lots_are_all_items():
    assert list(in_lots(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(in_lots([], 3)) == []
