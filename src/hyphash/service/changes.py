"""The routes that change the collection; each needs the token."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, File, Form, HTTPException, Query, UploadFile
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from hyphash.collection import Photo, Verdict, duplicates, trash
from hyphash.collection.write_tags import Tags, write_tags
from hyphash.errors import NoSuchPhotoError
from hyphash.photos import decode_for
from hyphash.service.photos import Id
from hyphash.service.schemas import (
    BODY,
    MAX_ID,
    NOT_FOUND,
    UPLOAD,
    AddedAnswer,
    Error,
    LabelChange,
    Labels,
    NewLabels,
    PhotoAnswer,
    Resolution,
    Responses,
    TrashedPhotos,
    Verdicts,
    VerdictsAnswer,
)
from hyphash.service.served import Served, ServedCollection, in_pool
from hyphash.service.threads import deadline

bearer = HTTPBearer(auto_error=False, description="The token that the service was started with.")
REFUSED: Responses = {
    401: {"model": Error, "description": "No token, or a wrong one."},
    403: {"model": Error, "description": "This service is read-only."},
}
MOVED: Responses = BODY | {409: {"model": Error, "description": "A file that cannot be moved."}}
NAME = 200  # letters of a file's name that are kept


async def may_write(served: Served, given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
    """Let only those pass who have the token."""
    if served.settings.read_only:
        raise HTTPException(403, "this service is read-only; start it with a token to change the collection")
    if given is None or not served.settings.opens_to(f"{given.scheme} {given.credentials}"):
        raise HTTPException(401, "this needs the token of the service", {"WWW-Authenticate": "Bearer"})


router = APIRouter(prefix="/api", tags=["changes"], dependencies=[Depends(may_write)], responses=REFUSED)


@router.get("/token", status_code=204)
async def token() -> None:
    """Whether the token that came with the request is that of this service."""


@router.post("/photos", status_code=201, responses=UPLOAD)
@in_pool("changes")
def add(
    served: Served,
    photo: Annotated[UploadFile, File(description="The photo to add; it is kept.")],
    label: Annotated[Labels, Form(description="Labels that it carries; repeat it for several.")] = [],  # noqa: B006
) -> AddedAnswer:
    """Add a photo. The same bytes under the same name come once."""
    data = photo.file.read()
    decode = partial(served.decode, decode_for, until=deadline.get())
    added = served.collection.add_bytes(data, _kept_name(photo.filename or ""), labels=label, decode=decode)
    return AddedAnswer(id=added.id, status=added.status)


@router.delete("/photos/{id}", status_code=204, responses=NOT_FOUND)
@in_pool("changes")
def remove(served: Served, id: Id) -> None:
    """Forget a photo. A file outside of the collection stays where it is."""
    if not served.collection.remove([id]):
        raise NoSuchPhotoError(f"there is no photo {id}")


@router.put("/photos/{id}/labels", responses=NOT_FOUND | BODY)
@in_pool("changes")
def relabel(served: Served, id: Id, change: NewLabels) -> PhotoAnswer:
    """Give a photo these labels and no others."""
    return PhotoAnswer.of(*_home(served, served.collection.relabel(id, change.labels)))


@router.post("/photos/{id}/accept", responses=NOT_FOUND | BODY)
@in_pool("changes")
def accept(served: Served, id: Id, change: LabelChange) -> PhotoAnswer:
    """Give a photo one more label, such as a suggested one."""
    return PhotoAnswer.of(*_home(served, served.collection.accept(id, change.label)))


@router.post("/photos/{id}/refuse", responses=NOT_FOUND | BODY)
@in_pool("changes")
def refuse(served: Served, id: Id, change: LabelChange) -> PhotoAnswer:
    """A photo shall not carry a label, nor be offered it again."""
    return PhotoAnswer.of(*_home(served, served.collection.refuse(id, change.label)))


@router.post("/photos/verdicts", responses=BODY)
@in_pool("changes")
def judge(served: Served, change: Verdicts) -> VerdictsAnswer:
    """Accept, refuse or forget labels of many photos in one change; photos that are gone are left out."""
    photos, undo = served.collection.judge(Verdict(**dict(one)) for one in change.verdicts)
    return VerdictsAnswer.of(_home(served, *photos), undo)


@router.post("/duplicates/resolve", responses=NOT_FOUND | MOVED)
@in_pool("changes")
def resolve(served: Served, change: Resolution) -> VerdictsAnswer:
    """Keep one photo, give it the labels of the others, and move these into the trash of the collection.

    The photo that stays, and the verdicts that take its new labels back; `restore` brings back the others.
    """
    undo = duplicates.resolve(served.collection, change.keep, change.others)
    return VerdictsAnswer.of(_home(served, served.collection.get(change.keep)), undo)


@router.post("/duplicates/keep", status_code=204)
@in_pool("changes")
def keep_all(served: Served, change: TrashedPhotos) -> None:
    """Keep all photos of a group, which is not shown again unless another one joins it."""
    duplicates.keep_all(served.collection, change.ids)


@router.post("/trash/restore", responses=MOVED)
@in_pool("changes")
def restore(served: Served, change: TrashedPhotos) -> list[PhotoAnswer]:
    """Bring photos back to where they were, with numbers and labels; those that are not in the trash are left out."""
    back = trash.restore(served.collection, change.ids)
    return [PhotoAnswer.of(photo) for photo in served.collection.store.get(back)]


@router.post("/trash/empty", status_code=204)
@in_pool("changes")
def empty(served: Served) -> None:
    """Delete for good what is in the trash."""
    trash.empty(served.collection)


@router.get("/tags")
@in_pool("slow")
def tags(
    served: Served, offset: Annotated[int, Query(ge=0, le=MAX_ID)] = 0, limit: Annotated[int, Query(ge=1, le=200)] = 30
) -> list[Tags]:
    """What there is to write home of some photos by number, and where their files say otherwise."""
    found = write_tags(served.collection, served.collection.photos(offset, limit), dry_run=True)
    return [one for one in found if isinstance(one, Tags)]


def _home(served: ServedCollection, *photos: Photo) -> list[Photo]:
    """Photos whose labels changed: with that switch these go home at once; `tags` shows what stands in the way."""
    for _ in write_tags(served.collection, photos if served.settings.write_tags else ()):
        pass
    return [*photos]


def _kept_name(name: str) -> str:
    """What of a file's name is kept: letters that can be printed, and no folder."""
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[-NAME:] or "photo"
