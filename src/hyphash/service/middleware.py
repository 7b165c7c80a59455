"""The door: every request is counted and logged, called by its right name, and its body kept within limits."""

import asyncio
import secrets
import time

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hyphash.service.monitoring import Metrics, log
from hyphash.service.settings import SMALL_BODY, Settings

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
HEADER_LIST = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
UPLOADS = {("POST", "/api/search"), ("POST", "/api/photos")}
QUIET = ("/health", "/ready", "/metrics")  # asked for every few seconds by machines
RETRY = 2  # seconds
CLOSE = {"Connection": "close"}  # what of the body is still to come is not read


class RefusedError(Exception):
    """An answer that is given before the request has reached a route."""

    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status = status
        self.headers = {503: {"Retry-After": str(RETRY)}, 408: CLOSE, 413: CLOSE}.get(status)


class Observer:
    """Counts, times and logs requests, and puts the security headers on every answer."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, request = time.perf_counter(), 500, secrets.token_hex(6)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {
                    **message,
                    "headers": [*message["headers"], *HEADER_LIST, (b"x-request-id", request.encode())],
                }
            await send(message)

        self.metrics.in_flight.inc()
        try:
            await self.app(scope, receive, answer)
        finally:
            self.metrics.in_flight.dec()
            self._note(scope, status, time.perf_counter() - started, request)

    def _note(self, scope: Scope, status: int, seconds: float, request: str) -> None:
        route = getattr(scope.get("route"), "path", "other")  # never the path itself: anybody can invent those
        method = scope["method"] if scope["method"] in ("GET", "POST", "PUT", "DELETE") else "other"
        self.metrics.requests.labels(method, route, str(status)).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        if status == 503:
            self.metrics.refused.inc()
        client = scope.get("client")
        facts = {
            "method": scope["method"], "path": scope["path"], "status": status, "ms": round(seconds * 1000, 2),
            "client": client[0] if client else "", "request": request,
        }  # fmt: skip
        level = 10 if route in QUIET else 20
        log.log(level, "request", extra={"facts": facts})


class Guard:
    """Turns away wrong names and bodies that are too large, too slow or too many; passes on the rest."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.settings = settings
        self._uploads = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        upload = (scope["method"], scope["path"]) in UPLOADS
        self._uploads += upload
        try:
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            if not self.settings.knows(headers.get(b"host", "")):
                raise RefusedError(421, f"this service is not called {headers.get(b'host', '')!r}; see --name")
            if self._uploads > self.settings.uploads:
                raise RefusedError(503, "too many photos at once; try again in a moment")
            if scope["method"] in ("POST", "PUT", "PATCH", "DELETE"):
                receive = await self._whole(headers, receive, upload)
            await self.app(scope, receive, send)
        except RefusedError as refused:
            await JSONResponse({"error": str(refused)}, refused.status, refused.headers)(scope, receive, send)
        finally:
            self._uploads -= upload

    async def _whole(self, headers: dict[bytes, str], receive: Receive, upload: bool) -> Receive:
        """Read the whole body, so that no thread or place in a queue ever waits for a slow sender."""
        most = SMALL_BODY + (self.settings.max_upload if upload else 0)
        told = headers.get(b"content-length", "")
        if told.isascii() and told.isdigit() and int(told) > most:
            raise RefusedError(413, f"{int(told):,} bytes are too many; at most {most:,} are taken here")
        parts, size, more = [], 0, True
        try:
            async with asyncio.timeout(self.settings.seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusedError(400, "the sender went away")
                    parts.append(message.get("body", b""))
                    size, more = size + len(parts[-1]), message.get("more_body", False)
                    if size > most:
                        raise RefusedError(413, f"too many bytes; at most {most:,} are taken here")
        except TimeoutError:
            raise RefusedError(408, f"the body did not come within {self.settings.seconds:g} s") from None
        body: list[Message] = [{"type": "http.request", "body": b"".join(parts), "more_body": False}]

        async def again() -> Message:
            return body.pop() if body else await receive()

        return again
