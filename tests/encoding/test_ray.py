"""Encoding on a real Ray cluster of two nodes on this machine."""

import os
import warnings
from pathlib import Path
from time import monotonic, sleep

import pytest

from hyphash.encoding import encode, summary_of


@pytest.fixture(scope="module")
def cluster():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks of Ray's about its own future
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 << 20}
        cluster = Cluster(initialize_head=True, head_node_args=node)
        cluster.add_node(**node)
        yield cluster
        cluster.shutdown()


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


def test_a_killed_driver_costs_nothing(cluster, hasher_run, folder, tmp_path, picture, rows_in, driver, holder_of):
    stuck, codes = folder / "b" / "19.png", tmp_path / "codes"
    stuck.unlink()
    os.mkfifo(stuck)
    process = driver("encode", hasher_run, folder, "--into", codes, "--per-shard", 5, "--address", cluster.address)
    worker, pipe = holder_of(stuck)
    _wait_for(lambda: len(list(codes.glob("shard-*.parquet"))) == 3)
    process.kill()
    process.wait()
    _wait_for(lambda: not Path(f"/proc/{worker}").exists())  # Ray ends the actors of a driver that is gone
    os.close(pipe)
    stuck.unlink()
    stuck.write_bytes(picture(19))
    kept = {path: path.stat().st_mtime_ns for path in codes.glob("shard-*.parquet")}
    steps = list(encode(hasher_run, folder, into=codes, per_shard=5, address=cluster.address, workers=1))
    assert [(step.shard, step.done) for step in steps] == [("shard-000003", 4)]
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    assert [row["path"] for row in rows_in(codes)] == [str(path) for path in sorted(folder.rglob("*.png"))]
    assert summary_of(codes).photos == 20


def _wait_for(truth) -> None:
    stop = monotonic() + 30
    while not truth():
        assert monotonic() < stop, "waited in vain"
        sleep(0.05)
