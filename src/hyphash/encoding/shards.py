"""A worker's half: one partition of the source in, one shard of Parquet out."""

import io
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from hyphash.codes import bytes_for
from hyphash.datasets import with_parents
from hyphash.encoder import encode_stream
from hyphash.encoding.locations import Labels, PhotoRef
from hyphash.encoding.partitions import PER_SHARD, Partition, pyarrow
from hyphash.errors import CodesError, PhotoError
from hyphash.files import is_unicode
from hyphash.hasher import Hasher
from hyphash.machine import THREADS, keep_memory
from hyphash.photos import THUMBNAIL, Decoded, Problem, Raw, decode_for, decoders, looked_at
from hyphash.stores import Facts, Photo

FORMAT = 1
HEADER = b"hyphash"  # in the metadata of a shard
SEEN = ("taken", "camera", "latitude", "longitude")  # what a camera wrote into a photo; older shards have none of it
ATTEMPTS = 4  # workers that may be lost over one shard


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


class ShardMaker:
    """A hasher that is loaded once and turns any number of partitions into shards."""

    def __init__(self, job: Job) -> None:
        if job.threads:
            os.environ |= dict.fromkeys(("OMP_NUM_THREADS", THREADS), str(job.threads))
        self.job = job
        self.hasher = Hasher.to_encode(job.run, device=job.device)
        if job.threads and (torch := sys.modules.get("torch")):
            torch.set_num_threads(job.threads)
        self.workers = decoders(PER_SHARD)

    @classmethod
    def on_device(cls, job: Job, devices: Sequence[str], number: int) -> Self:
        """One in a process of its own; those of a machine share its devices out among them."""
        keep_memory()
        return cls(replace(job, device=devices[number % len(devices)]))

    def make(self, task: Task) -> Shard:
        """The photos of a partition, in its order; those that cannot be read are reported, never fatal."""
        rows: list[dict[str, Any]] = []
        problems: list[Problem] = []
        encoder = self.hasher.encoder
        look = partial(decode_for, preprocessing=encoder.preprocessing, small=THUMBNAIL * self.job.thumbnails)
        looks = looked_at(task.partition.photos(), _read, look, workers=self.workers, ahead=2 * encoder.batch)
        size = bytes_for(self.hasher.bits)
        for some in encode_stream(looks, self.hasher.packed_rows, batch=encoder.batch):
            for photo, found, row in some:
                if isinstance(found, PhotoError) or row is None:
                    problems.append(Problem(photo.name, str(found)))
                else:
                    labels = photo.labels if self.job.labels else None
                    rows.append(_row(photo.name, found, row[:size].tobytes(), labels, row[size:].tobytes()))
        parquet = written(rows, self.hasher, shard=task.name, problems=len(problems), thumbnails=self.job.thumbnails)
        return Shard(task.name, parquet, len(rows), tuple(problems), f"{platform.node()} {os.getpid()}")


def _read(photo: PhotoRef) -> Raw:
    if not is_unicode(photo.name):
        raise PhotoError(f"{photo.name!r}: its name is not Unicode; rename it")
    return Raw(photo.name, photo.read())


def _row(name: str, found: Decoded, code: bytes, labels: Labels, scores: bytes) -> dict[str, Any]:
    of_file = {key: getattr(found, key) for key in ("size", "width", "height", "thumbnail")}
    seen = {key: getattr(found.metadata, key, None) for key in SEEN}
    derived = {"code": code, "scores": scores, "look": found.thumbnail_hash, "content": bytes.fromhex(found.content)}
    return {"path": name, "labels": labels, **derived, **of_file, **seen}


def photo_of(row: dict[str, Any]) -> Photo:
    """What a collection stores of a row of a shard."""
    given = None if row["labels"] is None else with_parents(row["labels"])
    seen: dict[str, Any] = {name: row.get(name) for name in ("size", "width", "height", *SEEN)}
    facts = Facts(content=row["content"].hex(), thumbnail_hash=row["look"], **seen)
    derived = {"code": row["code"], "scores": row.get("scores", b"")}  # older shards have no scores
    return Photo(path=row["path"], facts=facts, **derived, labels=given or (), given=given)


def written(rows: list[dict[str, Any]], hasher: Hasher, *, shard: str, problems: int, thumbnails: bool) -> bytes:
    """The Parquet of a shard. Its metadata tell whose codes they are."""
    arrow = pyarrow()
    whose = {"fingerprint": hasher.fingerprint, "bits": hasher.bits}
    header = {"format": FORMAT, **whose, "shard": shard, "problems": problems}
    fields = [
        ("path", arrow.string()),
        ("content", arrow.binary(32)),  # SHA-256 of the file
        ("code", arrow.binary(bytes_for(hasher.bits))),
        ("scores", arrow.binary()),  # of labels; empty: the hasher has no label layer
        ("size", arrow.int64()),
        ("width", arrow.int32()),
        ("height", arrow.int32()),
        ("look", arrow.binary(8)),
        ("labels", arrow.list_(arrow.string())),  # null: the source says nothing about them
        *zip(SEEN, (arrow.int64(), arrow.string(), arrow.float64(), arrow.float64()), strict=True),
    ]
    fields += [("thumbnail", arrow.binary())] if thumbnails else []
    schema = arrow.schema(fields, metadata={HEADER: json.dumps(header).encode()})
    file = io.BytesIO()
    arrow.parquet.write_table(arrow.Table.from_pylist(rows, schema=schema), file, compression="zstd")
    return file.getvalue()


def header_of(metadata: dict[bytes, bytes] | None, path: Path) -> dict[str, Any]:
    """What the metadata of a shard say; CodesError where it is none, or one of another format."""
    try:
        header: dict[str, Any] = json.loads((metadata or {})[HEADER])
    except (KeyError, ValueError) as error:
        raise CodesError(f"{path}: no shard of codes; give a folder made by `hyphash encode`") from error
    if (number := header.get("format")) != FORMAT:
        raise CodesError(f"{path}: format {number}, this hyphash reads {FORMAT}; use the version that wrote it")
    return header
