"""Reports for people: HTML pages that need nothing beside themselves, tables and figures as files.

Whatever comes from outside (names of photos, labels, datasets) is escaped; the page forbids itself scripts and
everything that is not in it.
"""

import base64
import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
from numpy.typing import NDArray

from hyphash import hamming
from hyphash.errors import HyphashError, MissingExtraError
from hyphash.evaluation import EncodedSplit, Protocol, Report, Scores
from hyphash.files import make_folder, write_atomically
from hyphash.photos import decode, media_type, thumbnail

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hyphash.datasets import Split
    from hyphash.quantizer import Quantizer

THUMBNAIL = 160  # pixels
GOOD, BAD = 0.75, 0.25  # shares of the query's labels that a match carries: green from here, red down from there
Cell = str | float | int | None
Marks = frozenset[tuple[int, int]]  # (row, column) of cells that stand out
RASTER = ("tsne", "gallery")  # figures of many points or photos: as pixels on a page


# ── pages of tables and figures ──────────────────────────────────────────────────────────────────────────


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
    records: tuple[Mapping[str, Any], ...] = ()
    digits: int = 3

    def text(self, value: Cell) -> str:
        return _text(value, self.digits)

    def markdown(self) -> str:
        bold = [
            [f"**{self.text(value)}**" if (i, j) in self.best else self.text(value) for j, value in enumerate(row)]
            for i, row in enumerate(self.rows)
        ]
        texts = [[text.replace("|", "\\|") for text in row] for row in (self.columns, *bold)]
        head = [f"### {self.title}", ""] + ([self.above, ""] if self.above else [])
        notes = ["", *(f"- {note}" for note in self.below)] if self.below else []
        return "\n".join([*head, *_markdown_lines(texts, self.rows), *notes]) + "\n"

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

    def record(self) -> dict[str, Any]:
        """The table as plain values, for programs."""
        rows = self.records or tuple(dict(zip(self.columns, row, strict=True)) for row in self.rows)
        return {"title": self.title, "protocol": self.above, "notes": self.below, "rows": rows}

    def write(self, folder: Path) -> None:
        as_json = json.dumps(self.record(), indent=1, ensure_ascii=False) + "\n"
        for suffix, text in (("md", self.markdown()), ("csv", self.csv()), ("json", as_json)):
            write_atomically(folder / f"{self.name}.{suffix}", text)


def _is_text(rows: Sequence[Sequence[Cell]], column: int) -> bool:
    return any(isinstance(row[column], str) for row in rows)


@dataclass(frozen=True)
class Drawn:
    """A figure with its caption."""

    name: str  # of its files
    title: str
    caption: str
    figure: "Figure"


@dataclass(frozen=True)
class Section:
    """Some tables and figures that belong together."""

    title: str
    tables: tuple[Table, ...] = ()
    figures: tuple[Drawn, ...] = ()


@dataclass(frozen=True)
class Page:
    """A page of tables and figures."""

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
        return render("tables.html", title=self.title, page=self, image=_drawn_image)

    def write(self, folder: Path) -> Path:
        """Every table as Markdown, CSV and JSON, every figure as PNG and SVG, and report.html with all of it."""
        from hyphash import plots

        folder.mkdir(parents=True, exist_ok=True)
        for table in self.tables:
            table.write(folder)
        for drawn in self.figures:
            for kind in ("png", "svg"):
                plots.save(drawn.figure, folder / f"{drawn.name}.{kind}")
        write_atomically(folder / "report.html", self.html())
        return folder / "report.html"


def _drawn_image(drawn: Drawn) -> Mapping[str, str]:
    """A figure as the page shows it: drawn where it has few parts, else as pixels."""
    from hyphash import plots

    if not drawn.name.endswith(RASTER):
        return {"svg": plots.svg(drawn.figure, drawn.name)}
    data = io.BytesIO()
    drawn.figure.savefig(data, format="png", dpi=110)
    return {"png": base64.b64encode(data.getvalue()).decode()}


# ── the report of an evaluation, and galleries ───────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class GalleryPhoto:
    """A photo in a gallery. `thumbnail` is asked for its bytes when the page is written."""

    name: str
    labels: tuple[str, ...] = ()
    distance: float | None = None
    thumbnail: Callable[[], bytes] | None = None


@dataclass(frozen=True, kw_only=True)
class GalleryRow:
    """A query, which may be labels without a photo, and what it found, nearest first."""

    query: GalleryPhoto
    matches: tuple[GalleryPhoto, ...]


def write_report(folder: str | Path, report: Report, *, gallery: Sequence[GalleryRow] = ()) -> Path:
    """Write report.json and report.html into `folder`; the page's path."""
    folder = Path(folder)
    make_folder(folder)
    write_atomically(folder / "report.json", report.to_json() + "\n")
    write_atomically(folder / "report.html", report_page(report, gallery=gallery))
    return folder / "report.html"


def write_gallery(path: str | Path, rows: Sequence[GalleryRow], title: str) -> None:
    """Write a page that shows queries and what they found."""
    write_atomically(Path(path), render("gallery.html", title=title, gallery=rows))


def gallery_rows(
    queries: EncodedSplit,
    database: EncodedSplit,
    classes: Sequence[str],
    *,
    count: int = 8,
    chosen: Sequence[int] = (),
    k: int = 10,
    quantizer: "Quantizer | None" = None,
) -> list[GalleryRow]:
    """The chosen queries, or `count` that are spread evenly over all of them, and the `k` photos nearest to each."""
    spread = np.unique(np.linspace(0, max(len(queries.codes) - 1, 0), count).round().astype(np.int64))
    shown = np.asarray(chosen, np.int64) if chosen else spread[: len(queries.codes)]
    distances: NDArray[np.int32] | NDArray[np.float32]
    if quantizer is None:
        distances, ids = hamming.search(queries.codes[shown], database.codes, k)
    else:
        distances, ids = hamming.search_tables(quantizer.tables(queries.outputs[shown]), database.codes, k)
    rows = []
    for query, *found in zip(shown.tolist(), ids.tolist(), distances.tolist(), strict=True):
        matches = (_photo(database.split, photo, classes, distance) for photo, distance in zip(*found, strict=True))
        rows.append(GalleryRow(query=_photo(queries.split, query, classes, None), matches=tuple(matches)))
    return rows


def _photo(split: "Split", i: int, classes: Sequence[str], distance: float | None) -> GalleryPhoto:
    return GalleryPhoto(
        name=split.name(i),
        labels=tuple(classes[label] for label in np.flatnonzero(split.labels[i]).tolist()),
        distance=distance,
        thumbnail=lambda: thumbnail(decode(split.read(i), split.name(i), at_least=THUMBNAIL), THUMBNAIL),
    )


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A table in Markdown; columns that hold a number in every row stand to the right.

    >>> print(markdown_table(["method", "mAP"], [["hyp2", 0.87], ["proxy", None]]))
    | method | mAP |
    |---|--:|
    | hyp2 | 0.8700 |
    | proxy | – |
    """
    return "\n".join(_markdown_lines([[_markdown(_text(cell)) for cell in row] for row in (columns, *rows)], rows))


def _markdown_lines(texts: Sequence[Sequence[str]], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """A table of texts, the names of the columns first; `rows` are the values that they stand for."""
    head, *body = ["| " + " | ".join(row) + " |" for row in texts]
    return [head, "|" + "|".join("---" if _is_text(rows, j) else "--:" for j in range(len(texts[0]))) + "|", *body]


def report_page(report: Report, *, gallery: Sequence[GalleryRow] = (), title: str | None = None) -> str:
    """The report as one HTML page."""
    curves, no_curves = _curves(report)
    return render(
        "report.html",
        title=title or f"{report.dataset or 'Codes'}, {report.bits} bits",
        report=report,
        facts={"dataset": report.dataset, "bits": report.bits, **report.facts},
        rankings=[(protocol, *_score_table(report, protocol)) for protocol in report.protocols],
        curves=curves,
        no_curves=no_curves,
        depth=max(scores.precision[-1][0] for scores in report.scores),
        labels=_label_table(report),
        gallery=gallery,
    )


def render(template: str, **values: Any) -> str:
    """A page of templates/ in the house's style, with no scripts and nothing loaded from elsewhere."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("hyphash"), autoescape=jinja2.select_autoescape(), trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    found.filters |= {"cell": _text, "one_line": lambda text: " ".join(str(text).split()).replace("|", r"\|")}
    found.globals |= {"picture": _picture, "grade": grade}
    return found.get_template(template).render(**values)


def _score_table(report: Report, protocol: Protocol) -> tuple[list[str], list[list[Cell]]]:
    """One row for each way of ranking."""
    depth, rows = protocol.depth, []
    measured: list[Scores] = [scores for scores in report.scores if scores.protocol == protocol]
    for s in measured:
        row: list[Cell] = [s.ranked_by, s.mean_average_precision, s.how_sure(), s.weighted_average_precision]
        rows.append([*row, s.ndcg, s.average_gain, *(precision for _, precision in _few(s.precision))])
    steps = [f"P@{n:,}" for n, _ in _few(measured[0].precision)]
    names = [f"mAP{depth}", "95 % interval", f"weighted mAP{depth}", f"NDCG{depth}", f"ACG{depth}"]
    return ["ranked by", *names, *steps], rows


def _few(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The first three points and the last, each once."""
    return list(dict.fromkeys([*points[:3], points[-1]]))


def _label_table(report: Report) -> tuple[list[str], list[list[Cell]]]:
    """Labels, the best found first; those without a query last."""
    best_first = sorted(report.labels, key=lambda label: (label.found is None, -(label.found or 0), label.name))
    own = report.labelling.average_precision if report.labelling else ()
    by_probability = dict(zip((label.name for label in report.labels), own, strict=False))
    columns = ["label", "found", "chance", *(f"AP, {p.name}{p.depth}" for p in report.protocols)]
    rows: list[list[Cell]] = []
    for label in best_first:
        values = [label.found, label.chance, *label.average_precision, *([by_probability[label.name]] if own else [])]
        rows.append([label.name, *values, label.queries, label.photos])
    return [*columns, *(["AP by probability"] if own else []), "queries", "photos"], rows


def _curves(report: Report) -> tuple[list[str], str]:
    """The curves, and how to get them where there are none."""
    try:
        from hyphash import plots

        drawn = [plots.svg(plots.precision_of_top(report.scores[0]), "top")]
        if report.curve:
            drawn.insert(0, plots.svg(plots.precision_recall(report.curve), "recall"))
        return [*drawn, plots.svg(plots.bit_balance(report), "bits")], ""
    except MissingExtraError as error:
        return [], str(error)


def grade(shared: int, wanted: int) -> str:
    """`good` where at least 75 % of the query's labels match, `bad` at 25 % or less, else nothing.

    >>> [grade(shared, 4) for shared in range(5)], grade(0, 0)
    (['bad', 'bad', '', 'good', 'good'], '')
    """
    if not wanted:
        return ""
    return "good" if shared >= GOOD * wanted else "bad" if shared <= BAD * wanted else ""


def _picture(photo: GalleryPhoto) -> str:
    """A photo as the address of an image that holds it; empty where it has none, or it cannot be read."""
    try:
        data = photo.thumbnail() if photo.thumbnail else b""
    except HyphashError:  # one bad photo does not cost the page
        data = b""
    return f"data:{media_type(data)};base64,{base64.b64encode(data).decode()}" if data else ""


def _text(value: Cell, digits: int = 4) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def _markdown(text: str) -> str:
    """Text that stays text in a Markdown table."""
    for mark in "\\`*_[]|#":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.replace("<", "&lt;").split())
