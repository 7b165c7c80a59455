"""PostgreSQL that asks who is there: passwords, TLS, users who may only read, and servers that take no changes."""

import logging
import os
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import drawing
import pytest
from refusing import refused, with_password

from hyphash.codes import Codes
from hyphash.errors import EngineError
from hyphash.searchers import Found, Query
from hyphash.searchers.postgresql import InTables
from hyphash.stores.address import HOSTS, PASSWORD, name_hosts
from hyphash.stores.postgresql import PostgreSQL

ME = "0123456789abcdef"
BITS = 24
WRONG = "Falsch geraten"  # not written out below: a traceback shows the lines of a test
trained_like = partial(drawing.trained_like, bits=BITS)
photos_with = drawing.even_and_odd
pytestmark = pytest.mark.needs("openssl")


@pytest.fixture(autouse=True)
def no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (PASSWORD, "PGPASSWORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(HOSTS, "127.0.0.1,localhost")


@pytest.fixture(scope="module")
def papers(servers: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Certificates and keys, which the user that PostgreSQL runs as can read."""
    folder = Path(servers.tempfile.mkdtemp(prefix="hyphash-papers-"))
    servers.certificates(folder)
    yield folder
    shutil.rmtree(folder)


def create(url: str) -> PostgreSQL:
    name_hosts(url)
    return PostgreSQL.create(Path(), url, fingerprint=ME, bits=BITS)


def found(store: PostgreSQL, query: Codes, k: int) -> Found:
    return InTables.open(Path(), "postgresql", store).search(Query(query, k, fingerprint=ME))


# ── passwords ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def guarded(servers: ModuleType) -> Iterator[Any]:
    server = servers.GuardedPostgres()
    yield server
    server.stop()


@pytest.fixture
def let_in(guarded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, guarded.PASSWORD)


@pytest.fixture
def store(guarded: Any, let_in: None) -> Iterator[PostgreSQL]:
    store = create(guarded.url(patience=20))
    yield store
    store.close()


def test_postgresql_lets_those_in_who_know_the_password(guarded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    url = guarded.url()
    create(with_password(url, guarded.PASSWORD)).close()
    for name in (PASSWORD, "PGPASSWORD"):
        with monkeypatch.context() as patch:
            patch.setenv(name, guarded.PASSWORD)
            create(url).close()
    refused(lambda: create(url), "no password supplied.*HYPHASH_ENGINE_PASSWORD")


def test_postgresql_tells_no_password(
    guarded: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    url = guarded.url(patience=1)
    told = refused(lambda: create(with_password(url, WRONG)), "authentication failed.*HYPHASH_ENGINE_PASS")
    monkeypatch.setenv(PASSWORD, WRONG)
    told += refused(lambda: create(url), "authentication failed")
    monkeypatch.setenv(PASSWORD, guarded.PASSWORD)
    store = create(url)
    told += repr(store.server.address) + repr(vars(store.server)) + repr(vars(store.schema))
    store.close()
    gone = url.replace(f":{guarded.port}/", ":1/")
    with pytest.raises(EngineError, match="see that the server runs") as away:
        create(with_password(gone, WRONG))
    told += "".join(traceback.format_exception(away.value)) + caplog.text
    assert "trying again" in told
    assert WRONG not in told
    assert quote(WRONG) not in told
    assert guarded.PASSWORD not in told


def test_a_password_from_the_environment_is_written_nowhere(
    guarded: Any, let_in: None, tmp_path: Path, tiny_hasher: Any, photo_files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hyphash.collection import Collection

    folder, hasher = tmp_path / "collection", tiny_hasher()
    with Collection.into(folder, hasher, engine=guarded.url()) as collection:
        assert collection.add(photo_files(2)).added == 2
    with Collection.open(folder, hasher=hasher) as collection:
        assert len(collection) == 2
    kept = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"postgresql://postgres@127.0.0.1" in kept
    for secret in (guarded.PASSWORD, quote(guarded.PASSWORD)):
        assert secret.encode() not in kept
    monkeypatch.delenv(PASSWORD)
    refused(lambda: Collection.open(folder, hasher=hasher), "no password supplied")


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def with_tls(servers: ModuleType, papers: Path) -> Iterator[Any]:
    """PostgreSQL with ssl=on."""
    builds = [path.parent for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))]
    if not builds:
        pytest.skip("no PostgreSQL that was built with TLS; install one with apt-get install postgresql")
    if os.geteuid() == 0:
        papers.chmod(0o755)
        for file in papers.iterdir():
            shutil.chown(file, "pgserver")
    settings = {"ssl": "on", "ssl_cert_file": papers / "server.pem", "ssl_key_file": papers / "server.key"}
    server = servers.GuardedPostgres(binaries=builds[-1], settings=settings)
    (server.data / "pg_hba.conf").write_text("local all all scram-sha-256\nhostssl all all all scram-sha-256\n")
    server.run("SELECT pg_reload_conf()")
    yield server
    server.stop()


@pytest.fixture(scope="module", params=["by itself", "through a proxy"])
def tls(
    request: pytest.FixtureRequest, servers: ModuleType, guarded: Any, papers: Path
) -> Iterator[Callable[..., str]]:
    """Addresses of a server that speaks TLS by itself, or has a proxy in front that does it."""
    if request.param == "by itself":
        server = request.getfixturevalue("with_tls")
        yield lambda host="localhost", **options: server.url(place=f"{host}:{server.port}", patience=60, **options)
        return
    proxy = servers.Encrypted(guarded.port, papers)
    yield lambda host="localhost", **options: guarded.url(place=f"{host}:{proxy.port}", patience=60, **options)
    proxy.stop()


def test_postgresql_with_tls(tls: Callable[..., str], let_in: None, papers: Path) -> None:
    store = create(tls(sslmode="verify-full", sslrootcert=papers / "ca.pem"))
    ids = store.upsert(photos_with(trained_like(300)), fingerprint=ME)
    assert found(store, trained_like(1), 300).total == len(ids)
    assert store.server.reading(lambda tx: tx.pgconn.ssl_in_use)
    store.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sslrootcert": "other.pem"}, "certificate verify failed.*check sslmode, sslrootcert"),
        ({"sslrootcert": "nowhere.pem"}, "does not exist.*check sslmode, sslrootcert"),
        ({"sslrootcert": "names"}, "could not read root certificate file.*check sslmode"),
        ({"host": "127.0.0.1"}, 'server certificate for "localhost" .*does not match.*check sslmode'),
        ({"sslcert": "client.pem", "sslkey": "server.key"}, "private key file.*check sslmode"),
        ({"sslmode": "verify-all"}, "invalid sslmode value.*mend that option"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_postgresql_whose_certificate_does_not_fit(
    tls: Callable[..., str], let_in: None, papers: Path, options: dict[str, str], words: str
) -> None:
    files = {name: papers / value if name not in ("host", "sslmode") else value for name, value in options.items()}
    url = tls(**({"sslmode": "verify-full", "sslrootcert": papers / "ca.pem"} | files))
    refused(lambda: create(url), words)


def test_postgresql_with_and_without_tls(guarded: Any, with_tls: Any, let_in: None) -> None:
    refused(lambda: create(guarded.url(sslmode="require")), "does not support SSL.*check sslmode")
    refused(lambda: create(with_tls.url(sslmode="disable")), "no pg_hba.conf entry.*no encryption")


# ── rights ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_reader_of_postgresql_may_search_and_is_told_what_else_takes(store: PostgreSQL, guarded: Any) -> None:
    schema = store.schema.name
    guarded.run(f"CREATE ROLE reader LOGIN PASSWORD '{guarded.PASSWORD}'")
    guarded.run(f"GRANT USAGE ON SCHEMA {schema} TO reader")
    guarded.run(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader")
    guarded.run(f"ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT SELECT ON TABLES TO reader")
    codes = trained_like(20)
    ids = store.upsert(photos_with(codes), fingerprint=ME)
    url = guarded.url(user="reader", collection=schema)
    reader = PostgreSQL.open(Path(), url)
    assert found(reader, codes[3], 5).total == 20
    assert reader.labels() == store.labels()
    joined = create(url)  # as `index` begins
    for change in (lambda: joined.upsert(photos_with(codes), fingerprint=ME), lambda: joined.remove(ids)):
        refused(change, "permission denied for table collection.*has to own its tables")
    refused(lambda: create(guarded.url(user="reader")), "permission denied for database.*needs CREATE on the database")
    joined.close()
    store.prepare(drawing.OTHER, 8)
    store.put_coming([replace(photo, code=b"\1") for photo in store.get(ids)], fingerprint=drawing.OTHER)
    assert store.switch(drawing.OTHER)
    assert [photo.code for photo in reader.get(ids)] == [b"\1"] * 20
    reader.close()


# ── connections that are cut, servers that take no changes ───────────────────────────────────


def cut(guarded: Any) -> int:
    """End all connections but this one, as an administrator or a firewall does; how many there were."""
    ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'client backend' AND "
    return int(guarded.run(f"{ended} pid <> pg_backend_pid()")[0][0])


def busy(work: Callable[[], Any], disturb: Callable[[], Any], times: int) -> int:
    """Let work go on in a thread while it is disturbed so many times; how often it was done."""
    stop, done, errors = threading.Event(), 0, []

    def go() -> None:
        nonlocal done
        try:
            while not stop.is_set():
                work()
                done += 1
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    for _ in range(times):
        time.sleep(0.05)
        disturb()
    stop.set()
    thread.join()
    assert errors == []
    return done


def test_connections_that_slept_too_long_are_replaced(store: PostgreSQL, guarded: Any) -> None:
    codes = trained_like(9)
    ids = store.upsert(photos_with(codes), fingerprint=ME)
    for _ in range(2):
        assert cut(guarded) >= 1
        assert found(store, codes[0], 9).total == 9
        assert cut(guarded) >= 1
        assert store.upsert(photos_with(codes), fingerprint=ME) == ids
    assert store.verify() == []


def test_searches_outlive_connections_and_restarts(store: PostgreSQL, guarded: Any) -> None:
    codes = trained_like(20_000)
    store.upsert(photos_with(codes), fingerprint=ME)
    expected = found(store, codes[7], 30).ids.tolist()

    def search() -> None:
        assert found(store, codes[7], 30).ids.tolist() == expected

    assert busy(search, lambda: cut(guarded), 10) > 0
    assert busy(search, lambda: guarded.control("restart", "-m", "fast"), 2) > 0


def test_a_load_outlives_its_connections(store: PostgreSQL, guarded: Any) -> None:
    codes = trained_like(30_000)
    batches = iter([photos_with(codes[start : start + 1_500], start=start) for start in range(0, 30_000, 1_500)])
    ids: list[int] = []
    loaded = busy(lambda: ids.extend(store.upsert(next(batches, []), fingerprint=ME)), lambda: cut(guarded), 12)
    for batch in batches:
        ids += store.upsert(batch, fingerprint=ME)
    assert loaded > 0
    assert ids == list(range(1, 30_001))
    assert store.count() == 30_000
    assert store.verify() == []


def test_a_standby_is_searched_and_not_written(store: PostgreSQL, guarded: Any) -> None:
    codes = trained_like(20)
    store.upsert(photos_with(codes), fingerprint=ME)
    standby, schema = guarded.copied(), store.schema.name
    try:
        place = f":{guarded.port}"
        copy = create(guarded.url(place=place, host=standby.folder, collection=schema))
        assert found(copy, codes[4], 20).total == 20
        refused(lambda: copy.upsert(photos_with(codes), fingerprint=ME), "read-only transaction.*it is a standby")
        refused(lambda: create(guarded.url(place=place, host=standby.folder)), "read-only transaction.*it is a standby")
        copy.close()
        both = f"{standby.folder},{guarded.folder}"
        leading = create(guarded.url(place=place, host=both, target_session_attrs="read-write", collection=schema))
        assert leading.upsert(photos_with(codes[:2]), fingerprint=ME) == [1, 2]
        guarded.control("stop", "-m", "fast")
        takeover = threading.Timer(1, standby.control, ["promote"])
        takeover.start()
        assert leading.upsert(photos_with(trained_like(2), start=20), fingerprint=ME) == [21, 22]
        takeover.join()
        leading.close()
        guarded.control("start")
        assert store.count() == 20  # this one knows nothing of it
    finally:
        standby.stop()


@pytest.fixture
def setting(guarded: Any) -> Iterator[Callable[[str], None]]:
    """Change what new connections of the user find; all of them are new then."""

    def change(words: str) -> None:
        guarded.run(f"ALTER ROLE postgres {words}")
        cut(guarded)

    yield change
    guarded.run("ALTER ROLE postgres RESET ALL")


def test_a_server_that_is_set_to_read_only_says_so(store: PostgreSQL, setting: Callable[[str], None]) -> None:
    codes = trained_like(20)
    store.upsert(photos_with(codes[:10]), fingerprint=ME)
    setting("SET default_transaction_read_only = on")
    assert found(store, codes[4], 20).total == 10
    refused(lambda: store.upsert(photos_with(codes), fingerprint=ME), "default_transaction_read_only is on")
    setting("RESET default_transaction_read_only")
    assert store.upsert(photos_with(codes), fingerprint=ME) == list(range(1, 21))


def test_a_statement_that_may_not_take_so_long(store: PostgreSQL, setting: Callable[[str], None]) -> None:
    codes = trained_like(20_000)
    setting("SET statement_timeout = '20ms'")
    with pytest.raises(EngineError, match=r"statement timeout.*have that raised"):
        store.upsert(photos_with(codes), fingerprint=ME)
    setting("RESET statement_timeout")
    assert store.upsert(photos_with(codes), fingerprint=ME) == list(range(1, 20_001))
    assert store.verify() == []


def test_a_disk_without_room_is_no_reason_to_wait(store: PostgreSQL, guarded: Any) -> None:
    """The error is the server's own, brought about by a trigger: no disk has to be filled."""
    schema, photos = store.schema.name, photos_with(trained_like(30))
    store.upsert(photos[:10], fingerprint=ME)
    guarded.run(
        f"CREATE FUNCTION {schema}.full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.id > 20 THEN "
        "RAISE 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END IF; "
        "RETURN NEW; END $$"
    )
    trigger = f"TRIGGER full_disk BEFORE INSERT ON {schema}.photos FOR EACH ROW EXECUTE FUNCTION {schema}.full()"
    guarded.run(f"CREATE {trigger}")
    refused(lambda: store.upsert(photos, fingerprint=ME), "No space left on device.*make room there.*nothing is lost")
    assert (store.count(), store.verify()) == (10, [])
    guarded.run(f"DROP TRIGGER full_disk ON {schema}.photos")
    assert store.upsert(photos, fingerprint=ME) == list(range(1, 31))
