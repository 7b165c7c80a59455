"""Encoding on a real Ray cluster of two nodes on this machine, one core each."""

import base64
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import warnings
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import TypeVar

import pytest

from hyphash.encoding import encode, summary_of
from hyphash.encoding.on_ray import Attempts
from hyphash.errors import ConfigError, RunError, WeightsError

T = TypeVar("T")

NODE = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 << 20}
SOON = {  # a node that says nothing for four seconds is lost: sooner, and a busy machine loses one that only starts
    "health_check_initial_delay_ms": 5000, "health_check_period_ms": 1000, "health_check_failure_threshold": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks of Ray's about its own future
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        from ray.cluster_utils import Cluster

        cluster = _patiently(lambda: Cluster(initialize_head=True, head_node_args={**NODE, "_system_config": SOON}))
        _patiently(lambda: cluster.add_node(**NODE))
        yield cluster
        cluster.shutdown()


def _patiently(start: Callable[[], T]) -> T:
    """On a busy machine a node may take longer than the half minute that Ray allows for."""
    for _ in range(2):
        with suppress(Exception):  # Ray raises no other
            return start()
    return start()


@pytest.fixture
def stuck(folder, gate_of):
    """stuck("a/04.png"): whoever reads this photo waits, at the gate that is returned."""
    return lambda name: gate_of(folder / name)


@pytest.fixture
def command(hasher_run, folder):
    """command(into, address) starts the command line; what it prints is read by communicate()."""
    started = []

    def start(into: Path, address: str) -> subprocess.Popen[str]:
        arguments = [hasher_run, folder, "--into", into, "--per-shard", "5", "--address", address]
        code = (
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # where a shell had it ignored
            "from hyphash.cli import main; main()"
        )
        line = [sys.executable, "-c", code, "encode", *map(str, arguments)]
        started.append(subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def names(codes: Path) -> list[str]:
    return sorted(path.stem for path in codes.glob("shard-*.parquet"))


def test_a_killed_worker_costs_nothing(cluster, hasher_run, folder, tmp_path, picture, rows_in, kill_the_reader):
    """A worker is killed in the middle of a shard: while it reads a photo that does not come."""
    codes = tmp_path / "codes"
    with kill_the_reader(folder / "a" / "04.png", picture(4)):
        steps = list(encode(hasher_run, folder, into=codes, per_shard=2, address=cluster.address))
    assert sorted(step.shard for step in steps) == [f"shard-{i:06}" for i in range(10)]
    assert [row["path"] for row in rows_in(codes)] == [str(path) for path in sorted(folder.rglob("*.png"))]

    list(encode(hasher_run, folder, into=tmp_path / "local", per_shard=2, workers=1))
    assert rows_in(tmp_path / "local") == rows_in(codes)

    import ray

    assert not ray.is_initialized()  # what it opened, it closed


def test_a_shard_that_ends_every_worker_is_named_and_all_others_are_made(
    cluster, hasher_run, folder, tmp_path, picture, kill_the_reader
):
    codes = tmp_path / "codes"
    steps = encode(hasher_run, folder, into=codes, per_shard=5, address=cluster.address)
    with (
        kill_the_reader(folder / "a" / "04.png", picture(4), times=4),
        pytest.raises(RunError, match="shard-000000 was the end of 4 workers"),
    ):
        list(steps)
    assert names(codes) == [f"shard-{i:06}" for i in (1, 2, 3)]
    assert [step.done for step in encode(hasher_run, folder, into=codes, per_shard=5, workers=1)] == [4]
    assert summary_of(codes).photos == 20


def test_a_lost_node_costs_nothing(cluster, folder, tmp_path, rows_in, stuck, holder_of, command):
    """Two workers wait for photos, one on each node; the node that is not the driver's is killed."""
    photos, codes = {4: stuck("a/04.png"), 15: stuck("b/15.png")}, tmp_path / "codes"
    process = command(codes, cluster.address)
    readers = {number: holder_of(photo) for number, photo in photos.items()}
    (doomed,) = cluster.worker_nodes
    (raylet,) = (info.process.pid for kind, (info, *_) in doomed.all_processes.items() if kind == "raylet")
    (lost,) = (number for number, (reader, _) in readers.items() if _parent_of(reader) == raylet)
    photos[lost].unlink()
    cluster.remove_node(doomed, allow_graceful=False)
    _wait_for(lambda: not Path(f"/proc/{readers[lost][0]}").exists())
    for _, pipe in readers.values():
        os.close(pipe)
    told, errors = _outcome(process)
    cluster.add_node(**NODE)
    assert (process.returncode, told, errors) == (0, [f"{codes}: 20 photos in 4 shards, 20 bits each"], [])
    assert [row["path"] for row in rows_in(codes)] == [str(path) for path in sorted(folder.rglob("*.png"))]


def test_workers_wait_for_a_driver_that_is_slow(cluster, hasher_run, tmp_path, picture):
    """Thirty shards of 4 MB are more than Ray Data keeps of 160 MB; so the last is not begun."""
    tars, kept = tmp_path / "tars", tmp_path / "kept.tar"
    tars.mkdir()
    last = [_write_tar(tars / f"{i:02}.tar", picture(i)) for i in range(30)][-1]
    last.rename(kept)
    os.mkfifo(last)
    with closing(encode(hasher_run, tars, into=tmp_path / "codes", address=cluster.address, workers=1)) as steps:
        worker = int(next(steps).worker.split()[1])
        while _busy(worker):
            pass
        with pytest.raises(OSError, match="No such device"):  # nobody reads it
            os.open(last, os.O_WRONLY | os.O_NONBLOCK)
        kept.replace(last)
        assert [step.done for step in steps] == list(range(2, 31))


def test_ctrl_c_ends_it_at_once(cluster, tmp_path, stuck, holder_of, command):
    photo, codes = stuck("b/19.png"), tmp_path / "codes"
    process = command(codes, cluster.address)
    worker, pipe = holder_of(photo)
    _wait_for(lambda: len(names(codes)) == 3)  # each is on the disk as soon as it is made, not when all are
    process.send_signal(signal.SIGINT)
    told, errors = _outcome(process)
    assert (process.returncode, told) == (130, [])
    (told,) = errors
    assert told.startswith(f"hyphash: {codes}: stopped after ")
    assert told.endswith(" of 4 shards, which are kept; give the same command again to finish")
    _wait_for(lambda: not Path(f"/proc/{worker}").exists())
    os.close(pipe)
    assert len(names(codes)) == 3


@pytest.mark.cluster
def test_a_ray_of_its_own(tmp_path, rows_in, folder, command):
    codes = tmp_path / "codes"
    told, errors = _outcome(command(codes, "ray"))
    assert (told, errors) == ([f"{codes}: 20 photos in 4 shards, 20 bits each"], [])
    assert [row["path"] for row in rows_in(codes)] == [str(path) for path in sorted(folder.rglob("*.png"))]


def test_a_killed_driver_costs_nothing(cluster, hasher_run, folder, tmp_path, rows_in, stuck, command, holder_of):
    photo, codes = stuck("b/19.png"), tmp_path / "codes"
    process = command(codes, cluster.address)
    worker, pipe = holder_of(photo)
    _wait_for(lambda: len(names(codes)) == 3)
    process.kill()
    process.communicate()
    _wait_for(lambda: not Path(f"/proc/{worker}").exists())  # Ray ends the actors of a driver that is gone
    os.close(pipe)
    photo.unlink()
    kept = {path: path.stat().st_mtime_ns for path in codes.glob("shard-*.parquet")}
    steps = list(encode(hasher_run, folder, into=codes, per_shard=5, address=cluster.address, workers=1))
    assert [(step.shard, step.done) for step in steps] == [("shard-000003", 4)]
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    assert [row["path"] for row in rows_in(codes)] == [str(path) for path in sorted(folder.rglob("*.png"))]
    assert summary_of(codes).photos == 20


def test_in_a_program_that_uses_ray_already(cluster, broken_run, folder, tmp_path):
    """A failure of a worker reaches the caller, and Ray and its settings stay as they were."""
    import ray
    from ray.data import DataContext

    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        before = repr(DataContext.get_current())
        with pytest.raises(WeightsError, match=r"network\.onnx"):
            list(encode(broken_run, folder, into=tmp_path / "codes", per_shard=5, address=cluster.address))
        assert ray.is_initialized()
        assert repr(DataContext.get_current()) == before
    finally:
        ray.shutdown()


def test_no_cluster_is_said_in_one_line(hasher_run, folder, tmp_path):
    with pytest.raises(RunError, match=r"127\.0\.0\.1:9: no Ray cluster answers"):
        list(encode(hasher_run, folder, into=tmp_path / "codes", address="127.0.0.1:9"))


def test_ray_client_is_refused_with_the_way_out(hasher_run, folder, tmp_path):
    """It has no core worker, and Ray Data 2.60 asks for one: AttributeError."""
    with pytest.raises(ConfigError, match="ray job submit"):
        list(encode(hasher_run, folder, into=tmp_path / "codes", address="ray://127.0.0.1:10001"))
    assert not (tmp_path / "codes").exists()


def _outcome(process: subprocess.Popen[str]) -> tuple[list[str], list[str]]:
    """All lines that it printed, and those of its errors but for our own progress."""
    told, errors = process.communicate(timeout=120)
    return told.splitlines(), [line for line in errors.splitlines() if not line.endswith(" of 4 shards")]


def _write_tar(path: Path, photo: bytes) -> Path:
    """Six photos with labels that nothing can compress, 4 MB."""
    with tarfile.open(path, "w") as tar:
        for i in range(6):
            label = base64.b64encode(os.urandom(700_000)).decode()
            for name, data in ((f"{i}.png", photo), (f"{i}.json", json.dumps({"labels": [label]}).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


def _busy(process: int, seconds: float = 2) -> bool:
    """Whether it computes anything within so many seconds."""

    def computed() -> int:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])  # hundredths of a second, its own and the system's

    before = computed()
    sleep(seconds)
    return computed() - before > 10 * seconds


def _parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def _wait_for(truth: Callable[[], bool]) -> None:
    stop = monotonic() + 30
    while not truth():
        assert monotonic() < stop, "waited in vain"
        sleep(0.05)


def test_what_was_begun_too_often_is_not_begun_again():
    attempts = Attempts(2)
    assert [attempts.begin("one") for _ in range(3)] == [True, True, False]
    assert attempts.begin("other")
    attempts.forget("one")
    assert attempts.begin("one")
