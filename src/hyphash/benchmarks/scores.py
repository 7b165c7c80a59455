"""Pages of figures: mAP, what each part of the loss is worth, and how far apart label sets lie."""

from collections.abc import Mapping, Sequence

from hyphash.benchmarks import Dataset, Method
from hyphash.benchmarks import figures as draw
from hyphash.benchmarks.figures import Drawn
from hyphash.benchmarks.orderings import orderings, orderings_table
from hyphash.benchmarks.page import Page, Section
from hyphash.benchmarks.published import ABLATION, MAP, SPREAD, Row
from hyphash.benchmarks.runs import Record
from hyphash.benchmarks.source import Source, page_of, stem_of
from hyphash.benchmarks.tables import (
    Cell,
    Cells,
    Measure,
    Table,
    against_published,
    by_cell,
    cost_table,
    map_measure,
    seeds_of,
)

PROTOCOLS = ("paper", "strict")


def table_page(source: Source) -> Page:
    """A table of the paper with our figures beside, both protocols, the orderings that hold, and the cost."""
    sections = []
    for group, records in source.backbones().items():
        published = MAP[source.dataset.name] if source.is_published(records) else None
        sections.append(_map_section(source, group, records, published))
    return page_of(source, f"{source.dataset.title}: mAP@{source.dataset.top:,}", sections)


def ablation_page(source: Source) -> Page:
    """What each part of the loss is worth."""
    sections = []
    for group, records in source.backbones().items():
        published = ABLATION[source.dataset.name] if source.is_published(records) else None
        section = _map_section(source, group, records, published)
        gains = [_gain_table(source, group, by_cell(records), protocol) for protocol in PROTOCOLS]
        sections.append(Section(section.title, section.text, (*gains, *section.tables), section.figures))
    return page_of(source, f"{source.dataset.title}: what each part of the loss is worth", sections)


def _map_section(
    source: Source, group: str, records: Sequence[tuple[Method, Record]], published: Mapping[str, Row] | None
) -> Section:
    cells, stem = by_cell(records), stem_of(source, group)
    dataset, bits = source.dataset, source.bits
    methods = [method for method in source.methods if published or any(method.key == key for key, _ in cells)]
    tables = []
    for protocol in PROTOCOLS:
        measure = map_measure(protocol, dataset)
        tables.append(
            against_published(
                name=f"{stem}-{measure.name}",
                title=f"{dataset.title}, {group}: {measure.title}",
                measure=measure,
                dataset=dataset,
                methods=methods,
                cells=cells,
                published=published if protocol == "paper" else None,
                bits=bits,
                notes=_map_notes(dataset, protocol, published is not None),
            )
        )
    if published:
        measure = map_measure("paper", dataset)
        ordered = orderings(methods, dataset, cells, published, measure, bits)
        tables.append(orderings_table(f"{stem}-orderings", f"{dataset.title}, {group}", ordered, measure))
    tables.append(cost_table(f"{stem}-cost", dataset, methods, cells))
    lines = _lines(dataset, methods, cells, published, bits)
    figure = Drawn(
        f"{stem}-map",
        f"mAP@{dataset.top:,} over the length of codes",
        "Protocol paper; means over seeds. Published figures were measured on the full-size photos.",
        draw.over_bits(lines, f"mAP@{dataset.top:,}"),
    )
    return Section(f"{dataset.title}, {group}", tables=tuple(tables), figures=(figure,))


def _map_notes(dataset: Dataset, protocol: str, published: bool) -> list[str]:
    notes = ["spread: largest less smallest over the seeds, length by length; ours is their mean"]
    if protocol == "strict":
        notes.append("the paper has no figures of this protocol, so none stand beside ours")
    elif published:
        notes += [
            "own: the paper's method, measured by its authors; re-run: measured by them with public models; quoted: "
            f"taken over by them from {' and '.join(_sources(dataset))}",
            "the published figures are the best of 20 evaluations on the queries, ours are of the last epoch",
            f"HyP² with β = {dataset.beta:g} ({dataset.beta_from})",
        ]
    return notes


def _sources(dataset: Dataset) -> list[str]:
    return sorted({row.source for row in MAP[dataset.name].values() if row.origin == "quoted"})


def _lines(
    dataset: Dataset, methods: Sequence[Method], cells: Cells, published: Mapping[str, Row] | None, bits: Sequence[int]
) -> dict[str, dict[str, dict[int, float]]]:
    measure = map_measure("paper", dataset)
    ours, theirs = {}, {}
    for method in methods:
        found = {b: seeds_of(cells.get((method.key, b), {}), measure.value) for b in bits}
        ours[method.title] = {b: seeds.mean for b, seeds in found.items() if seeds}
        row = (published or {}).get(method.key)
        figures = {b: row.at(dataset.bits, b) for b in bits} if row else {}
        theirs[method.title] = {b: value for b, value in figures.items() if value is not None}
    panels = {"published": theirs, "ours": ours}
    return {
        name: {t: line for t, line in panel.items() if line} for name, panel in panels.items() if any(panel.values())
    }


def _gain_table(source: Source, group: str, cells: Cells, protocol: str) -> Table:
    """HyP² against the proxy loss alone at every length, seed by seed."""
    measure = map_measure(protocol, source.dataset)
    best = f"hyp2-{source.dataset.beta:g}"
    published = ABLATION[source.dataset.name] if protocol == "paper" else {}
    rows: list[tuple[Cell, ...]] = []
    for bits in source.bits:
        ours, proxy = (seeds_of(cells.get((key, bits), {}), measure.value) for key in (best, "proxy"))
        if ours is None or proxy is None:
            continue
        both = [row.at(source.dataset.bits, bits) for key in (best, "proxy") if (row := published.get(key))]
        printed = both[0] - both[1] if len(both) == 2 and both[0] is not None and both[1] is not None else None
        worst = min(ours.values.values()) - max(proxy.values.values())
        rows.append(
            (
                *(bits, len(ours.values), ours.mean, ours.spread, len(proxy.values), proxy.mean, proxy.spread),
                *(ours.mean - proxy.mean, worst, *((printed,) if published else ())),
            )
        )
    columns = ("bits", "seeds", "HyP²", "spread", "seeds of proxy", "proxy", "spread of proxy", "gain", "least gain")
    return Table(
        name=f"{stem_of(source, group)}-gain-{protocol}",
        title=f"{source.dataset.title}, {group}: HyP² against the proxy loss alone, {measure.title}",
        above=measure.above,
        columns=columns + (("gain, published",) if published else ()),
        rows=tuple(rows),
        below=("gain: difference of the means; least gain: worst seed of HyP² less best seed of the proxy loss",),
    )


# ── spread ───────────────────────────────────────────────────────────────────────────────────────────────

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


def spread_page(source: Source) -> Page:
    """d_intra and d_inter of the runs of the ablation."""
    sections = []
    for group, records in source.backbones().items():
        cells, stem, tables = by_cell(records), stem_of(source, group), []
        for measure in SPREAD_MEASURES:
            published = SPREAD[source.dataset.name][measure.name] if source.is_published(records) else None
            tables.append(
                against_published(
                    name=f"{stem}-{measure.name}",
                    title=f"{source.dataset.title}, {group}: {measure.title}",
                    measure=measure,
                    dataset=source.dataset,
                    methods=source.methods,
                    cells=cells,
                    published=published,
                    bits=source.bits,
                )
            )
            if published:
                found = orderings(source.methods, source.dataset, cells, published, measure, source.bits)
                name = f"{stem}-{measure.name}-orderings"
                tables.append(orderings_table(name, f"{source.dataset.title}, {group}", found, measure))
        sections.append(Section(f"{source.dataset.title}, {group}", tables=tuple(tables)))
    return page_of(source, f"{source.dataset.title}: how tight and how far apart", sections)
