"""Encoding at scale: photos from anywhere in, shards of Parquet out, each exactly once, however often it is stopped.

>>> for step in encode("runs/demo", "s3://photos/*.tar", into="codes", address="auto"):   # doctest: +SKIP
...     print(f"{step.done} of {step.total} shards, {step.photos} photos more")
>>> load("codes", Collection.open("my-photos"))                                            # doctest: +SKIP
"""

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hyphash.encoding.ledger import Ledger, Loaded, Manifest, Summary, load, problems_in, summary_for, summary_of
from hyphash.encoding.on_ray import shards_on_ray
from hyphash.encoding.partitions import cut, pyarrow
from hyphash.encoding.shards import ATTEMPTS, Job, Shard, ShardMaker, Task
from hyphash.errors import ConfigError, RunError
from hyphash.hasher import read_spec
from hyphash.machine import cores, gpus
from hyphash.photos import Problem
from hyphash.workers import LostError, Workers

__all__ = ["Loaded", "Manifest", "Step", "Summary", "encode", "load", "problems_in", "summary_for", "summary_of"]


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
    ledger = Ledger.begin(Path(into), Manifest.of(partitions, str(source), spec, job))
    tasks = ledger.remaining(partitions)
    done = len(partitions) - len(tasks)
    for shard in _shards(job, tasks, address, workers) if tasks else ():
        ledger.keep(shard)
        done += 1
        yield Step(shard.name, shard.photos, shard.problems, shard.worker, done, len(partitions))
    ledger.complete()


def _shards(job: Job, tasks: list[Task], address: str, workers: int | None) -> Iterator[Shard]:
    if address != "local":
        return shards_on_ray(job, tasks, address, workers)
    devices = (gpus() if job.device in ("auto", "cuda") else []) or [job.device]
    workers = min(workers or (len(devices) if devices[0].startswith("cuda") else cores()), len(tasks))
    if workers == 1:
        return map(ShardMaker(job).make, tasks)
    setup = partial(ShardMaker.on_device, job, devices)
    pool = Workers(workers, setup=setup, threads=max(1, cores() // workers), attempts=ATTEMPTS)
    return _all_made(pool.as_done(ShardMaker.make, tasks))


def _all_made(arriving: Iterator[tuple[Task, Shard | LostError]]) -> Iterator[Shard]:
    for task, shard in arriving:
        if isinstance(shard, LostError):
            raise RunError(
                f"{task.name} was the end of {ATTEMPTS} workers ({shard}), perhaps for lack of memory; "
                "take fewer --workers; all other shards that are done stay done"
            )
        yield shard
