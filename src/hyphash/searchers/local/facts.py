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

from hyphash.searchers.filters import EVERYTHING, LARGEST, UNKNOWN, Circle, Filter, Span, file_type
from hyphash.stores import Ids, Row

NUMBERS = ("taken", "added", "size", "pixels", "latitude", "longitude", "kind")  # the order of the columns
MICRO = 1_000_000  # places are kept in millionths of a degree
EARTH = 6371.0088  # km, its mean radius
CHUNK = 1 << 16  # photos that are looked at together: what a core keeps at hand
MASKS = 4  # that are kept: of a filter all pages are asked for

Columns = NDArray[np.int32]
Kind = tuple[str, str, str]  # folder, camera, type


class FactColumns:
    """Facts of a block of photos, as a snapshot has them; without any, nothing is known."""

    def __init__(self, columns: Columns, kinds: list[Kind] | NDArray[np.uint8]) -> None:
        """`kinds` may be what a snapshot has, which is read when somebody needs it."""
        self.columns = columns  # (NUMBERS, photos)
        self._kinds = kinds
        self._masks: dict[Filter, NDArray[np.bool_]] = {}

    @classmethod
    def of(cls, ids: Ids, rows: Iterable[Row]) -> "FactColumns":
        """From what `Session.facts` gives for these ids, ascending; of one that is not among it nothing is known."""
        rows, numbers = list(rows), dict[Kind, int]()
        columns = np.full((len(NUMBERS), len(ids)), UNKNOWN, np.int32)
        columns[-1] = numbers.setdefault(("", "", ""), 0)
        if rows:
            found, paths, cameras, added, *others = zip(*rows, strict=True)
            kinds = [
                (path.rpartition("/")[0], camera or "", file_type(path))
                for path, camera in zip(paths, cameras, strict=True)
            ]
            taken, size, pixels, latitude, longitude = (np.array(column, np.float64) for column in others)
            values = [
                taken // 60,
                [minute_of(time) for time in added],
                size,
                pixels,
                latitude * MICRO,
                longitude * MICRO,
            ]
            values.append([numbers.setdefault(kind, len(numbers)) for kind in kinds])
            limited = np.clip(np.nan_to_num(np.rint(np.array(values, np.float64)), nan=UNKNOWN), UNKNOWN, LARGEST)
            columns[:, np.searchsorted(ids, found)] = limited
        return cls(columns, [*numbers])

    @cached_property
    def kinds(self) -> list[Kind]:
        if isinstance(self._kinds, list):
            return self._kinds
        return [(folder, camera, kind) for folder, camera, kind in json.loads(self._kinds.tobytes())]

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
        own = (np.array([numbers[kind] for kind in part.kinds], np.int32)[part.columns[-1]] for part in parts)
        columns[-1] = np.concatenate([*own])
        return FactColumns(columns, [*numbers])

    def mask(self, only: Filter) -> NDArray[np.bool_] | None:
        """Which photos fulfil the conditions on facts; None: there are none. Not to be written to."""
        facts = only.facts
        if facts == EVERYTHING:
            return None
        mask = self._masks.get(facts)
        if mask is None:
            mask = self._mask(facts)
            if len(self._masks) >= MASKS:
                self._masks.clear()
            self._masks[facts] = mask
        return mask

    def _mask(self, only: Filter) -> NDArray[np.bool_]:
        mask = np.ones(self.columns.shape[1], np.bool_)
        spans = [(self._column(name), getattr(only, name)) for name in NUMBERS[:4] if getattr(only, name)]
        if only.near:
            spans.append((self._column("latitude"), _band(only.near)))
        by_kind = bool(only.folder or only.camera or only.types)
        named = np.array([_is_of(only, *kind) for kind in self.kinds]) if by_kind else None
        for start in range(0, len(mask), CHUNK):
            part = mask[start : start + CHUNK]
            for column, span in spans:
                values = column[start : start + CHUNK]
                part &= values >= span.first
                part &= values <= span.last
            if named is not None:
                part &= named[self._column("kind")[start : start + CHUNK]]
            if only.near:
                rows = np.flatnonzero(part)
                place = self.columns[4:6, start + rows] / MICRO
                part[rows] = _is_within(only.near, *place)
        return mask

    def _column(self, name: str) -> NDArray[np.int32]:
        column: NDArray[np.int32] = self.columns[NUMBERS.index(name)]
        return column

    @property
    def taken(self) -> NDArray[np.int32]:
        return self._column("taken")


NO_FACTS = FactColumns(np.empty((len(NUMBERS), 0), np.int32), [("", "", "")])


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


def _band(circle: Circle) -> Span:
    """The latitudes that a circle spans, and a little more."""
    reach = np.degrees(circle.km / EARTH) + 1e-6
    north, south = min(circle.latitude + reach, 90.0), max(circle.latitude - reach, -90.0)
    return Span(int(np.floor(south * MICRO)), int(np.ceil(north * MICRO)))


def _is_within(circle: Circle, latitude: NDArray[np.float64], longitude: NDArray[np.float64]) -> NDArray[np.bool_]:
    """By the haversine formula: hav(d / R) = hav(Δφ) + cos φ₁ cos φ₂ hav(Δλ), hav(x) = sin²(x / 2)."""
    north, east = np.radians(latitude), np.radians(longitude)
    here, there = np.radians(circle.latitude), np.radians(circle.longitude)
    hav = np.sin((north - here) / 2) ** 2 + np.cos(north) * np.cos(here) * np.sin((east - there) / 2) ** 2
    return np.asarray(hav <= np.sin(min(circle.km / EARTH, np.pi) / 2) ** 2)
