"""Training: `fit` is a loop that reads top to bottom and yields one record an epoch.

>>> config, hasher, loss, notes = prepare(Config(data="photos", bits=48), splits)      # doctest: +SKIP
>>> for epoch in fit(hasher, loss, splits, config, folder=Path("runs/photos")):        # doctest: +SKIP
...     print(epoch.number, epoch.loss, epoch.validation)
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hyphash.config import TABLES, Config, from_table
from hyphash.datasets import Splits, load_dataset
from hyphash.errors import ConfigError, DataError, RunError
from hyphash.features import default_cache
from hyphash.hasher import Hasher, Progress
from hyphash.losses import Loss, build, find, parts_of
from hyphash.losses.relevance import load_relevance
from hyphash.networks import backbone_names, backbone_recipe
from hyphash.training.inputs import load_inputs
from hyphash.training.ranks import Ranks, join
from hyphash.training.runs import Epoch, History, open_run, write_problems
from hyphash.training.session import Session

__all__ = ["Epoch", "choose_loss", "fit", "prepare", "resolve", "threads", "train"]

FINE_TUNE, FROZEN = TABLES["fine-tune"], TABLES["fine-tune"] | TABLES["frozen"]
# Of what authors fine-tune with, all that says something about a head over frozen features.
OF_A_HEAD = ("optimizer", "rate", "loss_rate", "momentum", "nesterov", "weight_decay", "batch")
OF_A_HASHER = ("bits", "backbone", "weights", "weights_by_backbone", "size", "mirror", "hidden", "dropout")
LARGE_STEP = 5e9  # weights × photos from which several threads pay for a head (speed/threads.py)

# `--loss auto`: the likeliest methods are tried on a held-out part of the training photos, and the best one trains.
LIKELIEST = ("hyp2-ap", "dcilh", "orthohash", "hashnet")  # the best over frozen features on several sets of photos
SHARE = 1 / 3  # of the photos that training looks at, epochs and all, for the trials together
VALIDATION = 0.1  # held out where the run itself holds out nothing
# What a trial takes over from a run that fine-tunes: the rest is chosen for whole networks, and it trains a head.
SHARED = (
    *("data", "dataset", "data_options", "bits", "backbone", "weights", "size", "validation", "top", "seed", "device"),
    *("precision", "threads", "weights_by_backbone", "mirror"),
)
FEWEST = 10  # photos that a validation ranking goes down to, at the least


def resolve(config: Config) -> Config:
    """The config with every choice made: the method's and the backbone's settings where the user left them open."""
    method = find(config.loss)
    several = len(backbone_names(config.backbone)) > 1
    if config.mode == "auto":
        config = replace(config, mode="fine-tune" if torch.cuda.is_available() and not several else "frozen")
    if several and config.mode == "fine-tune":
        raise ConfigError(f"{config.backbone}: several backbones side by side stay as they are; use --mode frozen")
    if config.size is None and not several:  # of several, each has its own
        config = replace(config, size=backbone_recipe(config.backbone).preprocessing.size)
    tuned = FINE_TUNE | ({} if several else backbone_recipe(config.backbone).tune) | method.recipe
    if config.recipe == "published":
        tuned |= method.published
    if config.mode == "frozen":
        authors = {name: tuned[name] for name in OF_A_HEAD} | {"views": 1 + method.two_views}
        return config.filled(authors if config.recipe == "published" else method.frozen_recipe, FROZEN)
    if (config.views or 1) > 1:
        raise ConfigError(f"views = {config.views} are of frozen features; leave it out, or use --mode frozen")
    return config.filled(tuned)


def train(data: str | Path, *, into: str | Path, cache: Path | None = None, **settings: Any) -> Hasher:
    """Train a hasher on the dataset at `data` with any settings of Config, into a new run folder.

    >>> hasher = train("photos/labels.csv", into="runs/photos", bits=64)      # doctest: +SKIP
    """
    config = from_table(Config, {"data": str(data)} | settings, "train")
    splits = load_dataset(config.data, config.dataset, **config.data_options)
    if config.loss == "auto":
        config, _ = choose_loss(config, splits, cache=cache)
    config, hasher, loss, _ = prepare(config, splits)
    if join().first:
        open_run(Path(into), config)
    for _ in fit(hasher, loss, splits, config, folder=Path(into), cache=cache):
        pass
    return hasher


def prepare(config: Config, splits: Splits, *, like: Hasher | None = None) -> tuple[Config, Hasher, Loss, list[str]]:
    """A resolved config, an untrained hasher and its loss, drawn from the config's seed; and notes for the user.

    With `like`, the hasher shares the backbone of that one, which stays as it is: for another head over it.
    The config says with how many threads the run computes, from now on and when it is resumed.
    """
    config = resolve(config)
    if len(splits.classes) < 2:
        raise DataError(f"{splits.name}: only one label, {splits.classes[0]!r}; there is nothing to tell apart")
    torch.manual_seed(config.seed)
    classes, lengths = len(splits.classes), config.lengths
    loss = build(config.loss, bits=config.bits, classes=classes, lengths=lengths, **config.loss_options)
    relevance = load_relevance(config.relevance, splits.classes)
    for part in parts_of(loss, Loss):
        part.relevance = relevance
    made = {name: getattr(config, name) for name in OF_A_HASHER} | {"head": loss.head, "on_map": loss.needs_map}
    device, backbone = join().device(config.device), like.network.backbone if like else None
    hasher, notes = Hasher.create(classes=splits.classes, device=device, built=backbone, **made)
    config = replace(config, threads=config.threads or _threads_that_pay(config, hasher, loss))
    return config, hasher, loss.to(hasher.device), notes


def _threads_that_pay(config: Config, hasher: Hasher, loss: Loss) -> int:
    """All that torch has for a whole network, one for a head over feature vectors unless it is very wide.

    Two threads need up to half as much processor time again, and beside other work they wait for each other and take
    longer than one. The number follows from the settings, not from a trial: equal runs have equal weights.
    """
    weights = sum(parameter.numel() for parameter in hasher.network.head.parameters())
    vectors = config.mode == "frozen" and not (loss.needs_map or loss.fitted)
    return 1 if vectors and weights * (config.batch or 1) < LARGE_STEP else torch.get_num_threads()


def fit(
    hasher: Hasher,
    loss: Loss,
    splits: Splits,
    config: Config,
    *,
    folder: Path | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Epoch]:
    """Train `hasher` in place and yield an Epoch after each epoch; the run goes into `folder`.

    A folder that holds an unfinished run of the same config is continued, to the same weights as if it had never
    stopped. When `stop` says so, the state is saved after the step at hand and the loop ends.

    Among several ranks, as torchrun starts them, all call this alike and share every batch; the first one writes.
    """
    if config.keep == "best" and folder is None:
        raise ConfigError("keep = 'best' needs a run folder to keep the best weights in")
    ranks, frozen, cache = join(), config.mode == "frozen", cache or default_cache()
    _require_shareable(loss, splits, config, ranks)
    folder = folder if ranks.first else None
    inputs, problems = load_inputs(
        hasher, splits.train, frozen=frozen, cache=cache, views=config.views or 1, progress=progress, stop=stop,
        ranks=ranks,
    )  # fmt: skip
    if inputs is None:  # stopped
        return
    if folder:
        write_problems(folder, problems)
    epochs = _epochs(partial(Session, hasher, loss, inputs, config, folder, ranks), stop)
    next_epoch = threads(ranks.broadcast_object(config.threads))(partial(next, epochs, None))
    yield from iter(next_epoch, None)  # whoever takes an epoch goes on with as many threads as there were


def _epochs(open_session: Callable[[], Session], stop: Callable[[], bool]) -> Iterator[Epoch]:
    """The loop itself, from where the run was stopped, if it was."""
    session = open_session()
    if session.loss.fitted:
        yield session.fit_at_once()
        return
    point = session.start()
    with closing(History(session.folder, point.epoch, session.ranks, session.config.log)) as history:
        while point.epoch < session.epochs:
            point, mean = session.run_epoch(point, stop)
            if point.step:  # stopped in the middle; the state is saved
                return
            epoch = session.measured(point, mean)
            if session.config.keep == "best" and (epoch.validation or -1.0) > history.best:
                session.keep()
            history.add(epoch)
            yield epoch
    session.finish()


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Within, torch computes with so many threads: with more or fewer, sums come out in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _require_shareable(loss: Loss, splits: Splits, config: Config, ranks: Ranks) -> None:
    """Refuse what several ranks cannot do, and ranks that were started with different settings or data."""
    if (size := ranks.size) == 1:
        return
    if loss.distributed:
        raise ConfigError(f"{config.loss} cannot be trained on {size} ranks: {loss.distributed}; leave out torchrun")
    if config.compile:
        raise ConfigError("compile = true is for one rank; leave it out on several")
    if (config.batch or 1) < size:
        raise ConfigError(f"a batch of {config.batch} is too small for {size} ranks; raise --batch or start fewer")
    facts = repr((replace(config, data="", device="", threads=None), splits.classes)).encode()
    digest = hashlib.sha256(facts + splits.train.labels.tobytes()).digest()
    if ranks.all_reduce_any(ranks.broadcast_object(digest) != digest)[0]:
        raise RunError("the ranks differ in settings or labels; start all of them with the same command and data")


def trials(config: Config, photos: int, database: int, losses: Sequence[str] = LIKELIEST) -> tuple[list[Config], int]:
    """A short training of a head over frozen features for each method, and how many photos all look at.

    Each has the same share of its own epochs, all other settings as they would be, and the photos that the seed draws.
    Together they look at SHARE of what a whole training of the first looks at, the likeliest to be chosen: counted in
    photos, not seconds, so that equal settings choose alike on every machine. Where that is less than an epoch, it is
    one over fewer photos.
    Rankings of held-out photos go down to the same share of them as `top` is of the database.
    """
    kept = {name: getattr(config, name) for name in SHARED}
    shared = config if resolve(replace(config, loss=losses[0])).mode == "frozen" else Config(**kept, views=1)
    shared = replace(shared, mode="frozen", keep="last", label_layer=False, validation=config.validation or VALIDATION)
    whole = [resolve(replace(shared, loss=loss)) for loss in losses]
    own = np.array([each.epochs or 0 for each in whole])
    epochs = own * SHARE * own[0] / max(own.sum(), 1) + 1e-9
    part = min(1.0, epochs.min())
    some = max(2, int(photos * part))
    top = max(FEWEST, round(config.top * some / max(database, some)))
    lengths = np.minimum(epochs / part, own).astype(int).tolist()
    return [replace(each, epochs=count, top=top) for each, count in zip(whole, lengths, strict=True)], some


def choose_loss(
    config: Config, splits: Splits, *, cache: Path | None = None, progress: Progress | None = None
) -> tuple[Config, str]:
    """The config with the loss whose trial ranks held-out photos best, all in its `tried`, and a line that says so."""
    if config.loss_options:
        raise ConfigError("options belong to one loss; name it with --loss, or leave them out beside --loss auto")
    shareable = [loss for loss in LIKELIEST if join().size == 1 or not find(loss).distributed]
    found: dict[str, float] = {}
    tried, photos = trials(config, len(splits.train), len(splits.database), shareable)
    rows = np.random.default_rng(config.seed).permutation(len(splits.train))[:photos]
    some = replace(splits, train=splits.train.take(np.sort(rows)))
    for trial in tried:
        prepared, hasher, loss, _ = prepare(trial, some)
        try:
            epochs = list(fit(hasher, loss, some, prepared, cache=cache, progress=progress))
        except ConfigError:  # it diverges with these settings
            epochs = []
        found[trial.loss] = round(epochs[-1].validation or 0.0, 4) if epochs else 0.0
    best = max(found, key=lambda loss: found[loss])
    others = ", ".join(f"{loss} {score:.3f}" for loss, score in found.items() if loss != best)
    length = f"{', '.join(str(trial.epochs) for trial in tried)} epochs over {photos:,} photos"
    note = f"loss: {best}, the best on held-out training photos (mAP {found[best]:.3f}; {others}; {length})"
    return replace(config, loss=best, tried=found), note
