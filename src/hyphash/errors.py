"""Every error that a user can cause. Each message says what is wrong, where, and the way out."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class HyphashError(Exception):
    """Something the user can mend; the command line prints it without a traceback and exits with 2."""


class ConfigError(HyphashError):
    """A setting, an option or a name that does not exist or does not fit."""


class PhotoError(HyphashError):
    """A photo that cannot be read, or must not be."""


class LabelError(HyphashError):
    """Labels that are missing, malformed or unknown."""


class DataError(HyphashError):
    """A dataset whose files are missing or not what they should be."""


class WeightsError(HyphashError):
    """Weights that cannot be found or do not fit the network."""


class CodesError(HyphashError):
    """Codes of the wrong length or origin, or a damaged file of them."""


class RunError(HyphashError):
    """A run folder that exists already, is incomplete or was written by another version."""


class CollectionError(HyphashError):
    """A collection that is missing, damaged, or was made by another hasher."""


class StorageError(HyphashError):
    """A disk that is full, or a place that may not be written."""


class MissingExtraError(HyphashError):
    """A feature whose packages are not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs packages that are not installed; run: pip install 'hyphash[{extra}]'")


class OtherHasherError(CollectionError):
    """Codes of one hasher where those of another are in use."""


class NoSuchPhotoError(CollectionError):
    """A photo that is not, or no longer, in the collection."""


class NotMovedError(CollectionError):
    """The file of a photo that cannot be moved into the trash, or out of it."""


class BusyError(CollectionError):
    """Others are at work, and waiting for them took too long; later it will go."""


class EngineError(CollectionError):
    """A server behind a collection that cannot be reached, refuses, or has lost something."""


class StoppedError(HyphashError):
    """The user stopped the work; what was done is saved. The command line exits with 130."""


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Around imports: where a package is missing, say with which extra `what` would have it."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(what, extra) from error


def did_you_mean(word: str, known: Iterable[str], *, most: int = 3) -> str:
    """The question after a near miss, whatever the case; empty where nothing is near.

    >>> did_you_mean("dgo", ["Dog", "cat"]), did_you_mean("dog", ["animal/dog", "do"])
    ("did you mean 'Dog'?", "did you mean 'animal/dog'?")
    """
    names = {name.casefold(): name for name in known}
    below = [name for name in names if name.endswith(f"/{word.casefold()}")]
    close = below[:most] or difflib.get_close_matches(word.casefold(), names, n=most)
    return f"did you mean {' or '.join(repr(names[name]) for name in close)}?" if close else ""


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "photo"), counted(24581, "photo")
    ('1 photo', '24,581 photos')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
