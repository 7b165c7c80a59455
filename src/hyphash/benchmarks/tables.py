"""Tables: ours beside the published figures. What is said above, below and beside them stands in pages.toml.

Figures of different protocols never share a column: every protocol has a table of its own, with the protocol
spelled out above it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import permutations
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from hyphash.benchmarks import RECIPES, Dataset, Method, Recipe, Row, read_toml
from hyphash.benchmarks.runs import Record
from hyphash.evaluation import Interval, Protocol, Scores
from hyphash.evaluation.measures import Floats
from hyphash.evaluation.significance import as_text, intervals
from hyphash.losses import losses
from hyphash.report import Cell, Drawn, Marks, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS: Mapping[str, Any] = read_toml("pages.toml")


def table(kind: str, rows: Iterable[tuple[Cell, ...]], values: Mapping[str, Any] | None = None, **more: Any) -> Table:
    """A table with the words of its kind, these `values` filled in; `more` is what no words say."""
    return Table(rows=tuple(rows), **filled(WORDS["tables"][kind], values or {}) | more)


def drawn(kind: str, figure: "Figure", **values: Any) -> Drawn:
    """A figure with the words of its kind."""
    return Drawn(figure=figure, **filled(WORDS["figures"][kind], values))


def filled(words: Any, values: Mapping[str, Any]) -> Any:
    """Texts with what stands in braces filled in, one by one in lists and tables of them."""
    if isinstance(words, Mapping):
        return {name: filled(each, values) for name, each in words.items()}
    if isinstance(words, list):
        return tuple(filled(each, values) for each in words)
    return words.format(**values) if isinstance(words, str) else words


@dataclass(frozen=True)
class Seeds:
    """A figure of one or several runs that differ in their seed alone."""

    values: Mapping[int, float]  # by seed
    by_query: Floats | None = None  # means over the seeds, where a run keeps its queries
    standard_error: float | None = None  # over the queries, the mean of the seeds'; where the figure is one of queries
    interval: Interval | None = None  # of the mean over queries; see `with_intervals`

    @classmethod
    def of(cls, scores: Mapping[int, Scores]) -> "Seeds":
        """mAP with what is known of the queries it is a mean of."""
        queries = [each.average_precision for each in scores.values()]
        kept = [values for values in queries if values is not None]
        whole = len(kept) == len(queries) and len({len(values) for values in kept}) == 1
        return cls(
            {seed: each.mean_average_precision for seed, each in scores.items()},
            np.mean(kept, axis=0) if whole else None,
            fmean(each.standard_error for each in scores.values()),
        )

    @property
    def mean(self) -> float:
        return fmean(self.values.values())

    @property
    def spread(self) -> float:
        """Largest less smallest."""
        return max(self.values.values()) - min(self.values.values())

    def record(self) -> dict[str, Any]:
        found = {"mean": self.mean, "spread": self.spread, "by_seed": {str(k): v for k, v in self.values.items()}}
        sure = {"standard_error": self.standard_error, "interval": self.interval}
        return found | (sure if self.standard_error is not None else {})


def with_intervals(cells: Mapping[Any, Seeds]) -> dict[Any, Seeds]:
    """The same with the interval of each mean, where its queries are known."""
    found = intervals_of({key: cell.by_query for key, cell in cells.items()})
    return {key: replace(cell, interval=found.get(key)) for key, cell in cells.items()}


def intervals_of(columns: Mapping[Any, Floats | None]) -> dict[Any, Interval]:
    """The interval of the mean of each that is known; those of equally many queries are drawn together: it is quick."""
    found: dict[Any, Interval] = {}
    known = {key: column for key, column in columns.items() if column is not None}
    for count in {len(column) for column in known.values()}:
        some = {key: column for key, column in known.items() if len(column) == count}
        found |= zip(some, intervals(np.stack(list(some.values()), axis=1)), strict=True)
    return found


def ahead(one: Seeds | None, other: Seeds | None) -> Floats | None:
    """By how much the one is ahead of the other, query by query; None where the queries of either are not known."""
    if one is None or other is None or one.by_query is None or other.by_query is None:
        return None
    return one.by_query - other.by_query if one.by_query.shape == other.by_query.shape else None


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What a table shows of each run."""

    name: str
    title: str
    above: str
    value: Callable[[Record], float | None]
    scores: Callable[[Record], Scores] | None = None  # where the value is their mAP: they know its queries
    largest_is_best: bool = True

    @property
    def sign(self) -> int:
        return 1 if self.largest_is_best else -1


def map_measure(protocol: str, dataset: Dataset) -> Measure:
    described = Protocol.preset(protocol, dataset.top)
    return Measure(
        name=f"map-{protocol}",
        title=f"mAP{described.depth}, protocol {protocol}",
        above=described.describe(),
        value=lambda run: run.map(protocol),
        scores=lambda run: run.scores(protocol),
    )


def spread_measure(name: str) -> Measure:
    """d_intra or d_inter, of the runs that have them."""
    return Measure(name=name, value=lambda run: getattr(run.report.separation, name, None), **WORDS["measures"][name])


class Group:
    """The finished runs with one network, by method, length and seed: what tables and figures are made from."""

    def __init__(
        self, dataset: Dataset, network: str, bits: Sequence[int], found: Iterable[tuple[Method, Record]]
    ) -> None:
        self.dataset = dataset
        self.network = network  # and the size of its photos, such as "alexnet at 224 pixels"
        self.bits = bits
        self.cells: dict[tuple[str, int], dict[int, Record]] = {}
        self.methods: dict[str, Method] = {}  # that were run
        for method, record in found:
            self.methods.setdefault(method.key, method)
            self.cells.setdefault((method.key, record.bits), {})[record.seed] = record

    @property
    def title(self) -> str:
        return f"{self.dataset.title}, {self.network}"

    @property
    def stem(self) -> str:
        """How the names of its files begin."""
        return f"{self.dataset.name}-{self.network.split(maxsplit=1)[0]}"

    @property
    def is_published(self) -> bool:
        """Whether the paper's figures may have been measured with this network."""
        return self.network.split(maxsplit=1)[0] in self.dataset.backbones

    def seeds(self, method: Method, bits: int, measure: Measure) -> Seeds | None:
        """A figure of a method at a length, over its seeds."""
        records = self.cells.get((method.key, bits), {})
        if measure.scores and records:
            return Seeds.of({seed: measure.scores(record) for seed, record in sorted(records.items())})
        values = {seed: measure.value(record) for seed, record in sorted(records.items())}
        known = {seed: value for seed, value in values.items() if value is not None}
        return Seeds(known) if known else None

    def measured(self, methods: Sequence[Method], measure: Measure) -> dict[tuple[str, int], Seeds]:
        """By method and length, the figures of those that were run."""
        found = {(m.key, bits): self.seeds(m, bits, measure) for m in methods for bits in self.bits}
        return {key: seeds for key, seeds in found.items() if seeds}

    def firsts(self) -> dict[int, dict[str, Record]]:
        """By length and the method's title, the run of the first seed."""
        found: dict[int, dict[str, Record]] = {}
        for (key, bits), records in self.cells.items():
            found.setdefault(bits, {})[self.methods[key].title] = next(iter(records.values()))
        return dict(sorted(found.items()))

    @property
    def records(self) -> list[Record]:
        return [record for records in self.cells.values() for record in records.values()]


def against_published(
    group: Group,
    measure: Measure,
    methods: Sequence[Method],
    published: Mapping[str, Row] | None,
    notes: Sequence[str] = (),
) -> Table:
    """Methods down, lengths across: the published figure, ours, how sure it is, and its spread over several seeds.

    `published` is None where the paper has no such figures: those of another protocol are never put beside ours.
    """
    columns = ["method", *(["origin"] if published else [])]
    for bits in group.bits:
        columns += [f"{bits} published", f"{bits} ours"] if published else [f"{bits} ours"]
    cells = with_intervals(group.measured(methods, measure))
    ways = [way for way in SURE if any(SURE[way](seeds) is not None for seeds in cells.values())]
    rows, records = [], []
    for method in methods:
        printed = (published or {}).get(method.key)
        row: list[Cell] = [method.title, *([printed.origin if printed else None] if published else [])]
        own = [cells.get((method.key, bits)) for bits in group.bits]
        for bits, seeds in zip(group.bits, own, strict=True):
            figure = printed.values.get(bits) if printed else None
            row += [figure, seeds.mean if seeds else None] if published else [seeds.mean if seeds else None]
            origin, source = (printed.origin, printed.source) if printed else (None, None)
            cell = {"method": method.key, "bits": bits, "measure": measure.name, "published": figure}
            cell |= {"published_origin": origin, "published_source": source, "ours": seeds.record() if seeds else None}
            records.append(cell)
        epochs = {record.epoch for bits in group.bits for record in group.cells.get((method.key, bits), {}).values()}
        counts = {len(seeds.values) for seeds in own if seeds}
        row += [_at_each_length(own, SURE[way]) for way in ways]
        spreads = _at_each_length(own, lambda seeds: seeds.spread if len(seeds.values) > 1 else None)
        rows.append((*row, spreads, _one_or_list(counts), _one_or_list(epochs)))
    columns += [*ways, "spread", "seeds", "last epoch"]
    values, best = {"group": group, "measure": measure}, _best(columns, rows, measure)
    return table("against", rows, values, columns=tuple(columns), below=tuple(notes), best=best, records=tuple(records))


# by the name of its column: half of what the interval spans, and what older records have in its place
SURE: Mapping[str, Callable[[Seeds], float | None]] = {
    "95 % ±": lambda seeds: (seeds.interval[1] - seeds.interval[0]) / 2 if seeds.interval else None,
    "standard error": lambda seeds: None if seeds.interval else seeds.standard_error,
}


def _at_each_length(own: Sequence[Seeds | None], value: Callable[[Seeds], float | None]) -> Cell:
    """A figure for each length that has it, in one cell; nothing where none has."""
    found = [value(seeds) if seeds else None for seeds in own]
    known = any(each is not None for each in found)
    return " ".join("–" if each is None else f"{each:.3f}" for each in found) if known else None


def _one_or_list(numbers: set[int]) -> Cell:
    return max(numbers) if len(numbers) == 1 else ", ".join(map(str, sorted(numbers))) or None


def _best(columns: Sequence[str], rows: Sequence[Sequence[Cell]], measure: Measure) -> Marks:
    """The best of every column of figures, and those that equal it in print."""
    marks = set()
    for j, column in enumerate(columns):
        values = {i: measure.sign * value for i, row in enumerate(rows) if isinstance(value := row[j], float)}
        if column.endswith(("ours", "published")) and len(values) > 1:
            best = round(max(values.values()), 3)
            marks |= {(i, j) for i, value in values.items() if round(value, 3) == best}
    return frozenset(marks)


def cost_table(group: Group, methods: Sequence[Method]) -> Table:
    """What the runs cost on the device they were made on."""
    rows: list[tuple[Cell, ...]] = []
    for method in methods:
        runs = [run for (key, _), seeds in group.cells.items() if key == method.key for run in seeds.values()]
        for run in sorted(runs, key=lambda run: (run.bits, run.seed)):
            training, whole = run.seconds["training"], run.seconds["whole"]
            seconds = (round(training / max(run.epoch, 1), 3), round(training, 1), round(whole, 1))
            memory = None if run.memory is None else round(run.memory)
            speed = (*seconds, round(run.photos_per_second), memory, run.alongside)
            rows.append((method.title, run.bits, run.seed, run.epoch, *speed, run.device, run.precision))
    return table("cost", rows, {"group": group})


# ── methods on the same photos ───────────────────────────────────────────────────────────────────────────

REACHED = 0.95  # of the final mAP: what "has converged" means in the table


def comparison_table(done: Sequence[tuple[Recipe, Record]], protocol: Protocol) -> Table:
    """Methods by length, the best first: mAP, how sure it is, how far behind the first, and what it took."""
    runs: dict[tuple[int, str, Recipe], list[Record]] = {}
    for recipe, record in done:
        runs.setdefault((record.bits, record.config["loss"], recipe), []).append(record)
    seeds = {key: Seeds.of({run.seed: run.scores(protocol.name) for run in some}) for key, some in runs.items()}
    order = sorted(seeds, key=lambda key: (key[0], -seeds[key].mean))
    first = {key[0]: key for key in reversed(order)}
    apart = intervals_of({key: ahead(seeds[first[key[0]]], seeds[key]) for key in order if key != first[key[0]]})
    sure = with_intervals(seeds)
    records = [
        {"bits": bits, "loss": loss, "recipe": recipe, "mAP": cell.mean, **cell.record()}
        | {"behind": seeds[first[bits]].mean - cell.mean, "behind_interval": apart.get((bits, loss, recipe))}
        | {"seconds": min((r.seconds["training"] for r in runs[bits, loss, recipe] if r.seconds), default=None)}
        | {"converged": runs[bits, loss, recipe][0].seconds_to(REACHED, protocol.name)}
        for (bits, loss, recipe), cell in ((key, sure[key]) for key in order)
    ]
    several = any(recipe != "house" for _, _, recipe in order)
    columns = ("bits", "loss", *(("recipe",) if several else ()), *COMPARED)
    equal = [i for i, r in enumerate(records) if not r["behind"] or (r["behind_interval"] or (1,))[0] <= 0]
    rows = (_compared(record, several) for record in records)
    best = frozenset((i, columns.index("mAP")) for i in equal)
    values = {"protocol": protocol, "described": protocol.describe()}
    return table("comparison", rows, values, columns=columns, best=best, records=tuple(records))


def _compared(record: Mapping[str, Any], several: bool) -> tuple[Cell, ...]:
    """A row of the table, from what programs get."""
    loss = record["loss"]
    starred = loss + "*" * (loss in losses and losses[loss].adapted)  # no file that a record names is run
    of = (RECIPES[record["recipe"]] or "ours",) if several else ()
    how_sure = as_text(record["interval"]) or f"standard error {record['standard_error']:.3f}"
    count = len(record["by_seed"])
    means = (record["mAP"], how_sure, count, record["spread"] if count > 1 else None)
    behind = (record["behind"] or None, as_text(record["behind_interval"]))
    seconds = None if record["seconds"] is None else round(record["seconds"], 1)
    return (record["bits"], starred, *of, *means, *behind, seconds, record["converged"])


COMPARED = (
    *("mAP", "95 % interval", "seeds", "spread", "behind the first", "95 % interval of that"),
    *("training s", f"s to {REACHED:.0%}"),
)


# ── orderings ────────────────────────────────────────────────────────────────────────────────────────────

ALL = "all others"


@dataclass(frozen=True)
class Ordering:
    """One published ordering, method A above method B at a length, and what we find."""

    better: str
    worse: str
    bits: int
    published: float  # by how much the better one is ahead
    ours: float  # the same here; negative where the order is reversed
    spread: float | None  # of seeds, the larger of the two, where several were run
    holds: bool
    within_spread: bool  # whether another seed might have turned it round


def orderings(
    group: Group, methods: Sequence[Method], published: Mapping[str, Row], measure: Measure
) -> list[Ordering]:
    """All pairs of methods with a published difference for which both have been run here."""
    found: list[Ordering] = []
    for bits in group.bits:
        figures = {
            method.title: measure.sign * figure
            for method in methods
            if (row := published.get(method.key)) and (figure := row.values.get(bits)) is not None
        }
        ours = {m.title: seeds for m in methods if (seeds := group.seeds(m, bits, measure))}
        found += _orderings(figures, ours, bits, measure.sign)
    return sorted(found, key=lambda o: (o.bits, o.worse != ALL, -o.published))


def _orderings(figures: Mapping[str, float], ours: Mapping[str, Seeds], bits: int, sign: int) -> Iterator[Ordering]:
    """Those of one length, by the methods' titles; then the best of all, where all that are published were run."""

    def ordering(better: str, worse: str, gap: float, than: str) -> Ordering:
        a, b = ours[better], ours[than]
        spread = max((seeds.spread for seeds in (a, b) if len(seeds.values) > 1), default=None)
        ahead = sign * (a.mean - b.mean)
        within = spread is not None and abs(ahead) <= spread
        return Ordering(better, worse, bits, gap, ahead, spread, holds=ahead > 0, within_spread=within)

    for better, worse in permutations([title for title in figures if title in ours], 2):
        if (gap := figures[better] - figures[worse]) > 0:
            yield ordering(better, worse, gap, worse)
    ranked = sorted(figures, key=lambda title: -figures[title])
    if len(ranked) >= 3 and set(ranked) <= set(ours) and (gap := figures[ranked[0]] - figures[ranked[1]]) > 0:
        yield ordering(ranked[0], ALL, gap, max(ranked[1:], key=lambda title: sign * ours[title].mean))


def orderings_table(
    name: str, group: Group, methods: Sequence[Method], published: Mapping[str, Row], measure: Measure
) -> Table:
    """Every ordering with a yes or no; how many hold is in the title."""
    found = orderings(group, methods, published, measure)
    rows: list[tuple[Cell, ...]] = []
    for o in found:
        order = f"{o.better} {'>' if measure.largest_is_best else '<'} {o.worse}"
        verdict = ("holds" if o.holds else "does not hold") + " (within the spread of seeds)" * o.within_spread
        rows.append((o.bits, order, o.published, o.ours, o.spread, verdict))
    count = {"held": sum(o.holds for o in found), "count": len(found)}
    values = {"name": name, "group": group, "measure": measure} | count
    return table("orderings", rows, values, records=tuple(map(asdict, found)))
