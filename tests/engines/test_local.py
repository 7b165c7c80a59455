"""The local engine: snapshots that come and go, several processes at once, disks that fill up."""

import hashlib
import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.engines import Choice, Found, Photo
from hyphash.engines.local import Local, snapshot
from hyphash.errors import CollectionError, ConfigError, StorageError
from hyphash.hamming import twin

ME = "0123456789abcdef"


def photos(count: int, *, start: int = 0, bits: int = 16) -> list[Photo]:
    codes = Codes.from_bits(np.random.default_rng(start).integers(0, 2, (count, bits)))
    return [
        Photo(
            path=f"/{start + i}.jpg",
            content=hashlib.sha256(f"{start + i}".encode()).hexdigest(),
            code=row.tobytes(),
            labels=("even",) if i % 2 == 0 else (),
        )
        for i, row in enumerate(codes.packed)
    ]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Local]:
    engine = Local.create(tmp_path, "local", fingerprint=ME, bits=16)
    yield engine
    engine.close()


def test_captions_of_many_photos_and_of_letters_that_json_escapes(engine: Local) -> None:
    odd = [
        replace(photo, path=f"/\u2028\n\t{photo.path}", labels=("\0", "a\x1fb", "\U0001f415")) for photo in photos(3)
    ]
    ids = engine.upsert([*odd, *photos(1200, start=50)], fingerprint=ME)
    captions = engine.captions(ids)
    assert [captions[id] for id in ids] == [(photo.path, photo.labels) for photo in engine.get(ids)]


@pytest.mark.parametrize("asked", [3, 300])  # a few are looked up, of many it is guessed where they stand
def test_rows_of_ids_are_where_the_ids_are(asked: int) -> None:
    rng = np.random.default_rng(asked)
    ids = np.sort(rng.choice(np.arange(5, 1500), 1000, replace=False))
    visible = rng.random(1000) < 0.7
    part = snapshot.Part(ids, Codes(np.zeros((1000, 1), np.uint8), 8), visible)
    for _ in range(20):
        wanted = np.sort(rng.choice(1600, asked, replace=False))
        naive = [row for row, id in enumerate(ids.tolist()) if id in wanted.tolist() and visible[row]]
        assert part.rows(wanted).tolist() == naive


def ranking(engine: Local) -> list[tuple[int, int]]:
    query = Codes.from_bits(np.zeros((1, 16), bool))
    found = engine.search(query, 10_000, fingerprint=ME)
    return list(zip(found.distances.tolist(), found.ids.tolist(), strict=True))


def reopened(folder: Path) -> list[tuple[int, int]]:
    engine = Local.open(folder, "local")
    try:
        assert engine.verify() == []
        return ranking(engine)
    finally:
        engine.close()


# ── the snapshot is derived ──────────────────────────────────────────────────────────────────────────────


def test_a_snapshot_that_is_missing_or_broken_is_made_again(engine: Local, tmp_path: Path) -> None:
    engine.upsert(photos(50), fingerprint=ME)
    engine.settle()
    expected = ranking(engine)
    file = tmp_path / "codes-1.safetensors"
    whole = file.read_bytes()
    for broken in (None, b"", whole[:-1], whole[:30], whole + b"x", b"\xff" * 200, b"\x08" + whole[1:]):
        file.unlink()
        if broken is not None:
            file.write_bytes(broken)
        assert reopened(tmp_path) == expected
        assert snapshot.load(file) is not None
    assert len(file.read_bytes()) == len(whole)


def test_a_stale_snapshot_is_brought_up_to_date(engine: Local, tmp_path: Path) -> None:
    ids = engine.upsert(photos(50), fingerprint=ME)
    engine.settle()
    old = (tmp_path / "codes-1.safetensors").read_bytes()
    engine.upsert(photos(5, start=100), fingerprint=ME)
    engine.remove(ids[:3])
    engine.upsert([replace(photos(50)[10], code=b"\0\0")], fingerprint=ME)
    assert (tmp_path / "codes-1.safetensors").read_bytes() == old
    expected = ranking(engine)
    assert expected[0] == (0, ids[10])
    assert reopened(tmp_path) == expected
    engine.settle()  # what changed is forgotten, but the new snapshot has it
    (tmp_path / "codes-1.safetensors").write_bytes(old)  # somebody brings the old one back
    assert reopened(tmp_path) == expected


def test_a_snapshot_of_another_past_is_not_mixed_in(engine: Local, tmp_path: Path) -> None:
    """A database restored from a backup goes on from there; commit numbers meet again, stamps do not."""
    engine.upsert(photos(10), fingerprint=ME)
    engine.compact()
    backup = (tmp_path / "collection.sqlite").read_bytes()
    engine.upsert(photos(10, start=50), fingerprint=ME)
    engine.settle()
    later = (tmp_path / "codes-1.safetensors").read_bytes()
    engine.close()
    for file in tmp_path.glob("collection.sqlite*"):
        file.unlink()
    (tmp_path / "collection.sqlite").write_bytes(backup)
    restored = Local.open(tmp_path, "local")
    for start in (200, 300, 400):
        restored.upsert(photos(10, start=start), fingerprint=ME)
    restored.close()
    (tmp_path / "codes-1.safetensors").write_bytes(later)
    assert {id for _, id in reopened(tmp_path)} == set(range(1, 41))


def test_a_reader_elsewhere_follows_the_writer(engine: Local, tmp_path: Path) -> None:
    reader = Local.open(tmp_path, "local")
    try:
        for round in range(6):
            ids = engine.upsert(photos(7, start=100 * round), fingerprint=ME)
            assert ranking(reader) == ranking(engine)
            engine.remove(ids[:2])
            if round == 3:
                engine.settle()  # prunes the changes that the reader has not seen
            assert ranking(reader) == ranking(engine)
            assert reader.count(carrying=["even"]) == engine.count(carrying=["even"]) == 3 * (round + 1)
    finally:
        reader.close()


def test_a_long_lived_reader_maps_a_new_snapshot(
    engine: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyphash.engines.local.SMALL", 100)
    for round in range(5):
        engine.upsert(photos(9, start=100 * round), fingerprint=ME)
        assert len(ranking(engine)) == 9 * (round + 1)
        assert engine._view is not None
        assert len(engine._view.extra.ids) <= 12
    assert isinstance(engine._view.base.ids.base, np.memmap)


def test_memory_and_disk_of_a_snapshot(engine: Local, tmp_path: Path) -> None:
    engine.upsert(photos(1000), fingerprint=ME)
    engine.settle()
    assert (tmp_path / "codes-1.safetensors").stat().st_size < 1000 * (8 + 2) + 500


def test_only_local_is_local(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no address"):
        Local.create(tmp_path, "local://somewhere", fingerprint=ME, bits=16)


# ── the index of a large snapshot ────────────────────────────────────────────────────────────────────────


@pytest.fixture
def indexed(engine: Local, monkeypatch: pytest.MonkeyPatch) -> Local:
    """An engine for which 40 photos are many, and that always walks the index where it has one."""
    if hamming.backend().name == "numpy":
        pytest.skip("numpy scans, index or not")
    monkeypatch.setattr(snapshot, "INDEXED", 40)
    monkeypatch.setattr(snapshot, "SHARE", 0)
    monkeypatch.setattr("hyphash.hamming.native.NEVER_SCAN", True)
    engine.upsert(photos(60), fingerprint=ME)
    engine.settle()
    return engine


def index_of(engine: Local) -> hamming.Index | None:
    assert engine._view is not None
    return engine._view.base.index


def scanned(engine: Local, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Found:
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "SHARE", 10**9)
        return engine.search(Codes.from_bits(np.zeros((1, 16), bool)), 7, fingerprint=ME, **options)


def test_the_index_finds_what_the_scan_finds(indexed: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = Codes.from_bits(np.zeros((1, 16), bool))
    choices = [
        Choice(),
        Choice(carrying=("even",)),
        Choice(excluded=(1, 5, 9)),
        Choice(radius=7),
        Choice(tagged=True, excluded=(3,), radius=8),
    ]
    for round in range(8):
        assert index_of(indexed) is not None
        for choice in choices:
            for offset in (0, 5, 55, 1000):
                found = indexed.search(zeros, 7, fingerprint=ME, offset=offset, choice=choice)
                expected = scanned(indexed, monkeypatch, offset=offset, choice=choice)
                assert found.ids.tolist() == expected.ids.tolist()
                assert found.distances.tolist() == expected.distances.tolist()
                assert found.total == expected.total
        everything = indexed.page(0, 1000)
        differing = [(np.bitwise_count(np.frombuffer(photo.code, np.uint8)).sum(), photo.id) for photo in everything]
        assert ranking(indexed) == sorted(differing)
        if round % 2:
            indexed.upsert(photos(9, start=100 * round), fingerprint=ME)  # at the end
        else:
            indexed.remove([photo.id for photo in everything[round :: 9 + round]])
        if round % 3 == 2:
            indexed.settle()


def test_an_index_that_is_missing_broken_or_of_another_is_made_again(indexed: Local, tmp_path: Path) -> None:
    expected = ranking(indexed)
    file = tmp_path / "codes-1.index"
    whole = file.read_bytes()
    other = hamming.Index.build(Codes.from_bits(np.ones((60, 16), bool)))
    other.save(tmp_path / "other")
    changed = bytearray(whole)
    changed[-9] ^= 1
    for broken in (None, b"", whole[:-1], whole + b"x", bytes(changed), (tmp_path / "other").read_bytes()):
        file.unlink()
        if broken is not None:
            file.write_bytes(broken)
        reader = Local.open(tmp_path, "local")
        try:
            assert ranking(reader) == expected
            assert index_of(reader) is None  # scanned meanwhile
            reader.settle()
            assert index_of(reader) is not None
            assert ranking(reader) == expected
        finally:
            reader.close()
    assert file.read_bytes() == whole


def test_photos_that_come_at_the_end_are_appended_to_the_index(
    indexed: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended = []
    append = hamming.Index.append
    monkeypatch.setattr(hamming.Index, "append", lambda self, codes: appended.append(len(codes)) or append(self, codes))
    before = index_of(indexed)
    assert before is not None
    ids = indexed.upsert(photos(20, start=100), fingerprint=ME)
    indexed.settle()
    assert (appended, len(before)) == ([20], 60)  # whoever searches the old one goes on
    indexed.remove(ids[:2])
    indexed.settle()
    assert appended == [20, 78]
    after = index_of(indexed)
    assert after is not None
    assert after.codes() == indexed._view.merged().codes
    assert reopened(tmp_path) == ranking(indexed)


def test_an_index_goes_when_it_does_not_pay(indexed: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ranking(indexed)
    with monkeypatch.context() as patch:
        patch.setattr("hyphash.hamming.dispatch.current", twin)
        reader = Local.open(tmp_path, "local")
        assert ranking(reader) == expected
        assert index_of(reader) is None
        reader.close()
    (tmp_path / "codes-0.index").touch()  # of a former hasher
    indexed.compact()
    assert sorted(path.name for path in tmp_path.glob("codes-*")) == ["codes-1.index", "codes-1.safetensors"]
    indexed.remove(range(1, 31))
    indexed.settle()
    assert [path.name for path in tmp_path.glob("codes-*")] == ["codes-1.safetensors"]
    assert len(ranking(indexed)) == 30


def test_a_snapshot_is_written_where_its_index_cannot_be(
    engine: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: hamming.Index, path: Path) -> None:
        raise StorageError(f"{path}: the disk is full")

    monkeypatch.setattr(snapshot, "INDEXED", 40)
    monkeypatch.setattr(hamming.Index, "save", full)
    engine.upsert(photos(60), fingerprint=ME)
    engine.settle()
    assert [path.name for path in tmp_path.glob("codes-*")] == ["codes-1.safetensors"]
    assert len(reopened(tmp_path)) == 60


# ── several at once ──────────────────────────────────────────────────────────────────────────────────────

WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_local import ME, photos
from hyphash.engines.local import Local
engine = Local.open(Path({folder!r}), "local")
for round in range(15):
    engine.upsert(photos(4, start=int(sys.argv[1]) + 100 * round), fingerprint=ME)
    if round % 5 == 4:
        engine.settle()
engine.close()
"""


def test_writers_in_several_processes_take_turns(engine: Local, tmp_path: Path) -> None:
    program = WRITER.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    writers = [subprocess.Popen([sys.executable, "-c", program, str(10_000 * n)]) for n in (1, 2, 3)]
    seen = 0
    while any(writer.poll() is None for writer in writers):
        now = len(ranking(engine))  # a reader meanwhile: whole batches only, never fewer than before
        assert now % 4 == 0
        assert now >= seen
        seen = now
        time.sleep(0.02)
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(ranking(engine)) == engine.count() == 180
    assert {photo.path for photo in engine.page(0, 999)} == {
        photo.path for n in (1, 2, 3) for round in range(15) for photo in photos(4, start=10_000 * n + 100 * round)
    }
    assert engine.verify() == []


def test_a_writer_that_waits_in_vain_is_told_who_writes(engine: Local, tmp_path: Path) -> None:
    other = Local.open(tmp_path, "local", wait=0.2)
    try:
        with engine.database.writing("a long story"):
            with pytest.raises(CollectionError, match=r"process \d+ \(a long story, since .*waited 0.2 s; try again"):
                other.upsert(photos(1), fingerprint=ME)
            assert ranking(other) == []  # readers are not in the way
        (id,) = other.upsert(photos(1), fingerprint=ME)
        assert engine.get([id])
        assert not list(tmp_path.glob("*-writer"))
    finally:
        other.close()


def test_a_writer_waits_for_another(engine: Local, tmp_path: Path) -> None:
    other = Local.open(tmp_path, "local", wait=20)
    started = threading.Event()

    def hold() -> None:
        with engine.database.writing("something short"):
            started.set()
            time.sleep(0.3)

    thread = threading.Thread(target=hold)
    thread.start()
    started.wait()
    assert other.upsert(photos(1), fingerprint=ME) == [1]
    thread.join()
    other.close()


def test_many_threads_read_while_one_writes(engine: Local) -> None:
    stop = threading.Event()
    errors: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                found = engine.search(Codes.from_bits(np.zeros((1, 16), bool)), 1000, fingerprint=ME)
                assert found.total % 3 == 0
                assert len(engine.page(0, 1000)) % 3 == 0
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for round in range(25):
        engine.upsert(photos(3, start=10 * round), fingerprint=ME)
        if round % 10 == 5:
            engine.settle()
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert engine.count() == 75


def test_an_edit_that_fails_changes_nothing(engine: Local) -> None:
    (id,) = engine.upsert(photos(1), fingerprint=ME)
    before = engine.state().commit

    def edit(photo: Photo) -> Photo:
        raise RuntimeError("changed my mind")

    with pytest.raises(RuntimeError):
        engine.relabel(id, edit)
    assert engine.state().commit == before
    assert engine.get([id])[0].labels == ("even",)


# ── full disks ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_full_database_loses_nothing(engine: Local, tmp_path: Path) -> None:
    engine.upsert(photos(20), fingerprint=ME)
    before = ranking(engine)
    pages = 3 + sqlite_pages(tmp_path / "collection.sqlite")
    with engine.database.alone("a test") as connection:
        connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StorageError, match=r"the disk is full; make room and run the same command again"):
        endless(engine)
    engine.close()
    again = Local.open(tmp_path, "local")
    assert set(before) <= set(ranking(again))
    assert again.count() % 500 == 20
    assert again.verify() == []
    assert len(again.upsert(photos(500, start=100_000), fingerprint=ME)) == 500
    again.close()


def endless(engine: Local) -> None:
    for start in range(100, 100_000, 500):
        engine.upsert(photos(500, start=start), fingerprint=ME)


def sqlite_pages(path: Path) -> int:
    connection = sqlite3.connect(path)
    pages: int = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.close()
    return pages


LIMITED = """
import json, resource, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_local import ME, photos, ranking
from hyphash.engines.local import Local
from hyphash.errors import StorageError
engine = Local.open(Path({folder!r}), "local")
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
safe = []
try:
    for start in range(1000, 100_000, 100):
        safe += engine.upsert(photos(100, start=start), fingerprint=ME)
        engine.settle()
except StorageError as error:
    print(json.dumps([safe, str(error), len(ranking(engine))]))
"""


def test_files_that_may_not_grow_lose_nothing(engine: Local, tmp_path: Path) -> None:
    """The limit of the operating system on the size of files: writes fail in the middle, wherever that is."""
    engine.upsert(photos(20), fingerprint=ME)
    program = LIMITED.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    safe, words, found = json.loads(done.stdout)
    assert "make room" in words
    assert len(safe) >= 100
    assert found == len(safe) + 20
    assert {id for _, id in reopened(tmp_path)} == {*range(1, 21), *safe}


def test_a_snapshot_that_cannot_be_written_is_done_without(
    engine: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, view: object) -> None:
        raise StorageError(f"{path}: the disk is full")

    monkeypatch.setattr(snapshot, "save", full)
    engine.upsert(photos(20), fingerprint=ME)
    assert len(ranking(engine)) == 20
    engine.settle()
    assert len(reopened(tmp_path)) == 20
    assert not list(tmp_path.glob("codes-*"))
