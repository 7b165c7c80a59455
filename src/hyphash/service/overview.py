"""The routes that show the collection as a whole: its labels, its figures, its map."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query, Request

from hyphash import __version__
from hyphash.collection.activity import Happening
from hyphash.collection.duplicates import compared
from hyphash.collection.records import Stats
from hyphash.service.schemas import (
    CollectionAnswer,
    CooccurrenceAnswer,
    DuplicateAnswer,
    DuplicatesAnswer,
    LabelAnswer,
    MapAnswer,
    PhotoAnswer,
    PhotoIds,
    TrashedAnswer,
)
from hyphash.service.served import Served, in_pool

MAP_GROUPS = 12  # labels that the map tells apart

router = APIRouter(prefix="/api", tags=["collection"])


@router.get("/collection")
@in_pool("quick")
def collection(served: Served) -> CollectionAnswer:
    """What is served here."""
    opened, hasher = served.collection, served.hasher
    state = opened.store.state()
    untagged = served.cache.get(("untagged",), lambda: opened.count(untagged=True))  # 0.3 s of a million
    return CollectionAnswer(
        name=opened.folder.resolve().name, photos=len(opened), untagged=untagged,
        bits=state.bits, fingerprint=state.fingerprint, commit=state.commit,
        read_only=served.settings.read_only, by_radius=hasher.quantizer is None,
        max_upload=served.settings.max_upload, version=__version__,
    )  # fmt: skip


@router.get("/labels")
@in_pool("quick")
def labels(
    served: Served,
    having: Annotated[str, Query(max_length=200, description="Only labels that contain this.")] = "",
    k: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> list[LabelAnswer]:
    """Labels to search with: those that photos carry, most frequent first, and those that the hasher has learnt."""
    counts = served.cache.get(("labels",), served.collection.labels)
    hasher = served.hasher
    learnt, guessed = hasher.classes if hasher.anchors is not None else (), hasher.spec.guessed or ()
    every = counts | {label: 0 for label in learnt if label not in counts}
    found = [label for label in every if having.casefold() in label.casefold()]
    found.sort(key=lambda label: (not label.casefold().startswith(having.casefold()), -every[label], label))
    return [
        LabelAnswer(
            label=label, photos=every[label], learnt=label in learnt and label not in guessed, guessed=label in guessed
        )
        for label in found[:k]
    ]


@router.get("/stats")
@in_pool("slow")
def stats(served: Served) -> Stats:
    """The collection in figures."""
    return served.cache.get(("stats",), served.collection.stats)


@router.get("/cooccurrence")
@in_pool("slow")
def cooccurrence(served: Served, top: Annotated[int, Query(ge=1, le=40)] = 20) -> CooccurrenceAnswer:
    """How often the most frequent labels stand together."""

    def find() -> CooccurrenceAnswer:
        names: list[str] = list(served.collection.labels())[:top]
        return CooccurrenceAnswer(labels=names, counts=served.collection.cooccurrence(names).tolist())

    return served.cache.get(("cooccurrence", top), find)


@router.get("/map")
@in_pool("slow")
def flat_map(served: Served, limit: Annotated[int, Query(ge=1, le=20_000)] = 5000) -> MapAnswer:
    """Photos on a flat map of their codes."""

    def find() -> MapAnswer:
        ids, locations = served.collection.map(limit)
        groups = list(served.collection.labels())[:MAP_GROUPS]
        carried = {photo.id: photo.labels for photo in served.collection.store.get(ids.tolist())}
        # of several labels the rarest says most
        first = [max((groups.index(x) for x in carried.get(id, ()) if x in groups), default=-1) for id in ids.tolist()]
        x, y = locations.round(4).T.tolist() if len(ids) else ([], [])
        return MapAnswer(ids=ids.tolist(), x=x, y=y, group=first, groups=groups)

    return served.cache.get(("map", limit), find)


@router.get("/activity")
@in_pool("quick")
def activity(request: Request, served: Served, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[Happening]:
    """What happened to the photos, the newest first; what went wrong is told only on the machine itself."""
    direct = served.settings.reached_directly(request.headers)
    return [replace(one, reason=one.reason if direct else "") for one in served.collection.log.recent(limit)]


@router.get("/trash")
@in_pool("quick")
def trash(served: Served) -> list[TrashedAnswer]:
    """The photos in the trash, by number."""
    return [TrashedAnswer.of(row) for row in served.collection.store.removed()]


@router.get("/duplicates/compare")
@in_pool("slow")
def compare(served: Served, id: Annotated[PhotoIds, Query(description="Those of a group.")]) -> list[DuplicateAnswer]:
    """Photos side by side with what differs, the best first; those that are gone are left out."""
    found = compared(served.collection, id)
    return [DuplicateAnswer(**dict(PhotoAnswer.of(photo)), sharpness=value, exact=same) for photo, value, same in found]


@router.get("/duplicates")
@in_pool("slow")
def duplicates(served: Served, radius: Annotated[int, Query(ge=0, le=15)] = 4) -> DuplicatesAnswer:
    """Groups of photos that are copies or look all but the same, the largest first; at most 1,000 groups."""

    def find() -> DuplicatesAnswer:
        return DuplicatesAnswer(groups=[list(group) for group in served.collection.duplicates(radius)[:1000]])

    return served.cache.get(("duplicates", radius), find)
