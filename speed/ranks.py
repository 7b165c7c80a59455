"""Training by several ranks against one, on the devices at hand: the same steps, and how long they take.

    torchrun --nproc-per-node 4 speed/ranks.py
    torchrun --nproc-per-node 2 speed/ranks.py --device cuda:0 --backend gloo      (two ranks on one GPU)

First the first rank trains alone, then all of them together, on the same drawn photos with the same batch. In float64
the losses and weights of both must agree but for rounding; with `--float32` the times are those of real runs.
"""

import argparse
import atexit
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import torch.distributed as dist
from PIL import Image
from torch import Tensor, nn

from hyphash.config import Config
from hyphash.datasets import Splits, load_dataset
from hyphash.networks import Network
from hyphash.training import fit, prepare
from hyphash.training.ranks import join, leave

CLOSE = 1e-6  # float64: as far as losses and weights may lie apart


class Trained:
    """What a run came to: its losses, the seconds of its epochs, the weights of network and loss."""

    def __init__(self, config: Config, splits: Splits, *, double: bool) -> None:
        config, hasher, loss, _ = prepare(config, splits)
        if double:
            in_double(hasher.network, loss)
        epochs = list(fit(hasher, loss, splits, config))
        self.losses = np.array([epoch.loss for epoch in epochs])
        self.scores = np.array([epoch.validation or 0.0 for epoch in epochs])
        seconds = [b - a for a, b in pairwise([0.0, *(epoch.seconds for epoch in epochs)])]
        self.epoch = median(seconds[1:] or seconds)
        self.weights = [*hasher.network.state_dict().values(), *loss.state_dict().values()]


def in_double(network: Network, loss: nn.Module) -> None:
    network.double()
    loss.double()
    for module in (network.backbone.body, network.head):
        module.register_forward_pre_hook(lambda _, given: (given[0].double(),))


def main() -> None:
    arguments = parse()
    kinds = [(loss, mode) for mode in arguments.modes.split(",") for loss in arguments.losses.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        draw_photos(Path(folder), arguments.photos, arguments.size)
        splits = load_dataset(f"{folder}/labels.csv")
        configs = [
            Config(
                data=f"{folder}/labels.csv", loss=loss, backbone=arguments.backbone, weights="none", mode=mode,
                size=arguments.size, bits=arguments.bits, batch=arguments.batch, epochs=arguments.epochs, dropout=0.0,
                device=arguments.device, precision="auto" if arguments.float32 else "float32",
            )
            for loss, mode in kinds
        ]  # fmt: skip
        alone: list[Trained] = []
        if os.environ.get("RANK", "0") == "0":
            with on_its_own():
                alone = [Trained(config, splits, double=not arguments.float32) for config in configs]
        begin(arguments.backend)
        for number, config in enumerate(configs):
            together = Trained(config, splits, double=not arguments.float32)
            if alone:
                tell(f"{config.loss}, {config.mode}", alone[number], together)


def begin(backend: str | None) -> None:
    """Start the process group, as `hyphash train` does by itself where no backend is named."""
    if backend:
        dist.init_process_group(backend)
        atexit.register(leave)
    if join().size < 2:
        raise SystemExit("start this with torchrun --nproc-per-node 2 or more")


def tell(name: str, alone: Trained, together: Trained) -> None:
    apart = max(gap(a, b) for a, b in zip(alone.weights, together.weights, strict=True))
    losses = float(np.abs(alone.losses - together.losses).max())
    scores = float(np.abs(alone.scores - together.scores).max())
    verdict = "equal" if max(apart, losses) < CLOSE else "APART"
    size = dist.get_world_size()
    print(
        f"{name}: losses differ by {losses:.1e}, weights by {apart:.1e}, validation by {scores:.1e}: {verdict}; "
        f"an epoch takes one rank {alone.epoch:.3f} s, {size} ranks {together.epoch:.3f} s",
        flush=True,
    )


def gap(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max()) if a.numel() else 0.0


@contextmanager
def on_its_own() -> Iterator[None]:
    """Within, this process does not know that torchrun has started others."""
    size = os.environ.pop("WORLD_SIZE", None)
    try:
        yield
    finally:
        if size is not None:
            os.environ["WORLD_SIZE"] = size


def draw_photos(folder: Path, n: int, size: int) -> None:
    """Photos with some of eight stripes, each of its own colour; the same on every rank."""
    rng = np.random.default_rng(0)
    carried = rng.random((n, 8)) < 0.3
    carried[np.arange(n), rng.integers(8, size=n)] = True
    colours = rng.integers(256, size=(8, 3))
    lines = ["path,labels\n"]
    for i, stripes in enumerate(carried):
        pixels = rng.integers(256, size=(size, size, 3)).astype(np.uint8)
        for stripe in np.flatnonzero(stripes):
            pixels[stripe * size // 8 : (stripe + 1) * size // 8] = colours[stripe]
        Image.fromarray(pixels).save(folder / f"{i}.png", compress_level=1)
        lines.append(f"{i}.png,{' '.join(f's{stripe}' for stripe in np.flatnonzero(stripes))}\n")
    (folder / "labels.csv").write_text("".join(lines), encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--losses", default="hyp2")
    parser.add_argument("--modes", default="frozen,fine-tune")
    parser.add_argument("--backbone", default="resnet18", help="resnet18 has batch normalisation")
    parser.add_argument("--size", type=int, default=64, help="pixels")
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--batch", type=int, default=100, help="of all ranks together")
    parser.add_argument("--photos", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backend", help="nccl or gloo; chosen by hyphash where nothing is said")
    parser.add_argument("--float32", action="store_true", help="as real runs do, in half precision on a GPU")
    return parser.parse_args()


if __name__ == "__main__":
    main()
