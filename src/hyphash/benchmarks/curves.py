"""Pages of curves: mAP while training, and precision of the first N photos."""

from collections.abc import Mapping

from hyphash.benchmarks import figures as draw
from hyphash.benchmarks.figures import Drawn
from hyphash.benchmarks.page import Page, Section
from hyphash.benchmarks.runs import Record
from hyphash.benchmarks.source import Source, page_of, stem_of
from hyphash.benchmarks.tables import Cell, Table, map_measure

PROTOCOLS = ("paper", "strict")


def convergence_page(source: Source) -> Page:
    """mAP of the queries over the seconds of training."""
    sections = []
    for group, records in source.backbones().items():
        watched = {method.title: record for method, record in records if record.curve}
        if not watched:
            continue
        stem = stem_of(source, group)
        alongside = max(record.alongside for record in watched.values())
        device = ", ".join(sorted({record.device for record in watched.values()}))
        how = "one run at a time" if alongside == 1 else f"{alongside} runs side by side, which slows all of them"
        drawn = [
            Drawn(
                f"{stem}-convergence-{protocol}",
                f"mAP@{source.dataset.top:,} while training, protocol {protocol}",
                f"48 bits, {device}, {how}; the clock stands still while the queries are measured.",
                draw.convergence(watched, protocol),
            )
            for protocol in PROTOCOLS
        ]
        tables = [_convergence_table(source, stem, watched, protocol) for protocol in PROTOCOLS]
        sections.append(Section(f"{source.dataset.title}, {group}", tables=tuple(tables), figures=tuple(drawn)))
    return page_of(source, f"{source.dataset.title}: convergence", sections)


def _convergence_table(source: Source, stem: str, watched: Mapping[str, Record], protocol: str) -> Table:
    measure = map_measure(protocol, source.dataset)
    rows: list[tuple[Cell, ...]] = []
    for title, record in watched.items():
        scores = [(getattr(point, protocol), point) for point in record.curve]
        last, best = scores[-1][0], max(scores, key=lambda pair: pair[0])
        reached = [next(p.seconds for s, p in scores if s >= share * last) for share in (0.95, 0.99)]
        late = [score for score, _ in scores[len(scores) // 2 :]]
        rows.append(
            (
                *(title, last, best[0], best[1].epoch, *(round(seconds, 1) for seconds in reached)),
                *(max(late) - min(late), round(scores[-1][1].seconds, 1)),
            )
        )
    return Table(
        name=f"{stem}-convergence-{protocol}",
        title=f"{source.dataset.title}: convergence, {measure.title}",
        above=measure.above,
        columns=(
            *("method", "last epoch", "best on queries", "at epoch", "s to 95 % of the last", "s to 99 %"),
            *("range in the second half", "s in all"),
        ),
        rows=tuple(rows),
        below=("best on queries is how the paper's figures were chosen; it looks at the answers, and is no result",),
        records=tuple(
            {"method": title, "curve": [vars(point) for point in record.curve]} for title, record in watched.items()
        ),
    )


def topn_page(source: Source) -> Page:
    """Precision of the first N photos."""
    sections = []
    for group, records in source.backbones().items():
        stem = stem_of(source, group)
        by_bits: dict[int, dict[str, Record]] = {}
        for method, record in records:  # the first seed of each
            by_bits.setdefault(int(record.config["bits"]), {}).setdefault(method.title, record)
        drawn, tables = [], []
        for protocol in PROTOCOLS:
            title = f"Precision of the top N, protocol {protocol}"
            caption = f"First seed of each method, ties {'by id' if protocol == 'paper' else 'by expectation'}."
            figure = draw.top_n(dict(sorted(by_bits.items())), protocol)
            drawn.append(Drawn(f"{stem}-topn-{protocol}", title, caption, figure))
            tables.append(_topn_table(source, stem, by_bits, protocol))
        sections.append(Section(f"{source.dataset.title}, {group}", tables=tuple(tables), figures=tuple(drawn)))
    return page_of(source, f"{source.dataset.title}: precision of the top N", sections)


def _topn_table(source: Source, stem: str, by_bits: Mapping[int, Mapping[str, Record]], protocol: str) -> Table:
    rows: list[tuple[Cell, ...]] = []
    depths: list[int] = []
    for bits, methods in sorted(by_bits.items()):
        for title, record in methods.items():
            scores = next(s for s in record.report.scores if s.protocol.name == protocol)
            points = [(n, value) for n, value in scores.precision if n * 10 >= scores.precision[-1][0]]
            depths = [n for n, _ in points]
            rows.append((bits, title, *(value for _, value in points)))
    measure = map_measure(protocol, source.dataset)
    ties = "by id" if protocol == "paper" else "by expectation"
    return Table(
        name=f"{stem}-topn-{protocol}",
        title=f"{source.dataset.title}: precision of the first N photos, ties {ties}",
        above=f"The mean over queries of the share of relevant photos among the first N; ties {ties}. {measure.above}",
        columns=("bits", "method", *(f"{n:,}" for n in depths)),
        rows=tuple(rows),
    )
