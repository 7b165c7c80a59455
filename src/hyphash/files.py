"""Files that are there whole or not at all, whatever happens while they are written."""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from hyphash.errors import StorageError

_HALF = re.compile("[\ud800-\udfff]")  # one half of a character, as Python spells bytes it cannot decode


def write_atomically(path: Path, content: bytes | str | Callable[[Path], None], *, private: bool = False) -> None:
    """Write `path` in one step: into a neighbour first, then to disk, then under its name.

    `content` is the bytes, the text, or a function that writes the file it is given. A `private` file is for its
    owner's eyes alone from its first byte on.
    """
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    with disk_errors(path):
        try:
            draft.touch(0o600 if private else 0o666)
            mode = draft.stat().st_mode  # as the user's umask has it; a library that writes may choose otherwise
            if callable(content):
                content(draft)
                draft.chmod(mode)
            else:
                draft.write_bytes(content.encode() if isinstance(content, str) else content)
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A neighbour of `folder` to fill: it takes the folder's name (an empty one gives way) at the end, or vanishes."""
    draft = folder.with_name(f".{folder.name}.{os.getpid()}.draft")
    with disk_errors(folder):
        try:
            draft.mkdir(parents=True)
            yield draft
            if folder.exists():
                folder.rmdir()
            draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk and missing rights into errors that say what to do."""
    try:
        yield
    except Exception as error:
        number = _os_error(error)
        if number is None:
            raise
        reason = os.strerror(number)
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StorageError(
                f"{path}: the disk is full ({reason}); make room and run the same command again"
            ) from error
        if number in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StorageError(f"{path}: may not be written ({reason}); choose another folder") from error
        if number in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG):
            raise StorageError(f"{path}: cannot be written ({reason}); choose another folder") from error
        raise


def _os_error(error: Exception) -> int | None:
    """The system's number for what went wrong. safetensors is written in Rust and has it in its text alone."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


def append_json(path: Path, record: dict[str, Any]) -> None:
    """Add one line to a JSON-lines file and bring it to the disk; a last line torn by a crash goes."""
    with disk_errors(path), path.open("ab+") as file:
        _wait_for_others(file)
        file.truncate(_whole_lines(file))
        file.write(json_line(record).encode())
        file.flush()
        os.fsync(file.fileno())


def _wait_for_others(file: BinaryIO) -> None:
    """Let processes that append to the same file take turns, where the system can: no line is torn by another."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed


def _whole_lines(file: BinaryIO) -> int:
    """Where the last whole line ends, in bytes."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(end - 1, 0))
    if file.read(1) in (b"", b"\n"):
        return end
    file.seek(0)
    return file.read().rfind(b"\n") + 1


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON-lines file; a last line torn by a crash is left out."""
    if not path.is_file():
        return []
    *lines, _ = path.read_bytes().split(b"\n")  # not splitlines: names of photos may hold other line ends
    try:
        return [json.loads(line) for line in lines if line.strip()]
    except ValueError as error:
        raise StorageError(f"{path}: a damaged line ({error}); mend it or delete the file") from error


def json_line(record: dict[str, Any]) -> str:
    """A record as one line of text that UTF-8 can hold: escaped only where it holds half a character."""
    line = json.dumps(record, ensure_ascii=False)
    return (line if is_unicode(line) else json.dumps(record)) + "\n"


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold it: file systems allow names that it cannot."""
    return not _HALF.search(text)
