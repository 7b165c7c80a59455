"""Features of photos under a frozen backbone, computed once and kept on disk by what is in the photo.

The cache is one SQLite file per backbone, weights and preprocessing. A photo is known by its content, so moving or
renaming it costs nothing; path, size and time of a file are remembered to spare reading it again.
"""

import hashlib
import math
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hyphash.encoder import Encoded, OnnxEncoder, encode_all, encode_stream, network_encoder, run
from hyphash.errors import PhotoError, StorageError
from hyphash.hasher import Hasher, Progress
from hyphash.photos import Chosen, PhotoSource, Problem, decoded, size_and_time
from hyphash.workers import Workers

Stop = Callable[[], bool]


def default_cache() -> Path:
    """$HYPHASH_CACHE, else hyphash's folder among the user's caches."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("HYPHASH_CACHE") or Path(root) / "hyphash")


def compute_features(
    hasher: Hasher, photos: PhotoSource, *, cache: Path, progress: Progress | None = None, stop: Stop | None = None
) -> Encoded | None:
    """What the head of `hasher` sees of each photo, as float16. None when `stop` said so; what was done is kept."""
    encoder, shape = hasher.on_torch(), _feature_shape(hasher)
    with FeatureCache(cache, hasher) as store:
        keys, problems = store.keys(photos)
        known = store.known(shape)
        missing = [i for i, key in keys.items() if key not in known]
        done = len(photos) - len(missing)
        if progress:
            progress(done, len(photos))
        stream = decoded(Chosen(photos, missing), encoder.preprocessing)
        for some in encode_stream(stream, encoder.features, batch=encoder.batch):
            store.put({keys[missing[row]]: value for row, _, value in some if value is not None})
            problems += [found for _, found, _ in some if isinstance(found, Problem)]
            done += len(some)
            if progress:
                progress(done, len(photos))
            if stop and stop():
                return None
        failed = {problem.name for problem in problems}
        rows = [i for i in keys if photos.name(i) not in failed]
        found = store.get([keys[i] for i in rows], shape)
    return Encoded(found, np.array(rows, np.int64), tuple(problems))


def missing_features(hasher: Hasher, photos: PhotoSource, *, cache: Path) -> list[int]:
    """The photos whose features are not in the cache; those that cannot be read are left out."""
    with FeatureCache(cache, hasher) as store:
        keys, _ = store.keys(photos)
        known = store.known(_feature_shape(hasher))
    return [i for i, key in keys.items() if key not in known]


def fresh_features(hasher: Hasher, photos: PhotoSource, *, workers: Workers | None = None) -> Encoded:
    """What `compute_features` gives, without a cache: for the helpers of one that keeps it."""
    encoder = hasher.on_torch()
    return encode_all(photos, encoder.preprocessing, encoder.features, batch=encoder.batch, workers=workers)


def keep_features(hasher: Hasher, photos: PhotoSource, values: NDArray[np.float16], *, cache: Path) -> None:
    """Put features that others have computed, one row a photo, into the cache."""
    with FeatureCache(cache, hasher) as store:
        keys, _ = store.keys(photos)
        store.put({key: values[i] for i, key in keys.items()})


def encode_cached(hasher: Hasher, photos: PhotoSource, *, cache: Path, progress: Progress | None = None) -> Encoded:
    """What `hasher.encode_photos` gives, by way of cached features: for runs whose backbone stayed frozen.

    A network on ONNX has no features to keep: with it, photos are encoded directly.
    """
    if isinstance(network_encoder(hasher.encoder), OnnxEncoder):
        return hasher.encode_photos(photos, progress=progress)
    import torch

    features = compute_features(hasher, photos, cache=cache, progress=progress)
    assert features is not None, "nobody asked to stop"
    if not len(features.values):
        return Encoded(hasher.outputs([]), features.rows, features.problems)
    values = torch.from_numpy(features.values)
    batches = (some.to(hasher.device).float() for some in torch.split(values, 1024))
    return Encoded(run(hasher.network.head, batches), features.rows, features.problems)


def _feature_shape(hasher: Hasher) -> tuple[int, ...]:
    return hasher.on_torch().features(np.empty(0, np.uint8)).shape[1:]


class FeatureCache:
    """Features by content, in one SQLite file."""

    def __init__(self, folder: Path, hasher: Hasher) -> None:
        name = hasher.spec.backbone.replace(":", "-").replace("/", "-")
        self.path = folder / f"{name}-{hasher.on_torch().backbone_digest()}.sqlite"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=60)
        except (OSError, sqlite3.Error) as error:
            raise self._trouble(error) from error

    def __enter__(self) -> Self:
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS files (path BLOB PRIMARY KEY, size INTEGER, time INTEGER, key BLOB)"
            )
        except sqlite3.Error as error:
            self._db.close()
            raise self._trouble(error) from error
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._db.close()
        if isinstance(error, sqlite3.Error):  # a full disk, a damaged file
            raise self._trouble(error) from error

    def _trouble(self, error: Exception) -> StorageError:
        return StorageError(
            f"{self.path}: features cannot be kept there ({error}); make room, delete that file, "
            "or choose another folder with --cache"
        )

    def keys(self, photos: PhotoSource) -> tuple[dict[int, bytes], list[Problem]]:
        """The content key of every photo that can be read."""
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

        keys, problems, seen = {}, [], []
        with ThreadPoolExecutor() as executor:
            for i, (result, file) in enumerate(executor.map(key, range(len(photos)))):
                if isinstance(result, PhotoError):
                    problems.append(Problem(photos.name(i), str(result)))
                    continue
                keys[i] = result
                if file:
                    seen.append((*file, result))
        with self._db:
            self._db.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", seen)
        return keys, problems

    def known(self, shape: tuple[int, ...]) -> set[bytes]:
        """The keys of all photos whose features are there and whole."""
        size = math.prod(shape) * np.dtype(np.float16).itemsize
        return {row[0] for row in self._db.execute("SELECT key FROM features WHERE length(value) = ?", (size,))}

    def put(self, values: dict[bytes, NDArray[np.float16]]) -> None:
        with self._db:
            rows = ((key, value.tobytes()) for key, value in values.items())
            self._db.executemany("INSERT OR REPLACE INTO features VALUES (?, ?)", rows)

    def get(self, keys: Sequence[bytes], shape: tuple[int, ...]) -> NDArray[np.float16]:
        result = np.empty((len(keys), *shape), np.float16)
        for i, key in enumerate(keys):
            (value,) = self._db.execute("SELECT value FROM features WHERE key = ?", (key,)).fetchone()
            result[i] = np.frombuffer(value, np.float16).reshape(shape)
        return result
