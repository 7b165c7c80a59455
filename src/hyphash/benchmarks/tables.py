"""Tables: ours beside the published figures. Printed, and written as Markdown, CSV and JSON.

Figures of different protocols never share a column: every protocol has a table of its own, with the protocol
spelled out above it.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from hyphash.benchmarks import Method
from hyphash.benchmarks.published import Dataset, Row
from hyphash.benchmarks.runs import Record
from hyphash.evaluation import Protocol
from hyphash.files import write_atomically

Cell = str | int | float | None
Marks = frozenset[tuple[int, int]]  # (row, column) of cells that stand out


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table for people, and the same as plain records for programs."""

    name: str  # of its files
    title: str
    above: str = ""  # the protocol, or what the columns mean
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    below: tuple[str, ...] = ()  # notes
    best: Marks = frozenset()
    records: tuple[Mapping[str, Any], ...] = field(default=())
    digits: int = 3

    def text(self, value: Cell) -> str:
        if value is None:
            return "–"
        if isinstance(value, float):
            return f"{value:.{self.digits}f}"
        return f"{value:,}" if isinstance(value, int) else value

    def markdown(self) -> str:
        def line(cells: Iterable[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

        rows = []
        for i, row in enumerate(self.rows):
            texts = [f"**{self.text(v)}**" if (i, j) in self.best else self.text(v) for j, v in enumerate(row)]
            rows.append(line(texts))
        kinds = ["---" if _is_text(self.rows, j) else "--:" for j in range(len(self.columns))]
        head = [f"### {self.title}", ""] + ([self.above, ""] if self.above else [])
        notes = ["", *(f"- {note}" for note in self.below)] if self.below else []
        return "\n".join([*head, line(self.columns), "|" + "|".join(kinds) + "|", *rows, *notes]) + "\n"

    def plain(self) -> str:
        """For a terminal: columns in line, headings broken at spaces, nothing folded."""
        texts = [[self.text(value) for value in row] for row in self.rows]
        heads = [column.split(" ") for column in self.columns]
        deep = max(map(len, heads))
        lines = [[head[i - deep + len(head)] if i >= deep - len(head) else "" for head in heads] for i in range(deep)]
        widths = [max(len(line[j]) for line in [*lines, *texts]) for j in range(len(heads))]
        left = [_is_text(self.rows, j) for j in range(len(heads))]

        def joined(line: Sequence[str]) -> str:
            cells = zip(line, widths, left, strict=True)
            return "  ".join(t.ljust(w) if to_left else t.rjust(w) for t, w, to_left in cells).rstrip()

        rule = "─" * (sum(widths) + 2 * (len(widths) - 1))
        return "\n".join([*map(joined, lines), rule, *map(joined, texts)])

    def csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([["" if value is None else value for value in row] for row in self.rows])
        return out.getvalue()

    def json(self) -> str:
        rows = self.records or tuple(dict(zip(self.columns, row, strict=True)) for row in self.rows)
        value = {"title": self.title, "protocol": self.above, "notes": list(self.below), "rows": list(rows)}
        return json.dumps(value, indent=1, ensure_ascii=False) + "\n"

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, text in (("md", self.markdown()), ("csv", self.csv()), ("json", self.json())):
            write_atomically(folder / f"{self.name}.{suffix}", text)


def _is_text(rows: Sequence[Sequence[Cell]], column: int) -> bool:
    return any(isinstance(row[column], str) for row in rows)


@dataclass(frozen=True)
class Seeds:
    """A figure of one or several runs that differ in their seed alone."""

    values: Mapping[int, float]  # by seed

    @property
    def mean(self) -> float:
        return fmean(self.values.values())

    @property
    def spread(self) -> float:
        """Largest less smallest."""
        return max(self.values.values()) - min(self.values.values())

    def record(self) -> dict[str, Any]:
        return {"mean": self.mean, "spread": self.spread, "by_seed": {str(k): v for k, v in self.values.items()}}


# by (method, bits): the records of all seeds
Cells = Mapping[tuple[str, int], Mapping[int, Record]]


def by_cell(found: Iterable[tuple[Method, Record]]) -> dict[tuple[str, int], dict[int, Record]]:
    """Records by the cell of the table they belong to, and by seed."""
    cells: dict[tuple[str, int], dict[int, Record]] = {}
    for method, record in found:
        cell = cells.setdefault((method.key, int(record.config["bits"])), {})
        cell[int(record.config["seed"])] = record
    return cells


def seeds_of(records: Mapping[int, Record], value: Callable[[Record], float | None]) -> Seeds | None:
    values = {seed: value(record) for seed, record in records.items()}
    known = {seed: number for seed, number in sorted(values.items()) if number is not None}
    return Seeds(known) if known else None


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What a table shows of each run."""

    name: str
    title: str
    above: str
    value: Callable[[Record], float | None]
    largest_is_best: bool = True


def map_measure(protocol: str, dataset: Dataset) -> Measure:
    described = Protocol.preset(protocol, dataset.top)
    return Measure(
        name=f"map-{protocol}",
        title=f"mAP{described.depth}, protocol {protocol}",
        above=described.describe(),
        value=lambda record: record.map(protocol),
    )


def against_published(
    *,
    name: str,
    title: str,
    measure: Measure,
    dataset: Dataset,
    methods: Sequence[Method],
    cells: Cells,
    published: Mapping[str, Row] | None,
    bits: Sequence[int],
    notes: Sequence[str] = (),
) -> Table:
    """Methods down, lengths across: the published figure, ours, and the spread over seeds where there are several.

    `published` is None where the paper has no such figures: those of another protocol are never put beside ours.
    """
    ours = {
        (method.key, length): seeds_of(cells.get((method.key, length), {}), measure.value)
        for method in methods
        for length in bits
    }
    columns, rows, records = ["method", *(["origin"] if published else [])], [], []
    for length in bits:
        columns += [f"{length} published", f"{length} ours"] if published else [f"{length} ours"]
    columns += ["spread", "seeds", "last epoch"]
    for method in methods:
        printed = (published or {}).get(method.key)
        row: list[Cell] = [method.title, *([printed.origin if printed else None] if published else [])]
        for length in bits:
            seeds, figure = ours[method.key, length], printed.at(dataset.bits, length) if printed else None
            row += [figure, seeds.mean if seeds else None] if published else [seeds.mean if seeds else None]
            records.append(_cell_record(method, length, measure, seeds, figure, printed))
        own = [ours[method.key, length] for length in bits]
        rows.append((*row, _spreads(own), _seed_count(own), _epochs(cells, method, bits)))
    table_columns = tuple(columns)
    return Table(
        name=name,
        title=title,
        above=measure.above,
        columns=table_columns,
        rows=tuple(rows),
        below=tuple(notes),
        best=_best(table_columns, rows, measure.largest_is_best),
        records=tuple(records),
    )


def _cell_record(
    method: Method, bits: int, measure: Measure, seeds: Seeds | None, figure: float | None, printed: Row | None
) -> dict[str, Any]:
    return {
        "method": method.key,
        "bits": bits,
        "measure": measure.name,
        "published": figure,
        "published_origin": printed.origin if printed else None,
        "published_source": printed.source if printed else None,
        "ours": seeds.record() if seeds else None,
    }


def _spreads(own: Sequence[Seeds | None]) -> Cell:
    """The spread over seeds at each length, where there are several."""
    if not any(seeds and len(seeds.values) > 1 for seeds in own):
        return None
    return " ".join(f"{seeds.spread:.3f}" if seeds and len(seeds.values) > 1 else "–" for seeds in own)


def _seed_count(own: Sequence[Seeds | None]) -> Cell:
    counts = {len(seeds.values) for seeds in own if seeds}
    return max(counts) if len(counts) == 1 else ", ".join(map(str, sorted(counts))) or None


def _epochs(cells: Cells, method: Method, bits: Sequence[int]) -> Cell:
    """Which epoch was measured, always the last: a fact of the run, in a column of its own."""
    numbers = {record.epoch for length in bits for record in cells.get((method.key, length), {}).values()}
    return numbers.pop() if len(numbers) == 1 else ", ".join(map(str, sorted(numbers))) or None


def _best(columns: Sequence[str], rows: Sequence[Sequence[Cell]], largest: bool) -> Marks:
    marks = set()
    for j, column in enumerate(columns):
        if not column.endswith(("ours", "published")):
            continue
        values = {i: value for i, row in enumerate(rows) if isinstance(value := row[j], float)}
        if len(values) > 1:
            top = (max if largest else min)(values.values())
            marks |= {(i, j) for i, value in values.items() if round(value, 3) == round(top, 3)}
    return frozenset(marks)


def cost_table(name: str, dataset: Dataset, methods: Sequence[Method], cells: Cells) -> Table:
    """What the runs cost on the device they were made on."""
    rows = []
    for method in methods:
        for (key, bits), records in sorted(cells.items()):
            for seed, record in sorted(records.items()) if key == method.key else ():
                epoch = record.seconds["training"] / max(record.epoch, 1)
                rows.append(
                    (
                        *(
                            method.title,
                            bits,
                            seed,
                            record.epoch,
                            round(epoch, 3),
                            round(record.seconds["training"], 1),
                        ),
                        *(round(record.seconds["whole"], 1), round(record.photos_per_second)),
                        *(None if record.memory is None else round(record.memory), record.alongside),
                        *(record.device, record.precision),
                    )
                )
    return Table(
        name=name,
        title=f"What the runs cost, {dataset.title}",
        above="Seconds of an epoch and of all epochs are of training alone; those of the whole run include reading the "
        "photos, saving and evaluation. Runs that shared the device with others (column side by side) took longer "
        "for it. Memory is the peak on the GPU.",
        columns=(
            *("method", "bits", "seed", "epochs", "s an epoch", "s training", "s in all", "photos/s", "MiB"),
            *("side by side", "device", "precision"),
        ),
        rows=tuple(rows),
        digits=2,
    )
