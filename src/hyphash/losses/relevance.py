"""Relevance of one's own: what stands for "shares a label" in losses and in evaluation.

A gain is a whole number, 0 for photos that have nothing to do with each other; without a relevance of one's own it is
the number of labels that two photos share.
"""

import csv
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hyphash.errors import LabelError

Labels = NDArray[np.uint8]


class Relevance(nn.Module):
    """A function of two tables of label rows, (n, classes) and (m, classes), that gives their gains, (n, m)."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, labels: Tensor, others: Tensor) -> Tensor:
        return self.function(labels, others).to(labels.dtype)

    def encode(self, queries: Labels, database: Labels) -> tuple[Labels, Labels]:
        """Rows of zeros and ones that share as many ones as the gain is; those of the database begin with its labels.

        A column for each label set of the database and each gain up to the highest.
        """
        sets, which = np.unique(database, axis=0, return_inverse=True)
        gains = self(*(torch.from_numpy(np.float32(rows)) for rows in (queries, sets))).numpy()
        levels = np.arange(1, gains.max(initial=0) + 1)
        asked = (gains[:, :, None] >= levels).reshape(len(queries), -1)
        offered = np.repeat(np.eye(len(sets), dtype=np.uint8), len(levels), axis=1)[which.reshape(-1)]
        return np.hstack([0 * queries, asked.astype(np.uint8)]), np.hstack([database, offered])


class ClassGrades(Relevance):
    """A table of how relevant classes are to each other, (classes, classes) whole numbers.

    A gain is the sum, over the labels of the photo that is found, of the best grade of a label of the query with it.
    """

    def __init__(self, grades: NDArray[np.int64]) -> None:
        super().__init__(self.gains)
        reached = [torch.from_numpy(grades >= level) for level in range(1, grades.max() + 1)]
        self.levels = nn.Buffer(torch.stack(reached).float(), persistent=False)

    def gains(self, labels: Tensor, others: Tensor) -> Tensor:
        return self.wanted(labels).sum(0) @ others.T

    def wanted(self, labels: Tensor) -> Tensor:
        """For each level, which labels have at least that grade with any of these, (levels, n, classes)."""
        return (labels @ self.levels.to(labels.dtype) > 0).to(labels.dtype)

    def encode(self, queries: Labels, database: Labels) -> tuple[Labels, Labels]:
        """As all do, with a column for each level and class: many photos have few classes."""
        asked = self.wanted(torch.from_numpy(np.float32(queries)).to(self.levels.device)).cpu().numpy()
        return np.hstack([*asked.astype(np.uint8)]), np.tile(database, len(asked))


def load_relevance(file: str, classes: Sequence[str]) -> Relevance | None:
    """The table in a CSV file: class names in the first row and column, whole numbers between; None without a file.

    `tree` is the one that the names of classes tell: how many levels animal/dog and animal/cat have in common, here 1.
    """
    if not file:
        return None
    if file == "tree":
        levels = [{*accumulate(name.split("/"), "{}/{}".format)} for name in classes]
        return ClassGrades(np.array([[min(len(one & other), 9) for other in levels] for one in levels]))
    try:
        with Path(file).open(newline="", encoding="utf-8-sig") as lines:
            (_, *columns), *rows = ([cell.strip() for cell in row] for row in csv.reader(lines) if row)
        table = {name: dict(zip(columns, map(int, cells), strict=True)) for name, *cells in rows}
        grades = np.array([[table[one][other] for other in classes] for one in classes])
    except OSError as error:
        raise LabelError(f"{file}: cannot be read ({error.strerror}); --relevance names a table of classes") from error
    except KeyError as error:
        raise LabelError(f"{file}: has no row or no column for the label {error}; give every label one") from error
    except ValueError as error:
        raise LabelError(f"{file}: {error}; give class names above and beside a table of whole numbers") from error
    if grades.min() < 0 or grades.max() > 9 or not grades.diagonal().all():
        raise LabelError(f"{file}: grades are 0 for unrelated classes to 9, and a class is relevant to itself")
    return ClassGrades(grades)
