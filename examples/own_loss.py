"""A loss of one's own, beside HyP²: the same photos, features and settings.

python examples/own_loss.py photos/labels.csv example
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import Tensor
from torch.nn.functional import normalize

import hyphash
from hyphash.features import default_cache
from hyphash.losses import Loss, losses


@losses("contrast")
class Contrast(Loss):
    """Photos that share a label get near, others stay a margin apart."""

    margin: float = 0.2

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        near = normalize(outputs) @ normalize(outputs).T
        return torch.where(self.related(labels), 1 - near, (near - self.margin).relu()).mean()


if __name__ == "__main__":
    data, into = sys.argv[1], Path(sys.argv[2])
    splits, found = hyphash.load_dataset(data), {}
    for loss in ("contrast", "hyp2"):
        for bits in (12, 48):
            hasher = hyphash.train(data, into=into / f"{loss}-{bits}", loss=loss, bits=bits, mode="frozen", epochs=10)
            found[loss, bits] = hyphash.evaluate(hasher, splits, cache=default_cache()).mean_average_precision()
            print(f"{loss}, {bits} bits: mAP {found[loss, bits]:.3f}")
    figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
    axes.bar([f"{loss}\n{bits} bits" for loss, bits in found], list(found.values()), color=["C1", "C1", "C0", "C0"])
    axes.set_ylabel("mAP@1,000")
    figure.savefig(into / "own_loss.png", dpi=120)
