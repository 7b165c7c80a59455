"""Two ways from what the user asks for to a page: a benchmark of the paper, and a comparison of the user's own.

Which runs are missing, doing them, showing all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path

from hyphash.benchmarks import BENCHMARKS, DATASETS, RECIPES, Benchmark, Dataset, Method, Recipe
from hyphash.benchmarks import figures as draw
from hyphash.benchmarks.facts import DATA, FACTS, differences
from hyphash.benchmarks.pages import SHOWN, run_facts
from hyphash.benchmarks.runner import Event, Place, Stop, Work, execute
from hyphash.benchmarks.runs import Choices, Planned, Record, Results, Run, Weights, plan, with_recipe
from hyphash.benchmarks.tables import Group, comparison_table, drawn
from hyphash.config import Config
from hyphash.datasets import Splits, load_dataset
from hyphash.errors import ConfigError, DataError, WeightsError
from hyphash.evaluation import PROTOCOLS, Protocol, Report, label_checksum
from hyphash.losses import losses, names
from hyphash.report import Page, Section
from hyphash.training import resolve


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """One call of a benchmark."""

    benchmark: Benchmark
    results: Results
    choices: Choices = field(default_factory=Choices)
    dataset: str | None = None
    data: tuple[str, ...] = ()  # PATH or NAME=PATH
    weights: tuple[str, ...] = ()  # FILE or BACKBONE=FILE
    device: str = "auto"
    jobs: int = 1
    keep_weights: bool = False
    unchecked: bool = False
    mark: str = ""
    queries: tuple[int, ...] = ()

    @property
    def setting(self) -> Dataset:
        """The dataset that is asked for, or the benchmark's first."""
        known, name = self.benchmark.datasets, self.dataset or self.benchmark.datasets[0]
        if name not in known:
            raise ConfigError(f"{self.benchmark.name} has no dataset {name!r}; it has {', '.join(known)}")
        return DATASETS[name]

    # ── which runs ───────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def planned(self) -> list[Planned]:
        """The runs that this call asks for. What it leaves open is as in the last call with the same results."""
        own = [self.choices.backbone] if self.choices.backbone else self.setting.backbones
        return [planned for backbone in own for planned in self._planned(backbone, self.choices)]

    def _planned(self, backbone: str, asked: Choices) -> list[Planned]:
        kept = self.results.settings().get(f"{self.setting.name}/{backbone}", {})
        chosen = replace(
            asked,
            backbone=backbone,
            epochs=kept.get("epochs") if asked.epochs is None else asked.epochs,
            size=asked.size or kept.get("size"),
            settings=asked.settings or kept.get("settings", {}),
        )
        given = self._weights_file(backbone)
        weights = Weights.of(given) if given is not None else Weights(**kept.get("weights", {}))
        return plan(self.benchmark, self.setting, chosen, {backbone: weights})

    def _weights_file(self, backbone: str) -> str | None:
        named = dict(text.partition("=")[::2] for text in self.weights if "=" in text)
        return named.get(backbone) or next((text for text in self.weights if "=" not in text), None)

    def _finished_beside(self) -> list[Planned]:
        """Finished runs with other networks than the paper's, which earlier calls have left here: for tables of mAP."""
        if self.choices.backbone or self.benchmark.name != self.setting.name:
            return []
        own, choices = f"{self.setting.name}/", replace(self.choices, size=None)
        names = (key.removeprefix(own) for key in self.results.settings() if key.startswith(own))
        others = (name for name in names if name not in self.setting.backbones)
        found = [planned for name in others for planned in self._planned(name, choices)]
        return [planned for planned in found if self.results.record(planned.run)]

    def _keep_settings(self, runs: Sequence[Run]) -> None:
        settings = self.results.settings()
        for run in runs:
            key = f"{self.setting.name}/{run.config.backbone}"
            before = settings.get(key, {})
            settings[key] = {
                "weights": {"name": run.weights.name, "digest": run.weights.digest},
                "epochs": before.get("epochs") if self.choices.epochs is None else self.choices.epochs,
                "size": run.config.size,
                "settings": dict(self.choices.settings) or before.get("settings", {}),
            }
        self.results.keep_settings(settings)

    # ── doing them ───────────────────────────────────────────────────────────────────────────────────────

    def start(self, stop: Stop = lambda: False) -> Work:
        """Check what is there and say what is missing; the runs are done when `events` is walked through."""
        if self.benchmark.name in FACTS:
            return Work(notes=tuple(FACTS[self.benchmark.name].measure(self.results, self._path, self.device)))
        missing = [planned.run for planned in self.planned if self.results.record(planned.run) is None]
        asked, done = len(self.planned), len(self.planned) - len(missing)
        if not missing:
            return Work(notes=(f"all {done} runs are done",))
        if self._path(self.setting.name) is None and done:
            note = f"{len(missing)} of {asked} runs are not done; name the dataset with --data to do them"
            return Work(notes=(note,))
        splits = self._checked()
        self._keep_settings(missing)
        notes = (*splits.notes, *([f"{done} of {asked} runs are done already"] if done else []))
        return Work(missing, self._events(missing, splits, stop), len(splits.train), notes)

    def _events(self, runs: Sequence[Run], splits: Splits, stop: Stop) -> Iterator[Event]:
        """Backbone after backbone: each has its own weights and sees the photos at its own size."""
        for backbone in dict.fromkeys(run.config.backbone for run in runs):
            some = [run for run in runs if run.config.backbone == backbone]
            start = some[0].weights
            file = self._weights_file(backbone) or start.name
            if start.digest and not Path(file).is_file():
                known = f"{start.name} (sha256 {start.digest}…)"
                raise WeightsError(f"the runs here start from the weights {known}; name that file with --weights")
            data, jobs = str(self._path(self.setting.name)), 1 if self.benchmark.alone else self.jobs
            place = Place(splits, self.results, data, file, self.device, jobs, self.keep_weights)
            yield from execute(some, place, stop)

    def _checked(self) -> Splits:
        """The dataset, checked against the published counts and label files before anything is trained."""
        name = self.setting.name
        splits = load_dataset(self._path(name) or DATA / name, name)
        if any(note.startswith("labels only") for note in splits.notes):
            raise DataError(f"{self._path(name)}: label lists without photos; put those of {self.setting.title} there")
        if not self.unchecked and (found := differences(splits, self.setting)):
            raise DataError(
                f"{self._path(name)}: not the {self.setting.title} of the paper: {'; '.join(found)}. Mend the files, "
                "or go on with --unchecked: the figures are then not to be compared with the published ones"
            )
        return splits

    def _path(self, name: str) -> Path | None:
        """Where a dataset is: as `--data` says, else in data/NAME, if there is such a folder."""
        pairs = [(text.partition("="), text) for text in self.data]
        named = {key: path for (key, equals, path), _ in reversed(pairs) if equals and key in DATASETS}
        plain = [text for (key, equals, _), text in pairs if not (equals and key in DATASETS)]
        if name not in named and not plain:
            return DATA / name if (DATA / name).exists() else None
        place = Path(named.get(name) or plain[0]).expanduser()
        return place / name if name not in named and (place / name).is_dir() else place

    # ── showing ──────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def splits(self) -> Splits | None:
        """The data, for pages that show photos or labels, where it is at hand."""
        path = self._path(self.setting.name) if self.benchmark.name in ("tsne", "gallery") else None
        return load_dataset(path, self.setting.name) if path is not None else None

    @property
    def methods(self) -> list[Method]:
        return list({planned.method.key: planned.method for planned in self.planned}.values())

    def groups(self) -> list[Group]:
        """The finished runs of each network and size of photos."""
        found: dict[str, list[tuple[Method, Record]]] = {}
        for planned in (*self.planned, *self._finished_beside()):
            if (record := self.results.record(planned.run)) is not None:
                network = f"{planned.run.config.backbone} at {planned.run.config.size} pixels"
                found.setdefault(network, []).append((planned.method, record))
        bits = sorted({planned.run.config.bits for planned in self.planned})
        return [Group(self.setting, network, bits, runs) for network, runs in found.items()]

    def page(self) -> Page:
        name = self.benchmark.name
        if name in FACTS:
            return FACTS[name].page(self.results.facts(FACTS[name].prefix))
        if not (groups := self.groups()):
            where = self.results.root
            raise DataError(f"{where}: no run of {name} is there; name the dataset with --data to do them")
        shown = [(group, SHOWN[name](self, group)) for group in groups]
        sections = [Section(group.title, tuple(s[0]), tuple(s[1])) for group, s in shown if not isinstance(s, str)]
        notes = [note for _, note in shown if isinstance(note, str)]
        if missing := sum(self.results.record(planned.run) is None for planned in self.planned):
            notes.append(f"{missing} of {len(self.planned)} runs are not done yet")
        title = f"{self.setting.title}: {self.benchmark.title.format(top=self.setting.top)}"
        facts = run_facts([record for group in groups for record in group.records])
        return Page(title, self.benchmark.about, tuple(sections), tuple(filter(None, dict.fromkeys(notes))), facts)

    def is_measured(self) -> bool:
        """Whether the results hold anything that this benchmark's page can be drawn from."""
        name = self.benchmark.name
        if name in FACTS:
            return bool(self.results.facts(FACTS[name].prefix))
        if name == "gallery" and self._path(self.setting.name) is None:
            return False  # its photos are no part of the results
        return any(self.results.record(planned.run) for planned in self.planned)

    def write(self) -> tuple[Page, Path]:
        page = self.page()
        return page, page.write(self.results.root / self.benchmark.name)


def whole_page(results: Results, data: tuple[str, ...] = ()) -> Page:
    """Everything that a folder of results can show, benchmark after benchmark, on one page."""
    sections: list[Section] = []
    notes: list[str] = []
    for benchmark in BENCHMARKS.values():
        one = Reproduction(benchmark=benchmark, results=results, data=data)
        if not one.is_measured():
            notes.append(f"not here: {benchmark.name}, {benchmark.about}")
            continue
        page = one.page()
        sections += [replace(section, title=f"{page.title}: {section.title}") for section in page.sections]
    if not sections:
        raise DataError(f"{results.root}: no results are there; `hyphash reproduce --list` says how to get some")
    about = "Tables and figures of Xu et al., HyP² Loss, ACM MM 2022: ours beside the published ones."
    return Page("The paper, reproduced", about, tuple(sections), tuple(notes))


# ── a comparison of the user's own ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several methods on the same photos, at which lengths, with which seeds; `config` has all that they share."""

    config: Config
    losses: tuple[str, ...]
    bits: tuple[int, ...]
    seeds: tuple[int, ...] = (0,)
    watch: int = 5  # epochs between two looks at the queries
    recipes: tuple[Recipe, ...] = ("house",)  # whose settings, where the user chose none: a row for each
    codes: tuple[Report, ...] = ()  # of codes made elsewhere for the same photos: rows without a training
    results: Results

    @cached_property
    def planned(self) -> list[tuple[Recipe, Run]]:
        """All runs, each with the recipe it is for; methods without settings of a recipe are left out of it."""
        weights, found = Weights.of_config(self.config), []
        for bits, loss, recipe, seed in product(self.bits, self.losses, self.recipes, self.seeds):
            config = with_recipe(replace(self.config, loss=loss, bits=bits, seed=seed), recipe)
            if config:
                found.append((recipe, Run(config=resolve(config), weights=weights, watch=self.watch)))
        if not found:
            raise ConfigError(f"none of {', '.join(self.losses)} has settings that were tuned on validation")
        return found

    @cached_property
    def runs(self) -> list[Run]:
        return list({run.hash: run for _, run in self.planned}.values())  # two recipes may come to the same

    def start(self, *, jobs: int, cache: Path, stop: Stop) -> Work:
        """The runs that are not done yet, and the doing of them."""
        splits, config = self._splits(), self.config
        place = Place(splits, self.results, config.data, config.weights, config.device, jobs, cache=cache)
        missing = [run for run in self.runs if self.results.record(run) is None]
        return Work(missing, execute(missing, place, stop), len(splits.train))

    def _splits(self) -> Splits:
        """The photos. A folder of results belongs to one dataset."""
        here = {"source": {"data": str(Path(self.config.data).expanduser().resolve())}}
        before, where = self.results.settings(), self.results.root
        if before and before != here:
            raise ConfigError(f"{where}: holds a comparison on {before['source']['data']}; choose another --into")
        splits = load_dataset(self.config.data, self.config.dataset, **self.config.data_options)
        own = label_checksum(splits.queries.labels, splits.database.labels)
        for report in self.codes:
            if report.photos != own:
                raise DataError(f"{report.facts['loss']}: its labels are not those of {splits.name}, in their order")
        self.results.keep_settings(here)
        return splits

    def page(self, title: str) -> Page:
        """One table a protocol, what mAP costs, and one convergence figure a length, of the runs that are done."""
        done = [(recipe, record) for recipe, run in self.planned if (record := self.results.record(run))]
        figures = [
            drawn("comparison", draw.convergence(curves), bits=bits, top=self.config.top)
            for bits in self.bits
            if (curves := _curves(done, bits))
        ]
        about = "Several methods on the same photos, each with its own settings unless the user chose others."
        rows: list[tuple[Recipe, Record]] = [*done, *(("house", Record.of_codes(report)) for report in self.codes)]
        tables = tuple(comparison_table(rows, Protocol.preset(name, self.config.top)) for name in PROTOCOLS)
        best = {(r["bits"], r["loss"]): {r["seconds"]: r["mAP"]} for r in reversed(tables[0].records) if r["seconds"]}
        ends = dict.fromkeys((self.bits[0], self.bits[-1]))
        if costs := {f"{k} bits": {loss: at for (bits, loss), at in best.items() if bits == k} for k in ends if best}:
            figures.insert(0, drawn("seconds", draw.over_seconds(costs)))
        facts = run_facts([record for _, record in done])
        return Page(title, about, (Section("Methods", tables, tuple(figures)),), facts=facts)


def _curves(done: Sequence[tuple[Recipe, Record]], bits: int) -> dict[str, Record]:
    """The first seed of each method whose queries were looked at."""
    curves: dict[str, Record] = {}
    for recipe, record in done:
        if record.bits == bits and len(record.curve) > 1:
            curves.setdefault(", ".join(filter(None, (record.config["loss"], RECIPES[recipe]))), record)
    return curves


def choose_losses(text: str) -> tuple[str, ...]:
    """`hyp2,proxy`, or `all`. Every name is checked before anything is trained."""
    chosen = names() if text == "all" else [part.strip() for part in text.split(",") if part.strip()]
    if not chosen:
        raise ConfigError("--losses takes names with commas between, or all")
    for name in chosen:
        losses.load(name)
    return tuple(chosen)
