"""What the searchers on Milvus do beyond the contract: exact ties, copies that follow, are lost, and are built anew."""

import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import drawing
import grpc
import numpy as np
import pytest
from pymilvus.exceptions import MilvusException, ParamError

from hyphash.codes import Codes
from hyphash.errors import BusyError, CollectionError, ConfigError, EngineError, LabelError, MissingExtraError
from hyphash.searchers import Filter, Query, milvus, recall, searcher_for
from hyphash.searchers.local import Local
from hyphash.searchers.milvus import LEVELS, Milvus, building
from hyphash.searchers.milvus.server import AwayError, Server, passing
from hyphash.stores import Store, store_for
from hyphash.stores.postgresql import PostgreSQL

ME = "0123456789abcdef"
BITS = 20
trained_like = partial(drawing.trained_like, bits=BITS)
photos_with = drawing.even_and_odd


def sqlite(folder: Path, *, bits: int = BITS, fingerprint: str = ME) -> Store:
    folder.mkdir(exist_ok=True)
    return store_for("sqlite").create(folder, "sqlite", fingerprint=fingerprint, bits=bits)


@pytest.fixture
def url(milvus_server: Any) -> str:
    address: str = milvus_server.ready("milvus", BITS)
    return address


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = sqlite(tmp_path / "here")
    yield store
    store.close()


@pytest.fixture
def searcher(url: str, store: Store, tmp_path: Path) -> Iterator[Milvus]:
    searcher = Milvus.create(tmp_path / "here", url, store)
    yield searcher
    searcher.close()


def require_the_same(searcher: Milvus, codes: Codes, *, k: int = 50) -> None:
    """What `local` finds over the same store."""
    local = Local(searcher.folder, searcher.store)
    for only in (Filter(), Filter(carrying=("even",)), Filter(tagged=True, excluded=(1, 5)), Filter(radius=4)):
        theirs = local.search(Query(codes[0], k, only=only, fingerprint=ME))
        ours = searcher.search(Query(codes[0], k, only=only, fingerprint=ME))
        assert ours.ids.tolist() == theirs.ids.tolist()
        assert ours.distances.tolist() == theirs.distances.tolist()
        assert (ours.total, ours.behind) == (theirs.total, 0)


# ── rankings ─────────────────────────────────────────────────────────────────────────────────────────────


def loaded(url: str, folder: Path, codes: Codes) -> Any:
    """A searcher over a new store with these codes."""
    store = sqlite(folder / "loaded", bits=codes.bits)
    for start in range(0, len(codes), 10_000):
        store.upsert(photos_with(codes[start : start + 10_000], start=start), fingerprint=ME)
    searcher = searcher_for(url).create(folder / "loaded", url, store)
    searcher.tidy()
    return searcher


def closed(searcher: Milvus) -> None:
    searcher.close()
    searcher.store.close()


def test_a_hundred_thousand_codes_are_ranked_as_by_local_ties_included(milvus_server: Any, tmp_path: Path) -> None:
    codes, queries = trained_like(100_000, bits=44), trained_like(16, bits=44, seed=7)
    searcher = loaded(milvus_server.url(), tmp_path, codes)
    local, cut_in_ties = Local(tmp_path / "loaded", searcher.store), 0
    for i in range(16):
        only = [Filter(), Filter(carrying=("odd", "three")), Filter(excluded=(3, 9)), Filter(radius=3)][i % 4]
        for k, offset in ((10, 0), (100, 50)):
            expected = local.search(Query(queries[i], k + 1, offset=offset, only=only, fingerprint=ME))
            found = searcher.search(Query(queries[i], k, offset=offset, only=only, fingerprint=ME))
            assert found.ids.tolist() == expected.ids[:k].tolist()
            assert found.distances.tolist() == expected.distances[:k].tolist()
            assert found.total == expected.total
            cut_in_ties += len(expected.ids) > k and bool(expected.distances[k - 1] == expected.distances[k])
    assert cut_in_ties > 8  # or this test has shown nothing
    assert searcher.verify() == []
    closed(searcher)


def test_the_approximate_index_states_its_recall(
    milvus_server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = milvus_server.url(scheme="milvus-approximate", lists=64, probes=8)
    searcher = loaded(url, tmp_path, trained_like(20_000))
    queries = trained_like(20, seed=7)
    at_10, at_100 = recall(searcher, queries, 10), recall(searcher, queries, 100)
    with capsys.disabled():
        sys.stdout.write(f"\nmilvus-approximate, 20,000 codes: recall@10 {at_10:.3f}, recall@100 {at_100:.3f}\n")
    assert not searcher.exact
    assert at_10 > 0.9
    assert at_100 > 0.8

    def pages_are_those_of_the_whole() -> bool:
        whole = searcher.search(Query(queries[0], 19_990, fingerprint=ME))
        assert len(whole.ids) == len(set(whole.ids.tolist())) == 19_990  # its lists that are looked at hold fewer
        agree = []
        for offset in (0, 30, 60, 3_000, 16_370, 19_960):
            page, part = (
                searcher.search(Query(queries[0], 30, offset=offset, fingerprint=ME)),
                slice(offset, offset + 30),
            )
            agree += [np.array_equal(page.ids, whole.ids[part]), np.array_equal(page.distances, whole.distances[part])]
        return all(agree)

    assert any(pages_are_those_of_the_whole() for _ in range(10))  # the server may build an index between two searches
    index = milvus_server.client.describe_index(f"{searcher.builder.base}_1", "code")
    assert (index["index_type"], str(index["nlist"])) == ("BIN_IVF_FLAT", "64")
    closed(searcher)


def test_more_ties_than_one_answer_holds(searcher: Milvus, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = Codes.from_bits(np.random.default_rng(1).integers(0, 2, (40, BITS))[np.arange(2000) % 40])
    store.upsert(photos_with(codes), fingerprint=ME)
    monkeypatch.setattr(milvus, "LIMIT", 40)  # and 50 photos have the same code
    monkeypatch.setattr(milvus, "MANY", 20)
    monkeypatch.setattr(milvus, "SPARE", 3)
    local = Local(searcher.folder, store)
    for k in (1, 10, 30):
        expected = local.search(Query(codes[7], k, fingerprint=ME))
        assert searcher.search(Query(codes[7], k, fingerprint=ME)).ids.tolist() == expected.ids.tolist()
    near = searcher.search(Query(codes[7], 500, only=Filter(radius=6), fingerprint=ME))
    expected = local.search(Query(codes[7], 500, only=Filter(radius=6), fingerprint=ME))
    assert near.ids.tolist() == expected.ids.tolist()
    assert near.total == expected.total > 50


def test_pages_deeper_than_milvus_goes(searcher: Milvus, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyphash.searchers.milvus.LIMIT", 30)
    codes = trained_like(120)
    store.upsert(photos_with(codes), fingerprint=ME)
    for _ in range(2):  # built, then brought up to date
        for only in (Filter(), Filter(carrying=("even",))):
            expected = Local(searcher.folder, store).search(Query(codes[3], 20, offset=15, only=only, fingerprint=ME))
            found = searcher.search(Query(codes[3], 20, offset=15, only=only, fingerprint=ME))
            assert found.ids.tolist() == expected.ids.tolist()
            assert found.total == expected.total
        (photo,) = store.get([5])
        store.upsert([replace(photo, code=codes.packed[0].tobytes())], fingerprint=ME)
    store.remove(range(1, 101))
    found = searcher.search(Query(codes[3], 30, offset=10, fingerprint=ME))
    assert set(found.ids.tolist()) < set(range(101, 121))
    assert len(found.ids) == 10


def test_labels_of_any_spelling_and_length(searcher: Milvus, store: Store) -> None:
    words = ['say "cheese"', "back\\slash", "it's", "Zürich 雪 🐈", "new\nline", "%", "100% [x]", "", "x" * 5_000]
    photos = photos_with(trained_like(len(words)))
    ids = store.upsert(
        [replace(photo, labels=(word,)) for photo, word in zip(photos, words, strict=True)], fingerprint=ME
    )
    for id, word in zip(ids, words, strict=True):
        assert searcher.search(
            Query(trained_like(1), 9, only=Filter(carrying=(word,)), fingerprint=ME)
        ).ids.tolist() == [id]
    with pytest.raises(CollectionError, match="no proper text"):
        searcher.search(Query(trained_like(1), 9, only=Filter(carrying=("\udcff",)), fingerprint=ME))
    assert searcher.verify() == []


def test_more_labels_than_milvus_keeps_are_named_and_stay_in_nobodys_way(
    searcher: Milvus, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    codes = trained_like(4)
    ids = store.upsert(photos_with(codes), fingerprint=ME)
    store.relabel(ids[1], lambda photo: replace(photo, labels=tuple(map(str, range(4_097)))))
    with pytest.raises(LabelError, match=r"photo 2: 4097 labels; Milvus keeps at most 4096"):
        searcher.search(Query(codes[0], 9, fingerprint=ME))
    assert store.upsert(photos_with(codes), fingerprint=ME) == ids  # the store is not held up
    store.relabel(ids[1], lambda photo: replace(photo, labels=tuple(map(str, range(4_096)))))
    found = searcher.search(Query(codes[0], 9, only=Filter(carrying=("7", "4095")), fingerprint=ME))
    assert (found.ids.tolist(), found.total) == ([2], 1)


def test_partitions_hold_photos_by_id(milvus_server: Any, tmp_path: Path) -> None:
    codes = trained_like(200)
    searcher = loaded(milvus_server.url(partitions=4), tmp_path, codes)
    store = searcher.store
    store.upsert(photos_with(codes)[:50], fingerprint=ME)
    store.remove(range(101, 201))
    require_the_same(searcher, codes)
    assert len(milvus_server.client.list_partitions(f"{searcher.builder.base}_1")) == 4
    assert searcher.verify() == []
    url = searcher.address.shown.replace("partitions=4", "partitions=2")
    other = Milvus.open(tmp_path / "loaded", url, store)
    store.upsert(photos_with(codes[100:], start=100), fingerprint=ME)
    require_the_same(other, codes)  # with the partitions that it was built with
    other.rebuild()
    assert len(milvus_server.client.list_partitions(f"{searcher.builder.base}_2")) == 2
    require_the_same(searcher, codes)
    other.close()
    closed(searcher)


@pytest.mark.parametrize("consistency", LEVELS)
def test_every_consistency_sees_what_is_written_at_once_or_soon(
    url: str, store: Store, tmp_path: Path, consistency: str
) -> None:
    searcher = Milvus.create(tmp_path / "here", f"{url}&consistency={consistency}", store)
    codes = trained_like(30)
    ids = store.upsert(photos_with(codes), fingerprint=ME)
    assert store.remove(ids[:10]) == 10
    deadline = time.monotonic() + (0 if consistency == "Strong" else 20)
    found = searcher.search(Query(codes[20], 30, fingerprint=ME))
    while (found.total, len(found.ids)) != (20, 20) and time.monotonic() < deadline:  # two requests see two moments
        time.sleep(0.02)
        found = searcher.search(Query(codes[20], 30, fingerprint=ME))
    assert (found.total, found.ids[0], len(found.ids)) == (20, ids[20], 20)
    assert searcher.verify() == []
    searcher.close()


def test_shards_and_replicas_are_asked_for(milvus_server: Any, tmp_path: Path, store: Store) -> None:
    searcher = loaded(milvus_server.url(shards=3), tmp_path, trained_like(60))
    assert milvus_server.client.describe_collection(f"{searcher.builder.base}_1")["num_shards"] == 3
    require_the_same(searcher, trained_like(60))
    closed(searcher)
    with pytest.raises(EngineError, match=r"refused \(nodes not enough"):  # a stand-alone server is one node
        Milvus.create(tmp_path, milvus_server.url(replicas=2), store)


def test_capitals_make_another_collection(searcher: Milvus, store: Store, milvus_server: Any, tmp_path: Path) -> None:
    name = f"Capital_{searcher.builder.base}"
    other = Milvus.create(tmp_path / "other", milvus_server.url(collection=name), sqlite(tmp_path / "other", bits=8))
    store.upsert(photos_with(trained_like(3)), fingerprint=ME)
    assert searcher.search(Query(trained_like(1), 9, fingerprint=ME)).total == 3
    assert other.search(Query(trained_like(1, bits=8), 9, fingerprint=ME)).total == 0
    closed(other)


# ── copies follow ────────────────────────────────────────────────────────────────────────────────────────


def interrupted(monkeypatch: pytest.MonkeyPatch, at: str, *, error: BaseException) -> None:
    """Let the next such request to the server do half of its work, and end so."""
    real = getattr(Server, at)

    def half(self: Server, collection: str, items: Any, **more: Any) -> None:
        monkeypatch.setattr(Server, at, real)
        real(self, collection, items if at == "note" else items[: len(items) // 2], **more)
        raise error

    monkeypatch.setattr(Server, at, half)


@pytest.mark.parametrize("at", ["note", "upsert", "delete"])
def test_a_push_that_was_interrupted_is_completed_by_the_next(
    searcher: Milvus, store: Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    codes = trained_like(60)
    store.upsert(photos_with(codes[:30]), fingerprint=ME)
    searcher.follow()
    before = searcher.position()
    store.upsert(photos_with(codes), fingerprint=ME)
    store.remove(range(1, 11))
    interrupted(monkeypatch, at, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        searcher.follow()
    assert searcher.position() == before
    again = Milvus.open(tmp_path / "here", url, store)  # whoever that is
    require_the_same(again, codes)
    assert (again.position(), again.verify()) == (store.state().position, [])
    again.close()


def test_a_request_that_was_lost_is_made_again(
    searcher: Milvus, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    codes = trained_like(60)
    store.upsert(photos_with(codes), fingerprint=ME)
    interrupted(monkeypatch, "upsert", error=AwayError("the server is away"))
    require_the_same(searcher, codes)
    assert "following the store failed (the server is away); trying again" in caplog.text
    assert searcher.verify() == []


def test_a_copy_that_is_behind_says_so_if_asked_to(searcher: Milvus, store: Store, milvus_server: Any) -> None:
    codes = trained_like(9)
    store.upsert(photos_with(codes[:3]), fingerprint=ME)
    assert searcher.search(Query(codes[0], 9, fingerprint=ME)).behind == 0
    for i in (3, 6):
        store.upsert(photos_with(codes[i : i + 3], start=i), fingerprint=ME)
    found = searcher.search(Query(codes[0], 9, fingerprint=ME, catch_up=False))
    assert (found.total, found.behind) == (3, 2)
    found = searcher.search(Query(codes[0], 9, fingerprint=ME))
    assert (found.total, found.behind) == (9, 0)


def at_once(work: Callable[[int], Any], times: int = 3) -> None:
    """What one of them raises is raised here."""
    with ThreadPoolExecutor(times) as pool:
        list(pool.map(work, range(times)))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_many_write_and_follow_at_once(url: str, tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    """Each with connections of its own, as machines have them."""
    place = kind if kind == "sqlite" else request.getfixturevalue("postgres_server").url()
    store = store_for(place).create(tmp_path, place, fingerprint=ME, bits=BITS)
    codes = trained_like(60)

    def work(number: int) -> None:
        mine = type(store).open(tmp_path, place)
        searcher = Milvus.create(tmp_path, url, mine)
        for start in range(20 * number, 20 * number + 20, 5):
            mine.upsert(photos_with(codes[start : start + 5], start=start), fingerprint=ME)
            found = searcher.search(Query(codes[start], 60, fingerprint=ME))
            assert {photo.id for photo in mine.find(paths=[f"/photos/{start:06}.jpg"])} < set(found.ids.tolist())
        closed(searcher)

    at_once(work)
    searcher = Milvus.open(tmp_path, url, store)
    require_the_same(searcher, codes)
    assert searcher.verify() == []
    closed(searcher)


def test_a_search_that_need_not_catch_up_does_not_wait_for_one_who_pushes(
    searcher: Milvus, store: Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.upsert(photos_with(trained_like(2)), fingerprint=ME)
    searcher.follow()
    store.upsert(photos_with(trained_like(4)), fingerprint=ME)
    told: list[Any] = []
    real = Server.upsert

    def slow(self: Server, *words: Any, **more: Any) -> None:
        monkeypatch.setattr(Server, "upsert", real)
        mine = type(store).open(tmp_path / "here", "sqlite", wait=0.1)
        reader = Milvus.open(tmp_path / "here", url, mine)
        told.append(reader.search(Query(trained_like(1), 9, fingerprint=ME, catch_up=False)))
        with pytest.raises(BusyError, match=r"following the store, since .* is writing"):
            reader.search(Query(trained_like(1), 9, fingerprint=ME))
        closed(reader)
        real(self, *words, **more)

    monkeypatch.setattr(Server, "upsert", slow)
    searcher.follow()
    assert (told[0].total, told[0].behind) == (2, 1)


def test_a_change_of_the_store_whose_answer_was_lost_is_pushed_once(
    postgres_server: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL takes the note and breaks off before it can say so: the push is made again, nothing is there twice."""
    import psycopg

    from hyphash.stores.postgresql.server import Server as Database

    store = PostgreSQL.create(tmp_path, postgres_server.url(), fingerprint=ME, bits=BITS)
    searcher = Milvus.create(tmp_path, url, store)
    codes = trained_like(30)
    store.upsert(photos_with(codes), fingerprint=ME)
    transaction, left = Database._transaction, iter(range(2))

    def lossy(self: Database, work: Callable[..., Any], level: Any, *, read_only: bool) -> Any:
        result = transaction(self, work, level, read_only=read_only)
        if not read_only and next(left, None) is not None:
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return result

    monkeypatch.setattr(Database, "_transaction", lossy)
    require_the_same(searcher, codes)
    assert searcher.verify() == []
    closed(searcher)


# ── copies are lost, and built anew ──────────────────────────────────────────────────────────────────────


def collections(searcher: Milvus) -> list[str]:
    return sorted(name for name, _ in searcher.builder.numbered())


def test_a_copy_that_was_lost_is_built_anew_while_the_store_goes_on(
    searcher: Milvus, store: Store, milvus_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    codes = trained_like(40)
    store.upsert(photos_with(codes[:20]), fingerprint=ME)
    searcher.follow()
    milvus_server.client.drop_collection(f"{searcher.builder.base}_1")
    assert "is gone; build it anew with `hyphash collection rebuild`" in " ".join(searcher.verify())
    store.upsert(photos_with(codes), fingerprint=ME)
    require_the_same(searcher, codes)
    assert "is gone, and built anew" in caplog.text
    assert (collections(searcher), searcher.verify()) == ([f"{searcher.builder.base}_2"], [])
    milvus_server.client.drop_collection(f"{searcher.builder.base}_2")  # and again, with all known to this process
    require_the_same(searcher, codes)


def test_what_changes_while_a_copy_is_built_is_in_it(
    searcher: Milvus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = trained_like(60)
    ids = store.upsert(photos_with(codes[:40]), fingerprint=ME)
    searcher.follow()
    real = building.Builder._copied

    def copied(self: building.Builder) -> Any:
        made = real(self)
        store.upsert(photos_with(codes[30:], start=30), fingerprint=ME)
        store.remove(ids[:5])
        store.relabel(ids[9], lambda photo: replace(photo, labels=("even", "new")))
        found = searcher.search(Query(codes[0], 99, fingerprint=ME))  # the former one follows and answers
        assert found.total == 55
        return made

    monkeypatch.setattr(building.Builder, "_copied", copied)
    searcher.rebuild()
    monkeypatch.setattr(building.Builder, "_copied", real)
    assert searcher.position() == store.state().position
    require_the_same(searcher, codes)
    assert (collections(searcher), searcher.verify()) == ([f"{searcher.builder.base}_2"], [])


def test_two_who_build_at_once_agree_on_one(searcher: Milvus, store: Store, url: str, tmp_path: Path) -> None:
    codes = trained_like(40)
    store.upsert(photos_with(codes), fingerprint=ME)
    others = [Milvus.open(tmp_path / "here", url, type(store).open(tmp_path / "here", "sqlite")) for _ in range(2)]
    at_once(lambda i: others[i].rebuild(), 2)
    for one in (searcher, *others):
        require_the_same(one, codes)
    assert (len(collections(searcher)), searcher.verify()) == (1, [])
    for other in others:
        closed(other)


def test_a_build_that_was_interrupted_is_swept_away(
    searcher: Milvus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = trained_like(40)
    store.upsert(photos_with(codes), fingerprint=ME)
    with monkeypatch.context() as patch:
        interrupted(patch, "upsert", error=KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            searcher.rebuild()
    require_the_same(searcher, codes)
    assert len(collections(searcher)) == 2
    searcher.compact()
    require_the_same(searcher, codes)
    assert len(collections(searcher)) == 1


def test_a_store_that_was_restored_has_its_copy_built_anew(
    searcher: Milvus, store: Store, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The copy has photos that the store has lost; ids are given a second time."""
    codes = trained_like(40)
    store.upsert(photos_with(codes[:20]), fingerprint=ME)
    searcher.follow()
    store.close()
    backup = tmp_path / "backup"
    shutil.copytree(tmp_path / "here", backup)
    store = type(store).open(tmp_path / "here", "sqlite")
    late = Milvus.open(tmp_path / "here", url, store)
    store.upsert(photos_with(codes[20:], start=20), fingerprint=ME)
    assert late.search(Query(codes[0], 99, fingerprint=ME)).total == 40
    closed(late)
    restored = type(store).open(backup, "sqlite")
    for other in (Milvus.open(backup, url, restored), Milvus.open(backup, url, restored)):
        found = other.search(Query(codes[0], 99, fingerprint=ME))
        assert (found.total, max(found.ids)) == (20, 20)
        other.close()
    assert "another past than its copy" in caplog.text
    restored.upsert(photos_with(codes[30:], start=30), fingerprint=ME)
    other = Milvus.open(backup, url, restored)
    require_the_same(other, codes)
    assert other.verify() == []
    closed(other)


def test_a_folder_that_was_copied_gets_a_copy_of_its_own(
    searcher: Milvus, store: Store, url: str, tmp_path: Path
) -> None:
    """Two stores with one past: each goes on by itself, and both find what is theirs."""
    codes = trained_like(40)
    store.upsert(photos_with(codes[:20]), fingerprint=ME)
    searcher.follow()
    store.close()
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    twins = [Milvus.open(folder, url, type(store).open(folder, "sqlite")) for folder in tmp_path.iterdir()]
    for twin in twins:
        twin.follow()
    for i, twin in enumerate(twins):
        twin.store.upsert(photos_with(codes[20 + 10 * i :][:10], start=20 + 10 * i), fingerprint=ME)
    for _ in range(3):
        for twin in twins:
            twin.follow()
    for twin in twins:
        require_the_same(twin, codes)
        assert twin.verify() == []
        closed(twin)


def test_a_copy_of_long_ago_is_built_anew(searcher: Milvus, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyphash.stores.KEPT_CHANGES", 4)
    codes = trained_like(30)
    store.upsert(photos_with(codes[:5]), fingerprint=ME)
    searcher.follow()
    for i in range(5, 30):
        store.upsert(photos_with(codes[i : i + 1], start=i), fingerprint=ME)
    store.prune()
    assert searcher.position() is None
    require_the_same(searcher, codes)
    assert collections(searcher) == [f"{searcher.builder.base}_2"]


def test_half_of_all_photos_are_not_pushed_one_by_one(
    searcher: Milvus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "MANY", 10)
    codes = trained_like(30)
    store.upsert(photos_with(codes), fingerprint=ME)
    require_the_same(searcher, codes)
    assert collections(searcher) == [f"{searcher.builder.base}_2"]


def test_verify_sees_each_row_that_differs(searcher: Milvus, store: Store, milvus_server: Any) -> None:
    codes = trained_like(20)
    store.upsert(photos_with(codes), fingerprint=ME)
    searcher.follow()
    assert searcher.verify() == []
    server, collection = searcher.server, f"{searcher.builder.base}_1"
    there = {row["id"]: row for row in server.query(collection, "id > 0", ("id", *building.ROW), "Strong")}
    there = {id: row | {"code": building._code(row), "labels": list(row["labels"])} for id, row in there.items()}
    server.delete(collection, [3])
    server.upsert(collection, [there[4] | {"code": codes.packed[4].tobytes()}, there[7] | {"labels": [1]}])
    server.upsert(collection, [there[9] | {"id": 99}])
    found = searcher.verify()
    assert [int(line.partition("photo ")[2].partition(" ")[0]) for line in found] == [3, 4, 7, 99]
    assert all("hyphash collection rebuild" in line for line in found)
    searcher.rebuild()
    assert searcher.verify() == []
    require_the_same(searcher, codes)


# ── one collection, one store ────────────────────────────────────────────────────────────────────────────


def test_a_second_store_is_refused_and_told_how_to_share(searcher: Milvus, url: str, tmp_path: Path) -> None:
    other = sqlite(tmp_path / "other")
    with pytest.raises(
        ConfigError, match=r"_1' holds the photos of another store.*--store postgresql://.*\?collection="
    ):
        Milvus.create(tmp_path / "other", url, other)
    late = Milvus.open(tmp_path / "other", url, other)
    with pytest.raises(ConfigError, match="another store"):
        late.search(Query(trained_like(1), 9, fingerprint=ME))
    closed(late)


def test_rows_of_others_are_left_alone(store: Store, url: str, tmp_path: Path, milvus_server: Any) -> None:
    name = url.partition("collection=")[2] + "_1"
    milvus_server.client.upsert(name, [{"id": 7, "code": b"\1\2\3", "labels": [], "tagged": False}])
    with pytest.raises(ConfigError, match=r"holds rows of others; choose another name with \?collection="):
        Milvus.create(tmp_path, url, store)
    assert milvus_server.client.has_collection(name)


def test_addresses_are_looked_at(store: Store, url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="consistency is one of Strong"):
        Milvus.create(tmp_path, url + "&consistency=Sometimes", store)
    with pytest.raises(ConfigError, match="letters, digits and _"):
        Milvus.create(tmp_path, "milvus://localhost/?collection=my-photos", store)


def test_a_first_collection_that_was_given_up_half_way_is_made(
    milvus_server: Any, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    milvus_server.client.create_database("half")
    url = milvus_server.url(database="half", patience=5)
    with monkeypatch.context() as patch:
        patch.setattr("pymilvus.MilvusClient.create_index", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            Milvus.create(tmp_path / "here", url, store)
    searcher = Milvus.create(tmp_path / "here", url, store)
    store.upsert(photos_with(trained_like(3)), fingerprint=ME)
    require_the_same(searcher, trained_like(3))
    searcher.compact()
    assert len(collections(searcher)) == 1
    searcher.close()


# ── another hasher ───────────────────────────────────────────────────────────────────────────────────────


def move(store: Store, ids: list[int], *, before_switch: Callable[[], None] = lambda: None) -> None:
    """To a hasher whose codes are all the same."""
    store.prepare(drawing.OTHER, 9)
    store.put_coming([replace(photo, code=b"\1\1") for photo in store.get(ids)], fingerprint=drawing.OTHER)
    before_switch()
    pending = [replace(photo, code=b"\1\1") for photo in store.pending(99)]
    store.put_coming(pending, fingerprint=drawing.OTHER)
    assert store.switch(drawing.OTHER)


def test_coming_codes_are_there_before_they_are_in_use(
    searcher: Milvus, store: Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Milvus.open(tmp_path / "here", url, store)
    ids = store.upsert(photos_with(trained_like(6)), fingerprint=ME)
    assert reader.search(Query(trained_like(1), 9, fingerprint=ME)).total == 6
    searcher.prepare()  # for nobody: nothing is coming

    def prepare() -> None:
        searcher.prepare()
        searcher.prepare()  # once is enough
        assert len(collections(searcher)) == 2
        store.upsert(photos_with(trained_like(1, seed=5), start=10), fingerprint=ME)
        store.remove(ids[:1])
        assert reader.search(Query(trained_like(1), 9, fingerprint=ME)).total == 6

    move(store, ids, before_switch=prepare)
    monkeypatch.setattr(building.Builder, "build", None)  # nothing has to be built
    for one in (reader, searcher):
        found = one.search(Query(Codes.from_bits(np.zeros((1, 9), bool)), 9, fingerprint=drawing.OTHER))
        assert found.ids.tolist() == [*ids[1:], 7]
    assert (collections(searcher), searcher.verify()) == ([f"{searcher.builder.base}_2"], [])
    reader.close()


def test_codes_that_were_prepared_for_nobody_are_dropped(searcher: Milvus, store: Store) -> None:
    ids = store.upsert(photos_with(trained_like(6)), fingerprint=ME)
    searcher.follow()
    store.prepare(drawing.SECOND, 20)
    store.put_coming([replace(photo, code=b"\0\0\0") for photo in store.get(ids)], fingerprint=drawing.SECOND)
    searcher.prepare()
    move(store, ids, before_switch=searcher.prepare)
    found = searcher.search(Query(Codes.from_bits(np.zeros((1, 9), bool)), 9, fingerprint=drawing.OTHER))
    assert found.ids.tolist() == ids
    assert (collections(searcher), searcher.verify()) == ([f"{searcher.builder.base}_3"], [])


def test_compact_drops_what_a_move_to_another_hasher_left_behind(
    searcher: Milvus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = store.upsert(photos_with(trained_like(3)), fingerprint=ME)
    searcher.follow()
    move(store, ids)
    with monkeypatch.context() as patch:  # the program ends before it could drop the old codes
        patch.setattr(Server, "drop", lambda *_: None)
        searcher.follow()
    assert len(collections(searcher)) == 2
    searcher.compact()
    assert collections(searcher) == [f"{searcher.builder.base}_2"]
    assert (
        searcher.search(Query(Codes.from_bits(np.zeros((1, 9), bool)), 9, fingerprint=drawing.OTHER)).ids.tolist()
        == ids
    )


# ── servers that go away ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("code", "text", "again"),
    [
        (101, "collection not loaded", True),
        (101, "collection authors_1 not loaded", True),
        (1, "service not ready", True),
        (65535, "empty grpc client: failed to connect", True),
        (65535, "failed to search: attempt #0: stack trace:\nlb_policy.go:213: rpc error: code = Unavailable", True),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", True),
        (grpc.StatusCode.UNAUTHENTICATED, "auth check failure", False),
        (65535, "cannot parse expression", False),
        (100, "collection not found", False),
    ],
)
def test_only_what_may_pass_is_tried_again(code: Any, text: str, again: bool) -> None:
    assert passing(MilvusException(code, text)) == again
    assert not passing(KeyError(text))
    assert not passing(ParamError(message=text))  # of pymilvus itself, under numbers of its own


def test_reasons_are_told_in_words() -> None:
    server = Server(Milvus.address_of("milvus://localhost"))
    whole = '<_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails = "{}"\n>'
    for error, words in {
        MilvusException(
            2, whole.format("ipv4:127.0.0.1:1: Connection refused")
        ): "ipv4:127.0.0.1:1: Connection refused",
        MilvusException(2, whole.format("")): "UNAVAILABLE",
        MilvusException(101, "failed to query: collection not loaded[collection=47]"): "the server is still loading",
        MilvusException(2, "Fail connecting to server on h:1, illegal connection params or …"): "nobody answers there",
        MilvusException(65535, "something else"): "something else",
    }.items():
        assert server.told(error).startswith(words)


def test_the_server_is_killed_while_photos_come_and_are_searched(
    searcher: Milvus, store: Store, milvus_server: Any
) -> None:
    codes, killed = trained_like(6000), threading.Event()
    errors: list[BaseException] = []

    def load() -> None:
        try:
            for start in range(0, 6000, 500):
                store.upsert(photos_with(codes[start : start + 500], start=start), fingerprint=ME)
                assert searcher.search(Query(codes[5], 9, fingerprint=ME)).total == start + 500
                if start == 1500:
                    killed.set()
        except BaseException as error:
            errors.append(error)
            killed.set()

    thread = threading.Thread(target=load)
    thread.start()
    killed.wait(60)
    time.sleep(0.05)  # into the next batch
    milvus_server.kill()
    assert thread.is_alive()
    milvus_server.start()
    thread.join(120)
    assert errors == []
    require_the_same(searcher, codes)
    assert searcher.verify() == []


def test_photos_are_added_while_milvus_is_away(
    searcher: Milvus, store: Store, url: str, tmp_path: Path, milvus_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    codes = trained_like(40)
    store.upsert(photos_with(codes[:20]), fingerprint=ME)
    searcher.follow()
    milvus_server.kill()
    try:
        hasty = Milvus.open(tmp_path / "here", url, type(store).open(tmp_path / "here", "sqlite", wait=5))
        hasty.hurry(0.5)
        errors: list[EngineError] = []

        def search() -> None:
            with pytest.raises(EngineError, match=r"failed for 0\.5 seconds") as told:
                hasty.search(Query(codes[0], 9, fingerprint=ME))
            errors.append(told.value)

        thread = threading.Thread(target=search)
        thread.start()
        for i in range(20, 40):  # nobody is kept from writing by one who waits for Milvus
            store.upsert(photos_with(codes[i : i + 1], start=i), fingerprint=ME)
        thread.join()
        assert "see that the server runs" in str(errors[0])
        assert store.count() == 40
        hasty.tidy()
        assert "the photos are stored, and can be searched when it has caught up" in caplog.text
        closed(hasty)
    finally:
        milvus_server.start()
    require_the_same(searcher, codes)
    assert searcher.verify() == []


def test_a_server_that_is_not_there_is_named_without_its_password(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyphash.searchers.milvus.server.TIMEOUT", 0.3)
    url = "milvus://me:hush-hush@127.0.0.1:1/photos?patience=0.5"
    with caplog.at_level(logging.DEBUG), pytest.raises(EngineError) as raised:
        Milvus.create(tmp_path, url, store)
    assert "milvus://me@127.0.0.1:1/photos?patience=0.5" in str(raised.value)
    assert "give the command again" in str(raised.value)
    searcher = Milvus.open(tmp_path, url, store)
    told = str(raised.value) + repr(vars(searcher)) + repr(vars(searcher.builder)) + repr(vars(searcher.server))
    searcher.close()
    assert "hush" not in told + caplog.text + "".join(capfd.readouterr())


def test_without_pymilvus_the_extra_is_named(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(MissingExtraError, match=r"hyphash\[milvus\]"):
        Milvus.create(tmp_path, "milvus://localhost", store)
