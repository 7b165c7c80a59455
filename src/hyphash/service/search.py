"""The routes that search: by labels, by a photo of the collection, by an uploaded one, or by all of them."""

import base64
import binascii
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, File, Query, Request, Response, UploadFile
from fastapi.routing import APIRoute

from hyphash.collection import Ranking
from hyphash.collection.label_query import probabilities
from hyphash.errors import ConfigError, OtherHasherError
from hyphash.hasher import Hasher, Outputs
from hyphash.service.schemas import NOT_FOUND, UPLOAD, SearchAnswer, SearchQuery, search_query
from hyphash.service.served import Served, ServedCollection, in_pool, served_by


class SearchRoute(APIRoute):
    """Takes a query and nothing else, and reads it itself: FastAPI spends more on it than a search takes."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def handle(request: Request) -> Response:
            asked = search_query(request.query_params)
            response: Response = await self.endpoint(served=await served_by(request), query=asked)
            return response

        return handle


MOVED = "this place belongs to another hasher; upload the photo again"
by_address = APIRouter(prefix="/api", tags=["search"], route_class=SearchRoute)
by_upload = APIRouter(prefix="/api", tags=["search"])


@by_address.get("/search", responses=NOT_FOUND, response_model=SearchAnswer)
@in_pool("quick")
def search(served: Served, query: Annotated[SearchQuery, Query()]) -> Response:
    """The photos nearest to labels, to a photo of the collection, to an uploaded one, or to all of them."""
    outputs = fingerprint = None
    if query.place:
        hasher = served.hasher
        outputs, fingerprint = outputs_from(query.place, hasher), hasher.fingerprint
    try:
        return _found(_ranking(served, query, outputs, fingerprint), query.place)
    except OtherHasherError:
        raise ConfigError(MOVED) from None


@by_upload.post("/search", responses=NOT_FOUND | UPLOAD, response_model=SearchAnswer)
@in_pool("photos")
def search_by_photo(
    served: Served,
    photo: Annotated[UploadFile, File(description="The photo to search with.")],
    query: Annotated[SearchQuery, Query()],
) -> Response:
    """The photos nearest to an uploaded one, which is not kept. Its `place` serves to ask for further pages."""
    data = photo.file.read()

    def attempt(hasher: Hasher) -> Response:
        outputs = served.outputs_of(data, hasher)
        return _found(_ranking(served, query, outputs, hasher.fingerprint), outputs_text(outputs, hasher))

    return served.collection.with_hasher(attempt)


def _ranking(served: ServedCollection, query: SearchQuery, outputs: Outputs | None, fingerprint: str | None) -> Ranking:
    return served.collection.search(
        outputs=outputs, fingerprint=fingerprint, like=query.like, labels=query.label, unwanted=query.unwanted,
        any_of=query.any_of, at_least=probabilities(query.at_least), missing=query.missing or "",
        wrong=query.wrong or "", carrying=query.carrying, radius=query.radius, rank=query.rank, k=query.k,
        offset=query.offset,
    )  # fmt: skip


def _found(ranking: Ranking, place: str | None) -> Response:
    """The answer to a search, written here in its thread: FastAPI would check and write it on the one loop of all."""
    return Response(SearchAnswer.json_of(ranking, place), media_type="application/json")


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
    except (binascii.Error, ValueError) as error:
        raise ConfigError("this is no place; take it from the answer to an upload") from error
    if outputs.shape != (hasher.width,) or not np.isfinite(outputs).all() or np.abs(outputs).max() > 1e9:
        raise ConfigError("this is no place; take it from the answer to an upload")
    return outputs
