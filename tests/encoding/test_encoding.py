"""`hyphash.encoding`: photos in, shards out, each exactly once."""

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import monotonic, sleep

import numpy as np
import psutil
import pytest

from hyphash.codes import Codes
from hyphash.encoding import encode, summary_of
from hyphash.errors import ConfigError, HyphashError, RunError, WeightsError
from hyphash.hasher import Hasher


def all_codes(rows, bits=20):
    return Codes(np.stack([np.frombuffer(row["code"], np.uint8) for row in rows]), bits)


@pytest.mark.parametrize(("workers", "threads"), [(1, 1), (2, 1), (1, 4)])  # with 4, processes decode
def test_codes_are_those_of_the_hasher(
    hasher_run, folder, tmp_path, rows_in, workers, threads, monkeypatch, worker_processes
):
    monkeypatch.setenv("HYPHASH_THREADS", str(threads))
    steps = list(encode(hasher_run, folder, into=tmp_path / "codes", per_shard=3, workers=workers))
    rows = rows_in(tmp_path / "codes")
    paths = sorted(folder.rglob("*.png"))
    assert [row["path"] for row in rows] == [str(path) for path in paths]
    assert all_codes(rows) == Hasher.load(hasher_run).encode(paths)
    assert [row["content"].hex() for row in rows] == [hashlib.sha256(p.read_bytes()).hexdigest() for p in paths]
    assert {(row["width"], row["height"], row["labels"]) for row in rows} == {(48, 32, None)}
    assert [row["size"] for row in rows] == [path.stat().st_size for path in paths]
    assert sorted(step.shard for step in steps) == [f"shard-{i:06}" for i in range(7)]
    assert [(step.done, step.total) for step in steps] == [(i, 7) for i in range(1, 8)]
    assert not worker_processes()


def test_nonsense_is_refused(hasher_run, folder, tmp_path):
    for wrong in ({"address": "nowhere"}, {"workers": 0}, {"per_shard": 0}):
        with pytest.raises(ConfigError):
            list(encode(hasher_run, folder, into=tmp_path / "codes", **wrong))
    with pytest.raises(HyphashError, match="no trained hasher"):
        list(encode(folder, folder, into=tmp_path / "codes"))
    assert not (tmp_path / "codes").exists()


@pytest.mark.slow
def test_a_killed_worker_costs_nothing(
    hasher_run, folder, tmp_path, picture, rows_in, kill_the_reader, worker_processes
):
    """The worker is killed in the middle of a shard: while it reads a photo that does not come."""
    stuck = folder / "a" / "04.png"
    with kill_the_reader(stuck, picture(4)):
        steps = list(encode(hasher_run, folder, into=tmp_path / "codes", per_shard=5, workers=2))
    assert sorted(step.shard for step in steps) == [f"shard-{i:06}" for i in range(4)]
    rows = rows_in(tmp_path / "codes")
    assert [row["path"] for row in rows] == [str(path) for path in sorted(folder.rglob("*.png"))]
    assert not worker_processes()


def test_a_shard_that_ends_every_worker_is_named(hasher_run, folder, tmp_path, monkeypatch, worker_processes):
    monkeypatch.setattr("hyphash.encoding.ATTEMPTS", 2)
    steps = encode(hasher_run, folder, into=tmp_path / "codes", per_shard=10, workers=2)

    def kill_all() -> None:
        for child in worker_processes():
            with suppress(psutil.NoSuchProcess):
                child.kill()

    stop = monotonic() + 30

    def keep_killing() -> None:
        while monotonic() < stop and not over:
            kill_all()
            sleep(0.05)

    over: list[bool] = []
    killer = Thread(target=keep_killing)
    killer.start()
    try:
        with pytest.raises(RunError, match="workers"):
            list(steps)
    finally:
        over.append(True)
        killer.join()
    assert not worker_processes()
    list(encode(hasher_run, folder, into=tmp_path / "codes", per_shard=10, workers=1))
    assert summary_of(tmp_path / "codes").photos == 20


def test_a_failure_of_a_worker_reaches_the_caller(broken_run, folder, tmp_path, worker_processes):
    with pytest.raises(WeightsError, match=r"network\.onnx"):
        list(encode(broken_run, folder, into=tmp_path / "codes", per_shard=5, workers=2))
    assert not worker_processes()


@pytest.mark.slow
def test_workers_end_with_a_driver_that_is_killed(hasher_run, folder, tmp_path, driver, gate_of, holder_of):
    """… and a second driver finishes what the first one began."""
    stuck = gate_of(folder / "b" / "19.png")
    codes = tmp_path / "codes"
    process = driver("encode", hasher_run, folder, "--into", codes, "--per-shard", 5, "--workers", 2, "--device", "cpu")
    worker, pipe = holder_of(stuck)
    _wait_for(lambda: len(list(codes.glob("shard-*.parquet"))) == 3)
    process.kill()
    process.wait()
    _wait_for(lambda: not Path(f"/proc/{worker}").exists())
    os.close(pipe)
    stuck.unlink()
    assert [step.done for step in encode(hasher_run, folder, into=codes, per_shard=5, workers=1)] == [4]
    assert summary_of(codes).photos == 20


@pytest.mark.slow
def test_ctrl_c_leaves_what_is_done_and_the_rest_for_the_next_time(hasher_run, folder, tmp_path, gate_of, holder_of):
    stuck, codes, script = gate_of(folder / "b" / "19.png"), tmp_path / "codes", tmp_path / "driver.py"
    arguments = ["hyphash", "encode", hasher_run, folder, "--into", codes, "--per-shard", 5, "--workers", 2]
    arguments += ["--device", "cpu"]
    script.write_text(
        "import signal, sys\n"
        "from hyphash.cli import main\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)  # where a shell had it ignored\n"
        f"    sys.argv = {[str(argument) for argument in arguments]}\n"
        "    main()\n"
    )
    process = subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE)
    try:
        worker, pipe = holder_of(stuck)
        _wait_for(lambda: len(list(codes.glob("shard-*.parquet"))) == 3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    os.close(pipe)
    assert process.returncode == 130
    assert b"give the same command again" in errors
    assert b"Traceback" not in errors
    assert not Path(f"/proc/{worker}").exists()
    stuck.unlink()
    assert [step.done for step in encode(hasher_run, folder, into=codes, per_shard=5, workers=1)] == [4]


def _wait_for(truth) -> None:
    stop = monotonic() + 30
    while not truth():
        assert monotonic() < stop, "waited in vain"
        sleep(0.02)


def test_steps_are_an_iterator_that_does_nothing_before_it_is_asked(hasher_run, folder, tmp_path):
    steps = encode(hasher_run, folder, into=tmp_path / "codes")
    assert isinstance(steps, Iterator)
    assert not (tmp_path / "codes").exists()
