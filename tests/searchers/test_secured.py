"""Milvus that asks who is there: passwords, TLS, databases, and users who may only search."""

import logging
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import drawing
import pytest
from refusing import refused, with_password

from hyphash.errors import ConfigError, EngineError
from hyphash.searchers import Query
from hyphash.searchers.milvus import Milvus
from hyphash.stores import Store, store_for
from hyphash.stores.address import HOSTS, PASSWORD

ME = "0123456789abcdef"
BITS = 24
WRONG = "Falsch geraten"  # not written out below: a traceback shows the lines of a test
trained_like = partial(drawing.trained_like, bits=BITS)
photos_with = drawing.even_and_odd
pytestmark = pytest.mark.needs("openssl")


@pytest.fixture(autouse=True)
def no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PASSWORD, raising=False)
    monkeypatch.setenv(HOSTS, "127.0.0.1,localhost")


@pytest.fixture(scope="module")
def papers(servers: ModuleType) -> Iterator[Path]:
    """Certificates and keys."""
    folder = Path(servers.tempfile.mkdtemp(prefix="hyphash-papers-"))
    servers.certificates(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = store_for("sqlite").create(tmp_path, "sqlite", fingerprint=ME, bits=BITS)
    yield store
    store.close()


@pytest.fixture
def create(store: Store, tmp_path: Path) -> Callable[[str], Milvus]:
    return lambda url: Milvus.create(tmp_path, url, store)


@pytest.fixture(scope="module")
def milvus(servers: ModuleType, papers: Path) -> Iterator[Any]:
    """Milvus with users, and with a certificate."""
    settings = {"server_pem_path": str(papers / "server.pem"), "server_key_path": str(papers / "server.key")}
    settings |= {"authorization_enabled": True, "tls_mode": 1}
    ca = str(papers / "ca.pem")
    server = servers.MilvusServer(settings=settings, secure=True, server_pem_path=ca, user="root", password="Milvus")
    server.client.create_database("photos")
    server.client.create_user("me", ODD)
    server.client.create_role("writers")
    server.client.grant_role("me", "writers")
    for kind, privileges in WRITING.items():
        for privilege in privileges.split():
            server.client.grant_privilege("writers", kind, privilege, "*", db_name="*")
    yield server
    server.client.close()
    server.stop()


WRITING = {  # the privileges that the documentation names
    "Global": "CreateCollection DropCollection",
    "Collection": "Query Search Upsert Delete Flush GetFlushState CreateIndex Load GetLoadState GetLoadingProgress "
    "Compaction",
}
ODD = "geh:eim/ö?"  # signs that mean something in an address


@pytest.fixture
def to_milvus(milvus: Any, papers: Path) -> Callable[..., str]:
    """Addresses on it."""
    usual = {"user": "me", "host": "localhost", "patience": 60, "tls": "true", "ca": papers / "ca.pem"}
    return lambda **options: milvus.url(**(usual | options))


def test_a_password_and_tls_in_a_database(
    to_milvus: Callable[..., str],
    create: Callable[[str], Milvus],
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, codes = to_milvus(database="photos"), trained_like(40)
    store.upsert(photos_with(codes), fingerprint=ME)
    searcher = create(with_password(url, ODD))
    assert searcher.search(Query(codes[3], 40, fingerprint=ME)).total == 40
    searcher.close()
    monkeypatch.setenv(PASSWORD, ODD)
    again = Milvus.open(tmp_path, url, store)
    assert store.remove([1]) == 1
    assert again.search(Query(codes[3], 40, fingerprint=ME)).total == 39
    again.rebuild()
    again.server.flush(f"{again.builder.base}_2")
    again.compact()
    assert again.verify() == []
    again.close()
    elsewhere = create(url.replace("/photos?", "/?"))  # a copy of its own, for the other is in the other database
    assert elsewhere.search(Query(codes[3], 40, fingerprint=ME)).total == 39
    assert (elsewhere.builder.name == again.builder.name, elsewhere.builder.base) == (False, again.builder.base)
    elsewhere.close()
    nowhere = url.replace("/photos?", "/nowhere?")
    late = Milvus.open(tmp_path, nowhere, store)
    for attempt in (lambda: create(nowhere), lambda: late.search(Query(codes[3], 9, fingerprint=ME))):
        refused(attempt, "create the database 'nowhere', or name another")
    late.close()


def test_it_tells_no_password(
    to_milvus: Callable[..., str],
    create: Callable[[str], Milvus],
    store: Store,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    url = to_milvus()
    told = refused(lambda: create(with_password(url, WRONG)), "auth check failure.*HYPHASH_ENGINE_PASSWORD")
    refused(lambda: create(url), "missing authorization.*HYPHASH_ENGINE_PASSWORD")
    monkeypatch.setenv(PASSWORD, WRONG)
    searcher = Milvus.open(tmp_path, url, store)
    told += refused(lambda: searcher.search(Query(trained_like(1), 9, fingerprint=ME)), "auth check failure")
    told += "".join(map(repr, (searcher.address, vars(searcher), vars(searcher.builder), vars(searcher.server))))
    told += store.read(lambda session: session.note(searcher.builder.name))
    searcher.close()
    told += caplog.text + "".join(capfd.readouterr())
    assert WRONG not in told
    assert quote(WRONG) not in told


def test_a_reader_may_search_and_is_told_what_else_takes(
    to_milvus: Callable[..., str],
    create: Callable[[str], Milvus],
    store: Store,
    milvus: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PASSWORD, ODD)
    url, codes = to_milvus(), trained_like(40)
    store.upsert(photos_with(codes), fingerprint=ME)
    searcher = create(url)
    milvus.client.create_user("reader", ODD)
    reader = Milvus.open(tmp_path, url.replace("me@", "reader@"), store)
    refused(lambda: reader.search(Query(codes[3], 40, fingerprint=ME)), "Privilege(Query|Search).*grant that privilege")
    milvus.client.create_role("readers")
    milvus.client.grant_role("reader", "readers")
    for privilege in ("Query", "Search"):
        milvus.client.grant_privilege("readers", "Collection", privilege, f"{searcher.builder.base}_1")
    assert reader.search(Query(codes[3], 40, fingerprint=ME)).total == 40
    store.remove([1])
    refused(lambda: reader.search(Query(codes[3], 40, fingerprint=ME)), "Privilege.* deny to reader.*grant that")
    found = reader.search(Query(codes[3], 40, fingerprint=ME, catch_up=False))
    assert (found.total, found.behind) == (40, 1)
    searcher.follow()  # somebody else does
    assert reader.search(Query(codes[3], 40, fingerprint=ME)).total == 39
    for one in (reader, searcher):
        one.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ca": "other.pem"}, "CERTIFICATE_VERIFY_FAILED.*check tls, ca"),
        ({"ca": ""}, "CERTIFICATE_VERIFY_FAILED.*check tls, ca"),
        ({"ca": "names"}, "security handshaker.*check tls, ca"),
        ({"host": "127.0.0.1"}, "Hostname Verification Check failed.*whom the certificate"),
    ],
    ids=str,
)
def test_it_whose_certificate_does_not_fit(
    to_milvus: Callable[..., str],
    create: Callable[[str], Milvus],
    papers: Path,
    options: dict[str, str],
    words: str,
) -> None:
    files = {name: papers / value if value and name == "ca" else value for name, value in options.items()}
    refused(lambda: create(to_milvus(**files)), words)


def test_it_with_and_without_tls(
    to_milvus: Callable[..., str], create: Callable[[str], Milvus], milvus_server: Any
) -> None:
    plain = to_milvus(tls="false", ca="", patience=0.3)
    with pytest.raises(EngineError, match="hangs up like that"):
        create(plain)
    refused(lambda: create(milvus_server.url(tls="true")), "WRONG_VERSION_NUMBER.*check tls")


def test_it_that_wants_certificates_of_its_clients(
    servers: ModuleType, papers: Path, create: Callable[[str], Milvus]
) -> None:
    settings = {"server_pem_path": str(papers / "server.pem"), "server_key_path": str(papers / "server.key")}
    settings |= {"tls_mode": 2, "ca_pem_path": str(papers / "ca.pem")}
    mine = {"client_pem_path": str(papers / "client.pem"), "client_key_path": str(papers / "client.key")}
    server = servers.MilvusServer(settings=settings, secure=True, ca_pem_path=str(papers / "ca.pem"), **mine)

    def opened(**names: str) -> None:
        files = {name: papers / file for name, file in names.items()}
        create(server.url(host="localhost", tls="true", ca=papers / "ca.pem", **files)).close()

    try:
        opened(cert="client.pem", key="client.key")
        refused(opened, "check tls, ca, cert and key")
        refused(lambda: opened(cert="other.pem", key="other.key"), "check tls, ca, cert and key")
        refused(lambda: opened(cert="client.pem", key="other.key"), "check tls, ca, cert and key")
    finally:
        server.client.close()
        server.stop()


def test_files_of_certificates_are_looked_at_before_a_server_is_asked(
    papers: Path, store: Store, tmp_path: Path
) -> None:
    ca = papers / "ca.pem"
    for query, words in {
        f"ca={ca}": "without tls=true",
        f"tls=true&cert={ca}&ca={ca}": "cert, key and ca together",
        f"tls=true&cert={ca}&key={ca}": "cert, key and ca together",
        "tls=true&ca=ca.pem": "write its whole path",
        "tls=true&ca=/nowhere/ca.pem": "ca names no file",
    }.items():
        with pytest.raises(ConfigError, match=words):
            Milvus.open(tmp_path, f"milvus://localhost:1/?{query}", store)
    with pytest.raises(ConfigError, match="write the name of that host"):
        Milvus.open(tmp_path, "milvus://[::1]:19530/", store)
