"""Addresses of engines: taken apart whole, shown without passwords."""

import pytest
from hypothesis import given
from hypothesis.strategies import characters, text

from hyphash.errors import ConfigError
from hyphash.stores.address import HOSTS, PASSWORD, Address, name_hosts, without_password

OPTIONS = {"collection": "hyphash", "partitions": 0, "patience": 60.0, "secure": False}


@pytest.fixture(autouse=True)
def no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PASSWORD, raising=False)


def test_all_parts_of_an_address() -> None:
    url = "milvus://me:se%40cret@db.example:19530/photos?collection=mine&partitions=4&patience=2&secure=true"
    address = Address.parse(url, options=OPTIONS)
    assert (address.scheme, address.host, address.port) == ("milvus", "db.example", 19530)
    assert (address.user, address.password, address.database) == ("me", "se@cret", "photos")
    assert address.options == {"collection": "mine", "partitions": 4, "patience": 2.0, "secure": True}
    expected = "milvus://me@db.example:19530/photos?collection=mine&partitions=4&patience=2.0&secure=true"
    assert address.shown == expected
    assert "se@cret" not in repr(address)


def test_what_is_not_said_is_as_usual() -> None:
    address = Address.parse("postgresql://db", options=OPTIONS)
    assert (address.port, address.user, address.password, address.database) == (None, "", "", "")
    assert address.options == OPTIONS
    assert address.shown == "postgresql://db/"
    assert Address.parse("postgresql:///photos", options=OPTIONS).shown == "postgresql:///photos"
    assert Address.parse("postgresql://[::1]:5432/photos", options=OPTIONS).shown == "postgresql://[::1]:5432/photos"


def test_a_host_may_be_a_folder_with_a_socket() -> None:
    url = "postgresql://me@%2Frun%2FPost%20gres:5433/Photos"
    address = Address.parse(url, options=OPTIONS)
    assert (address.host, address.port, address.database) == ("/run/Post gres", 5433, "Photos")
    assert address.shown == url
    assert Address.parse("postgresql://%2Frun", options=OPTIONS).host == "/run"
    assert Address.parse("postgresql://me@[FE80::1]/p", options=OPTIONS).host == "FE80::1"


def test_the_password_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "from-outside")
    monkeypatch.setenv(HOSTS, "other, DB,/run/pg")
    assert Address.parse("postgresql://me@db/photos", options={}).password == "from-outside"
    assert Address.parse("postgresql://me:own@db/photos", options={}).password == "own"
    assert Address.parse("postgresql://me@%2Frun%2Fpg/photos", options={}).password == "from-outside"


HOST = {"host": ""}


@pytest.mark.parametrize(
    "url",
    ["evil", "evil:5432", "db.evil", "db,evil", "", "db/p?host=evil", "db/p?host=db,evil", "%2Ftmp", "evil@[::1]"],
)
def test_a_host_that_the_user_did_not_name_gets_no_password(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may stand in the collection.toml of a folder that somebody sent."""
    monkeypatch.setattr("hyphash.stores.address._named", set())  # whatever tests before this one named
    monkeypatch.setenv(PASSWORD, "from-outside")
    monkeypatch.setenv(HOSTS, "db")
    found = Address.parse(f"postgresql://{url}", options=HOST)
    assert (found.password, found.named, found.lent) == ("", False, False)


def test_who_names_an_address_names_its_host(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(PASSWORD, "from-outside")
    monkeypatch.setattr("hyphash.stores.address._named", set())
    for _ in range(2):
        Address.parse("postgresql://me@named-once/p", options=HOST).show()
    assert caplog.messages == ["connecting to postgresql://me@named-once/p, which the collection names"]
    name_hosts("postgresql://me@named-once:5433/other", "local", None)
    found = Address.parse("postgresql://me@named-once/p", options=HOST)
    assert (found.password, found.named, found.lent) == ("from-outside", True, True)
    found.show()
    assert len(caplog.messages) == 1


def test_options_that_do_not_exist_or_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="unknown option 'partition'; did you mean 'partitions'"):
        Address.parse("postgresql://db/p?partition=3", options=OPTIONS)
    with pytest.raises(ConfigError, match="partitions is a whole number, not 'many'"):
        Address.parse("postgresql://db/p?partitions=many", options=OPTIONS)
    with pytest.raises(ConfigError, match="secure is true or false"):
        Address.parse("postgresql://db/p?secure=perhaps", options=OPTIONS)


@given(password=text(characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12))
def test_no_text_shows_a_password_however_it_was_written(password: str) -> None:
    """People forget to escape; what is misread must not come out in a message either."""
    secret = f"zzz{password}yyy"
    try:
        address = Address.parse(f"postgresql://me:{secret}@db:5432/photos", options=OPTIONS)
    except ConfigError as error:
        told = str(error)
        assert "%40" in told
    else:
        told = address.shown + repr(address)
    assert "zzz" not in told
    assert "yyy" not in told


def test_addresses_without_their_passwords() -> None:
    assert without_password("postgresql://me:se@c:ret@db:5432/photos?a=b") == "postgresql://me@db:5432/photos?a=b"
    for url in ("postgresql://me@db:5432/photos", "milvus://db:19530", "local", "my_engine.py:Mine"):
        assert without_password(url) == url
