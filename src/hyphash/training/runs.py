"""The folder of a run: its settings, its history, the photos that were left out, and whether it is finished.

A checkpoint is all that a run needs to go on as if it had never stopped, in one safetensors file.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from hyphash import files
from hyphash.config import Config, read_config, require_named, write_config
from hyphash.errors import RunError, needs_extra
from hyphash.hasher import SPEC_FILE, WEIGHTS_FILE
from hyphash.photos import Problem
from hyphash.training.ranks import Ranks

CONFIG_FILE = "config.toml"
HISTORY_FILE = "history.jsonl"
CHECKPOINT_FILE = "checkpoint.safetensors"
FORMAT = "1"  # of checkpoints
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
    files.make_folder(folder)
    with files.disk_errors(folder):
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
    files.require_plain(folder.iterdir(), "a run")
    if is_finished(folder):
        raise RunError(f"{folder}: this run is finished; train a new one with --into, or --overwrite it")
    return config


def is_finished(folder: Path) -> bool:
    """Whether a run has come to its end. One that keeps its best epoch has weights before that."""
    if (folder / CHECKPOINT_FILE).is_file() or not (folder / WEIGHTS_FILE).is_file():
        return False
    history = files.read_json_lines(folder / HISTORY_FILE)
    return history[-1]["number"] >= history[-1]["of"] if history else read_run(folder).epochs == 0


def write_problems(folder: Path, problems: Sequence[Problem]) -> None:
    """Note the photos that were left out."""
    if problems:
        files.write_atomically(folder / PROBLEMS_FILE, "".join(files.json_line(asdict(one)) for one in problems))
    else:
        (folder / PROBLEMS_FILE).unlink(missing_ok=True)  # a session before may have met some


class History:
    """history.jsonl of a run, and its figures in a log; what lies beyond the epoch to continue from is dropped."""

    def __init__(self, folder: Path | None, epoch: int, ranks: Ranks, log: str = "tensorboard") -> None:
        self.folder = folder
        self.events: Any = None
        past = files.read_json_lines(folder / HISTORY_FILE) if folder else []
        kept = [line for line in past if line["number"] <= epoch]
        self.best = ranks.broadcast_object(max((line["validation"] or -1.0 for line in kept), default=-1.0))
        if folder is None:
            return
        files.sweep_drafts(folder)  # such as checkpoints that a killed session was about to write
        files.write_atomically(folder / HISTORY_FILE, "".join(map(files.json_line, kept)))
        self.events = tracker(folder, log, epoch)

    def add(self, epoch: Epoch) -> None:
        self.best = max(self.best, epoch.validation or -1.0)
        if self.folder:
            files.append_json(self.folder / HISTORY_FILE, asdict(epoch))
        for name in ("loss", "rate", "validation") if self.events is not None else ():
            if (value := getattr(epoch, name)) is not None:
                self.events.add_scalar(name, value, epoch.number)

    def close(self) -> None:
        if self.events is not None:
            self.events.close()


def tracker(folder: Path, log: str, epoch: int) -> Any:
    """A writer of events: TensorBoard's (None without it: nothing else is lost), MLflow's or Weights & Biases'.

    The latter write where their own settings say, and a resumed run is the same there.
    """
    if log == "tensorboard":
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return None
        return SummaryWriter(str(folder / EVENTS_FOLDER), purge_step=epoch + 1)
    file = folder / EVENTS_FOLDER / log
    known = file.read_text() if file.is_file() else None
    with needs_extra(log, f"--log {log}"):
        there: Any = import_module(log)
    if log == "mlflow":
        number = there.start_run(known, run_name=folder.name).info.run_id
        made = SimpleNamespace(add_scalar=there.log_metric, close=there.end_run)
    else:
        run = there.init(project="hyphash", name=folder.name, id=known, resume="allow")
        add = lambda name, value, step: run.log({name: value}, step=step)  # noqa: E731
        number, made = run.id, SimpleNamespace(add_scalar=add, close=run.finish)
    file.parent.mkdir(exist_ok=True)
    files.write_atomically(file, number)
    return made


@dataclass(frozen=True)
class ResumePoint:
    """Where a run goes on: `step` batches of `epoch` are done (epochs count from 0)."""

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0  # over the steps of this epoch
    seconds: float = 0.0  # of training, all sessions together
    photos: int = 0  # trained on: the order of a batch depends on their number


def save_checkpoint(path: Path, model: nn.Module, loss: nn.Module, optimizer: Optimizer, point: ResumePoint) -> None:
    """`model` is what is trained: the head, or the whole network."""
    tensors: dict[str, Tensor] = nn.ModuleDict({"model": model, "loss": loss}).state_dict()
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": tensor for name, tensor in state.items() if tensor is not None}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"format": FORMAT, "optimizer": type(optimizer).__name__, "position": json.dumps(asdict(point))}
    files.write_atomically(path, lambda draft: save_file(tensors, draft, header))


def load_checkpoint(path: Path, model: nn.Module, loss: nn.Module, optimizer: Optimizer) -> ResumePoint:
    """Put everything back where it was and say where that is."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if (number := header.get("format")) != FORMAT:
            raise RunError(f"{path}: format {number}, this hyphash reads {FORMAT}; start anew with --overwrite")
        point = ResumePoint(**json.loads(header["position"]))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path}: damaged checkpoint ({error!r}); start the run anew with --overwrite") from error
    state: dict[int, dict[str, Tensor]] = {}
    for name in [name for name in tensors if name.startswith("optimizer.")]:
        _, number, key = name.split(".", 2)
        state.setdefault(int(number), {})[key] = tensors.pop(name)
    try:
        if header.get("optimizer") != type(optimizer).__name__:
            raise ValueError(f"the optimiser {header.get('optimizer')}")
        nn.ModuleDict({"model": model, "loss": loss}).load_state_dict(tensors)
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise RunError(f"{path}: was written by a run with other settings ({reason})") from error
    return point
