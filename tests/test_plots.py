"""Figures hold the data they are given, read well with many labels, and come out the same every time."""

import sys
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

from hyphash import plots
from hyphash.codes import Codes
from hyphash.errors import ConfigError, DataError, MissingExtraError
from hyphash.evaluation import Rankings, Report, evaluate_codes

LONG = [f"a rather long label name {i} <&> $x^2$" for i in range(38)]


@pytest.fixture(scope="module")
def report() -> Report:
    random = np.random.default_rng(0)
    codes = Codes.from_outputs(random.normal(size=(80, 12)).astype(np.float32))
    labels = (random.random((80, 5)) < 0.3).astype(np.uint8)
    return evaluate_codes(Rankings(codes[:10], codes[10:], labels[:10], labels[10:]), top=50)


def test_curves_are_those_of_the_report(report):
    (axes,) = plots.precision_recall(report.curve).axes
    assert tuple(axes.lines[0].get_xdata()) == report.curve.recall
    assert tuple(axes.lines[0].get_ydata()) == report.curve.precision
    (axes,) = plots.precision_of_top(report.scores[1]).axes
    points = zip(axes.lines[0].get_xdata(), axes.lines[0].get_ydata(), strict=True)
    assert list(points) == list(report.scores[1].precision)
    low, high = axes.get_ylim()
    assert all(low < share < high for _, share in report.scores[1].precision)


def test_bars_are_the_balance_of_the_bits(report):
    (axes,) = plots.bit_balance(report).axes
    assert [bar.get_height() for bar in axes.patches] == list(report.bit_use.balance)


def test_co_occurrence_is_a_share_of_the_row():
    counts = np.array([[10, 5, 0], [5, 20, 0], [0, 0, 0]])
    figure = plots.co_occurrence(counts, ["sea", "sky", "never"])
    share = figure.axes[0].images[0].get_array()
    assert share[0, 1] == 0.5
    assert share[1, 0] == 0.25
    assert share[2].compressed().tolist() == [0, 0]
    with pytest.raises(DataError, match="2 class names"):
        plots.co_occurrence(counts, ["sea", "sky"])


def test_many_long_names_do_not_overlap():
    figure = plots.co_occurrence(np.arange(38 * 38).reshape(38, 38) + 1, LONG)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    frame = figure.bbox
    for labels in (axes.get_yticklabels(), axes.get_xticklabels()):
        boxes = [label.get_window_extent() for label in labels]
        assert len(boxes) == 38
        assert not any(a.overlaps(b) for a, b in pairwise(boxes))
        assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 for box in boxes)


def test_saved_figures_are_what_their_ending_says(tmp_path, report):
    figure = plots.bit_balance(report)
    plots.save(figure, tmp_path / "bits.png")
    plots.save(figure, tmp_path / "bits.svg")
    assert (tmp_path / "bits.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "bits.svg").read_bytes()
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        plots.save(figure, tmp_path / "bits.pdf")


def test_the_same_figure_gives_the_same_file(tmp_path, report):
    for name in ("one.svg", "two.svg"):
        plots.save(plots.precision_recall(report.curve), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_inline_svg_is_one_safe_element():
    text = plots.svg(plots.co_occurrence(np.ones((38, 38), int), LONG), "labels")
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    assert root.get("aria-label") == "Of photos with the row's label, share with the column's"
    assert "currentColor" in text
    assert not any(word in text for word in ("<script", "<style", "<!--", "<metadata", "http://matplotlib"))


def test_without_matplotlib_the_extra_is_named(monkeypatch, report):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"hyphash\[plots\]"):
        plots.bit_balance(report)
