"""The routes that change the collection; each needs the token."""

import secrets
from typing import Annotated

from fastapi import APIRouter, Depends, File, Form, HTTPException, Request, UploadFile
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from hyphash.errors import NoSuchPhotoError
from hyphash.service.answers import (
    BODY,
    UPLOAD,
    AddedAnswer,
    Error,
    LabelChange,
    Labels,
    NewLabels,
    PhotoAnswer,
    Responses,
)
from hyphash.service.desk import desk_of
from hyphash.service.reading import NOT_FOUND, Id

bearer = HTTPBearer(auto_error=False, description="The token that the service was started with.")
REFUSED: Responses = {
    401: {"model": Error, "description": "No token, or a wrong one."},
    403: {"model": Error, "description": "This service is read-only."},
}
NAME = 200  # letters of a file's name that are kept


def may_write(request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
    """Let only those pass who have the token."""
    settings = desk_of(request).settings
    if settings.read_only:
        raise HTTPException(403, "this service is read-only; start it with a token to change the collection")
    if given is None or not secrets.compare_digest(given.credentials.encode(), settings.token.encode()):
        raise HTTPException(401, "this needs the token of the service", {"WWW-Authenticate": "Bearer"})


router = APIRouter(prefix="/api/photos", tags=["changes"], dependencies=[Depends(may_write)], responses=REFUSED)


@router.post("", status_code=201, responses=UPLOAD)
async def add(
    request: Request,
    photo: Annotated[UploadFile, File(description="The photo to add; it is kept.")],
    label: Annotated[Labels, Form(description="Labels that it carries; repeat it for several.")] = [],  # noqa: B006
) -> AddedAnswer:
    """Add a photo. The same bytes under the same name come once."""
    desk = desk_of(request)
    data, name = await photo.read(), _kept_name(photo.filename or "")

    def work() -> AddedAnswer:
        desk.check_size(data)
        _ = desk.hasher  # batched
        added = desk.collection.add_bytes(data, name, labels=label)
        return AddedAnswer(id=added.id, status=added.status)

    return await desk.changes.run(work)


@router.delete("/{id}", status_code=204, responses=NOT_FOUND)
async def remove(request: Request, id: Id) -> None:
    """Forget a photo. A file outside of the collection stays where it is."""
    desk = desk_of(request)
    if not await desk.changes.run(lambda: desk.collection.remove([id])):
        raise NoSuchPhotoError(f"there is no photo {id}")


@router.put("/{id}/labels", responses=NOT_FOUND | BODY)
async def relabel(request: Request, id: Id, change: NewLabels) -> PhotoAnswer:
    """Give a photo these labels and no others."""
    desk = desk_of(request)
    return await desk.changes.run(lambda: PhotoAnswer.of(desk.collection.relabel(id, change.labels)))


@router.post("/{id}/accept", responses=NOT_FOUND | BODY)
async def accept(request: Request, id: Id, change: LabelChange) -> PhotoAnswer:
    """Give a photo one more label, such as a suggested one."""
    desk = desk_of(request)
    return await desk.changes.run(lambda: PhotoAnswer.of(desk.collection.accept(id, change.label)))


@router.post("/{id}/refuse", responses=NOT_FOUND | BODY)
async def refuse(request: Request, id: Id, change: LabelChange) -> PhotoAnswer:
    """A photo shall not carry a label, nor be offered it again."""
    desk = desk_of(request)
    return await desk.changes.run(lambda: PhotoAnswer.of(desk.collection.refuse(id, change.label)))


def _kept_name(name: str) -> str:
    """What of a file's name is kept: letters that can be printed, and no folder."""
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[-NAME:] or "photo"
