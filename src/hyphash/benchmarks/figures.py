"""The paper's figures, drawn from records and codes in the style of `hyphash.plots`."""

import colorsys
import io
from collections.abc import Mapping, Sequence
from itertools import combinations, cycle
from math import log2
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyphash import plots
from hyphash.benchmarks.runs import Record
from hyphash.coding import capacity
from hyphash.errors import needs_extra
from hyphash.evaluation import Interval
from hyphash.hasher import unit
from hyphash.report import GalleryPhoto, GalleryRow, grade

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREEN, RED = "#1a7f37", "#cf222e"
WEDGE_POINTS = 24  # of a full circle
MARKERS = "osD^vP*X<>ph"
Labels = NDArray[np.uint8]


def _style(title: str, order: int) -> dict[str, Any]:
    """HyP² stands out; every other method has a colour and a marker of its own."""
    if title.startswith("HyP²"):
        return {"color": plots.COLOURS[1], "linewidth": 2.4, "marker": "o", "markersize": 4, "zorder": 5}
    colours = [c for c in plots.COLOURS if c != plots.COLOURS[1]]
    colour, marker = colours[order % len(colours)], MARKERS[(order + 1) % len(MARKERS)]
    dash = ("-", "--", ":")[order // len(colours) % 3]
    return {"color": colour, "linestyle": dash, "linewidth": 1.2, "marker": marker, "markersize": 3}


def _legend_below(figure: "Figure", handles: Sequence[Any], columns: int, size: int = 8) -> None:
    below: dict[str, Any] = {"loc": "outside lower center", "ncols": columns, "frameon": False}
    figure.legend(handles=handles, fontsize=size, labelcolor=plots.INK, **below)


def _curves(
    width: float, height: float, lines: Mapping[str, Mapping[str, Mapping[Any, float]]], **labels: Any
) -> tuple["Figure", list["Axes"]]:
    """One panel for each name, with a line for each method, which looks the same in all panels."""
    figure, (axes,) = plots.panels(width, height, columns=len(lines))
    order = list(dict.fromkeys(title for methods in lines.values() for title in methods))
    for panel, (name, methods) in zip(axes, lines.items(), strict=True):
        for title, points in methods.items():
            panel.plot(list(points), list(points.values()), label=title, **_style(title, order.index(title)))
        panel.set(**labels)
        plots.title(panel, name)
    return figure, axes


def over_bits(
    lines: Mapping[str, Mapping[str, Mapping[int, float]]],
    ylabel: str,
    bars: Mapping[str, Mapping[int, Interval]] | None = None,
) -> "Figure":
    """Published and ours: a line over the lengths of codes for each method; `bars` say how sure the last panel is."""
    figure, axes = _curves(4.4 * len(lines), 4.2, lines, xlabel="bits", ylabel=ylabel)
    values = [v for panel in lines.values() for line in panel.values() for v in line.values()]
    room = 0.04 * (max(values) - min(values) or 1)
    for line in axes[-1].lines[:]:
        for bits, ends in (bars or {}).get(str(line.get_label()), {}).items():
            axes[-1].vlines(bits, *ends, color=line.get_color(), linewidth=1, alpha=0.6)
    for panel, methods in zip(axes, lines.values(), strict=True):
        panel.set_ylim(min(values) - room, max(values) + room)
        panel.set_xticks(sorted({bits for line in methods.values() for bits in line}))
    _legend_below(figure, max(axes, key=lambda panel: len(panel.lines)).lines, 6)
    return figure


def top_n(records: Mapping[int, Mapping[str, Record]], protocol: str = "paper") -> "Figure":
    """Precision of the first N photos, one panel a length and one curve a method."""
    lines = {f"{bits} bits": {t: run.top_n(protocol) for t, run in runs.items()} for bits, runs in records.items()}
    figure, axes = _curves(3.3 * len(lines), 3.9, lines, xlabel="photos looked at (N)")
    axes[0].set_ylabel("precision")
    limits = [panel.get_ylim() for panel in axes]
    for panel in axes:
        panel.xaxis.set_major_formatter("{x:,.0f}")
        panel.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    _legend_below(figure, axes[0].lines, 6)
    return figure


def convergence(records: Mapping[str, Record], protocol: str = "paper") -> "Figure":
    """mAP of the queries over the seconds of training, and over epochs."""
    lines: dict[str, dict[str, dict[Any, float]]] = {
        "Over the seconds of training": {t: {p.seconds: p.map(protocol) for p in r.curve} for t, r in records.items()},
        "Over epochs": {t: {p.epoch: p.map(protocol) for p in r.curve} for t, r in records.items()},
    }
    figure, (seconds, epochs) = _curves(9.6, 4.2, lines, ylabel="mAP of the queries", xlim=(0, None))
    seconds.set_xlabel("seconds of training")
    epochs.set_xlabel("epochs")
    _legend_below(figure, seconds.lines, 5)
    return figure


def over_seconds(points: Mapping[str, Mapping[str, Mapping[float, float]]]) -> "Figure":
    """mAP of the queries over seconds of training: a panel a length, a point with its name a method."""
    labels = {"xlabel": "seconds of training", "ylabel": "mAP of the queries"}
    figure, axes = _curves(6.2 * len(points), 7.4, points, xscale="log", **labels)
    for panel, methods in zip(axes, points.values(), strict=True):
        for loss, place in ((loss, place) for loss, point in methods.items() for place in point.items()):
            panel.annotate(loss, place, (3, 2), textcoords="offset points", fontsize=6, color=plots.INK)
    return figure


def step_times(times: Mapping[str, Mapping[int, float]]) -> "Figure":
    """Milliseconds of a step of each loss over the photos in a batch."""
    labels = {"xlabel": "photos in the batch", "ylabel": "milliseconds of a step"}
    lines = {"A step of each loss, forward and backward": times}
    figure, (panel,) = _curves(7.4, 4.4, lines, xscale="log", yscale="log", **labels)
    panel.set_xticks(sorted({n for line in times.values() for n in line}), minor=False)
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.minorticks_off()
    panel.legend(frameon=False, fontsize=8, labelcolor=plots.INK, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


# ── t-SNE ────────────────────────────────────────────────────────────────────────────────────────────────


def embed(outputs: NDArray[np.float32], seed: int = 0) -> NDArray[np.float32]:
    """t-SNE of the directions of real outputs, (n, 2). Directions, because the losses compare cosines."""
    with needs_extra("reproduce", "t-SNE"):
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    perplexity = min(30.0, max(2.0, (len(outputs) - 1) / 4))
    model = TSNE(n_components=2, perplexity=perplexity, init="pca", learning_rate="auto", random_state=seed)
    with threadpool_limits(1):  # so few points that threads would only wait for each other
        placed: NDArray[np.float32] = model.fit_transform(unit(outputs))
    return placed


def tsne(
    places: Mapping[str, NDArray[np.float32]],
    labels: Labels,
    classes: Sequence[str],
    marked: Sequence[tuple[str, NDArray[np.bool_]]] = (),
) -> "Figure":
    """One panel a method; every photo is a pie of the colours of all its labels. Marked photos wear a ring."""
    columns = min(3, len(places))
    rows = -(-len(places) // columns)
    figure, axes = plots.panels(4.3 * columns, 4.3 * rows + 0.9, rows=rows, columns=columns)
    colours = class_colours(len(classes))
    flat = [panel for row in axes for panel in row]
    for panel in flat:
        panel.set_axis_off()
    for panel, (title, points) in zip(flat, places.items(), strict=False):
        _pies(panel, points, labels, colours)
        for (name, rows_marked), edge in zip(marked, (RED, "#000000"), strict=False):
            _ring(panel, points[rows_marked], edge, 70, name, zorder=4)
        plots.title(panel, title)
    used = np.flatnonzero(labels.any(axis=0)).tolist()
    handles = [flat[0].scatter([], [], s=30, color=[colours[c]], label=plots.plain(classes[c])) for c in used]
    for (name, _), edge in zip(marked, (RED, "#000000"), strict=False):
        handles.append(_ring(flat[0], np.empty((0, 2), np.float32), edge, 60, f"ring: {name}"))
    _legend_below(figure, handles, 9, size=7)
    return figure


def class_colours(classes: int) -> list[tuple[float, float, float]]:
    """As many colours as classes: hues by the golden angle, in three shades, so that neighbours differ.

    >>> len(set(class_colours(38)))
    38
    """
    shades = ((0.75, 0.85), (0.95, 0.6), (0.45, 0.95))
    return [colorsys.hsv_to_rgb((i * 0.61803) % 1, *shades[i % 3]) for i in range(classes)]


def _pies(axes: "Axes", points: NDArray[np.float32], labels: Labels, colours: Sequence[Any]) -> None:
    """Wedges of one shape are drawn together: there are few shapes and many photos."""
    wedges: dict[tuple[int, int], tuple[list[Any], list[Any]]] = {}
    for point, carried in zip(points, labels, strict=True):
        own = np.flatnonzero(carried).tolist()
        for k, label in enumerate(own):
            places, fills = wedges.setdefault((len(own), k), ([], []))
            places.append(point)
            fills.append(colours[label])
    for (parts, k), (places, fills) in wedges.items():
        x, y = np.array(places).T
        outline = _wedge(parts, k)
        # matplotlib fits a marker's largest coordinate to the size; scaling by its square undoes that
        size = 26 * float(np.abs(outline).max()) ** 2
        marker: Any = outline  # its type does not know that arrays of points will do
        axes.scatter(x, y, s=size, marker=marker, c=fills, linewidths=0, rasterized=True)


def _wedge(parts: int, k: int) -> NDArray[np.float64]:
    """The outline of the k-th of so many equal slices of the unit circle."""
    angles = 2 * np.pi * (k + np.linspace(0, 1, max(3, WEDGE_POINTS // parts))) / parts
    arc = np.column_stack([np.cos(angles), np.sin(angles)])
    return arc if parts == 1 else np.vstack([[0, 0], arc, [0, 0]])


def _ring(axes: "Axes", points: NDArray[np.float32], edge: str, size: int, name: str, **options: Any) -> Any:
    rings: dict[str, Any] = {"facecolors": "none", "edgecolors": edge, "linewidths": 1.3}
    return axes.scatter(points[:, 0], points[:, 1], s=size, label=name, **rings, **options)


def conflict(
    before: NDArray[np.float32], after: NDArray[np.float32], labels: Labels, classes: Sequence[str], *, least: int = 6
) -> list[tuple[str, NDArray[np.bool_]]]:
    """Two pairs of labels that exclude each other and whose photos lie nearer together in `before` than in `after`.

    Photos "with a and b" carry both and neither of the other pair. Of all pairs of pairs with at least `least` photos
    each, the one whose mean directions part most in cosine.
    """
    common = [pair for pair in combinations(range(len(classes)), 2) if labels[:, pair].all(axis=1).sum() >= least]
    units = unit(before), unit(after)
    best: tuple[float, list[tuple[str, NDArray[np.bool_]]]] = (0.0, [])
    for pairs in combinations(common, 2):
        one, two = ([int(c) for c in pair] for pair in pairs)
        first = np.asarray(labels[:, one].all(axis=1) & ~labels[:, two].any(axis=1))
        second = np.asarray(labels[:, two].all(axis=1) & ~labels[:, one].any(axis=1))
        if min(first.sum(), second.sum()) < least:  # so it is with two pairs that share a label
            continue
        near, far = (float(unit(u[first].mean(axis=0)) @ unit(u[second].mean(axis=0))) for u in units)
        if near > 0.2 and near - far > best[0]:
            names = [" & ".join(classes[c] for c in pair) for pair in (one, two)]
            best = near - far, list(zip(names, (first, second), strict=True))
    return best[1]


# ── gallery ──────────────────────────────────────────────────────────────────────────────────────────────


def gallery(queries: Sequence[Mapping[str, GalleryRow]]) -> "Figure":
    """A block a query, a row a method: the nearest photos, framed by the share of the query's labels they carry."""
    methods = list(queries[0])
    most = max(len(row.matches) for query in queries for row in query.values())
    rows = len(queries) * len(methods)
    figure, axes = plots.panels(1.05 * (most + 2.2), 1.22 * rows, rows=rows, columns=most + 2)
    for row in axes:
        for panel in row:
            panel.set_axis_off()
    for i, query in enumerate(queries):
        for j, (method, found) in enumerate(query.items()):
            row, wanted = axes[i * len(methods) + j], found.query.labels
            if j == 0:
                _show(row[0], found.query, "query", "")
            if j == min(1, len(methods) - 1):  # below the query, where its column is empty
                few = [*wanted[:5], f"+ {len(wanted) - 5} more"] if len(wanted) > 6 else wanted
                names = "\n".join(few)
                row[0].text(0.5, 1, names, transform=row[0].transAxes, ha="center", va="top", color=plots.INK, size=7)
            row[1].text(1, 0.5, method, transform=row[1].transAxes, ha="right", va="center", color=plots.INK, size=9)
            for panel, match in zip(row[2:], found.matches, strict=False):
                shared = len(set(match.labels) & set(wanted))
                _show(panel, match, f"{shared} of {len(wanted)}", grade(shared, len(wanted)))
    return figure


def _show(axes: "Axes", photo: GalleryPhoto, below: str, verdict: str) -> None:
    from PIL import Image

    assert photo.thumbnail, "photos of a dataset have one"
    axes.imshow(np.asarray(Image.open(io.BytesIO(photo.thumbnail())).convert("RGB")))
    axes.set_axis_on()
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.set_xlabel(below, fontsize=7, labelpad=2)
    edge = {"good": GREEN, "bad": RED}.get(verdict)
    for spine in axes.spines.values():
        spine.set(visible=edge is not None, color=edge or plots.FAINT, linewidth=3)


# ── theory ──────────────────────────────────────────────────────────────────────────────────────


def capacities(lengths: Sequence[int] = (12, 24, 36, 48, 64), classes: int = 100) -> "Figure":
    """log₂ Ω(K, C) over C against log₂ 2^C = C."""
    figure, ((panel,),) = plots.panels(6.4, 4.2)
    x = range(1, classes + 1)
    panel.plot(x, x, color=plots.INK, linewidth=1, linestyle="--", label="all label sets, 2^C")
    for bits, colour in zip(lengths, cycle(plots.COLOURS), strict=False):
        y = [log2(capacity(classes=c, bits=bits)) for c in x]
        panel.plot(x, y, color=colour, linewidth=1.6, label=f"{bits} bits")
        panel.plot(bits + 1, bits + 1, "o", color=colour, markersize=5)
    panel.set(xlabel="number of labels C", ylabel="log₂ of the label sets kept apart", xlim=(0, classes))
    plots.title(panel, "Theorem 1: Ω(K, C) leaves 2^C after C = K + 1")
    panel.legend(frameon=False, fontsize=8, labelcolor=plots.INK)
    return figure


def angles(found: Sequence[Mapping[str, Any]], bits: int) -> "Figure":
    """Theorem 2: angles of photos with several labels, by case."""
    rows = [row for row in found if row["bits"] == bits and row["labels"] > 1]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    figure, axes = plots.panels(9.6, 3.6, columns=3)
    shown = {
        "to_middle": "to the middle of its proxies",
        "unequal": "farthest less nearest own proxy",
        "to_unrelated": "to the nearest unrelated photo",
    }
    for panel, (field, title) in zip(axes[0], shown.items(), strict=True):
        for offset, labels, colour in ((-0.2, 2, plots.COLOURS[0]), (0.2, 3, plots.COLOURS[4])):
            values = [next(r[field] for r in rows if (r["case"], r["labels"]) == (case, labels)) for case in cases]
            panel.barh(np.arange(len(cases)) + offset, values, 0.36, color=colour, label=f"{labels} labels")
        panel.set_yticks(range(len(cases)), cases if panel is axes[0][0] else [""] * len(cases))
        panel.invert_yaxis()
        panel.grid(visible=False, axis="y")
        panel.set(xlabel="degrees")
        plots.title(panel, title)
    axes[0][0].legend(frameon=False, fontsize=8, labelcolor=plots.INK)
    return figure
