"""Where photos lie: on this machine, or behind any URL that fsspec knows (s3://, gs://, …); and what a source tells of
a photo: its name, its bytes or where they are, and the labels beside it.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from glob import glob
from pathlib import Path
from typing import Any, BinaryIO, cast

from hyphash.datasets import spelled
from hyphash.datasets.folder import photos_under
from hyphash.errors import ConfigError, DataError, PhotoError, needs_extra
from hyphash.photos import MAX_BYTES, SUFFIXES, read_bytes
from hyphash.stores.retry import retry

PACKS = {".tar", ".tgz", ".gz", ".parquet"}
LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)  # waiting does not mend these

Labels = tuple[str, ...] | None  # None: the source says nothing about them


@dataclass(frozen=True)
class PhotoRef:
    """A photo in its source; `read` may raise PhotoError."""

    name: str  # what it is known by: its location, else the URL of the file that it is in, with #its-name-inside
    content: bytes | PhotoError | None = None  # None: it lies where its name says
    labels: Labels = None

    def read(self) -> bytes:
        if isinstance(self.content, PhotoError):
            raise self.content
        return read(self.name) if self.content is None else self.content


def as_labels(value: object) -> Labels:
    """Labels as a list of words, one word, or a number; | parts words.

    >>> as_labels("sea|dog"), as_labels(["sea", "dog"]), as_labels(7), as_labels(None)
    (('dog', 'sea'), ('dog', 'sea'), ('7',), None)
    """
    if value is None or isinstance(value, dict | bytes):
        return None
    items: Iterable[object] = value if isinstance(value, list | tuple) else [value]
    return spelled(word for item in items if item is not None for word in str(item).split("|"))


def unreachable(location: str, error: OSError) -> DataError:
    """A file that cannot be read any further, which is no fault of its own: what is left may come another time."""
    return DataError(f"{location}: reading ended ({error}); shards that are done stay done, the same command goes on")


def is_remote(location: str) -> bool:
    return "://" in location


def normal(location: str) -> str:
    """A location as it is spelled in here: the full path of what is on this machine, else the URL.

    >>> normal("file:///photos/a.jpg"), normal("s3://photos/a.jpg")
    ('/photos/a.jpg', 's3://photos/a.jpg')
    """
    location = location.removeprefix("file://")
    if is_remote(location):
        scheme, _, rest = location.partition("://")
        who, _, host = rest.partition("/")[0].rpartition("@")
        if ":" in who:
            raise ConfigError(
                f"{scheme}://…@{host}: a password in the URL would be stored beside every photo; "
                "leave it to the settings or the environment of the package that reads it"
            )
        return location
    return os.path.abspath(Path(location).expanduser() if location.startswith("~") else location)  # noqa: PTH100 (keeps links)


def as_url(location: str) -> str:
    return location if is_remote(location) else f"file://{location}"


def read(location: str) -> bytes:
    """The bytes of a photo. A location that does not answer is asked again for a minute, then EngineError."""
    if not is_remote(location):
        return read_bytes(location)
    try:
        data: bytes = _patiently(location, "cat_file", end=MAX_BYTES + 1)
    except LASTING as error:
        raise PhotoError(f"{location}: cannot be read ({type(error).__name__}); correct the list or rights") from error
    if not data:
        raise PhotoError(f"{location}: an empty file of 0 bytes; copy it again or leave it out")
    if len(data) > MAX_BYTES:
        raise PhotoError(f"{location}: more than {MAX_BYTES / 1e9:.1f} GB are too much for one photo; leave it out")
    return data


def opened(location: str) -> BinaryIO:
    """A file of many photos, or a list of them."""
    return cast(BinaryIO, ask(location, "open", "rb"))


def size(location: str) -> int:
    return int(ask(location, "size") or 0)


def files_under(location: str) -> list[str]:
    """Photos and files of many photos in a folder and below it, sorted; hidden ones are left out."""
    if not is_remote(location):
        return [f"{location}/{name}" for name in photos_under(Path(location), SUFFIXES | PACKS)]
    return [name for name in _urls(location, "find") if not name.rpartition("/")[2].startswith(".")]


def matching(pattern: str) -> list[str]:
    """All files that a pattern such as s3://photos/2024-*/*.tar fits, sorted."""
    if not is_remote(pattern):
        return sorted(path for path in glob(pattern, recursive=True) if Path(path).is_file())  # noqa: PTH207
    return _urls(pattern, "glob")


def _urls(location: str, what: str) -> list[str]:
    return sorted(map(_system(location)[0].unstrip_protocol, ask(location, what)))


def ask(location: str, what: str, *args: Any) -> Any:
    """What the file system of a location answers to a question of fsspec's: exists, isdir, size …

    A location that does not answer is asked again for a minute. What waiting does not mend is a DataError.
    """
    try:
        return _patiently(location, what, *args)
    except FileNotFoundError as error:
        raise DataError(f"{location}: there is no such file; correct the path or the pattern, or copy it") from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(f"{location}: cannot be read ({reason}); correct the path or the rights") from error


def _patiently(location: str, what: str, *args: Any, **options: Any) -> Any:
    system, path = _system(location)
    call, remote = partial(getattr(system, what), path, *args, **options), is_remote(location)
    return retry(call, passing=lambda e: remote and not isinstance(e, LASTING), what="reading", server=location)


def _system(location: str) -> tuple[Any, str]:
    """The file system of a location, and what it calls the location."""
    with needs_extra("cluster", f"{location}: reading photos at scale"):
        from fsspec import filesystem
        from fsspec.core import url_to_fs
        from fsspec.registry import known_implementations
    if not is_remote(location):
        return filesystem("file"), location
    protocol = location.partition("://")[0]
    try:
        return cast("tuple[Any, str]", url_to_fs(location))
    except ImportError as error:
        known = known_implementations.get(protocol.rpartition("::")[2], {})
        package = known.get("class", "").partition(".")[0]
        way = f"run: pip install {package}" if package not in ("", "fsspec") else str(error)
        raise ConfigError(f"{location}: {protocol}:// needs a package that is not installed; {way}") from error
    except ValueError as error:
        raise ConfigError(f"{location}: {protocol}:// is unknown ({error}); give a folder, s3://… or gs://…") from error
