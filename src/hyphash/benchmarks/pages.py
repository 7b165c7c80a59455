"""Pages: the tables and figures of a benchmark, made from the records of its runs; as files, and as one HTML page.

No photo is needed, except for a gallery, and no GPU.
"""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from hyphash import hamming, plots, report
from hyphash.benchmarks import Benchmark, Dataset, Method, Planned
from hyphash.benchmarks import figures as draw
from hyphash.benchmarks.figures import Drawn
from hyphash.benchmarks.published import ABLATION, MAP, SPREAD, TITLES, Row
from hyphash.benchmarks.runs import Record, Results, RunCodes
from hyphash.benchmarks.tables import (
    Cell,
    Group,
    Measure,
    Table,
    against_published,
    cost_table,
    map_measure,
    orderings,
    orderings_table,
)
from hyphash.datasets import Splits
from hyphash.errors import DataError
from hyphash.files import write_atomically
from hyphash.hasher import unit

PROTOCOLS = ("paper", "strict")
RASTER = ("tsne", "gallery")  # figures of many points or photos: as pixels on the page


@dataclass(frozen=True)
class Section:
    """Some tables and figures that belong together."""

    title: str
    tables: tuple[Table, ...] = ()
    figures: tuple[Drawn, ...] = ()


@dataclass(frozen=True)
class Page:
    """All that a benchmark shows."""

    title: str
    text: str
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def tables(self) -> list[Table]:
        return [table for section in self.sections for table in section.tables]

    @property
    def figures(self) -> list[Drawn]:
        return [figure for section in self.sections for figure in section.figures]

    def html(self) -> str:
        return report.render("benchmark.html", title=self.title, page=self, picture=_picture)

    def write(self, folder: Path) -> Path:
        """Every table as Markdown, CSV and JSON, every figure as PNG and SVG, and report.html with all of it."""
        folder.mkdir(parents=True, exist_ok=True)
        for table in self.tables:
            table.write(folder)
        for drawn in self.figures:
            for kind in ("png", "svg"):
                plots.save(drawn.figure, folder / f"{drawn.name}.{kind}")
        write_atomically(folder / "report.html", self.html())
        return folder / "report.html"


def _picture(drawn: Drawn) -> Mapping[str, str]:
    """A figure as the page shows it: drawn where it has few parts, else as pixels."""
    if not drawn.name.endswith(RASTER):
        return {"svg": plots.svg(drawn.figure, drawn.name)}
    data = io.BytesIO()
    drawn.figure.savefig(data, format="png", dpi=110)
    return {"png": base64.b64encode(data.getvalue()).decode()}


def run_facts(records: Sequence[Record]) -> dict[str, str]:
    """What a reader has to know about how the runs were made."""
    if not records:
        return {}
    facts = {
        "device": {record.device for record in records},
        "precision": {record.precision for record in records},
        "weights": {f"{record.weights.name} {record.weights.digest}".strip() for record in records},
        "epochs": {f"last of {record.epoch}" for record in records},
        "versions": {f"{name} {text}" for record in records for name, text in record.versions.items()},
    }
    return {"runs": str(len(records))} | {name: ", ".join(sorted(values)) for name, values in facts.items()}


# ── benchmarks of runs ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Outcome:
    """What has come of a benchmark's runs so far."""

    benchmark: Benchmark
    dataset: Dataset
    planned: Sequence[Planned]
    results: Results
    beside: Sequence[Planned] = ()  # finished runs with other networks than the paper's
    splits: Splits | None = None  # where the data is at hand
    mark: str = ""  # two sets of labels that the t-SNE plot rings, such as bus+car,person+train
    queries: tuple[int, ...] = ()  # rows of the queries that the gallery shows

    @cached_property
    def groups(self) -> list[Group]:
        """The finished runs of each network and size of photos."""
        found: dict[str, list[tuple[Method, Record]]] = {}
        for planned in (*self.planned, *self.beside):
            if (record := self.results.record(planned.run)) is not None:
                network = f"{planned.run.config.backbone} at {planned.run.config.size} pixels"
                found.setdefault(network, []).append((planned.method, record))
        bits = sorted({planned.run.config.bits for planned in self.planned})
        return [Group(self.dataset, network, bits, runs) for network, runs in found.items()]

    @property
    def methods(self) -> list[Method]:
        return list({planned.method.key: planned.method for planned in self.planned}.values())

    def page(self) -> Page:
        title, show = SHOWN[self.benchmark.name]
        sections, notes = [], []
        for group in self.groups:
            shown = show(self, group)
            if isinstance(shown, str):
                notes.append(shown)
            else:
                sections.append(Section(group.title, tuple(shown[0]), tuple(shown[1])))
        missing = sum(self.results.record(planned.run) is None for planned in self.planned)
        if missing:
            notes.append(f"{missing} of {len(self.planned)} runs are not done yet")
        return Page(
            f"{self.dataset.title}: {title.format(top=self.dataset.top)}",
            self.benchmark.about,
            tuple(sections),
            tuple(note for note in dict.fromkeys(notes) if note),
            run_facts([record for group in self.groups for record in group.records]),
        )


Contents = tuple[Sequence[Table], Sequence[Drawn]]
Shown = Contents | str  # tables and figures, or why there are none


# ── mAP, the parts of the loss, spread ───────────────────────────────────────────────────────────────────


def show_map(outcome: Outcome, group: Group) -> Contents:
    """A table of the paper with our figures beside, both protocols, the orderings that hold, and the cost."""
    published = {**MAP, "ablation": ABLATION.get(group.dataset.name)}.get(outcome.benchmark.name)
    published = published if group.is_published else None
    paper, strict = (map_measure(protocol, group.dataset) for protocol in PROTOCOLS)
    methods = [method for method in outcome.methods if published or method.key in group.methods]
    spread = "spread: largest less smallest over the seeds, length by length; ours is their mean"
    notes = _about_published(group.dataset) if published else []
    absent = "the paper has no figures of this protocol, so none stand beside ours"
    tables = [
        against_published(group, paper, methods, published, [spread, *notes]),
        against_published(group, strict, methods, None, [spread, absent]),
    ]
    if published:
        found = orderings(group, methods, published, paper)
        tables.append(orderings_table(f"{group.stem}-orderings", group.title, found, paper))
    tables.append(cost_table(group, methods))
    drawn = Drawn(
        f"{group.stem}-map",
        f"mAP@{group.dataset.top:,} over the length of codes",
        "Protocol paper; means over seeds. Published figures were measured on the full-size photos.",
        draw.over_bits(_lines(group, methods, published), f"mAP@{group.dataset.top:,}"),
    )
    return tables, [drawn]


def _about_published(dataset: Dataset) -> list[str]:
    sources = sorted({row.source for row in MAP[dataset.name].values() if row.origin == "quoted"})
    return [
        "own: the paper's method, measured by its authors; re-run: measured by them with public models; quoted: "
        f"taken over by them from {' and '.join(sources)}",
        "the published figures are the best of 20 evaluations on the queries, ours are of the last epoch",
        f"HyP² with β = {dataset.beta:g} ({dataset.beta_from})",
    ]


def _lines(
    group: Group, methods: Sequence[Method], published: Mapping[str, Row] | None
) -> dict[str, dict[str, dict[int, float]]]:
    """Published and ours: mAP by method and length."""
    measure = map_measure("paper", group.dataset)
    panels: dict[str, dict[str, dict[int, float]]] = {"published": {}, "ours": {}}
    for method in methods:
        row = (published or {}).get(method.key)
        for bits in group.bits:
            seeds, figure = group.seeds(method, bits, measure), row.at(group.dataset.bits, bits) if row else None
            for name, value in (("published", figure), ("ours", seeds.mean if seeds else None)):
                if value is not None:
                    panels[name].setdefault(method.title, {})[bits] = value
    return {name: panel for name, panel in panels.items() if panel}


def show_ablation(outcome: Outcome, group: Group) -> Shown:
    """What each part of the loss is worth."""
    tables, drawn = show_map(outcome, group)
    return [*(_gain_table(group, protocol) for protocol in PROTOCOLS), *tables], drawn


def _gain_table(group: Group, protocol: str) -> Table:
    """HyP² against the proxy loss alone at every length, seed by seed."""
    dataset, measure = group.dataset, map_measure(protocol, group.dataset)
    keys = f"hyp2-{dataset.beta:g}", "proxy"
    rows: list[tuple[Cell, ...]] = []
    for bits in group.bits:
        ours, proxy = (group.seeds(Method.of(key, dataset), bits, measure) for key in keys)
        if ours is None or proxy is None:
            continue
        own, others = list(ours.values.values()), list(proxy.values.values())
        row = (bits, len(own), ours.mean, ours.spread, len(others), proxy.mean, proxy.spread)
        high, low = (ABLATION[dataset.name][key].at(dataset.bits, bits) for key in keys)
        printed = (None if high is None or low is None else high - low,) if protocol == "paper" else ()
        rows.append((*row, ours.mean - proxy.mean, min(own) - max(others), *printed))
    columns = ("bits", "seeds", "HyP²", "spread", "seeds of proxy", "proxy", "spread of proxy", "gain", "least gain")
    return Table(
        name=f"{group.stem}-gain-{protocol}",
        title=f"{group.title}: HyP² against the proxy loss alone, {measure.title}",
        above=measure.above,
        columns=columns + (("gain, published",) if protocol == "paper" else ()),
        rows=tuple(rows),
        below=("gain: difference of the means; least gain: worst seed of HyP² less best seed of the proxy loss",),
    )


SPREAD_MEASURES = (
    Measure(
        name="d_intra",
        title="d_intra (small is good)",
        above="Mean over the photos of the database of the ℓ2 distance of the ±1 code to the centre of its cluster. A "
        "cluster is all photos with the same set of labels, its centre the mean of their codes. The paper does not "
        "define its clusters; ours is the reading that fits best, so compare orderings, not values.",
        value=lambda record: record.report.separation.d_intra if record.report.separation else None,
        largest_is_best=False,
    ),
    Measure(
        name="d_inter",
        title="d_inter (large is good)",
        above="Mean over clusters of the ℓ2 distance of a centre to the nearest centre of a cluster that shares no "
        "label with it. Clusters as for d_intra.",
        value=lambda record: record.report.separation.d_inter if record.report.separation else None,
    ),
)


def show_spread(outcome: Outcome, group: Group) -> Shown:
    """d_intra and d_inter of the runs of the ablation."""
    tables = []
    for measure in SPREAD_MEASURES:
        published = SPREAD[group.dataset.name][measure.name] if group.is_published else None
        tables.append(against_published(group, measure, outcome.methods, published))
        if published:
            found = orderings(group, outcome.methods, published, measure)
            tables.append(orderings_table(f"{group.stem}-{measure.name}-orderings", group.title, found, measure))
    return tables, []


# ── curves ───────────────────────────────────────────────────────────────────────────────────────────────


def show_convergence(_outcome: Outcome, group: Group) -> Shown:
    """mAP of the queries over the seconds of training."""
    watched = {title: run for runs in group.firsts().values() for title, run in runs.items() if run.curve}
    if not watched:
        return ""
    alongside = max(run.alongside for run in watched.values())
    device = ", ".join(sorted({run.device for run in watched.values()}))
    how = "one run at a time" if alongside == 1 else f"{alongside} runs side by side, which slows all of them"
    drawn = [
        Drawn(
            f"{group.stem}-convergence-{protocol}",
            f"mAP@{group.dataset.top:,} while training, protocol {protocol}",
            f"48 bits, {device}, {how}; the clock stands still while the queries are measured.",
            draw.convergence(watched, protocol),
        )
        for protocol in PROTOCOLS
    ]
    return [_convergence_table(group, watched, protocol) for protocol in PROTOCOLS], drawn


def _convergence_table(group: Group, watched: Mapping[str, Record], protocol: str) -> Table:
    measure = map_measure(protocol, group.dataset)
    rows: list[tuple[Cell, ...]] = []
    for title, run in watched.items():
        scores = [point.map(protocol) for point in run.curve]
        best, late = int(np.argmax(scores)), scores[len(scores) // 2 :]
        reached = (run.seconds_to(share, protocol) for share in (0.95, 0.99))
        rest = max(late) - min(late), round(run.curve[-1].seconds, 1)
        rows.append((title, scores[-1], scores[best], run.curve[best].epoch, *reached, *rest))
    return Table(
        name=f"{group.stem}-convergence-{protocol}",
        title=f"{group.dataset.title}: convergence, {measure.title}",
        above=measure.above,
        columns=(
            *("method", "last epoch", "best on queries", "at epoch", "s to 95 % of the last", "s to 99 %"),
            *("range in the second half", "s in all"),
        ),
        rows=tuple(rows),
        below=("best on queries is how the paper's figures were chosen; it looks at the answers, and is no result",),
        records=tuple(
            {"method": title, "curve": [vars(point) for point in run.curve]} for title, run in watched.items()
        ),
    )


def show_top_n(_outcome: Outcome, group: Group) -> Shown:
    """Precision of the first N photos."""
    drawn, tables, runs = [], [], group.firsts()
    for protocol, ties in (("paper", "by id"), ("strict", "by expectation")):
        title, caption = f"Precision of the top N, protocol {protocol}", f"First seed of each method, ties {ties}."
        drawn.append(Drawn(f"{group.stem}-topn-{protocol}", title, caption, draw.top_n(runs, protocol)))
        above = f"The mean over queries of the share of relevant photos among the first N; ties {ties}. "
        points = {(bits, title): run.top_n(protocol) for bits, some in runs.items() for title, run in some.items()}
        tables.append(
            Table(
                name=f"{group.stem}-topn-{protocol}",
                title=f"{group.dataset.title}: precision of the first N photos, ties {ties}",
                above=above + map_measure(protocol, group.dataset).above,
                columns=("bits", "method", *(f"{n:,}" for n in list(points.values())[-1])),
                rows=tuple((*key, *line.values()) for key, line in points.items()),
            )
        )
    return tables, drawn


# ── where photos lie, and which ones are found ───────────────────────────────────────────────────────────


def _codes(outcome: Outcome, group: Group) -> dict[str, RunCodes]:
    """The codes of each method, where they were kept."""
    runs = {title: run for some in group.firsts().values() for title, run in some.items()}
    return {title: codes for title, run in runs.items() if (codes := outcome.results.codes(run)) is not None}


def show_tsne(outcome: Outcome, group: Group) -> Shown:
    """Where the queries lie, coloured by all their labels."""
    known = _query_labels(outcome)
    if known is None:
        return "the labels of the queries are not at hand: give --data once, and they are kept"
    labels, classes = known
    outputs = {t: codes.outputs for t, codes in _codes(outcome, group).items() if codes.outputs is not None}
    if not outputs:
        return "the codes of these runs were not kept, so nothing can be drawn"
    marked = _marked(outcome, outputs, labels, classes)
    caption = f"{len(labels):,} queries of {group.dataset.title}, 48 bits: t-SNE of the direction of their real "
    caption += "outputs. Each photo is a pie of the colours of all its labels." + (
        f" Ringed: photos with {marked[0][0]} (red) and with {marked[1][0]} (black)." if len(marked) == 2 else ""
    )
    places = {title: draw.embed(values) for title, values in outputs.items()}
    figure = draw.tsne(places, labels, classes, marked)
    tables = [_apart_table(group, outputs, marked)] if len(marked) == 2 else []
    return tables, [Drawn(f"{group.stem}-tsne", "Where photos lie", caption, figure)]


def _marked(outcome: Outcome, outputs: Mapping[str, Any], labels: Any, classes: Sequence[str]) -> Any:
    """The two sets of photos to ring: as asked for, or those that the proxy loss puts nearest beside HyP²."""
    if not outcome.mark:
        proxy, hyp2 = outputs.get(TITLES["proxy"]), outputs.get(TITLES["hyp2"])
        return [] if proxy is None or hyp2 is None else draw.conflict(proxy, hyp2, labels, classes)
    sets = []
    for part in outcome.mark.split(","):
        names = [name.strip() for name in part.split("+")]
        if unknown := [name for name in names if name not in classes]:
            raise DataError(f"--mark: no label {unknown[0]!r}; there are {', '.join(classes)}")
        carrying = labels[:, [classes.index(name) for name in names]].all(axis=1)
        if not carrying.any():
            raise DataError(f"--mark: no query of {outcome.dataset.title} carries {part.strip()}")
        sets.append((" & ".join(names), carrying))
    return sets


def _apart_table(group: Group, outputs: Mapping[str, Any], marked: Any) -> Table:
    (one, first), (two, second) = marked
    rows: list[tuple[Cell, ...]] = []
    for title, values in outputs.items():
        places = unit(values)
        pairs = (first, second), (first, first), (second, second)
        rows.append((title, *(float((places[a] @ places[b].T).mean()) for a, b in pairs)))
    return Table(
        name=f"{group.stem}-apart",
        title=f"Photos with {one} and photos with {two}",
        above=f"Mean cosine of the real outputs at 48 bits, {int(first.sum())} and {int(second.sum())} queries. The "
        "two sets share no label of the other's pair; between them, small is good.",
        columns=("method", "between the two", f"within {one}", f"within {two}"),
        rows=tuple(rows),
    )


def _query_labels(outcome: Outcome) -> tuple[Any, list[str]] | None:
    """Labels and classes of the queries: from the data, or as they were kept the last time it was at hand."""
    name, splits = f"queries-{outcome.dataset.name}", outcome.splits
    if splits is not None:
        labels = [row.tobytes().hex() for row in np.packbits(splits.queries.labels, axis=1)]
        outcome.results.keep_facts(name, {"classes": list(splits.classes), "labels": labels})
        return splits.queries.labels, list(splits.classes)
    for kept in outcome.results.facts(name).values():
        rows = np.array([list(bytes.fromhex(row)) for row in kept["labels"]], np.uint8)
        return np.unpackbits(rows, axis=1, count=len(kept["classes"])), kept["classes"]
    return None


def show_gallery(outcome: Outcome, group: Group) -> Shown:
    """The first ten photos for some queries, as in the paper's first figure."""
    splits = outcome.splits
    if splits is None:
        return "a gallery shows photos: give --data to draw it"
    found = _codes(outcome, group)
    if not found:
        return ""
    caption = "The ten photos nearest by Hamming distance, 48 bits. Below each: how many of the query's labels "
    caption += "it carries; green from 75 % of them, red at 25 % or less. " + (
        "Queries as asked for." if outcome.queries else "The first query with two labels, with three, and so on."
    )
    figure = draw.gallery([_query(splits, row, found) for row in outcome.queries or _some_queries(splits)])
    return [], [Drawn(f"{group.stem}-gallery", "What is found", caption, figure)]


def _some_queries(splits: Splits) -> list[int]:
    """The first query with two labels, the first with three … up to five: nobody chose them by their results."""
    carried = splits.queries.labels.sum(axis=1, dtype=np.int64)
    firsts = [np.flatnonzero(carried == size) for size in (2, 3, 4, 5)]
    return [int(rows[0]) for rows in firsts if len(rows)] or [0]


def _query(splits: Splits, row: int, found: Mapping[str, RunCodes]) -> draw.Query:
    wanted, database = splits.queries.labels[row], splits.database
    hits = {}
    for title, codes in found.items():
        _, ids = hamming.search(codes.queries[row], codes.database, 10)
        hits[title] = [
            draw.Hit(partial(database.read, int(i)), int((wanted & database.labels[i]).sum())) for i in ids[0]
        ]
    names = tuple(splits.classes[c] for c in np.flatnonzero(wanted))
    return draw.Query(partial(splits.queries.read, row), names, hits)


# by benchmark: what its title says of the dataset, and its tables and figures for one network
SHOWN: Mapping[str, tuple[str, Callable[[Outcome, Group], Shown]]] = {
    **dict.fromkeys(MAP, ("mAP@{top:,}", show_map)),
    "ablation": ("what each part of the loss is worth", show_ablation),
    "spread": ("how tight and how far apart", show_spread),
    "convergence": ("convergence", show_convergence),
    "topn": ("precision of the top N", show_top_n),
    "tsne": ("t-SNE", show_tsne),
    "gallery": ("gallery", show_gallery),
}
