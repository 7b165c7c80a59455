"""One step of training: optimiser, learning rates, and the step itself, eager or as a recorded CUDA graph.

A step of AlexNet with a batch of 100 keeps a large GPU busy for about a millisecond, but takes eight to launch kernel
by kernel. Recorded once and replayed, a step is one launch. What is recorded sees the batch through fixed tensors: the
rows of the batch and the learning rates.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from hyphash.config import Config
from hyphash.losses import Loss, in_float32, parts_of
from hyphash.losses.memory import Memory
from hyphash.networks import Network
from hyphash.training.inputs import Augmentation, Inputs, StreamedInputs
from hyphash.training.ranks import SINGLE, Ranks

TWO_VIEWS: tuple[Augmentation, ...] = ("flip", "crop")  # of a photo; over frozen features both are drawn
WARM_UP = 3  # steps run as they are before one is recorded, so that every lazy allocation has happened

TrainingStep = Callable[[Tensor], Tensor]  # rows of the batch → its loss


def build_optimizer(model: nn.Module, loss: nn.Module, config: Config) -> Optimizer:
    """The optimiser over the parameters of head and backbone and of the loss, each at a rate of their own."""
    groups: list[dict[str, Any]] = []
    for module, rate, begins in _parts(model, loss, config):
        parameters = list(module.parameters())
        if parameters:
            # On a GPU the rate is a tensor there, so that a recorded step reads the current one.
            lr = torch.tensor(rate, device=parameters[0].device) if parameters[0].is_cuda else rate
            groups.append({"params": parameters, "lr": lr, "full_rate": rate, "begins": begins})
    fused = all(group["params"][0].is_cuda for group in groups)
    settings: dict[str, Any] = {"weight_decay": config.weight_decay, "fused": fused}
    if config.optimizer == "sgd":
        settings |= {"momentum": config.momentum or 0.0, "nesterov": bool(config.nesterov and config.momentum)}
        return SGD(groups, lr=groups[0]["lr"], **settings)
    kind = {"adam": Adam, "adamw": AdamW}[str(config.optimizer)]
    return kind(groups, lr=groups[0]["lr"], capturable=fused, **settings)


def _parts(model: nn.Module, loss: nn.Module, config: Config) -> list[tuple[nn.Module, float, float]]:
    """What is trained, the rate of each, and the epoch in which it begins; one where nothing tells parts apart."""
    rate, first = config.rate or 0.0, config.head_first or 0.0
    share, body = (1.0 if one is None else one for one in (config.backbone_rate, config.body_rate))
    own = (loss, config.loss_rate or 0.0, 0.0)
    if not isinstance(model, Network) or (share == body == 1 and not first):
        return [(model, rate, 0.0), own]
    backbone, slow = model.backbone, rate * share
    parts: list[tuple[nn.Module, float, float]] = [(backbone, slow, first)]
    if body != 1:
        parts = [(backbone.tail, slow, first), (backbone.body, slow * body, first)]
    return [(model.head, rate, 0.0), *parts, own]


def set_rates(optimizer: Optimizer, config: Config, epoch: float) -> None:
    """Set the learning rates for this moment, in epochs from the start."""
    factor = rate_factor(config, epoch)
    for group in optimizer.param_groups:
        rate = group["full_rate"] * factor if epoch >= group["begins"] else 0.0
        group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate


def rate_factor(config: Config, epoch: float) -> float:
    """What the learning rates are multiplied by, `epoch` epochs from the start."""
    warmth = min(epoch / config.warm_up, 1.0) if config.warm_up else 1.0
    if config.schedule == "cosine":
        return warmth * (1 + math.cos(math.pi * min(epoch / max(config.epochs or 1, 1), 1))) / 2
    if config.schedule == "step":
        factor = 1.0 if config.step_factor is None else config.step_factor
        return warmth * float(factor ** (int(epoch) // (config.step_every or 1)))
    return warmth


def build_step(
    model: nn.Module, loss: Loss, optimizer: Optimizer, inputs: Inputs, config: Config, ranks: Ranks = SINGLE
) -> TrainingStep:
    """A step as a function of the rows in its batch, those of all ranks: forward, backward, update."""
    device = inputs.labels.device
    half = config.precision == "bfloat16" or (config.precision == "auto" and device.type == "cuda")
    forward = torch.compile(model) if config.compile else ranks.parallel(model)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def step(rows: Tensor) -> Tensor:
        model.train()
        part, looks = ranks.share(len(rows)), TWO_VIEWS if loss.two_views else (config.augment,)
        images = torch.cat([inputs.batch(rows, augment=look, part=part) for look in looks])
        with torch.autocast(device.type, torch.bfloat16, enabled=half), ranks.forward():
            outputs = forward(images)
        if loss.two_views:
            outputs = outputs.chunk(2)
        for memory in parts_of(loss, Memory):
            memory.set_batch(rows)
        value = loss(ranks.all_gather_outputs(in_float32(outputs)), inputs.labels[rows])
        optimizer.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
        ranks.all_reduce_gradients(loss)
        if config.clip:
            nn.utils.clip_grad_norm_(parameters, config.clip)
        optimizer.step()
        return value.detach()

    if ranks.size > 1:  # what they say to each other is not recorded
        return ranks.guard()(step)
    recordable = device.type == "cuda" and not config.compile and not isinstance(inputs, StreamedInputs)
    # Whether its numbers change between steps.
    scheduled = any(type(part).set_progress is not Loss.set_progress for part in parts_of(loss, Loss))
    return RecordedStep(step, device=device) if recordable and not scheduled else step


class RecordedStep:
    """A step that is recorded as a CUDA graph, one for each size of batch: an epoch has two sizes at most.

    A step that makes the host wait for the device (a count, a boolean index) cannot be recorded; then every step
    runs as it is.
    """

    def __init__(self, step: TrainingStep, *, device: torch.device) -> None:
        self.step, self.device = step, device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()  # of memory that all graphs share: one runs at a time
        self.recordings: dict[int, Recording] = {}  # by size
        self.possible = True

    def __call__(self, rows: Tensor) -> Tensor:
        if not self.possible:
            return self.step(rows)
        if (size := len(rows)) not in self.recordings:
            self.recordings[size] = Recording(torch.zeros(size, dtype=torch.int64, device=self.device))
        recording = self.recordings[size]
        recording.rows.copy_(rows)
        if recording.graph is not None and recording.value is not None:
            recording.graph.replay()
            return recording.value
        return self._warm_up(recording) if recording.warm < WARM_UP else self._record(recording)

    def _warm_up(self, recording: "Recording") -> Tensor:
        """Run the step as it is on the stream that will record; on the last time, see that it never waits."""
        recording.warm += 1
        strict = recording.warm == WARM_UP
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if strict:
                torch.cuda.set_sync_debug_mode("warn")
                caught.clear()  # that this mode is new is no news
            try:
                value = self.step(recording.rows)
            finally:
                if strict:
                    torch.cuda.set_sync_debug_mode("default")
        self.possible = not (strict and any("synchroniz" in str(warning.message) for warning in caught))
        torch.cuda.current_stream().wait_stream(self.stream)
        return value

    def _record(self, recording: "Recording") -> Tensor:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            value = self.step(recording.rows)
        recording.graph, recording.value = graph, value
        graph.replay()  # recording does not run it
        return value


@dataclass
class Recording:
    """The step for batches of one size: the memory of its rows and of its loss, and the graph between them."""

    rows: Tensor
    warm: int = 0  # steps that ran as they are
    graph: torch.cuda.CUDAGraph | None = None
    value: Tensor | None = None
