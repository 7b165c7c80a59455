"""What a service may be asked for, and how much of it."""

import ipaddress
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from hyphash.errors import ConfigError

SMALL_BODY = 64 * 1024  # enough for every request that is no photo
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
Readers = Literal["", "everybody", "token"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where the service listens, who may write, and its limits."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str = ""  # "": nobody may write
    write_tags: bool = False  # whether labels that are changed here are written to sidecars
    names: tuple[str, ...] = ()  # further names that it is reached by, such as that of a proxy
    metrics: Readers = ""  # who may read figures and the schema; "": those with the token, where there is one
    max_upload: int = 20_000_000  # bytes
    max_pixels: int = 50_000_000
    seconds: float = 30.0  # for one request
    threads: int = 4  # requests worked on at once; more of them wait for each other, not for the disk
    waiting: int = 256  # requests that may wait for them
    uploads: int = 32  # photos taken in at once; each is in memory whole
    batch: int = 32  # photos that the network sees at once
    gather: float = 0.004  # seconds that the first photo of a batch waits for others

    def __post_init__(self) -> None:
        low = {"port": 0, "max_upload": 1, "max_pixels": 1, "threads": 1, "waiting": 0, "uploads": 1, "batch": 1}
        for name, least in low.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.seconds <= 0 or self.gather < 0:
            raise ConfigError(f"seconds={self.seconds:g}, gather={self.gather:g}: a time is not below 0")
        if self.metrics not in ("", "everybody", "token") or (self.metrics == "token" and not self.token):
            raise ConfigError(f"metrics for {self.metrics!r}: choose 'everybody', or 'token' and set one with --token")
        if self.token and (len(self.token) < 8 or not self.token.isascii() or not self.token.isprintable()):
            raise ConfigError("a token has at least 8 letters, digits or signs of ASCII; choose another")
        if not self.token and not self.loopback:
            raise ConfigError(
                f"host {self.host}: others could reach it, but no token is set; set one with --token or "
                "HYPHASH_TOKEN, or leave --host out to serve this machine alone"
            )

    @cached_property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host == "localhost" or _is_address(self.host, loopback=True)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset((*LOCAL_NAMES, *(known.lower() for known in (self.host, *self.names))))

    @property
    def read_only(self) -> bool:
        return not self.token

    def knows(self, host: str) -> bool:
        """Whether a request may call the service by this name.

        It would else be open to any web page whose name is made to point here. Where others than this machine can
        reach it, it has addresses of its own, which no such page can take, and the name of the machine.
        """
        name = (host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host).lower()
        if name in self._names:
            return True
        own = socket.gethostname().lower()
        return not self.loopback and (name in (own, f"{own}.local") or _is_address(name))

    def opens_to(self, authorization: str) -> bool:
        """Whether the Authorization of a request holds the token."""
        kind, _, token = authorization.partition(" ")
        same = secrets.compare_digest(token.strip().encode("utf-8", "replace"), self.token.encode())
        return same and kind.lower() == "bearer" and bool(self.token)

    def shows_metrics_to(self, authorization: str) -> bool:
        return (self.metrics or "token") != "token" or not self.token or self.opens_to(authorization)

    def reached_directly(self, headers: Mapping[str, str]) -> bool:
        """Whether a request comes from this machine itself and not through a proxy, as far as anybody can tell."""
        return self.loopback and not self.names and not any(name in headers for name in FORWARDED)

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def _is_address(name: str, *, loopback: bool = False) -> bool:
    """Whether a host is called by its number, or by one of this machine alone."""
    try:
        address = ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return address.is_loopback or not loopback
