"""A photo as its source refers to it: by a name, with its bytes or where they are, and with the labels beside it."""

from collections.abc import Iterable
from dataclasses import dataclass

from hyphash.datasets import spelled
from hyphash.encoding import locations
from hyphash.errors import DataError, PhotoError

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
        return locations.read(self.name) if self.content is None else self.content


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
