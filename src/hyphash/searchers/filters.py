"""Which photos may be found: by labels that they carry, by distance, by facts of their files. See docs/search.md."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hyphash.errors import ConfigError
from hyphash.stores import Ids, Row

UNKNOWN = -(2**31)  # what a photo does not say, among numbers of 32 bits
LARGEST = 2**31 - 1
ENDINGS = {"jpg": "jpeg", "jpe": "jpeg", "jfif": "jpeg", "tif": "tiff", "heif": "heic", "hif": "heic"}
UNITS = {"B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "MP": 1000**2}
HOURS = {"h": 1, "d": 24, "w": 168}
NUMBERS = ("taken", "added", "size", "pixels", "latitude", "longitude", "kind")  # the order of the columns
MICRO = 1_000_000  # places are kept in millionths of a degree
EARTH = 6371.0088  # km, its mean radius
CHUNK = 1 << 16  # photos that are looked at together: what a core keeps at hand
MASKS = 4  # that are kept: of a filter all pages are asked for

Kind = tuple[str, str, str]  # folder, camera, type


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


class FactColumns:
    """The facts of a block of photos that filters ask for, as a snapshot has them: a filter reads only what it names.

    Numbers take 32 bits. Folder, camera and type of a photo are one number too, in a list of all there are together: a
    filter looks at that list, which is short, and then at numbers.
    """

    def __init__(self, columns: NDArray[np.int32], kinds: list[Kind] | NDArray[np.uint8]) -> None:
        """`kinds` may be what a snapshot has, which is read when somebody needs it."""
        self.columns = columns  # (NUMBERS, photos)
        self._kinds = kinds
        self._masks: dict[Filter, NDArray[np.bool_]] = {}

    @classmethod
    def of(cls, ids: Ids, rows: Iterable[Row]) -> "FactColumns":
        """From what `Session.facts` gives for these ids, ascending; of one that is not among it nothing is known."""
        numbers: dict[Kind, int] = {("", "", ""): 0}
        columns = np.full((len(NUMBERS), len(ids)), UNKNOWN, np.int32)
        columns[-1] = 0
        if rows := list(rows):
            found, paths, cameras, added, *others = zip(*rows, strict=True)
            folders, types = (path.rpartition("/")[0] for path in paths), map(file_type, paths)
            named = zip(folders, (camera or "" for camera in cameras), types, strict=True)
            taken, size, pixels, *place = np.array(others, np.float64)
            values = [taken // 60, [*map(minute_of, added)], size, pixels, *(np.rint(side * MICRO) for side in place)]
            values.append([numbers.setdefault(kind, len(numbers)) for kind in named])
            limited = np.clip(np.nan_to_num(np.array(values), nan=UNKNOWN), UNKNOWN, LARGEST)
            columns[:, np.searchsorted(ids, found)] = limited
        return cls(columns, [*numbers])

    @cached_property
    def kinds(self) -> list[Kind]:
        return self._kinds if isinstance(self._kinds, list) else [*map(tuple, json.loads(self._kinds.tobytes()))]

    @property
    def taken(self) -> NDArray[np.int32]:
        return np.asarray(self.columns[0])

    @property
    def tensors(self) -> dict[str, NDArray[Any]]:
        return {"facts": self.columns, "kinds": np.frombuffer(json.dumps(self.kinds).encode(), np.uint8)}

    def equals(self, other: "FactColumns") -> bool:
        """Whether both say the same; their kinds may stand in another order."""
        return np.array_equal(self.joined(other.kept([])).columns, self.kept([]).joined(other).columns)

    def kept(self, rows: Any) -> "FactColumns":
        return FactColumns(self.columns[:, rows], self.kinds)

    def joined(self, *others: "FactColumns") -> "FactColumns":
        """These photos and others after them."""
        parts = [self, *others]
        numbers = {kind: i for i, kind in enumerate(dict.fromkeys(kind for part in parts for kind in part.kinds))}
        columns = np.concatenate([part.columns for part in parts], axis=1)
        own = (np.array([numbers[kind] for kind in part.kinds])[part.columns[-1]] for part in parts)
        columns[-1] = np.concatenate([*own])
        return FactColumns(columns, [*numbers])

    def mask(self, only: Filter) -> NDArray[np.bool_] | None:
        """Which photos fulfil the conditions on facts; None: there are none. Not to be written to."""
        if not only.by_facts:
            return None
        facts = only.facts
        if (mask := self._masks.get(facts)) is None:
            mask = self._mask(facts)
            if len(self._masks) >= MASKS:
                self._masks.clear()
            self._masks[facts] = mask
        return mask

    def _mask(self, only: Filter) -> NDArray[np.bool_]:
        mask, columns = np.ones(self.columns.shape[1], np.bool_), dict(zip(NUMBERS, self.columns, strict=True))
        spans = [(columns[name], span) for name, span in vars(only).items() if isinstance(span, Span)]
        spans += zip((columns["latitude"], columns["longitude"]), _box(only.near), strict=True) if only.near else []
        by_kind = only.folder or only.camera or only.types
        named = np.array([_is_of(only, *kind) for kind in self.kinds]) if by_kind else None
        for start in range(0, len(mask), CHUNK):
            part, rows = mask[start : start + CHUNK], slice(start, start + CHUNK)
            for column, span in spans:
                part &= column[rows] >= span.first
                part &= column[rows] <= span.last
            if named is not None:
                part &= named.take(columns["kind"][rows])
            if only.near:
                left = np.flatnonzero(part)
                part[left] = _is_within(only.near, columns["latitude"][rows][left], columns["longitude"][rows][left])
        return mask


NO_FACTS = FactColumns.of(np.empty(0, np.int64), ())


@lru_cache(maxsize=1000)  # photos that came together have the same
def minute_of(time: str | datetime) -> int:
    """Minutes since 1970 of a time as stores have it."""
    try:
        moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    except ValueError:
        return UNKNOWN
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() // 60)


def _is_of(only: Filter, folder: str, camera: str, kind: str) -> bool:
    within = not only.folder or f"/{only.folder}/" in f"/{folder}/"
    return within and only.camera in camera.casefold() and (not only.types or kind in only.types)


def _box(circle: Circle) -> tuple[Span, Span]:
    """Latitudes and longitudes that hold a circle, and a little more; all where it reaches a pole or the date line."""
    tall = np.degrees(min(circle.km / EARTH, np.pi))
    wide = 360.0
    if abs(circle.latitude) + tall < 90:
        wide = np.degrees(np.arcsin(np.sin(np.radians(tall)) / np.cos(np.radians(circle.latitude))))
    wide = wide if abs(circle.longitude) + wide < 180 else 360.0
    sides = (circle.latitude * MICRO, tall * MICRO + 2), (circle.longitude * MICRO, wide * MICRO + 2)
    north, east = (Span(int(middle - reach), int(middle + reach)) for middle, reach in sides)
    return north, east


def _is_within(circle: Circle, latitude: NDArray[np.int32], longitude: NDArray[np.int32]) -> NDArray[np.bool_]:
    """By the haversine formula: hav(d / R) = hav(Δφ) + cos φ₁ cos φ₂ hav(Δλ), hav(x) = sin²(x / 2)."""
    here, there = np.radians(circle[:2])
    north, east = latitude * (np.pi / 180 / MICRO), longitude * (np.pi / 180 / MICRO)
    hav = np.sin((north - here) / 2) ** 2 + np.cos(north) * np.cos(here) * np.sin((east - there) / 2) ** 2
    return np.asarray(hav <= np.sin(min(circle.km / EARTH, np.pi) / 2) ** 2)
