"""Figures: what is drawn, not how it looks."""

import io

import numpy as np
import pytest
from PIL import Image

from hyphash import plots
from hyphash.benchmarks import figures
from hyphash.benchmarks.figures import class_colours, conflict
from hyphash.report import GalleryPhoto, GalleryRow


def jpeg(colour):
    file = io.BytesIO()
    Image.new("RGB", (16, 16), colour).save(file, "JPEG")
    return file.getvalue()


def test_the_slices_of_a_pie_fill_the_circle():
    for parts in (2, 3, 5):
        area = 0.0
        for k in range(parts):
            x, y = figures._wedge(parts, k).T
            area += 0.5 * float(np.sum(x[:-1] * y[1:] - x[1:] * y[:-1]))  # shoelace
        assert area == pytest.approx(np.pi, rel=0.08)  # polygons lie inside the circle
        assert area < np.pi


def test_a_photo_is_drawn_once_for_each_of_its_labels():
    labels = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1]], np.uint8)
    points = np.array([[0, 0], [1, 0], [0, 1]], np.float32)
    drawn = figures.tsne({"HyP²": points}, labels, ["a", "b", "c"], [("a & b", labels[:, 1] > 0)])
    scatters = [c for c in drawn.axes[0].collections if len(c.get_offsets())]
    wedges, ring = scatters[:-1], scatters[-1]
    assert sum(len(c.get_offsets()) for c in wedges) == labels.sum()
    assert ring.get_offsets().tolist() == points[1:].tolist()
    names = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert names == ["a", "b", "c", "ring: a & b"]


def test_the_conflict_found_is_the_one_that_was_made():
    rng = np.random.default_rng(0)
    labels = np.zeros((40, 6), np.uint8)
    for i, pair in enumerate(([0, 1], [2, 3], [4, 5], [0, 4])):
        labels[10 * i : 10 * i + 10, pair] = 1
    places = rng.normal(size=(4, 16))
    after = np.repeat(places, 10, axis=0) + 0.1 * rng.normal(size=(40, 16))
    before = after.copy()
    before[10:20] = before[20:30]  # photos with 2 & 3 lie upon those with 4 & 5
    found = conflict(before.astype(np.float32), after.astype(np.float32), labels, list("abcdef"))
    assert [name for name, _ in found] == ["c & d", "e & f"]
    assert np.flatnonzero(found[0][1]).tolist() == list(range(10, 20))
    assert conflict(after.astype(np.float32), after.astype(np.float32), labels, list("abcdef")) == []


def test_the_gallery_frames_by_the_share_of_matched_labels(tmp_path):
    query = GalleryPhoto(name="q", labels=tuple("abcd"), thumbnail=lambda: jpeg("blue"))
    matches = [
        GalleryPhoto(name="m", labels=(*"abcd"[:shared], "z"), thumbnail=lambda: jpeg("red")) for shared in (4, 2, 1)
    ]
    row = GalleryRow(query=query, matches=tuple(matches))
    drawn = figures.gallery([{"HyP²": row, "IDHN": row}])
    shown = [axes for axes in drawn.axes if axes.images]
    assert len(shown) == 1 + 2 * 3
    edges = [axes.spines["left"].get_edgecolor() if axes.spines["left"].get_visible() else None for axes in shown[1:4]]
    assert edges[0][1] > edges[0][0]  # green
    assert edges[1] is None
    assert edges[2][0] > edges[2][1]  # red
    assert [axes.get_xlabel() for axes in shown[1:4]] == ["4 of 4", "2 of 4", "1 of 4"]
    plots.save(drawn, tmp_path / "gallery.png")
    with Image.open(tmp_path / "gallery.png") as picture:
        assert picture.width > 300


def test_neighbours_have_different_colours():
    colours = np.array(class_colours(40))
    apart = np.linalg.norm(colours[:, None] - colours[None], axis=2) + 9 * np.eye(40)
    assert apart.min() > 0.02
    assert np.abs(colours[1:] - colours[:-1]).sum(axis=1).min() > 0.3


def test_t_sne_keeps_groups_together():
    rng = np.random.default_rng(0)
    groups = np.repeat(rng.normal(size=(2, 12)), 20, axis=0) + 0.05 * rng.normal(size=(40, 12))
    placed = figures.embed(groups.astype(np.float32))
    assert placed.shape == (40, 2)
    first, second = placed[:20], placed[20:]
    within = max(np.linalg.norm(g - g.mean(axis=0), axis=1).mean() for g in (first, second))
    assert np.linalg.norm(first.mean(axis=0) - second.mean(axis=0)) > within
