"""Benchmarks: the paper's tables and figures as data. Which runs, which protocol, which published figure.

>>> FLICKR25K = BENCHMARKS["flickr25k"]
>>> [method.key for method in FLICKR25K.methods_for(DATASETS["flickr25k"])][-3:]
['orthohash', 'dcilh', 'hyp2']
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

from hyphash.benchmarks.published import DATASETS, PAPER, TITLES, Dataset
from hyphash.errors import ConfigError

if TYPE_CHECKING:
    from hyphash.benchmarks.runs import Run, Weights

__all__ = ["BENCHMARKS", "DATASETS", "Benchmark", "Choices", "Dataset", "Method", "Planned", "plan"]

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


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One table or figure of the paper."""

    name: str
    about: str
    needs: str  # for a person who wonders whether to start it
    takes: str
    methods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by dataset, the first is the default
    longest: bool = False  # at 48 bits alone, and with one seed: a figure shows one run of a method
    watch: int = 0  # epochs between two looks at the queries
    alone: bool = False  # one run at a time, because its seconds are the result

    @property
    def datasets(self) -> tuple[str, ...]:
        return tuple(self.methods)

    def methods_for(self, dataset: Dataset) -> list[Method]:
        return [Method.of(key, dataset) for key in self.methods[dataset.name]]

    def bits_for(self, dataset: Dataset) -> tuple[int, ...]:
        return (48,) if self.longest else dataset.bits

    def seeds_for(self, method: Method) -> tuple[int, ...]:
        return method.seeds[:1] if self.longest else method.seeds

    def setting(self, dataset: str | None) -> Dataset:
        """The dataset called so, or the benchmark's first."""
        name = dataset or self.datasets[0]
        if name not in self.methods:
            raise ConfigError(f"{self.name} has no dataset {name!r}; it has {', '.join(self.datasets)}")
        return DATASETS[name]


def _benchmark(name: str, values: dict[str, Any]) -> Benchmark:
    """As paper.toml has it; without methods of its own it has those of a table."""
    values = dict(values)
    datasets, methods, table = values.pop("datasets", ()), values.pop("methods", ()), values.pop("table", "")
    rows = {dataset: tuple(methods or PAPER[table][dataset]) for dataset in datasets}
    return Benchmark(name=name, methods=rows, **values)


BENCHMARKS: Mapping[str, Benchmark] = {name: _benchmark(name, values) for name, values in PAPER["benchmarks"].items()}


def benchmark(name: str) -> Benchmark:
    if name not in BENCHMARKS:
        raise ConfigError(f"no benchmark is called {name!r}; there are {', '.join(BENCHMARKS)}")
    return BENCHMARKS[name]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What narrows or changes the runs of a benchmark. What is None or empty is as the benchmark has it."""

    only: tuple[str, ...] = ()
    bits: tuple[int, ...] = ()
    seeds: tuple[int, ...] = ()
    epochs: int | None = None
    backbone: str | None = None
    size: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # any others of Config


@dataclass(frozen=True)
class Planned:
    """A run, and the row of the table it is for."""

    method: Method
    run: "Run"


def plan(benchmark: Benchmark, dataset: Dataset, choices: Choices, weights: Mapping[str, "Weights"]) -> list[Planned]:
    """All runs of a benchmark on one dataset; `weights` by backbone, ImageNet's where none are named."""
    from hyphash.benchmarks.runs import Run, Weights
    from hyphash.config import Config, from_table
    from hyphash.training import resolve

    planned = []
    asked = product(_backbones(dataset, choices), _only(benchmark.methods_for(dataset), choices.only))
    for ((backbone, size), method), bits in product(asked, choices.bits or benchmark.bits_for(dataset)):
        for seed in choices.seeds or benchmark.seeds_for(method):
            given = {
                "dataset": dataset.name, "loss": method.loss, "loss_options": dict(method.options), "bits": bits,
                "backbone": backbone, "size": size, "mode": "fine-tune", "epochs": choices.epochs, "seed": seed,
                "top": dataset.top, "validation": 0.0,  # all training photos train: nothing is chosen by looking
                "batches": "cut",
            }  # fmt: skip
            config = resolve(from_table(Config, given | dict(choices.settings), benchmark.name))
            run = Run(config=config, weights=weights.get(backbone, Weights()), watch=benchmark.watch)
            planned.append(Planned(method, run))
    return planned


def _backbones(dataset: Dataset, choices: Choices) -> tuple[tuple[str, int | None], ...]:
    own = dict(dataset.backbones)
    if choices.backbone:
        return ((choices.backbone, choices.size or own.get(choices.backbone)),)
    return tuple((name, choices.size or size) for name, size in dataset.backbones)


def _only(methods: list[Method], only: tuple[str, ...]) -> list[Method]:
    for name in only:
        if not any(name in (method.key, method.loss) for method in methods):
            raise ConfigError(f"--only: no method {name!r} here; there are {', '.join(m.key for m in methods)}")
    return [method for method in methods if not only or method.key in only or method.loss in only]
