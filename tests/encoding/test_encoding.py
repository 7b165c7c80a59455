"""`hyphash.encoding`: photos in, shards out, each exactly once."""

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from time import monotonic, sleep

import numpy as np
import psutil
import pytest

from hyphash.codes import Codes
from hyphash.collection import Collection
from hyphash.encoding import Manifest, begin, encode, keep, load, problems_in, remaining, summary_of
from hyphash.encoding.partitions import cut
from hyphash.encoding.shards import Job, Shard
from hyphash.errors import (
    CodesError,
    ConfigError,
    HyphashError,
    OtherHasherError,
    RunError,
    StorageError,
    WeightsError,
)
from hyphash.hasher import Hasher, read_spec
from hyphash.photos import Problem


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


def test_what_is_done_is_not_done_again(hasher_run, folder, tmp_path, rows_in):
    steps = encode(hasher_run, folder, into=tmp_path / "codes", per_shard=5, workers=1)
    first = next(steps)
    steps.close()  # as Ctrl-C would
    with pytest.raises(CodesError, match="1 of 4 shards are there"):
        summary_of(tmp_path / "codes")
    kept = (tmp_path / "codes" / f"{first.shard}.parquet").stat()
    rest = list(encode(hasher_run, folder, into=tmp_path / "codes", per_shard=5, workers=1))
    assert [step.done for step in rest] == [2, 3, 4]
    assert (tmp_path / "codes" / f"{first.shard}.parquet").stat().st_mtime_ns == kept.st_mtime_ns
    assert not list(encode(hasher_run, folder, into=tmp_path / "codes", per_shard=5))
    assert len(rows_in(tmp_path / "codes")) == summary_of(tmp_path / "codes").photos == 20


def test_an_unreadable_photo_is_recorded_and_stops_nothing(hasher_run, folder, tmp_path, rows_in):
    (folder / "a" / "04.png").write_bytes(b"no photo at all")
    (folder / "b" / "11.png").write_bytes(b"")
    steps = list(encode(hasher_run, folder, into=tmp_path / "codes", per_shard=10, workers=1))
    assert [(step.photos, len(step.problems)) for step in steps] == [(9, 1), (9, 1)]
    summary = summary_of(tmp_path / "codes")
    assert (summary.photos, summary.problems) == (18, 2)
    assert summary.shards == {"shard-000000": 9, "shard-000001": 9}
    assert [Path(problem.name).name for problem in problems_in(tmp_path / "codes")] == ["04.png", "11.png"]
    assert len(rows_in(tmp_path / "codes")) == 18


def test_folders_of_others_are_refused(hasher_run, other_run, folder, tmp_path):
    list(encode(hasher_run, folder, into=tmp_path / "codes", workers=1))
    with pytest.raises(OtherHasherError, match="choose another folder"):
        list(encode(other_run, folder, into=tmp_path / "codes", workers=1))
    with pytest.raises(CodesError, match="other photos or other options"):
        list(encode(hasher_run, folder / "a", into=tmp_path / "codes", workers=1))
    with pytest.raises(StorageError, match="choose a new folder"):
        list(encode(hasher_run, folder, into=folder, workers=1))


def test_a_shard_tells_its_problems_before_it_is_there(hasher_run, folder, tmp_path, monkeypatch):
    """Cut off between the two, the shard is made again; the other way round its problems would be lost."""
    partitions = cut(str(folder), per_shard=10)
    manifest = Manifest.of(partitions, str(folder), read_spec(hasher_run), Job(hasher_run))
    assert (manifest.photos, manifest.shards) == (20, 2)
    codes = tmp_path / "codes"
    begin(codes, manifest)
    assert [task.name for task in remaining(codes, partitions)] == ["shard-000000", "shard-000001"]
    written = []
    monkeypatch.setattr("hyphash.encoding.write_atomically", lambda path, _: written.append(path.name))
    keep(codes, Shard("shard-000001", b"codes", 9, (Problem("04.png", "torn"),), "here 1"))
    assert written == ["shard-000001.jsonl", "shard-000001.parquet"]


def test_damage_is_told_with_the_way_out(hasher_run, folder, tmp_path):
    codes = tmp_path / "codes"
    list(encode(hasher_run, folder, into=codes, workers=1, per_shard=10))
    (codes / "summary.json").write_text("{")
    with pytest.raises(CodesError, match=r"summary\.json: damaged .*another folder"):
        summary_of(codes)
    (codes / "summary.json").write_text('{"format": 9}')
    with pytest.raises(CodesError, match="written by another version"):
        summary_of(codes)
    (codes / "shard-000001.parquet").write_bytes(b"no Parquet")
    with pytest.raises(CodesError, match=r"shard-000001\.parquet: damaged .*same command again"):
        list(encode(hasher_run, folder, into=codes, workers=1, per_shard=10))


def test_a_collection_loads_shards_as_if_it_had_indexed_the_photos(hasher_run, folder, tmp_path):
    list(encode(hasher_run, folder, into=tmp_path / "codes", workers=1, per_shard=8))
    with (
        Collection.create(tmp_path / "loaded", hasher_run) as loaded,
        Collection.create(tmp_path / "indexed", hasher_run) as indexed,
    ):
        seen = []
        result = load(tmp_path / "codes", loaded, progress=lambda done, total: seen.append((done, total)))
        assert (result.photos, result.added) == (20, 20)
        assert seen == [(8, 20), (16, 20), (20, 20)]
        again = load(tmp_path / "codes", loaded)
        assert (again.photos, again.added) == (20, 0)
        indexed.add(folder)
        a, b = (
            [(p.id, p.path, replace(p.facts, modified=0), p.code, p.scores, p.labels) for p in c.photos()]
            for c in (loaded, indexed)
        )
        assert a == b
        assert {len(photo.scores) for photo in loaded.photos()} == {2}
        query = folder / "a" / "03.png"
        assert loaded.search(query) == indexed.search(query)
        assert loaded.thumbnail(3)


def test_thumbnails_travel_where_they_are_asked_for(hasher_run, folder, tmp_path):
    list(encode(hasher_run, folder, into=tmp_path / "codes", workers=1, thumbnails=True))
    with Collection.create(tmp_path / "collection", hasher_run) as collection:
        load(tmp_path / "codes", collection)
        for path in folder.rglob("*.png"):
            path.unlink()
        assert collection.thumbnail(3).startswith(b"\xff\xd8")


def test_codes_of_others_are_not_loaded(hasher_run, other_run, folder, tmp_path):
    list(encode(hasher_run, folder, into=tmp_path / "codes", workers=1))
    with Collection.create(tmp_path / "collection", other_run) as collection:
        with pytest.raises(OtherHasherError, match="encode the photos"):
            load(tmp_path / "codes", collection)
        with pytest.raises(CodesError, match=r"manifest\.json"):
            load(folder, collection)


def test_a_shard_that_is_gone_or_damaged_is_named(hasher_run, folder, tmp_path):
    list(encode(hasher_run, folder, into=tmp_path / "codes", workers=1, per_shard=10))
    shard = tmp_path / "codes" / "shard-000001.parquet"
    with Collection.create(tmp_path / "collection", hasher_run) as collection:
        whole = shard.read_bytes()
        shard.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(CodesError, match=r"shard-000001\.parquet: damaged or missing"):
            load(tmp_path / "codes", collection)
        shard.unlink()
        with pytest.raises(CodesError, match=r"shard-000001\.parquet: missing; finish"):
            load(tmp_path / "codes", collection)
        shard.write_bytes(whole)
        assert load(tmp_path / "codes", collection).photos == 20
        assert len(collection) == 20
