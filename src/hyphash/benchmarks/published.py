"""What the paper prints, as paper.toml has it: every figure of its tables, with its source. Nothing of it is ours."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal

Origin = Literal["own", "re-run", "quoted"]

SOURCE = "Xu et al., HyP² Loss, ACM MM 2022"


@dataclass(frozen=True)
class Row:
    """One row of a published table: a figure for every length of code."""

    values: tuple[float, ...]
    origin: Origin
    source: str = SOURCE  # where the authors quoted it from, where they did

    def at(self, lengths: tuple[int, ...], bits: int) -> float | None:
        return self.values[lengths.index(bits)] if bits in lengths else None


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset as the paper uses it: its sizes, its share η of irrelevant pairs, and how it is measured."""

    name: str
    title: str
    photos: int
    classes: int
    database: int
    train: int
    queries: int
    eta: float
    top: int  # N of mAP@N
    bits: tuple[int, ...]
    beta: float  # of HyP²
    beta_from: str
    backbones: tuple[tuple[str, int | None], ...]  # with the side of the photos, where it is not the backbone's own
    quoted_from: str  # the paper that its quoted figures are from
    checksums: Mapping[str, str] = field(default_factory=dict)  # of the parts that were published


def _dataset(name: str, values: dict[str, Any]) -> Dataset:
    backbones = tuple((backbone, size[0] if size else None) for backbone, *size in values["backbones"])
    return Dataset(name=name, **values | {"bits": tuple(values["bits"]), "backbones": backbones})


def _rows(table: Mapping[str, list[Any]], quoted_from: str) -> dict[str, Row]:
    return {
        method: Row(tuple(values), origin, quoted_from if origin == "quoted" else SOURCE)
        for method, (origin, *values) in table.items()
    }


PAPER: Mapping[str, Any] = tomllib.loads(files(__package__).joinpath("paper.toml").read_text(encoding="utf-8"))
DATASETS: Mapping[str, Dataset] = {name: _dataset(name, values) for name, values in PAPER["datasets"].items()}

# by dataset and method: mAP by Hamming ranking, and what each part of the loss is worth
MAP: Mapping[str, Mapping[str, Row]]
ABLATION: Mapping[str, Mapping[str, Row]]
MAP, ABLATION = (
    {name: _rows(table, DATASETS[name].quoted_from) for name, table in PAPER[kind].items()}
    for kind in ("map", "ablation")
)
SPREAD: Mapping[str, Mapping[str, Mapping[str, Row]]] = {  # by dataset, measure and method
    name: {measure: _rows(table, SOURCE) for measure, table in tables.items()}
    for name, tables in PAPER["spread"].items()
}
COMPLEXITY: Mapping[str, str] = PAPER["complexity"]  # by method, the order of growth of an epoch
TITLES: Mapping[str, str] = PAPER["titles"]  # by method, how tables call it
