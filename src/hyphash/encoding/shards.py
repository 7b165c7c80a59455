"""A worker's half: one partition of the source in, one shard of Parquet out."""

import hashlib
import io
import json
import os
import platform
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import bytes_for
from hyphash.decoding import Decoders, on_all_cores
from hyphash.encoding.partitions import PER_SHARD, Partition
from hyphash.encoding.photo_refs import PhotoRef
from hyphash.engines import Photo
from hyphash.errors import CodesError, MissingExtraError, PhotoError
from hyphash.hasher import Hasher, Problem
from hyphash.photos import Preprocessing, decode_for

FORMAT = 1
HEADER = b"hyphash"  # in the metadata of a shard
THUMBNAIL = 256


@dataclass(frozen=True)
class Job:
    """What every worker has to know."""

    run: Path
    device: str = "auto"
    threads: int = 0  # 0: all cores
    labels: bool = True
    thumbnails: bool = False


@dataclass(frozen=True)
class Task:
    """One shard to be made."""

    name: str
    partition: Partition


@dataclass(frozen=True)
class Shard:
    """One shard that was made, on its way to the disk."""

    name: str
    parquet: bytes
    photos: int
    problems: tuple[Problem, ...]
    worker: str  # machine and process


@dataclass(frozen=True)
class Seen:
    """A photo that was looked at."""

    photo: Photo
    pixels: NDArray[np.uint8]
    thumbnail: bytes | None


class Encoder:
    """A hasher that is loaded once and turns any number of partitions into shards."""

    def __init__(self, job: Job) -> None:
        if job.threads:
            os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "HYPHASH_THREADS"), str(job.threads))
        self.job = job
        self.hasher = Hasher.to_encode(job.run, device=job.device)
        if job.threads and (torch := sys.modules.get("torch")):
            torch.set_num_threads(job.threads)
        self.decoders = Decoders.for_photos(PER_SHARD)

    def encode(self, task: Task) -> Shard:
        """The photos of a partition, in its order; those that cannot be read are reported, never fatal."""
        rows: list[dict[str, Any]] = []
        problems: list[Problem] = []
        waiting: list[Seen] = []
        look = partial(
            look_at, preprocessing=self.hasher.spec.preprocessing, labels=self.job.labels,
            small=THUMBNAIL * self.job.thumbnails,
        )  # fmt: skip
        batch = self.hasher.batch
        for raw, seen in on_all_cores(look, task.partition.photos(), decoders=self.decoders, ahead=2 * batch):
            if isinstance(seen, PhotoError):
                problems.append(Problem(raw.name, str(seen)))
                continue
            waiting.append(seen)
            if len(waiting) == batch:
                rows += self._rows(waiting)
                waiting = []
        rows += self._rows(waiting)
        parquet = written(rows, self.hasher, shard=task.name, problems=len(problems), thumbnails=self.job.thumbnails)
        return Shard(task.name, parquet, len(rows), tuple(problems), f"{platform.node()} {os.getpid()}")

    def _rows(self, waiting: list[Seen]) -> list[dict[str, Any]]:
        if not waiting:
            return []
        codes = self.hasher.to_codes(self.hasher.outputs_of_pixels(np.stack([seen.pixels for seen in waiting])))
        return [
            _row(replace(seen.photo, code=code.tobytes()), seen.thumbnail)
            for seen, code in zip(waiting, codes.packed, strict=True)
        ]


def look_at(raw: PhotoRef, *, preprocessing: Preprocessing, labels: bool, small: int) -> Seen:
    """A photo of the source; with `small` also a thumbnail of that side. Raises PhotoError."""
    try:
        raw.name.encode()
    except UnicodeEncodeError as error:
        raise PhotoError(f"{raw.name!r}: its name is not Unicode; rename it") from error
    data = raw.read()
    found = decode_for(preprocessing, data, raw.name, small=small)
    photo = Photo(
        path=raw.name, content=hashlib.sha256(data).hexdigest(), size=len(data), width=found.width, height=found.height,
        look=found.look, code=b"", given=raw.labels if labels else None,
    )  # fmt: skip
    return Seen(photo, found.pixels, found.thumbnail)


def _row(photo: Photo, small: bytes | None) -> dict[str, Any]:
    return {
        "path": photo.path,
        "content": bytes.fromhex(photo.content),
        "code": photo.code,
        "size": photo.size,
        "width": photo.width,
        "height": photo.height,
        "look": photo.look,
        "labels": photo.given,
        "thumbnail": small,
    }


def photo_of(row: dict[str, Any]) -> Photo:
    """What a collection stores of a row of a shard."""
    given = None if row["labels"] is None else tuple(row["labels"])
    plain = {name: row[name] for name in ("path", "code", "size", "width", "height", "look")}
    return Photo(content=row["content"].hex(), labels=given or (), given=given, **plain)


def written(
    rows: list[dict[str, Any]], hasher: Hasher, *, shard: str, problems: int, thumbnails: bool = False
) -> bytes:
    """The Parquet of a shard. Its metadata tell whose codes they are."""
    arrow, parquet = pyarrow()
    header = {
        "format": FORMAT, "fingerprint": hasher.fingerprint, "bits": hasher.bits, "shard": shard, "problems": problems,
    }  # fmt: skip
    fields = [
        ("path", arrow.string()),
        ("content", arrow.binary(32)),  # SHA-256 of the file
        ("code", arrow.binary(bytes_for(hasher.bits))),
        ("size", arrow.int64()),
        ("width", arrow.int32()),
        ("height", arrow.int32()),
        ("look", arrow.binary(8)),
        ("labels", arrow.list_(arrow.string())),  # null: the source says nothing about them
    ]
    fields += [("thumbnail", arrow.binary())] if thumbnails else []
    schema = arrow.schema(fields, metadata={HEADER: json.dumps(header).encode()})
    file = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist(rows, schema=schema), file, compression="zstd")
    return file.getvalue()


def header_of(metadata: dict[bytes, bytes] | None, path: Path) -> dict[str, Any]:
    """What the metadata of a shard say; CodesError where it is none, or one of another format."""
    try:
        header: dict[str, Any] = json.loads((metadata or {})[HEADER])
    except (KeyError, ValueError) as error:
        raise CodesError(f"{path}: no shard of codes; give a folder made by `hyphash encode`") from error
    if header.get("format") != FORMAT:
        raise CodesError(
            f"{path}: format {header.get('format')}, this hyphash reads {FORMAT}; use the version that wrote it"
        )
    return header


def pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("encoding to Parquet", "cluster") from error
    return pyarrow, pyarrow.parquet
