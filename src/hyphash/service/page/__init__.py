"""The page: files that a browser gets as they are."""

import hashlib
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}  # of endings


def asset_routes() -> list[Route]:
    """A route for each file of the page; no path of a request is ever looked up on the disk."""
    routes = []
    for file in files(__name__).iterdir():
        if kind := KINDS.get(file.name.rpartition(".")[2]):
            path = "/" if file.name == "index.html" else f"/page/{file.name}"
            routes.append(_route(path, file.read_bytes(), kind))
    return routes


def _route(path: str, content: bytes, kind: str) -> Route:
    headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()[:24]}"', "Cache-Control": "no-cache"}

    async def asset(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    return Route(path, asset, include_in_schema=False)
