"""The application: routes, the door before them, and what becomes of errors."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from hyphash import __version__, errors
from hyphash.service import changes, photos, search
from hyphash.service.middleware import HEADERS, RETRY, Guard, Observer
from hyphash.service.monitoring import log
from hyphash.service.page import asset_routes
from hyphash.service.schemas import StatusAnswer, refusals
from hyphash.service.served import ServedCollection

ANYWHERE = refusals({
    401: "This needs the token.", 421: "The service is not called that.",
    422: "Something in the request cannot be used.",
    503: "Too much at once, or the engine is away; Retry-After says when to try again.",
})  # fmt: skip


def create_app(served: ServedCollection) -> FastAPI:
    """The service around an open collection, which is closed when the service stops."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        served.close()

    doors = [
        Middleware(Observer, metrics=served.metrics), Middleware(Guard, settings=served.settings),
        Middleware(search.SearchShortcut, served=served, explain=_explain),
    ]  # fmt: skip
    app = FastAPI(
        title="hyphash", version=__version__, summary="Search photos by photo, by labels, or by both.",
        lifespan=lifespan, responses=ANYWHERE, middleware=doors,
        docs_url=None, redoc_url=None,  # they would load scripts from elsewhere
        telemetry={"tracing": False, "metrics": False, "logs": False},  # those of Observer are enough
    )  # fmt: skip
    app.state.served = served
    for routes in (search.router, photos.router, photos.overview, changes.router, changes.teaching):
        app.include_router(routes)
    _add_operations(app, served)
    app.routes.extend(asset_routes())
    for kind in (errors.HyphashError, RequestValidationError, HTTPException):
        app.exception_handler(kind)(_explain)
    app.exception_handler(Exception)(_admit)
    return app


def _add_operations(app: FastAPI, served: ServedCollection) -> None:
    @app.get("/health", tags=["operation"])
    async def health() -> StatusAnswer:
        """The process is alive."""
        return StatusAnswer(status="ok")

    @app.get("/ready", tags=["operation"])
    async def ready() -> StatusAnswer:
        """The collection answers."""
        await served.require_ready()
        return StatusAnswer(status="ok")

    @app.get("/metrics", tags=["operation"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """For Prometheus."""
        text = await served.pools["quick"].run(served.metrics.text)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def _explain(request: Request, error: Exception) -> Response:
    """What an error means to a client. Messages that name files of the server stay in its log.

    Of a request that is wrong it says which part, and does not repeat what that held: it may be long, or no text.
    """
    direct = request.app.state.served.settings.reached_directly(request.headers)
    told = str(error)
    match error:
        case HTTPException():
            return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)
        case RequestValidationError():
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            status, told = 422, f"{where}: {first['msg']}".encode("ascii", "replace").decode()
        case errors.BusyError():
            status, told = 503, "too much is going on at the moment; try again"
        case errors.EngineError():
            reason = f": {error}" if direct else "; try again"
            status, told = 503, f"the engine behind the collection does not answer{reason}"
        case errors.NoSuchPhotoError():
            status, told = 404, "there is no such photo; it may have been removed"
        case errors.NotMovedError():
            status, told = 409, told if direct else "its file cannot be moved; the service's log says why"
        case errors.PhotoError() | errors.MissingExtraError():
            status, told = 415, told if direct or request.method == "POST" else "its file cannot be read; see the log"
        case errors.LabelError() | errors.ConfigError():
            status = 422
        case errors.StorageError():
            status, told = 507, "the disk of the service is full or cannot be written"
        case _:
            status, told = 500, "the collection cannot be used; the log of the service says why"
    if status >= 500 or status == 409 or (status == 415 and told != str(error)):
        log.error("failed", extra={"facts": {"path": request.url.path, "reason": str(error)}})
    return JSONResponse({"error": told}, status, {"Retry-After": str(RETRY)} if status == 503 else None)


async def _admit(_request: Request, _error: Exception) -> Response:
    """A fault of ours; the server logs it. This answer passes by the door, where the others get their headers."""
    return JSONResponse({"error": "a fault of the service; its log says more"}, 500, HEADERS)
