"""A worker's half: one part of the source in, one shard of Parquet out."""

import hashlib
import io
import json
import os
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import bytes_for
from hyphash.encoding.parts import Part, Raw
from hyphash.engines import Photo
from hyphash.errors import CodesError, MissingExtraError, PhotoError
from hyphash.hasher import BATCH, Hasher, Problem, in_threads
from hyphash.photos import decode, dimensions, look_of, thumbnail

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
    part: Part


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
    """A photo that was looked at, or why it could not be."""

    photo: Photo | None = None
    pixels: NDArray[np.uint8] | None = None
    thumbnail: bytes | None = None
    problem: Problem | None = None


class Encoder:
    """A hasher that is loaded once and turns any number of parts into shards."""

    def __init__(self, job: Job) -> None:
        if job.threads:
            os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "HYPHASH_THREADS"), str(job.threads))
        self.job = job
        self.hasher = Hasher.load(job.run, device=job.device)
        if job.threads and (torch := sys.modules.get("torch")):
            torch.set_num_threads(job.threads)

    def encode(self, task: Task) -> Shard:
        """The photos of a part, in its order; those that cannot be read are reported, never fatal."""
        threads = self.job.threads or os.cpu_count() or 1
        rows: list[dict[str, Any]] = []
        problems: list[Problem] = []
        waiting: list[Seen] = []
        for seen in in_threads(self._look, task.part.raws(), workers=threads, ahead=BATCH):
            if seen.problem:
                problems.append(seen.problem)
                continue
            waiting.append(seen)
            if len(waiting) == BATCH:
                rows += self._rows(waiting)
                waiting = []
        rows += self._rows(waiting)
        parquet = written(rows, self.hasher, shard=task.name, problems=len(problems), thumbnails=self.job.thumbnails)
        return Shard(task.name, parquet, len(rows), tuple(problems), f"{platform.node()} {os.getpid()}")

    def _look(self, raw: Raw) -> Seen:
        try:
            return self._looked(raw)
        except PhotoError as error:
            return Seen(problem=Problem(raw.name, str(error)))
        except MissingExtraError as error:  # one HEIC among thousands: say how it could be read, and go on
            return Seen(problem=Problem(raw.name, f"{raw.name}: {error}"))

    def _looked(self, raw: Raw) -> Seen:
        try:
            raw.name.encode()
        except UnicodeEncodeError as error:
            raise PhotoError(f"{raw.name!r}: its name is not Unicode; rename it") from error
        data, preprocessing = raw.read(), self.hasher.spec.preprocessing
        image = decode(data, raw.name, at_least=preprocessing.size)
        width, height = dimensions(data, raw.name)
        photo = Photo(
            path=raw.name, content=hashlib.sha256(data).hexdigest(), size=len(data), width=width, height=height,
            look=look_of(image), code=b"", given=raw.labels if self.job.labels else None,
        )  # fmt: skip
        small = thumbnail(decode(data, raw.name, at_least=THUMBNAIL), THUMBNAIL) if self.job.thumbnails else None
        return Seen(photo, preprocessing.pixels(image), small)

    def _rows(self, waiting: Iterable[Seen]) -> list[dict[str, Any]]:
        fine = [(seen.photo, seen.pixels, seen.thumbnail) for seen in waiting if seen.photo and seen.pixels is not None]
        if not fine:
            return []
        codes = self.hasher.to_codes(self.hasher.outputs_of_pixels(np.stack([pixels for _, pixels, _ in fine])))
        return [
            _row(replace(photo, code=code.tobytes()), small)
            for (photo, _, small), code in zip(fine, codes.packed, strict=True)
        ]


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
