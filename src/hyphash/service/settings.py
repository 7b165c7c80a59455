"""What a service may be asked for, and how much of it."""

import ipaddress
from dataclasses import dataclass
from functools import cached_property

from hyphash.errors import ConfigError

SMALL_BODY = 64 * 1024  # enough for every request that is no photo
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where the service listens, who may write, and its limits."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str = ""  # "": nobody may write
    names: tuple[str, ...] = ()  # further names that it is reached by, such as that of a proxy
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
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def read_only(self) -> bool:
        return not self.token

    def knows(self, host: str) -> bool:
        """Whether a request may call the service by this name.

        One that only this machine can reach would else be open to any web page whose name is made to point here.
        """
        name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
        return not self.loopback or name.lower() in (*LOCAL_NAMES, self.host, *self.names)

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"
