"""Checkpoints: all that a run needs to go on as if it had never stopped, in one safetensors file."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from hyphash.errors import RunError
from hyphash.files import write_atomically

FORMAT = "1"


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
    tensors: dict[str, Tensor] = {}
    for prefix, module in (("model.", model), ("loss.", loss)):
        tensors |= {prefix + name: tensor for name, tensor in module.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": tensor for name, tensor in state.items() if tensor is not None}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"format": FORMAT, "optimizer": type(optimizer).__name__, "position": json.dumps(asdict(point))}
    write_atomically(path, lambda draft: save_file(tensors, draft, header))


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
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".", 2)
            state.setdefault(int(number), {})[key] = tensor
    try:
        if header.get("optimizer") != type(optimizer).__name__:
            raise ValueError(f"the optimiser {header.get('optimizer')}")
        model.load_state_dict(_under("model.", tensors))
        loss.load_state_dict(_under("loss.", tensors))
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise RunError(f"{path}: was written by a run with other settings ({reason})") from error
    return point


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
