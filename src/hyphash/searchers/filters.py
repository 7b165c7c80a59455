"""Which photos may be found: by labels that they carry, by distance, by facts of their files. See docs/search.md."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np

from hyphash.errors import ConfigError

UNKNOWN = -(2**31)  # what a photo does not say, among numbers of 32 bits
LARGEST = 2**31 - 1
ENDINGS = {"jpg": "jpeg", "jpe": "jpeg", "jfif": "jpeg", "tif": "tiff", "heif": "heic", "hif": "heic"}
UNITS = {"B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "MP": 1000**2}
HOURS = {"h": 1, "d": 24, "w": 168}


class Span(NamedTuple):
    """Whole numbers from the first to the last; what is not known is in none."""

    first: int = UNKNOWN + 1
    last: int = LARGEST


class Circle(NamedTuple):
    """Around a place on the earth, in degrees north and east."""

    latitude: float
    longitude: float
    km: float


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which photos may be found. What a photo does not say fulfils no condition."""

    carrying: tuple[str, ...] = ()  # only those that carry all of these
    tagged: bool = False  # only those that carry any label
    excluded: tuple[int, ...] = ()
    radius: int | None = None  # at most so many bits away
    # facts
    taken: Span | None = None  # in minutes since 1970, by the clock on the wall
    added: Span | None = None  # in minutes since 1970, UTC
    size: Span | None = None  # of the file, in bytes
    pixels: Span | None = None
    camera: str = ""  # part of its name
    folder: str = ""  # names of folders, one inside the other, that the photo lies under
    types: tuple[str, ...] = ()  # one of these
    near: Circle | None = None

    @property
    def by_label(self) -> bool:
        return bool(self.carrying) or self.tagged

    @property
    def facts(self) -> "Filter":
        """The conditions on facts alone."""
        return replace(self, carrying=(), tagged=False, excluded=(), radius=None)

    @property
    def by_facts(self) -> bool:
        return any((self.taken, self.added, self.size, self.pixels, self.camera, self.folder, self.types, self.near))

    @classmethod
    def parse(cls, **texts: str | None) -> "Filter":
        """The filter that these texts ask for; none, or an empty one, asks for nothing."""
        parsed: dict[str, Any] = {}
        for name, text in texts.items():
            read, example = READERS[name]
            try:
                parsed |= read(text.strip()) if text and text.strip() else {}
            except (ValueError, OverflowError):
                raise ConfigError(f"{name} {text!r} cannot be understood; write it like {example}") from None
        return cls(**parsed)


EVERYTHING = Filter()


def file_type(path: str) -> str:
    """The type of a photo by the ending of its name.

    >>> file_type("/photos/2019/CAT.JPG")
    'jpeg'
    """
    name, _, ending = path.rpartition("/")[2].rpartition(".")
    return ENDINGS.get(ending.lower(), ending.lower()) if name else ""


def _span(text: str, read: Callable[[str], Span]) -> Span:
    """From the start of what is read before .. to the end of what is after it."""
    first, between, last = text.partition("..")
    starts, ends = (read(end) if end else Span() for end in (first, last if between else first))
    return Span(starts.first, ends.last)


def _times(text: str) -> Span:
    if age := re.fullmatch(r"(\d{1,5})([hdw])", text):
        since = datetime.now(UTC) - timedelta(hours=int(age[1]) * HOURS[age[2]])
        return Span(int(since.timestamp() // 60))
    return _span(text, _minutes)


def _minutes(text: str) -> Span:
    """Since 1970, of a year, a month or a day, or a single one."""
    _groups(r"\d{4}(-\d\d(-\d\d(T\d\d:\d\d)?)?)?", text)
    time = np.datetime64(text)
    first, following = (min(int(moment.astype("M8[m]").astype(np.int64)), LARGEST) for moment in (time, time + 1))
    return Span(first, following - 1)


def _sizes(text: str) -> dict[str, Span]:
    """Bytes or pixels, by their unit; both ends belong to it."""

    def number(end: str) -> Span:
        digits, unit = _groups(r"([\d.]+) ?(MP)" if "MP" in text else r"([\d.]+) ?([kKMG]?B)", end)
        size = min(round(float(digits) * UNITS[unit.upper()]), LARGEST)
        return Span(size, size)

    _groups(r".+\.\..*|\.\..+", text)
    return {"pixels" if "MP" in text else "size": _span(text, number)}


def _circle(text: str) -> dict[str, Circle]:
    latitude, longitude, distance = (part.strip() for part in text.split(","))
    number, unit = _groups(r"([\d.]+) ?(km|m|)", distance)
    circle = Circle(float(latitude), float(longitude), float(number) / (1000 if unit == "m" else 1))
    if not (abs(circle.latitude) <= 90 and abs(circle.longitude) <= 180):
        raise ValueError(text)
    return {"near": circle}


def _types(text: str) -> dict[str, tuple[str, ...]]:
    return {"types": tuple(sorted({file_type(f"a.{word.strip().lstrip('.')}") for word in text.split(",")}))}


def _groups(pattern: str, text: str) -> tuple[str, ...]:
    """What the groups of a pattern match in a text, which is to match as a whole."""
    if not (found := re.fullmatch(pattern, text)):
        raise ValueError(text)
    return found.groups()


WHEN = "2019, 2019-05, 2019-05-03 or 2019-05..2020-02, or 30d for the last 30 days"
READERS: dict[str, tuple[Callable[[str], dict[str, Any]], str]] = {  # of what people write, with an example
    "taken": (lambda text: {"taken": _times(text)}, WHEN),
    "added": (lambda text: {"added": _times(text)}, WHEN),
    "size": (_sizes, "2MB.., ..500kB or 1MB..2MB, or 12MP.. for megapixels"),
    "camera": (lambda text: {"camera": text.casefold()}, "canon"),
    "folder": (lambda text: {"folder": text.strip("/")}, "2019/summer"),
    "type": (_types, "jpeg,png"),
    "near": (_circle, "48.2082,16.3738,5km: degrees north, degrees east, distance"),
}
