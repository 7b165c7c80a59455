"""The routes to photos: lists, facts, pictures, suggested labels."""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request, Response

from hyphash.errors import NoSuchPhotoError, PhotoError
from hyphash.photos import MAX_PIXELS, Raw, media_type, picture_of
from hyphash.service import schemas
from hyphash.service.served import Served, in_pool

Id = Annotated[int, Path(ge=1, le=schemas.MAX_ID, description="The number of a photo.")]

router = APIRouter(prefix="/api/photos", tags=["photos"])


@in_pool("quick", router.get(""))
def photos(
    served: Served,
    offset: Annotated[int, Query(ge=0, le=schemas.MAX_ID)] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 30,
    carrying: Annotated[schemas.Labels, Query(description="Only photos that carry all of these.")] = [],  # noqa: B006
    untagged: Annotated[bool, Query(description="Only photos without labels.")] = False,
    telling: Annotated[bool, Query(description="Without labels, those first that teach most.")] = False,
    passed: Annotated[list[schemas.PhotoId], Query(max_length=500, description="Not these, of the telling.")] = [],  # noqa: B006
) -> schemas.PhotosAnswer:
    """All photos by number, or those with some labels or with none; `offset` means nothing to the telling."""
    opened = served.collection
    if telling:
        found = opened.to_tag(limit, passed=passed)
    else:
        found = opened.photos(offset, limit, carrying=carrying, untagged=untagged)
    total = opened.count(carrying=carrying, untagged=untagged or telling)
    return schemas.PhotosAnswer(photos=[schemas.PhotoAnswer.of(photo) for photo in found], offset=offset, total=total)


@in_pool("quick", router.get("/{id}", responses=schemas.NOT_FOUND))
def photo(request: Request, served: Served, id: Id) -> schemas.PhotoAnswer:
    """One photo."""
    return schemas.PhotoAnswer.of(served.collection.get(id), path=served.settings.reached_directly(request.headers))


@in_pool("quick", router.get("/{id}/thumbnail", responses=schemas.JPEG | schemas.NOT_FOUND, response_class=Response))
def small(request: Request, served: Served, id: Id) -> Response:
    """A small JPEG, its longer side at most 256 pixels."""
    etag = f'"{served.collection.get(id).facts.content[:24]}"'
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304)
    return _picture(served.collection.thumbnail(id), "image/jpeg", etag)


@in_pool("photos", router.get("/{id}/picture", responses=schemas.JPEG | schemas.NOT_FOUND, response_class=Response))
def picture(request: Request, served: Served, id: Id, size: Annotated[int, Query(ge=64, le=2048)] = 1600) -> Response:
    """A JPEG, its longer side at most `size` pixels: what a browser can show, whatever the photo is."""
    etag = f'"{served.collection.get(id).facts.content[:24]}-{size}"'
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304)
    try:
        raw = Raw("photo", served.collection.original(id))
        jpeg = served.decode(picture_of, raw, max_pixels=MAX_PIXELS, size=size)
    except PhotoError:  # its file is gone
        jpeg = served.collection.thumbnail(id)
    return _picture(jpeg, "image/jpeg", etag)


@in_pool(
    "quick",
    router.get(
        "/{id}/original",
        responses=schemas.NOT_FOUND | {200: {"content": {"image/*": {}}, "description": "The photo file."}},
        response_class=Response,
    ),
)
def original(served: Served, id: Id) -> Response:
    """The file of a photo, byte for byte, to be saved."""
    known = served.collection.get(id)
    try:
        data = served.collection.original(id)
    except PhotoError as error:
        raise NoSuchPhotoError(f"the file of photo {id} is not here any more; its thumbnail is") from error
    response = _picture(data, media_type(data), f'"{known.facts.content[:24]}-original"')
    name = quote(schemas.file_name(known.path), safe="", errors="replace")  # any name can stand there (RFC 6266)
    response.headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{name}"
    return response


@in_pool("quick", router.get("/{id}/suggestions", responses=schemas.NOT_FOUND))
def suggestions(served: Served, id: Id, k: Annotated[int, Query(ge=1, le=100)] = 10) -> list[schemas.TagAnswer]:
    """Labels that a photo seems to lack, best first."""
    return [schemas.TagAnswer.of(tag) for tag in served.collection.suggest(id, k=k)]


def _picture(data: bytes, kind: str, etag: str) -> Response:
    return Response(data, media_type=kind, headers={"ETag": etag, "Cache-Control": "private, max-age=300"})
