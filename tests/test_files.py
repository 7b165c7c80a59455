"""Files are there whole or not at all, and JSON lines survive a crash in the middle of one."""

import errno
import os
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyphash.errors import StorageError
from hyphash.files import (
    GRACE,
    append_json,
    disk_errors,
    json_line,
    make_folder,
    new_folder,
    open_regular,
    read_json_lines,
    require_plain,
    sweep_drafts,
    write_atomically,
)


@pytest.mark.parametrize("content", [b"new", "new", lambda draft: draft.write_bytes(b"new")])
def test_content_replaces_what_was_there(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(b"something older and longer")
    write_atomically(path, content)
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_text_is_utf8(tmp_path):
    write_atomically(tmp_path / "file", "Äpfel × 日本")
    assert (tmp_path / "file").read_bytes() == "Äpfel × 日本".encode()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, OSError])
def test_a_writer_that_raises_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(draft):
        draft.write_bytes(b"half of the n")
        raise error("in the middle")

    with pytest.raises(error, match="in the middle"):
        write_atomically(path, write)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]  # and no draft


@pytest.mark.parametrize("empty", [True, False])
def test_a_new_folder_is_there_when_it_is_whole(tmp_path, empty):
    folder = tmp_path / "above" / "folder"
    if empty:
        folder.mkdir(parents=True)
    with new_folder(folder) as draft:
        (draft / "file").touch()
        assert not (folder / "file").exists()
    assert [p.relative_to(tmp_path).as_posix() for p in folder.rglob("*")] == ["above/folder/file"]
    assert [p.name for p in folder.parent.iterdir()] == ["folder"]


def test_a_new_folder_that_fails_vanishes_and_replaces_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "folder"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="not empty"), new_folder(tmp_path / "folder"):
        (tmp_path / "folder" / "letter").touch()  # it came meanwhile
    assert [p.name for p in tmp_path.rglob("*")] == ["folder", "letter"]


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    seen = []

    def write(draft):
        draft.write_bytes(b"ne")
        seen.append(path.read_bytes())
        draft.write_bytes(b"new")

    write_atomically(path, write)
    assert seen == [b"old"]
    assert path.read_bytes() == b"new"


def test_who_has_the_old_file_open_can_read_it_to_its_end(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with path.open("rb") as file:
        write_atomically(path, b"new")
        assert file.read() == b"old"  # another file took the name; this one was not written over


@pytest.mark.parametrize("content", [b"x", lambda draft: (draft.unlink(missing_ok=True), _private(draft))[0]])
def test_files_get_the_rights_that_the_users_umask_gives(tmp_path, content):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", content)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def _private(draft):
    draft.write_bytes(b"x")
    draft.chmod(0o600)  # as the safetensors library does


def full_disk(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_in_plain_words(tmp_path, number):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(draft):
        raise OSError(number, os.strerror(number))

    with pytest.raises(StorageError, match=r"file: the disk is full .*; make room"):
        write_atomically(path, write)
    assert path.read_bytes() == b"old"


def test_a_disk_that_fills_up_while_flushing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(StorageError, match="the disk is full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_real_limit_on_the_size_of_files_is_reported(tmp_path):
    """The system itself refuses, and safetensors, which is not Python, reports it in its own way."""
    program = (
        "import resource, sys, numpy as np\n"
        "from pathlib import Path\n"
        "from safetensors.numpy import save_file\n"
        "from hyphash.errors import StorageError\n"
        "from hyphash.files import write_atomically\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
        "path = Path(sys.argv[1])\n"
        "tensors = {'a': np.zeros(100_000)}\n"
        "for content in (bytes(100_000), lambda draft: save_file(tensors, draft)):\n"
        "    try:\n"
        "        write_atomically(path, content)\n"
        "    except StorageError as error:\n"
        "        print(error)\n"
    )
    path = tmp_path / "file"
    path.write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert done.stdout.count("the disk is full (File too large); make room") == 2
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(StorageError, match="nowhere/file: cannot be written"):
        write_atomically(tmp_path / "nowhere" / "file", b"x")


def test_a_folder_in_the_place_of_the_file_is_refused(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(StorageError, match="file: cannot be written"):
        write_atomically(tmp_path / "file", b"x")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_missing_rights_are_said_in_plain_words(tmp_path, number):
    with pytest.raises(StorageError, match=r"may not be written .*; choose another folder"), disk_errors(tmp_path):
        raise OSError(number, os.strerror(number))


def test_other_errors_are_left_as_they_are(tmp_path):
    with pytest.raises(OSError, match="on purpose"), disk_errors(tmp_path):
        raise OSError(errno.EIO, "on purpose")
    with pytest.raises(ValueError, match="on purpose"), disk_errors(tmp_path):
        raise ValueError("on purpose")


def test_lines_come_back_as_they_went(tmp_path):
    path = tmp_path / "lines.jsonl"
    records = [{"number": 1, "loss": 0.1 + 0.2}, {"number": 2, "loss": None}, {"name": "Ä × 日本"}]
    for record in records:
        append_json(path, record)
    assert read_json_lines(path) == records
    assert "日本" in path.read_text(encoding="utf-8")  # readable, not escaped


@given(st.lists(st.dictionaries(st.text(), st.text(st.characters(exclude_categories=[]))), max_size=4))
def test_any_text_comes_back(tmp_path_factory, records):
    """Also the line ends of other alphabets, and half characters: names of files that are not UTF-8."""
    path = tmp_path_factory.mktemp("lines") / "lines.jsonl"
    for record in records:
        append_json(path, record)
    assert read_json_lines(path) == records
    write_atomically(path, "".join(map(json_line, records)))
    assert read_json_lines(path) == records


def test_there_are_no_lines_in_a_file_that_is_not_there(tmp_path):
    assert read_json_lines(tmp_path / "lines.jsonl") == []


@pytest.mark.parametrize("torn", ['{"number": 2, "lo', '{"number": 2}'])
def test_a_torn_tail_is_left_out_and_written_over(tmp_path, torn):
    path = tmp_path / "lines.jsonl"
    append_json(path, {"number": 1})
    with path.open("a") as file:
        file.write(torn)
    assert read_json_lines(path) == [{"number": 1}]
    append_json(path, {"number": 3})
    assert read_json_lines(path) == [{"number": 1}, {"number": 3}]


def test_a_file_that_holds_only_a_torn_line_starts_anew(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"number": 1, "name": "\xc3')  # cut in the middle of a letter
    assert read_json_lines(path) == []
    append_json(path, {"number": 1})
    assert read_json_lines(path) == [{"number": 1}]


def test_those_who_append_at_once_take_turns(tmp_path):
    def append(writer):
        for number in range(25):
            append_json(tmp_path / "lines", {"writer": writer, "number": number, "text": "x" * 20_000})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(4)))
    records = read_json_lines(tmp_path / "lines")
    assert sorted((r["writer"], r["number"]) for r in records) == [(w, n) for w in range(4) for n in range(25)]


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"number": 1}\n{"number":\n{"number": 3}\n')
    with pytest.raises(StorageError, match=r"lines\.jsonl: a damaged line"):
        read_json_lines(path)


def test_a_full_disk_while_adding_a_line_keeps_the_lines_before(tmp_path, monkeypatch):
    path = tmp_path / "lines.jsonl"
    append_json(path, {"number": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(StorageError, match="the disk is full"):
            append_json(path, {"number": 2})
    assert read_json_lines(path)[0] == {"number": 1}


def test_threads_that_write_one_file_at_once_do_not_write_into_each_other(tmp_path):
    def write(number):
        write_atomically(tmp_path / "file", bytes([number]) * 10_000)
        return len(set((tmp_path / "file").read_bytes()))

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(write, range(100))) == {1}
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_draft_that_lies_in_wait_is_not_written_through(tmp_path, monkeypatch):
    monkeypatch.setattr("hyphash.files.secrets.token_hex", lambda _: "guessed")
    (tmp_path / "letter").write_text("mine")
    (tmp_path / ".file.guessed.draft").symlink_to(tmp_path / "letter")
    with pytest.raises(StorageError, match="cannot be written"):
        write_atomically(tmp_path / "file", b"x")
    assert (tmp_path / "letter").read_text() == "mine"


def test_old_drafts_are_swept_and_young_ones_stay(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "deep" / f".folder.{name}.draft").mkdir(parents=True)
        (tmp_path / f".file.{name}.draft").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".link.a.draft").symlink_to(tmp_path / "elsewhere")
    for old in (tmp_path / "deep" / ".folder.a.draft", tmp_path / ".file.a.draft", tmp_path / "elsewhere"):
        os.utime(old, (1, time.time() - 2 * GRACE))
    sweep_drafts(tmp_path)
    left = {path.name for path in tmp_path.rglob("*")}
    assert left == {"deep", "elsewhere", ".link.a.draft", ".folder.b.draft", ".file.b.draft"}


def test_a_new_folder_sweeps_what_was_left_of_it_before(tmp_path):
    for name in ("folder", "other"):
        (tmp_path / f".{name}.1.draft").mkdir()
        os.utime(tmp_path / f".{name}.1.draft", (1, 1))
    with new_folder(tmp_path / "folder"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.1.draft", "folder"]


def test_files_and_then_folders_are_on_the_disk(tmp_path, monkeypatch):
    """The name of a file is brought to the disk after its content, and those of new folders from above."""
    done, names, real = [], {}, os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append(names.get(os.fstat(handle).st_ino)), real(handle)))
    make_folder(tmp_path / "a" / "b")
    assert len(done) == 2
    names |= {path.stat().st_ino: path.name for path in (tmp_path / "a", tmp_path / "a" / "b")}
    write_atomically(tmp_path / "a" / "b" / "file", b"x")
    assert done[2:] == [None, "b"]
    with new_folder(tmp_path / "a" / "c") as draft:
        (draft / "file").touch()
    assert done[4:] == [None, None, "a"]


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_only_regular_files_are_opened(tmp_path, kind):
    path = tmp_path / "file"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else tmp_path)
    with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
        open_regular(path)


def test_links_are_followed_where_that_is_meant(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"x"
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(tmp_path / "link", follow=False)
    require_plain([tmp_path, tmp_path / "file"], "this")
    with pytest.raises(StorageError, match="link: a link or a special file; this holds"):
        require_plain([tmp_path / "link"], "this")
    with pytest.raises(StorageError, match="link: cannot be written"):
        append_json(tmp_path / "link", {})
    assert (tmp_path / "file").read_bytes() == b"x"
