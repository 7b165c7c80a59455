"""Features of photos under a frozen backbone, computed once and kept on disk by what is in the photo.

The cache is one SQLite file per backbone, weights, preprocessing and view. A photo is known by its content, so moving
or renaming it costs nothing; path, size and time of a file are remembered to spare reading it again.
"""

import hashlib
import math
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hyphash.encoder import BATCH, Encoded, OnnxEncoder, Outputs, TorchEncoder, encode_rows, network_encoder, run
from hyphash.errors import PhotoError, StorageError
from hyphash.hasher import Hasher, Progress, apart, packed
from hyphash.photos import PhotoSource, Pixels, Preprocessing, Problem, size_and_time
from hyphash.workers import Workers, batched

SET_UP = """PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (path BLOB PRIMARY KEY, size INTEGER, time INTEGER, key BLOB);"""
Stop = Callable[[], bool]


def default_cache() -> Path:
    """$HYPHASH_CACHE, else hyphash's folder among the user's caches."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("HYPHASH_CACHE") or Path(root) / "hyphash")


@dataclass(frozen=True)
class Look:
    """What is kept of photos in one file: the features that one backbone finds in one view of them."""

    backbone: str
    encoder: TorchEncoder
    view: int = 0

    @property
    def file(self) -> str:
        name = re.sub(r"@\d+$", "", self.backbone)  # the digest knows the size
        name, view = name.replace(":", "-").replace("/", "-"), f"-view{self.view}" if self.view else ""
        return f"{name}-{self.encoder.backbone_digest()}{view}.sqlite"


Lacking = list[tuple[list[int], list[int]]]  # numbers of looks, and the photos that lack just these
Found = tuple[list[int], Encoded]  # numbers of looks, and the features of some photos: those of a photo in one row
Encode = Callable[[Sequence[Look], PhotoSource, Lacking], Iterator[Found]]


def looks_of(hasher: Hasher, views: int = 1) -> list[Look]:
    """All that is kept of a photo for the head of `hasher`, view by view."""
    parts = list(zip(hasher.spec.backbone.split("+"), hasher.on_torch().parts, strict=True))
    return [Look(name, encoder, view) for view in range(views) for name, encoder in parts]


def encode_lacking(
    looks: Sequence[Look], photos: PhotoSource, lacking: Lacking, workers: Workers | None = None
) -> Iterator[Found]:
    """The features that photos lack, batch by batch; a photo is decoded once for all of them."""
    for which, rows in lacking:
        encoders = [looks[i].encoder for i in which]
        sees = Preprocessing.side_by_side([looks[i].encoder.preprocessing.view(looks[i].view) for i in which])

        def run(pixels: Pixels, encoders: list[TorchEncoder] = encoders, sees: Preprocessing = sees) -> NDArray[Any]:
            found = [encoder.features(part) for encoder, part in zip(encoders, sees.cut(pixels), strict=True)]
            return np.concatenate([values.reshape(len(pixels), -1) for values in found], axis=1)

        batch = max(1, encoders[0].batch // len(which))  # so that Ctrl-C is heard as soon as with one look
        for found in encode_rows(photos, rows, sees, run, batch=batch, workers=workers):
            yield which, found


def compute_features(
    hasher: Hasher,
    photos: PhotoSource,
    *,
    cache: Path,
    views: int = 1,
    progress: Progress | None = None,
    stop: Stop | None = None,
    encode: Encode = encode_lacking,
) -> Encoded | None:
    """What the head of `hasher` sees of each photo, as float16. None when `stop` said so; what was done is kept.

    views   of each photo (photos.VIEWS): features are (n, …) of one, (n, views, …) of several
    encode  computes what the cache lacks: here, or on several machines at once
    """
    looks = looks_of(hasher, views)
    with ExitStack() as stack:
        stores = [stack.enter_context(FeatureCache(cache / look.file)) for look in looks]
        keys, problems = stores[0].keys(photos)
        shapes = [look.encoder.feature_shape for look in looks]
        lacking = _lacking(keys, [store.known(shape) for store, shape in zip(stores, shapes, strict=True)])
        done = len(photos) - sum(len(rows) for _, rows in lacking)
        if progress:
            progress(done, len(photos))
        for which, found in encode(looks, photos, lacking):
            ends = np.cumsum([math.prod(shapes[i]) for i in which])
            for i, values in zip(which, np.split(found.values, ends[:-1], axis=-1), strict=True):
                stores[i].put({keys[row]: value for row, value in zip(found.rows.tolist(), values, strict=True)})
            problems += found.problems
            done += len(found.rows) + len(found.problems)
            if progress:
                progress(done, len(photos))
            if stop and stop():
                return None
        failed = {problem.name for problem in problems}
        rows = [i for i in keys if photos.name(i) not in failed]
        kept = [store.get([keys[i] for i in rows], shape) for store, shape in zip(stores, shapes, strict=True)]
    joined = [np.concatenate(parts, axis=1) for parts in batched(kept, len(kept) // views)]
    return Encoded(np.stack(joined, axis=1) if views > 1 else joined[0], np.array(rows, np.int64), tuple(problems))


def _lacking(keys: dict[int, bytes], known: list[set[bytes]]) -> Lacking:
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, key in keys.items():
        if which := tuple(number for number, those in enumerate(known) if key not in those):
            groups.setdefault(which, []).append(i)
    return [(list(which), rows) for which, rows in groups.items()]


def encode_cached(hasher: Hasher, photos: PhotoSource, *, cache: Path, progress: Progress | None = None) -> Encoded:
    """What `hasher.encode_photos` gives, by way of cached features: for runs whose backbone stayed frozen.

    A network on ONNX has no features to keep: with it, photos are encoded directly.
    """
    if isinstance(network_encoder(hasher.encoder), OnnxEncoder):
        return hasher.encode_photos(photos, progress=progress)
    features = compute_features(hasher, photos, cache=cache, progress=progress)
    assert features is not None, "nobody asked to stop"
    if not len(features.values):
        return Encoded(hasher.outputs([]), features.rows, features.problems)
    return apart(hasher, replace(features, values=rows_of_features(hasher, features.values)))


def rows_of_features(hasher: Hasher, features: NDArray[np.float16]) -> Outputs:
    """Outputs, and logits where there are some, of photos whose features are known."""
    import torch

    batches = (some.to(hasher.device).float() for some in torch.split(torch.from_numpy(features), 1024))
    return run(hasher.network, batches, hasher.network.on_features)


class KeptFeatures:
    """What a collection stores of photos, by way of features that are kept, of one frozen backbone on torch.

    Photos are known by the SHA-256 of their bytes, in hex; the cache goes by the first half of it.
    """

    def __init__(self, hasher: Hasher, cache: Path) -> None:
        (self.look,), self.hasher, self._found = looks_of(hasher), hasher, np.empty(0, np.float16)
        self.path = cache / self.look.file

    @classmethod
    def of(cls, hasher: Hasher, cache: Path | None) -> Self | None:
        """None where there is nothing to keep them in, or a network that does not show them."""
        encoder = network_encoder(hasher.encoder) if cache else None  # without a cache it is not loaded either
        return cls(hasher, cache) if cache and isinstance(encoder, TorchEncoder) and len(encoder.parts) == 1 else None

    def packed_rows(self, pixels: Pixels) -> NDArray[np.uint8]:
        """What `Hasher.packed_rows` gives; the features that were found on the way wait for `keep`."""
        batches = [self.look.encoder.features(pixels[i : i + BATCH]) for i in range(0, len(pixels), BATCH)]
        self._found = np.concatenate(batches)
        return packed(self.hasher, rows_of_features(self.hasher, self._found))

    def keep(self, contents: Sequence[str]) -> None:
        """The photos that were just looked at have these contents."""
        with FeatureCache(self.path) as cache:
            cache.put({bytes.fromhex(content)[:16]: self._found[i] for i, content in enumerate(contents)})

    def rows_of(self, contents: Sequence[str]) -> dict[str, NDArray[np.uint8]]:
        """What a collection stores of those among some photos whose features are known."""
        if not self.path.is_file():
            return {}
        with FeatureCache(self.path) as cache:
            shape = self.look.encoder.feature_shape
            known = {content: cache.find(bytes.fromhex(content)[:16], shape) for content in contents}
        found = {content: value for content, value in known.items() if value is not None}
        rows = packed(self.hasher, rows_of_features(self.hasher, np.array([*found.values()]))) if found else ()
        return dict(zip(found, rows, strict=True))


class FeatureCache(AbstractContextManager["FeatureCache"]):
    """Features by content, in one SQLite file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._errors(), ExitStack() as undo:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = undo.enter_context(closing(sqlite3.connect(path, timeout=60)))
            with suppress(sqlite3.OperationalError):  # another process is at it: SQLite does not wait for that one
                self._db.execute("PRAGMA journal_mode=WAL")
            self._db.executescript(SET_UP)
            undo.pop_all()

    def __exit__(self, *error: object) -> None:
        self._db.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:  # a full disk, a damaged file
            raise StorageError(
                f"{self.path}: features cannot be kept there ({error}); make room, delete that file, "
                "or choose another folder with --cache"
            ) from error

    def keys(self, photos: PhotoSource) -> tuple[dict[int, bytes], list[Problem]]:
        """The content key of every photo that can be read."""
        with self._errors():
            known = {row[0]: row[1:] for row in self._db.execute("SELECT path, size, time, key FROM files")}

        def key(i: int) -> tuple[bytes | PhotoError, tuple[bytes, int, int] | None]:
            path = photos.path(i)
            place, stamp = os.fsencode(path.absolute()) if path else b"", size_and_time(path)
            if stamp and known.get(place, ())[:2] == stamp:
                return known[place][2], None
            try:
                return hashlib.sha256(photos.read(i)).digest()[:16], (place, *stamp) if stamp else None
            except PhotoError as error:
                return error, None

        with ThreadPoolExecutor() as executor:
            found = list(executor.map(key, range(len(photos))))
        keys = {i: one for i, (one, _) in enumerate(found) if isinstance(one, bytes)}
        problems = [Problem(photos.name(i), str(one)) for i, (one, _) in enumerate(found) if i not in keys]
        seen = [(*file, one) for one, file in found if file]
        with self._errors(), self._db:
            self._db.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", seen)
        return keys, problems

    def known(self, shape: tuple[int, ...]) -> set[bytes]:
        """The keys of all photos whose features are there and whole."""
        size = math.prod(shape) * np.dtype(np.float16).itemsize
        with self._errors():
            return {row[0] for row in self._db.execute("SELECT key FROM features WHERE length(value) = ?", (size,))}

    def put(self, values: dict[bytes, NDArray[np.float16]]) -> None:
        with self._errors(), self._db:
            rows = ((key, value.tobytes()) for key, value in values.items())
            self._db.executemany("INSERT OR REPLACE INTO features VALUES (?, ?)", rows)

    def get(self, keys: Sequence[bytes], shape: tuple[int, ...]) -> NDArray[np.float16]:
        result = np.empty((len(keys), *shape), np.float16)
        for i, key in enumerate(keys):
            result[i] = self.find(key, shape)
        return result

    def find(self, key: bytes, shape: tuple[int, ...]) -> NDArray[np.float16] | None:
        """The features of one photo, if they are there and whole."""
        with self._errors():
            row = self._db.execute("SELECT value FROM features WHERE key = ?", (key,)).fetchone()
        whole = row and len(row[0]) == math.prod(shape) * np.dtype(np.float16).itemsize
        return np.frombuffer(row[0], np.float16).reshape(shape) if whole else None
