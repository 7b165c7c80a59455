"""What the engines on PostgreSQL do beyond the contract: share a database, survive their server, keep secrets."""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import drawn
import numpy as np
import psycopg
import pytest

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.engines import Choice, Photo, engine_for, recall
from hyphash.engines.local import Local
from hyphash.engines.postgres import Postgres, PostgresApproximate, tables
from hyphash.engines.postgres.server import Server
from hyphash.errors import BusyError, CollectionError, ConfigError, EngineError, OtherHasherError

ME = "0123456789abcdef"
BITS = 36
trained_like = partial(drawn.trained_like, bits=BITS)
photos_with = drawn.photos_with


def create(url: str, **changes: Any) -> Any:
    facts = {"fingerprint": ME, "bits": BITS} | changes
    return engine_for(url).create(Path(), url, **facts)


@pytest.fixture
def url(postgres_server: Any) -> str:
    address: str = postgres_server.url(patience=20)
    return address


@pytest.fixture
def engine(url: str) -> Iterator[Postgres]:
    engine = create(url)
    yield engine
    engine.close()


def test_the_names_of_engines_are_known_without_psycopg() -> None:
    program = "import sys; from hyphash.engines import engines; print(engines.names(), 'psycopg' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "postgresql-approximate" in told
    assert told.strip().endswith("False")


def test_without_psycopg_an_address_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None; from hyphash.engines import engine_for; from pathlib import Path; "
        "engine_for('postgresql://').open(Path(), 'postgresql://h/d')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install 'hyphash[postgres]'" in done.stderr


# ── the same answers as local ────────────────────────────────────────────────────────────────────────────


def test_a_hundred_thousand_codes_rank_as_they_do_locally(engine: Postgres, tmp_path: Path) -> None:
    codes = trained_like(100_000)
    photos = photos_with(codes)
    local = Local.create(tmp_path, "local", fingerprint=ME, bits=BITS)
    for some in (photos[:50_000], photos[50_000:]):
        assert engine.upsert(some, fingerprint=ME) == local.upsert(some, fingerprint=ME)
    engine.settle()
    outputs = np.random.default_rng(1).normal(size=(3, BITS)).astype(np.float32)
    for i, query in enumerate(trained_like(3, seed=7)[j] for j in range(3)):
        for choice in (Choice(), Choice(carrying=("odd",)), Choice(tagged=True, excluded=(5, 6)), Choice(radius=8)):
            ours = engine.search(query, 1000, offset=500 * i, choice=choice, fingerprint=ME)
            theirs = local.search(query, 1000, offset=500 * i, choice=choice, fingerprint=ME)
            assert ours.total == theirs.total
            assert np.array_equal(ours.ids, theirs.ids)
            assert np.array_equal(ours.distances, theirs.distances)
        sums = hamming.byte_tables(outputs)[i]
        ours = engine.search(query, 1000, tables=sums, fingerprint=ME)
        theirs = local.search(query, 1000, tables=sums, fingerprint=ME)
        assert np.array_equal(ours.ids, theirs.ids)
        assert np.array_equal(ours.scores, theirs.scores)  # type: ignore[arg-type]
    assert engine.labels() == local.labels()
    local.close()


def test_hnsw_answers_when_it_has_settled_and_says_how_well(postgres_server: Any) -> None:
    engine: PostgresApproximate = create(postgres_server.url(scheme="postgresql-approximate", ef_search=200))
    codes = trained_like(6_000)
    engine.upsert(photos_with(codes), fingerprint=ME)
    queries = trained_like(20, seed=3)
    assert recall(engine, queries, 10) == 1.0  # there is no index yet
    engine.settle()
    table = f"{engine.tables.schema}.codes"
    plan = f"EXPLAIN SELECT id FROM {table} ORDER BY code <~> (SELECT code FROM {table} LIMIT 1) LIMIT 9"
    assert "codes_1_nearest" in str(postgres_server.run(plan))
    assert not engine.exact
    assert recall(engine, queries, 10) > 0.9
    assert recall(engine, queries, 100) > 0.9
    found = engine.search(codes[0], 50, choice=Choice(carrying=("even",)), fingerprint=ME)
    assert found.total == 2000
    assert list(zip(found.distances, found.ids, strict=True)) == sorted(zip(found.distances, found.ids, strict=True))
    truth = np.sort(codes[0].distances(codes)[0])
    deep = engine.search(codes[0], 10, offset=5_000, fingerprint=ME)  # deeper than the index reaches
    assert deep.distances.tolist() == truth[5_000:5_010].tolist()
    exact = Postgres.open(Path(), engine.server.address.shown.replace("-approximate", "").replace("&ef_search=200", ""))
    for i in range(5):  # the index of the other must not tempt this one
        expected = np.lexsort((np.arange(6_000), queries[i].distances(codes)[0]))[:100] + 1
        assert exact.search(queries[i], 100, fingerprint=ME).ids.tolist() == expected.tolist()
    exact.close()
    engine.close()


def test_pages_of_hnsw_name_every_photo_once(postgres_server: Any) -> None:
    """An index that misses much: with few neighbours each, of codes that are like nothing."""
    url = postgres_server.url(scheme="postgresql-approximate", m=2, ef_construction=4, ef_search=40)
    engine: PostgresApproximate = create(url)
    rng = np.random.default_rng(5)
    engine.upsert(photos_with(Codes.from_bits(rng.integers(0, 2, (900, BITS)))), fingerprint=ME)
    engine.settle()
    query = Codes.from_bits(rng.integers(0, 2, (1, BITS)))
    for choice in (Choice(), Choice(excluded=(3, 4)), Choice(carrying=("even",))):
        whole = engine.search(query, 900, choice=choice, fingerprint=ME).ids.tolist()
        pages = [engine.search(query, 30, offset=at, choice=choice, fingerprint=ME) for at in range(0, 930, 30)]
        assert [id for page in pages for id in page.ids.tolist()] == whole
        assert len(set(whole)) == len(whole) == pages[0].total
    engine.close()


def test_recall_is_the_share_of_results_that_are_near_enough(engine: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = trained_like(500)
    engine.upsert(photos_with(codes), fingerprint=ME)
    assert recall(engine, codes[:4], 10) == 1.0
    search = engine.search

    def forgetful(query: Codes, k: int, **rest: Any) -> Any:
        found = search(query, k, **rest)
        return replace(found, ids=found.ids[1:], distances=found.distances[1:])

    monkeypatch.setattr(engine, "search", forgetful)
    assert recall(engine, codes[:4], 10) == pytest.approx(0.9)


def test_walks_go_through_all_in_parts(engine: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyphash.engines.postgres.PART", 7)
    codes = trained_like(30)
    photos = photos_with(codes)
    ids = engine.upsert([*photos[:-1], replace(photos[-1], look=b"")], fingerprint=ME)
    parts = list(engine.scan())
    assert [len(part) for part, _ in parts] == [7, 7, 7, 7, 2]
    assert np.concatenate([part for part, _ in parts]).tolist() == ids
    assert Codes.concatenate(part for _, part in parts) == codes
    looks = np.concatenate([part[1] for part in engine.looks()])
    assert looks.tolist() == [*range(29), 0]


# ── one database for many ────────────────────────────────────────────────────────────────────────────────


def test_a_second_machine_joins_and_sees_what_the_first_does(engine: Postgres, url: str) -> None:
    (id,) = engine.upsert(photos_with(trained_like(1)), fingerprint=ME)
    second = create(url)
    assert second.count() == 1
    second.relabel(id, lambda photo: replace(photo, labels=("seen",)))
    assert engine.get([id])[0].labels == ("seen",)
    with pytest.raises(OtherHasherError, match="reindex"):
        create(url, fingerprint="another")
    second.close()


def test_collections_beside_each_other_do_not_meet(engine: Postgres, postgres_server: Any) -> None:
    other = create(postgres_server.url(collection="beside"), fingerprint="another", bits=7)
    engine.upsert(photos_with(trained_like(3)), fingerprint=ME)
    assert (other.count(), engine.count()) == (0, 3)
    other.close()
    with pytest.raises(ConfigError, match="a name has"):
        create(postgres_server.url(collection="Robert'); DROP"))
    with pytest.raises(CollectionError, match="there is no collection 'nowhere'"):
        Postgres.open(Path(), postgres_server.url(collection="nowhere"))


def test_partitions_hold_all_between_them(postgres_server: Any) -> None:
    url = postgres_server.url(partitions=3)
    engine, codes = create(url), trained_like(300)
    engine.upsert(photos_with(codes), fingerprint=ME)
    schema = engine.tables.schema
    for table in ("photos", "codes_1"):
        counts = [postgres_server.run(f"SELECT count(*) FROM ONLY {schema}.{table}_{part}")[0][0] for part in range(3)]
        assert sum(counts) == 300
        assert min(counts) > 50
    assert engine.upsert(photos_with(codes), fingerprint=ME) == list(range(1, 301))
    expected = np.lexsort((np.arange(300), codes[0].distances(codes)[0]))[:20] + 1
    assert engine.search(codes[0], 20, fingerprint=ME).ids.tolist() == expected.tolist()
    create(url.replace("&partitions=3", "")).close()
    with pytest.raises(ConfigError, match="has 3 partitions"):
        create(url.replace("partitions=3", "partitions=2"))
    engine.close()


def test_other_programs_can_join_the_tables(engine: Postgres, postgres_server: Any) -> None:
    codes = trained_like(20)
    engine.upsert(photos_with(codes), fingerprint=ME)
    schema = engine.tables.schema
    postgres_server.run("CREATE EXTENSION IF NOT EXISTS vector")
    query = "".join(str(int(bit)) for bit in codes[4].unpacked()[0])  # the first bit first
    rows = postgres_server.run(
        f"SELECT p.path, c.code <~> B'{query}' FROM {schema}.photos p JOIN {schema}.codes c USING (id) "
        "WHERE p.labels @> ARRAY['odd'] ORDER BY 2, p.id LIMIT 1"
    )
    assert rows == [("/photos/4.jpg", 0.0)]


def moved(engine: Postgres, fingerprint: str, bits: int) -> None:
    engine.prepare(fingerprint, bits)
    codes = trained_like(engine.count(), bits=bits, seed=1).packed
    photos = [replace(photo, code=row.tobytes()) for photo, row in zip(engine.page(0, 99), codes, strict=True)]
    engine.store(photos, fingerprint=fingerprint)
    assert engine.switch(fingerprint)


def test_what_others_built_on_the_codes_stays_through_a_move(engine: Postgres, postgres_server: Any) -> None:
    engine.upsert(photos_with(trained_like(3)), fingerprint=ME)
    codes = f"{engine.tables.schema}.codes"
    postgres_server.run(f"CREATE VIEW {codes}_theirs AS SELECT id, code FROM {codes} WHERE id > 1")
    postgres_server.run(f"CREATE MATERIALIZED VIEW {codes}_copied AS SELECT count(*) FROM {codes}")
    before = postgres_server.run(f"SELECT * FROM {codes}_theirs")
    moved(engine, "another", BITS)
    assert [row[0] for row in postgres_server.run(f"SELECT * FROM {codes}_theirs ORDER BY id")] == [2, 3]
    assert postgres_server.run(f"SELECT * FROM {codes}_theirs") != before
    with pytest.raises(EngineError, match=r"another number of bits.*view \S*codes_copied, view \S*codes_theirs was b"):
        engine.prepare("third", BITS + 1)
    assert engine.state().fingerprint == "another"
    assert engine.pending(9) == engine.page(0, 9)  # nothing was begun
    for kind, name in {"VIEW": "theirs", "MATERIALIZED VIEW": "copied"}.items():
        postgres_server.run(f"DROP {kind} {codes}_{name}")
    moved(engine, "third", BITS + 1)
    assert len(postgres_server.run(f"SELECT code FROM {codes}")[0][0]) == BITS + 1


def test_codes_that_others_built_on_are_not_dropped_under_them(engine: Postgres, postgres_server: Any) -> None:
    engine.upsert(photos_with(trained_like(3)), fingerprint=ME)
    schema = engine.tables.schema
    postgres_server.run(f"CREATE VIEW {schema}.theirs AS SELECT id FROM {schema}.codes_1")
    moved(engine, "another", BITS)
    with pytest.raises(EngineError, match=r"codes_1.*let them build on the view `codes`"):
        engine.compact()


# ── formats ──────────────────────────────────────────────────────────────────────────────────────────────


def test_tables_of_an_older_format_are_brought_up_to_date(
    engine: Postgres, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = engine.upsert(photos_with(trained_like(5)), fingerprint=ME)
    steps = ("ALTER TABLE {schema}.photos ADD COLUMN note text", "UPDATE {schema}.photos SET note = 'migrated'")
    monkeypatch.setattr(tables, "MIGRATIONS", steps)
    with pytest.raises(CollectionError, match="of format 1; open the collection again"):
        engine.count()  # one that was open when hyphash was renewed under it
    opened = [Postgres.open(Path(), url) for _ in range(2)]
    assert opened[1].get(ids) == opened[0].get(ids) != []
    schema = engine.tables.schema
    found = opened[0].server.reading(
        lambda tx: tx.execute(f"SELECT DISTINCT note FROM {schema}.photos".encode()).fetchall()
    )
    assert found == [("migrated",)]
    for other in opened:
        other.close()
    monkeypatch.setattr(tables, "MIGRATIONS", ())
    with pytest.raises(CollectionError, match=r"newer hyphash \(format 3, this one reads 1\); run: pip install -U"):
        Postgres.open(Path(), url)


def test_a_migration_that_fails_changes_nothing(engine: Postgres, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = ("ALTER TABLE {schema}.photos ADD COLUMN note text", "SELECT 1 / 0")
    monkeypatch.setattr(tables, "MIGRATIONS", steps)
    with pytest.raises(EngineError, match="bringing the tables up to date failed"):
        Postgres.open(Path(), url)
    monkeypatch.setattr(tables, "MIGRATIONS", ())
    assert engine.count() == 0


# ── several writers, and servers that go away ────────────────────────────────────────────────────────────


def test_writers_wait_for_each_other_and_then_say_so(engine: Postgres, url: str) -> None:
    (id,) = engine.upsert(photos_with(trained_like(1)), fingerprint=ME)
    inside, leave = threading.Event(), threading.Event()

    def slow(photo: Photo) -> Photo:
        inside.set()
        leave.wait(10)
        return replace(photo, labels=("slow",))

    writer = threading.Thread(target=engine.relabel, args=(id, slow))
    writer.start()
    inside.wait(10)
    hasty = Postgres.open(Path(), url, wait=0.2)
    assert hasty.count() == 1  # readers do not wait
    with pytest.raises(BusyError, match=r"another program is writing; this one waited 0\.2 s"):
        hasty.remove([id])
    leave.set()
    writer.join()
    assert hasty.remove([id]) == 1
    hasty.close()


def lose_the_answer(monkeypatch: pytest.MonkeyPatch, times: int = 1) -> None:
    """The server does as it is told, but the connection breaks before it can say so."""
    transaction, left = Server._transaction, iter(range(times))

    def lossy(self: Server, work: Callable[..., Any], level: Any, *, read_only: bool) -> Any:
        result = transaction(self, work, level, read_only=read_only)
        if not read_only and next(left, None) is not None:
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return result

    monkeypatch.setattr(Server, "_transaction", lossy)


def test_a_change_whose_answer_was_lost_is_not_made_again(engine: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = photos_with(trained_like(4))
    lose_the_answer(monkeypatch, times=2)
    ids = engine.upsert(photos, fingerprint=ME)
    assert engine.count() == 4
    lose_the_answer(monkeypatch)
    after = engine.relabel(ids[0], lambda photo: replace(photo, labels=(*photo.labels, f"l{len(photo.labels)}")))
    assert after == engine.get([ids[0]])[0]
    assert after is not None
    assert after.labels == ("even", "l1")  # edited once, not twice
    lose_the_answer(monkeypatch)
    assert engine.remove(ids[:2]) == 2
    assert engine.verify() == []


def test_a_server_killed_in_the_middle_of_a_load_loses_and_doubles_nothing(
    postgres_server: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyphash.engines.retrying.LONGEST_PAUSE", 0.5)  # the server is back sooner than in life
    engine = create(postgres_server.url(patience=30))
    codes = trained_like(20_000)
    photos = photos_with(codes)
    done: list[list[int]] = []
    batches = [photos[start : start + 1_000] for start in range(0, 20_000, 1_000)]
    loader = threading.Thread(target=lambda: done.extend(engine.upsert(batch, fingerprint=ME) for batch in batches))
    loader.start()
    for after in (3, 9):
        while len(done) < after:
            time.sleep(0.005)
        time.sleep(0.03)  # well into the next batch
        postgres_server.kill()
        time.sleep(0.3)
        postgres_server.start()
    loader.join()
    assert [id for batch in done for id in batch] == list(range(1, 20_001))
    assert engine.count() == 20_000
    scanned = list(engine.scan())
    assert np.concatenate([ids for ids, _ in scanned]).tolist() == list(range(1, 20_001))
    assert Codes.concatenate(part for _, part in scanned) == codes
    assert engine.verify() == []
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any("adding photos failed" in line and "trying again" in line for line in told)
    engine.close()


def test_a_server_that_stays_away_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"failed for 0\.5 seconds.*see that the server runs") as told:
        Postgres.open(tmp_path, f"postgresql://me:geheim@/photos?host={tmp_path}&patience=0.5")
    assert "geheim" not in str(told.value)


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def guarded(postgres_server: Any) -> str:
    """The address of a user who needs a password."""
    rules = postgres_server.folder / "data" / "pg_hba.conf"
    if "guarded" not in rules.read_text():
        rules.write_text("local all guarded scram-sha-256\n" + rules.read_text())
        postgres_server.run("CREATE ROLE guarded LOGIN PASSWORD 'Sesam-öffne-dich'")
        postgres_server.run("GRANT CREATE ON DATABASE postgres TO guarded")
        postgres_server.run("SELECT pg_reload_conf()")
        time.sleep(0.2)
    address: str = postgres_server.url(user="guarded")
    return address


def test_passwords_come_from_the_address_or_the_environment(guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create(guarded.replace("guarded@", "guarded:Sesam-%C3%B6ffne-dich@")).close()
    monkeypatch.setenv("HYPHASH_ENGINE_PASSWORD", "Sesam-öffne-dich")
    create(guarded).close()
    monkeypatch.delenv("HYPHASH_ENGINE_PASSWORD")
    monkeypatch.setenv("PGPASSWORD", "Sesam-öffne-dich")
    create(guarded).close()


def test_no_password_is_ever_told(guarded: str, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    with pytest.raises(EngineError, match=r"authentication failed.*HYPHASH_ENGINE_PASSWORD") as told:
        create(guarded.replace("guarded@", "guarded:Falsch-geraten@"))
    assert "trying again" not in caplog.text  # it would not help
    with pytest.raises(EngineError, match="no password supplied"):
        create(guarded)
    cause: BaseException | None = told.value
    while cause is not None:
        assert "Falsch" not in str(cause) + repr(cause)
        cause = cause.__cause__
    assert "Falsch" not in caplog.text


def test_values_that_the_server_cannot_hold_are_refused_at_once(engine: Postgres) -> None:
    (photo,) = photos_with(trained_like(1))
    long = "".join(map(chr, np.random.default_rng(0).integers(0x4E00, 0x9FFF, 4000).tolist()))
    with pytest.raises(EngineError, match=r"index.*too long"):
        engine.upsert([replace(photo, path=long)], fingerprint=ME)
    with pytest.raises(EngineError, match=r"NUL.*leave the photo out"):
        engine.upsert([replace(photo, path="a\0b")], fingerprint=ME)
    with pytest.raises(CollectionError, match=r"udcff.*no proper text"):
        engine.upsert([replace(photo, path="\udcff")], fingerprint=ME)
    with pytest.raises(CollectionError, match=r"'yesterday' is no time"):
        engine.upsert([replace(photo, added="yesterday")], fingerprint=ME)
    assert (engine.count(), engine.verify()) == (0, [])


def test_what_the_user_may_not_do_is_said(guarded: str, engine: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPHASH_ENGINE_PASSWORD", "Sesam-öffne-dich")
    stranger = guarded.partition("collection=")[0] + f"collection={engine.tables.schema}"
    with pytest.raises(EngineError, match=r"permission denied.*administrator"):
        Postgres.open(Path(), stranger)


# ── care ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_verify_sees_what_others_did_to_the_tables(engine: Postgres, postgres_server: Any) -> None:
    engine.upsert(photos_with(trained_like(9)), fingerprint=ME)
    assert engine.verify() == []
    schema = engine.tables.schema
    postgres_server.run(f"DELETE FROM {schema}.codes_1 WHERE id = 2")
    postgres_server.run(f"DELETE FROM {schema}.photos WHERE id = 3")
    found = " ".join(engine.verify())
    assert "/photos/1.jpg has no code" in found
    assert "the code of photo 3 is left over" in found
    assert "there are 8 photos" in found


def test_room_on_the_server_is_counted_and_given_back(engine: Postgres) -> None:
    before = engine.bytes_elsewhere()
    ids = engine.upsert(photos_with(trained_like(2_000)), fingerprint=ME)
    full = engine.bytes_elsewhere()
    assert full > before + 2_000 * 100
    engine.prepare("other", 8)
    engine.store([replace(photo, code=b"1") for photo in engine.get(ids)], fingerprint="other")
    assert engine.switch("other")
    moved = engine.bytes_elsewhere()
    engine.compact()
    assert engine.bytes_elsewhere() < moved
    assert engine.count() == 2_000


def test_old_stamps_are_swept_and_young_ones_kept(engine: Postgres, postgres_server: Any) -> None:
    engine.upsert(photos_with(trained_like(1)), fingerprint=ME)
    commits = f"{engine.tables.schema}.commits"
    postgres_server.run(f"INSERT INTO {commits} VALUES (0, 'old', 'x', now() - interval '2 days')")
    engine.settle()
    assert [row[0] for row in postgres_server.run(f"SELECT what FROM {commits}")] == ["adding photos"]
