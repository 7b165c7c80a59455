"""Encoding at scale: photos from anywhere in, shards of Parquet out, each exactly once, however often it is stopped.

>>> for step in encode("runs/demo", "s3://photos/*.tar", into="codes", address="auto"):   # doctest: +SKIP
...     print(f"{step.done} of {step.total} shards, {step.photos} photos more")
>>> load("codes", Collection.open("my-photos"))                                            # doctest: +SKIP

A folder of shards says what belongs into it, what is there, and when it is complete:

manifest.json          whose codes, of which photos, in how many shards; written first
shard-000000.parquet   each written in one step: what is there is whole and is never made again
problems/…jsonl        for each shard with photos that could not be read, which and why
summary.json           how many photos are in each shard; written last

Only the driver writes, so a shard that two workers made by mischance is there once.
"""

import hashlib
import json
import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hyphash.config import from_table
from hyphash.encoding.on_ray import shards_on_ray
from hyphash.encoding.partitions import Partition, cut, pyarrow
from hyphash.encoding.shards import ATTEMPTS, Job, Shard, ShardMaker, Task, header_of, photo_of
from hyphash.errors import CodesError, ConfigError, OtherHasherError, RunError, StorageError
from hyphash.files import json_line, make_folder, read_json_lines, write_atomically
from hyphash.hasher import Progress, Spec, read_spec
from hyphash.machine import cores, gpus
from hyphash.photos import Problem
from hyphash.workers import LostError, Workers

if TYPE_CHECKING:
    from hyphash.collection import Collection

__all__ = ["Loaded", "Manifest", "Step", "Summary", "encode", "load", "problems_in", "summary_for", "summary_of"]

FORMAT = 1
MANIFEST, SUMMARY, PROBLEMS = "manifest.json", "summary.json", "problems"
MANY = 10_000  # photos that a store gets at once

T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """A shard that is safe on the disk, and how far that brings the whole."""

    shard: str
    photos: int
    problems: tuple[Problem, ...]
    worker: str  # machine and process that made it
    done: int  # shards
    total: int


def encode(
    run: str | Path,
    source: str | Path,
    *,
    into: str | Path,
    address: str = "local",
    workers: int | None = None,
    per_shard: int | None = None,
    device: str = "auto",
    labels: bool = True,
    thumbnails: bool = False,
) -> Generator[Step, None, None]:
    """Encode all photos of `source` into shards of Parquet in the folder `into`; run again, it goes on.

    source      a folder, a list (.txt), a label file, a pattern, tar files (WebDataset) or Parquet files with photos;
                here or behind any URL of fsspec's
    address     local: processes of this machine; ray: a Ray that is started here; auto, host:port: a Ray cluster that
                is there and to which this machine belongs
    workers     one encoder each; by default one for each GPU, else for each core, also of machines that join later
    per_shard   photos in a shard, 10,000 at most where nothing is said. A tar file is always one shard, and row groups
                of Parquet are never parted
    thumbnails  also keep small pictures, for photos that the reader of the codes cannot reach
    """
    if address.startswith("ray://"):
        raise ConfigError(
            f"{address}: Ray Data does not run through Ray Client; start the command on a machine of the cluster, "
            "by hand or with `ray job submit`, and give it --address auto"
        )
    if address not in ("local", "ray", "auto") and not re.fullmatch(r"[^/\s]+:\d+", address):
        raise ConfigError(f"address {address!r}: it is local, ray, auto or HOST:PORT")
    if workers is not None and workers < 1:
        raise ConfigError(f"{workers} workers; there must be at least 1")
    pyarrow()
    spec, partitions = read_spec(Path(run)), cut(str(source), per_shard=per_shard)
    job = Job(Path(run).absolute(), device=device, labels=labels, thumbnails=thumbnails)
    folder, manifest = Path(into), Manifest.of(partitions, str(source), spec, job)
    begin(folder, manifest)
    tasks = remaining(folder, partitions)
    arriving = _shards(job, tasks, address, workers) if tasks else ()
    for done, shard in enumerate(arriving, len(partitions) - len(tasks) + 1):
        keep(folder, shard)
        yield Step(shard.name, shard.photos, shard.problems, shard.worker, done, len(partitions))
    complete(folder, manifest)


def _shards(job: Job, tasks: list[Task], address: str, workers: int | None) -> Iterator[Shard]:
    if address != "local":
        yield from shards_on_ray(job, tasks, address, workers)
        return
    devices = (gpus() if job.device in ("auto", "cuda") else []) or [job.device]
    workers = min(workers or (len(devices) if devices[0].startswith("cuda") else cores()), len(tasks))
    if workers == 1:
        yield from map(ShardMaker(job).make, tasks)
        return
    setup = partial(ShardMaker.on_device, job, devices)
    pool = Workers(workers, setup=setup, threads=max(1, cores() // workers), attempts=ATTEMPTS)
    for task, shard in pool.as_done(ShardMaker.make, tasks):
        if isinstance(shard, LostError):
            raise RunError(
                f"{task.name} was the end of {ATTEMPTS} workers ({shard}), perhaps for lack of memory; "
                "take fewer --workers; all other shards that are done stay done"
            )
        yield shard


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a folder of shards is to hold."""

    format: int = FORMAT
    fingerprint: str  # of the hasher
    bits: int
    source: str
    photos: int | None  # None: tar files tell only when they are read
    shards: int
    labels: bool
    thumbnails: bool
    digest: str  # of all of the above but the source's spelling, and of every photo's name

    @classmethod
    def of(cls, partitions: Sequence[Partition], source: str, spec: Spec, job: Job) -> "Manifest":
        digest = hashlib.sha256(repr((FORMAT, spec.fingerprint, spec.bits, job.labels, job.thumbnails)).encode())
        for partition in partitions:
            digest.update(repr(partition).encode("utf-8", "surrogateescape"))
        counts = [partition.count for partition in partitions]
        photos = sum(count or 0 for count in counts) if None not in counts else None
        return cls(
            fingerprint=spec.fingerprint, bits=spec.bits, source=source, photos=photos, shards=len(partitions),
            labels=job.labels, thumbnails=job.thumbnails, digest=digest.hexdigest(),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A folder of shards that is complete."""

    format: int = FORMAT
    fingerprint: str
    bits: int
    photos: int
    problems: int
    shards: dict[str, int]  # photos in each
    digest: str


def begin(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, or see that the one which is there is the same."""
    if (folder / MANIFEST).is_file():
        there = manifest_of(folder)
        if there.fingerprint != manifest.fingerprint:
            raise OtherHasherError(
                f"{folder}: of the hasher {there.fingerprint}, not of {manifest.fingerprint}; choose another folder"
            )
        if there.digest != manifest.digest:
            raise CodesError(
                f"{folder}: was begun for other photos or other options ({there.source}, {there.shards:,} shards; now "
                f"{manifest.source}, {manifest.shards:,} shards); choose another folder, or delete this one"
            )
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StorageError(f"{folder}: there are other things here; choose a new folder for the codes")
    else:
        make_folder(folder)
        write_atomically(folder / MANIFEST, json.dumps(asdict(manifest), indent=2) + "\n")


def remaining(folder: Path, partitions: Sequence[Partition]) -> list[Task]:
    there = {path.stem for path in folder.glob("shard-*.parquet")}
    tasks = (Task(shard_name(number), partition) for number, partition in enumerate(partitions))
    return [task for task in tasks if task.name not in there]


def keep(folder: Path, shard: Shard) -> None:
    """Problems first, codes last: a shard that is there has told its problems."""
    if shard.problems:
        make_folder(folder / PROBLEMS)
        lines = "".join(json_line(asdict(problem)) for problem in shard.problems)
        write_atomically(folder / PROBLEMS / f"{shard.name}.jsonl", lines)
    write_atomically(folder / f"{shard.name}.parquet", shard.parquet)


def complete(folder: Path, manifest: Manifest) -> None:
    """Count what is in the shards and write the summary."""
    counts, problems = dict[str, int](), 0
    for name in map(shard_name, range(manifest.shards)):
        path = folder / f"{name}.parquet"
        try:
            footer = pyarrow().parquet.read_metadata(path)
        except (ValueError, OSError) as error:
            raise CodesError(f"{path}: damaged ({error}); delete it and give the same command again") from error
        counts[name] = footer.num_rows
        problems += int(header_of(footer.metadata, path)["problems"])
    same = {name: getattr(manifest, name) for name in ("fingerprint", "bits", "digest")}
    summary = Summary(**same, photos=sum(counts.values()), problems=problems, shards=counts)
    write_atomically(folder / SUMMARY, json.dumps(asdict(summary), indent=2) + "\n")


def shard_name(number: int) -> str:
    return f"shard-{number:06d}"


def manifest_of(folder: Path) -> Manifest:
    path = folder / MANIFEST
    if not path.is_file():
        raise CodesError(f"{folder}: no {MANIFEST} is here; give a folder made by `hyphash encode`")
    return _read(Manifest, path)


def summary_of(folder: str | Path) -> Summary:
    """The summary of a folder of shards; CodesError where it is not complete."""
    manifest, path = manifest_of(Path(folder)), Path(folder) / SUMMARY
    if not path.is_file():
        there = len(list(Path(folder).glob("shard-*.parquet")))
        raise CodesError(f"{folder}: {there:,} of {manifest.shards:,} shards are there; finish with the same `encode`")
    return _read(Summary, path)


def problems_in(folder: str | Path) -> list[Problem]:
    """All photos that could not be read."""
    files = sorted((Path(folder) / PROBLEMS).glob("*.jsonl"))
    return [Problem(record["name"], record["reason"]) for path in files for record in read_json_lines(path)]


def _read(record: type[T], path: Path) -> T:
    try:
        table = json.loads(path.read_bytes())
    except ValueError as error:
        raise CodesError(f"{path}: damaged ({error}); encode into another folder") from error
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        raise CodesError(f"{path}: written by another version; use that one, or encode into another folder")
    return from_table(record, table, str(path))


@dataclass(frozen=True)
class Loaded:
    """How many photos the shards held, and how many of them the collection did not have before."""

    photos: int
    added: int


def load(folder: str | Path, collection: "Collection", *, progress: Progress | None = None) -> Loaded:
    """Put what `encode` wrote into a collection. Stopped and run again, nothing is doubled: a photo is its path."""
    store = collection.store
    summary = summary_for(store.state().fingerprint, folder)
    before, done = store.count(), 0
    for shard in summary.shards:
        for rows in _batches(Path(folder) / f"{shard}.parquet", summary.fingerprint):
            collection.thumbnails.put({row["content"].hex(): row["thumbnail"] for row in rows if "thumbnail" in row})
            photos = {row["path"]: photo_of(row) for row in rows}  # a source may name two photos alike
            store.upsert(list(photos.values()), fingerprint=summary.fingerprint)
            done += len(rows)
            if progress:
                progress(done, summary.photos)
    collection.tidy()
    return Loaded(done, store.count() - before)


def summary_for(fingerprint: str, folder: str | Path) -> Summary:
    """What a collection of this hasher would load; CodesError or OtherHasherError where it would be refused."""
    summary = summary_of(folder)
    if summary.fingerprint != fingerprint:
        raise OtherHasherError(
            f"{folder}: codes of the hasher {summary.fingerprint}, the collection has {fingerprint}; "
            "encode the photos with that one, or load into a collection of its own"
        )
    for shard in summary.shards:
        if not (path := Path(folder) / f"{shard}.parquet").is_file():
            raise CodesError(f"{path}: missing; finish with the same `hyphash encode`")
    return summary


def _batches(path: Path, fingerprint: str) -> Iterator[list[dict[str, Any]]]:
    arrow = pyarrow()
    try:
        with arrow.parquet.ParquetFile(path) as file:
            if header_of(file.schema_arrow.metadata, path)["fingerprint"] != fingerprint:
                raise OtherHasherError(f"{path}: codes of another hasher than the rest of the folder; encode it again")
            for batch in file.iter_batches(MANY):
                yield batch.to_pylist()
    except (arrow.ArrowInvalid, OSError) as error:
        raise CodesError(f"{path}: damaged or missing ({error}); delete it and encode again") from error
