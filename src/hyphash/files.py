"""Files that are there whole or not at all, whatever happens while they are written, and read only if they are files.

What is written is on the disk before it gets its name, and its name is before anybody speaks of it: whoever commits
afterwards commits to what a power cut leaves. Drafts have random names, so that nobody writes into another's.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from hyphash.errors import StorageError

GRACE = 3600.0  # seconds after which nobody is taken to be at work on a file any more
UNWRITABLE = {  # by the system's numbers
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG): "the disk is full ({}); make room and run the same command again",
    (errno.EACCES, errno.EPERM, errno.EROFS): "may not be written ({}); choose another folder",
    (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP):
        "cannot be written ({}); choose another folder",
}  # fmt: skip
_HALF = re.compile("[\ud800-\udfff]")  # one half of a character, as Python spells bytes it cannot decode


def write_atomically(path: Path, content: bytes | str | Callable[[Path], object], *, private: bool = False) -> None:
    """Write `path` in one step: into a neighbour first, then to disk, then under its name.

    `content` is the bytes, the text, or a function that writes the file it is given. A `private` file is for its
    owner's eyes alone from its first byte on; another keeps the rights that it has.
    """
    path = Path(path)
    draft = draft_of(path)
    with disk_errors(path):
        try:
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 if private else 0o666))
            mode = draft.stat().st_mode  # as the user's umask has it; a library that writes may choose otherwise
            if callable(content):
                content(draft)
            else:
                draft.write_bytes(content.encode() if isinstance(content, str) else content)
            draft.chmod(mode if private or not path.is_file() else path.stat().st_mode)
            sync(draft)
            draft.replace(path)
            sync(path.parent)
        finally:
            draft.unlink(missing_ok=True)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A neighbour of `folder` to fill: it takes the folder's name (an empty one gives way) at the end, or vanishes."""
    draft = draft_of(folder)
    with disk_errors(folder):
        make_folder(folder.parent)
        sweep_drafts(folder.parent, f".{escape(folder.name)}.*.draft")
        try:
            draft.mkdir()
            yield draft
            for path in (*draft.rglob("*"), draft):
                sync(path)
            if folder.exists():
                folder.rmdir()
            draft.rename(folder)
            sync(folder.parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above that are missing, and bring their names to the disk."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path in reversed(missing):
            sync(path.parent)


def move(file: Path, target: Path) -> None:
    """Move a file, and no link, to a name that is free; onto another disk as a copy that is there before it goes."""
    with disk_errors(target):
        if not stat.S_ISREG(file.lstat().st_mode):
            raise StorageError(f"{file}: a link or a special file, which is not moved; move it yourself")
        make_folder(target.parent)
        if os.path.lexists(target):
            raise StorageError(f"{target}: there is another file; move that one away first")
        try:
            file.rename(target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            write_atomically(target, lambda draft: shutil.copy2(file, draft, follow_symlinks=False), private=True)
            shutil.copymode(file, target)
            file.unlink()
        sync(target.parent)
        sync(file.parent)


def sync(path: Path) -> None:
    """Bring a file to the disk, or the names in a folder, where the system has that."""
    if os.name == "posix" or not path.is_dir():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def draft_of(path: Path) -> Path:
    """A name beside `path` that nobody else has."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.draft")


def sweep_drafts(folder: Path, pattern: str = "**/.*.draft") -> None:
    """Remove what killed writers left in a folder; a young draft may still be somebody's."""
    for draft in list(folder.glob(pattern)):
        if is_old(draft):
            shutil.rmtree(draft) if draft.is_dir() else draft.unlink(missing_ok=True)


def is_old(path: Path) -> bool:
    """Whether a file or folder, and no link to one, lies there for so long that nobody is at work on it any more."""
    try:
        facts = path.lstat()
    except OSError:
        return False
    return not stat.S_ISLNK(facts.st_mode) and time.time() - facts.st_mtime > GRACE


def open_regular(path: Path, *, follow: bool = True) -> BufferedReader:
    """Open a file, or where it may `follow` a link to one; all else is an OSError: a FIFO would block for ever."""
    mode = path.stat(follow_symlinks=follow).st_mode  # first: to open a device may do something to it
    if not stat.S_ISREG(mode):
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, os.strerror(number) if stat.S_ISDIR(mode) else "not a regular file", str(path))
    extra = getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | (0 if follow else getattr(os, "O_NOFOLLOW", 0))
    return os.fdopen(os.open(path, os.O_RDONLY | extra), "rb")


def digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_plain(paths: Iterable[Path], what: str) -> None:
    """Refuse links, FIFOs and devices in a folder that somebody may have sent: what we write there would go elsewhere.

    Paths that lie in a folder come after it.
    """
    for path in paths:
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise StorageError(
                f"{path}: a link or a special file; {what} holds files and folders of its own alone: if you trust it, "
                "put there what it leads to, else delete it"
            )


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk and missing rights into errors that say what to do."""
    try:
        yield
    except Exception as error:
        number = _os_error(error)
        for numbers, words in UNWRITABLE.items():
            if number in numbers:
                raise StorageError(f"{path}: {words.format(os.strerror(number))}") from error
        raise


def _os_error(error: Exception) -> int | None:
    """The system's number for what went wrong. safetensors is written in Rust and has it in its text alone."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


def append_json(path: Path, record: dict[str, Any]) -> None:
    """Add one line to a JSON-lines file and bring it to the disk; a last line torn by a crash goes."""
    with disk_errors(path), open(path, "ab+", opener=_no_link) as file:
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
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path}: a damaged line ({error}); mend it or delete the file") from error


def json_line(record: dict[str, Any]) -> str:
    """A record as one line of text that UTF-8 can hold: escaped only where it holds half a character."""
    line = json.dumps(record, ensure_ascii=False)
    return (line if is_unicode(line) else json.dumps(record)) + "\n"


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold it: file systems allow names that it cannot."""
    return not _HALF.search(text)
