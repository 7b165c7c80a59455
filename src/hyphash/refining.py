"""Learning from a collection: a hasher is trained with what people said of its photos, and taken if it is better.

The new one is another head, and another label layer, over the backbone of the present one, whose features are kept:
photos that were indexed with a cache are not looked at again.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

import numpy as np

from hyphash.collection import Collection
from hyphash.collection.intake import Labels, Photos
from hyphash.config import Config, from_table, read_toml, write_toml
from hyphash.datasets import Splits, load_dataset
from hyphash.errors import StoppedError
from hyphash.evaluation import Difference, Report, compare_reports, difference, encode_split, evaluate
from hyphash.evaluation.labelling import average_precisions
from hyphash.evaluation.measures import Floats
from hyphash.features import compute_features, default_cache
from hyphash.hasher import Hasher
from hyphash.stores import utc
from hyphash.workers import told_to_stop

FILE = "refined.toml"  # what the last refinement of a collection came to
RUN = "refining"  # the folder of the run, while there is one
LEARNED = 10  # photos that carry a label from which it is learned; rarer ones stay with guesses and their carriers
ENOUGH, SHARE = (
    50,
    0.2,
)  # labels that must have been said since the last time: so many, and such a share of those before
SURE = 0.05  # the p-value below which a difference is one


class Stage(NamedTuple):
    """How far a piece of work has come."""

    what: str  # is counted: photos, epochs …
    done: int
    total: int


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
    def of(cls, before: float, after: float, found: Difference) -> "Gain":
        low, high = found.interval
        return cls(before=before, after=after, low=low, high=high, p=found.p)

    @property
    def sign(self) -> int:
        """1: surely better, −1: surely worse, 0: neither."""
        return int(np.sign(self.after - self.before)) if self.p < SURE else 0


@dataclass(frozen=True, kw_only=True)
class Refinement:
    """What a refinement came to."""

    moved: bool  # the collection has the new hasher
    fingerprint: str  # of the hasher that it has now
    when: str  # UTC
    said: int  # labels that photos carried
    photos: int  # that were learned from
    held_out: int  # that both were measured on
    labels: int  # that were learned
    search: Gain  # mAP of searches by photo
    suggestions: Gain  # mean average precision of the labels of a photo


class Due(NamedTuple):
    """Whether a refinement may be worth its time."""

    said: int  # labels that photos carry
    since: int  # of these, since the last one
    enough: bool


def last_refinement(folder: Path) -> Refinement | None:
    path = folder / FILE
    return from_table(Refinement, read_toml(path), str(path)) if path.is_file() else None


def due(collection: Collection) -> Due:
    """What was said since the last refinement, and whether that is enough for another one."""
    carriers, last = collection.labels(), last_refinement(collection.folder)
    said, before = sum(carriers.values()), last.said if last else 0
    learnable = sum(count >= LEARNED for count in carriers.values())
    return Due(said, said - before, learnable > 1 and said - before >= max(ENOUGH, SHARE * before))


def take_in(
    folder: Path, photos: Photos, labels: Labels | None, cache: Path | None, *, tell: Tell, stop: Stop = told_to_stop
) -> None:
    """Put photos into a collection, their features into the cache, and refine it if enough is said of them."""
    with Collection.open(folder) as collection:
        for step in collection.log.following(collection.adding(photos, labels=labels, cache=cache or default_cache())):
            tell(Stage("photos", step.done, step.total))
            if stop():
                return
        enough = due(collection).enough
    if enough:
        refine(folder, cache, tell=tell, stop=stop)


def refine(folder: Path, cache: Path | None = None, *, tell: Tell, stop: Stop = told_to_stop) -> Refinement:
    """Train from a collection, compare with the hasher that it has, and move it in one step if the new one is better.

    Better: of searches by photo and suggested labels, over held-out photos, one is surely so and none surely worse.
    """
    cache = cache or default_cache()
    with Collection.open(folder) as collection:
        said, present = due(collection).said, Hasher.load(collection.current_hasher().folder or folder)
        splits = load_dataset(folder, "collection", min_count=LEARNED)
        new = _trained(folder, present, splits, cache, tell, stop)
        (report, ranked), (other, others) = (_measured(hasher, splits, cache) for hasher in (present, new))
        (found,) = compare_reports(report, other)
        search = Gain.of(found.before, found.after, found.difference)
        suggestions = Gain.of(ranked.mean(), others.mean(), difference(ranked, others))
        signs = search.sign, suggestions.sign
        moved = max(signs) > 0 and min(signs) >= 0
        if moved:
            _guessing(new, present, splits, cache)
            new.save(folder / RUN)
            collection.reindex(folder / RUN, progress=lambda *count: tell(Stage("codes", *count)))
        result = Refinement(
            moved=moved, fingerprint=(new if moved else present).fingerprint, when=utc(datetime.now(UTC)), said=said,
            photos=len(splits.train), held_out=len(splits.queries), labels=len(splits.classes),
            search=search, suggestions=suggestions,
        )  # fmt: skip
    shutil.rmtree(folder / RUN, ignore_errors=True)
    write_toml(folder / FILE, result)
    return result


def _trained(folder: Path, present: Hasher, splits: Splits, cache: Path, tell: Tell, stop: Stop) -> Hasher:
    """The default method over the backbone of the present hasher, with as many bits."""
    from hyphash.training import fit, prepare
    from hyphash.training.runs import is_finished, open_run

    spec = present.spec
    config = Config(
        data=str(folder.absolute()), dataset="collection", data_options={"min_count": LEARNED}, bits=spec.bits,
        backbone=spec.backbone, size=spec.preprocessing.size, mirror=spec.mirror, mode="frozen",
    )  # fmt: skip
    config, hasher, loss, _ = prepare(config, splits, like=present)
    open_run(folder / RUN, config, overwrite=True)
    epochs = fit(
        hasher, loss, splits, config, folder=folder / RUN, cache=cache, stop=stop,
        progress=lambda *count: tell(Stage("photos", *count)),
    )  # fmt: skip
    for epoch in epochs:
        tell(Stage("epochs", epoch.number, epoch.of))
    if not is_finished(folder / RUN):
        raise StoppedError(f"{folder}: stopped before it was refined; the hasher that it has stays")
    return hasher


def _measured(hasher: Hasher, splits: Splits, cache: Path) -> tuple[Report, Floats]:
    """How well held-out photos find others, and how far in front their labels are among all that are suggested."""
    queries, database = (encode_split(hasher, part, cache=cache) for part in (splits.queries, splits.database))
    report = evaluate(hasher, splits, protocols=["strict"], asymmetric=False, encoded=(queries, database))
    scores = np.full(queries.split.labels.shape, -np.inf, np.float32)
    known = [(i, hasher.classes.index(label)) for i, label in enumerate(splits.classes) if label in hasher.classes]
    if known and queries.logits is not None:
        columns, own = np.transpose(known)
        scores[:, columns] = queries.logits[:, own]
    return report, average_precisions(scores.T, queries.split.labels.T)


def _guessing(new: Hasher, present: Hasher, splits: Splits, cache: Path) -> None:
    """Everyday words that it has not learned are guessed by the new hasher if they were by the present one."""
    import torch

    from hyphash.guesses import add_guesses

    if present.guessed:
        features = compute_features(new, splits.train, cache=cache)
        assert features is not None, "nobody asked to stop"
        add_guesses(new, torch.from_numpy(features.values).float())


def stages(work: Callable[..., object]) -> Iterator[Stage]:
    """Each stage that `work(tell=…)` tells of, as it comes: for a process of its own, whose work is a generator."""
    told: SimpleQueue[Stage | Exception | None] = SimpleQueue()

    def run() -> None:
        try:
            work(tell=told.put)
            told.put(None)
        except Exception as error:
            told.put(error)

    Thread(target=run, daemon=True).start()
    while (stage := told.get()) is not None:
        if isinstance(stage, Exception):
            raise stage
        yield stage
