"""Training: `fit` is a loop that reads top to bottom and yields one record an epoch.

>>> config, hasher, loss, notes = prepare(Config(data="photos", bits=48), splits)      # doctest: +SKIP
>>> for epoch in fit(hasher, loss, splits, config, folder=Path("runs/photos")):        # doctest: +SKIP
...     print(epoch.number, epoch.loss, epoch.validation)
"""

import hashlib
import math
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hyphash.config import Config, from_table, read_config, write_config
from hyphash.datasets import Splits, load_dataset
from hyphash.errors import ConfigError, DataError, RunError
from hyphash.features import default_cache
from hyphash.files import append_json, disk_errors, json_line, read_json_lines, write_atomically
from hyphash.hasher import SPEC_FILE, WEIGHTS_FILE, Hasher, Outputs, Progress
from hyphash.losses import Loss, build, find
from hyphash.networks import backbone_recipe
from hyphash.photos import Problem
from hyphash.training.checkpoint import Position, load_checkpoint, save_checkpoint
from hyphash.training.inputs import FeatureInputs, Inputs, load_inputs, outputs_of
from hyphash.training.ranks import Ranks, join
from hyphash.training.steps import build_optimizer, build_step, set_rates
from hyphash.training.validation import take_quantizer, validate

CONFIG_FILE = "config.toml"
HISTORY_FILE = "history.jsonl"
CHECKPOINT_FILE = "checkpoint.safetensors"
PROBLEMS_FILE = "problems.jsonl"
EVENTS_FOLDER = "events"  # TensorBoard's
MAX_VALIDATION = 500

Stop = Callable[[], bool]

FINE_TUNE: dict[str, Any] = {  # the paper's
    "hidden": 0, "dropout": 0.5, "epochs": 100, "batch": 100, "optimizer": "sgd", "rate": 0.01, "loss_rate": 0.001,
    "momentum": 0.9, "weight_decay": 5e-4, "schedule": "step", "step_every": 10, "step_factor": 0.5, "clip": 0.0,
}  # fmt: skip
FROZEN: dict[str, Any] = FINE_TUNE | {
    "hidden": 1024, "epochs": 40, "rate": 0.05, "loss_rate": 0.002, "schedule": "cosine",
}  # fmt: skip


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to."""

    number: int  # from 1
    of: int
    loss: float  # mean over its steps
    rate: float  # learning rate at its end
    seconds: float  # of training since the run began, evaluation left out
    validation: float | None = None  # mAP of held-out training photos, where it was measured


def resolve(config: Config) -> Config:
    """The config with every choice made: the method's and the backbone's settings where the user left them open."""
    method = find(config.loss)
    if config.mode == "auto":
        config = replace(config, mode="fine-tune" if torch.cuda.is_available() else "frozen")
    if config.size is None:
        config = replace(config, size=backbone_recipe(config.backbone).preprocessing.size)
    if config.mode == "frozen":
        return config.filled(method.frozen_recipe, FROZEN)
    return config.filled(method.recipe, backbone_recipe(config.backbone).tune, FINE_TUNE)


def train(data: str | Path, *, into: str | Path, cache: Path | None = None, **settings: Any) -> Hasher:
    """Train a hasher on the dataset at `data` with any settings of Config, into a new run folder.

    >>> hasher = train("photos/labels.csv", into="runs/photos", bits=64)      # doctest: +SKIP
    """
    config = from_table(Config, {"data": str(data)} | settings, "train")
    splits = load_dataset(config.data, config.dataset, **config.data_options)
    config, hasher, loss, _ = prepare(config, splits)
    if join().first:
        open_run(Path(into), config)
    for _ in fit(hasher, loss, splits, config, folder=Path(into), cache=cache):
        pass
    return hasher


def prepare(config: Config, splits: Splits) -> tuple[Config, Hasher, Loss, list[str]]:
    """A resolved config, an untrained hasher and its loss, drawn from the config's seed; and notes for the user."""
    config = resolve(config)
    if len(splits.classes) < 2:
        raise DataError(f"{splits.name}: only one label, {splits.classes[0]!r}; there is nothing to tell apart")
    assert config.hidden is not None
    assert config.dropout is not None
    torch.manual_seed(config.seed)
    loss = build(config.loss, bits=config.bits, classes=len(splits.classes), **config.loss_options)
    hasher, notes = Hasher.create(
        classes=splits.classes,
        bits=config.bits,
        backbone=config.backbone,
        weights=config.weights,
        size=config.size,
        head=loss.head,
        on_map=loss.needs_map,
        hidden=config.hidden,
        dropout=config.dropout,
        device=join().device(config.device),
    )
    return config, hasher, loss.to(hasher.device), notes


def fit(
    hasher: Hasher,
    loss: Loss,
    splits: Splits,
    config: Config,
    *,
    folder: Path | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> Iterator[Epoch]:
    """Train `hasher` in place and yield an Epoch after each epoch; the run goes into `folder`.

    A folder that holds an unfinished run of the same config is continued, to the same weights as if it had never
    stopped. When `stop` says so, the state is saved after the step at hand and the loop ends.

    Among several ranks, as torchrun starts them, all call this alike and share every batch; the first one writes.
    """
    if config.keep == "best" and folder is None:
        raise ConfigError("keep = 'best' needs a run folder to keep the best weights in")
    ranks = join()
    _require_shareable(loss, splits, config, ranks)
    folder, stop, cache = folder if ranks.first else None, stop or (lambda: False), cache or default_cache()
    inputs, problems = load_inputs(
        hasher, splits.train, frozen=config.mode == "frozen", cache=cache, progress=progress, stop=stop, ranks=ranks
    )
    if inputs is None:
        return
    if folder:
        _note_problems(folder, problems)
    rows, held_out = _hold_out(len(inputs), config, hasher.device)
    if isinstance(inputs, FeatureInputs):
        standardise(hasher, inputs, rows)
    if loss.fitted:
        yield _fit_without_training(hasher, inputs, rows, config, folder, ranks)
        return

    sitting = _Sitting(hasher, loss, inputs, rows, config, folder, ranks)
    finished = yield from _epochs(sitting, held_out, stop)
    if not finished:
        return
    if not (config.keep == "best" and _take_best(hasher, folder, ranks)):
        sitting.finish()
    if folder:
        (folder / CHECKPOINT_FILE).unlink(missing_ok=True)


def _epochs(sitting: "_Sitting", held_out: Tensor, stop: Stop) -> Generator[Epoch, None, bool]:
    """Epoch after epoch, each measured, logged and yielded; whether the last one was reached."""
    config, position = sitting.config, sitting.resume()
    with closing(_Log(sitting.folder, position, sitting.ranks)) as log:
        while position.epoch < sitting.epochs:
            position, mean = sitting.run_epoch(position, stop)
            if position.step:  # stopped in the middle; the state is saved
                return False
            last = position.epoch == sitting.epochs
            measure = len(held_out) > 0 and (last or position.epoch % config.evaluate_every == 0)
            score = sitting.score(held_out) if measure else None
            if score is not None and config.keep == "best" and score > log.best:
                sitting.finish()
            epoch = Epoch(position.epoch, sitting.epochs, mean, sitting.rate(), position.seconds, score)
            log.add(epoch)
            yield epoch
    return True


def _require_shareable(loss: Loss, splits: Splits, config: Config, ranks: Ranks) -> None:
    """Refuse what several ranks cannot do, and ranks that were started with different settings or data."""
    if ranks.size == 1:
        return
    if loss.distributed:
        raise ConfigError(
            f"{config.loss} cannot be trained on {ranks.size} ranks: {loss.distributed}; leave out torchrun"
        )
    if config.compile:
        raise ConfigError("compile = true is for one rank; leave it out on several")
    if (config.batch or 1) < ranks.size:
        raise ConfigError(
            f"a batch of {config.batch} is too small for {ranks.size} ranks; raise --batch or start fewer"
        )
    facts = repr((replace(config, data="", device=""), splits.classes)).encode() + splits.train.labels.tobytes()
    digests = ranks.collect(np.frombuffer(hashlib.sha256(facts).digest(), np.uint8)[None])
    if (digests != digests[0]).any():
        raise RunError("the ranks differ in settings or labels; start all of them with the same command and data")


def _take_best(hasher: Hasher, folder: Path | None, ranks: Ranks) -> bool:
    """Make the hasher what the run has kept as its best, if it has kept any."""
    if not ranks.told(folder is not None and (folder / WEIGHTS_FILE).is_file()):
        return False
    if folder:
        hasher.take(Hasher.load(folder, device=str(hasher.device)))
    ranks.align(hasher.network)
    hasher.anchors = ranks.given(hasher.anchors)
    if not ranks.first:
        take_quantizer(hasher)
        hasher.spec = replace(hasher.spec, fingerprint="")
    return True


class _Sitting:
    """One sitting of a run: what is trained, on what, with whom, and where its state is saved."""

    def __init__(
        self,
        hasher: Hasher,
        loss: Loss,
        inputs: Inputs,
        rows: Tensor,
        config: Config,
        folder: Path | None,
        ranks: Ranks,
    ) -> None:
        assert config.epochs is not None
        self.hasher, self.loss, self.inputs, self.rows = hasher, loss, inputs, rows
        self.config, self.folder, self.ranks = config, folder, ranks
        self.epochs = config.epochs
        self.model = hasher.network.head if config.mode == "frozen" else hasher.network
        ranks.align(self.model, loss)
        self.optimizer = build_optimizer(self.model, loss, config)
        self.step = build_step(self.model, loss, self.optimizer, hasher, inputs, config, ranks)
        self.saved_at = time.monotonic()

    def run_epoch(self, start: Position, stop: Stop) -> tuple[Position, float]:
        """Train to the end of the epoch, or until `stop`; returns where that is and the mean loss."""
        batches = _batches(self.rows, self.config, start.epoch)
        total = torch.tensor(start.loss_sum, device=self.hasher.device)
        began = time.monotonic() - start.seconds
        set_rates(self.optimizer, self.config, start.epoch + max(start.step - 1, 0) / len(batches))
        for i in range(start.step, len(batches)):
            now = start.epoch + i / len(batches)
            _seed_step(self.config, start.epoch, i)
            self.loss.set_progress(now / self.epochs)
            set_rates(self.optimizer, self.config, now)
            total += self.step(batches[i])
            due = time.monotonic() - self.saved_at > self.config.checkpoint_every
            stopped, due = self.ranks.agree(stop(), due)
            if stopped or due:
                here = Position(start.epoch, i + 1, float(total), time.monotonic() - began)
                self.save(here)
                if stopped:
                    return here, math.nan
        mean = float(total) / max(len(batches), 1)  # waits for the device, so the clock below is right
        if not math.isfinite(mean):
            raise ConfigError(f"the loss is {mean} in epoch {start.epoch + 1}; lower --rate or --loss-rate")
        return Position(start.epoch + 1, 0, 0.0, time.monotonic() - began), mean

    def score(self, held_out: Tensor) -> float:
        """mAP of held-out photos among those that are trained on."""
        top, ranks = self.config.top, self.ranks
        return validate(self.hasher, self.inputs, self.rows, held_out, top=top, ranks=ranks)

    def rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def save(self, position: Position) -> None:
        self.ranks.require_in_step(self.model, self.loss)
        if self.folder:
            position = replace(position, photos=len(self.rows))
            save_checkpoint(self.folder / CHECKPOINT_FILE, self.model, self.loss, self.optimizer, position)
        self.saved_at = time.monotonic()

    def resume(self) -> Position:
        with self.ranks.copy_of(self.folder and self.folder / CHECKPOINT_FILE) as checkpoint:
            if checkpoint is None:
                return Position()
            position = load_checkpoint(checkpoint, self.model, self.loss, self.optimizer)
        if position.photos != len(self.rows):
            raise RunError(
                f"{self.folder}: was trained on {position.photos:,} photos until it stopped, now there are "
                f"{len(self.rows):,}; bring the data back as it was, or start anew with --overwrite"
            )
        return position

    def finish(self) -> None:
        """Give the hasher its anchors and quantiser, and write it."""
        self.ranks.require_in_step(self.model, self.loss)
        take_quantizer(self.hasher)
        anchors = self.loss.anchors()
        if anchors is None:
            outputs = outputs_of(self.hasher, self.inputs, self.rows, ranks=self.ranks)
            self.hasher.anchors = mean_outputs(outputs, self.inputs.labels[self.rows])
        else:
            self.hasher.anchors = anchors.detach().float().cpu().numpy().copy()
        self.hasher.spec = replace(self.hasher.spec, fingerprint="")  # it was that of other weights
        if self.folder:
            self.hasher.save(self.folder)


def _hold_out(n: int, config: Config, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows held out for validation, in ascending order."""
    if n < 2:
        raise DataError("one photo is nothing to learn from; training needs two at the very least")
    count = min(round(n * config.validation), MAX_VALIDATION, n - 2)
    order = np.random.default_rng(config.seed).permutation(n)
    held_out, rows = np.sort(order[:count]), np.sort(order[count:])
    return torch.from_numpy(rows).to(device), torch.from_numpy(held_out).to(device)


def standardise(hasher: Hasher, inputs: FeatureInputs, rows: Tensor) -> None:
    """Let the head see features of mean 0 and deviation 1 over the training photos, channel by channel."""
    values = inputs.values[rows].float()
    axes = (0,) if values.ndim == 2 else (0, 2, 3)
    hasher.network.head.trunk.standardise(values.mean(axes), values.std(axes, correction=0))


def _batches(rows: Tensor, config: Config, epoch: int) -> list[Tensor]:
    """The rows in this epoch's own order, cut into batches; a last batch of a single photo is left out."""
    assert config.batch is not None
    order = np.random.default_rng([config.seed, epoch]).permutation(len(rows))
    batches = list(torch.split(rows[torch.from_numpy(order).to(rows.device)], config.batch))
    return batches[:-1] if len(batches) > 1 and len(batches[-1]) == 1 else batches


def _seed_step(config: Config, epoch: int, step: int) -> None:
    """Make dropout and augmentation a function of seed, epoch and step, so that nothing else has to be saved."""
    torch.manual_seed(((config.seed * 1_000_003 + epoch) * 1_000_003 + step) % 2**63)


def _fit_without_training(
    hasher: Hasher, inputs: Inputs, rows: Tensor, config: Config, folder: Path | None, ranks: Ranks
) -> Epoch:
    if not isinstance(inputs, FeatureInputs):
        raise ConfigError(f"{config.loss} is fitted to frozen features; use --mode frozen")
    began = time.monotonic()
    head: Any = hasher.network.head
    head.fit(inputs.values[rows].float(), seed=config.seed)
    ranks.align(head)
    hasher.anchors = mean_outputs(outputs_of(hasher, inputs, rows, ranks=ranks), inputs.labels[rows])
    epoch = Epoch(0, 0, 0.0, 0.0, time.monotonic() - began)
    if folder:
        hasher.save(folder)
        append_json(folder / HISTORY_FILE, asdict(epoch))
    return epoch


def mean_outputs(outputs: Outputs, labels: Tensor) -> Outputs:
    """One anchor per class where the loss has none: the mean output of the photos that carry the label."""
    carried = labels.cpu().numpy()
    counts = np.maximum(carried.sum(0), 1)[:, None]
    result: Outputs = ((carried.T @ outputs) / counts).astype(np.float32)
    return result


class _Log:
    """history.jsonl and TensorBoard events of a run; lines after the point a run continues from are dropped."""

    def __init__(self, folder: Path | None, start: Position, ranks: Ranks) -> None:
        self.folder = folder
        self.events: Any = None
        past = read_json_lines(folder / HISTORY_FILE) if folder else []
        history = [line for line in past if line["number"] <= start.epoch]
        self.best = ranks.told(max((line["validation"] or -1.0 for line in history), default=-1.0))
        if folder is None:
            return
        write_atomically(folder / HISTORY_FILE, "".join(json_line(line) for line in history))
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:  # without the package there are no events, and nothing else is lost
            return
        self.events = SummaryWriter(str(folder / EVENTS_FOLDER), purge_step=start.epoch + 1)

    def add(self, epoch: Epoch) -> None:
        self.best = max(self.best, epoch.validation or -1.0)
        if self.folder:
            append_json(self.folder / HISTORY_FILE, asdict(epoch))
        if self.events is not None:
            for name in ("loss", "rate", "validation"):
                value = getattr(epoch, name)
                if value is not None:
                    self.events.add_scalar(name, value, epoch.number)

    def close(self) -> None:
        if self.events is not None:
            self.events.close()


def _note_problems(folder: Path, problems: tuple[Problem, ...]) -> None:
    if problems:
        write_atomically(folder / PROBLEMS_FILE, "".join(json_line(asdict(problem)) for problem in problems))
    else:
        (folder / PROBLEMS_FILE).unlink(missing_ok=True)  # a sitting before may have met some


def open_run(folder: Path, config: Config, *, overwrite: bool = False) -> None:
    """Make a run folder for this config. One that is there already is an error, unless it may be overwritten."""
    if (folder / CONFIG_FILE).exists() and not overwrite:
        raise RunError(
            f"{folder}: there is a run already; continue it with --resume {folder}, replace it with --overwrite, "
            "or choose another folder with --into"
        )
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder}: is a file; choose another folder with --into")
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in (CHECKPOINT_FILE, HISTORY_FILE, SPEC_FILE, WEIGHTS_FILE, PROBLEMS_FILE):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / EVENTS_FOLDER, ignore_errors=True)
    write_config(folder / CONFIG_FILE, config)


def read_run(folder: Path) -> Config:
    """The config of a run, finished or not."""
    if not (folder / CONFIG_FILE).is_file():
        raise RunError(f"{folder}: there is no run here (no {CONFIG_FILE}); make one with `hyphash train`")
    return read_config(folder / CONFIG_FILE)


def resume_config(folder: Path) -> Config:
    """The config of an unfinished run."""
    config = read_run(folder)
    history = read_json_lines(folder / HISTORY_FILE)
    finished = (folder / WEIGHTS_FILE).is_file() and not (folder / CHECKPOINT_FILE).is_file()
    if finished and (not history or history[-1]["number"] >= history[-1]["of"]):
        raise RunError(f"{folder}: this run is finished; train a new one with --into, or --overwrite it")
    return config
