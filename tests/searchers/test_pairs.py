"""Any store with any searcher: one history, in which all kinds of changes happen, and what a naive twin finds."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drawing import BITS, ME, OTHER, PAIRS, SEARCHERS, STORES, fill, photos_with, random_codes, twos_and_threes

from hyphash.codes import Codes
from hyphash.searchers import Filter, Query, Searcher, searcher_for
from hyphash.stores import Photo, Store, store_for


@pytest.fixture(params=PAIRS, ids=" + ".join)
def urls(request: pytest.FixtureRequest) -> tuple[str, str]:
    store, searcher = request.param
    return STORES[store](request), SEARCHERS[searcher][1](request)


@pytest.fixture
def store(urls: tuple[str, str], tmp_path: Path) -> Iterator[Store]:
    store = store_for(urls[0]).create(tmp_path, urls[0], fingerprint=ME, bits=BITS)
    yield store
    store.close()


@pytest.fixture
def searcher(urls: tuple[str, str], store: Store, tmp_path: Path) -> Iterator[Searcher]:
    searcher = searcher_for(urls[1]).create(tmp_path, urls[1], store)
    yield searcher
    searcher.close()


def naive(store: Store, query: Codes, only: Filter) -> list[tuple[int, int]]:
    """What shall be found, from all photos one by one."""

    def allowed(photo: Photo) -> bool:
        return set(only.carrying) <= set(photo.labels) and not (only.tagged and not photo.labels)

    photos = [photo for photo in store.page(0, 10_000) if allowed(photo)]
    codes = Codes(
        np.frombuffer(b"".join(photo.code for photo in photos), np.uint8).reshape(len(photos), -1), query.bits
    )
    distances = query.distances(codes)[0].tolist() if photos else []
    return sorted(zip(distances, (photo.id for photo in photos), strict=True))


def require_the_same(searcher: Searcher, store: Store, *, seed: int) -> None:
    state = store.state()
    query = random_codes(1, state.bits, seed=seed)
    for only in (Filter(), Filter(carrying=("two",)), Filter(tagged=True)):
        found = searcher.search(Query(query, 10_000, only=only, fingerprint=state.fingerprint))
        assert list(zip(found.distances.tolist(), found.ids.tolist(), strict=True)) == naive(store, query, only)
    assert searcher.position() == state.position


def test_what_is_found_is_what_the_store_holds(searcher: Searcher, store: Store) -> None:
    rng = np.random.default_rng(5)
    for round in range(10):
        new = photos_with(random_codes(6, seed=round, distinct=4), labels=twos_and_threes, start=10 * round)
        ids = store.upsert(new, fingerprint=ME)
        store.relabel(ids[round % 6], lambda photo: replace(photo, labels=("new", "two")))
        every = [photo.id for photo in store.page(0, 1000)]
        store.remove(rng.choice(every, 2, replace=False).tolist())
        changed = store.get(rng.choice(every, 1).tolist())
        store.upsert(
            [replace(photo, code=random_codes(1, seed=99).packed[0].tobytes()) for photo in changed], fingerprint=ME
        )
        if round % 3 == 1:
            searcher.tidy()
            store.tidy()
        if round % 4 == 3:
            require_the_same(searcher, store, seed=round)
    require_the_same(searcher, store, seed=77)
    assert store.verify() == searcher.verify() == []


def test_a_searcher_that_is_rebuilt_while_the_store_goes_on(
    searcher: Searcher, store: Store, urls: tuple[str, str], tmp_path: Path
) -> None:
    fill(store, 30)
    searcher.follow()
    other = type(searcher).open(tmp_path, urls[1], store)
    other.rebuild()
    store.upsert(photos_with(random_codes(4, seed=3), start=500), fingerprint=ME)
    require_the_same(searcher, store, seed=1)
    require_the_same(other, store, seed=2)
    assert searcher.verify() == other.verify() == []
    other.close()


def test_a_move_to_another_hasher(searcher: Searcher, store: Store) -> None:
    ids, _ = fill(store, 20)
    searcher.follow()
    store.prepare(OTHER, 33)
    rows = random_codes(20, 33, seed=6).packed
    coded = [replace(photo, code=row.tobytes()) for photo, row in zip(store.pending(99), rows, strict=True)]
    store.put_coming(coded, fingerprint=OTHER)
    searcher.prepare()
    store.remove(ids[3:5])
    store.relabel(ids[7], lambda photo: replace(photo, labels=("two",)))
    assert store.switch(OTHER)
    require_the_same(searcher, store, seed=4)
    store.compact()
    searcher.compact()
    require_the_same(searcher, store, seed=5)
    assert store.verify() == searcher.verify() == []
