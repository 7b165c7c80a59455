"""Who may reach the service, and who may write."""

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
    assert Settings(host="0.0.0.0", token=TOKEN).knows("anything.example")
    assert Settings(host="127.1.2.3").knows("127.1.2.3:8000")


def test_address() -> None:
    assert Settings(port=81).address == "http://127.0.0.1:81"
    assert Settings(host="::1", port=81).address == "http://[::1]:81"
