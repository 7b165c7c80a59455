"""The routes that change the collection, or learn from what people said of it; each change needs the token."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, File, Form, HTTPException, Query, Request, UploadFile
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from hyphash.collection import Photo, Verdict, duplicates, trash
from hyphash.collection.write_tags import Tags, write_tags
from hyphash.errors import NoSuchPhotoError
from hyphash.photos import decode_for
from hyphash.refining import DATES, Stage, due, last_refinement, note, progress
from hyphash.service import schemas
from hyphash.service.photos import Id
from hyphash.service.served import Served, ServedCollection, deadline, in_pool

bearer = HTTPBearer(auto_error=False, description="The token that the service was started with.")
REFUSED = schemas.refusals({401: "No token, or a wrong one.", 403: "This service is read-only."})
MOVED = schemas.BODY | schemas.refusals({409: "A file that cannot be moved."})
UNDER_WAY = schemas.refusals({409: "It is refined already, or photos are being taken in."})
NAME = 200  # letters of a file's name that are kept


async def may_write(served: Served, given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
    """Let only those pass who have the token."""
    if served.settings.read_only:
        raise HTTPException(403, "this service is read-only; start it with a token to change the collection")
    if given is None or not served.settings.opens_to(f"{given.scheme} {given.credentials}"):
        raise HTTPException(401, "this needs the token of the service", {"WWW-Authenticate": "Bearer"})


router = APIRouter(prefix="/api", tags=["changes"], dependencies=[Depends(may_write)], responses=REFUSED)
teaching = APIRouter(prefix="/api/refine", tags=["teaching"])


@router.get("/token", status_code=204)
async def token() -> None:
    """Whether the token that came with the request is that of this service."""


@in_pool("changes", router.post("/photos", status_code=201, responses=schemas.UPLOAD))
def add(
    served: Served,
    photo: Annotated[UploadFile, File(description="The photo to add; it is kept.")],
    label: Annotated[schemas.Labels, Form(description="Labels that it carries; repeat it for several.")] = [],  # noqa: B006
) -> schemas.AddedAnswer:
    """Add a photo. The same bytes under the same name come once."""
    data = photo.file.read()
    decode = partial(served.decode, decode_for, until=deadline.get())
    added = served.collection.add_bytes(data, _kept_name(photo.filename or ""), labels=label, decode=decode)
    return schemas.AddedAnswer(id=added.id, status=added.status)


@in_pool("changes", router.delete("/photos/{id}", status_code=204, responses=schemas.NOT_FOUND))
def remove(served: Served, id: Id) -> None:
    """Forget a photo. A file outside of the collection stays where it is."""
    if not served.collection.remove([id]):
        raise NoSuchPhotoError(f"there is no photo {id}")


@in_pool("changes", router.put("/photos/{id}/labels", responses=schemas.NOT_FOUND | schemas.BODY))
def relabel(served: Served, id: Id, change: schemas.NewLabels) -> schemas.PhotoAnswer:
    """Give a photo these labels and no others."""
    return schemas.PhotoAnswer.of(*_home(served, served.collection.relabel(id, change.labels)))


@in_pool("changes", router.post("/photos/{id}/accept", responses=schemas.NOT_FOUND | schemas.BODY))
def accept(served: Served, id: Id, change: schemas.LabelChange) -> schemas.PhotoAnswer:
    """Give a photo one more label, such as a suggested one."""
    return schemas.PhotoAnswer.of(*_home(served, served.collection.accept(id, change.label)))


@in_pool("changes", router.post("/photos/{id}/refuse", responses=schemas.NOT_FOUND | schemas.BODY))
def refuse(served: Served, id: Id, change: schemas.LabelChange) -> schemas.PhotoAnswer:
    """A photo shall not carry a label, nor be offered it again."""
    return schemas.PhotoAnswer.of(*_home(served, served.collection.refuse(id, change.label)))


@in_pool("changes", router.post("/photos/verdicts", responses=schemas.BODY))
def judge(served: Served, change: schemas.Verdicts) -> schemas.VerdictsAnswer:
    """Accept, refuse or forget labels of many photos in one change; photos that are gone are left out."""
    photos, undo = served.collection.judge(Verdict(**dict(one)) for one in change.verdicts)
    return schemas.VerdictsAnswer.of(_home(served, *photos), undo)


@in_pool("changes", router.post("/duplicates/resolve", responses=schemas.NOT_FOUND | MOVED))
def resolve(served: Served, change: schemas.Resolution) -> schemas.VerdictsAnswer:
    """Keep one photo, give it the labels of the others, and move these into the trash of the collection.

    The photo that stays, and the verdicts that take its new labels back; `restore` brings back the others.
    """
    undo = duplicates.resolve(served.collection, change.keep, change.others)
    return schemas.VerdictsAnswer.of(_home(served, served.collection.get(change.keep)), undo)


@in_pool("changes", router.post("/duplicates/keep", status_code=204, responses=schemas.BODY))
def keep_all(served: Served, change: schemas.TrashedPhotos) -> None:
    """Keep all photos of a group, which is not shown again unless another one joins it."""
    duplicates.keep_all(served.collection, change.ids)


@in_pool("changes", router.post("/trash/restore", responses=MOVED))
def restore(served: Served, change: schemas.TrashedPhotos) -> list[schemas.PhotoAnswer]:
    """Bring photos back to where they were, with numbers and labels; those that are not in the trash are left out."""
    back = trash.restore(served.collection, change.ids)
    return [schemas.PhotoAnswer.of(photo) for photo in served.collection.store.get(back)]


@in_pool("changes", router.post("/trash/empty", status_code=204))
def empty(served: Served) -> None:
    """Delete for good what is in the trash."""
    trash.empty(served.collection)


@in_pool("slow", router.get("/tags"))
def tags(
    request: Request,
    served: Served,
    offset: Annotated[int, Query(ge=0, le=schemas.MAX_ID)] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 30,
) -> list[Tags]:
    """What there is to write home of some photos by number, and where their files say otherwise."""
    found = write_tags(served.collection, served.collection.photos(offset, limit), dry_run=True)
    shown = str if served.settings.reached_directly(request.headers) else schemas.file_name
    every = (one for one in found if isinstance(one, Tags))
    return [replace(one, path=shown(one.path), files=tuple(map(shown, one.files))) for one in every]


@in_pool("quick", teaching.get(""))
def learning(served: Served) -> schemas.RefineAnswer:
    """What was said since the last refinement, how far one is that is under way, and what the last one gained."""
    return _answer(served)


@in_pool(
    "changes", teaching.post("", status_code=202, dependencies=[Depends(may_write)], responses=REFUSED | UNDER_WAY)
)
def refine(served: Served) -> schemas.RefineAnswer:
    """Begin a refinement: train from the collection, and move it to the new hasher if that is better."""
    folder = served.collection.folder.absolute()
    now = progress(folder)
    if (now.process and now.what != DATES) or served.is_refining:
        raise HTTPException(409, "photos are being taken in, or it learns already; wait for the end of that")
    command = [sys.executable, "-P", "-m", "hyphash", "refine", str(folder)]
    served.refining = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    note(folder, Stage(process=served.refining.pid))
    return _answer(served)


def _answer(served: ServedCollection) -> schemas.RefineAnswer:
    begun, now = served.is_refining, progress(served.collection.folder)
    said, since, enough = served.cache.get(("due",), lambda: due(served.collection))
    last, running = last_refinement(served.collection.folder), now.process > 0 or begun
    return schemas.RefineAnswer(said=said, since=since, enough=enough, running=running, last=last, **now._asdict())


def _home(served: ServedCollection, *photos: Photo) -> list[Photo]:
    """Photos whose labels changed: with that switch these go home at once; `tags` shows what stands in the way."""
    for _ in write_tags(served.collection, photos if served.settings.write_tags else ()):
        pass
    return [*photos]


def _kept_name(name: str) -> str:
    """What of a file's name is kept: letters that can be printed, and no folder."""
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[-NAME:] or "photo"
