"""A light load generator: many connections in one thread, each of which asks again as soon as it has its answer."""

import resource
import select
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from urllib.parse import urlsplit

import numpy as np


@dataclass
class Seen:
    """What the clients of one load have seen."""

    seconds: float
    latencies: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    processor: float = 0.0  # seconds that the generator itself took

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def __str__(self) -> str:
        p50, p99 = np.percentile(self.latencies or [np.nan], (50, 99)) * 1000
        return f"{self.rate:,.0f} a second, p50 {p50:.0f} ms, p99 {p99:.0f} ms, {self.errors.total()} errors"


class _Client:
    """One connection, and what of its answer is still to come."""

    def __init__(self, address: str) -> None:
        place = urlsplit(address)
        self.socket = socket.create_connection((place.hostname or "", place.port or 80))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.began = 0.0
        self.head, self.missing = b"", 0

    def ask(self, request: bytes) -> None:
        self.began, self.head, self.missing = time.perf_counter(), b"", 0
        self.socket.sendall(request)

    def answered(self) -> str | None:
        """The status of the answer once it is there whole; "lost" where the service has hung up."""
        data = self.socket.recv(1 << 18)
        if not data:
            return "lost"
        if self.missing:
            self.missing -= len(data)
        else:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return None
            length = self.head[:end].lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            self.missing = int(length or 0) - (len(self.head) - end - 4)
        return None if self.missing > 0 else self.head[9:12].decode()


def load(address: str, requests: Sequence[bytes], clients: int, seconds: float) -> Seen:
    """Ask for these, one after the other, over so many connections."""
    seen, left, ready = Seen(seconds), cycle(requests), select.epoll()
    every = {one.socket.fileno(): one for one in (_Client(address) for _ in range(clients))}
    for number, one in every.items():
        ready.register(number, select.EPOLLIN)
        one.ask(next(left))
    until = time.perf_counter() + seconds
    while time.perf_counter() < until and every:
        for number, _ in ready.poll(0.1):
            status = every[number].answered()
            if status is None:
                continue
            seen.latencies.append(time.perf_counter() - every[number].began)
            if status != "200":
                seen.errors[status] += 1
            if status == "lost":
                ready.unregister(number)
                del every[number]
            else:
                every[number].ask(next(left))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seen.processor = used.ru_utime + used.ru_stime
    return seen
