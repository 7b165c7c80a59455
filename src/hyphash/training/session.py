"""One session of a run: what is trained, on which photos, with whom, and where its state is saved."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hyphash.config import Config
from hyphash.errors import ConfigError, DataError, RunError
from hyphash.evaluation import Rankings, mean_average_precision
from hyphash.files import append_json
from hyphash.hasher import WEIGHTS_FILE, Hasher, Outputs
from hyphash.losses import Loss, parts_of
from hyphash.losses.memory import Memory
from hyphash.networks import LabelHead, pool
from hyphash.quantizer import Quantizer
from hyphash.training.inputs import FeatureInputs, Inputs, outputs_of
from hyphash.training.labels import FOLDS, HIDDEN, fit_label_layer
from hyphash.training.ranks import SINGLE, Ranks
from hyphash.training.runs import CHECKPOINT_FILE, HISTORY_FILE, Epoch, ResumePoint, load_checkpoint, save_checkpoint
from hyphash.training.steps import build_optimizer, build_step, set_rates

MAX_VALIDATION = 500
FEW = 100  # held-out photos below which they say less about the label layer than folds of those that were trained on


@dataclass(eq=False, repr=False)
class Session:
    """From the start of a run, or from its checkpoint, to its end or until it is stopped."""

    hasher: Hasher
    loss: Loss
    inputs: Inputs
    config: Config
    folder: Path | None = None
    ranks: Ranks = SINGLE
    parts: tuple[Tensor, Tensor] | None = None  # rows to train on and to validate with; else drawn as `config` says

    def __post_init__(self) -> None:
        assert self.config.epochs is not None, "a config that is resolved"
        hasher, inputs, self.epochs = self.hasher, self.inputs, self.config.epochs
        self.model = hasher.network.head if self.config.mode == "frozen" else hasher.network
        self.rows, self.held_out = self.parts or hold_out(len(inputs), self.config, hasher.device)
        hasher.network.labels = hasher.calibration = None  # those of weights that are about to change
        if isinstance(inputs, FeatureInputs):  # of mean 0 and deviation 1 over the training photos, channel by channel
            values = inputs.values[self.rows].float()
            axes = (0,) if values.ndim == 2 else (0, 2, 3)
            hasher.network.head.trunk.standardise(values.mean(axes), values.std(axes, correction=0))

    def start(self) -> ResumePoint:
        """Make all that a step needs, bring it to where the run was stopped, if it was, and say where that is."""
        for memory in parts_of(self.loss, Memory):
            memory.open(self.rows, self.inputs.labels[self.rows])
        self.ranks.broadcast_modules(self.model, self.loss)
        self.optimizer = build_optimizer(self.model, self.loss, self.config)
        self.step = build_step(self.model, self.loss, self.optimizer, self.inputs, self.config, self.ranks)
        self.saved_at = time.monotonic()
        with self.ranks.broadcast_file(self.folder and self.folder / CHECKPOINT_FILE) as checkpoint:
            if checkpoint is None:
                return ResumePoint()
            point = load_checkpoint(checkpoint, self.model, self.loss, self.optimizer)
        if point.photos != len(self.rows):
            raise RunError(
                f"{self.folder}: was trained on {point.photos:,} photos until it stopped, now there are "
                f"{len(self.rows):,}; bring the data back as it was, or start anew with --overwrite"
            )
        return point

    def run_epoch(self, start: ResumePoint, stop: Callable[[], bool]) -> tuple[ResumePoint, float]:
        """Train to the end of the epoch, or until `stop`; returns where that is and the mean loss."""
        batches = draw_batches(self.rows, self.config, start.epoch)
        total = torch.tensor(start.loss_sum, device=self.hasher.device)
        began = time.monotonic() - start.seconds
        set_rates(self.optimizer, self.config, start.epoch + max(start.step - 1, 0) / len(batches))
        for i in range(start.step, len(batches)):
            now = start.epoch + i / len(batches)
            seed_step(self.config, start.epoch, i)
            for part in parts_of(self.loss, Loss):
                part.set_progress(now / self.epochs)
            set_rates(self.optimizer, self.config, now)
            total += self.step(batches[i])
            due = time.monotonic() - self.saved_at > self.config.checkpoint_every
            if self.config.keep == "best":  # whose weights are there by then: they alone would look like a finished run
                due |= (start.epoch + 1, i + 1) == (self.epochs, len(batches))
            stopped, due = self.ranks.all_reduce_any(stop(), due)
            if stopped or due:
                here = ResumePoint(start.epoch, i + 1, float(total), time.monotonic() - began, len(self.rows))
                self.save(here)
                if stopped:
                    return here, math.nan
        mean = float(total) / max(len(batches), 1)  # waits for the device, so the clock below is right
        if not math.isfinite(mean):
            raise ConfigError(f"the loss is {mean} in epoch {start.epoch + 1}; lower --rate or --loss-rate")
        return ResumePoint(start.epoch + 1, seconds=time.monotonic() - began), mean

    def measured(self, end: ResumePoint, loss: float) -> Epoch:
        """The record of the epoch that ended here, with its mAP if this is one of those that are validated."""
        due = end.epoch == self.epochs or end.epoch % self.config.evaluate_every == 0
        score = self.validate() if due and len(self.held_out) else None
        return Epoch(end.epoch, self.epochs, loss, float(self.optimizer.param_groups[0]["lr"]), end.seconds, score)

    def validate(self) -> float:
        """How well codes find each other now: mAP of the held-out photos among the others, protocol `strict`."""
        rankings, top = self.rankings(), self.config.top
        score = mean_average_precision(rankings, top=top, protocol="strict") if rankings is not None else 0.0
        return self.ranks.broadcast_object(score)  # one number for all: what they do next depends on it

    def rankings(self, queries: Tensor | None = None, database: Tensor | None = None) -> Rankings | None:
        """The held-out photos as queries and the others as the database, or other rows, by codes of now; of rank 0."""
        parts = (self.held_out if queries is None else queries, self.rows if database is None else database)
        hasher = self.hasher
        outputs = [outputs_of(hasher, self.inputs, part, ranks=self.ranks) for part in parts]
        take_quantizer(hasher)
        if not self.ranks.first:
            return None
        labels = (self.inputs.labels[part].cpu().numpy().astype(np.uint8) for part in parts)
        of_queries = outputs[0] if hasher.quantizer else None
        codes = hasher.to_codes(outputs[0]), hasher.to_codes(outputs[1])
        relevance = self.loss.relevance
        return Rankings(*codes, *labels, query_outputs=of_queries, quantizer=hasher.quantizer, relevance=relevance)

    def save(self, point: ResumePoint) -> None:
        self.ranks.require_same_weights(self.model, self.loss)
        if self.folder:
            save_checkpoint(self.folder / CHECKPOINT_FILE, self.model, self.loss, self.optimizer, point)
        self.saved_at = time.monotonic()

    def keep(self, *, whole: bool = False) -> None:
        """Give the hasher its anchors and quantiser, and where it is `whole` its label layer, and write it."""
        self.ranks.require_same_weights(self.model, self.loss)
        take_quantizer(self.hasher)
        anchors = self.loss.anchors()
        if anchors is None:
            outputs = outputs_of(self.hasher, self.inputs, self.rows, ranks=self.ranks)
            self.hasher.anchors = mean_outputs(outputs, self.inputs.labels[self.rows])
        else:
            self.hasher.anchors = anchors.detach().float().cpu().numpy().copy()
        if whole:
            self._fit_labels()
        self.hasher.spec = replace(self.hasher.spec, fingerprint="")  # it was that of other weights
        if self.folder:
            self.hasher.save(self.folder)

    def finish(self) -> None:
        """Keep the last epoch, or take back the best one where that is what the run keeps."""
        if not (self.config.keep == "best" and self._take_best()):
            self.keep(whole=True)
        if self.folder:
            (self.folder / CHECKPOINT_FILE).unlink(missing_ok=True)

    def _fit_labels(self) -> None:
        """Give the hasher its label layer, if the run is to have one: over the features that its head sees."""
        hasher, inputs, ranks = self.hasher, self.inputs, self.ranks
        if not self.config.label_layer:
            return
        features, unseen = getattr(inputs, "values", None), None
        if features is None:
            rows = torch.arange(len(inputs), device=hasher.device)
            found = outputs_of(hasher, inputs, rows, ranks=ranks, forward=lambda x: pool(hasher.network.features(x)))
            features = torch.from_numpy(found).to(hasher.device)
            unseen = self.held_out if len(self.held_out) >= FEW else None
        layer, calibration = LabelHead(features.shape[1], FOLDS * HIDDEN, len(hasher.classes)), None
        if ranks.first:
            layer, calibration = fit_label_layer(features, inputs.labels, seed=self.config.seed, unseen=unseen)
        ranks.broadcast_modules(layer.to(hasher.device))
        hasher.network.labels, hasher.calibration = layer, ranks.broadcast_object(calibration)

    def _take_best(self) -> bool:
        """Make the hasher what the run has kept as its best, if it has kept any."""
        hasher, ranks = self.hasher, self.ranks
        if not ranks.broadcast_object(self.folder is not None and (self.folder / WEIGHTS_FILE).is_file()):
            return False
        if self.folder:
            become(hasher, Hasher.load(self.folder, device=str(hasher.device)))
        ranks.broadcast_modules(hasher.network)
        facts = ranks.broadcast_object((hasher.spec, hasher.anchors, hasher.quantizer))
        hasher.spec, hasher.anchors, hasher.quantizer = facts
        self._fit_labels()
        if self.config.label_layer:
            hasher.spec = replace(hasher.spec, fingerprint="")
            if self.folder:
                hasher.save(self.folder)
        return True

    def fit_at_once(self) -> Epoch:
        """A method without training: its head is fitted to the features."""
        if not isinstance(self.inputs, FeatureInputs):
            raise ConfigError(f"{self.config.loss} is fitted to frozen features; use --mode frozen")
        began = time.monotonic()
        cast(Any, self.model).fit(self.inputs.values[self.rows].float(), seed=self.config.seed)
        self.ranks.broadcast_modules(self.model)
        self.keep(whole=True)
        epoch = Epoch(0, 0, 0.0, 0.0, time.monotonic() - began)
        if self.folder:
            append_json(self.folder / HISTORY_FILE, asdict(epoch))
        return epoch


def hold_out(n: int, config: Config, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows held out for validation, in ascending order."""
    if n < 2:
        raise DataError("one photo is nothing to learn from; training needs two at the very least")
    count = min(round(n * config.validation), MAX_VALIDATION, n - 2)
    order = np.random.default_rng(config.seed).permutation(n)
    held_out, rows = np.sort(order[:count]), np.sort(order[count:])
    return torch.from_numpy(rows).to(device), torch.from_numpy(held_out).to(device)


def draw_batches(rows: Tensor, config: Config, epoch: int) -> list[Tensor]:
    """The rows in this epoch's own order, in batches.

    A batch's mean counts as one step, whatever its size: a few photos that are left over would weigh as much as all the
    others of a step. So batches are of equal size, but for one photo. Where they are cut, as they once were, a last
    batch of a single photo is left out.
    """
    assert config.batch is not None
    order = np.random.default_rng([config.seed, epoch]).permutation(len(rows))
    drawn = rows[torch.from_numpy(order).to(rows.device)]
    if config.batches == "equal":
        return list(torch.tensor_split(drawn, count_batches(len(rows), config.batch)))
    batches = list(torch.split(drawn, config.batch))
    return batches[:-1] if len(batches) > 1 and len(batches[-1]) == 1 else batches


def count_batches(n: int, batch: int) -> int:
    """How many equal batches n rows make; none has a single row, which is no pair, unless that is what is asked for.

    >>> [count_batches(n, 100) for n in (3, 149, 151, 4008)]
    [1, 1, 2, 40]
    """
    return max(1, min(round(n / batch), n // min(batch, 2)))


def seed_step(config: Config, epoch: int, step: int) -> None:
    """Make dropout and augmentation a function of seed, epoch and step, so that nothing else has to be saved."""
    seed = ((config.seed * 1_000_003 + epoch) * 1_000_003 + step) % 2**63
    torch.default_generator.manual_seed(seed)  # torch.manual_seed seeds all kinds of devices, at half a millisecond
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)


def mean_outputs(outputs: Outputs, labels: Tensor) -> Outputs:
    """One anchor per class where the loss has none: the mean output of the photos that carry the label."""
    carried = labels.cpu().float()
    means = (carried.T @ torch.from_numpy(outputs)) / carried.sum(0).clamp(min=1)[:, None]
    return means.float().numpy()


def take_quantizer(hasher: Hasher) -> None:
    """Take over the product quantiser that the head has learned, if it learns one."""
    codewords = getattr(hasher.network.head, "codewords", None)
    if codewords is not None:
        hasher.quantizer = Quantizer(codewords().detach().float().cpu().numpy().copy(), hasher.bits)


def become(hasher: Hasher, other: Hasher) -> None:
    """Make a hasher another one of the same make."""
    hasher.network.labels = other.network.labels
    hasher.network.load_state_dict(other.network.state_dict())
    for name in ("spec", "anchors", "quantizer", "calibration"):
        setattr(hasher, name, getattr(other, name))
