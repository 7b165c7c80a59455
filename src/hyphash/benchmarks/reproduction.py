"""From a benchmark and what the user asks for to its page: which runs are missing, doing them, showing all."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hyphash.benchmarks import BENCHMARKS, DATASETS, Benchmark, Choices, Dataset, Planned, plan
from hyphash.benchmarks.page import Page, Section, write_page
from hyphash.benchmarks.pages import PAGES, complexity_page, datasets_page, theorem_page
from hyphash.benchmarks.runner import Event, Place, Stop, TimeLeft, execute
from hyphash.benchmarks.runs import Results, Run, Weights
from hyphash.benchmarks.sizes import differences, facts
from hyphash.benchmarks.source import Source
from hyphash.datasets import Splits, load_dataset
from hyphash.errors import ConfigError, DataError, WeightsError

DATA = Path("data")  # where datasets are looked for when nobody says where they are


@dataclass(frozen=True)
class Work:
    """What is to be done, and the doing of it: `events` does the runs as it is walked through."""

    runs: tuple[Run, ...]
    events: Iterator[Event]
    left: TimeLeft
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """One call of a benchmark."""

    benchmark: Benchmark
    choices: Choices = field(default_factory=Choices)
    into: Path = Path("results")
    work: Path | None = None
    dataset: str | None = None
    data: tuple[str, ...] = ()  # PATH or NAME=PATH
    weights: tuple[str, ...] = ()  # FILE or BACKBONE=FILE
    device: str = "auto"
    jobs: int = 1
    keep_weights: bool = False
    unchecked: bool = False
    mark: str = ""
    queries: tuple[int, ...] = ()

    @cached_property
    def results(self) -> Results:
        return Results.at(self.into, self.work)

    @cached_property
    def setting(self) -> Dataset:
        return self.benchmark.setting(self.dataset)

    # ── which runs ───────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def planned(self) -> list[Planned]:
        """The runs that this call asks for. What it leaves open is as in the last call with the same results."""
        own = [self.choices.backbone] if self.choices.backbone else [name for name, _ in self.setting.backbones]
        return [planned for backbone in own for planned in self._planned(backbone)]

    def _planned(self, backbone: str, choices: Choices | None = None) -> list[Planned]:
        kept = self.results.settings().get(f"{self.setting.name}/{backbone}", {})
        asked = choices or self.choices
        chosen = replace(
            asked,
            backbone=backbone,
            epochs=kept.get("epochs") if asked.epochs is None else asked.epochs,
            size=asked.size or kept.get("size"),
            settings=asked.settings or kept.get("settings", {}),
        )
        return plan(self.benchmark, self.setting, chosen, {backbone: self._weights(backbone, kept)})

    def _weights(self, backbone: str, kept: Mapping[str, Any]) -> Weights:
        given = self._weights_file(backbone)
        if given is not None:
            return Weights.of(given)
        return Weights(**kept["weights"]) if "weights" in kept else Weights()

    def _weights_file(self, backbone: str) -> str | None:
        named = dict(text.partition("=")[::2] for text in self.weights if "=" in text)
        plain = [text for text in self.weights if "=" not in text]
        return named.get(backbone) or (plain[0] if plain else None)

    def _finished_beside(self) -> list[Planned]:
        """Finished runs with other networks than the paper's, which earlier calls have left here: for tables of mAP."""
        if self.choices.backbone or self.benchmark.name != self.setting.name:
            return []
        own = {name for name, _ in self.setting.backbones}
        names = [key.partition("/")[2] for key in self.results.settings() if key.startswith(f"{self.setting.name}/")]
        found = [p for name in names if name not in own for p in self._planned(name, replace(self.choices, size=None))]
        return [planned for planned in found if self.results.record(planned.run)]

    def _keep_settings(self, runs: list[Run]) -> None:
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
        if not self.benchmark.methods:
            return Work((), iter(()), TimeLeft((), 0), tuple(self._measure()))
        missing = [planned.run for planned in self.planned if self.results.record(planned.run) is None]
        done = len(self.planned) - len(missing)
        if missing and self._path(self.setting.name) is None and done:
            note = f"{len(missing)} of {len(self.planned)} runs are not done; name the dataset with --data to do them"
            return Work((), iter(()), TimeLeft((), 0), (note,))
        if not missing:
            return Work((), iter(()), TimeLeft((), 0), (f"all {done} runs are done",))
        splits = self._checked()
        self._keep_settings(missing)
        notes = [f"{done} of {len(self.planned)} runs are done already"] if done else []
        left = TimeLeft(missing, len(splits.train))
        return Work(tuple(missing), self._events(missing, splits, stop), left, (*splits.notes, *notes))

    def _events(self, runs: list[Run], splits: Splits, stop: Stop) -> Iterator[Event]:
        """Backbone after backbone: each has its own weights and sees the photos at its own size."""
        jobs = 1 if self.benchmark.alone else self.jobs
        for backbone in dict.fromkeys(run.config.backbone for run in runs):
            some = [run for run in runs if run.config.backbone == backbone]
            file = self._weights_file(backbone) or some[0].weights.name
            if some[0].weights.digest and not Path(file).is_file():
                raise WeightsError(
                    f"the runs here start from the weights {some[0].weights.name} (sha256 {some[0].weights.digest}…); "
                    "name that file with --weights"
                )
            place = Place(
                splits=splits,
                results=self.results,
                data=str(self._path(self.setting.name)),
                weights=file,
                device=self.device,
                jobs=jobs,
                keep_weights=self.keep_weights,
            )
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
        for text in self.data:
            key, equals, path = text.partition("=")
            if equals and key == name:
                return Path(path).expanduser()
        for text in self.data:
            if text.partition("=")[0] not in DATASETS:
                inside = Path(text).expanduser() / name
                return inside if inside.is_dir() else Path(text).expanduser()
        return DATA / name if (DATA / name).exists() else None

    # ── what needs no runs ───────────────────────────────────────────────────────────────────────────────

    def _measure(self) -> Iterator[str]:
        """Measure what is not trained and was not measured before; yields notes."""
        if self.benchmark.name == "datasets":
            for name in DATASETS:
                if (path := self._path(name)) is not None:
                    try:
                        self.results.keep_facts(f"dataset-{name}", facts(load_dataset(path, name)))
                    except DataError as error:
                        yield str(error)
        elif self.benchmark.name == "complexity":
            from hyphash.benchmarks.costs import measure_steps
            from hyphash.benchmarks.runner import device_name
            from hyphash.hasher import choose_device

            device = device_name(choose_device(self.device))
            name = "complexity-" + re.sub(r"\W+", "-", device).strip("-").lower()
            if self.results.facts(name) is None:
                yield f"measuring on {device}"
                self.results.keep_facts(name, measure_steps(self.device))
        elif self.results.facts("theorem-2") is None:
            from hyphash.benchmarks.theory import settle_all

            self.results.keep_facts("theorem-2", settle_all())

    # ── showing ──────────────────────────────────────────────────────────────────────────────────────────

    def page(self) -> Page:
        name = self.benchmark.name
        if name == "datasets":
            found = {key: kept for key in DATASETS if (kept := self.results.facts(f"dataset-{key}")) is not None}
            return datasets_page(found, {key: self._absent(key) for key in DATASETS if key not in found})
        if name == "complexity":
            files = sorted((self.into / "facts").glob("complexity-*.json"))
            return complexity_page([self.results.facts(file.stem) for file in files])
        if name == "theorem":
            return theorem_page(self.results.facts("theorem-2"))
        path = self._path(self.setting.name)
        needed = name in ("tsne", "gallery") and path is not None
        source = Source(
            benchmark=self.benchmark,
            dataset=self.setting,
            planned=self.planned,
            beside=self._finished_beside(),
            results=self.results,
            splits=load_dataset(path, self.setting.name) if needed and path is not None else None,
            mark=self.mark,
            queries=self.queries,
        )
        if not source.found():
            raise DataError(f"{self.into}: no run of {name} is there; name the dataset with --data to do them")
        return PAGES[name](source)

    def _absent(self, name: str) -> str:
        """What to download, from where, and where to put it: as the dataset's own reader says of data/NAME."""
        try:
            load_dataset(DATA / name, name)
        except (DataError, ConfigError) as error:
            return str(error)
        return ""

    def measured(self) -> bool:
        """Whether the results hold anything that this benchmark's page can be drawn from."""
        name = self.benchmark.name
        if name == "theorem":
            return self.results.facts("theorem-2") is not None
        if not self.benchmark.methods:
            return any((self.into / "facts").glob(f"{'dataset' if name == 'datasets' else name}-*.json"))
        if name == "gallery" and self._path(self.setting.name) is None:
            return False  # its photos are no part of the results
        return any(self.results.record(planned.run) for planned in self.planned)

    def write(self) -> tuple[Page, Path]:
        page = self.page()
        return page, write_page(page, self.into / self.benchmark.name)


def whole_page(into: Path, data: tuple[str, ...] = ()) -> Page:
    """Everything that a folder of results can show, benchmark after benchmark, on one page."""
    sections: list[Section] = []
    notes: list[str] = []
    for benchmark in BENCHMARKS.values():
        one = Reproduction(benchmark=benchmark, into=into, data=data)
        if not one.measured():
            notes.append(f"not here: {benchmark.name}, {benchmark.about}")
            continue
        page = one.page()
        sections += [replace(section, title=f"{page.title}: {section.title}") for section in page.sections]
    if not sections:
        raise DataError(f"{into}: no results are there; `hyphash reproduce --list` says how to get some")
    about = "Tables and figures of Xu et al., HyP² Loss, ACM MM 2022: ours beside the published ones."
    return Page("The paper, reproduced", about, tuple(sections), tuple(notes))
