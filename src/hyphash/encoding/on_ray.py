"""Encoding on a Ray cluster, by Ray Data: a row is a shard to be made, a pool of actors makes it, the driver writes it.

The pool has an actor for each GPU or core of the cluster, and grows with it. An actor that is lost is started again, on
another machine if need be, and gets its row again. Ray Data would do that for ever, so a worker asks `Attempts` before
it begins. One that may not says so in the place of the shard, and all others are made before the run ends in an error.
"""

import logging
import os
import pickle
import socket
import tempfile
import warnings
import zlib
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hyphash.encoder import ONNX_FILE
from hyphash.encoding.partitions import pyarrow
from hyphash.encoding.shards import ATTEMPTS, Job, Shard, ShardMaker, Task
from hyphash.errors import RunError, needs_extra
from hyphash.hasher import SPEC_FILE, WEIGHTS_FILE
from hyphash.machine import keep_memory
from hyphash.workers import Failure, LostError

GPU_THREADS = 8  # that decode photos for one GPU
PATIENCE = 10  # seconds for a cluster to answer
TASK, NEWS = "task", "news"  # columns
WAY_OUT = "perhaps for lack of memory: take fewer --workers"


class Attempts:
    """How often something was begun. An actor of its own: a worker that is lost cannot count that."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._begun: Counter[str] = Counter()

    def begin(self, what: str) -> bool:
        """Whether it may be tried once more."""
        self._begun[what] += 1
        return self._begun[what] <= self._most

    def forget(self, what: str) -> None:
        del self._begun[what]


News = Shard | Failure | LostError  # whatever happens to a worker is told, not raised, so that it travels


class TravellingWorker:
    """A worker on a machine where the run is not: the files of its hasher come along, once for each."""

    def __init__(self, job: Job, files: Any, attempts: Any, most: Any) -> None:
        import ray

        self._ray, self._attempts = ray, attempts
        self._folder = tempfile.TemporaryDirectory(prefix="hyphash-")
        for name, data in ray.get(files).items():
            Path(self._folder.name, name).write_bytes(data)
        self._maker = self._started(replace(job, run=Path(self._folder.name)), most)

    def _started(self, job: Job, most: Any) -> ShardMaker | Failure:
        """Load the hasher, unless that has ended this actor's processes too often."""
        me = str(self._ray.get_runtime_context().get_actor_id())
        if not self._may_begin(me):
            return Failure(RunError, f"{self._ray.get(most)} workers ended before they could begin, {WAY_OUT}")
        keep_memory()
        try:
            return ShardMaker(job)
        except Exception as error:
            return Failure.of(error)
        finally:
            self._attempts.forget.remote(me)

    def __call__(self, rows: Any) -> Any:
        """The row of one task to the row of its news."""
        task: Task = pickle.loads(zlib.decompress(rows[TASK][0].as_py()))
        arrow = pyarrow()
        return arrow.table({NEWS: arrow.array([pickle.dumps(self._news(task))], arrow.large_binary())})

    def _news(self, task: Task) -> News:
        if isinstance(self._maker, Failure):
            return self._maker
        if not self._may_begin(task.name):
            return LostError(task.name)
        try:
            return self._maker.make(task)
        except Exception as error:
            return Failure.of(error)

    def _may_begin(self, what: str) -> bool:
        return bool(self._ray.get(self._attempts.begin.remote(what)))


def shards_on_ray(job: Job, tasks: Sequence[Task], address: str, workers: int | None) -> Generator[Shard, None, None]:
    """Every task's shard, as they come; RunError at the end if there are some that no worker survived."""
    given_up = []
    with _connected(address) as ray, closing(_news(ray, job, tasks, workers)) as arriving:
        try:
            for news in arriving:
                if isinstance(news, Failure):
                    raise news.error()
                if isinstance(news, LostError):
                    given_up.append(str(news))
                else:
                    yield news
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise RunError(f"{address}: {reason}; shards that are done stay done, the same command goes on") from error
    if given_up:
        more = f", so were {len(given_up) - 1:,} more" if len(given_up) > 1 else ""
        raise RunError(f"{min(given_up)} was the end of {ATTEMPTS} workers{more}, {WAY_OUT}; all other shards are done")


def _news(ray: Any, job: Job, tasks: Sequence[Task], workers: int | None) -> Generator[News, None, None]:
    with warnings.catch_warnings(action="ignore"):  # remarks of Ray's about its own future, as below
        rows = _dataset(ray, job, tasks, workers)
    arriving = rows.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
    with closing(iter(arriving)) as batches:  # ends the pool, whatever ends this
        for batch in batches:
            for value in batch[NEWS]:
                yield pickle.loads(value.as_buffer())


def _dataset(ray: Any, job: Job, tasks: Sequence[Task], workers: int | None) -> Any:
    """A row a task, turned into the row of its news when it is iterated over."""
    from ray import data
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    resources = ray.cluster_resources()
    wants_gpu = job.device != "cpu" and resources.get("GPU", 0) >= 1
    room = max(1, int(resources["GPU"] if wants_gpu else resources.get("CPU", 1)))
    job = replace(job, threads=job.threads or (GPU_THREADS if wants_gpu else 1))
    files = {name: job.run / name for name in (SPEC_FILE, WEIGHTS_FILE, ONNX_FILE)}
    most = ray.put(ATTEMPTS)
    travelling = ray.put({name: path.read_bytes() for name, path in files.items() if path.is_file()})
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)  # ends with the driver
    actor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here)(Attempts)
    with _no_stderr():  # Ray warns, once a process, of actors that start again from stored arguments, as a pool's do
        attempts = actor.remote(most)
    packed = [{TASK: zlib.compress(pickle.dumps(task), 1)} for task in tasks]  # thousands of paths that are alike
    rows = data.from_items(packed, override_num_blocks=len(tasks))
    settings = rows.context  # of this dataset, not of the program that calls this
    settings.enable_progress_bars = False
    settings.execution_no_progress_timeout_s = -1  # a shard may take longer than half an hour
    settings.autoscaling_config.actor_pool_util_upscaling_threshold = 1.0  # by tasks a worker
    settings.autoscaling_config.actor_pool_util_downscaling_threshold = 0.0  # no one is dismissed between two shards
    least, largest = (min(workers or many, len(tasks)) for many in (room, len(tasks)))
    ahead = 2 if wants_gpu else 1  # where a shard takes seconds, the next is at hand
    pool = data.ActorPoolStrategy(min_size=least, max_size=largest, max_tasks_in_flight_per_actor=ahead)
    return rows.map_batches(
        TravellingWorker, batch_size=1, batch_format="pyarrow", compute=pool, num_cpus=1,
        num_gpus=1 if wants_gpu else None, fn_constructor_args=(job, travelling, attempts, most),
    )  # fmt: skip


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Ray, which is left as it was found."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anyone
    with warnings.catch_warnings(action="ignore"), needs_extra("cluster", "encoding on a Ray cluster"):
        import ray.data
    if ray.is_initialized():
        yield ray
        return
    with _quiet(ray):
        _init(ray, address)
        try:
            yield ray
        finally:
            ray.shutdown()


def _init(ray: Any, address: str) -> None:
    place = {"address": address} if address != "ray" else {"address": "local", "include_dashboard": False}
    try:
        if ":" in address:  # Ray itself would wait for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
        with warnings.catch_warnings(action="ignore"):
            ray.init(**place, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise RunError(
            f"{address}: no Ray cluster answers ({reason}); start one with `ray start --head` or omit --address"
        ) from error


@contextmanager
def _quiet(ray: Any) -> Iterator[None]:
    """The terminal is ours: workers that come and go are dealt with, and Ray's log files tell of them."""
    logger = logging.getLogger("ray.data")
    screens = [handler for handler in logger.handlers if isinstance(handler, logging.StreamHandler)]
    for handler in screens:
        logger.removeHandler(handler)
    ray._private.worker._worker_logs_enabled = False  # log_to_driver does not keep it from printing the loss of workers
    try:
        yield
    finally:
        ray._private.worker._worker_logs_enabled = True
        for handler in screens:
            logger.addHandler(handler)


@contextmanager
def _no_stderr() -> Iterator[None]:
    """Not sys.stderr, which Ray's C++ does not know, but what is below it."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
