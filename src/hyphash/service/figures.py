"""The routes that show the collection as a whole: its labels, its figures, its map."""

from typing import Annotated

from fastapi import APIRouter, Query, Request

from hyphash import __version__
from hyphash.service.answers import (
    CollectionAnswer,
    CooccurrenceAnswer,
    DuplicatesAnswer,
    LabelAnswer,
    MapAnswer,
    StatsAnswer,
)
from hyphash.service.desk import desk_of

MAP_GROUPS = 12  # labels that the map tells apart

router = APIRouter(prefix="/api", tags=["collection"])


@router.get("/collection")
async def collection(request: Request) -> CollectionAnswer:
    """What is served here."""
    desk = desk_of(request)

    def look() -> CollectionAnswer:
        opened, hasher = desk.collection, desk.hasher
        state = opened.store.state()
        return CollectionAnswer(
            name=opened.folder.resolve().name, photos=len(opened), untagged=opened.count(untagged=True),
            bits=state.bits, fingerprint=state.fingerprint, commit=state.commit,
            read_only=desk.settings.read_only, by_radius=hasher.quantizer is None,
            max_upload=desk.settings.max_upload, version=__version__,
        )  # fmt: skip

    return await desk.quick.run(look)


@router.get("/labels")
async def labels(
    request: Request,
    having: Annotated[str, Query(max_length=200, description="Only labels that contain this.")] = "",
    k: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> list[LabelAnswer]:
    """Labels to search with: those that photos carry, most frequent first, and those that the hasher has learnt."""
    desk = desk_of(request)

    def look() -> list[LabelAnswer]:
        counts = desk.figures.get(("labels",), desk.collection.labels)
        learnt = desk.hasher.classes if desk.hasher.anchors is not None else ()
        every = counts | {label: 0 for label in learnt if label not in counts}
        found = [label for label in every if having.casefold() in label.casefold()]
        found.sort(key=lambda label: (not label.casefold().startswith(having.casefold()), -every[label], label))
        return [LabelAnswer(label=label, photos=every[label], learnt=label in learnt) for label in found[:k]]

    return await desk.quick.run(look)


@router.get("/stats")
async def stats(request: Request) -> StatsAnswer:
    """The collection in figures."""
    desk = desk_of(request)
    found = await desk.slow.run(lambda: desk.figures.get(("stats",), desk.collection.stats))
    return StatsAnswer.model_validate(found, from_attributes=True)


@router.get("/cooccurrence")
async def cooccurrence(request: Request, top: Annotated[int, Query(ge=1, le=40)] = 20) -> CooccurrenceAnswer:
    """How often the most frequent labels stand together."""
    desk = desk_of(request)

    def find() -> CooccurrenceAnswer:
        names: list[str] = list(desk.collection.labels())[:top]
        return CooccurrenceAnswer(labels=names, counts=desk.collection.cooccurrence(names).tolist())

    return await desk.slow.run(lambda: desk.figures.get(("cooccurrence", top), find))


@router.get("/map")
async def flat_map(request: Request, limit: Annotated[int, Query(ge=1, le=20_000)] = 5000) -> MapAnswer:
    """Photos on a flat map of their codes."""
    desk = desk_of(request)

    def find() -> MapAnswer:
        ids, places = desk.collection.map(limit)
        groups = list(desk.collection.labels())[:MAP_GROUPS]
        carried = {photo.id: photo.labels for photo in desk.collection.store.get(ids.tolist())}
        # of several labels the rarest says most
        first = [max((groups.index(x) for x in carried.get(id, ()) if x in groups), default=-1) for id in ids.tolist()]
        x, y = places.round(4).T.tolist() if len(ids) else ([], [])
        return MapAnswer(ids=ids.tolist(), x=x, y=y, group=first, groups=groups)

    return await desk.slow.run(lambda: desk.figures.get(("map", limit), find))


@router.get("/duplicates")
async def duplicates(request: Request, radius: Annotated[int, Query(ge=0, le=15)] = 4) -> DuplicatesAnswer:
    """Groups of photos that are copies or look all but the same, the largest first; at most 1,000 groups."""
    desk = desk_of(request)

    def find() -> DuplicatesAnswer:
        return DuplicatesAnswer(groups=[list(group) for group in desk.collection.duplicates(radius)[:1000]])

    return await desk.slow.run(lambda: desk.figures.get(("duplicates", radius), find))
