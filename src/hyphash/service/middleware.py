"""The door: every request is counted and logged, called by its right name, and its body kept within limits."""

import asyncio
import secrets
import time
from functools import lru_cache
from itertools import count

from prometheus_client import Counter, Histogram
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hyphash.service.monitoring import Metrics, log
from hyphash.service.settings import SMALL_BODY, Settings

HEADERS = {
    "Content-Security-Policy":
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin",
}  # fmt: skip
HEADER_LIST = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
UPLOADS = {("POST", "/api/search"), ("POST", "/api/photos")}
OPERATION = ("/metrics", "/openapi.json")  # for those who run the service, unless it is said otherwise
BODIES = 8  # photos of the largest size whose bytes may be in memory at once
QUIET = ("/health", "/ready", "/metrics")  # asked for every few seconds by machines
RETRY = 2  # seconds
CLOSE = {"Connection": "close"}  # what of the body is still to come is not read
HEADERS_OF = {
    401: {"WWW-Authenticate": "Bearer"}, 408: CLOSE, 413: CLOSE, 503: {"Retry-After": str(RETRY), **CLOSE},
}  # fmt: skip


class Observer:
    """Counts, times and logs requests, and puts the security headers on every answer."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics
        self.start, self.numbers = secrets.token_hex(4), count()  # of the names of requests
        self._figures = lru_cache(1000)(self._looked_up)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, method = time.perf_counter(), 500, scope["method"]
        request = f"{self.start}{next(self.numbers):08x}"
        if method == "HEAD":  # as GET has it; the server leaves out the body
            scope = {**scope, "method": "GET"}

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message["headers"], *HEADER_LIST, (b"x-request-id", request.encode())]
                message = {**message, "headers": headers}
            await send(message)

        self.metrics.in_flight.inc()
        try:
            await self.app(scope, receive, answer)
        finally:
            self.metrics.in_flight.dec()
            self._note({**scope, "method": method}, status, time.perf_counter() - started, request)

    def _looked_up(self, method: str, route: str, status: int) -> tuple[Counter, Histogram]:
        return self.metrics.requests.labels(method, route, str(status)), self.metrics.seconds.labels(route)

    def _note(self, scope: Scope, status: int, seconds: float, request: str) -> None:
        route = getattr(scope.get("route"), "path", "other")  # never the path itself: anybody can invent those
        method = scope["method"] if scope["method"] in ("GET", "POST", "PUT", "DELETE") else "other"
        requests, times = self._figures(method, route, status)
        requests.inc()
        times.observe(seconds)
        if status == 503:
            self.metrics.refused.inc()
        level = 10 if route in QUIET else 20
        if not log.isEnabledFor(level):
            return
        client = scope.get("client")
        facts = {
            "method": scope["method"], "path": scope["path"], "status": status, "ms": round(seconds * 1000, 2),
            "client": client[0] if client else "", "request": request,
        }  # fmt: skip
        log.log(level, "request", extra={"facts": facts})


class Guard:
    """Turns away wrong names and bodies that are too large, too slow or too many; passes on the rest."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.settings = settings
        self._uploads = 0  # whose photos are here and being worked on
        self._bytes = 0  # of bodies that are here, or on their way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        upload, counted, body = (scope["method"], scope["path"]) in UPLOADS, 0, bytearray()
        try:
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            if sum(name == b"host" for name, _ in scope["headers"]) > 1:
                raise HTTPException(400, "a request names one host")
            self._admit(scope["path"], headers)
            if scope["method"] in ("POST", "PUT", "PATCH", "DELETE"):
                receive = await self._whole(headers, receive, upload, body)
            if upload and self._uploads >= self.settings.uploads:
                raise HTTPException(503, "too many photos at once; try again in a moment")
            self._uploads += (counted := int(upload))
            await self.app(scope, receive, send)
        except HTTPException as refused:
            status = refused.status_code
            await JSONResponse({"error": refused.detail}, status, HEADERS_OF.get(status))(scope, receive, send)
        finally:
            self._uploads -= counted
            self._bytes -= len(body)

    def _admit(self, path: str, headers: dict[bytes, str]) -> None:
        host = headers.get(b"host", "")
        if not self.settings.knows(host):
            raise HTTPException(421, f"this service is not called {host!r}; see --name")
        if path in OPERATION and not self.settings.shows_metrics_to(headers.get(b"authorization", "")):
            raise HTTPException(401, "this needs the token of the service; see --metrics")

    async def _whole(self, headers: dict[bytes, str], receive: Receive, upload: bool, body: bytearray) -> Receive:
        """Read the whole body, so that no thread or place in a queue ever waits for a slow sender."""
        most = SMALL_BODY + (self.settings.max_upload if upload else 0)
        told = headers.get(b"content-length", "")
        if told.isascii() and told.isdigit() and int(told) > most:
            raise HTTPException(413, f"{int(told):,} bytes are too many; at most {most:,} are taken here")
        more = True
        try:
            async with asyncio.timeout(self.settings.seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise HTTPException(400, "the sender went away")
                    part, more = message.get("body", b""), message.get("more_body", False)
                    body += part
                    self._bytes += len(part)
                    if len(body) > most:
                        raise HTTPException(413, f"too many bytes; at most {most:,} are taken here")
                    if self._bytes > BODIES * self.settings.max_upload + SMALL_BODY:
                        raise HTTPException(503, "too many bytes at once; try again in a moment")
        except TimeoutError:
            raise HTTPException(408, f"the body did not come within {self.settings.seconds:g} s") from None
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def again() -> Message:
            return whole.pop() if whole else await receive()

        return again
