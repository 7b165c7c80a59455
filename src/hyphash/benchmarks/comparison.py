"""A comparison of the user's own: several methods on the same photos, with the runs and records of the benchmarks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hyphash.benchmarks import figures
from hyphash.benchmarks.figures import Drawn
from hyphash.benchmarks.page import Page, Section, write_page
from hyphash.benchmarks.runner import Event, Place, Stop, TimeLeft, execute
from hyphash.benchmarks.runs import Record, Results, Run, Weights
from hyphash.benchmarks.source import facts_of
from hyphash.benchmarks.tables import Table
from hyphash.config import Config
from hyphash.datasets import Splits, load_dataset
from hyphash.errors import ConfigError
from hyphash.evaluation import Protocol
from hyphash.losses import losses, names
from hyphash.training import resolve

REACHED = 0.95  # of the final mAP: what "has converged" means in the table


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Which methods, at which lengths, with which seeds; `config` has all that they share."""

    config: Config
    losses: tuple[str, ...]
    bits: tuple[int, ...]
    seeds: tuple[int, ...] = (0,)
    watch: int = 5  # epochs between two looks at the queries
    into: Path

    @property
    def runs(self) -> list[Run]:
        weights = Weights.of(self.config.weights)
        return [
            Run(
                config=resolve(replace(self.config, loss=loss, bits=bits, seed=seed)), weights=weights, watch=self.watch
            )
            for bits in self.bits
            for loss in self.losses
            for seed in self.seeds
        ]

    @property
    def results(self) -> Results:
        return Results.at(self.into)

    def start(self, place: Place, stop: Stop) -> "tuple[list[Run], Iterator[Event], TimeLeft]":
        """The runs that are not done yet, and the doing of them."""
        missing = [run for run in self.runs if self.results.record(run) is None]
        return missing, execute(missing, place, stop), TimeLeft(missing, len(place.splits.train))

    def splits(self) -> Splits:
        """The photos. A folder of results belongs to one dataset."""
        here = {"source": {"data": str(Path(self.config.data).expanduser().resolve())}}
        before = self.results.settings()
        if before and before != here:
            raise ConfigError(f"{self.into}: holds a comparison on {before['source']['data']}; choose another --into")
        splits = load_dataset(self.config.data, self.config.dataset, **self.config.data_options)
        self.results.keep_settings(here)
        return splits

    def page(self, title: str) -> Page:
        """One table a protocol and one convergence figure a length, of the runs that are done."""
        done = [(run, record) for run in self.runs if (record := self.results.record(run))]
        tables = tuple(self._table(done, Protocol.preset(name, self.config.top)) for name in ("paper", "strict"))
        drawn = tuple(
            Drawn(
                f"convergence-{bits}",
                f"mAP@{self.config.top:,} while training, {bits} bits",
                "protocol paper; the clock stands still while the queries are measured",
                figures.convergence(curves),
            )
            for bits in self.bits
            if (curves := _curves(done, bits))
        )
        about = "Several methods on the same photos, each with its own settings unless the user chose others."
        section = Section("Methods", tables=tables, figures=drawn)
        return Page(title, about, (section,), facts=facts_of([record for _, record in done]))

    def write(self, title: str) -> tuple[Page, Path]:
        page = self.page(title)
        return page, write_page(page, self.into)

    def _table(self, done: Sequence[tuple[Run, Record]], protocol: Protocol) -> Table:
        name = protocol.name
        rows = sorted(
            (
                (
                    run.config.bits,
                    run.config.loss + ("*" if losses[run.config.loss].adapted else ""),
                    run.config.seed,
                    record.map(name),
                    round(record.seconds["training"], 1),
                    seconds_to(record, name),
                )
                for run, record in done
            ),
            key=lambda row: (row[0], -row[3]),
        )
        return Table(
            name=f"comparison-{name}",
            title=f"mAP@{self.config.top:,}, protocol {name}",
            above=protocol.describe(),
            columns=("bits", "loss", "seed", "mAP", "training s", f"s to {REACHED:.0%}"),
            rows=tuple(rows),
            below=("last epoch; * adapted or reconstructed, see `hyphash losses`",),
        )


def seconds_to(record: Record, protocol: str, share: float = REACHED) -> float | None:
    """Seconds of training until mAP first reached a share of its last value; None where nobody looked."""
    if not record.curve:
        return None
    last = getattr(record.curve[-1], protocol)
    return round(next(p.seconds for p in record.curve if getattr(p, protocol) >= share * last), 1)


def choose_losses(text: str) -> tuple[str, ...]:
    """`hyp2,proxy`, or `all`. Every name is checked before anything is trained."""
    if text == "all":
        return tuple(names())
    chosen = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in chosen:
        _ = losses[name]
    if not chosen:
        raise ConfigError("--losses takes names with commas between, or all")
    return chosen


def _curves(done: Sequence[tuple[Run, Record]], bits: int) -> dict[str, Record]:
    """The first seed of each method whose queries were looked at."""
    curves: dict[str, Record] = {}
    for run, record in done:
        if run.config.bits == bits and len(record.curve) > 1:
            curves.setdefault(run.config.loss, record)
    return curves
