"""The routes that learn from what people said: is a refinement worth its time, how far is it, what did it gain?"""

from fastapi import APIRouter, Depends

from hyphash.refining import due, last_refinement
from hyphash.service.changes import REFUSED, may_write
from hyphash.service.schemas import RefineAnswer
from hyphash.service.served import Served, in_pool

router = APIRouter(prefix="/api/refine", tags=["teaching"])


@router.get("")
@in_pool("quick")
def progress(served: Served) -> RefineAnswer:
    """What was said since the last refinement, how far one is that is under way, and what the last one gained."""
    collection, now = served.collection, served.uploads.background.progress()
    said = served.cache.get(("due",), lambda: due(collection))
    last, stage = last_refinement(collection.folder), now.stage
    return RefineAnswer(**said._asdict(), running=now.running, error=now.error, **stage._asdict(), last=last)


@router.post("", status_code=202, dependencies=[Depends(may_write)], responses=REFUSED)
@in_pool("changes")
def refine(served: Served) -> RefineAnswer:
    """Begin a refinement: train from the collection, and move it to the new hasher if that is better."""
    served.uploads.background.refine()
    return progress.__wrapped__(served)  # type: ignore[attr-defined,no-any-return]
