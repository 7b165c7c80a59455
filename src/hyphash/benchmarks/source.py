"""What a page is made from: the records of a benchmark's runs. No photo is needed, except for a gallery, and no GPU."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hyphash.benchmarks import Benchmark, Dataset, Method, Planned
from hyphash.benchmarks.page import Page, Section
from hyphash.benchmarks.runs import Record, Results
from hyphash.datasets import Splits


@dataclass(frozen=True)
class Source:
    """What a page is made from."""

    benchmark: Benchmark
    dataset: Dataset
    planned: Sequence[Planned]
    results: Results
    beside: Sequence[Planned] = ()  # finished runs with other networks than the paper's
    splits: Splits | None = None  # where the data is at hand
    mark: str = ""  # two sets of labels that the t-SNE plot rings, such as bus+car,person+train
    queries: tuple[int, ...] = ()  # rows of the queries that the gallery shows

    def found(self) -> list[tuple[Planned, Record]]:
        records = [(planned, self.results.record(planned.run)) for planned in (*self.planned, *self.beside)]
        return [(planned, record) for planned, record in records if record is not None]

    def backbones(self) -> dict[str, list[tuple[Method, Record]]]:
        """The records of each backbone and size of photos."""
        groups: dict[str, list[tuple[Method, Record]]] = {}
        for planned, record in self.found():
            name = f"{planned.run.config.backbone} at {planned.run.config.size} pixels"
            groups.setdefault(name, []).append((planned.method, record))
        return groups

    @property
    def bits(self) -> list[int]:
        return sorted({planned.run.config.bits for planned in self.planned})

    @property
    def methods(self) -> list[Method]:
        return list({planned.method.key: planned.method for planned in self.planned}.values())

    def is_published(self, records: Iterable[tuple[Method, Record]]) -> bool:
        """Whether these runs use a network that the paper's figures may have been measured with."""
        own = {name for name, _ in self.dataset.backbones}
        return all(record.config["backbone"] in own for _, record in records)


def stem_of(source: Source, group: str) -> str:
    """How the files of one dataset and backbone begin."""
    return f"{source.dataset.name}-{group.split(maxsplit=1)[0]}"


def facts_of(records: Sequence[Record]) -> dict[str, str]:
    """What a reader has to know about how the runs were made."""

    def all_of(values: Iterable[str]) -> str:
        return ", ".join(sorted(set(values)))

    if not records:
        return {}
    versions = {f"{name} {text}" for record in records for name, text in record.versions.items()}
    return {
        "runs": str(len(records)),
        "device": all_of(record.device for record in records),
        "precision": all_of(record.precision for record in records),
        "weights": all_of(f"{r.weights.name} {r.weights.digest}".strip() for r in records),
        "epochs": all_of(f"last of {record.epoch}" for record in records),
        "versions": ", ".join(sorted(versions)),
    }


def page_of(source: Source, title: str, sections: Sequence[Section], notes: Sequence[str] = ()) -> Page:
    missing = [planned for planned in source.planned if source.results.record(planned.run) is None]
    absent = [f"{len(missing)} of {len(source.planned)} runs are not done yet"] if missing else []
    facts = facts_of([record for _, record in source.found()])
    return Page(title, source.benchmark.about, tuple(sections), (*notes, *absent), facts)
