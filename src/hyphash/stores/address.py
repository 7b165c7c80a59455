"""The address of a store or searcher on a server: `scheme://user:password@host:port/database?option=value`.

The password comes from the address or from HYPHASH_ENGINE_PASSWORD, and is in no text that a person sees. One from the
environment is for hosts that the user names, not for whatever a folder names that somebody sent.
"""

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from hyphash.errors import ConfigError, did_you_mean

PASSWORD = "HYPHASH_ENGINE_PASSWORD"
HOSTS = "HYPHASH_ENGINE_HOST"  # those that it may be sent to, with commas between
ITS_HOSTS = f"{PASSWORD} (which goes to hosts alone that --store, --engine or {HOSTS} names)"

log = logging.getLogger(__name__)
_named: set[str] = set()  # hosts that this process was told by its user
_shown: set[str] = set()  # addresses of others that the user has seen

Value = str | int | float | bool
KINDS: dict[type[Value], str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where it is; `options` holds every option that is known there, those not given with their defaults."""

    scheme: str
    host: str = ""
    port: int | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    database: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)  # the options that the address names itself
    named: bool = False  # whether the user named its hosts, not a folder alone
    lent: bool = False  # whether the password is the one of the environment

    @classmethod
    def parse(cls, url: str, *, options: Mapping[str, Value]) -> "Address":
        """Take an address apart. `options` are those it may have, with their defaults, which give their types.

        >>> Address.parse("postgresql://me:secret@db:5433/photos?partitions=4", options={"partitions": 0}).shown
        'postgresql://me@db:5433/photos?partitions=4'
        """
        parts = _split(url)
        scheme = url.partition("://")[0]
        given = _options(scheme, parts.query, options)
        trusted = _named | {host.strip().lower() for host in os.environ.get(HOSTS, "").split(",") if host.strip()}
        own, named = unquote(parts.password or ""), _hosts(parts) <= trusted
        password = own or (os.environ.get(PASSWORD, "") if named else "")
        return cls(
            scheme=scheme, host=_host(parts.netloc), port=parts.port, user=unquote(parts.username or ""),
            password=password, lent=password != own, database=unquote(parts.path.strip("/")),
            options=dict(options) | given, given=given, named=named,
        )  # fmt: skip

    @property
    def shown(self) -> str:
        """The address without its password, for messages and logs."""
        host = f"[{self.host}]" if ":" in self.host else quote(self.host, safe=",")
        place = f"{quote(self.user, safe='')}@{host}" if self.user else host
        place += f":{self.port}" if self.port else ""
        texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in self.given.items()}
        query = urlencode(texts, safe="/,")
        return f"{self.scheme}://{place}/{quote(self.database)}" + (f"?{query}" if query else "")

    def require_within(self, limits: Mapping[str, tuple[float, float]]) -> None:
        """Refuse numbers among the options that lie outside of their limits, or are none."""
        for name, (low, high) in limits.items():
            if not low <= (value := self.options[name]) <= high:
                raise ConfigError(f"{self.scheme}://…: {name} lies between {low:g} and {high:g}, {value} does not")

    def show(self) -> None:
        """Before first contact, say where that is, if a folder named it and not the user."""
        if not self.named and self.shown not in _shown:
            _shown.add(self.shown)
            log.warning("connecting to %s, which the collection names", self.shown)


def name_hosts(*urls: str | None) -> None:
    """The user names these addresses: their hosts may be sent the password of the environment."""
    for url in urls:
        if url and "://" in url:
            _named.update(_hosts(_split(url)))


def without_password(url: str) -> str:
    """Any address without its password.

    >>> without_password("postgresql://me:secret@db/photos"), without_password("local")
    ('postgresql://me@db/photos', 'local')
    """
    scheme, slashes, rest = url.partition("://")
    who, at, where = rest.rpartition("@")
    return f"{scheme}{slashes}{who.partition(':')[0]}{at}{where}"


def _split(url: str) -> SplitResult:
    """The parts of an address. No message quotes it: what is misread may be half of a password."""
    with suppress(ValueError):
        parts = urlsplit(url)
        _ = parts.port  # looked at here: it may be none
        if parts.scheme and not parts.fragment and "@" not in parts.path + parts.query:
            return parts
    scheme = url.partition("://")[0]
    raise ConfigError(
        f"{scheme}://…: this address cannot be read; write it as {scheme}://user:password@host:port/database, "
        f"with signs such as @ : / ? # in a password as %40 %3A %2F %3F %23, or put the password into {PASSWORD}"
    )


def _host(netloc: str) -> str:
    """The host as it was written: it may be a folder with a socket (%2Frun%2FPostgres), whose capitals matter."""
    place = netloc.rpartition("@")[2]
    return unquote(place[1:].partition("]")[0] if place.startswith("[") else place.partition(":")[0])


def _hosts(parts: SplitResult) -> set[str]:
    """All hosts of an address, which may be several; where it names none, this machine."""
    hosts = dict(parse_qsl(parts.query)).get("host") or _host(parts.netloc) or "localhost"
    return {host.strip().lower() for host in hosts.split(",")}


def _options(scheme: str, query: str, known: Mapping[str, Value]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            hint = did_you_mean(name, known, most=1) or f"known are {', '.join(known) or 'none'}"
            raise ConfigError(f"{scheme}://…: unknown option {name!r}; {hint}")
        kind = type(known[name])
        try:
            found[name] = WORDS[text.lower()] if kind is bool else kind(text)
        except (ValueError, KeyError):
            raise ConfigError(f"{scheme}://…: {name} is {KINDS[kind]}, not {text!r}") from None
    return found
