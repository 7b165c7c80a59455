"""What the engines on Milvus do beyond the contract: exact ties, batches made whole, writers that take turns."""

import logging
import math
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
from hyphash.engines import Choice, engine_for, recall
from hyphash.engines.local.snapshot import Origin, Part, View, empty_part
from hyphash.engines.milvus import LEVELS, Milvus, ledger, ranking, writer
from hyphash.engines.milvus.server import passing
from hyphash.errors import (
    BusyError,
    CollectionError,
    ConfigError,
    EngineError,
    LabelError,
    MissingExtraError,
    OtherHasherError,
)

ME = "0123456789abcdef"
BITS = 20
trained_like = partial(drawing.trained_like, bits=BITS)
photos_with = drawing.even_and_odd


def ranking_of(codes: Codes, query: Codes, k: int, *, offset: int = 0, choice: Choice = Choice()) -> Any:  # noqa: B008
    """What the local engine finds among photos 1, 2, …"""
    ids = np.arange(1, len(codes) + 1)
    view = View(Origin(1, 0, ""), Part(ids, codes), empty_part(codes.bits), saved=-1)
    only = {(): None, ("even",): ids[::3], ("odd", "three"): ids[1::3]}[choice.carrying]
    return view.search(query, k, offset, choice=choice, only=only, tables=None)


@pytest.fixture
def url(milvus_server: Any) -> str:
    address: str = milvus_server.ready("milvus", BITS)
    return address


@pytest.fixture
def engine(url: str, tmp_path: Path) -> Iterator[Milvus]:
    engine = Milvus.create(tmp_path, url, fingerprint=ME, bits=BITS)
    yield engine
    engine.close()


# ── rankings ─────────────────────────────────────────────────────────────────────────────────────────────


def loaded(url: str, folder: Path, codes: Codes) -> Any:
    engine = engine_for(url).create(folder, url, fingerprint=ME, bits=codes.bits)
    for start in range(0, len(codes), 10_000):
        engine.upsert(photos_with(codes[start : start + 10_000], start=start), fingerprint=ME)
    engine.settle()
    return engine


def test_a_hundred_thousand_codes_are_ranked_as_by_local_ties_included(milvus_server: Any, tmp_path: Path) -> None:
    codes, queries = trained_like(100_000, bits=44), trained_like(16, bits=44, seed=7)
    engine = loaded(milvus_server.url(), tmp_path, codes)
    cut_in_ties = 0
    for i in range(16):
        choice = [Choice(), Choice(carrying=("odd", "three")), Choice(excluded=(3, 9)), Choice(radius=3)][i % 4]
        for k, offset in ((10, 0), (100, 50)):
            expected = ranking_of(codes, queries[i], k + 1, offset=offset, choice=choice)
            found = engine.search(queries[i], k, offset=offset, choice=choice, fingerprint=ME)
            assert found.ids.tolist() == expected.ids[:k].tolist()
            assert found.distances.tolist() == expected.distances[:k].tolist()
            assert found.total == expected.total
            cut_in_ties += len(expected.ids) > k and bool(expected.distances[k - 1] == expected.distances[k])
    assert cut_in_ties > 8  # or this test has shown nothing
    assert engine.count() == 100_000
    engine.close()


def test_the_approximate_index_states_its_recall(
    milvus_server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = milvus_server.url(scheme="milvus-approximate", lists=64, probes=8)
    engine = loaded(url, tmp_path, trained_like(20_000))
    queries = trained_like(20, seed=7)
    at_10, at_100 = recall(engine, queries, 10), recall(engine, queries, 100)
    with capsys.disabled():
        sys.stdout.write(f"\nmilvus-approximate, 20,000 codes: recall@10 {at_10:.3f}, recall@100 {at_100:.3f}\n")
    assert not engine.exact
    assert at_10 > 0.9
    assert at_100 > 0.8
    whole = engine.search(queries[0], 19_990, fingerprint=ME)
    assert len(whole.ids) == len(set(whole.ids.tolist())) == 19_990  # the lists that it looks at do not hold so many
    for offset in (0, 30, 60, 3_000, 16_370, 19_960):
        page = engine.search(queries[0], 30, offset=offset, fingerprint=ME)
        assert page.ids.tolist() == whole.ids[offset : offset + 30].tolist()
        assert page.distances.tolist() == whole.distances[offset : offset + 30].tolist()
    index = milvus_server.client.describe_index(f"{engine.writer.collection}_1", "code")
    assert (index["index_type"], str(index["nlist"])) == ("BIN_IVF_FLAT", "64")
    engine.close()


def test_more_ties_than_one_answer_holds(engine: Milvus, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = Codes.from_bits(np.random.default_rng(1).integers(0, 2, (40, BITS))[np.arange(2000) % 40])
    engine.upsert(photos_with(codes), fingerprint=ME)
    monkeypatch.setattr(ranking, "LIMIT", 40)  # and 50 photos have the same code
    monkeypatch.setattr(ranking, "MANY", 20)
    monkeypatch.setattr(ranking, "SPARE", 3)
    for k in (1, 10, 30):
        found = engine.search(codes[7], k, fingerprint=ME)
        assert found.ids.tolist() == ranking_of(codes, codes[7], k).ids.tolist()
    near = engine.search(codes[7], 500, choice=Choice(radius=6), fingerprint=ME)
    expected = ranking_of(codes, codes[7], 500, choice=Choice(radius=6))
    assert near.ids.tolist() == expected.ids.tolist()
    assert near.total == expected.total > 50


def test_pages_deeper_than_milvus_goes(engine: Milvus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyphash.engines.milvus.LIMIT", 30)
    codes = trained_like(120)
    engine.upsert(photos_with(codes), fingerprint=ME)
    for _ in range(2):  # built, then brought up to date
        for carrying in ((), ("even",)):
            found = engine.search(codes[3], 20, offset=15, choice=Choice(carrying=carrying), fingerprint=ME)
            expected = ranking_of(codes, codes[3], 20, offset=15, choice=Choice(carrying=carrying))
            assert found.ids.tolist() == expected.ids.tolist()
            assert found.total == expected.total
        assert [photo.id for photo in engine.page(100, 9)] == list(range(101, 110))
        assert [photo.id for photo in engine.page(35, 9, carrying=["even"])] == [106, 109, 112, 115, 118]
        assert engine.page(120, 5) == engine.page(500, 5) == []
        codes = Codes(np.concatenate([codes.packed, codes.packed[:1]]), BITS)[:120]
        changed = photos_with(codes)
        changed[4] = replace(changed[4], code=codes.packed[0].tobytes())
        codes.packed[4] = codes.packed[0]
        engine.upsert(changed[4:5], fingerprint=ME)
    engine.remove(range(1, 101))
    found = engine.search(codes[3], 30, offset=10, fingerprint=ME)
    assert set(found.ids.tolist()) < set(range(101, 121))
    assert len(found.ids) == 10


def test_labels_of_any_spelling(engine: Milvus) -> None:
    words = ['say "cheese"', "back\\slash", "it's", "Zürich 雪 🐈", "new\nline", "%", "100% [x]"]
    photos = [replace(photo, labels=(word,)) for photo, word in zip(photos_with(trained_like(7)), words, strict=True)]
    ids = engine.upsert(photos, fingerprint=ME)
    assert set(engine.labels()) == set(words)
    for id, word in zip(ids, words, strict=True):
        assert [photo.id for photo in engine.page(0, 9, carrying=[word])] == [id]
        assert engine.search(trained_like(1), 9, choice=Choice(carrying=(word,)), fingerprint=ME).ids.tolist() == [id]
    for odd, words in {
        replace(photos[0], labels=("x" * 600,), given=("x" * 600,)): "longer than 512 bytes",
        replace(photos[0], refused=tuple(f"{i:0500}" for i in range(150))): "more than 65000 bytes of labels",
        replace(photos[0], labels=tuple(map(str, range(1025))), given=()): "1025 labels",
        replace(photos[0], path="/" + "x" * 8192): "longer than 8192 bytes",
        replace(photos[0], path="/\udcff"): "no proper text",
    }.items():
        with pytest.raises((CollectionError, LabelError), match=words):
            engine.upsert([replace(odd, path=f"{odd.path}/new")], fingerprint=ME)
    assert engine.verify() == []


def test_partitions_hold_photos_by_id(milvus_server: Any, tmp_path: Path) -> None:
    url = milvus_server.url(partitions=4)
    engine = Milvus.create(tmp_path, url, fingerprint=ME, bits=BITS)
    codes = trained_like(200)
    ids = engine.upsert(photos_with(codes), fingerprint=ME)
    engine.upsert(photos_with(codes)[:50], fingerprint=ME)
    engine.remove(ids[100:])
    assert engine.count() == 100
    assert (
        engine.search(codes[3], 20, fingerprint=ME).ids.tolist() == ranking_of(codes[:100], codes[3], 20).ids.tolist()
    )
    assert len(milvus_server.client.list_partitions(f"{engine.writer.collection}_1")) == 4
    with pytest.raises(ConfigError, match="has 4 partitions"):
        Milvus.create(tmp_path, url.replace("partitions=4", "partitions=2"), fingerprint=ME, bits=BITS)
    engine.close()


@pytest.mark.parametrize("consistency", LEVELS)
def test_every_consistency_sees_what_is_written_at_once_or_soon(url: str, tmp_path: Path, consistency: str) -> None:
    engine = Milvus.create(tmp_path, f"{url}&consistency={consistency}", fingerprint=ME, bits=BITS)
    codes = trained_like(30)
    ids = engine.upsert(photos_with(codes), fingerprint=ME)
    assert engine.upsert(photos_with(codes), fingerprint=ME) == ids  # changes see all, whatever it is
    assert engine.remove(ids[:10]) == 10
    deadline = time.monotonic() + (0 if consistency == "Strong" else 20)
    while (found := engine.search(codes[20], 30, fingerprint=ME)).total != 20 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert found.total == len(engine.page(0, 30)) == engine.count() == 20
    assert found.ids[0] == ids[20]
    engine.close()


def test_shards_and_replicas_are_asked_for(milvus_server: Any, tmp_path: Path) -> None:
    engine = Milvus.create(tmp_path, milvus_server.url(shards=3), fingerprint=ME, bits=BITS)
    assert milvus_server.client.describe_collection(f"{engine.writer.collection}_1")["num_shards"] == 3
    codes = trained_like(60)
    assert engine.upsert(photos_with(codes), fingerprint=ME) == list(range(1, 61))
    assert engine.search(codes[3], 20, fingerprint=ME).ids.tolist() == ranking_of(codes, codes[3], 20).ids.tolist()
    engine.close()
    with pytest.raises(EngineError, match=r"refused \(nodes not enough"):  # a stand-alone server is one node
        Milvus.create(tmp_path, milvus_server.url(replicas=2), fingerprint=ME, bits=BITS)


def test_capitals_make_another_collection(engine: Milvus, milvus_server: Any, tmp_path: Path) -> None:
    name = f"Capital_{engine.writer.collection}"
    other = Milvus.create(tmp_path, milvus_server.url(collection=name), fingerprint="another", bits=8)
    assert (other.state().fingerprint, engine.state().fingerprint) == ("another", ME)
    with pytest.raises(CollectionError, match="there is no collection"):
        Milvus.open(tmp_path, milvus_server.url(collection=name.lower()))
    other.close()


# ── batches are made whole ───────────────────────────────────────────────────────────────────────────────


def die(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process come to its end before step number `at` of the next commit."""
    steps, do = iter(range(1000)), ledger.Step.do

    def dying(step: ledger.Step, server: Any, *, until: float) -> None:
        if next(steps) == at:
            half = replace(step, rows=step.rows[: len(step.rows) // 2], keys=step.keys[: len(step.keys) // 2])
            do(half, server, until=until)
            raise KeyboardInterrupt
        do(step, server, until=until)

    monkeypatch.setattr(ledger.Step, "do", dying)


@pytest.mark.parametrize("at", [0, 1])
def test_a_batch_that_was_interrupted_is_completed(
    engine: Milvus, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    codes = trained_like(60)
    photos = photos_with(codes)
    engine.upsert(photos[:20], fingerprint=ME)
    with monkeypatch.context() as patch:
        die(at, patch)
        with pytest.raises(KeyboardInterrupt):
            engine.upsert(photos, fingerprint=ME)
    assert engine.verify() != []
    again = Milvus.open(tmp_path, url)
    assert again.verify() == []
    assert again.count() == 60
    assert again.labels() == {"even": 20, "odd": 20, "three": 20}
    assert again.upsert(photos, fingerprint=ME) == list(range(1, 61))
    with monkeypatch.context() as patch:
        die(at, patch)
        with pytest.raises(KeyboardInterrupt):
            again.remove(range(1, 31))
    assert engine.upsert(photos[30:31], fingerprint=ME) == [31]  # the next writer sees to it, whoever that is
    assert engine.verify() == []
    assert engine.count() == 30
    again.close()


def test_another_folder_takes_over_when_the_lease_has_run_out(
    engine: Milvus, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    photos = photos_with(trained_like(40))
    engine.upsert(photos[:10], fingerprint=ME)
    (tmp_path / "other").mkdir()
    other = Milvus.create(tmp_path / "other", url, fingerprint=ME, bits=BITS)
    other.writer.wait = 0.3
    with pytest.raises(BusyError, match=r"is writing, or has died \(its lease ends in \d s\); this one waited 0.3 s"):
        other.upsert(photos[10:20], fingerprint=ME)
    with monkeypatch.context() as patch:
        patch.setattr(writer, "LEASE", 4)
        engine.upsert(photos[:1], fingerprint=ME)
        die(0, patch)
        with pytest.raises(KeyboardInterrupt):
            engine.upsert(photos[20:40], fingerprint=ME)  # ten of them arrive
    other.writer.wait = 20  # until that lease has run out
    (id,) = other.upsert(photos[10:11], fingerprint=ME)
    assert id == 21
    assert other.count() == 21
    assert other.verify() == []
    assert "stopped in the middle of a commit; what had arrived is kept" in caplog.text
    other.close()  # and lets the first one write
    assert engine.upsert(photos[20:40], fingerprint=ME) == [*range(11, 21), *range(22, 32)]
    assert "others have written" in caplog.text
    assert engine.verify() == []


@pytest.fixture
def pair(engine: Milvus, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Milvus, Milvus]]:
    """Two folders with one collection, and leases that are over soon."""
    for name, seconds in {"LEASE": 2.0, "IDLE": 0.7, "SLACK": 0.2, "CLOCKS": 0.1}.items():
        monkeypatch.setattr(writer, name, seconds)
    (tmp_path / "other").mkdir()
    other = Milvus.create(tmp_path / "other", url, fingerprint=ME, bits=BITS)
    yield engine, other
    other.close()


def stalled(
    engine: Milvus,
    monkeypatch: pytest.MonkeyPatch,
    at: Callable[[list[dict[str, Any]]], bool],
    meanwhile: Callable[[], Any],
) -> None:
    """Let something happen before a certain request of an engine reaches its server: that one, whatever the time."""
    real, done = engine.server.upsert, list[bool]()

    def slow(collection: str, rows: Any, *, until: float = math.inf) -> None:
        if not done and at(list(rows)):
            done.append(True)
            meanwhile()
            until = math.inf
        real(collection, rows, until=until)

    monkeypatch.setattr(engine.server, "upsert", slow)


def kinds(rows: list[dict[str, Any]]) -> set[str]:
    return {row.get("kind", "photo") for row in rows}


def test_a_lease_that_is_renewed_too_late_is_claimed_anew(
    pair: tuple[Milvus, Milvus], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    first, second, third = photos_with(trained_like(3))
    one.upsert([first], fingerprint=ME)
    ids: list[int] = []
    stalled(one, monkeypatch, lambda rows: kinds(rows) == {"writer"}, lambda: ids.extend(
        other.upsert([second], fingerprint=ME)  # waits until that lease has run out
    ))  # fmt: skip
    ids += one.upsert([third], fingerprint=ME)
    assert ids == [2, 3]
    assert [(photo.id, photo.path) for photo in other.page(0, 9)] == [
        (1, first.path), (2, second.path), (3, third.path),
    ]  # fmt: skip
    assert other.verify() == []


def test_what_is_not_written_in_time_is_not_written(
    pair: tuple[Milvus, Milvus], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    first, second, third = photos_with(trained_like(3))
    one.upsert([first], fingerprint=ME)
    with monkeypatch.context() as patch:
        stalled(one, patch, lambda rows: kinds(rows) == {"photo"}, lambda: time.sleep(2.1))
        with pytest.raises(EngineError, match="took so long that others may write by now"):
            one.upsert([second], fingerprint=ME)
    assert other.upsert([third], fingerprint=ME) == [3]  # the second photo had arrived all the same
    assert one.upsert([second], fingerprint=ME) == [2]
    assert one.verify() == []


def test_two_that_wrote_at_once_are_seen(pair: tuple[Milvus, Milvus], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = pair
    first, second, third = photos_with(trained_like(3))
    one.upsert([first], fingerprint=ME)

    def write() -> None:
        other.upsert([third], fingerprint=ME)

    with monkeypatch.context() as patch:  # the books of the one are held up on their way
        stalled(one, patch, lambda rows: "state" in kinds(rows), write)
        with pytest.raises(EngineError, match=r"ended so late that another folder was writing.*collection verify"):
            one.upsert([second], fingerprint=ME)
    assert "the commit 2 was made twice" in " ".join(other.verify())


def test_photos_of_a_change_whose_turn_was_over_are_seen(
    pair: tuple[Milvus, Milvus], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    first, second, third = photos_with(trained_like(3))
    one.upsert([first], fingerprint=ME)

    def write() -> None:
        assert other.upsert([third], fingerprint=ME) == [2]

    with monkeypatch.context() as patch:
        stalled(one, patch, lambda rows: kinds(rows) == {"photo"}, write)
        with pytest.raises(EngineError, match="took so long"):
            one.upsert([second], fingerprint=ME)
    assert other.find(paths=[third.path]) == []  # lost
    assert "photo 2 was written by a folder whose turn was over" in " ".join(other.verify())
    assert one.upsert([first, second, third], fingerprint=ME) == [1, 2, 3]  # as the advice has it
    one.compact()
    assert one.verify() == []
    assert one.labels() == {"even": 1, "odd": 1, "three": 1}


def test_the_log_of_commits_stays_short(engine: Milvus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "REMEMBERED", 3)
    for _ in range(6):
        engine.upsert(photos_with(trained_like(1)), fingerprint=ME)
    books = partial(ledger.commits, engine.server, engine.writer.collection, "Strong")
    assert [commit["commit"] for commit in books()] == [4, 5, 6]
    engine.compact()
    assert (books(), engine.verify()) == ([], [])


def test_readers_do_not_wait_for_the_writer_of_their_folder(
    engine: Milvus, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = photos_with(trained_like(4))
    engine.upsert(photos[:2], fingerprint=ME)
    found: list[int] = []

    def read() -> None:
        reader = Milvus.open(tmp_path, url)
        found.append(reader.search(trained_like(1), 9, fingerprint=ME).total)
        reader.close()

    stalled(engine, monkeypatch, lambda rows: kinds(rows) == {"photo"}, read)
    assert engine.upsert(photos, fingerprint=ME) == [1, 2, 3, 4]
    assert (len(found), min(found) >= 2) == (1, True)  # while the writer was in the midst of its work
    assert engine.verify() == []


def test_a_batch_that_the_server_refuses_does_not_stay_in_the_way(
    engine: Milvus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    photos = photos_with(trained_like(40))
    engine.upsert(photos[:5], fingerprint=ME)
    with monkeypatch.context() as patch:  # let one through that we know better than to send
        patch.setattr("hyphash.engines.milvus.rows.LONGEST_PATH", 10**6)
        patch.setattr("hyphash.engines.milvus.server.BATCH", 10)
        with pytest.raises(EngineError, match="exceeds max length"):
            engine.upsert([*photos[:25], replace(photos[25], path="x" * 9_000)], fingerprint=ME)
    assert engine.verify() != []
    assert engine.upsert(photos, fingerprint=ME) == list(range(1, 41))  # twenty of them had arrived
    assert "cannot be completed" in caplog.text
    assert engine.count() == 40
    assert engine.labels() == {"even": 14, "odd": 13, "three": 13}
    assert engine.verify() == []


def test_a_change_that_fails_here_does_not_keep_others_waiting(engine: Milvus) -> None:
    (photo,) = photos_with(trained_like(1))
    with pytest.raises(LabelError):
        engine.upsert([replace(photo, labels=("x" * 600,))], fingerprint=ME)
    assert engine.writer._until - time.time() <= writer.IDLE


def test_two_folders_are_two_writers_whatever_they_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    same = "/" + "雪" * 1000
    monkeypatch.setattr("os.path.realpath", lambda _: same)  # as in two containers
    one, two = (ledger.whoami(tmp_path / name) for name in ("one", "two"))
    assert one != two
    assert len(one.encode()) < 512
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    assert ledger.whoami(tmp_path / "one") != one


def three_at_once(work: Callable[[int], None]) -> None:
    """What one of them raises is raised here."""
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))


def test_writers_with_one_folder_take_turns(engine: Milvus, url: str, tmp_path: Path) -> None:
    codes = trained_like(60)
    others = [engine, *(Milvus.open(tmp_path, url) for _ in range(2))]

    def write(number: int) -> None:
        for start in range(20 * number, 20 * number + 20, 5):
            others[number].upsert(photos_with(codes[start : start + 5], start=start), fingerprint=ME)

    three_at_once(write)
    assert sorted(photo.id for photo in engine.page(0, 99)) == list(range(1, 61))
    assert len({photo.path for photo in engine.page(0, 99)}) == 60
    assert engine.verify() == []
    for other in others[1:]:
        other.close()


def test_one_collection_has_one_hasher(engine: Milvus, url: str, tmp_path: Path) -> None:
    with pytest.raises(OtherHasherError, match="reindex"):
        Milvus.create(tmp_path, url, fingerprint="another", bits=BITS)
    with pytest.raises(ConfigError, match="consistency is one of Strong"):
        Milvus.create(tmp_path, url + "&consistency=Sometimes", fingerprint=ME, bits=BITS)
    with pytest.raises(ConfigError, match="letters, digits and _"):
        Milvus.create(tmp_path, "milvus://localhost/?collection=my-photos", fingerprint=ME, bits=BITS)


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


def test_reasons_are_told_in_words(engine: Milvus) -> None:
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
        assert engine.server._told(error).startswith(words)


def test_a_reader_elsewhere_follows_a_move_to_another_hasher(engine: Milvus, url: str, tmp_path: Path) -> None:
    reader = Milvus.open(tmp_path, url)
    ids = engine.upsert(photos_with(trained_like(3)), fingerprint=ME)
    assert reader.search(trained_like(1), 9, fingerprint=ME).total == 3
    engine.prepare("other", 9)
    engine.store([replace(photo, code=b"\1\1") for photo in engine.get(ids)], fingerprint="other")
    assert engine.switch("other")
    assert reader.search(Codes.from_bits(np.zeros((1, 9), bool)), 9, fingerprint="other").ids.tolist() == ids
    with pytest.raises(OtherHasherError):
        reader.search(trained_like(1), 9, fingerprint=ME)
    assert [photo.code for photo in reader.get(ids)] == [b"\1\1"] * 3
    reader.close()


def test_compact_drops_what_a_move_to_another_hasher_left_behind(
    engine: Milvus, milvus_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = engine.upsert(photos_with(trained_like(3)), fingerprint=ME)
    engine.prepare("other", 9)
    engine.store([replace(photo, code=b"\1\1") for photo in engine.get(ids)], fingerprint="other")
    with monkeypatch.context() as patch:  # the program ends before it could drop the old codes
        patch.setattr(type(engine.server), "drop", lambda *_: None)
        assert engine.switch("other")
    old = f"{engine.writer.collection}_1"
    assert milvus_server.client.has_collection(old)
    engine.compact()
    assert not milvus_server.client.has_collection(old)
    assert [photo.code for photo in engine.get(ids)] == [b"\1\1"] * 3


def test_a_first_collection_that_was_given_up_half_way_is_made(
    milvus_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    milvus_server.client.create_database("half")
    url = milvus_server.url(database="half", patience=5)
    with monkeypatch.context() as patch:
        patch.setattr("pymilvus.MilvusClient.create_index", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            Milvus.create(tmp_path, url, fingerprint=ME, bits=BITS)
    engine = Milvus.create(tmp_path, url, fingerprint=ME, bits=BITS)
    assert engine.upsert(photos_with(trained_like(3)), fingerprint=ME) == [1, 2, 3]
    engine.close()


def test_many_may_make_the_same_collection_at_once(url: str, tmp_path: Path) -> None:
    codes = trained_like(30)
    ids: dict[int, list[int]] = {}

    def join(number: int) -> None:
        (tmp_path / str(number)).mkdir()
        engine = Milvus.create(tmp_path / str(number), url, fingerprint=ME, bits=BITS)
        ids[number] = engine.upsert(photos_with(codes[10 * number :][:10], start=10 * number), fingerprint=ME)
        engine.close()

    three_at_once(join)
    assert sorted(id for some in ids.values() for id in some) == list(range(1, 31))


# ── servers that go away ─────────────────────────────────────────────────────────────────────────────────


def test_the_server_is_killed_in_the_middle_of_a_bulk_load(
    engine: Milvus, milvus_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    codes = trained_like(6000)
    killed = threading.Event()
    ids: list[int] = []
    errors: list[BaseException] = []

    def load() -> None:
        try:
            for start in range(0, 6000, 500):
                ids.extend(engine.upsert(photos_with(codes[start : start + 500], start=start), fingerprint=ME))
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
    arrived = len(ids)
    assert thread.is_alive()
    milvus_server.start()
    thread.join(120)
    assert errors == []
    assert 2000 <= arrived < 6000
    assert ids == list(range(1, 6001))
    assert engine.count() == 6000
    assert engine.verify() == []
    assert engine.search(codes[5], 50, fingerprint=ME).ids.tolist() == ranking_of(codes, codes[5], 50).ids.tolist()


def test_a_server_that_is_not_there_is_named_without_its_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyphash.engines.milvus.server.TIMEOUT", 0.3)
    url = "milvus://me:hush-hush@127.0.0.1:1/photos?patience=0.5"
    with caplog.at_level(logging.DEBUG), pytest.raises(EngineError) as raised:
        Milvus.create(tmp_path, url, fingerprint=ME, bits=BITS)
    assert "milvus://me@127.0.0.1:1/photos?patience=0.5" in str(raised.value)
    assert "give the command again" in str(raised.value)
    everything = str(raised.value) + caplog.text + "".join(capfd.readouterr())
    assert "hush" not in everything


def test_without_pymilvus_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(MissingExtraError, match=r"hyphash\[milvus\]"):
        Milvus.create(tmp_path, "milvus://localhost", fingerprint=ME, bits=BITS)
