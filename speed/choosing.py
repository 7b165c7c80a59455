"""How the settings of labels were chosen: by folds of the training photos alone, one setting varied at a time.

    python speed/choosing.py FLICKR25K WORK [layer stored bits few]

For each of five folds the label layer is trained on the other photos as `hyphash train` does it; what it says of the
fold, all five together, is measured as `hyphash evaluate` measures a database: label mAP, precision of the first 20 (of
4,000: the same share as 100 of 19,581) with one label and with two that 20 photos share, log loss, calibration error.
Then how scores are stored, and the penalty of labels that are fitted to codes which were learnt from the same photos:
over bits alone, and from a few examples over bits and scores. Queries and database are never read. Codes of the folds
are kept in the folder WORK; each line that is printed is added to WORK/choices.jsonl, and what stands there is not
measured again.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from hyphash.codes import Codes
from hyphash.config import Config
from hyphash.datasets import load_dataset
from hyphash.evaluation.labelling import average_precisions, calibration_error
from hyphash.labels import Calibration, fit_logistic, log_sigmoid, logit, sigmoid
from hyphash.searchers.local.scores import features_of
from hyphash.training import labels as layer
from hyphash.training.inputs import outputs_of
from hyphash.tuning import CrossValidation, Task

TOP, OTHERS = 20, 500
AS_IT_IS = {
    "batch": layer.BATCH, "rate": layer.RATE, "epochs": layer.EPOCHS, "folds": layer.FOLDS, "loss": "plain", "seed": 0,
}  # fmt: skip
LAYERS: list[dict[str, Any]] = [
    AS_IT_IS, {"seed": 1}, *({"batch": n} for n in (100, 400)), *({"rate": r} for r in (1e-3, 6e-3)),
    {"loss": "focal"}, *({"epochs": n} for n in (8, 32)), *({"folds": n} for n in (3, 10)),
]  # fmt: skip
RANGES = [
    {"below": below, "high": high}
    for below, high in ((2.0, 0.9995), (1.0, 0.9995), (4.0, 0.9995), (2.0, 0.999), (2.0, 1.0), (8.0, 1.0))
]
SHARES = (0, 1 / 8, 1 / 4, 1 / 2, 1)  # of the carriers
PENALTIES = [{"least": least, "share": share} for least, share in product((1, 3, 10, 30), SHARES)]
FEW = [{"examples": count, "penalty": penalty} for count, penalty in product((5, 10, 30), (1, 3, 10, 30, 100))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("questions", nargs="*", default=["layer", "stored", "bits", "few"])
    given = parser.parse_args()
    given.work.mkdir(exist_ok=True)
    folds, log = Folds(given.data, given.work), given.work / "choices.jsonl"
    for question, setting in ((name, one) for name in given.questions for one in QUESTIONS[name][0]):
        asked = json.dumps({"question": question, **setting})[:-1]
        if log.exists() and any(line.startswith(f'{asked}, "map"') for line in log.read_text().splitlines()):
            continue
        found = QUESTIONS[question][1](folds, **setting)
        line = json.dumps({"question": question, **setting, **{name: round(value, 4) for name, value in found.items()}})
        print(line, flush=True)
        with log.open("a") as file:
            file.write(line + "\n")


def focal(logits: Tensor, carried: Tensor, *, reduction: str) -> Tensor:
    """Asymmetric focal loss, γ = 1: a label that is not there counts by its probability."""
    entropy = binary_cross_entropy_with_logits(logits, carried, reduction=reduction)
    return entropy * torch.where(carried > 0, 1.0, logits.detach().sigmoid())


LOSSES = {"plain": binary_cross_entropy_with_logits, "focal": focal}


class Folds:
    """The training photos in five parts, and what others of them teach about each."""

    def __init__(self, data: Path, work: Path) -> None:
        splits = load_dataset(data, "flickr25k")
        self.config = Config(data=str(data), dataset="flickr25k", bits=48, mode="frozen", label_layer=False)
        self.validation, self.work = CrossValidation(Task(config=self.config, splits=splits)), work
        _, inputs = self.validation.read(self.config)
        self.features, self.labels = inputs.values, inputs.labels
        self.carried = inputs.labels.numpy() > 0
        self._logits: tuple[NDArray[np.float32], list[Calibration]] | None = None

    def parts(self) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Number, the photos that are learnt from, and those of the fold."""
        for number, fold in enumerate(self.validation.parts):
            yield number, np.setdiff1d(np.arange(len(self.carried)), fold), np.sort(fold)

    def codes(self, number: int) -> Codes:
        """All photos, by a hasher that has seen no photo of the fold."""
        file = self.work / f"fold-{number}.npz"
        if not file.exists():
            session = self.validation.session(self.config, number)
            outputs = outputs_of(session.hasher, session.inputs, torch.arange(len(self.carried)))
            np.savez(file, outputs=outputs)
        return Codes.from_outputs(np.load(file)["outputs"])

    def logits(self, **changes: Any) -> tuple[NDArray[np.float32], list[Calibration]]:
        """What label layers say of the folds that they have not seen, and what they mean by it."""
        setting, found, calibrations = AS_IT_IS | changes, np.empty(self.carried.shape, np.float32), []
        if setting == AS_IT_IS and self._logits:
            return self._logits
        layer.BATCH, layer.RATE, layer.EPOCHS, layer.FOLDS = (setting[name] for name in [*AS_IT_IS][:4])
        layer.binary_cross_entropy_with_logits = LOSSES[setting["loss"]]
        for _, rest, fold in self.parts():
            head, calibration = layer.fit_label_layer(self.features[rest], self.labels[rest], seed=setting["seed"])
            with torch.inference_mode():
                found[fold] = head(self.features[fold].float()).numpy()
            calibrations.append(calibration)
        if setting == AS_IT_IS:
            self._logits = found, calibrations
        return found, calibrations


def measured(logits: NDArray[Any], carried: NDArray[np.bool_]) -> dict[str, float]:
    """How good the logits of unknown photos are."""
    scores, together = log_sigmoid(logits), carried.T.astype(int) @ carried.astype(int)
    ones, twos = ([i] for i in range(len(together))), np.argwhere(np.tril(together >= TOP, -1)).tolist()

    def precision(wanted: list[int]) -> float:
        best = np.argsort(-scores[:, wanted].sum(1), kind="stable")[:TOP]
        return float(carried[best][:, wanted].all(1).mean())

    return {
        "map": float(np.nanmean(average_precisions(logits, carried))),
        "one": float(np.mean([*map(precision, ones)])),
        "two": float(np.mean([*map(precision, twos)])),
        "log_loss": float(-log_sigmoid(np.where(carried, logits, -logits)).mean()),
        "error": calibration_error(sigmoid(logits).ravel(), carried.ravel()),
    }


def layers(folds: Folds, /, **changes: Any) -> dict[str, float]:
    """Of the label layer; the first is as it is, the second the same with another seed: what chance alone changes."""
    return measured(folds.logits(**changes)[0], folds.carried)


def stored(folds: Folds, *, below: float, high: float) -> dict[str, float]:
    """From where to where logits are stored in 4 bits: so far below the prior, to the logit of this share of photos."""
    logits, calibrations = folds.logits(**AS_IT_IS)
    found = np.empty_like(logits)
    for (_, rest, fold), calibration in zip(folds.parts(), calibrations, strict=True):
        lowest = logit(calibration.priors) - below
        highest = np.maximum(np.quantile(logits[rest], high, axis=0), lowest + 4)  # of photos beside the fold
        packs = replace(calibration, lowest=lowest, highest=highest)
        found[fold] = packs.unpack(packs.pack(logits[fold]))
    return measured(found, folds.carried)


def bits(folds: Folds, *, least: float, share: float) -> dict[str, float]:
    """The penalty of labels that are fitted to bits."""
    found = np.empty(folds.carried.shape)
    for number, rest, fold in folds.parts():
        signs = folds.codes(number).signs()
        for label, has in enumerate(folds.carried[rest].T):
            fitted = fit_logistic(signs[rest], has[:, None], penalty=max(least, share * has.sum()))
            found[fold, label] = fitted.logits(signs[fold])[:, 0]
    return measured(found, folds.carried)


def few(folds: Folds, *, examples: int, penalty: float) -> dict[str, float]:
    """The penalty of labels that a few photos teach, over bits and scores of other labels: label mAP of the folds."""
    logits, calibrations = folds.logits(**AS_IT_IS)
    taught, rng = [], np.random.default_rng(0)
    for (number, rest, fold), calibration in zip(folds.parts(), calibrations, strict=True):
        values = features_of(folds.codes(number), calibration.pack(logits))
        for label, has in enumerate(folds.carried.T):
            others = np.arange(values.shape[1]) != 48 + label  # its own score is not known yet
            drawn = [(rest[has[rest]], examples), (rest[~has[rest]], OTHERS)]
            rows = np.concatenate([rng.choice(some, min(count, len(some)), False) for some, count in drawn])
            fitted = fit_logistic(values[rows][:, others], has[rows, None], penalty=penalty)
            taught.append(average_precisions(fitted.logits(values[fold][:, others]), has[fold, None])[0])
    return {"map": float(np.nanmean(taught))}


QUESTIONS: dict[str, tuple[list[dict[str, Any]], Callable[..., dict[str, float]]]] = {
    "layer": (LAYERS, layers), "stored": (RANGES, stored), "bits": (PENALTIES, bits), "few": (FEW, few),
}  # fmt: skip


if __name__ == "__main__":
    main()
