"""Nested codes: one run whose first k outputs are the code of k bits, for several k (the nested hash layer, NHL)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import normalize

from hyphash.errors import ConfigError
from hyphash.losses import HeadOutputs, Loss, build

DISTILLATION = 0.1  # μ


class Nested(Loss):
    """mean_k L_k(z_:k) + μ·‖R_k − R_k′‖²/B² over the lengths k, k′ the next longer one, whose R has no gradient.

    L_k is any loss, with proxies, centres and memory of its own for each length; R_k are the rows of Z_k·Z_kᵀ, each of
    length 1: what photos are to each other by the first k outputs. Its authors add the lengths up, which is the same to
    their Adam; SGD would learn several times as fast as with one length.
    """

    def __init__(self, losses: Sequence[Loss], lengths: Sequence[int]) -> None:
        super().__init__()
        self.parts, self.lengths, longest = nn.ModuleList(losses), lengths, losses[-1]
        for name in ("head", "needs_map", "two_views", "distributed", "order_matters"):
            setattr(self, name, getattr(longest, name))

    def forward(self, outputs: HeadOutputs, labels: Tensor) -> Tensor:
        given = outputs if isinstance(outputs, tuple) else (outputs,)
        cut = len(given) if self.two_views else 1  # the others are not outputs
        total, longer = given[0].new_zeros(()), None
        for loss, bits in reversed(list(zip(self.parts, self.lengths, strict=True))):
            prefix = (*(part[:, :bits] for part in given[:cut]), *given[cut:])
            total = total + loss(prefix if isinstance(outputs, tuple) else prefix[0], labels)
            relations = normalize(prefix[0] @ prefix[0].T)
            if longer is not None:
                total = total + DISTILLATION * (relations - longer).square().mean()
            longer = relations.detach()
        return total / len(self.lengths)

    def anchors(self) -> Tensor | None:
        longest = self.parts[-1]
        assert isinstance(longest, Loss)
        return longest.anchors()


def build_nested(name: str, *, lengths: Sequence[int], classes: int, **options: Any) -> Nested:
    """The loss called `name` for codes of all these lengths, the longest last."""
    losses = [build(name, bits=bits, classes=classes, **options) for bits in lengths]
    if losses[-1].fitted or losses[-1].head == "dqn":
        raise ConfigError(f"{name} has no outputs whose first ones are a shorter code; leave out --lengths")
    return Nested(losses, lengths)
