"""Work that goes on beside the service, in a process of its own: photos are taken in, a collection is refined."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread
from typing import NamedTuple

from hyphash.errors import BusyError, HyphashError
from hyphash.machine import default_threads
from hyphash.refining import Stage, refine, stages
from hyphash.workers import LostError, Workers

GRACE = 10.0  # seconds that it has to come to an end
Work = Callable[..., object]  # tells of its stages: work(tell=…)


class Progress(NamedTuple):
    """How far it has come; when nothing is under way, how the last piece of work ended."""

    running: bool = False
    stage: Stage = Stage("", 0, 0)
    error: str = ""


class Background:
    """One piece of work at a time; any thread may begin it, or ask how far it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: Callable[[Progress], None] = lambda _: None
        self._progress = Progress()
        self._lock, self._stopping = Lock(), Event()
        self._thread: Thread | None = None

    def progress(self) -> Progress:
        return self._progress

    def refine(self) -> Progress:
        """Begin to refine the collection."""
        return self.begin(partial(refine, self.folder))

    def begin(self, work: Work) -> Progress:
        """Begin a piece of work, which is pickled; BusyError while there is another."""
        with self._lock:
            if self._progress.running:
                raise BusyError("something else is under way; begin again when it is done")
            self._tell(Progress(running=True))
            self._thread = Thread(target=self._run, args=(work,), name="background", daemon=True)
            self._thread.start()
            return self._progress

    def close(self) -> None:
        self._stopping.set()
        if self._thread:
            self._thread.join(GRACE)

    def _tell(self, progress: Progress) -> None:
        self._progress = progress
        self.told(progress)

    def _run(self, work: Work) -> None:
        error = ""
        try:
            with Workers(1, threads=default_threads()) as pool:
                for _, stage in pool.as_done(_stages, [work], stop=self._stopping.is_set, grace=GRACE):
                    if isinstance(stage, LostError):
                        raise HyphashError(f"the process that was at it has ended ({stage}); begin again")
                    self._tell(Progress(running=True, stage=stage))
        except (HyphashError, RuntimeError) as failed:
            error = str(failed)
        self._tell(Progress(stage=self._progress.stage, error=error))


def _stages(work: Work) -> Iterator[Stage]:
    yield from stages(work)
