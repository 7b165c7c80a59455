"""Pages: the tables and figures of a benchmark, made from the records of its runs.

No photo is needed, except for a gallery, and no GPU.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from hyphash.benchmarks import ABLATION, MAP, SPREAD, TITLES, Method, Row, tables
from hyphash.benchmarks import figures as draw
from hyphash.benchmarks.runs import Record, RunCodes
from hyphash.benchmarks.tables import Group, drawn, map_measure, table
from hyphash.errors import DataError
from hyphash.evaluation import PROTOCOLS, EncodedSplit, Interval
from hyphash.evaluation.significance import as_text
from hyphash.hasher import unit
from hyphash.report import Cell, Drawn, Table, gallery_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hyphash.benchmarks.reproduction import Reproduction


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


Contents = tuple[Sequence[Table], Sequence[Drawn]]
Shown = Contents | str  # tables and figures, or why there are none


# ── mAP, the parts of the loss, spread ───────────────────────────────────────────────────────────────────


def show_map(asked: "Reproduction", group: Group) -> Contents:
    """A table of the paper with our figures beside, both protocols, the orderings that hold, and the cost."""
    published = {**MAP, "ablation": ABLATION.get(group.dataset.name)}.get(asked.benchmark.name)
    published = published if group.is_published else None
    paper, strict = (map_measure(protocol, group.dataset) for protocol in PROTOCOLS)
    methods = [method for method in asked.methods if published or method.key in group.methods]
    notes = tables.filled(tables.WORDS["notes"], {"dataset": group.dataset})
    beside = notes["seeds"] + (notes["published"] if published else ())
    shown = [
        tables.against_published(group, paper, methods, published, beside),
        tables.against_published(group, strict, methods, None, notes["seeds"] + notes["absent"]),
    ]
    if published:
        shown.append(tables.orderings_table("orderings", group, methods, published, paper))
    shown.append(tables.cost_table(group, methods))
    return shown, [drawn("map", _map_figure(group, methods, published), group=group)]


def _map_figure(group: Group, methods: Sequence[Method], published: Mapping[str, Row] | None) -> "Figure":
    """Published and ours over the lengths of codes, with how sure ours are."""
    panels: dict[str, dict[str, dict[int, float]]] = {"published": {}, "ours": {}}
    bars: dict[str, dict[int, Interval]] = {}
    cells = tables.with_intervals(group.measured(methods, map_measure("paper", group.dataset)))
    for method, bits in product(methods, group.bits):
        row = (published or {}).get(method.key)
        if row and (figure := row.values.get(bits)) is not None:
            panels["published"].setdefault(method.title, {})[bits] = figure
        if seeds := cells.get((method.key, bits)):
            panels["ours"].setdefault(method.title, {})[bits] = seeds.mean
            error = seeds.standard_error or 0.0
            bars.setdefault(method.title, {})[bits] = seeds.interval or (seeds.mean - error, seeds.mean + error)
    return draw.over_bits({k: panel for k, panel in panels.items() if panel}, f"mAP@{group.dataset.top:,}", bars)


def show_ablation(asked: "Reproduction", group: Group) -> Shown:
    """What each part of the loss is worth."""
    shown, figures = show_map(asked, group)
    return [*(_gain_table(group, protocol) for protocol in PROTOCOLS), *shown], figures


def _gain_table(group: Group, protocol: str) -> Table:
    """HyP² against the proxy loss alone at every length, seed by seed."""
    dataset, measure = group.dataset, map_measure(protocol, group.dataset)
    keys = f"hyp2-{dataset.beta:g}", "proxy"
    rows: list[tuple[Cell, ...]] = []
    pairs = {bits: [group.seeds(Method.of(key, dataset), bits, measure) for key in keys] for bits in group.bits}
    sure = tables.intervals_of({bits: tables.ahead(*pair) for bits, pair in pairs.items()})
    for bits, (ours, proxy) in pairs.items():
        if ours is None or proxy is None:
            continue
        own, others = list(ours.values.values()), list(proxy.values.values())
        row = (bits, len(own), ours.mean, ours.spread, len(others), proxy.mean, proxy.spread)
        high, low = (ABLATION[dataset.name][key].values.get(bits) for key in keys)
        printed = (None if high is None or low is None else high - low,) if protocol == "paper" else ()
        how_sure = (as_text(sure.get(bits)),) * bool(sure)
        rows.append((*row, ours.mean - proxy.mean, min(own) - max(others), *how_sure, *printed))
    columns = (
        *("bits", "seeds", "HyP²", "spread", "seeds of proxy", "proxy", "spread of proxy", "gain", "least gain"),
        *("95 % interval of the gain",) * bool(sure),
        *("gain, published",) * (protocol == "paper"),
    )
    return table("gain", rows, {"group": group, "protocol": protocol, "measure": measure}, columns=columns)


def show_spread(asked: "Reproduction", group: Group) -> Shown:
    """d_intra and d_inter of the runs of the ablation."""
    shown = []
    for measure in map(tables.spread_measure, SPREAD[group.dataset.name]):
        published = SPREAD[group.dataset.name][measure.name] if group.is_published else None
        shown.append(tables.against_published(group, measure, asked.methods, published))
        if published:
            name = f"{measure.name}-orderings"
            shown.append(tables.orderings_table(name, group, asked.methods, published, measure))
    return shown, []


# ── curves ───────────────────────────────────────────────────────────────────────────────────────────────


def show_convergence(_asked: "Reproduction", group: Group) -> Shown:
    """mAP of the queries over the seconds of training."""
    watched = {title: run for runs in group.firsts().values() for title, run in runs.items() if run.curve}
    if not watched:
        return ""
    alongside = max(run.alongside for run in watched.values())
    device = ", ".join(sorted({run.device for run in watched.values()}))
    how = "one run at a time" if alongside == 1 else f"{alongside} runs side by side, which slows all of them"
    told = {"group": group, "device": device, "how": how}
    figures = [drawn("convergence", draw.convergence(watched, p), protocol=p, **told) for p in PROTOCOLS]
    return [_convergence_table(group, watched, p) for p in PROTOCOLS], figures


def _convergence_table(group: Group, watched: Mapping[str, Record], protocol: str) -> Table:
    measure = map_measure(protocol, group.dataset)
    rows: list[tuple[Cell, ...]] = []
    for title, run in watched.items():
        scores = [point.map(protocol) for point in run.curve]
        best, late = int(np.argmax(scores)), scores[len(scores) // 2 :]
        reached = (run.seconds_to(share, protocol) for share in (0.95, 0.99))
        rest = max(late) - min(late), round(run.curve[-1].seconds, 1)
        rows.append((title, scores[-1], scores[best], run.curve[best].epoch, *reached, *rest))
    records = ({"method": title, "curve": [vars(point) for point in run.curve]} for title, run in watched.items())
    values = {"group": group, "protocol": protocol, "measure": measure}
    return table("convergence", rows, values, records=tuple(records))


def show_top_n(_asked: "Reproduction", group: Group) -> Shown:
    """Precision of the first N photos."""
    figures, shown, runs = [], [], group.firsts()
    for protocol, ties in (("paper", "by id"), ("strict", "by expectation")):
        values = {"group": group, "protocol": protocol, "ties": ties, "measure": map_measure(protocol, group.dataset)}
        points = {(bits, title): run.top_n(protocol) for bits, some in runs.items() for title, run in some.items()}
        columns = ("bits", "method", *(f"{n:,}" for n in list(points.values())[-1]))
        rows: list[tuple[Cell, ...]] = [(*key, *line.values()) for key, line in points.items()]
        shown.append(table("topn", rows, values, columns=columns))
        figures.append(drawn("topn", draw.top_n(runs, protocol), **values))
    return shown, figures


# ── where photos lie, and which ones are found ───────────────────────────────────────────────────────────


def _codes(asked: "Reproduction", group: Group) -> dict[str, RunCodes]:
    """The codes of each method, where they were kept."""
    runs = {title: run for some in group.firsts().values() for title, run in some.items()}
    return {title: codes for title, run in runs.items() if (codes := asked.results.codes(run)) is not None}


def show_tsne(asked: "Reproduction", group: Group) -> Shown:
    """Where the queries lie, coloured by all their labels."""
    known = _query_labels(asked)
    if known is None:
        return "the labels of the queries are not at hand: give --data once, and they are kept"
    labels, classes = known
    outputs = {t: codes.outputs for t, codes in _codes(asked, group).items() if codes.outputs is not None}
    if not outputs:
        return "the codes of these runs were not kept, so nothing can be drawn"
    marked = _marked(asked, outputs, labels, classes)
    ringed = f" Ringed: photos with {marked[0][0]} (red) and with {marked[1][0]} (black)." if len(marked) == 2 else ""
    places = {title: draw.embed(values) for title, values in outputs.items()}
    figure = draw.tsne(places, labels, classes, marked)
    shown = [_apart_table(group, outputs, marked)] if len(marked) == 2 else []
    return shown, [drawn("tsne", figure, group=group, count=len(labels), ringed=ringed)]


def _marked(asked: "Reproduction", outputs: Mapping[str, Any], labels: Any, classes: Sequence[str]) -> Any:
    """The two sets of photos to ring: as asked for, or those that the proxy loss puts nearest beside HyP²."""
    if not asked.mark:
        proxy, hyp2 = outputs.get(TITLES["proxy"]), outputs.get(TITLES["hyp2"])
        return [] if proxy is None or hyp2 is None else draw.conflict(proxy, hyp2, labels, classes)
    sets = []
    for part in asked.mark.split(","):
        names = [name.strip() for name in part.split("+")]
        if unknown := [name for name in names if name not in classes]:
            raise DataError(f"--mark: no label {unknown[0]!r}; there are {', '.join(classes)}")
        carrying = labels[:, [classes.index(name) for name in names]].all(axis=1)
        if not carrying.any():
            raise DataError(f"--mark: no query of {asked.setting.title} carries {part.strip()}")
        sets.append((" & ".join(names), carrying))
    return sets


def _apart_table(group: Group, outputs: Mapping[str, Any], marked: Any) -> Table:
    (one, first), (two, second) = marked
    rows: list[tuple[Cell, ...]] = []
    for title, values in outputs.items():
        places = unit(values)
        pairs = (first, second), (first, first), (second, second)
        rows.append((title, *(float((places[a] @ places[b].T).mean()) for a, b in pairs)))
    values = {"group": group, "one": one, "two": two, "first": int(first.sum()), "second": int(second.sum())}
    return table("apart", rows, values)


def _query_labels(asked: "Reproduction") -> tuple[Any, list[str]] | None:
    """Labels and classes of the queries: from the data, or as they were kept the last time it was at hand."""
    name, splits = f"queries-{asked.setting.name}", asked.splits
    if splits is not None:
        labels = [row.tobytes().hex() for row in np.packbits(splits.queries.labels, axis=1)]
        asked.results.keep_facts(name, {"classes": list(splits.classes), "labels": labels})
        return splits.queries.labels, list(splits.classes)
    for kept in asked.results.facts(name).values():
        rows = np.array([list(bytes.fromhex(row)) for row in kept["labels"]], np.uint8)
        return np.unpackbits(rows, axis=1, count=len(kept["classes"])), kept["classes"]
    return None


def show_gallery(asked: "Reproduction", group: Group) -> Shown:
    """The first ten photos for some queries, as in the paper's first figure."""
    splits = asked.splits
    if splits is None:
        return "a gallery shows photos: give --data to draw it"
    found = _codes(asked, group)
    if not found:
        return ""
    which = "Queries as asked for." if asked.queries else "The first query with two labels, with three, and so on."
    carried, nothing = splits.queries.labels.sum(axis=1, dtype=np.int64), np.empty((0, 0), np.float32)
    firsts = [int(np.argmax(carried == size)) for size in (2, 3, 4, 5) if size in carried]  # nobody chose by results
    chosen = asked.queries or firsts or [0]
    rows = {}
    for title, codes in found.items():
        queries = EncodedSplit(splits.queries, nothing, codes.queries)
        database = EncodedSplit(splits.database, nothing, codes.database)
        rows[title] = gallery_rows(queries, database, splits.classes, chosen=chosen)
    figure = draw.gallery([{title: shown[i] for title, shown in rows.items()} for i in range(len(chosen))])
    return [], [drawn("gallery", figure, group=group, which=which)]


# by benchmark: its tables and figures for one network
SHOWN: Mapping[str, Callable[["Reproduction", Group], Shown]] = {
    **dict.fromkeys(MAP, show_map),
    "ablation": show_ablation,
    "spread": show_spread,
    "convergence": show_convergence,
    "topn": show_top_n,
    "tsne": show_tsne,
    "gallery": show_gallery,
}
