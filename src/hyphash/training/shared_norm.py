"""Batch normalisation over a batch that several ranks share: mean and variance of the whole, not of a rank's part."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import batch_norm
from torch.nn.modules._functions import SyncBatchNorm
from torch.overrides import TorchFunctionMode


class SharedNorm(TorchFunctionMode):
    """Within, every batch normalisation in training takes its statistics from all ranks.

    It stands at the function rather than the layer, because networks bring layers of their own that call it: the
    network, its names and its saved form stay as they are.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func is batch_norm and given.pop("training", False):
            values, mean, var = args
            return shared_batch_norm(values, mean, var, **given, size=self.size)
        return func(*args, **(kwargs or {}))


def shared_batch_norm(
    values: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
    size: int,
) -> Tensor:
    """(x − μ)/√(σ² + ε)·w + b with μ and σ² over the values of all ranks; a rank may have none."""
    if values.is_cuda:
        means, world = (running_mean, running_var), dist.group.WORLD
        normal: Tensor = SyncBatchNorm.apply(values, weight, bias, *means, eps, momentum, world, size)
        return normal
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
        total: Tensor = _Sum.apply(gradients[0])
        return total
