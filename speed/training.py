"""An epoch of fine-tuning: ours against the straightforward loop, in one process, on one device.

    python speed/training.py --data FLICKR25K --weights alexnet_conv.pth

Ours is `hyphash.training.fit` as it is: photos decoded once and kept on the device, bfloat16, steps recorded as CUDA
graphs. The straightforward loop is what deep-hashing repositories do: a DataLoader whose worker processes decode,
resize, mirror and normalise every photo in every epoch, float32, kernels launched one by one. Both train the same
network with the same loss, batch and optimiser.
"""

import argparse
import io
import os
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from hyphash.config import Config
from hyphash.datasets import Split, Splits, load_dataset
from hyphash.hasher import Hasher
from hyphash.losses import Loss, in_float32
from hyphash.photos import Preprocessing
from hyphash.training import fit, prepare
from hyphash.training.inputs import Inputs, load_inputs
from hyphash.training.steps import build_optimizer

TARGET, GOAL = 5.0, 10.0


def main() -> None:
    arguments = parse()
    splits = load_dataset(arguments.data, "flickr25k")
    splits = replace(splits, train=splits.train.take(slice(arguments.photos)))
    config = Config(
        data=arguments.data, loss=arguments.loss, bits=arguments.bits, backbone=arguments.backbone, mode="fine-tune",
        weights=arguments.weights, batch=arguments.batch, epochs=arguments.epochs, validation=0.0,
    )  # fmt: skip
    device = prepare(config, splits)[1].device
    print(f"{device_name(device)}, torch {torch.__version__}, {os.cpu_count()} cores")
    print(f"{arguments.backbone}, {arguments.loss}, {len(splits.train):,} photos, batch {arguments.batch}")
    ours = our_epochs(config, splits)
    share = outside_the_network(config, splits)
    theirs = their_epochs(config, splits, workers=arguments.workers, epochs=arguments.naive_epochs)
    print(f"\n{'':<44}{'hyphash':>12}{'usual loop':>12}")
    for title, mine, other in (
        ("seconds an epoch (median, first left out)", ours.epoch, theirs.epoch),
        ("photos a second", len(splits.train) / ours.epoch, len(splits.train) / theirs.epoch),
        ("seconds before the first epoch", ours.before, theirs.before),
        (f"whole run of {arguments.epochs} epochs, seconds", ours.whole(arguments), theirs.whole(arguments)),
        ("MiB of the GPU's memory at the peak", ours.memory, theirs.memory),
    ):
        print(f"{title:<44}{mine:>12,.3f}{other:>12,.3f}")
    print(f"{'share of a step outside the network':<44}{share:>12.0%}")
    for name, ratio in (
        ("an epoch", theirs.epoch / ours.epoch),
        ("the whole run", theirs.whole(arguments) / ours.whole(arguments)),
    ):
        verdict = "met" if ratio >= TARGET else "MISSED"
        goal = "reached" if ratio >= GOAL else "not reached"
        print(f"{name}: {ratio:.1f} times faster; at least {TARGET:g}: {verdict}, goal {GOAL:g}: {goal}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of Flickr-25k")
    parser.add_argument("--weights", default="none", help="weights of the backbone")
    parser.add_argument("--backbone", default="alexnet")
    parser.add_argument("--loss", default="hyp2")
    parser.add_argument("--bits", type=int, default=48)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=30, help="of ours")
    parser.add_argument("--naive-epochs", type=int, default=4, help="of the straightforward loop")
    parser.add_argument("--workers", type=int, default=8, help="processes that decode for the straightforward loop")
    parser.add_argument("--photos", type=int, help="fewer photos, for a quick try")
    return parser.parse_args()


class Measured:
    """Seconds of each epoch and before the first, and the memory of the device."""

    def __init__(self, before: float, epochs: list[float], memory: float) -> None:
        self.before, self.memory = before, memory
        self.epoch = median(epochs[1:] or epochs)

    def whole(self, arguments: argparse.Namespace) -> float:
        return self.before + self.epoch * int(arguments.epochs)


def our_epochs(config: Config, splits: Splits) -> Measured:
    reset_memory()
    start = time.monotonic()
    config, hasher, loss, _ = prepare(config, splits)
    seconds, began = [0.0], start
    for epoch in fit(hasher, loss, splits, config):
        if len(seconds) == 1:
            began = time.monotonic() - epoch.seconds
        seconds.append(epoch.seconds)
    return Measured(began - start, [b - a for a, b in pairwise(seconds)], memory())


# ── the straightforward loop ─────────────────────────────────────────────────────────────────────────────


class Decoding(Dataset[tuple[Tensor, Tensor]]):
    """Photos as repositories read them: decoded, squashed, mirrored and normalised whenever they are asked for."""

    def __init__(self, photos: Split, preprocessing: Preprocessing) -> None:
        self.photos = photos
        self.labels = torch.from_numpy(photos.labels).float()
        self.transform = transforms.Compose(
            [
                transforms.Resize((preprocessing.size, preprocessing.size)),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(preprocessing.mean, preprocessing.std),
            ]
        )

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        image = Image.open(io.BytesIO(self.photos.read(i))).convert("RGB")
        return self.transform(image), self.labels[i]


def their_epochs(config: Config, splits: Splits, *, workers: int, epochs: int) -> Measured:
    reset_memory()
    start = time.monotonic()
    config, hasher, loss, _ = prepare(replace(config, precision="float32"), splits)
    photos = Decoding(splits.train, hasher.spec.preprocessing)
    loader = DataLoader(
        photos, batch_size=config.batch, shuffle=True, num_workers=workers, pin_memory=hasher.device.type == "cuda"
    )
    network = hasher.network.train()
    optimizer = torch.optim.SGD(
        [
            {"params": list(network.parameters()), "lr": config.rate},
            {"params": list(loss.parameters()), "lr": config.loss_rate},
        ],
        momentum=config.momentum or 0.0,
        weight_decay=config.weight_decay or 0.0,
    )
    before, seconds = time.monotonic() - start, []
    for _ in range(epochs):
        began = time.monotonic()
        total = 0.0
        for images, labels in loader:
            outputs = network(images.to(hasher.device, non_blocking=True))
            value = loss(outputs, labels.to(hasher.device, non_blocking=True))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            total += value.item()
        seconds.append(time.monotonic() - began)
    return Measured(before, seconds, memory())


# ── where the time of a step goes ────────────────────────────────────────────────────────────────────────


def outside_the_network(config: Config, splits: Splits) -> float:
    """The share of a step that is not the network's own forward and backward pass: photos, loss, optimiser.

    Both are timed as recorded graphs on a GPU, so that launches count for neither.
    """
    config, hasher, loss, _ = prepare(config, splits)
    inputs, _ = load_inputs(hasher, splits.train, frozen=False, cache=Path(), progress=None)
    assert inputs is not None
    rows = torch.arange(min(config.batch or 1, len(inputs)), device=hasher.device)
    whole = timed(step_of(hasher, loss, inputs, rows, config), hasher.device)
    network = timed(network_pass(hasher, inputs.batch(rows, augment="flip")), hasher.device)
    return max(0.0, 1 - network / whole)


def step_of(hasher: Hasher, loss: Loss, inputs: Inputs, rows: Tensor, config: Config) -> Callable[[], None]:
    optimizer = build_optimizer(hasher.network, loss, config)

    def step() -> None:
        with torch.autocast(hasher.device.type, torch.bfloat16):
            outputs = hasher.network(inputs.batch(rows, augment="flip"))
        optimizer.zero_grad(set_to_none=True)
        loss(in_float32(outputs), inputs.labels[rows]).backward()
        optimizer.step()

    return step


def network_pass(hasher: Hasher, images: Tensor) -> Callable[[], None]:
    def work() -> None:
        with torch.autocast(hasher.device.type, torch.bfloat16):
            outputs: Any = hasher.network(images)
        hasher.network.zero_grad(set_to_none=True)
        outputs.float().sum().backward()

    return work


def timed(work: Callable[[], None], device: torch.device, repeats: int = 50) -> float:
    """Seconds of `work`, on a GPU replayed as a graph."""
    if device.type != "cuda":
        work()
        start = time.monotonic()
        work()
        return time.monotonic() - start
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    graph.replay()
    torch.cuda.synchronize()
    start = time.monotonic()
    for _ in range(repeats):
        graph.replay()
    torch.cuda.synchronize()
    return (time.monotonic() - start) / repeats


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def reset_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def memory() -> float:
    return torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0


if __name__ == "__main__":
    main()
