"""Figures from reports and label counts. The only importer of matplotlib.

Every function returns a matplotlib Figure; `save` writes it as PNG or SVG, `svg` gives it as text for a page.
Colours are those of Okabe and Ito, which people with any kind of colour vision can tell apart.
"""

import html
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyphash.errors import ConfigError, DataError, needs_extra
from hyphash.evaluation import Curve, Report, Scores
from hyphash.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
INK, FAINT = "#333333", "#BBBBBB"
DPI = 150
LONGEST = 24  # letters of a name beside an axis


def precision_recall(curve: Curve) -> "Figure":
    """Precision over recall of the photos within each Hamming radius."""
    heading = "Precision and recall within each Hamming radius"
    return _precision(curve.recall, curve.precision, heading, xlabel="recall", xlim=(0, 1.01))


def precision_of_top(scores: Scores) -> "Figure":
    """The share of relevant photos among the first N, over N."""
    counts, shares = zip(*scores.precision, strict=True)
    figure = _precision(counts, shares, "Precision of the top N", xlabel="photos looked at (N)", xlim=(0, None))
    figure.axes[0].xaxis.set_major_formatter("{x:,.0f}")
    return figure


def _precision(x: Sequence[float], y: Sequence[float], heading: str, **settings: Any) -> "Figure":
    """Precision over something, with some room above and below it."""
    figure, ((axes,),) = panels(5.2, 3.8)
    axes.plot(x, y, marker=".", markersize=4, color=COLOURS[0], linewidth=1.6)
    room = max(0.03, 0.1 * (max(y) - min(y)))
    axes.set(ylabel="precision", ylim=(max(0.0, min(y) - room), min(1.005, max(y) + room)), **settings)
    title(axes, heading)
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
