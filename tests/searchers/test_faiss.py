"""The searchers on faiss: what `local` returns, from another index; and the share that the approximate one finds."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import drawing
import numpy as np
import pytest
from drawing import ME, even_and_odd

from hyphash.codes import Codes
from hyphash.errors import ConfigError, MissingExtraError
from hyphash.searchers import Filter, Query, recall
from hyphash.searchers.faiss import Faiss, FaissApproximate, FaissBlock
from hyphash.searchers.local import Local
from hyphash.stores.sqlite import SqliteStore

BITS = 44  # of the last byte only a half
MANY = 40_000
trained_like = partial(drawing.trained_like, bits=BITS)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteStore]:
    """A collection of many photos, that any searcher over it must see alike."""
    store = SqliteStore.create(tmp_path_factory.mktemp("collection"), "sqlite", fingerprint=ME, bits=BITS)
    codes = trained_like(MANY)
    for start in range(0, MANY, 20_000):
        store.upsert(even_and_odd(codes[start : start + 20_000], start=start), fingerprint=ME)
    Local.create(store.folder, "local", store).tidy()
    yield store
    store.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore.create(tmp_path, "sqlite", fingerprint=ME, bits=BITS)
    yield store
    store.close()


def test_the_flat_index_returns_what_local_returns_ties_included(full: SqliteStore) -> None:
    local, flat = Local.open(full.folder, "local", full), Faiss.open(full.folder, "faiss", full)
    queries = trained_like(25, seed=7)
    onlys = [Filter(), Filter(carrying=("odd",)), Filter(tagged=True), Filter(excluded=(3, 9)), Filter(radius=3)]
    cut_in_ties = 0
    for i in range(25):
        for k, offset in ((1, 0), (10, 0), (100, 50), (1000, 0)):
            only = onlys[i % 5]
            expected = local.search(Query(queries[i], k + 1, offset=offset, only=only, fingerprint=ME))
            found = flat.search(Query(queries[i], k, offset=offset, only=only, fingerprint=ME))
            assert found.ids.tolist() == expected.ids[:k].tolist()
            assert found.distances.tolist() == expected.distances[:k].tolist()
            assert found.total == expected.total
            cut_in_ties += len(expected.ids) > k and bool(expected.distances[k - 1] == expected.distances[k])
    assert cut_in_ties > 25  # or this test has shown nothing
    assert flat._view is not None
    assert isinstance(flat._view.base, FaissBlock)
    assert flat._view.base.faiss.ntotal == MANY
    local.close()
    flat.close()


def test_the_approximate_index_states_its_recall(full: SqliteStore, capsys: pytest.CaptureFixture[str]) -> None:
    approximate = FaissApproximate.open(full.folder, "faiss-approximate://?lists=256&probes=16", full)
    queries = trained_like(50, seed=7)
    at_10, at_100 = recall(approximate, queries, 10), recall(approximate, queries, 100)
    with capsys.disabled():
        sys.stdout.write(f"\nfaiss-approximate, {MANY:,} codes: recall@10 {at_10:.3f}, recall@100 {at_100:.3f}\n")
    assert not approximate.exact
    assert at_10 > 0.95
    assert at_100 > 0.9
    strange = Codes.from_bits(np.random.default_rng(3).integers(0, 2, (50, BITS)))  # far from all, near to none
    before = recall(approximate, strange, 100)
    approximate.settings["probes"] = 1
    approximate._view = None
    assert 0 < recall(approximate, strange, 100) < before  # fewer probes find less
    found = approximate.search(Query(queries[0], 200, fingerprint=ME))
    pairs = list(zip(found.distances.tolist(), found.ids.tolist(), strict=True))
    assert pairs == sorted(pairs)
    assert len(pairs) == 200
    assert (
        len(approximate.search(Query(queries[0], MANY // 2, fingerprint=ME)).ids) == MANY // 2
    )  # more than a list has
    approximate.close()


@pytest.mark.parametrize("only", [Filter(), Filter(excluded=(7,)), Filter(carrying=("odd",))])
def test_pages_of_the_approximate_index_name_every_photo_once(full: SqliteStore, only: Filter) -> None:
    approximate = FaissApproximate.open(full.folder, "faiss-approximate://?lists=256&probes=1", full)
    query = Codes.from_bits(np.random.default_rng(3).integers(0, 2, (1, BITS)))
    whole = approximate.search(Query(query, 1500, only=only, fingerprint=ME))
    assert len(set(whole.ids.tolist())) == 1500
    pages = [approximate.search(Query(query, 25, offset=at, only=only, fingerprint=ME)) for at in range(0, 1500, 25)]
    assert np.concatenate([page.ids for page in pages]).tolist() == whole.ids.tolist()
    assert np.concatenate([page.distances for page in pages]).tolist() == whole.distances.tolist()
    assert {page.total for page in pages} == {whole.total}
    approximate.close()


def test_photos_that_go_are_not_found_and_lists_are_kept(store: SqliteStore, tmp_path: Path) -> None:
    searcher = FaissApproximate.create(tmp_path, "faiss-approximate", store)
    codes = trained_like(3000)
    ids = store.upsert(even_and_odd(codes[:2000]), fingerprint=ME)
    searcher.tidy()
    assert searcher.search(Query(codes[5], 1, fingerprint=ME)).distances.tolist() == [0]
    centres = searcher._centres
    store.remove(ids[:1200])  # more than are asked for in vain
    assert min(searcher.search(Query(codes[5], 500, fingerprint=ME)).ids) > ids[1199]
    store.upsert([replace(even_and_odd(codes[:2000])[1999], code=codes.packed[0].tobytes())], fingerprint=ME)
    assert searcher.search(Query(codes[0], 1, fingerprint=ME)).ids.tolist() == [ids[1999]]
    store.upsert(even_and_odd(codes[2000:], start=2000), fingerprint=ME)
    searcher.tidy()
    assert searcher.search(Query(codes[2500], 1, fingerprint=ME)).distances.tolist() == [0]
    assert searcher._centres is centres
    assert searcher.verify() == []
    searcher.close()


def test_options_come_with_the_address(store: SqliteStore, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown option 'probe'; did you mean 'probes'"):
        FaissApproximate.create(tmp_path, "faiss-approximate://?probe=3", store)
    with pytest.raises(ConfigError, match="leave out the host"):
        Faiss.create(tmp_path, "faiss://somewhere/", store)


def test_without_faiss_the_extra_is_named(full: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    searcher = Faiss.open(full.folder, "faiss", full)
    with pytest.raises(MissingExtraError, match=r"hyphash\[faiss\]"):
        searcher.search(Query(trained_like(1), 1, fingerprint=ME))
    searcher.close()
