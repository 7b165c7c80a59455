"""The routes that search: by labels, by a photo of the collection, by an uploaded one, or by all of them."""

import base64
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated

import numpy as np
from fastapi import APIRouter, File, Query, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from hyphash.collection import Ranking
from hyphash.collection.query import probabilities
from hyphash.collection.records import Timeline
from hyphash.errors import ConfigError, HyphashError, OtherHasherError
from hyphash.hasher import Hasher, Outputs
from hyphash.searchers.filters import READERS
from hyphash.service.schemas import NOT_FOUND, UPLOAD, SearchAnswer, SearchQuery, search_query
from hyphash.service.served import Served, ServedCollection, in_pool

Explain = Callable[[Request, Exception], Awaitable[Response]]
PATH = "/api/search"
JSON = "application/json"
IN_TIMELINE = 10_000  # photos of a search by labels that a timeline shows at most
NEAREST = 1000  # and of any other
AT_HAND = {"label", "unwanted", "like", "rank", "k", "offset"}  # what a search may ask for that is answered at once
MOVED = "this place belongs to another hasher; upload the photo again"
router = APIRouter(tags=["search"])


@in_pool("quick", router.get(PATH, responses=NOT_FOUND, response_model=SearchAnswer))
def search(served: Served, query: Annotated[SearchQuery, Query()]) -> Response:
    """The photos nearest to labels, to a photo of the collection, to an uploaded one, or to all of them."""
    return Response(_answer(served, query), media_type=JSON)


def _answer(served: ServedCollection, query: SearchQuery) -> bytes:
    outputs = fingerprint = None
    if query.place:
        hasher = served.hasher
        outputs, fingerprint = outputs_from(query.place, hasher), hasher.fingerprint
    try:
        return SearchAnswer.json_of(_ranking(served, query, outputs, fingerprint), query.place)
    except OtherHasherError:
        raise ConfigError(MOVED) from None


@in_pool("photos", router.post(PATH, responses=NOT_FOUND | UPLOAD, response_model=SearchAnswer))
def search_by_photo(
    served: Served,
    photo: Annotated[UploadFile, File(description="The photo to search with.")],
    query: Annotated[SearchQuery, Query()],
) -> Response:
    """The photos nearest to an uploaded one, which is not kept. Its `place` serves to ask for further pages."""
    data = photo.file.read()

    def attempt(hasher: Hasher) -> Response:
        outputs = served.outputs_of(data, hasher)
        ranking = _ranking(served, query, outputs, hasher.fingerprint)
        return Response(SearchAnswer.json_of(ranking, outputs_text(outputs, hasher)), media_type=JSON)

    return served.collection.with_hasher(attempt)


@in_pool("slow", router.get("/api/timeline", responses=NOT_FOUND))
def timeline(served: Served, query: Annotated[SearchQuery, Query()]) -> Timeline:
    """How many photos were taken in each month: of the collection, of what filters allow, or of what a search finds.

    Of a search by labels these are the photos that carry them or probably do, of any other the 1,000 nearest. Where
    the dates of many photos are to be gathered first it says so, and nobody waits.
    """
    if not served.knows_dates():
        return Timeline((), 0, unread=len(served.collection))
    opened, hasher, only = served.collection, served.hasher, replace(query.only, carrying=tuple(query.carrying))
    if not query.model_fields_set - {"carrying", "k", "offset", *READERS}:
        return served.cache.get(("timeline", only), lambda: opened.timeline(only))
    outputs = outputs_from(query.place, hasher) if query.place else None
    whole = query.model_copy(update={"k": IN_TIMELINE, "offset": 0})
    ranking = _ranking(served, whole, outputs, hasher.fingerprint if query.place else None)
    return opened.timeline(among=ranking[: ranking.known + ranking.probable if ranking.bordered else NEAREST])


class SearchShortcut:
    """Answers the route `search` itself: FastAPI's way to it and back costs more than the search does."""

    def __init__(self, app: ASGIApp, served: ServedCollection, explain: Explain) -> None:
        self.app = app
        self.served = served
        self.explain = explain  # makes an answer of an error
        (self.route,) = (route for route in router.routes if getattr(route, "endpoint", None) is search)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "GET":
            await self.app(scope, receive, send)
            return
        scope["route"] = self.route
        try:
            query = search_query(scope["query_string"].decode("latin-1"))
            if _is_at_hand(self.served, query):
                body = _answer(self.served, query)
                head = [(b"content-length", b"%d" % len(body)), (b"content-type", JSON.encode())]
                await send({"type": "http.response.start", "status": 200, "headers": head})
                await send({"type": "http.response.body", "body": body})
                return
            response = await search(served=self.served, query=query)
        except (HyphashError, RequestValidationError) as error:
            response = await self.explain(Request(scope), error)
        await response(scope, receive, send)


def _is_at_hand(served: ServedCollection, query: SearchQuery) -> bool:
    """Whether a search takes less time than the way to a thread and back: the first photos by codes, all in memory."""
    labels, hasher = (*query.label, *query.unwanted), served.collection.hasher
    by_codes = query.rank == "hamming" or not (query.rank or labels)
    if not by_codes or not query.model_fields_set <= AT_HAND or query.k + query.offset > NEAREST:
        return False
    learnt = hasher.anchors is not None and all(label in hasher.classes for label in labels)
    return learnt and hasher.quantizer is None and served.is_at_hand()


def _ranking(served: ServedCollection, query: SearchQuery, outputs: Outputs | None, fingerprint: str | None) -> Ranking:
    return served.collection.search(
        outputs=outputs, fingerprint=fingerprint, like=query.like, labels=query.label, unwanted=query.unwanted,
        any_of=query.any_of, at_least=probabilities(query.at_least), missing=query.missing or "",
        wrong=query.wrong or "", carrying=query.carrying, radius=query.radius, only=query.only, rank=query.rank,
        bits=query.bits, k=query.k, offset=query.offset,
    )  # fmt: skip


def outputs_text(outputs: Outputs, hasher: Hasher) -> str:
    """Outputs as text that fits into an address, with the name of the hasher that they belong to."""
    packed = base64.urlsafe_b64encode(np.ascontiguousarray(outputs, "<f4").tobytes())
    return f"{hasher.fingerprint}.{packed.decode().rstrip('=')}"


def outputs_from(text: str, hasher: Hasher) -> Outputs:
    """The outputs that `outputs_text` has written."""
    fingerprint, _, packed = text.partition(".")
    if fingerprint != hasher.fingerprint:
        raise ConfigError(MOVED)
    try:
        data = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
        outputs = np.frombuffer(data, "<f4").astype(np.float32)
        if outputs.shape == (hasher.width,) and np.isfinite(outputs).all() and np.abs(outputs).max() <= 1e9:
            return outputs
    except ValueError:  # no base64, or no whole numbers
        pass
    raise ConfigError("this is no place; take it from the answer to an upload")
