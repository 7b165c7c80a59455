"""Benchmarks: the paper's tables and figures as data. Which runs, which protocol, which published figure.

>>> FLICKR25K = BENCHMARKS["flickr25k"]
>>> [method.key for method in FLICKR25K.methods_for(DATASETS["flickr25k"])][-3:]
['orthohash', 'dcilh', 'hyp2']
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hyphash.benchmarks.published import ABLATION, DATASETS, MAP, SPREAD, TITLES, Dataset
from hyphash.errors import ConfigError

if TYPE_CHECKING:
    from hyphash.benchmarks.runs import Run, Weights

__all__ = ["BENCHMARKS", "DATASETS", "Benchmark", "Choices", "Dataset", "Method", "Planned", "plan"]

THREE_SEEDS = (0, 1, 2)
CONVERGENCE = ("dhn", "idhn", "proxy-anchor", "orthohash", "hyp2")
TSNE = ("dhn", "idhn", "proxy-anchor", "pair", "proxy", "hyp2")
GALLERY = ("proxy-anchor", "idhn", "hyp2")


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


def _table(name: str, needs: str, takes: str) -> Benchmark:
    dataset = DATASETS[name]
    lengths = ", ".join(map(str, dataset.bits))
    return Benchmark(
        name=name,
        about=f"the {dataset.title} table: mAP@{dataset.top:,} of {len(MAP[name])} methods at {lengths} bits",
        needs=needs,
        takes=takes,
        methods={name: tuple(MAP[name])},
    )


FLICKR = "Flickr-25k and AlexNet weights"
NUSWIDE = "NUS-WIDE and AlexNet weights"
VOC = "PASCAL VOC, Inception-v3 and GoogLeNet weights"
BOTH = ("flickr25k", "nuswide")

BENCHMARKS: Mapping[str, Benchmark] = MappingProxyType(
    {
        benchmark.name: benchmark
        for benchmark in (
            _table("flickr25k", FLICKR, "52 runs, half a minute each on an H200"),
            _table("nuswide", NUSWIDE, "52 runs, minutes each on an H200"),
            _table("voc2007", VOC, "88 runs, ten minutes or more each on an H200"),
            _table("voc2012", VOC, "88 runs, ten minutes or more each on an H200"),
            Benchmark(
                name="ablation",
                about="what each part of the loss is worth: pair, proxy, proxy + pair, HyP² with β from .5 to 1.25",
                needs=FLICKR,
                takes="44 runs, 12 of them shared with flickr25k",
                methods={name: tuple(rows) for name, rows in ABLATION.items()},
            ),
            Benchmark(
                name="spread",
                about="d_intra and d_inter: how tight label sets lie, and how far from unrelated ones",
                needs=FLICKR,
                takes="nothing beyond the runs of ablation",
                methods={name: tuple(rows["d_intra"]) for name, rows in SPREAD.items()},
            ),
            Benchmark(
                name="complexity",
                about="the cost of every loss: published order, and the time of a step measured here",
                needs="nothing",
                takes="a minute",
            ),
            Benchmark(
                name="datasets",
                about="sizes and η of the four datasets, published and found",
                needs="the label files of the datasets, not the photos",
                takes="seconds",
            ),
            Benchmark(
                name="convergence",
                about="mAP over the seconds of training, 48 bits, five methods",
                needs=FLICKR,
                takes="5 runs, one at a time",
                methods=dict.fromkeys(BOTH, CONVERGENCE),
                longest=True,
                watch=3,
                alone=True,
            ),
            Benchmark(
                name="topn",
                about="precision of the first N photos, all methods and lengths",
                needs=FLICKR,
                takes="nothing beyond the runs of flickr25k",
                methods={name: tuple(MAP[name]) for name in BOTH},
            ),
            Benchmark(
                name="tsne",
                about="where photos lie, coloured by all their labels, six methods at 48 bits",
                needs=f"{FLICKR}; the paper shows VOC-2007: --dataset voc2007",
                takes="nothing beyond the runs of flickr25k and ablation; a minute to draw",
                methods=dict.fromkeys(("flickr25k", "voc2007"), TSNE),
                longest=True,
            ),
            Benchmark(
                name="gallery",
                about="the first ten photos for some queries, three methods at 48 bits, as in the paper's first figure",
                needs=f"{FLICKR}, the photos also to draw it",
                takes="nothing beyond the runs of flickr25k",
                methods=dict.fromkeys(BOTH, GALLERY),
                longest=True,
            ),
            Benchmark(
                name="theorem",
                about="Theorem 1: Ω against 2^C; Theorem 2: where the loss puts a photo with two or three labels",
                needs="nothing",
                takes="a minute",
            ),
        )
    }
)


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
    return list(_plan(benchmark, dataset, choices, weights))


def _plan(
    benchmark: Benchmark, dataset: Dataset, choices: Choices, weights: Mapping[str, "Weights"]
) -> Iterator[Planned]:
    from hyphash.benchmarks.runs import Run, Weights
    from hyphash.config import Config, from_table
    from hyphash.training import resolve

    methods = _only(benchmark.methods_for(dataset), choices.only)
    for backbone, size in _backbones(dataset, choices):
        for method in methods:
            for bits in choices.bits or benchmark.bits_for(dataset):
                for seed in choices.seeds or benchmark.seeds_for(method):
                    given = {
                        "dataset": dataset.name,
                        "loss": method.loss,
                        "loss_options": dict(method.options),
                        "bits": bits,
                        "backbone": backbone,
                        "size": size,
                        "mode": "fine-tune",
                        "validation": 0.0,  # all training photos train: nothing is chosen by looking
                        "epochs": choices.epochs,
                        "seed": seed,
                        "top": dataset.top,
                    }
                    config = resolve(from_table(Config, given | dict(choices.settings), benchmark.name))
                    run = Run(config=config, weights=weights.get(backbone, Weights()), watch=benchmark.watch)
                    yield Planned(method, run)


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
