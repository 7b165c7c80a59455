"""Figures from reports and label counts. The only importer of matplotlib.

Every function returns a matplotlib Figure; `save` writes it as PNG or SVG, `svg` gives it as text for a page.
Colours are those of Okabe and Ito, which people with any kind of colour vision can tell apart.
"""

import html
import io
import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyphash.errors import ConfigError, DataError, needs_extra
from hyphash.evaluation import RankedBy, Report
from hyphash.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
DASHES = ("-", "--", "-.", ":")
INK, FAINT = "#333333", "#BBBBBB"
DPI = 150
LONGEST = 24  # letters of a name beside an axis


def precision_recall(reports: Mapping[str, Report]) -> "Figure":
    """Precision over recall of the photos within each Hamming radius, one curve for each named report."""
    found = {name: report.curve for name, report in reports.items() if report.curve}
    if not found:
        raise DataError("codes that have no Hamming distance have no radius to draw precision and recall for")
    curves = {name: (curve.recall, curve.precision) for name, curve in found.items()}
    return _precision(curves, "Precision and recall within each Hamming radius", xlabel="recall", xlim=(0, 1.01))


def precision_of_top(
    reports: Mapping[str, Report], *, protocol: str = "paper", ranked_by: RankedBy = "hamming"
) -> "Figure":
    """The share of relevant photos among the first N, over N."""
    curves = {
        name: tuple(zip(*scores.precision, strict=True))
        for name, report in reports.items()
        for scores in report.scores
        if (scores.protocol.name, scores.ranked_by) == (protocol, ranked_by)
    }
    if not curves:
        raise DataError(f"no report has rankings by {ranked_by} distance under the protocol {protocol!r}")
    figure = _precision(curves, "Precision of the top N", xlabel="photos looked at (N)", xlim=(0, None))
    figure.axes[0].xaxis.set_major_formatter("{x:,.0f}")
    return figure


def _precision(curves: Mapping[str, tuple[Any, ...]], heading: str, **settings: Any) -> "Figure":
    """Named curves of precision over something: (x, y) of each."""
    figure, ((axes,),) = panels(5.2, 3.8)
    styles = product(DASHES, COLOURS)  # colours first; when they have all been used, again with dashes
    for (name, points), (dash, colour) in zip(curves.items(), styles, strict=False):
        axes.plot(*points, label=name, marker=".", markersize=4, color=colour, linestyle=dash, linewidth=1.6)
    axes.set(ylabel="precision", ylim=_room(axes), **settings)
    title(axes, heading)
    if len(curves) > 1:  # to tell apart; many go beside the axes
        place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)} if len(curves) > 6 else {}
        axes.legend(frameon=False, fontsize=8, labelcolor=INK, **place)
    return figure


def co_occurrence(counts: NDArray[np.int64], classes: Sequence[str]) -> "Figure":
    """Of the photos with the row's label, the share that also carries the column's.

    `counts[i, j]` is how many photos carry labels i and j, on the diagonal how many carry i.
    """
    counts = np.asarray(counts)
    if counts.shape != (len(classes), len(classes)):
        raise DataError(f"{len(classes)} class names but a table of shape {counts.shape}")
    share = counts / np.maximum(counts.diagonal(), 1)[:, None]
    np.fill_diagonal(share, np.nan)  # always 1: says nothing
    side = 2.2 + 0.21 * len(classes)
    figure, ((axes,),) = panels(side + 0.9, side)
    from matplotlib import colormaps  # after panels, which says so when matplotlib is missing

    colours = colormaps["cividis"].with_extremes(bad="#EEEEEE")
    image = axes.imshow(np.ma.masked_invalid(share), cmap=colours, vmin=0, vmax=1)
    names = [plain(name if len(name) <= LONGEST else name[: LONGEST - 1] + "…") for name in classes]
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    title(axes, "Of photos with the row's label, share with the column's")
    scale = figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02)
    scale.outline.set_visible(False)
    scale.ax.tick_params(color=FAINT, labelcolor=INK, labelsize=8)
    return figure


def bit_balance(report: Report) -> "Figure":
    """For each bit, the share of codes in which it is set; the best is one half."""
    figure, ((axes,),) = panels(max(4.2, min(9.0, 1.2 + 0.12 * report.bits)), 2.4)
    axes.bar(range(report.bits), report.bit_use.balance, color=COLOURS[0], width=0.8)
    axes.axhline(0.5, color=COLOURS[1], linewidth=1, linestyle="--")
    axes.set(xlabel="bit", ylim=(0, 1), xlim=(-0.7, report.bits - 0.3))
    axes.grid(visible=False, axis="x")
    axes.locator_params(axis="x", integer=True)
    title(axes, "Share of codes in which a bit is set")
    return figure


def save(figure: "Figure", path: str | Path) -> None:
    """Write a figure as PNG or SVG, as the ending of `path` says, in one step."""
    path = Path(path)
    kind = path.suffix.lower().lstrip(".")
    if kind not in ("png", "svg"):
        raise ConfigError(f"{path}: figures are written as .png or .svg")
    write_atomically(path, _bytes(figure, kind))


def svg(figure: "Figure", name: str) -> str:
    """The figure as an <svg> element for a page: it takes the page's colour of text and has no ground.

    `name` keeps the ids inside apart from those of other figures on the same page.
    """
    text = _bytes(figure, "svg", salt=name, transparent=True).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' id="[\w.]+_\d+"', "", text)  # names of parts, alike in all figures; nothing refers to them
    heading = next((axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")), name)
    text = text.replace("<svg", f'<svg role="img" aria-label="{html.escape(heading)}"', 1)
    return text.replace(INK.lower(), "currentColor")


def panels(width: float, height: float, *, rows: int = 1, columns: int = 1) -> tuple["Figure", list[list["Axes"]]]:
    """An empty figure in the house's style, and its axes: figure, axes[row][column]."""
    with needs_extra("plots", "drawing figures"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    axes = figure.subplots(rows, columns, squeeze=False)
    for one in axes.flat:
        one.set_facecolor("none")
        one.spines[["top", "right"]].set_visible(False)
        one.spines[["left", "bottom"]].set_color(FAINT)
        one.tick_params(color=FAINT, labelcolor=INK, labelsize=9)
        one.grid(visible=True, color=FAINT, alpha=0.35, linewidth=0.6)
        one.set_axisbelow(True)
        one.xaxis.label.set(color=INK, size=9)
        one.yaxis.label.set(color=INK, size=9)
    return figure, axes.tolist()


def title(axes: "Axes", text: str) -> None:
    """Write a title in the house's style."""
    axes.set_title(text, loc="left", color=INK, fontsize=10, fontweight="bold")


def _room(axes: "Axes") -> tuple[float, float]:
    """Limits for shares: the data with some room, never beyond 0 … 1."""
    values = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.lines])
    low, high = float(values.min()), float(values.max())
    room = max(0.03, 0.1 * (high - low))
    return max(0.0, low - room), min(1.005, high + room)


def plain(text: str) -> str:
    """Text in which `$` starts no formula."""
    return text.replace("$", r"\$")


def _bytes(figure: "Figure", kind: str, *, salt: str = "hyphash", transparent: bool = False) -> bytes:
    """The figure as a file; the same figure gives the same bytes, whenever it is drawn."""
    from matplotlib import rc_context

    file = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with rc_context({"svg.hashsalt": salt, "svg.fonttype": "path"}):
        figure.savefig(file, format=kind, dpi=DPI, metadata=metadata, transparent=transparent)
    return file.getvalue()
