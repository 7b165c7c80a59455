"""Snapshots of codes: mapped files, and the index that holds the codes of a large one."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawing import ME, photos_with, random_codes

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.errors import StorageError
from hyphash.searchers import Filter, Found, Query
from hyphash.searchers.local import Local, snapshot, view
from hyphash.searchers.local.view import Block, View
from hyphash.stores import Photo, Position
from hyphash.stores.sqlite import SqliteStore

BITS = 16
ZEROS = Codes.from_bits(np.zeros((1, BITS), bool))
HERE = Position(generation=1, commit=7, stamp="stamp")


def drawn(count: int, *, seed: int = 0, first: int = 1) -> Block:
    """Codes with every other id."""
    return Block(np.arange(first, first + 2 * count, 2), random_codes(count, BITS, seed=seed))


def nothing() -> Block:
    return Block(np.empty(0, np.int64), Codes.empty(BITS))


# ── blocks and views ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("asked", [3, 300])  # a few are looked up, of many it is guessed where they stand
def test_rows_of_ids_are_where_the_ids_are(asked: int) -> None:
    rng = np.random.default_rng(asked)
    ids = np.sort(rng.choice(np.arange(5, 1500), 1000, replace=False))
    visible = rng.random(1000) < 0.7
    block = Block(ids, Codes(np.zeros((1000, 1), np.uint8), 8), visible)
    for _ in range(20):
        wanted = np.sort(rng.choice(1600, asked, replace=False))
        naive = [row for row, id in enumerate(ids.tolist()) if id in wanted.tolist() and visible[row]]
        assert block.rows(wanted).tolist() == naive


def test_a_view_changes_as_a_dictionary_does() -> None:
    rng = np.random.default_rng(3)
    base = drawn(40)
    seen = View(HERE, base, nothing(), saved=7)
    truth = dict(zip(base.ids.tolist(), base.codes.packed.tolist(), strict=True))
    for round in range(8, 20):
        touched = np.sort(rng.choice(100, 6, replace=False))
        there = Block(touched[::2], random_codes(3, BITS, seed=round))
        for id in touched.tolist():
            truth.pop(id, None)
        truth |= dict(zip(there.ids.tolist(), there.codes.packed.tolist(), strict=True))
        seen = seen.changed(Position(1, round, "later"), touched, there)
        merged = seen.merged()
        assert merged.ids.tolist() == sorted(truth)
        assert merged.codes.packed.tolist() == [truth[id] for id in sorted(truth)]
        assert len(seen) == len(truth)
    assert (seen.position.commit, seen.saved) == (19, 7)
    assert seen.touched > 0


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "codes-1.safetensors"
    assert snapshot.load(path) is None
    for base, extra in ((drawn(30), nothing()), (drawn(30), drawn(5, first=2)), (nothing(), nothing())):
        saved = snapshot.save(path, View(HERE, base, extra))
        loaded = snapshot.load(path)
        assert loaded is not None
        merged = base.joined(extra)
        for one in (saved, loaded):
            assert (one.position, one.saved, len(one.extra.ids)) == (HERE, 7, 0)
            assert one.base.ids.tolist() == merged.ids.tolist() == sorted(merged.ids.tolist())
            assert one.base.codes == merged.codes
    assert [file.name for file in tmp_path.iterdir()] == ["codes-1.safetensors"]


def test_a_snapshot_of_another_version_is_none(tmp_path: Path) -> None:
    path = tmp_path / "codes-1.safetensors"
    snapshot.save(path, View(HERE, drawn(3), nothing()))
    path.write_bytes(path.read_bytes().replace(b'"version":"4"', b'"version":"1"'))
    assert snapshot.load(path) is None


def test_any_flipped_bit_is_noticed_before_it_is_searched(tmp_path: Path) -> None:
    path, rng = tmp_path / "codes-1.safetensors", np.random.default_rng(0)
    saved = snapshot.save(path, View(HERE, drawn(30), nothing()))
    assert saved.base.sound()
    whole = path.read_bytes()
    for place in rng.integers(0, len(whole), 100):
        broken = bytearray(whole)
        broken[place] ^= 1 << rng.integers(8)
        path.unlink()  # others have it mapped
        path.write_bytes(broken)
        loaded = snapshot.load(path)
        same = loaded is not None and loaded.position == HERE and loaded.base.sound()
        assert not same or (loaded is not None and loaded.base.codes == drawn(30).codes), place


# ── the index of a large snapshot ────────────────────────────────────────────────────────────────────────


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 photos are many, and an index is walked wherever there is one."""
    if hamming.backend().name == "numpy":
        pytest.skip("numpy scans, index or not")
    monkeypatch.setattr(view, "INDEXED", 40)
    monkeypatch.setattr(view, "SHARE", 0)
    monkeypatch.setattr("hyphash.hamming.NEVER_SCAN", True)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore.create(tmp_path, "sqlite", fingerprint=ME, bits=BITS)
    yield store
    store.close()


@pytest.fixture
def indexed(store: SqliteStore, tmp_path: Path, large: None) -> Local:
    searcher = Local.create(tmp_path, "local", store)
    store.upsert(photos(60), fingerprint=ME)
    searcher.tidy()
    return searcher


def photos(count: int, *, start: int = 0) -> list[Photo]:
    codes = random_codes(count, BITS, seed=start)
    return photos_with(codes, labels=lambda i: ("even",) if i % 2 == 0 else (), start=start)


def index_of(searcher: Local) -> hamming.Index | None:
    assert searcher._view is not None
    return searcher._view.base.index


def ranking(searcher: Local) -> list[tuple[int, int]]:
    found = searcher.search(Query(ZEROS, 10_000, fingerprint=ME))
    return list(zip(found.distances.tolist(), found.ids.tolist(), strict=True))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("codes-*"))


def scanned(searcher: Local, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Found:
    with monkeypatch.context() as patch:
        patch.setattr(view, "SHARE", 10**9)
        return searcher.search(Query(ZEROS, 7, fingerprint=ME, **options))


def test_the_index_finds_what_the_scan_finds(
    indexed: Local, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    filters = [
        Filter(),
        Filter(carrying=("even",)),
        Filter(excluded=(1, 5, 9)),
        Filter.parse(camera="canon"),
        replace(Filter.parse(size="1.02kB.."), carrying=("even",), radius=9),
        Filter(radius=7),
        Filter(tagged=True, excluded=(3,), radius=8),
    ]
    for round in range(8):
        assert index_of(indexed) is not None
        for only in filters:
            for offset in (0, 5, 55, 1000):
                found = indexed.search(Query(ZEROS, 7, fingerprint=ME, offset=offset, only=only))
                expected = scanned(indexed, monkeypatch, offset=offset, only=only)
                assert found.ids.tolist() == expected.ids.tolist()
                assert found.distances.tolist() == expected.distances.tolist()
                assert found.total == expected.total
        everything = store.page(0, 1000)
        differing = [(np.bitwise_count(np.frombuffer(photo.code, np.uint8)).sum(), photo.id) for photo in everything]
        assert ranking(indexed) == sorted(differing)
        if round % 2:
            store.upsert(photos(9, start=100 * round), fingerprint=ME)  # at the end
        else:
            store.remove([photo.id for photo in everything[round :: 9 + round]])
        if round % 3 == 2:
            indexed.tidy()


def test_codes_are_in_the_index_alone(indexed: Local, store: SqliteStore, tmp_path: Path) -> None:
    assert files(tmp_path) == ["codes-1-1.index", "codes-1.safetensors"]
    assert (tmp_path / "codes-1.safetensors").stat().st_size < 60 * (8 + 28) + 664
    block = indexed._view.base  # type: ignore[union-attr]
    assert block.codes is block.codes  # put together once
    store.upsert(photos(9, start=100), fingerprint=ME)
    indexed.tidy()
    assert files(tmp_path) == ["codes-1-2.index", "codes-1.safetensors"]  # the former one is gone
    assert ranking(indexed) == ranking(Local.open(tmp_path, "local", store))


def test_an_index_that_is_missing_broken_or_of_another_is_made_again(
    indexed: Local, store: SqliteStore, tmp_path: Path
) -> None:
    expected = ranking(indexed)
    file = tmp_path / "codes-1-1.index"
    whole = file.read_bytes()
    other = hamming.Index.build(Codes.from_bits(np.ones((60, BITS), bool)))
    other.save(tmp_path / "other")
    changed = bytearray(whole)
    changed[-9] ^= 1
    for broken in (None, b"", whole[:-1], whole + b"x", bytes(changed), (tmp_path / "other").read_bytes()):
        file.unlink()
        if broken is not None:
            file.write_bytes(broken)
        reader = Local.open(tmp_path, "local", store)
        assert ranking(reader) == expected
        assert index_of(reader) is not None
        assert reader.verify() == []
    assert file.read_bytes() == whole


def test_verify_reads_all_of_an_index(
    indexed: Local, store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyphash.hamming.segments.SMALL", 0)  # as if it were too large to be read when it is opened
    file = tmp_path / "codes-1-1.index"
    changed = bytearray(file.read_bytes())
    changed[-9] ^= 1
    file.write_bytes(bytes(changed))
    reader = Local.open(tmp_path, "local", store)
    (found,) = reader.verify()
    assert "not what the store holds" in found
    reader.rebuild()
    assert reader.verify() == []


def test_photos_that_come_at_the_end_are_appended_to_the_index(
    indexed: Local, store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended = []
    append = hamming.Index.append
    monkeypatch.setattr(hamming.Index, "append", lambda self, codes: appended.append(len(codes)) or append(self, codes))
    before = index_of(indexed)
    assert before is not None
    ids = store.upsert(photos(20, start=100), fingerprint=ME)
    indexed.tidy()
    assert (appended, len(before)) == ([20], 60)  # whoever searches the old one goes on
    store.remove(ids[:2])
    indexed.tidy()
    assert appended == [20, 78]
    after = index_of(indexed)
    assert after is not None
    assert after.codes() == indexed._view.merged().codes  # type: ignore[union-attr]
    assert ranking(Local.open(tmp_path, "local", store)) == ranking(indexed)


def test_an_index_goes_when_it_does_not_pay(
    indexed: Local, store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ranking(indexed)
    with monkeypatch.context() as patch:
        patch.setattr("hyphash.hamming.kernel", None)
        reader = Local.open(tmp_path, "local", store)
        assert ranking(reader) == expected
        assert index_of(reader) is None
    (tmp_path / "codes-0.index").touch()  # of a former hasher
    (tmp_path / "codes-1.index").touch()  # of a former format
    indexed.compact()
    assert files(tmp_path) == ["codes-1-1.index", "codes-1.safetensors"]
    store.remove(range(1, 31))
    indexed.tidy()
    assert files(tmp_path) == ["codes-1.safetensors"]
    assert len(ranking(indexed)) == 30


def test_a_snapshot_is_written_where_its_index_cannot_be(
    store: SqliteStore, tmp_path: Path, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: hamming.Index, path: Path) -> None:
        raise StorageError(f"{path}: the disk is full")

    monkeypatch.setattr(hamming.Index, "save", full)
    searcher = Local.create(tmp_path, "local", store)
    store.upsert(photos(60), fingerprint=ME)
    searcher.tidy()
    assert files(tmp_path) == ["codes-1.safetensors"]
    assert index_of(searcher) is None  # scanned meanwhile
    assert len(ranking(searcher)) == 60
    monkeypatch.undo()
    monkeypatch.setattr(view, "INDEXED", 40)
    searcher.tidy()
    assert index_of(searcher) is not None


def test_an_index_with_a_flipped_bit_is_dropped_and_built_again(
    large: None, store: SqliteStore, tmp_path: Path
) -> None:
    """Its sections are too large to be looked at before it is mapped; a search waits for that."""
    store.upsert(photos_with(random_codes(60, BITS)), fingerprint=ME)
    searcher = Local(tmp_path, store)
    truth = searcher.search(Query(ZEROS, 60, fingerprint=ME)).ids.tolist()
    searcher.tidy(always=True)
    for pattern in ("codes-*.index", "codes-*.safetensors"):
        (file,) = tmp_path.glob(pattern)
        data = bytearray(file.read_bytes())
        data[-70] ^= 4
        file.unlink()
        file.write_bytes(data)
        again = Local(tmp_path, store)
        assert again.search(Query(ZEROS, 60, fingerprint=ME)).ids.tolist() == truth
        assert Local(tmp_path, store).verify() == []
