"""Losses: what a network learns from. One file per family; `names()` lists them all.

A loss takes raw outputs (n, bits) and multi-hot labels (n, classes) and gives a scalar. It applies its own tanh or
normalisation. One that needs a head of its own names it in `head` and receives whatever that head returns in training.
"""

import inspect
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from hyphash.errors import ConfigError
from hyphash.losses.relevance import Relevance
from hyphash.networks import Head
from hyphash.registry import Registry

DISTILLATION = 0.1  # μ of nested codes
M = TypeVar("M", bound=nn.Module)
HeadOutputs = Tensor | tuple[Tensor, ...]  # what a head returns in training: outputs, and what else its loss needs


class Peers:
    """Those who share a batch with this process: nobody, unless training on several ranks puts them in this place.

    A head that looks at its batch as a whole has an attribute `peers` and asks there for the rest of it.
    """

    size = 1
    part = slice(None)  # this process's rows of the batch

    def all_gather(self, rows: Tensor) -> Tensor:
        """The rows of all, from what each has made of its part; gradients reach one's own."""
        return rows

    def broadcast(self, values: Tensor) -> Tensor:
        """The values of the first, for all: numbers drawn at random must be the same everywhere."""
        return values


NO_PEERS = Peers()
of_options = dataclass(kw_only=True, eq=False, repr=False)


@of_options
@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
class Loss(nn.Module):
    """What all losses share: facts for tables, training defaults of their authors, a hook for schedules.

    The options of a loss are fields with defaults; what it is made of follows from them in `__post_init__`. One with
    an `__init__` of its own takes `bits`, `classes` and its options there. The facts of ours stand in methods.toml.
    """

    bits: int = 0
    classes: int = 0

    family: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    complexity: ClassVar[str] = ""
    adapted: ClassVar[bool] = False
    recipe: ClassVar[dict[str, Any]] = {}
    published: ClassVar[dict[str, Any]] = {}
    frozen_recipe: ClassVar[dict[str, Any]] = {}
    head: ClassVar[str] = "default"  # a name in `heads`
    needs_map: ClassVar[bool] = False  # whether its head looks at the feature map, not at pooled features
    fitted: ClassVar[bool] = False  # no training: its head is fitted to features in one go (lsh, itq)
    two_views: ClassVar[bool] = False  # whether it takes the outputs of two views of each photo
    distributed: ClassVar[str] = ""  # why several ranks cannot train it together, if they cannot: draws of its own

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__init__" not in vars(cls):
            of_options(cls)

    def __post_init__(self) -> None:
        super().__init__()
        self.relevance: Relevance | None = None  # of the user's own, in place of labels that are shared

    def __call__(self, outputs: HeadOutputs, labels: Tensor) -> Tensor:
        """`forward` in float32 or better, whatever the network computes in: sums over pairs need the digits.

        Labels may be of any type; `forward` gets them as zeros and ones of the outputs' type.
        """
        outputs = in_float32(outputs)
        first = outputs[0] if isinstance(outputs, tuple) else outputs
        with torch.autocast(first.device.type, enabled=False):
            return super().__call__(outputs, labels.to(first.dtype))

    def set_progress(self, progress: float) -> None:
        """Told before every step how far training has come, from 0 to 1; for continuation schedules."""

    def related(self, labels: Tensor, others: Tensor | None = None) -> Tensor:
        """S: which photos are relevant to which, of the batch or to `others`, (n, m) booleans."""
        return self.gains(labels, others) > 0

    def gains(self, labels: Tensor, others: Tensor | None = None) -> Tensor:
        """How relevant photos are to each other, (n, m): how many labels they share, or as `relevance` says."""
        others = labels if others is None else others
        return labels @ others.T if self.relevance is None else self.relevance(labels, others)

    def anchors(self) -> Tensor | None:
        """One place in code space per class, (classes, bits), if the loss has any: proxies, centres."""
        return getattr(self, "proxies", None)


class Scheduled(Loss):
    """A loss that changes with the run's progress, which is saved and resumed with it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.progress = nn.Buffer(torch.tensor(0.0))

    def set_progress(self, progress: float) -> None:
        self.progress.fill_(progress)


class LossRegistry(Registry[type[Loss]]):
    """Losses by name; those that methods.toml knows get their facts from there."""

    facts = tomllib.loads((Path(__file__).parent / "methods.toml").read_text("utf-8"))

    def __call__(self, name: str) -> Callable[[type[Loss]], type[Loss]]:
        def register(loss: type[Loss]) -> type[Loss]:
            for fact, value in (self.facts["default"] | self.facts[name] if name in self.facts else {}).items():
                setattr(loss, fact, value)
            return Registry.__call__(self, name)(loss)

        return register


losses = LossRegistry("loss", package="hyphash.losses", entry_points="hyphash.losses")
names = losses.names
heads: Registry[type[Head]] = Registry("head", package="hyphash.losses", entry_points="hyphash.heads")
heads("default")(Head)  # the others stand beside the losses that bring them


class Nested(Loss):
    """One run whose first k outputs are the code of k bits, for several k (the nested hash layer, NHL).

    Σ_k w_k·L_k(z_:k) + μ/n·Σ_k ‖R_k − R_k′‖²/B² over n lengths k, k′ the next longer one, whose R has no gradient.
    w is 1/2 for the longest, 1/4 for the next, and so on; the shortest two weigh the same. L_k is any loss, with
    proxies, centres and memory of its own for each length; R_k are the rows of Z_k·Z_kᵀ, each of length 1: what photos
    are to each other by the first k outputs. Its authors' weights are equal, and add up to n.
    """

    def __init__(self, parts: Sequence[Loss], lengths: Sequence[int]) -> None:
        super().__init__()
        self.parts, self.lengths, longest = nn.ModuleList(parts), lengths, parts[-1]
        for name in ("head", "needs_map", "two_views", "distributed"):
            setattr(self, name, getattr(longest, name))

    def forward(self, outputs: HeadOutputs, labels: Tensor) -> Tensor:
        given = outputs if isinstance(outputs, tuple) else (outputs,)
        cut = len(given) if self.two_views else 1  # the others are not outputs
        prefixes = [(*(part[:, :bits] for part in given[:cut]), *given[cut:]) for bits in self.lengths]
        pairs = zip(self.parts, prefixes, strict=True)
        work = [partial(loss, prefix if isinstance(outputs, tuple) else prefix[0], labels) for loss, prefix in pairs]
        total, *longer = side_by_side(work, given[0].device)
        for value in longer:
            total = (total + value) / 2
        relations = [normalize(first @ first.T) for first, *_ in prefixes]
        apart = [(short - long.detach()).square().mean() for short, long in pairwise(relations)]
        return total + sum(apart) * (DISTILLATION / len(self.lengths))

    def anchors(self) -> Tensor | None:
        return cast(Loss, self.parts[-1]).anchors()


def side_by_side(work: Sequence[Callable[[], Tensor]], device: torch.device) -> list[Tensor]:
    """What each gives. On a GPU, which many small kernels leave idle, all run at once, each on a stream of its own."""
    if device.type != "cuda":
        return [one() for one in work]
    here, values = torch.cuda.current_stream(device), []
    for stream, one in zip(beside := streams(device, len(work)), work, strict=True):
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            values.append(one())
    for stream in beside:
        here.wait_stream(stream)
    return values


@cache
def streams(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(count)]  # type: ignore[no-untyped-call]


def parts_of(loss: nn.Module, kind: type[M]) -> list[M]:
    """All of a kind that a loss is made of: losses, itself included, or memories."""
    return [module for module in loss.modules() if isinstance(module, kind)]


def build(name: str, *, bits: int, classes: int, lengths: Sequence[int] = (), **options: Any) -> Loss:
    """The loss called `name`, or the class at `path/to/file.py:ClassName`; for codes of all these lengths, if any.

    >>> build("hyp2", bits=12, classes=38, beta=0.5).zeta
    0.33333333333333337
    """
    made: Any = find(name)
    known = option_defaults(made)
    for option in options:
        if option not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ConfigError(f"loss {name!r} has no option {option!r}; {takes}")
    if lengths and (made.fitted or made.head == "dqn"):
        raise ConfigError(f"{name} has no outputs whose first ones are a shorter code; leave out --lengths")
    parts: list[Loss] = [made(bits=length, classes=classes, **options) for length in lengths or [bits]]
    return Nested(parts, lengths) if lengths else parts[0]


def find(name: str) -> type[Loss]:
    """The class of the loss called `name`, or at `path/to/file.py:ClassName`."""
    found = losses.load(name)
    if not (isinstance(found, type) and issubclass(found, Loss)):
        raise ConfigError(f"loss {name!r} must be a class derived from hyphash.losses.Loss, not {found!r}")
    return found


def option_defaults(loss: type[nn.Module]) -> dict[str, Any]:
    """The loss's own keywords with their defaults, read off its constructor."""
    parameters = inspect.signature(loss).parameters
    return {name: p.default for name, p in parameters.items() if name not in ("bits", "classes")}


def in_float32(outputs: Any) -> Any:
    """Outputs of half precision, on their own or in a tuple, in full; others as they are."""
    if isinstance(outputs, tuple):
        return tuple(map(in_float32, outputs))
    return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs
