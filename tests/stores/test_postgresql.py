"""What the store in PostgreSQL does beyond the contract: share a database, survive its server, keep secrets."""

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

import drawing
import numpy as np
import psycopg
import pytest

from hyphash.codes import Codes
from hyphash.errors import BusyError, CollectionError, ConfigError, EngineError, OtherHasherError
from hyphash.stores import Photo, follows
from hyphash.stores.address import name_hosts
from hyphash.stores.postgresql import PostgreSQL, session
from hyphash.stores.postgresql.server import Server

ME = "0123456789abcdef"
BITS = 36
trained_like = partial(drawing.trained_like, bits=BITS)
photos_with = drawing.even_and_odd


def create(url: str, *, fingerprint: str = ME, bits: int = BITS) -> PostgreSQL:
    return PostgreSQL.create(Path(), url, fingerprint=fingerprint, bits=bits)


@pytest.fixture
def url(postgres_server: Any) -> str:
    address: str = postgres_server.url(patience=20)
    return address


@pytest.fixture
def store(url: str) -> Iterator[PostgreSQL]:
    store = create(url)
    yield store
    store.close()


def test_the_names_of_stores_and_searchers_are_known_without_psycopg() -> None:
    program = (
        "import sys; from hyphash.stores import stores; from hyphash.searchers import searchers; "
        "print(stores.names(), searchers.names(), 'psycopg' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "postgresql-approximate" in told
    assert told.strip().endswith("False")


def test_without_psycopg_an_address_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None; from hyphash.stores import store_for; from pathlib import Path; "
        "store_for('postgresql://').open(Path(), 'postgresql://h/d')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install 'hyphash[postgres]'" in done.stderr


def test_walks_go_through_all_in_parts(store: PostgreSQL) -> None:
    codes = trained_like(30)
    photos = photos_with(codes)
    bare = replace(photos[-1], facts=replace(photos[-1].facts, thumbnail_hash=b""))
    ids = store.upsert([*photos[:-1], bare], fingerprint=ME)
    in_use, after, parts, hashes = store.state().in_use, 0, [], []
    while len((part := store.read(lambda tx: tx.derived(in_use, after=after, limit=7)[:2]))[0]):  # noqa: B023
        hashes += store.read(lambda tx: tx.thumbnail_hashes(after=after, limit=7))[1].tolist()  # noqa: B023
        parts.append(part)
        after = int(part[0][-1])
    assert [len(part) for part, _ in parts] == [7, 7, 7, 7, 2]
    assert np.concatenate([part for part, _ in parts]).tolist() == ids
    assert Codes.concatenate(part for _, part in parts) == codes
    assert hashes == [*range(29), 0]


# ── one database for many ────────────────────────────────────────────────────────────────────────────────


def test_a_second_machine_joins_and_sees_what_the_first_does(store: PostgreSQL, url: str) -> None:
    (id,) = store.upsert(photos_with(trained_like(1)), fingerprint=ME)
    second = create(url)
    assert second.count() == 1
    second.relabel(id, lambda photo: replace(photo, labels=("seen",)))
    assert store.get([id])[0].labels == ("seen",)
    with pytest.raises(OtherHasherError, match="reindex"):
        create(url, fingerprint=drawing.ANOTHER)
    second.close()


def test_collections_beside_each_other_do_not_meet(store: PostgreSQL, postgres_server: Any) -> None:
    other = create(postgres_server.url(collection="beside"), fingerprint=drawing.ANOTHER, bits=7)
    store.upsert(photos_with(trained_like(3)), fingerprint=ME)
    assert (other.count(), store.count()) == (0, 3)
    other.close()
    with pytest.raises(ConfigError, match="a name has"):
        create(postgres_server.url(collection="Robert'); DROP"))
    with pytest.raises(CollectionError, match="there is no collection 'nowhere'"):
        PostgreSQL.open(Path(), postgres_server.url(collection="nowhere"))


def test_partitions_hold_all_between_them(postgres_server: Any) -> None:
    url = postgres_server.url(partitions=3)
    store, codes = create(url), trained_like(300)
    store.upsert(photos_with(codes), fingerprint=ME)
    schema = store.schema.name
    for table in ("photos", "codes_1"):
        counts = [postgres_server.run(f"SELECT count(*) FROM ONLY {schema}.{table}_{part}")[0][0] for part in range(3)]
        assert sum(counts) == 300
        assert min(counts) > 50
    assert store.upsert(photos_with(codes), fingerprint=ME) == list(range(1, 301))
    assert store.remove(range(1, 101)) == 100
    assert [photo.id for photo in store.page(0, 3)] == [101, 102, 103]
    assert store.verify() == []
    create(url.replace("&partitions=3", "")).close()
    with pytest.raises(ConfigError, match="has 3 partitions"):
        create(url.replace("partitions=3", "partitions=2"))
    store.close()


def test_other_programs_can_join_the_tables(store: PostgreSQL, postgres_server: Any) -> None:
    codes = trained_like(20)
    store.upsert(photos_with(codes), fingerprint=ME)
    schema = store.schema.name
    postgres_server.run("CREATE EXTENSION IF NOT EXISTS vector")
    query = "".join(str(int(bit)) for bit in codes[4].unpacked()[0])  # the first bit first
    rows = postgres_server.run(
        f"SELECT p.path, c.code <~> B'{query}' FROM {schema}.photos p JOIN {schema}.codes c USING (id) "
        "WHERE p.labels @> ARRAY['odd'] ORDER BY 2, p.id LIMIT 1"
    )
    assert rows == [("/photos/000004.jpg", 0.0)]


def moved(store: PostgreSQL, fingerprint: str, bits: int) -> None:
    store.prepare(fingerprint, bits)
    codes = trained_like(store.count(), bits=bits, seed=1).packed
    photos = [replace(photo, code=row.tobytes()) for photo, row in zip(store.page(0, 99), codes, strict=True)]
    store.put_coming(photos, fingerprint=fingerprint)
    assert store.switch(fingerprint)


def test_what_others_built_on_the_codes_stays_through_a_move(store: PostgreSQL, postgres_server: Any) -> None:
    store.upsert(photos_with(trained_like(3)), fingerprint=ME)
    codes = f"{store.schema.name}.codes"
    postgres_server.run(f"CREATE VIEW {codes}_theirs AS SELECT id, code FROM {codes} WHERE id > 1")
    postgres_server.run(f"CREATE MATERIALIZED VIEW {codes}_copied AS SELECT count(*) FROM {codes}")
    before = postgres_server.run(f"SELECT * FROM {codes}_theirs")
    moved(store, drawing.ANOTHER, BITS)
    assert [row[0] for row in postgres_server.run(f"SELECT * FROM {codes}_theirs ORDER BY id")] == [2, 3]
    assert postgres_server.run(f"SELECT * FROM {codes}_theirs") != before
    with pytest.raises(EngineError, match=r"another number of bits.*view \S*codes_copied, view \S*codes_theirs was b"):
        store.prepare(drawing.THIRD, BITS + 1)
    assert store.state().fingerprint == drawing.ANOTHER
    assert store.pending(9) == store.page(0, 9)  # nothing was begun
    for kind, name in {"VIEW": "theirs", "MATERIALIZED VIEW": "copied"}.items():
        postgres_server.run(f"DROP {kind} {codes}_{name}")
    moved(store, drawing.THIRD, BITS + 1)
    assert len(postgres_server.run(f"SELECT code FROM {codes}")[0][0]) == BITS + 1


def test_codes_that_others_built_on_are_not_dropped_under_them(store: PostgreSQL, postgres_server: Any) -> None:
    store.upsert(photos_with(trained_like(3)), fingerprint=ME)
    schema = store.schema.name
    postgres_server.run(f"CREATE VIEW {schema}.theirs AS SELECT id FROM {schema}.codes_1")
    moved(store, drawing.ANOTHER, BITS)
    with pytest.raises(EngineError, match=r"codes_1.*let them build on the view `codes`"):
        store.compact()


# ── formats ──────────────────────────────────────────────────────────────────────────────────────────────


def _undescribed(photo: Photo) -> Photo:
    return replace(photo, facts=replace(photo.facts, taken=None, camera=None, latitude=None, longitude=None))


def made_old(store: PostgreSQL, server: Any) -> None:
    """Turn the tables into those that format 1 had."""
    name = store.schema.name
    for statement in (
        f"DROP TABLE {name}.changes, {name}.searchers, {name}.removed",
        *(f"ALTER TABLE {name}.photos DROP COLUMN {new}" for new in ("taken", "camera", "latitude", "longitude")),
        *(f"ALTER TABLE {name}.collection DROP COLUMN {new}" for new in ("identity", "stamp", "pruned", "changes")),
        f"ALTER TABLE {name}.photos RENAME COLUMN thumbnail_hash TO look",
        f"ALTER TABLE {name}.codes_1 DROP COLUMN scores",
        f"DROP INDEX {name}.photos_by_refusal",
        f"UPDATE {name}.collection SET format = 1",
    ):
        server.run(statement)


@pytest.mark.parametrize("swept", [False, True], ids=["stamps there", "stamps swept"])
def test_tables_of_format_1_are_brought_up_to_date(
    store: PostgreSQL, url: str, postgres_server: Any, swept: bool
) -> None:
    ids = store.upsert(photos_with(trained_like(5)), fingerprint=ME)
    photos, before = [_undescribed(photo) for photo in store.get(ids)], store.state()
    made_old(store, postgres_server)
    if swept:
        postgres_server.run(f"DELETE FROM {store.schema.name}.commits")
    with pytest.raises(CollectionError, match="of format 1; open the collection again"):
        store.state()  # one that was open when hyphash was renewed under it
    opened = [PostgreSQL.open(Path(), url), create(url)]
    for other in opened:
        after = other.state()
        assert other.get(ids) == photos
        assert (after.commit, after.photos, after.last_id) == (before.commit, before.photos, before.last_id)
        assert (after.pruned, len(after.identity)) == (before.commit, 32)
        assert other.read(lambda tx: tx.stamp(before.commit)) == after.position.stamp != ""
        assert (after.position.stamp == before.position.stamp) == (not swept)
        assert other.read(lambda tx: follows(tx, tx.state().position))
    other.upsert(photos_with(trained_like(1, seed=1), start=9), fingerprint=ME)
    assert store.read(lambda tx: tx.changed(after.commit, labels=False)).tolist() == [6]
    described = replace(
        photos[0], facts=replace(photos[0].facts, taken=7, camera="Drawn", latitude=1.5, longitude=-2.5)
    )
    other.upsert([described], fingerprint=ME)
    assert store.get(ids[:1])[0].facts == described.facts
    assert store.verify() == []
    for other in opened:
        other.close()


def test_tables_of_a_newer_format_are_refused(store: PostgreSQL, url: str, postgres_server: Any) -> None:
    postgres_server.run(f"UPDATE {store.schema.name}.collection SET format = 99")
    for attempt in (store.state, lambda: PostgreSQL.open(Path(), url), lambda: create(url)):
        with pytest.raises(CollectionError, match=r"newer hyphash \(format 99, this one reads 4\); run: pip"):
            attempt()


def test_a_migration_that_fails_changes_nothing(
    store: PostgreSQL, url: str, postgres_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_old(store, postgres_server)
    with monkeypatch.context() as patch:
        patch.setattr(session, "MIGRATIONS", (session.MIGRATIONS[0] + "SELECT 1 / 0",))
        with pytest.raises(EngineError, match="bringing the tables up to date failed"):
            PostgreSQL.open(Path(), url)
    PostgreSQL.open(Path(), url).close()
    assert (store.count(), store.verify()) == (0, [])


# ── several writers, and servers that go away ────────────────────────────────────────────────────────────


def test_writers_wait_for_each_other_and_then_say_so(store: PostgreSQL, url: str) -> None:
    (id,) = store.upsert(photos_with(trained_like(1)), fingerprint=ME)
    inside, leave = threading.Event(), threading.Event()

    def slow(photo: Photo) -> Photo:
        inside.set()
        leave.wait(10)
        return replace(photo, labels=("slow",))

    writer = threading.Thread(target=store.relabel, args=(id, slow))
    writer.start()
    inside.wait(10)
    hasty = PostgreSQL.open(Path(), url, wait=0.2)
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


def test_a_change_whose_answer_was_lost_is_not_made_again(store: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = photos_with(trained_like(4))
    lose_the_answer(monkeypatch, times=2)
    ids = store.upsert(photos, fingerprint=ME)
    assert store.count() == 4
    lose_the_answer(monkeypatch)
    after = store.relabel(ids[0], lambda photo: replace(photo, labels=(*photo.labels, f"l{len(photo.labels)}")))
    assert after == store.get([ids[0]])[0]
    assert after is not None
    assert after.labels == ("even", "l1")  # edited once, not twice
    lose_the_answer(monkeypatch)
    assert store.remove(ids[:2]) == 2
    assert store.verify() == []


def test_a_server_killed_in_the_middle_of_a_load_loses_and_doubles_nothing(
    postgres_server: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyphash.stores.retry.LONGEST_PAUSE", 0.5)  # the server is back sooner than in life
    store = create(postgres_server.url(patience=30))
    codes = trained_like(20_000)
    photos = photos_with(codes)
    done: list[list[int]] = []
    batches = [photos[start : start + 1_000] for start in range(0, 20_000, 1_000)]
    loader = threading.Thread(target=lambda: done.extend(store.upsert(batch, fingerprint=ME) for batch in batches))
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
    assert store.count() == 20_000
    scanned = list(store.scan())
    assert np.concatenate([ids for ids, _ in scanned]).tolist() == list(range(1, 20_001))
    assert Codes.concatenate(part for _, part in scanned) == codes
    assert store.verify() == []
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any("adding photos failed" in line and "trying again" in line for line in told)
    store.close()


def test_a_server_that_stays_away_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"failed for 0\.5 seconds.*see that the server runs") as told:
        PostgreSQL.open(tmp_path, f"postgresql://me:geheim@/photos?host={tmp_path}&patience=0.5")
    assert "geheim" not in str(told.value)


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def guarded(postgres_server: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a user who needs a password."""
    rules = postgres_server.folder / "data" / "pg_hba.conf"
    if "guarded" not in rules.read_text():
        rules.write_text("local all guarded scram-sha-256\n" + rules.read_text())
        postgres_server.run("CREATE ROLE guarded LOGIN PASSWORD 'Sesam-öffne-dich'")
        postgres_server.run("GRANT CREATE ON DATABASE postgres TO guarded")
        postgres_server.run("SELECT pg_reload_conf()")
        time.sleep(0.2)
    address: str = postgres_server.url(user="guarded")
    monkeypatch.setattr("hyphash.stores.address._named", set())
    name_hosts(address)
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


def test_values_that_the_server_cannot_hold_are_refused_at_once(store: PostgreSQL) -> None:
    (photo,) = photos_with(trained_like(1))
    long = "".join(map(chr, np.random.default_rng(0).integers(0x4E00, 0x9FFF, 4000).tolist()))
    with pytest.raises(EngineError, match=r"index.*too long"):
        store.upsert([replace(photo, path=long)], fingerprint=ME)
    with pytest.raises(EngineError, match=r"NUL.*leave the photo out"):
        store.upsert([replace(photo, path="a\0b")], fingerprint=ME)
    with pytest.raises(CollectionError, match=r"udcff.*no proper text"):
        store.upsert([replace(photo, path="\udcff")], fingerprint=ME)
    with pytest.raises(CollectionError, match=r"'yesterday' is no time"):
        store.upsert([replace(photo, added="yesterday")], fingerprint=ME)
    assert (store.count(), store.verify()) == (0, [])


def test_what_the_user_may_not_do_is_said(guarded: str, store: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPHASH_ENGINE_PASSWORD", "Sesam-öffne-dich")
    stranger = guarded.partition("collection=")[0] + f"collection={store.schema.name}"
    with pytest.raises(EngineError, match=r"permission denied.*administrator"):
        PostgreSQL.open(Path(), stranger)


# ── care ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_verify_sees_what_others_did_to_the_tables(store: PostgreSQL, postgres_server: Any) -> None:
    store.upsert(photos_with(trained_like(9)), fingerprint=ME)
    assert store.verify() == []
    schema = store.schema.name
    postgres_server.run(f"DELETE FROM {schema}.codes_1 WHERE id = 2")
    postgres_server.run(f"DELETE FROM {schema}.photos WHERE id = 3")
    found = " ".join(store.verify())
    assert "/photos/000001.jpg has no code" in found
    assert "the code of photo 3 is left over" in found
    assert "there are 8 photos" in found


def test_room_on_the_server_is_counted_and_given_back(store: PostgreSQL) -> None:
    before = store.bytes_elsewhere()
    ids = store.upsert(photos_with(trained_like(2_000)), fingerprint=ME)
    full = store.bytes_elsewhere()
    assert full > before + 2_000 * 100
    store.prepare(drawing.OTHER, 8)
    store.put_coming([replace(photo, code=b"1") for photo in store.get(ids)], fingerprint=drawing.OTHER)
    assert store.switch(drawing.OTHER)
    moved = store.bytes_elsewhere()
    store.compact()
    assert store.bytes_elsewhere() < moved
    assert store.count() == 2_000


def test_old_changes_are_swept_and_stamps_of_the_last_day_kept(
    store: PostgreSQL, postgres_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower that is further behind is built anew; a change whose answer got lost still finds its stamp."""
    monkeypatch.setattr("hyphash.stores.KEPT_CHANGES", 5)
    positions = [store.state().position]
    for i in range(12):
        store.upsert(photos_with(trained_like(1), start=i), fingerprint=ME)
        positions.append(store.state().position)
    commits = f"{store.schema.name}.commits"
    postgres_server.run(f"UPDATE {commits} SET time = now() - interval '2 days' WHERE number < 5")
    store.tidy()
    assert (store.state().pruned, store.state().changes) == (7, 5)
    assert [row[0] for row in postgres_server.run(f"SELECT number FROM {commits} ORDER BY 1")] == list(range(5, 13))
    known = [store.read(lambda tx, at=at: follows(tx, at)) for at in positions]  # type: ignore[misc]
    assert known == [False] * 7 + [True] * 6
    assert store.read(lambda tx: tx.changed(7, labels=False)).tolist() == [8, 9, 10, 11, 12]
    store.tidy()
    assert store.state().pruned == 7
