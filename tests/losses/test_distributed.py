"""Several ranks take the steps of one: loss, gradients and weights of every loss, over real processes."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close

from hyphash.config import Config
from hyphash.losses import build, heads, losses, names, parts_of
from hyphash.losses.memory import Memory
from hyphash.training.inputs import ALL
from hyphash.training.ranks import SINGLE, Ranks, join, leave
from hyphash.training.steps import build_optimizer, build_step

FEATURES, CLASSES = 24, 7
BITS = {"dqn": 2}  # of many codewords some coincide at first, and which of those then learns is up to rounding
SAFE = [name for name in names() if not losses[name].fitted and not losses[name].distributed]
BATCHES = (16, 11, 2)  # of 3 ranks, one gets nothing of the last
CONFIG = Config(
    batch=16, optimizer="sgd", rate=0.05, loss_rate=0.02, momentum=0.9, weight_decay=0.01, clip=0.0, device="cpu",
    precision="float32", epochs=1,
)  # fmt: skip


@dataclass(frozen=True)
class Inputs:
    """Features or feature maps in float64."""

    values: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def batch(self, rows: Tensor, *, augment: bool, part: slice = ALL) -> Tensor:  # noqa: ARG002
        return self.values[rows[part]]


def draw_inputs(*, maps: bool) -> Inputs:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(32, FEATURES, *((3, 3) if maps else ()), generator=generator, dtype=torch.float64)
    chosen = torch.randint(0, CLASSES, (32, 3), generator=generator)
    return Inputs(values, torch.zeros(32, CLASSES, dtype=torch.float64).scatter_(1, chosen, 1))


def take_steps(name: str, ranks: Ranks) -> dict[str, Tensor]:
    """A few steps of batches of several sizes: their losses, their gradients, and what they lead to."""
    torch.manual_seed(0)
    bits = BITS.get(name, 12)
    loss = build(name, bits=bits, classes=CLASSES).double()
    head = heads[loss.head](features=FEATURES, bits=bits, classes=CLASSES, hidden=10, dropout=0.0).double()
    optimizer, inputs = build_optimizer(head, loss, CONFIG), draw_inputs(maps=loss.needs_map)
    for memory in parts_of(loss, Memory):
        memory.open(torch.arange(32), inputs.labels)
    step = build_step(head, loss, optimizer, inputs, CONFIG, ranks)
    result = {}
    for i, size in enumerate(BATCHES):
        torch.manual_seed(i)
        loss.set_progress(i / 10)
        rows = torch.randperm(32, generator=torch.Generator().manual_seed(i))[:size]
        result[f"{i} loss"] = step(rows)
        for part, module in (("head", head), ("loss", loss)):
            result |= {f"{i} grad {part} {n}": p.grad.clone() for n, p in module.named_parameters()}
            result |= {f"{i} {part} {n}": t.clone() for n, t in module.state_dict().items()}
    return result


def work(folder: Path, ports: list[str]) -> None:
    """What each process does: all losses, one after the other, as one of three ranks and then as one of two."""
    for size, port in zip((3, 2), ports, strict=True):
        os.environ |= {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        if int(os.environ["RANK"]) < size:
            ranks = join()
            for name in SAFE:
                save_file(take_steps(name, ranks), folder / f"{name} {ranks.rank} of {size}")
            leave()


def free_ports(count: int) -> list[str]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for free in sockets:
            free.bind(("127.0.0.1", 0))
        return [str(free.getsockname()[1]) for free in sockets]


@pytest.fixture(scope="module")
def worked(tmp_path_factory):
    """The folder where ranks have left what they found, each a process."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-W", "error", __file__, folder, *free_ports(2)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    processes = [subprocess.Popen(command, env=env | {"RANK": str(rank)}) for rank in range(3)]
    try:
        assert [process.wait(timeout=200) for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            process.kill()
    return folder


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", SAFE)
def test_several_ranks_take_the_steps_of_one(name, size, worked):
    expected = take_steps(name, SINGLE)
    assert any(key.startswith("0 grad head") for key in expected)
    for rank in range(size):
        found = load_file(worked / f"{name} {rank} of {size}")
        assert found.keys() == expected.keys()
        for key, tensor in expected.items():
            assert_close(found[key], tensor, rtol=1e-6, atol=1e-9, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", SAFE)
def test_ranks_stay_in_step_to_the_last_bit(name, worked):
    first, *others = (load_file(worked / f"{name} {rank} of 3") for rank in range(3))
    for other in others:
        for key, tensor in first.items():
            assert "grad" not in key or torch.equal(tensor, other[key]), key


def test_every_trained_method_says_it_is_safe():
    assert set(SAFE) == {name for name in names() if not losses[name].fitted}


if __name__ == "__main__":
    torch.set_num_threads(1)
    work(Path(sys.argv[1]), sys.argv[2:])
