"""Benchmarks: the paper's tables and figures as data. Which runs, which protocol, which published figure.

What the paper prints stands in paper.toml: every figure of its tables, with its source. Nothing of that is ours.

>>> FLICKR25K = BENCHMARKS["flickr25k"]
>>> [method.key for method in FLICKR25K.methods_for(DATASETS["flickr25k"])][-3:]
['orthohash', 'dcilh', 'hyp2']
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any, Literal, TypeVar

from hyphash.config import from_table
from hyphash.errors import ConfigError

T = TypeVar("T")
Origin = Literal["own", "re-run", "quoted"]

SOURCE = "Xu et al., HyP² Loss, ACM MM 2022"


@dataclass(frozen=True)
class Row:
    """One row of a published table: a figure for every length of code."""

    values: Mapping[int, float]  # by length
    origin: Origin
    source: str = SOURCE  # where the authors quoted it from, where they did


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
    backbones: dict[str, int]  # with the side of the photos; 0 for the backbone's own
    quoted_from: str  # the paper that its quoted figures are from
    checksums: Mapping[str, str] = field(default_factory=dict)  # of the parts that were published


def _rows(table: Mapping[str, list[Any]], dataset: str) -> dict[str, Row]:
    bits, quoted_from = DATASETS[dataset].bits, DATASETS[dataset].quoted_from
    return {
        method: Row(dict(zip(bits, values, strict=True)), origin, quoted_from if origin == "quoted" else SOURCE)
        for method, (origin, *values) in table.items()
    }


def read_toml(name: str) -> dict[str, Any]:
    """A file of this package."""
    return tomllib.loads(files(__package__).joinpath(name).read_text(encoding="utf-8"))


PAPER: Mapping[str, Any] = read_toml("paper.toml")


def _named(kind: type[T], tables: str) -> Mapping[str, T]:
    """Tables of paper.toml, by their names."""
    return {name: from_table(kind, {"name": name, **values}, "paper.toml") for name, values in PAPER[tables].items()}


DATASETS = _named(Dataset, "datasets")

# by dataset and method: mAP by Hamming ranking, and what each part of the loss is worth
MAP: Mapping[str, Mapping[str, Row]]
ABLATION: Mapping[str, Mapping[str, Row]]
MAP, ABLATION = ({name: _rows(table, name) for name, table in PAPER[kind].items()} for kind in ("map", "ablation"))
SPREAD: Mapping[str, Mapping[str, Mapping[str, Row]]] = {  # by dataset, measure and method
    name: {measure: _rows(table, name) for measure, table in tables.items()} for name, tables in PAPER["spread"].items()
}
COMPLEXITY: Mapping[str, str] = PAPER["complexity"]  # by method, the order of growth of an epoch
TITLES: Mapping[str, str] = PAPER["titles"]  # by method, how tables call it


# ── methods and recipes ──────────────────────────────────────────────────────────────────────────────────

Recipe = Literal["house", "published", "tuned"]
RECIPES: Mapping[Recipe, str] = {  # and how rows of tables are called that were trained so
    "house": "",
    "published": "as published",
    "tuned": "tuned on validation",
}

THREE_SEEDS = (0, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Method:
    """A row of a table: a loss with its options."""

    key: str  # what `--only` names and the published figures stand under
    title: str
    loss: str
    options: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)

    @classmethod
    def of(cls, key: str, dataset: Dataset) -> "Method":
        """The method as the paper runs it on this dataset. `hyp2` has the dataset's β, `hyp2-0.5` its own."""
        loss, _, beta = key.partition("-") if key.startswith("hyp2") else (key, "", "")
        value = float(beta) if beta else dataset.beta
        options = {"beta": value} if loss == "hyp2" else {}
        seeds = THREE_SEEDS if loss == "proxy" or options.get("beta") == dataset.beta else (0,)
        return cls(key=key, title=TITLES[key], loss=loss, options=options, seeds=seeds)

    def by(self, recipe: Recipe) -> "Method":
        """The method in a row of its own for a recipe other than ours."""
        if recipe == "house":
            return self
        return replace(self, key=f"{self.key}, {recipe}", title=f"{self.title}, {RECIPES[recipe]}")


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Settings of a method that were chosen on a validation part of the training photos."""

    study: str  # where every trial stands
    loss_options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


def read_tuned(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Tuned]]:
    """By mode and loss, as tuned.toml has them."""
    return {
        mode: {loss: from_table(Tuned, values, f"tuned.toml: {mode}.{loss}") for loss, values in methods.items()}
        for mode, methods in tables.items()
    }


TUNED = read_tuned(read_toml("tuned.toml"))


# ── benchmarks ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One table or figure of the paper."""

    name: str
    title: str  # of its page; with runs, after the dataset's
    about: str
    needs: str  # for a person who wonders whether to start it
    takes: str
    datasets: tuple[str, ...] = ()  # that have runs of it, the first is the default
    methods: tuple[str, ...] = ()
    table: str = ""  # of PAPER, whose methods it has where it names none
    longest: bool = False  # at 48 bits alone, and with one seed: a figure shows one run of a method
    watch: int = 0  # epochs between two looks at the queries
    alone: bool = False  # one run at a time, because its seconds are the result

    def methods_for(self, dataset: Dataset, only: tuple[str, ...] = ()) -> list[Method]:
        """All of them, or those that `only` names by their key or loss."""
        methods = [Method.of(key, dataset) for key in self.methods or PAPER[self.table][dataset.name]]
        for name in only:
            if not any(name in (method.key, method.loss) for method in methods):
                raise ConfigError(f"--only: no method {name!r} here; there are {', '.join(m.key for m in methods)}")
        return [method for method in methods if not only or method.key in only or method.loss in only]


BENCHMARKS = _named(Benchmark, "benchmarks")


def benchmark(name: str) -> Benchmark:
    if name not in BENCHMARKS:
        raise ConfigError(f"no benchmark is called {name!r}; there are {', '.join(BENCHMARKS)}")
    return BENCHMARKS[name]
