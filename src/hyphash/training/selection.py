"""`--loss auto`: the likeliest methods are tried on a held-out part of the training photos, and the best one trains."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from hyphash.config import Config
from hyphash.datasets import Splits
from hyphash.errors import ConfigError
from hyphash.hasher import Progress
from hyphash.losses import find
from hyphash.training import fit, prepare, resolve
from hyphash.training.ranks import join

LIKELIEST = ("hyp2-ap", "dcilh", "orthohash", "hashnet")  # the best over frozen features on several sets of photos
SHARE = 1 / 3  # of the photos that training looks at, epochs and all, for the trials together
VALIDATION = 0.1  # held out where the run itself holds out nothing
# What a trial takes over from a run that fine-tunes: the rest is chosen for whole networks, and it trains a head.
SHARED = (
    *("data", "dataset", "data_options", "bits", "backbone", "weights", "size", "validation", "top", "seed", "device"),
    *("precision", "threads", "weights_by_backbone", "mirror"),
)
FEWEST = 10  # photos that a validation ranking goes down to, at the least


def trials(config: Config, photos: int, database: int, losses: Sequence[str] = LIKELIEST) -> tuple[list[Config], int]:
    """A short training of a head over frozen features for each method, and how many photos all look at.

    Each has the same share of its own epochs, all other settings as they would be, and the photos that the seed draws.
    Together they look at SHARE of what a whole training of the first looks at, the likeliest to be chosen: counted in
    photos, not seconds, so that equal settings choose alike on every machine. Where that is less than an epoch, it is
    one over fewer photos.
    Rankings of held-out photos go down to the same share of them as `top` is of the database.
    """
    kept = {field.name: getattr(config, field.name) for field in fields(Config) if field.name in SHARED}
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
    """The config with the loss whose trial ranks the held-out photos best, and a line that says so.

    What was tried stands in the config's `tried`, with the validation mAP of each.
    """
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
