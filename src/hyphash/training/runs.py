"""The folder of a run: its settings, its history, the photos that were left out, and whether it is finished."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hyphash.config import Config, read_config, require_named, write_config
from hyphash.errors import RunError
from hyphash.files import (
    append_json,
    disk_errors,
    json_line,
    make_folder,
    read_json_lines,
    require_plain,
    sweep_drafts,
    write_atomically,
)
from hyphash.hasher import SPEC_FILE, WEIGHTS_FILE
from hyphash.photos import Problem
from hyphash.training.ranks import Ranks

CONFIG_FILE = "config.toml"
HISTORY_FILE = "history.jsonl"
CHECKPOINT_FILE = "checkpoint.safetensors"
PROBLEMS_FILE = "problems.jsonl"
EVENTS_FOLDER = "events"  # TensorBoard's


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to."""

    number: int  # from 1
    of: int
    loss: float  # mean over its steps
    rate: float  # learning rate at its end
    seconds: float  # of training since the run began, evaluation left out
    validation: float | None = None  # mAP of held-out training photos, where it was measured


def open_run(folder: Path, config: Config, *, overwrite: bool = False) -> None:
    """Make a run folder for this config. One that is there already is an error, unless it may be overwritten."""
    if (folder / CONFIG_FILE).exists() and not overwrite:
        raise RunError(
            f"{folder}: there is a run already; continue it with --resume {folder}, replace it with --overwrite, "
            "or choose another folder with --into"
        )
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder}: is a file; choose another folder with --into")
    make_folder(folder)
    with disk_errors(folder):
        for name in (CHECKPOINT_FILE, HISTORY_FILE, SPEC_FILE, WEIGHTS_FILE, PROBLEMS_FILE):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / EVENTS_FOLDER, ignore_errors=True)
    write_config(folder / CONFIG_FILE, config)


def read_run(folder: Path) -> Config:
    """The config of a run, finished or not."""
    if not (folder / CONFIG_FILE).is_file():
        raise RunError(f"{folder}: there is no run here (no {CONFIG_FILE}); make one with `hyphash train`")
    return read_config(folder / CONFIG_FILE)


def resume_config(folder: Path, *, loss: str | None = None) -> Config:
    """The config of an unfinished run, where writing goes on. A loss that is a file has to be named as `loss`, too."""
    config = read_run(folder)
    require_named(config, loss, folder / CONFIG_FILE)
    require_plain(folder.iterdir(), "a run")
    if is_finished(folder):
        raise RunError(f"{folder}: this run is finished; train a new one with --into, or --overwrite it")
    return config


def is_finished(folder: Path) -> bool:
    """Whether a run has come to its end. One that keeps its best epoch has weights before that."""
    if (folder / CHECKPOINT_FILE).is_file() or not (folder / WEIGHTS_FILE).is_file():
        return False
    history = read_json_lines(folder / HISTORY_FILE)
    return history[-1]["number"] >= history[-1]["of"] if history else read_run(folder).epochs == 0


def write_problems(folder: Path, problems: Sequence[Problem]) -> None:
    """Note the photos that were left out."""
    if problems:
        write_atomically(folder / PROBLEMS_FILE, "".join(json_line(asdict(problem)) for problem in problems))
    else:
        (folder / PROBLEMS_FILE).unlink(missing_ok=True)  # a session before may have met some


class History:
    """history.jsonl and TensorBoard events of a run; what lies beyond the epoch to continue from is dropped."""

    def __init__(self, folder: Path | None, epoch: int, ranks: Ranks) -> None:
        self.folder = folder
        self.events: Any = None
        past = read_json_lines(folder / HISTORY_FILE) if folder else []
        kept = [line for line in past if line["number"] <= epoch]
        self.best = ranks.broadcast_object(max((line["validation"] or -1.0 for line in kept), default=-1.0))
        if folder is None:
            return
        sweep_drafts(folder)  # such as checkpoints that a killed session was about to write
        write_atomically(folder / HISTORY_FILE, "".join(map(json_line, kept)))
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:  # without the package there are no events, and nothing else is lost
            return
        self.events = SummaryWriter(str(folder / EVENTS_FOLDER), purge_step=epoch + 1)

    def is_best(self, epoch: Epoch) -> bool:
        return epoch.validation is not None and epoch.validation > self.best

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
