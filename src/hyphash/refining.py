"""Learning from a collection: a hasher is trained with what people said of its photos, and taken if it is better.

The new one is another head, and another label layer, over the backbone of the present one, whose features are kept:
photos that were indexed with a cache are not looked at again.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

import numpy as np

from hyphash.collection import Collection
from hyphash.collection.intake import Labels, Photos, describe
from hyphash.collection.records import AddResult
from hyphash.config import Config, from_table, read_toml, write_toml
from hyphash.datasets import Splits, load_dataset
from hyphash.errors import ConfigError, StoppedError, counted
from hyphash.evaluation import difference, encode_split, evaluate
from hyphash.evaluation.labelling import average_precisions
from hyphash.evaluation.measures import Floats
from hyphash.features import compute_features, default_cache
from hyphash.files import write_atomically
from hyphash.hasher import Hasher
from hyphash.stores import utc

RESULT = "refined.toml"  # in the folder of a collection: what its last refinement came to,
PROGRESS = "progress.json"  # how far the work at it has come,
RUN = "refining"  # and the run, while it is trained
LEARNED = 10  # photos that carry a label from which it is learned; rarer ones stay with guesses and their carriers
ENOUGH, SHARE = 50, 0.2  # labels that were said since the last time: at least so many, and this share of those before
EPOCHS = 60  # of 160 that a run has: strict mAP .8672 and .8673, by folds of training photos (docs/start.md)
RENEWED, LOST = 5.0, 30.0  # seconds after which a note of work is renewed, and without that is of work that was lost
DATES = "dates"  # what is counted where photos are looked at again: nobody has to wait for that
SURE = 0.05  # the p-value below which a difference is one


class Stage(NamedTuple):
    """How far a piece of work has come."""

    what: str = ""  # is counted: photos, epochs, codes
    done: int = 0
    total: int = 0
    process: int = 0  # that is at it, here; 0: it has ended
    error: str = ""  # by which it ended


Tell = Callable[[Stage], None]
Stop = Callable[[], bool]


@dataclass(frozen=True, kw_only=True)
class Gain:
    """A measure before and after, over the same held-out photos."""

    before: float
    after: float
    low: float  # of the difference, 95 %
    high: float
    p: float

    @classmethod
    def of(cls, before: Floats, after: Floats) -> "Gain":
        found = difference(before, after)
        low, high = found.interval
        return cls(before=float(before.mean()), after=float(after.mean()), low=low, high=high, p=found.p)

    @property
    def sign(self) -> int:
        """1: surely better, −1: surely worse, 0: neither."""
        return int(np.sign(self.after - self.before)) if self.p < SURE else 0


@dataclass(frozen=True, kw_only=True)
class Refinement:
    """What a refinement came to."""

    moved: bool  # the collection has the new hasher
    when: str  # UTC
    said: int  # labels that photos carried
    photos: int  # that were learned from
    held_out: int  # that both hashers were measured on
    labels: int  # that were learned
    search: Gain  # mAP of searches by photo
    suggestions: Gain  # mean average precision of the labels of a photo


def last_refinement(folder: Path) -> Refinement | None:
    with suppress(ConfigError):  # there is none, or none of ours
        return from_table(Refinement, read_toml(folder / RESULT), RESULT)
    return None


def due(collection: Collection) -> tuple[int, int, bool]:
    """Labels that photos carry, how many of these were said since the last refinement, and whether that is enough."""
    carriers, last = collection.labels(), last_refinement(collection.folder)
    said, before = sum(carriers.values()), last.said if last else 0
    learnable = sum(count >= LEARNED for count in carriers.values())
    return said, said - before, learnable > 1 and said - before >= max(ENOUGH, SHARE * before)


def take_in(
    folder: Path, photos: Photos, labels: Labels | None, cache: Path | None, *, tell: Tell, stop: Stop
) -> tuple[AddResult, Refinement | None]:
    """Put photos into a collection, their features into the cache, and refine it if enough is said of them."""
    came = AddResult()
    with Collection.open(folder) as collection, noting(folder, tell) as noted:
        for step in collection.log.following(collection.adding(photos, labels=labels, cache=cache or default_cache())):
            came += step
            noted(Stage("photos", step.done, step.total))
            if stop():
                raise StoppedError(f"{folder}: stopped after {counted(step.done, 'photo')}; given again, it goes on")
        enough = due(collection)[2]
    return came, refine(folder, cache, tell=tell, stop=stop) if enough else None


def refine(folder: Path, cache: Path | None = None, *, tell: Tell, stop: Stop) -> Refinement:
    """Train from a collection, compare with the hasher that it has, and move it in one step if the new one is better.

    Better: of searches by photo and suggested labels, over held-out photos, one is surely so and none surely worse.
    """
    cache = cache or default_cache()
    with Collection.open(folder) as collection, noting(folder, tell) as noted:
        said, present = due(collection)[0], Hasher.load(collection.current_hasher().folder or folder)
        present.on_torch()  # else it cannot be learned over
        splits = load_dataset(folder, "collection", min_count=LEARNED)
        new = _trained(folder, present, splits, cache, noted, stop)
        both = zip(*(_precisions(hasher, splits, cache) for hasher in (present, new)), strict=True)
        search, suggestions = (Gain.of(*each) for each in both)
        moved = max(search.sign, suggestions.sign) > 0 <= min(search.sign, suggestions.sign)
        if moved:
            _keep_guessing(new, present, splits, cache)
            new.save(folder / RUN)
            collection.reindex(folder / RUN, progress=lambda *count: noted(Stage("codes", *count)))
            collection.log.tell("refined", [], photos=len(splits.train))
    result = Refinement(
        moved=moved, when=utc(datetime.now(UTC)), said=said, photos=len(splits.train), held_out=len(splits.queries),
        labels=len(splits.classes), search=search, suggestions=suggestions,
    )  # fmt: skip
    shutil.rmtree(folder / RUN, ignore_errors=True)
    write_toml(folder / RESULT, result)
    return result


def _trained(folder: Path, present: Hasher, splits: Splits, cache: Path, tell: Tell, stop: Stop) -> Hasher:
    """The default method over the backbone of the present hasher, with as many bits."""
    from hyphash.training import fit, prepare
    from hyphash.training.runs import is_finished, open_run

    spec = present.spec
    config = Config(
        data=str(folder.absolute()), dataset="collection", data_options={"min_count": LEARNED}, bits=spec.bits,
        backbone=spec.backbone, size=spec.preprocessing.size, mirror=spec.mirror, mode="frozen", epochs=EPOCHS,
    )  # fmt: skip
    config, hasher, loss, _ = prepare(config, splits, like=present)
    open_run(folder / RUN, config, overwrite=True)
    for epoch in fit(
        hasher, loss, splits, config, folder=folder / RUN, cache=cache, stop=stop,
        progress=lambda *count: tell(Stage("photos", *count)),
    ):  # fmt: skip
        tell(Stage("epochs", epoch.number, epoch.of))
    if not is_finished(folder / RUN):
        raise StoppedError(f"{folder}: stopped before it was refined; the hasher that it has stays")
    return hasher


def _precisions(hasher: Hasher, splits: Splits, cache: Path) -> tuple[Floats, Floats]:
    """Of each held-out photo: how well it finds others, and how far in front its labels are among those suggested."""
    queries, database = (encode_split(hasher, part, cache=cache) for part in (splits.queries, splits.database))
    report = evaluate(hasher, splits, protocols=["strict"], asymmetric=False, encoded=(queries, database))
    scores = np.full(queries.split.labels.shape, -np.inf, np.float32)
    known = [i for i, label in enumerate(splits.classes) if label in hasher.classes]
    if queries.logits is not None:
        scores[:, known] = queries.logits[:, [hasher.classes.index(splits.classes[i]) for i in known]]
    search = report.scores[0].average_precision
    assert search is not None, "the report was just made"
    return search, average_precisions(scores.T, queries.split.labels.T)


def _keep_guessing(new: Hasher, present: Hasher, splits: Splits, cache: Path) -> None:
    """Everyday words that it has not learned are guessed by the new hasher if they were by the present one."""
    if present.spec.guessed:
        import torch

        from hyphash.guesses import add_guesses

        features = compute_features(new, splits.train, cache=cache)
        assert features is not None, "nobody asked to stop"
        add_guesses(new, torch.from_numpy(features.values).float())


@contextmanager
def noting(folder: Path, tell: Tell) -> Iterator[Tell]:
    """Within, what is told is noted in the folder of the collection too, and renewed, for services to show."""
    stage, ended = Stage(process=os.getpid()), Event()

    def noted(now: Stage) -> None:
        nonlocal stage
        stage = now._replace(process=os.getpid())
        note(folder, stage)
        tell(stage)

    def renew() -> None:
        while not ended.wait(RENEWED):
            with suppress(OSError):
                os.utime(folder / PROGRESS)

    note(folder, stage)
    error, renewing = "", Thread(target=renew, daemon=True)
    renewing.start()
    try:
        yield noted
    except Exception as raised:
        error = str(raised)
        raise
    finally:
        ended.set()
        renewing.join()
        note(folder, stage._replace(process=0, error=error))


def note(folder: Path, stage: Stage) -> None:
    write_atomically(folder / PROGRESS, json.dumps(stage))


def read_dates(collection: Collection, stop: Stop) -> None:
    """Look for dates in photos that an earlier hyphash took in; noted for services where nobody else is at work."""
    folder = collection.folder

    def tell(done: int, total: int) -> None:
        if progress(folder).process in (0, os.getpid()):
            note(folder, Stage(DATES, done, total, process=os.getpid()))

    try:
        describe(collection, tell, stop)
    finally:
        if progress(folder).what == DATES:
            note(folder, Stage())


def progress(folder: Path) -> Stage:
    """How far the work at a collection has come, or how the last of it ended: that of which nothing is heard has ended.

    The process may be on another machine, and a power cut leaves its number to others: that it runs says nothing.
    """
    path = folder / PROGRESS
    try:
        what, done, total, process, error = json.loads(path.read_text())
        stage = Stage(str(what), int(done), int(total), int(process), str(error))
        silent = abs(time.time() - path.stat().st_mtime) > LOST  # also by a clock that was wrong
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):  # there is none, or none of ours
        return Stage()
    return stage._replace(process=0, error="the process that was at it has ended") if process and silent else stage
