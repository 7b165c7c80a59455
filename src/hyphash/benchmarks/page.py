"""A Page: the tables and figures of a benchmark, written as files and as one HTML page."""

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from hyphash import plots
from hyphash.benchmarks.figures import Drawn
from hyphash.benchmarks.tables import Table
from hyphash.files import write_atomically
from hyphash.report import page as html_page

RASTER = ("tsne", "gallery")  # figures of many points or photos: as pixels on the page
FEW = 6  # sections that a reader finds without a list of them
LONG = 40  # rows of a table that is folded away until somebody wants to see it


@dataclass(frozen=True)
class Section:
    """Some tables and figures that belong together."""

    title: str
    text: str = ""
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


def write_page(page: Page, folder: Path) -> Path:
    """Write every table as Markdown, CSV and JSON, every figure as PNG and SVG, and report.html with all of it."""
    folder.mkdir(parents=True, exist_ok=True)
    for table in page.tables:
        table.write(folder)
    for drawn in page.figures:
        for kind in ("png", "svg"):
            plots.save(drawn.figure, folder / f"{drawn.name}.{kind}")
    write_atomically(folder / "report.html", page_html(page))
    return folder / "report.html"


def page_html(page: Page) -> str:
    facts = "".join(f"<li>{escape(name)} <b>{escape(text)}</b></li>" for name, text in page.facts.items())
    body = [f"<h1>{escape(page.title)}</h1>", f"<p>{escape(page.text)}</p>", f'<ul class="facts">{facts}</ul>']
    body += [f"<p>{escape(note)}</p>" for note in page.notes]
    if len(page.sections) > FEW:
        links = (f'<li><a href="#s{i}">{escape(section.title)}</a></li>' for i, section in enumerate(page.sections))
        body.append(f"<nav><ol>{''.join(links)}</ol></nav>")
    for i, section in enumerate(page.sections):
        body += [
            f'<h2 id="s{i}">{escape(section.title)}</h2>',
            f"<p>{escape(section.text)}</p>" if section.text else "",
        ]
        for drawn in section.figures:
            body += [f"<h3>{escape(drawn.title)}</h3>", _picture(drawn), f'<p class="soft">{escape(drawn.caption)}</p>']
        for table in section.tables:
            body += [f"<h3>{escape(table.title)}</h3>", f'<p class="soft">{escape(table.above)}</p>', _html(table)]
            body += [f'<p class="soft">{escape(note)}</p>' for note in table.below]
    return html_page(page.title, body)


def _picture(drawn: Drawn) -> str:
    if not drawn.name.endswith(RASTER):
        return f'<div class="figures">{plots.svg(drawn.figure, drawn.name)}</div>'
    data = io.BytesIO()
    drawn.figure.savefig(data, format="png", dpi=110)
    text = base64.b64encode(data.getvalue()).decode()
    return f'<img style="max-width:100%" src="data:image/png;base64,{text}" alt="{escape(drawn.title)}">'


def _html(table: Table) -> str:
    head = "".join(f'<th style="white-space:normal">{escape(column)}</th>' for column in table.columns)
    lines = []
    for i, row in enumerate(table.rows):
        cells = []
        for j, value in enumerate(row):
            text = escape(table.text(value))
            words = isinstance(value, str) and j > 0 and not value[:1].isdigit()
            cells.append(
                f"<td{' class=text' if words else ''}>{f'<b>{text}</b>' if (i, j) in table.best else text}</td>"
            )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    whole = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    return whole if len(lines) <= LONG else f"<details><summary>all {len(lines)} rows</summary>{whole}</details>"
