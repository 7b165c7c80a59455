"""Photos encoded in a second: `hyphash encode` against the usual loop, on the same device with the same cores.

    python speed/encoding.py RUN PHOTOS
    HYPHASH_THREADS=1 OMP_NUM_THREADS=1 python speed/encoding.py RUN PHOTOS --device onnx --workers 1     (one core)

PHOTOS is whatever `hyphash encode` takes; for the usual loop a folder. Ours also notes size, SHA-256 and look of every
photo, and writes Parquet. The usual loop is a DataLoader whose processes decode, scale and normalise, and a network in
float32 that takes 64 photos at once; its codes are kept in memory.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from hyphash.encoding import encode
from hyphash.hasher import Hasher, choose_device
from hyphash.machine import keep_memory
from hyphash.photos import Preprocessing


def main() -> None:
    arguments = parse()
    if not arguments.leave_memory:
        keep_memory()  # as the command does
    device = "cpu" if arguments.device == "onnx" else str(choose_device(arguments.device))
    name = torch.cuda.get_device_name() if device.startswith("cuda") else "CPU"
    print(f"{name}, torch {torch.__version__}, {os.cpu_count()} cores")
    mine = ours(arguments)
    print(f"hyphash encode    {mine:>10,.0f} photos a second")
    if Path(arguments.photos).is_dir():
        theirs = usual(arguments, device)
        print(f"the usual loop    {theirs:>10,.0f} photos a second; {mine / theirs:.2f} times as fast")


def ours(arguments: argparse.Namespace) -> float:
    """From the first shard to the last, so that the start of processes is left out."""
    with tempfile.TemporaryDirectory() as folder:
        photos, began, ended = 0, 0.0, 0.0
        for step in encode(
            arguments.run, arguments.photos, into=folder, device=arguments.device, workers=arguments.workers,
            per_shard=arguments.per_shard, address=arguments.address,
        ):  # fmt: skip
            ended = time.monotonic()
            if began:
                photos += step.photos
            else:
                began = ended
        return photos / (ended - began)


class Decoding(Dataset[Tensor]):
    """Photos as the usual loop reads them."""

    def __init__(self, folder: Path, preprocessing: Preprocessing) -> None:
        self.files = sorted(path for path in folder.rglob("*") if path.is_file())
        self.transform = transforms.Compose(
            [
                transforms.Resize((preprocessing.size, preprocessing.size)),
                transforms.ToTensor(),
                transforms.Normalize(preprocessing.mean, preprocessing.std),
            ]
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> Tensor:
        tensor: Tensor = self.transform(Image.open(self.files[i]).convert("RGB"))
        return tensor


def usual(arguments: argparse.Namespace, device: str) -> float:
    """From the first batch to the last."""
    hasher = Hasher.load(arguments.run, device=device)
    hasher.network.eval()
    cores = len(os.sched_getaffinity(0))
    workers = arguments.workers if arguments.workers and device == "cpu" else cores
    if device == "cpu":
        torch.set_num_threads(workers)
    loader = DataLoader(
        Decoding(Path(arguments.photos), hasher.spec.preprocessing), batch_size=64,
        num_workers=0 if workers == 1 else workers, pin_memory=device != "cpu",
    )  # fmt: skip
    codes, photos, began = [], 0, 0.0
    with torch.inference_mode():
        for images in loader:
            codes.append((hasher.network(images.to(device, non_blocking=True)) > 0).cpu().numpy())
            if began:
                photos += len(images)
            else:
                began = time.monotonic()
    assert len(np.concatenate(codes)) == photos + len(codes[0])
    return photos / (time.monotonic() - began)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("photos")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--address", default="local", help="where ours runs, as for `hyphash encode`")
    parser.add_argument("--workers", type=int, help="as for `hyphash encode`; on CPUs also for the usual loop")
    parser.add_argument("--per-shard", type=int, default=500)
    parser.add_argument("--leave-memory", action="store_true", help="as a program that does not call keep_memory()")
    return parser.parse_args()


if __name__ == "__main__":
    main()
