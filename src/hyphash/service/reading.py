"""The routes that anybody may use: search and photos."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, File, Path, Query, Request, Response, UploadFile
from fastapi.routing import APIRoute

from hyphash.collection import Ranking
from hyphash.errors import NoSuchPhotoError, PhotoError
from hyphash.hasher import Outputs
from hyphash.photos import decode, media_type, thumbnail
from hyphash.service.answers import (
    MAX_ID,
    UPLOAD,
    Error,
    Labels,
    PhotoAnswer,
    PhotosAnswer,
    Responses,
    SearchAnswer,
    TagAnswer,
    Wish,
    file_name,
    wish_of,
)
from hyphash.service.desk import Desk, desk_of, place_outputs, place_text

Id = Annotated[int, Path(ge=1, le=MAX_ID, description="The number of a photo.")]
JPEG: Responses = {200: {"content": {"image/jpeg": {}}, "description": "A JPEG."}, 304: {"description": "Not changed."}}
NOT_FOUND: Responses = {404: {"model": Error, "description": "There is no such photo."}}

router = APIRouter(prefix="/api")


# ── search ───────────────────────────────────────────────────────────────────────────────────────────────────


class WishRoute(APIRoute):
    """Takes a wish and nothing else, and reads it itself: FastAPI spends more on the query than a search takes."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def handle(request: Request) -> Response:
            response: Response = await self.endpoint(request, wish_of(request.query_params))
            return response

        return handle


by_wish = APIRouter(prefix="/api", route_class=WishRoute)


@by_wish.get("/search", tags=["search"], responses=NOT_FOUND, response_model=SearchAnswer)
async def search(request: Request, wish: Annotated[Wish, Query()]) -> Response:
    """The photos nearest to labels, to a photo of the collection, to an uploaded one, or to all of them."""
    desk = desk_of(request)

    def look() -> Response:
        outputs = place_outputs(desk.hasher, wish.place) if wish.place else None
        return _found(_ranking(desk, wish, outputs), wish.place)

    return await desk.quick.run(look)


@router.post("/search", tags=["search"], responses=NOT_FOUND | UPLOAD, response_model=SearchAnswer)
async def search_by_photo(
    request: Request,
    photo: Annotated[UploadFile, File(description="The photo to search with.")],
    wish: Annotated[Wish, Query()],
) -> Response:
    """The photos nearest to an uploaded one, which is not kept. Its `place` serves to ask for further pages."""
    desk = desk_of(request)
    data = await photo.read()

    def look() -> Response:
        while True:
            hasher = desk.hasher
            outputs = desk.outputs_of(data, hasher)
            ranking = _ranking(desk, wish, outputs)
            if desk.hasher is hasher:  # else the collection has moved to another one meanwhile
                return _found(ranking, place_text(hasher, outputs))

    return await desk.photos.run(look)


def _ranking(desk: Desk, wish: Wish, outputs: Outputs | None) -> Ranking:
    return desk.collection.search(
        outputs=outputs, like=wish.like, labels=wish.label, unwanted=wish.unwanted, carrying=wish.carrying,
        radius=wish.radius, rank=wish.rank, k=wish.k, offset=wish.offset,
    )  # fmt: skip


def _found(ranking: Ranking, place: str | None) -> Response:
    """The answer to a search, written here in its thread: FastAPI would check and write it on the one loop of all."""
    return Response(SearchAnswer.json_of(ranking, place), media_type="application/json")


# ── photos ───────────────────────────────────────────────────────────────────────────────────────────────────


@router.get("/photos", tags=["photos"])
async def photos(
    request: Request,
    offset: Annotated[int, Query(ge=0, le=MAX_ID)] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 30,
    carrying: Annotated[Labels, Query(description="Only photos that carry all of these.")] = [],  # noqa: B006
    untagged: Annotated[bool, Query(description="Only photos without labels.")] = False,
) -> PhotosAnswer:
    """All photos by number, or those with some labels or with none."""
    desk = desk_of(request)

    def look() -> PhotosAnswer:
        found = desk.collection.photos(offset, limit, carrying=carrying, untagged=untagged)
        total = desk.collection.count(carrying=carrying, untagged=untagged)
        return PhotosAnswer(photos=[PhotoAnswer.of(photo) for photo in found], offset=offset, total=total)

    return await desk.quick.run(look)


@router.get("/photos/{id}", tags=["photos"], responses=NOT_FOUND)
async def photo(request: Request, id: Id) -> PhotoAnswer:
    """One photo."""
    desk = desk_of(request)
    return await desk.quick.run(lambda: PhotoAnswer.of(desk.collection.get(id), path=desk.settings.loopback))


@router.get("/photos/{id}/thumbnail", tags=["photos"], responses=JPEG | NOT_FOUND, response_class=Response)
async def small(request: Request, id: Id) -> Response:
    """A small JPEG, its longer side at most 256 pixels."""
    desk = desk_of(request)

    def look() -> Response:
        etag = f'"{desk.collection.get(id).facts.content[:24]}"'
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304)
        return _picture(desk.collection.thumbnail(id), "image/jpeg", etag)

    return await desk.quick.run(look)


@router.get("/photos/{id}/picture", tags=["photos"], responses=JPEG | NOT_FOUND, response_class=Response)
async def picture(request: Request, id: Id, size: Annotated[int, Query(ge=64, le=2048)] = 1600) -> Response:
    """A JPEG, its longer side at most `size` pixels: what a browser can show, whatever the photo is."""
    desk = desk_of(request)

    def look() -> Response:
        etag = f'"{desk.collection.get(id).facts.content[:24]}-{size}"'
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304)
        try:
            with desk.decoding:
                jpeg = thumbnail(decode(desk.collection.original(id), at_least=size), size)
        except PhotoError:  # its file is gone
            jpeg = desk.collection.thumbnail(id)
        return _picture(jpeg, "image/jpeg", etag)

    return await desk.photos.run(look)


@router.get(
    "/photos/{id}/original",
    tags=["photos"],
    responses=NOT_FOUND | {200: {"content": {"image/*": {}}, "description": "The photo file."}},
    response_class=Response,
)
async def original(request: Request, id: Id) -> Response:
    """The file of a photo, byte for byte, to be saved."""
    desk = desk_of(request)

    def look() -> Response:
        known = desk.collection.get(id)
        try:
            data = desk.collection.original(id)
        except PhotoError as error:
            raise NoSuchPhotoError(f"the file of photo {id} is not here any more; its thumbnail is") from error
        response = _picture(data, media_type(data), f'"{known.facts.content[:24]}-original"')
        response.headers["Content-Disposition"] = _attachment(file_name(known.path))
        return response

    return await desk.quick.run(look)


@router.get("/photos/{id}/suggestions", tags=["photos"], responses=NOT_FOUND)
async def suggestions(request: Request, id: Id, k: Annotated[int, Query(ge=1, le=100)] = 10) -> list[TagAnswer]:
    """Labels that a photo seems to lack, best first."""
    desk = desk_of(request)
    return await desk.quick.run(lambda: [TagAnswer.of(tag) for tag in desk.collection.suggest(id, k=k)])


def _picture(data: bytes, kind: str, etag: str) -> Response:
    return Response(data, media_type=kind, headers={"ETag": etag, "Cache-Control": "private, max-age=300"})


def _attachment(name: str) -> str:
    """A Content-Disposition for any name (RFC 6266)."""
    from urllib.parse import quote

    return f"attachment; filename*=UTF-8''{quote(name, safe='', errors='replace')}"
