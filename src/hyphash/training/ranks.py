"""Ranks: the processes that train one network together, as torchrun starts them, each with its part of every batch.

n ranks with batches of B/n photos take the steps of one rank with B. Every rank runs the network on its part, gathers
the outputs of all and computes the one loss of the whole batch. Gradients of that loss reach a rank's own outputs
only, so the network's gradient is the sum over ranks of what each finds; the loss's own parameters, such as proxies,
have their whole gradient on every rank already.
"""

import atexit
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import batch_norm
from torch.nn.modules._functions import SyncBatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

from hyphash.errors import ConfigError, RunError
from hyphash.losses import HeadOutputs, Peers
from hyphash.networks import Network

TIMEOUT = "HYPHASH_RANK_TIMEOUT"  # seconds that a rank waits for the others
DEFAULT_TIMEOUT = 1800.0
CHUNK = 1 << 28  # bytes that are sent in one go
SAMPLED = 64  # entries of a tensor that are compared when ranks are checked against each other
GOLDEN = 0x9E3779B97F4A7C15  # an odd number: its multiples lie far apart, modulo any power of two

Array = NDArray[Any]
T = TypeVar("T")


class Ranks(Peers):
    """One rank among `size`, by torch's process group: nccl between GPUs, gloo between CPUs.

    A process on its own needs no group: it has the whole batch, and every collective gives back what went in.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self.first = rank == 0  # which writes the run's folder and speaks to the user
        self.local_size = min(size, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))  # how many share this machine
        self.rows = 0  # of the batch that was shared out last

    def __deepcopy__(self, memo: Any) -> "Ranks":
        return self  # a copy of a network has the same ranks around it

    def device(self, name: str) -> str:
        """The device that this rank computes on, where the user asked for `name`."""
        if self.size == 1 or name not in ("auto", "cuda") or not torch.cuda.is_available():
            return name
        local, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= gpus:
            raise ConfigError(f"rank {self.rank} finds {gpus} GPUs here; start as many with --nproc-per-node {gpus}")
        torch.cuda.set_device(local)
        return f"cuda:{local}"

    def share(self, n: int) -> slice:
        """This rank's share of a batch of n rows; `all_gather` puts the shares of the latest batch together again."""
        self.rows = n
        self.part = _part(n, self.rank, self.size)
        return self.part

    def all_gather(self, rows: Tensor) -> Tensor:
        if self.size == 1:
            return rows
        parts = [_part(self.rows, rank, self.size) for rank in range(self.size)]
        longest = max(part.stop - part.start for part in parts)
        padded = rows.new_zeros(longest, *rows.shape[1:])
        padded[: len(rows)] = rows.detach()
        everyone = rows.new_empty(self.size * longest, *rows.shape[1:])
        self.guard()(dist.all_gather_into_tensor)(everyone, padded)
        blocks = [block[: p.stop - p.start] for block, p in zip(torch.split(everyone, longest), parts, strict=True)]
        blocks[self.rank] = rows  # and with it the way back for gradients
        return torch.cat(blocks)

    def all_gather_outputs(self, outputs: HeadOutputs) -> HeadOutputs:
        """`all_gather` for all that a head returned."""
        return tuple(map(self.all_gather, outputs)) if isinstance(outputs, tuple) else self.all_gather(outputs)

    def all_gather_rows(self, rows: Array) -> Array:
        """The rows of all ranks, one after the other; each may have any number of them."""
        blocks = [self.broadcast_array(rows, rank) for rank in range(self.size)]
        return np.concatenate([block for block in blocks if len(block)] or [rows])

    def all_reduce_any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether any rank has set it."""
        if self.size == 1:
            return flags
        votes = torch.tensor(flags, dtype=torch.int32)
        self.guard()(dist.all_reduce)(votes, dist.ReduceOp.MAX, group=_cpu_group())
        return tuple(map(bool, votes.tolist()))

    def all_reduce_gradients(self, loss: nn.Module) -> None:
        """Make the gradients of the loss's own parameters, equal but for rounding, the same to the last bit."""
        gradients = [p.grad for p in loss.parameters() if p.grad is not None]
        if gradients and self.size > 1:
            sizes = [gradient.numel() for gradient in gradients]
            flat = torch.cat([gradient.flatten() for gradient in gradients]) / self.size
            self.guard()(dist.all_reduce)(flat)
            for gradient, mean in zip(gradients, torch.split(flat, sizes), strict=True):
                gradient.copy_(mean.view_as(gradient))

    def broadcast(self, values: Tensor) -> Tensor:
        values = values.contiguous()
        self.guard()(dist.broadcast)(values, 0)
        return values

    def broadcast_object(self, value: T, source: int = 0) -> T:
        """What the rank `source` says; of no great size."""
        if self.size == 1:
            return value
        said = [value]
        self.guard()(dist.broadcast_object_list)(said, source, group=_cpu_group(), device=torch.device("cpu"))
        return said[0]

    def broadcast_array(self, array: Array, source: int = 0) -> Array:
        """The array that the rank `source` has, of any size."""
        if self.size == 1:
            return array
        facts = self.broadcast_object((array.shape, array.dtype), source)
        sent = np.require(array, requirements=["C", "W"]) if source == self.rank else np.empty(*facts)
        for piece in torch.split(torch.from_numpy(sent.reshape(-1).view(np.uint8)), CHUNK):
            if len(piece):
                self.guard()(dist.broadcast)(piece, source, group=_cpu_group())
        return sent

    @contextmanager
    def broadcast_file(self, path: Path | None) -> Iterator[Path | None]:
        """A file of the first rank's, where every rank can read it; None if there is none."""
        there = self.broadcast_object(path is not None and path.is_file())
        own = np.fromfile(path, np.uint8) if there and path and self.size > 1 else np.empty(0, np.uint8)
        content = self.broadcast_array(own) if there else own
        if self.first or not there:
            yield path if there else None
            return
        with TemporaryDirectory() as folder:
            copy = Path(folder) / "copy"
            content.tofile(copy)
            yield copy

    def broadcast_modules(self, *modules: nn.Module) -> None:
        """Give all ranks the first rank's parameters and buffers."""
        for module in modules if self.size > 1 else ():
            for tensor in module.state_dict().values():
                tensor.copy_(self.broadcast(tensor.detach().clone()))

    def require_same_weights(self, *modules: nn.Module) -> None:
        """Raise RunError if the networks of the ranks have drifted apart."""
        if self.size == 1:
            return
        flat = [tensor.detach().flatten() for module in modules for tensor in module.state_dict().values()]
        some = [values[:: max(1, len(values) // SAMPLED)].double().cpu().numpy() for values in flat]  # evenly spaced
        sample = np.concatenate(some)
        for rank, theirs in enumerate(self.all_gather_rows(sample[None])):
            if not np.allclose(theirs, sample, rtol=1e-3, atol=1e-6, equal_nan=True):
                raise RunError(
                    f"the networks of rank {rank} and rank {self.rank} have drifted apart; all machines need the same "
                    "versions of hyphash and torch. Go on from the latest checkpoint with --resume"
                )

    def parallel(self, model: nn.Module) -> nn.Module:
        """The model as a step runs it: after `backward` it has the gradients of the whole batch.

        DistributedDataParallel sends gradients while backward still runs, which a sum afterwards would not. Left to
        itself it would give their mean over the ranks; the gradient of one loss over all outputs is the sum. It also
        gives all ranks the buffers of the first before each step.
        """
        if self.size == 1:
            return model
        for module in model.modules():
            if isinstance(getattr(module, "peers", None), Peers):
                module.peers = self  # type: ignore[assignment]
        # Of a 1×1 convolution on channels-last photos; the memory is the same, and it says so once a rank.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        unused = isinstance(model, Network) and model.on_map and any(True for _ in model.backbone.tail.parameters())
        parallel = self.guard()(DistributedDataParallel)(model, find_unused_parameters=unused)
        parallel.register_comm_hook(None, lambda _, bucket: _summed(bucket.buffer()))
        return parallel

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Within, each rank draws its own random numbers, and batch normalisation looks at the whole batch."""
        if self.rank:  # the first draws what a rank alone would draw
            torch.manual_seed((torch.initial_seed() + self.rank * GOLDEN) % 2**63)
        with SharedNorm() if self.size > 1 else nullcontext():
            yield

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Around what ranks do together, or a decorator of it: a rank that is lost on the way is a RunError."""
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and "gloo" not in str(error).lower():  # it has no class of its own
                raise
            atexit.unregister(leave)  # it would wait for the one that is lost
            raise RunError(
                f"rank {self.rank} of {self.size} has lost another one, which ended or gave no answer for "
                f"{_timeout():g} s; see what it said, then go on from the latest checkpoint with --resume"
            ) from error


SINGLE = Ranks()


def join() -> Ranks:
    """The ranks that this process belongs to: those of its process group, or of torchrun; else it is on its own."""
    if not dist.is_available():
        return SINGLE
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) < 2 or not {"RANK", "MASTER_ADDR"} <= os.environ.keys():
            return SINGLE
        # Imported after the group is made, as torch's optimisers do, its compiler never lets go of the group, whose
        # threads then outlive the interpreter, and now and then abort it (torch 2.15).
        import_module("torch._dynamo")
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        try:
            dist.init_process_group(backend, timeout=timedelta(seconds=_timeout()))
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise RunError(f"the other ranks cannot be reached ({reason}); start all of them with torchrun") from error
        atexit.register(leave)
    return Ranks(dist.get_rank(), size) if (size := dist.get_world_size()) > 1 else SINGLE


def leave() -> None:
    """End the process group, if there is one; it happens by itself when the process ends."""
    if dist.is_initialized():
        dist.destroy_process_group()


def restarted() -> bool:
    """Whether torchrun has started these ranks again, because one of them was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def _part(n: int, rank: int, size: int) -> slice:
    """The rows of a batch of n that this one of `size` ranks has."""
    return slice(rank * n // size, (rank + 1) * n // size)


def _timeout() -> float:
    text = os.environ.get(TIMEOUT, str(DEFAULT_TIMEOUT))
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < math.inf:
            return seconds
    raise ConfigError(f"{TIMEOUT} must be a number of seconds, not {text!r}")


def _cpu_group() -> Any:
    """The group that sends what is not on a GPU."""
    return None if "gloo" in dist.get_backend_config() else _gloo_group(dist.group.WORLD)


@lru_cache(maxsize=1)
def _gloo_group(_: "dist.ProcessGroup | None") -> Any:
    """For a script that has started a process group between GPUs alone."""
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=_timeout()))


def _summed(gradients: Tensor) -> torch.futures.Future[Tensor]:
    """The sum of gradients over all ranks, on its way while backward goes on."""
    work = dist.all_reduce(gradients, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


class SharedNorm(TorchFunctionMode):
    """Within, every batch normalisation in training takes mean and variance from the whole batch of all ranks.

    It stands at the function rather than the layer, because networks bring layers of their own that call it: the
    network, its names and its saved form stay as they are.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func is batch_norm and given.pop("training", False):
            values, mean, var = args
            return shared_batch_norm(values, (mean, var), **given)
        return func(*args, **(kwargs or {}))


def shared_batch_norm(
    values: Tensor, running: tuple[Any, Any], *, weight: Any, bias: Any, momentum: float, eps: float
) -> Tensor:
    """(x − μ)/√(σ² + ε)·w + b with μ and σ² over the values of all ranks; a rank may have none."""
    running_mean, running_var = running
    if values.is_cuda:
        world = dist.group.WORLD, dist.get_world_size()
        return SyncBatchNorm.apply(values, weight, bias, *running, eps, momentum, *world)
    axes = [axis for axis in range(values.ndim) if axis != 1]
    shape = [-1 if axis == 1 else 1 for axis in range(values.ndim)]
    exact = values.to(torch.promote_types(values.dtype, torch.float32))
    count = _Sum.apply(exact.new_tensor(values.numel() // values.shape[1]))
    mean = _Sum.apply(exact.sum(axes)) / count
    centred: Tensor = exact - mean.view(shape)
    variance = _Sum.apply(centred.square().sum(axes)) / count
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean), momentum)
            running_var.lerp_((variance * count / (count - 1)).to(running_var), momentum)
    result: Tensor = centred * (variance + eps).rsqrt().view(shape)
    if weight is not None:
        result = result * weight.view(shape)
    if bias is not None:
        result = result + bias.view(shape)
    return result.to(values.dtype)


class _Sum(Function):
    """The sum over all ranks, there for the values and back for the gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:  # noqa: ARG004 (nothing to remember)
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004
        return _Sum.apply(gradients[0])
