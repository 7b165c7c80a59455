"""The routes that show photos, and the collection as a whole: its labels, its figures, its map."""

from contextlib import suppress
from dataclasses import replace
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request, Response

from hyphash import __version__
from hyphash.collection.duplicates import KEPT, compared
from hyphash.collection.records import Happening, Stats
from hyphash.collection.trash import thumbnail as trashed_thumbnail
from hyphash.errors import LabelError, NoSuchPhotoError, PhotoError
from hyphash.photos import MAX_PIXELS, Raw, media_type, picture_of, size_and_time
from hyphash.service import schemas
from hyphash.service.served import Served, in_pool

Id = Annotated[int, Path(ge=1, le=schemas.MAX_ID, description="The number of a photo.")]

SURE = 0.95  # as on the page: from here on photos are offered together
MAP_GROUPS = 12  # labels that the map tells apart

router = APIRouter(prefix="/api/photos", tags=["photos"])
overview = APIRouter(prefix="/api", tags=["collection"])


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


@in_pool("quick", router.get("/{id}/thumbnail", responses=schemas.JPEG, response_class=Response))
def small(request: Request, served: Served, id: Id) -> Response:
    """A small JPEG, its longer side at most 256 pixels."""
    etag = f'"{served.collection.get(id).facts.content[:24]}"'
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304)
    return _picture(served.collection.thumbnail(id), "image/jpeg", etag)


@in_pool("photos", router.get("/{id}/picture", responses=schemas.JPEG, response_class=Response))
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


@in_pool("quick", router.get("/{id}/original", responses=schemas.FILE, response_class=Response))
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
    return [
        schemas.TagAnswer(label=tag.label, score=round(tag.score, 4), likely=tag.carried, guessed=tag.guessed)
        for tag in served.collection.suggest(id, k=k)
    ]


def _picture(data: bytes, kind: str, etag: str) -> Response:
    return Response(data, media_type=kind, headers={"ETag": etag, "Cache-Control": "private, max-age=300"})


@in_pool("quick", overview.get("/collection"))
def collection(served: Served) -> schemas.CollectionAnswer:
    """What is served here."""
    opened, hasher = served.collection, served.hasher
    state = opened.store.state()
    return schemas.CollectionAnswer(
        name=opened.folder.resolve().name, photos=len(opened), untagged=served.untagged(),
        bits=state.bits, fingerprint=state.fingerprint, commit=state.commit,
        read_only=served.settings.read_only, by_radius=hasher.quantizer is None,
        max_upload=served.settings.max_upload, version=__version__,
    )  # fmt: skip


@in_pool("quick", overview.get("/labels"))
def labels(
    served: Served,
    having: Annotated[str, Query(max_length=200, description="Only labels that contain this.")] = "",
    k: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> list[schemas.LabelAnswer]:
    """Labels to search with: those that photos carry, most frequent first, and those that the hasher has learnt."""
    counts = served.cache.get(("labels",), served.collection.labels)
    hasher = served.hasher
    learnt, guessed = hasher.classes if hasher.anchors is not None else (), hasher.spec.guessed or ()
    every = counts | {label: 0 for label in learnt if label not in counts}
    typed = having.casefold()
    found = [label for label in every if typed in label.casefold()]
    begins = {label for label in found if f"/{typed}" in f"/{label.casefold()}"}  # it, or a level of it
    same = {label for label in begins if label.casefold() == typed and every[label]}
    found.sort(key=lambda label: (label not in same, label not in begins, -every[label], label))
    taught = {*learnt} - {*guessed}
    return [
        schemas.LabelAnswer(label=label, photos=every[label], learnt=label in taught, guessed=label in guessed)
        for label in found[:k]
    ]


@in_pool("slow", overview.get("/labels/lacking"), kept=True)
def lacking(served: Served, k: Annotated[int, Query(ge=1, le=100)] = 16) -> list[schemas.LackingAnswer]:
    """Labels that some photos do not carry and have with 95 % or more, and how many do, most first."""
    opened, hasher, reached = served.collection, served.hasher, dict[str, int]()
    for label in {*(hasher.classes if hasher.calibration else ()), *list(opened.labels())[:k]}:
        with suppress(LabelError):  # nothing tells how probable it is
            reached[label] = opened.search(missing=label, at_least={label: SURE}, k=1).total
    found = sorted((label for label, photos in reached.items() if photos), key=lambda label: (-reached[label], label))
    return [schemas.LackingAnswer(label=label, photos=reached[label]) for label in found[:k]]


@in_pool("slow", overview.get("/stats"), kept=True)
def stats(served: Served) -> Stats:
    """The collection in figures."""
    return served.collection.stats()


@in_pool("slow", overview.get("/cooccurrence"), kept=True)
def cooccurrence(served: Served, top: Annotated[int, Query(ge=1, le=40)] = 20) -> schemas.CooccurrenceAnswer:
    """How often the most frequent labels stand together."""
    names: list[str] = list(served.collection.labels())[:top]
    return schemas.CooccurrenceAnswer(labels=names, counts=served.collection.cooccurrence(names).tolist())


@in_pool("slow", overview.get("/map"), kept=True)
def flat_map(served: Served, limit: Annotated[int, Query(ge=1, le=20_000)] = 5000) -> schemas.MapAnswer:
    """Photos on a flat map of their codes."""
    ids, locations = served.collection.map(limit)
    groups = list(served.collection.labels())[:MAP_GROUPS]
    carried = {photo.id: photo.labels for photo in served.collection.store.get(ids.tolist())}
    # of several labels the rarest says most
    first = [max((groups.index(x) for x in carried.get(id, ()) if x in groups), default=-1) for id in ids.tolist()]
    x, y = locations.round(4).T.tolist() if len(ids) else ([], [])
    return schemas.MapAnswer(ids=ids.tolist(), x=x, y=y, group=first, groups=groups)


@in_pool("quick", overview.get("/activity"))
def activity(request: Request, served: Served, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[Happening]:
    """What happened to the photos, the newest first; what went wrong is told only on the machine itself."""
    direct = served.settings.reached_directly(request.headers)
    return [replace(one, reason=one.reason if direct else "") for one in served.collection.log.recent(limit)]


@in_pool("quick", overview.get("/trash"))
def trash(served: Served) -> list[schemas.TrashedAnswer]:
    """The photos in the trash, by number."""
    return [
        schemas.TrashedAnswer(id=row.id, name=schemas.file_name(row.path), labels=list(row.labels), time=row.time)
        for row in served.collection.store.removed()
    ]


@in_pool("quick", overview.get("/trash/{id}/thumbnail", responses=schemas.JPEG, response_class=Response))
def small_in_trash(served: Served, id: Id) -> Response:
    """A small JPEG of a photo in the trash."""
    return _picture(trashed_thumbnail(served.collection, id), "image/jpeg", f'"trash-{id}"')


@in_pool("slow", overview.get("/duplicates/compare"))
def compare(
    served: Served, id: Annotated[schemas.PhotoIds, Query(description="Those of a group.")]
) -> list[schemas.DuplicateAnswer]:
    """Photos side by side with what differs, the best first; those that are gone are left out."""
    found = compared(served.collection, id)
    return [
        schemas.DuplicateAnswer(**dict(schemas.PhotoAnswer.of(photo)), sharpness=value, exact=same)
        for photo, value, same in found
    ]


@in_pool("slow", overview.get("/duplicates"))
def duplicates(served: Served, radius: Annotated[int, Query(ge=0, le=15)] = 4) -> schemas.DuplicatesAnswer:
    """Groups of photos that are copies or look all but the same, the largest first; at most 1,000 groups."""

    def find() -> schemas.DuplicatesAnswer:
        return schemas.DuplicatesAnswer(groups=[list(group) for group in served.collection.duplicates(radius)[:1000]])

    kept = size_and_time(served.collection.folder / KEPT)  # that makes no commit
    return served.cache.get(("duplicates", radius, kept), find)
