"""The facts of photos that filters ask for, column by column, so that a filter reads only those that it names.

Numbers take 32 bits. Folder, camera and type of a photo are one number too, in a list of all there are together: a
filter looks at that list, which is short, and then at numbers.
"""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyphash.searchers.filters import LARGEST, UNKNOWN, Circle, Filter, Span, file_type
from hyphash.stores import Ids, Row

NUMBERS = ("taken", "added", "size", "pixels", "latitude", "longitude", "kind")  # the order of the columns
MICRO = 1_000_000  # places are kept in millionths of a degree
EARTH = 6371.0088  # km, its mean radius
CHUNK = 1 << 16  # photos that are looked at together: what a core keeps at hand
MASKS = 4  # that are kept: of a filter all pages are asked for

Kind = tuple[str, str, str]  # folder, camera, type


class FactColumns:
    """Facts of a block of photos, as a snapshot has them."""

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
