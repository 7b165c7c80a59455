"""Who may reach the service, and who may write."""

import socket

import pytest

from hyphash.errors import ConfigError
from hyphash.service import Settings

TOKEN = "long-enough"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.9.1"])
def test_loopback_needs_no_token_and_is_read_only_without(host: str) -> None:
    assert Settings(host=host).loopback
    assert Settings(host=host).read_only
    assert not Settings(host=host, token=TOKEN).read_only


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org", "127.0.0.1.example.org", ""])
def test_others_can_reach_it_only_with_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match=r"--token"):
        Settings(host=host)
    assert not Settings(host=host, token=TOKEN).loopback


@pytest.mark.parametrize("token", ["short", "with\nline", "with ümlaut", "x\x7fyyyyyyyy"])
def test_tokens_that_no_header_can_carry_are_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="token"):
        Settings(token=token)


@pytest.mark.parametrize("wrong", [{"port": -1}, {"threads": 0}, {"seconds": 0}, {"max_upload": 0}, {"gather": -1}])
def test_limits_have_limits(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Settings(**wrong)  # type: ignore[arg-type]


def test_names() -> None:
    local = Settings(names=("photos.example",))
    assert all(local.knows(name) for name in ("localhost:8000", "127.0.0.1", "[::1]:9", "photos.example:443"))
    assert not any(local.knows(name) for name in ("", "evil.example", "localhost.evil", "photos.example.evil:80"))
    assert Settings(host="127.1.2.3").knows("127.1.2.3:8000")
    assert Settings(names=("Photos.Example",)).knows("pHotos.eXample:80")


def test_others_call_it_by_its_address_or_by_a_name_that_was_given() -> None:
    """A page elsewhere whose name is made to point to a service in the same house must not read what is there."""
    shared = Settings(host="0.0.0.0", token=TOKEN, names=("photos.example",))
    known = ("192.168.1.7:8000", "[fe80::1]:8000", "localhost", "Photos.example", socket.gethostname())
    assert all(shared.knows(name) for name in known)
    assert not any(shared.knows(name) for name in ("anything.example", "192.168.1.7.example", "", "7"))


def test_who_may_read_figures() -> None:
    assert Settings().shows_metrics_to("")
    guarded = Settings(token=TOKEN)
    assert not any(guarded.shows_metrics_to(given) for given in ("", "Bearer wrong", f"Basic {TOKEN}", TOKEN))
    assert guarded.shows_metrics_to(f"Bearer {TOKEN}")
    assert Settings(token=TOKEN, metrics="everybody").shows_metrics_to("")
    for wrong in ("token", "nobody"):
        with pytest.raises(ConfigError, match="metrics"):
            Settings(metrics=wrong)  # type: ignore[arg-type]


def test_who_comes_through_a_proxy() -> None:
    assert Settings().reached_directly({"host": "localhost"})
    assert not Settings().reached_directly({"x-forwarded-for": "203.0.113.7"})
    assert not Settings(names=("photos.example",)).reached_directly({})
    assert not Settings(host="0.0.0.0", token=TOKEN).reached_directly({})


def test_address() -> None:
    assert Settings(port=81).address == "http://127.0.0.1:81"
    assert Settings(host="::1", port=81).address == "http://[::1]:81"
