"""Codes as a by-product of classification."""

from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from hyphash.losses import FROZEN_ADAM, Loss, losses
from hyphash.losses.pairs import SGD


@losses("dlbhc")
class DLBHC(Loss):
    """K sigmoid units between the network and a C-way classifier; a bit is a unit > .5, so an output > 0.

    BCE of the classifier's σ(W·σ(z) + b) with the labels. Its authors classify one label a photo with a
    softmax; one logistic classifier a label is our adaptation.
    """

    family = "classifiers"
    paper = "Lin et al., Deep Learning of Binary Hash Codes for Fast Image Retrieval, CVPR Workshops 2015"
    complexity = "O(MC)"
    adapted = True
    recipe = {**SGD, "rate": 1e-2, "loss_rate": 1e-1, "batch": 100}
    frozen_recipe = FROZEN_ADAM

    def __init__(self, *, bits: int, classes: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(bits, classes)

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(self.classifier(outputs.sigmoid()), labels)

    def anchors(self) -> Tensor:
        return self.classifier.weight  # the units that speak for a class, and those that speak against it
