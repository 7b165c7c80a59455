"""Connections: how many there may be, in all and from one address, and how long each may keep the service waiting."""

import asyncio
import sys
import time

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD = 10.0  # seconds in which the head of a request has to come
WHOLE = 300.0  # and in which it has to be over, its answer taken and all
LONGEST = 65_536  # bytes of a head
MOST = 1000  # connections at once


def most_connections() -> int:
    """As many as this process may have: half of the files that the system lets it open; the others are for its work."""
    if sys.platform == "win32":
        return MOST
    import resource

    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST if files == resource.RLIM_INFINITY else min(MOST, files // 2)


class LimitedConnection(HttpToolsProtocol):
    """A connection that does not wait for ever. Where there are too many, those that ask for nothing give way."""

    most = most_connections()
    _timer: asyncio.TimerHandle | None = None
    _gone = False
    _since = 0.0
    _begun = 0  # bytes of a head that is not whole yet

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = time.monotonic()
        self._limit(HEAD)
        others = [one for one in self.connections if isinstance(one, LimitedConnection) and not one._gone]
        near = [one for one in others if one._address == self._address]
        for some, most in ((near, self.most // 2), (others, self.most)):
            if len(some) > most and not self._gone:
                min((one for one in some if one._idle), key=lambda one: one._since)._abort()  # itself at the latest

    def data_received(self, data: bytes) -> None:
        before = self._idle
        super().data_received(data)
        idle = self._idle
        self._begun = self._begun + len(data) if idle else 0
        if self._begun > LONGEST and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")
        if idle != before or (idle and not self._timer):
            self._limit(HEAD if idle else WHOLE)

    def on_response_complete(self) -> None:
        self._since = time.monotonic()
        self._limit(None)  # from here on it is the time to keep it alive that counts
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit(None)
        super().connection_lost(exc)

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def _idle(self) -> bool:
        """Whether it has asked for nothing, or for nothing more."""
        return self.cycle is None or self.cycle.response_complete

    def _limit(self, seconds: float | None) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self._abort) if seconds else None

    def _abort(self) -> None:
        self._gone = True
        self._limit(None)
        self.transport.abort()
