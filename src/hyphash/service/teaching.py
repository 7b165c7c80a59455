"""The routes that learn from what people said: is a refinement worth its time, how far is it, what did it gain?"""

import subprocess
import sys

from fastapi import APIRouter, Depends, HTTPException

from hyphash.refining import Stage, due, last_refinement, note, progress
from hyphash.service.changes import REFUSED, may_write
from hyphash.service.schemas import Error, RefineAnswer, Responses
from hyphash.service.served import Served, ServedCollection, in_pool

UNDER_WAY: Responses = {409: {"model": Error, "description": "It is refined already, or photos are being taken in."}}
router = APIRouter(prefix="/api/refine", tags=["teaching"])


@router.get("")
@in_pool("quick")
def learning(served: Served) -> RefineAnswer:
    """What was said since the last refinement, how far one is that is under way, and what the last one gained."""
    return _answer(served)


@router.post("", status_code=202, dependencies=[Depends(may_write)], responses=REFUSED | UNDER_WAY)
@in_pool("changes")
def refine(served: Served) -> RefineAnswer:
    """Begin a refinement: train from the collection, and move it to the new hasher if that is better."""
    folder = served.collection.folder.absolute()
    if progress(folder).process:
        raise HTTPException(409, "photos are being taken in, or it learns already; wait for the end of that")
    command = [sys.executable, "-m", "hyphash", "refine", str(folder)]
    served.refining = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    note(folder, Stage(process=served.refining.pid))
    return _answer(served)


def _answer(served: ServedCollection) -> RefineAnswer:
    if served.refining:
        served.refining.poll()  # else one that has ended would still be there
    folder, now = served.collection.folder, progress(served.collection.folder)
    said, since, enough = served.cache.get(("due",), lambda: due(served.collection))
    return RefineAnswer(
        said=said, since=since, enough=enough, running=now.process > 0, what=now.what, done=now.done, total=now.total,
        error=now.error, last=last_refinement(folder),
    )  # fmt: skip
