"""What the searchers in the tables of PostgreSQL do beyond the contract: the ranking of `local`, and HNSW."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import drawing
import numpy as np
import pytest

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.errors import ConfigError, EngineError
from hyphash.searchers import Filter, Query, recall, searcher_for
from hyphash.searchers.local import Local
from hyphash.searchers.postgresql import InTables, InTablesApproximate
from hyphash.stores import store_for
from hyphash.stores.postgresql import PostgreSQL
from hyphash.stores.postgresql.session import PostgreSQLSession

ME = "0123456789abcdef"
BITS = 36
OTHER = "fedcba9876543210"  # fingerprint of another hasher
trained_like = partial(drawing.trained_like, bits=BITS)
photos_with = drawing.even_and_odd


@pytest.fixture
def store(postgres_server: Any) -> Iterator[PostgreSQL]:
    store = PostgreSQL.create(Path(), postgres_server.url(patience=20), fingerprint=ME, bits=BITS)
    yield store
    store.close()


def approximate(store: PostgreSQL, **options: int) -> InTablesApproximate:
    words = "".join(f"&{name}={value}" for name, value in options.items())
    url = store.shown.replace("postgresql://", "postgresql-approximate://") + words
    return InTablesApproximate.open(Path(), url, store)


# ── the same answers as local ────────────────────────────────────────────────────────────────────────────


def test_a_hundred_thousand_codes_rank_as_they_do_locally(store: PostgreSQL, tmp_path: Path) -> None:
    photos = photos_with(trained_like(100_000))
    for some in (photos[:50_000], photos[50_000:]):
        store.upsert(some, fingerprint=ME)
    store.tidy()
    searcher, local = InTables.open(tmp_path, "postgresql", store), Local.open(tmp_path, "local", store)
    outputs = np.random.default_rng(1).normal(size=(3, BITS)).astype(np.float32)
    for i, query in enumerate(trained_like(3, seed=7)[j] for j in range(3)):
        for only in (Filter(), Filter(carrying=("odd",)), Filter(tagged=True, excluded=(5, 6)), Filter(radius=8)):
            ours = searcher.search(Query(query, 1000, offset=500 * i, only=only, fingerprint=ME))
            theirs = local.search(Query(query, 1000, offset=500 * i, only=only, fingerprint=ME))
            assert ours.total == theirs.total
            assert np.array_equal(ours.ids, theirs.ids)
            assert np.array_equal(ours.distances, theirs.distances)
        sums = hamming.byte_tables(outputs)[i]
        ours = searcher.search(Query(query, 1000, tables=sums, fingerprint=ME))
        theirs = local.search(Query(query, 1000, tables=sums, fingerprint=ME))
        assert np.array_equal(ours.ids, theirs.ids)
        assert np.array_equal(ours.scores, theirs.scores)  # type: ignore[arg-type]
    local.close()


def test_partitions_are_searched_together(postgres_server: Any) -> None:
    store = PostgreSQL.create(Path(), postgres_server.url(partitions=3), fingerprint=ME, bits=BITS)
    codes = trained_like(300)
    store.upsert(photos_with(codes), fingerprint=ME)
    expected = np.lexsort((np.arange(300), codes[0].distances(codes)[0]))[:20] + 1
    found = InTables.open(Path(), "postgresql", store).search(Query(codes[0], 20, fingerprint=ME))
    assert found.ids.tolist() == expected.tolist()
    store.close()


# ── HNSW ─────────────────────────────────────────────────────────────────────────────────────────────────


def index_of(store: PostgreSQL, server: Any) -> str:
    """How the server would look for the nearest codes."""
    table = f"{store.schema.name}.codes"
    return str(
        server.run(f"EXPLAIN SELECT id FROM {table} ORDER BY code <~> (SELECT code FROM {table} LIMIT 1) LIMIT 9")
    )


def test_hnsw_answers_when_it_is_tidy_and_says_how_well(store: PostgreSQL, postgres_server: Any) -> None:
    searcher, codes, queries = approximate(store, ef_search=200), trained_like(6_000), trained_like(20, seed=3)
    store.upsert(photos_with(codes), fingerprint=ME)
    assert recall(searcher, queries, 10) == 1.0  # there is no index yet
    store.tidy()
    searcher.tidy()
    assert "codes_1_nearest" in index_of(store, postgres_server)
    assert not searcher.exact
    assert recall(searcher, queries, 10) > 0.9
    assert recall(searcher, queries, 100) > 0.9
    found = searcher.search(Query(codes[0], 50, only=Filter(carrying=("even",)), fingerprint=ME))
    assert found.total == 2000
    assert list(zip(found.distances, found.ids, strict=True)) == sorted(zip(found.distances, found.ids, strict=True))
    truth = np.sort(codes[0].distances(codes)[0])
    deep = searcher.search(Query(codes[0], 10, offset=5_000, fingerprint=ME))  # deeper than the index reaches
    assert deep.distances.tolist() == truth[5_000:5_010].tolist()
    exact = InTables.open(Path(), "postgresql", store)
    for i in range(5):  # the index of the other must not tempt this one
        expected = np.lexsort((np.arange(6_000), queries[i].distances(codes)[0]))[:100] + 1
        assert exact.search(Query(queries[i], 100, fingerprint=ME)).ids.tolist() == expected.tolist()


def test_pages_of_hnsw_name_every_photo_once(store: PostgreSQL) -> None:
    """An index that misses much: with few neighbours each, of codes that are like nothing."""
    searcher = approximate(store, m=2, ef_construction=4, ef_search=40)
    rng = np.random.default_rng(5)
    store.upsert(photos_with(Codes.from_bits(rng.integers(0, 2, (900, BITS)))), fingerprint=ME)
    searcher.tidy()
    query = Codes.from_bits(rng.integers(0, 2, (1, BITS)))
    for only in (Filter(), Filter(excluded=(3, 4)), Filter(carrying=("even",))):
        whole = searcher.search(Query(query, 900, only=only, fingerprint=ME)).ids.tolist()
        pages = [searcher.search(Query(query, 30, offset=at, only=only, fingerprint=ME)) for at in range(0, 930, 30)]
        assert [id for page in pages for id in page.ids.tolist()] == whole
        assert len(set(whole)) == len(whole) == pages[0].total


def test_the_index_of_coming_codes_is_there_before_they_are_in_use(store: PostgreSQL, postgres_server: Any) -> None:
    searcher = approximate(store)
    ids = store.upsert(photos_with(trained_like(2_000)), fingerprint=ME)
    searcher.prepare()  # for nobody: nothing is coming
    store.prepare(OTHER, BITS + 1)
    coming = trained_like(2_000, bits=BITS + 1).packed
    photos = [replace(photo, code=row.tobytes()) for photo, row in zip(store.get(ids), coming, strict=True)]
    store.put_coming(photos, fingerprint=OTHER)
    searcher.prepare()
    assert store.switch(OTHER)
    store.tidy()
    assert "codes_2_nearest" in index_of(store, postgres_server)
    schema = store.schema.name
    (before,) = postgres_server.run(f"SELECT '{schema}.codes_2_nearest'::regclass::oid")
    searcher.rebuild()
    (after,) = postgres_server.run(f"SELECT '{schema}.codes_2_nearest'::regclass::oid")
    assert before != after
    assert searcher.search(Query(Codes(coming[:1], BITS + 1), 1, fingerprint=OTHER)).distances.tolist() == [0]


def test_recall_is_the_share_of_results_that_are_near_enough(
    store: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    searcher, codes = InTables.open(Path(), "postgresql", store), trained_like(500)
    store.upsert(photos_with(codes), fingerprint=ME)
    assert recall(searcher, codes[:4], 10) == 1.0
    search = searcher.search

    def forgetful(query: Query) -> Any:
        found = search(query)
        return replace(found, ids=found.ids[1:], distances=found.distances[1:])

    monkeypatch.setattr(searcher, "search", forgetful)
    assert recall(searcher, codes[:4], 10) == pytest.approx(0.9)


# ── where they look ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["postgresql", "postgresql-approximate"])
def test_they_look_where_their_store_is_and_nowhere_else(
    store: PostgreSQL, postgres_server: Any, tmp_path: Path, name: str
) -> None:
    kind = searcher_for(name)
    store.upsert(photos_with(trained_like(3)), fingerprint=ME)
    same = store.shown.replace("postgresql://", f"{name}://")
    for url in (name, same, same.replace("postgres@", "somebody:else@") + "&ef_search=50"):
        searcher = kind.create(tmp_path, url, store)
        assert (searcher.position(), searcher.verify()) == (store.state().position, [])
        assert searcher.search(Query(trained_like(1), 9, fingerprint=ME)).total == 3
        searcher.close()
    with pytest.raises(ConfigError, match=r"its store is elsewhere, in postgresql://.*without an address"):
        kind.open(tmp_path, postgres_server.url(scheme=name), store)
    sqlite = store_for("sqlite").create(tmp_path, "sqlite", fingerprint=ME, bits=BITS)
    with pytest.raises(ConfigError, match=rf"{name} searches in the tables of a store in PostgreSQL.*--store postgres"):
        kind.open(tmp_path, name, sqlite)
    sqlite.close()


def test_it_is_never_behind(store: PostgreSQL) -> None:
    searcher, codes = InTables.open(Path(), "postgresql", store), trained_like(9)
    for i in range(3):
        store.upsert(photos_with(codes[3 * i : 3 * i + 3], start=3 * i), fingerprint=ME)
        found = searcher.search(Query(codes[0], 9, fingerprint=ME, catch_up=False))
        assert (found.total, found.behind) == (3 * i + 3, 0)


def test_a_server_without_pgvector_says_what_to_do(store: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extension is asked for under a name that nobody has: the server's own words."""
    run = PostgreSQLSession.run

    def without(session: PostgreSQLSession, statement: str, *values: Any) -> Any:
        return run(session, statement.replace("EXISTS vector", "EXISTS victor"), *values)

    monkeypatch.setattr(PostgreSQLSession, "run", without)
    with pytest.raises(EngineError, match=r"install pgvector on the server, or use postgresql://"):
        approximate(store).rebuild()
