"""Where photos lie: on this machine, or behind any URL that fsspec knows (s3://, gs://, …)."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from hyphash.datasets.folder import photos_under
from hyphash.errors import ConfigError, DataError, MissingExtraError, PhotoError
from hyphash.photos import MAX_BYTES, SUFFIXES, read_bytes
from hyphash.stores.retry import retry

PACKS = {".tar", ".tgz", ".gz", ".parquet"}
LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)  # waiting does not mend these

T = TypeVar("T")


def is_remote(place: str) -> bool:
    return "://" in place


def normal(place: str) -> str:
    """A place as it is spelled in here: the full path of what is on this machine, else the URL.

    >>> normal("file:///photos/a.jpg"), normal("s3://photos/a.jpg")
    ('/photos/a.jpg', 's3://photos/a.jpg')
    """
    place = place.removeprefix("file://")
    if is_remote(place):
        scheme, _, rest = place.partition("://")
        who, _, host = rest.partition("/")[0].rpartition("@")
        if ":" in who:
            raise ConfigError(
                f"{scheme}://…@{host}: a password in the URL would be stored beside every photo; "
                "leave it to the settings or the environment of the package that reads it"
            )
        return place
    return os.path.abspath(Path(place).expanduser() if place.startswith("~") else place)  # noqa: PTH100 (keeps links)


def as_url(place: str) -> str:
    return place if is_remote(place) else f"file://{place}"


def read(place: str) -> bytes:
    """The bytes of a photo. A place that does not answer is asked again for a minute, then EngineError."""
    if not is_remote(place):
        return read_bytes(place)
    system, path = _system(place)
    try:
        data = _patiently(lambda: cast(bytes, system.cat_file(path, end=MAX_BYTES + 1)), place)
    except LASTING as error:
        raise PhotoError(f"{place}: cannot be read ({type(error).__name__}); correct the list or the rights") from error
    if not data:
        raise PhotoError(f"{place}: an empty file of 0 bytes; copy it again or leave it out")
    if len(data) > MAX_BYTES:
        raise PhotoError(f"{place}: more than {MAX_BYTES / 1e9:.1f} GB are too much for one photo; leave it out")
    return data


@contextmanager
def _in_reach(place: str) -> Iterator[None]:
    """What waiting does not mend, as DataError."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{place}: there is no such file; correct the path or the pattern, or copy it there") from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(f"{place}: cannot be read ({reason}); correct the path or the rights") from error


def opened(place: str) -> BinaryIO:
    """A file of many photos, or a list of them."""
    with _in_reach(place):
        if not is_remote(place):
            return Path(place).open("rb")
        system, path = _system(place)
        return _patiently(lambda: cast(BinaryIO, system.open(path, "rb")), place)


def size(place: str) -> int:
    with _in_reach(place):
        if not is_remote(place):
            return Path(place).stat().st_size
        system, path = _system(place)
        return int(_patiently(lambda: system.size(path), place) or 0)


def exists(place: str) -> bool:
    with _in_reach(place):
        if not is_remote(place):
            return Path(place).exists()
        system, path = _system(place)
        return bool(_patiently(lambda: system.exists(path), place))


def is_folder(place: str) -> bool:
    with _in_reach(place):
        if not is_remote(place):
            return Path(place).is_dir()
        system, path = _system(place)
        return bool(_patiently(lambda: system.isdir(path), place))


def files_under(place: str) -> list[str]:
    """Photos and files of many photos in a folder and below it, sorted; hidden ones are left out."""
    if not is_remote(place):
        return [f"{place}/{name}" for name in photos_under(Path(place), SUFFIXES | PACKS)]
    with _in_reach(place):
        system, path = _system(place)
        found = [system.unstrip_protocol(name) for name in _patiently(lambda: system.find(path), place)]
    return sorted(name for name in found if not name.rpartition("/")[2].startswith("."))


def matching(pattern: str) -> list[str]:
    """All files that a pattern such as s3://photos/2024-*/*.tar fits, sorted."""
    if not is_remote(pattern):
        from glob import glob

        return sorted(path for path in glob(pattern, recursive=True) if Path(path).is_file())  # noqa: PTH207
    with _in_reach(pattern):
        system, path = _system(pattern)
        return sorted(system.unstrip_protocol(name) for name in _patiently(lambda: system.glob(path), pattern))


def _system(place: str) -> tuple[Any, str]:
    """The file system behind a URL, and what it calls the place."""
    try:
        from fsspec.core import url_to_fs
        from fsspec.registry import known_implementations
    except ImportError as error:
        raise MissingExtraError(f"{place}: reading from a URL", "cluster") from error
    protocol = place.partition("://")[0]
    try:
        return cast("tuple[Any, str]", url_to_fs(place))
    except ImportError as error:
        known = known_implementations.get(protocol.rpartition("::")[2], {})
        package = known.get("class", "").partition(".")[0]
        way = f"run: pip install {package}" if package not in ("", "fsspec") else str(error)
        raise ConfigError(f"{place}: {protocol}:// needs a package that is not installed; {way}") from error
    except ValueError as error:
        raise ConfigError(f"{place}: {protocol}:// is unknown ({error}); give a folder, s3://… or gs://…") from error


def _patiently(work: Callable[[], T], place: str) -> T:
    return retry(
        work,
        passing=lambda error: not isinstance(error, LASTING),
        what="reading",
        server=place,
    )
