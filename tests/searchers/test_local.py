"""The local searcher: snapshots that come and go, readers that follow, threads, disks that fill up."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drawing import ME, photos_with, random_codes

from hyphash.codes import Codes
from hyphash.collection.query import prefix_tables
from hyphash.errors import ConfigError, StorageError
from hyphash.searchers import Filter, Query
from hyphash.searchers.local import Local, snapshot
from hyphash.stores import Photo
from hyphash.stores.sqlite import SqliteStore

BITS = 16
ZEROS = Codes.from_bits(np.zeros((1, BITS), bool))


def photos(count: int, *, start: int = 0) -> list[Photo]:
    codes = random_codes(count, BITS, seed=start)
    return photos_with(codes, labels=lambda i: ("even",) if i % 2 == 0 else (), start=start)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore.create(tmp_path, "sqlite", fingerprint=ME, bits=BITS)
    yield store
    store.close()


@pytest.fixture
def searcher(store: SqliteStore, tmp_path: Path) -> Local:
    return Local.create(tmp_path, "local", store)


def ranking(searcher: Local) -> list[tuple[int, int]]:
    found = searcher.search(Query(ZEROS, 10_000, fingerprint=ME))
    return list(zip(found.distances.tolist(), found.ids.tolist(), strict=True))


def reopened(folder: Path) -> list[tuple[int, int]]:
    store = SqliteStore.open(folder, "sqlite")
    searcher = Local.open(folder, "local", store)
    try:
        assert store.verify() == searcher.verify() == []
        return ranking(searcher)
    finally:
        store.close()


@pytest.mark.parametrize("bits", [1, 7, 8, 11, 15, 16])
def test_the_first_bits_are_looked_at_first(searcher: Local, store: SqliteStore, bits: int) -> None:
    store.upsert(photos(300), fingerprint=ME)
    searcher.tidy()
    store.upsert(photos(40, start=300), fingerprint=ME)
    store.remove([5, 320])
    code = random_codes(1, BITS, seed=77)
    query = Query(code, 12, fingerprint=ME, offset=3, tables=prefix_tables(code, bits), only=Filter(excluded=(9,)))
    for only in (query.only, Filter(carrying=("even",)), Filter(radius=7)):
        found, naive = (searcher.search(replace(query, only=only, bits=given)) for given in (bits, None))
        assert (found.total, found.ids.tolist()) == (naive.total, naive.ids.tolist())
        assert found.distances.tolist() == naive.distances.tolist()


# ── the snapshot is derived ──────────────────────────────────────────────────────────────────────────────


def test_a_snapshot_that_is_missing_or_broken_is_made_again(
    searcher: Local, store: SqliteStore, tmp_path: Path
) -> None:
    store.upsert(photos(50), fingerprint=ME)
    searcher.tidy()
    expected = ranking(searcher)
    file = tmp_path / "codes-1.safetensors"
    whole = file.read_bytes()
    for broken in (None, b"", whole[:-1], whole[:30], whole + b"x", b"\xff" * 200, b"\x08" + whole[1:]):
        file.unlink()
        if broken is not None:
            file.write_bytes(broken)
        assert reopened(tmp_path) == expected
        assert snapshot.load(file) is not None
    assert len(file.read_bytes()) == len(whole)


def test_a_stale_snapshot_is_brought_up_to_date(
    searcher: Local, store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = store.upsert(photos(50), fingerprint=ME)
    searcher.tidy()
    old = (tmp_path / "codes-1.safetensors").read_bytes()
    store.upsert(photos(5, start=100), fingerprint=ME)
    store.remove(ids[:3])
    store.upsert([replace(photos(50)[10], code=b"\0\0")], fingerprint=ME)
    assert (tmp_path / "codes-1.safetensors").read_bytes() == old
    expected = ranking(searcher)
    assert expected[0] == (0, ids[10])
    assert reopened(tmp_path) == expected
    searcher.tidy()
    monkeypatch.setattr("hyphash.stores.KEPT_CHANGES", 1)
    store.tidy()  # what changed is forgotten, but the new snapshot has it
    assert store.state().pruned > 0
    (tmp_path / "codes-1.safetensors").write_bytes(old)  # somebody brings the old one back
    assert reopened(tmp_path) == expected


def test_a_snapshot_of_another_past_is_not_mixed_in(searcher: Local, store: SqliteStore, tmp_path: Path) -> None:
    """A database restored from a backup goes on from there; commit numbers meet again, stamps do not."""
    store.upsert(photos(10), fingerprint=ME)
    store.compact()
    backup = (tmp_path / "collection.sqlite").read_bytes()
    store.upsert(photos(10, start=50), fingerprint=ME)
    searcher.tidy()
    later = (tmp_path / "codes-1.safetensors").read_bytes()
    store.close()
    for file in tmp_path.glob("collection.sqlite*"):
        file.unlink()
    (tmp_path / "collection.sqlite").write_bytes(backup)
    restored = SqliteStore.open(tmp_path, "sqlite")
    for start in (200, 300, 400):
        restored.upsert(photos(10, start=start), fingerprint=ME)
    restored.close()
    (tmp_path / "codes-1.safetensors").write_bytes(later)
    assert {id for _, id in reopened(tmp_path)} == set(range(1, 41))


def test_a_store_that_goes_back_in_time_under_its_eyes(searcher: Local, store: SqliteStore, tmp_path: Path) -> None:
    """Restored from a backup while the searcher goes on: what it knows is of commits that never were."""
    (tmp_path / "restored").mkdir()
    restored = SqliteStore.create(tmp_path / "restored", "sqlite", fingerprint=ME, bits=BITS)
    restored.upsert(photos(7, start=90), fingerprint=ME)
    for start in (0, 50):
        store.upsert(photos(10, start=start), fingerprint=ME)
    assert len(ranking(searcher)) == 20
    searcher.store = restored
    assert len(ranking(searcher)) == 7
    restored.close()


def test_a_reader_elsewhere_follows_the_writer(searcher: Local, store: SqliteStore, tmp_path: Path) -> None:
    other = SqliteStore.open(tmp_path, "sqlite")
    reader = Local.open(tmp_path, "local", other)
    for round in range(6):
        ids = store.upsert(photos(7, start=100 * round), fingerprint=ME)
        assert ranking(reader) == ranking(searcher)
        store.remove(ids[:2])
        if round == 3:
            searcher.tidy()
        assert ranking(reader) == ranking(searcher)
        only = Filter(carrying=("even",))
        assert reader.search(Query(ZEROS, 99, only=only, fingerprint=ME)).total == 3 * (round + 1)
        assert other.count(carrying=["even"]) == store.count(carrying=["even"]) == 3 * (round + 1)
    other.close()


def test_a_long_lived_reader_maps_a_new_snapshot(
    searcher: Local, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyphash.searchers.local.SMALL", 100)
    for round in range(5):
        store.upsert(photos(9, start=100 * round), fingerprint=ME)
        assert len(ranking(searcher)) == 9 * (round + 1)
        assert searcher._view is not None
        assert len(searcher._view.extra.ids) <= 12
    assert isinstance(searcher._view.base.ids.base.base, np.memmap)


def test_memory_and_disk_of_a_snapshot(searcher: Local, store: SqliteStore, tmp_path: Path) -> None:
    store.upsert(photos(1000), fingerprint=ME)
    searcher.tidy()
    assert (tmp_path / "codes-1.safetensors").stat().st_size < 1000 * (8 + 2 + 28) + 1000


def test_only_local_is_local(store: SqliteStore, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no address"):
        Local.create(tmp_path, "local://somewhere", store)


def test_verify_tells_a_snapshot_that_holds_something_else(searcher: Local, store: SqliteStore, tmp_path: Path) -> None:
    store.upsert(photos(20), fingerprint=ME)
    searcher.tidy()
    file = tmp_path / "codes-1.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1  # a bit of a code or of an id
    file.write_bytes(bytes(data))
    again = Local.open(tmp_path, "local", store)
    (found,) = again.verify()
    assert "not what the store holds; build it anew with `hyphash collection rebuild`" in found
    again.rebuild()
    assert again.verify() == []
    assert ranking(again) == ranking(Local.open(tmp_path, "local", store))


# ── several at once, and full disks ──────────────────────────────────────────────────────────────────────


def test_many_threads_read_while_one_writes(searcher: Local, store: SqliteStore) -> None:
    stop = threading.Event()
    errors: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                assert searcher.search(Query(ZEROS, 1000, fingerprint=ME)).total % 3 == 0
                assert searcher.search(Query(ZEROS, 1000, only=Filter(tagged=True), fingerprint=ME)).total % 2 == 0
                assert len(store.page(0, 1000)) % 3 == 0
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for round in range(25):
        store.upsert(photos(3, start=10 * round), fingerprint=ME)
        if round % 10 == 5:
            searcher.tidy()
            store.tidy()
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(ranking(searcher)) == 75


def test_a_snapshot_that_cannot_be_written_is_done_without(
    searcher: Local, store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, view: object) -> None:
        raise StorageError(f"{path}: the disk is full")

    monkeypatch.setattr(snapshot, "save", full)
    store.upsert(photos(20), fingerprint=ME)
    assert len(ranking(searcher)) == 20
    searcher.tidy()
    assert len(reopened(tmp_path)) == 20
    assert not list(tmp_path.glob("codes-*"))


def test_a_bit_that_flips_while_it_is_searched_is_found_by_a_check(
    searcher: Local, store: SqliteStore, tmp_path: Path
) -> None:
    store.upsert(photos(30), fingerprint=ME)
    searcher.tidy()
    reader = Local(tmp_path, store)
    truth = ranking(reader)
    with (tmp_path / "codes-1.safetensors").open("r+b") as file:  # the very file that is mapped
        data = file.read()
        at = data.index(random_codes(30, BITS, seed=0).packed.tobytes())
        file.seek(at)
        file.write(bytes(byte ^ 255 for byte in data[at : at + 20]))
    assert ranking(reader) != truth  # nobody has looked
    reader.check()
    assert ranking(reader) == truth
    reader.check()
    assert ranking(reader) == truth
    assert Local(tmp_path, store).verify() == []


@pytest.mark.parametrize("writable", [True, False])
def test_a_flipped_bit_gives_no_wrong_answer(
    searcher: Local, store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writable: bool
) -> None:
    store.upsert(photos(30), fingerprint=ME)
    truth = ranking(searcher)
    searcher.tidy()
    file = tmp_path / "codes-1.safetensors"
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.unlink()
    file.write_bytes(damaged)
    (told,) = Local(tmp_path, store).verify()
    assert "build it anew with `hyphash collection rebuild`" in told
    if not writable:
        monkeypatch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(OSError))
        monkeypatch.setattr(snapshot, "save", lambda *_: (_ for _ in ()).throw(StorageError("full")))
    again = Local(tmp_path, store)
    assert [ranking(again) for _ in range(2)] == [truth, truth]
    monkeypatch.undo()
    if writable:
        assert Local(tmp_path, store).verify() == []
        assert file.read_bytes() != damaged
