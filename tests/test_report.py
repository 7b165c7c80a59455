"""Pages stand alone, escape what users give them and grade matches as the paper's first figure does."""

import base64
import io
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hyphash import report as module
from hyphash.codes import Codes
from hyphash.datasets import Split
from hyphash.errors import PhotoError
from hyphash.evaluation import EncodedSplit, Rankings, Report, evaluate_codes
from hyphash.photos import PhotoFiles
from hyphash.quantizer import Quantizer
from hyphash.report import (
    GalleryPhoto,
    GalleryRow,
    Section,
    Table,
    gallery_rows,
    grade,
    markdown_table,
    report_page,
    write_gallery,
    write_report,
)
from hyphash.report import Page as TablePage

EVIL = "<script>alert('$x & \"y\"')</script>"


class Page(HTMLParser):
    """What a page holds: its tags, and the attributes that could load something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.classes: list[str] = []
        self.sources: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tags.append(tag)
        if tag not in {"meta", "img", "br"}:
            self.open.append(tag)
        if tag == "figure":
            self.classes.append(values.get("class") or "")
        self.sources += [value for name, value in values.items() if name in {"src", "href", "xlink:href", "srcset"}]
        assert not any(name.startswith("on") for name in values)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.sources += [value for name, value in attributes if name in {"src", "href", "xlink:href"}]

    def handle_data(self, data):
        self.text += data


def jpeg(colour: str = "green") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (20, 10), colour).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture(scope="module")
def report() -> Report:
    random = np.random.default_rng(0)
    outputs = random.normal(size=(60, 10)).astype(np.float32)
    labels = (random.random((60, 4)) < 0.4).astype(np.uint8)
    labels[:10, 3] = 0  # a label that no query carries
    codes = Codes.from_outputs(outputs)
    return evaluate_codes(
        Rankings(codes[:10], codes[10:], labels[:10], labels[10:], query_outputs=outputs[:10]),
        top=20,
        classes=["a_b", EVIL, "c|d", "e"],
        dataset=EVIL,
        facts={"loss": EVIL},
        problems=(f"{EVIL}.jpg: cut off",),
    )


@pytest.fixture(scope="module")
def gallery() -> list[GalleryRow]:
    def match(*labels: str) -> GalleryPhoto:
        return GalleryPhoto(name=EVIL, labels=labels, distance=3, thumbnail=jpeg)

    query = GalleryPhoto(name=EVIL, labels=("a", "b", "c", EVIL), thumbnail=jpeg)
    return [GalleryRow(query=query, matches=(match("a", "b", "c"), match("a", "b", "x"), match("a"), match()))]


def test_the_page_stands_alone_and_escapes(report, gallery):
    text = report_page(report, gallery=gallery, title=EVIL)
    page = Page(text)
    assert page.open == []  # every tag closed, in order
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert all(source.startswith(("data:image/", "#")) for source in page.sources)
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text
    assert "$" not in re.sub(r"data:image/[^\"]*", "", text).replace("$x", "")  # no placeholder left
    assert page.text.count("alert(") >= 6


def test_the_protocol_stands_above_its_table(report):
    text = Page(report_page(report)).text
    places = [text.index(protocol.describe()) for protocol in report.protocols]
    for place, protocol in zip(places, report.protocols, strict=True):
        value = report.mean_average_precision(protocol.name)
        assert text.index(f"{value:.4f}", place) > place
    assert places == sorted(places)


def test_labels_are_listed_the_best_found_first(report):
    text = Page(report_page(report)).text
    section = text[text.index("Labels") :]
    scores = {label.name: label.found for label in report.labels}
    assert scores["e"] is None
    names = sorted(["a_b", EVIL, "c|d"], key=lambda name: -scores[name])
    places = [section.index(f"{scores[name]:.4f}") for name in names]
    assert places == sorted(places)


def test_borders_follow_the_share_of_matched_labels(gallery, tmp_path):
    write_gallery(tmp_path / "gallery.html", gallery, "found")
    page = Page((tmp_path / "gallery.html").read_text(encoding="utf-8"))
    assert page.classes == ["", "good", "", "bad", "bad"]
    assert [f"{n} of 4" in page.text for n in range(4)] == [True, True, True, True]
    assert page.text.count("distance 3") == 4


@pytest.mark.parametrize(
    ("shared", "wanted", "style"),
    [(3, 4, "good"), (2, 3, ""), (1, 3, ""), (1, 4, "bad"), (0, 1, "bad"), (1, 1, "good"), (0, 0, ""), (1, 2, "")],
)
def test_grades(shared, wanted, style):
    assert grade(shared, wanted) == style


def test_a_query_without_labels_grades_nothing(tmp_path):
    row = GalleryRow(
        query=GalleryPhoto(name="mine.jpg", thumbnail=jpeg),
        matches=(GalleryPhoto(name="x.jpg", labels=("a",), distance=-1.25, thumbnail=jpeg),),
    )
    write_gallery(tmp_path / "gallery.html", [row], "found")
    page = Page((tmp_path / "gallery.html").read_text(encoding="utf-8"))
    assert page.classes == ["", ""]
    assert "75 %" not in page.text
    assert "distance -1.25" in page.text


def test_labels_stand_in_for_a_missing_photo_and_nothing_found_is_said(tmp_path):
    row = GalleryRow(query=GalleryPhoto(name="dog, cat", labels=("dog", "cat")), matches=())
    write_gallery(tmp_path / "gallery.html", [row], "found")
    page = Page((tmp_path / "gallery.html").read_text(encoding="utf-8"))
    assert "img" not in page.tags
    assert "Nothing found" in page.text


def test_a_photo_that_cannot_be_read_leaves_a_gap(tmp_path):
    def broken() -> bytes:
        raise PhotoError("gone")

    row = GalleryRow(query=GalleryPhoto(name="gone.jpg", thumbnail=broken), matches=())
    write_gallery(tmp_path / "gallery.html", [row], "found")
    assert "cannot be read" in (tmp_path / "gallery.html").read_text(encoding="utf-8")


def test_thumbnails_lie_in_the_page(gallery, tmp_path):
    write_gallery(tmp_path / "gallery.html", gallery, "found")
    page = Page((tmp_path / "gallery.html").read_text(encoding="utf-8"))
    kind, data = page.sources[0].split(";base64,")
    assert kind == "data:image/jpeg"
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (20, 10)


def test_report_files(report, gallery, tmp_path):
    page = write_report(tmp_path / "new" / "folder", report, gallery=gallery)
    assert page.name == "report.html"
    assert Report.parse((page.parent / "report.json").read_text(encoding="utf-8")) == report
    assert sorted(path.name for path in page.parent.iterdir()) == ["report.html", "report.json"]


def test_a_page_without_matplotlib_says_how_to_get_the_curves(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    page = Page(report_page(report))
    assert "svg" not in page.tags
    assert "hyphash[plots]" in page.text


def photos(folder: Path, count: int) -> Split:
    for i in range(count):
        (folder / f"{i}.jpg").write_bytes(jpeg())
    labels = np.eye(4, dtype=np.uint8)[np.arange(count) % 4]
    return Split(PhotoFiles([f"{i}.jpg" for i in range(count)], folder), np.arange(count), labels)


def test_gallery_rows_are_the_nearest_photos(tmp_path):
    random = np.random.default_rng(0)
    split = photos(tmp_path, 30)
    outputs = random.normal(size=(30, 8)).astype(np.float32)
    codes = Codes.from_outputs(outputs)
    queries = EncodedSplit(split.take(slice(0, 10)), outputs[:10], codes[:10])
    database = EncodedSplit(split.take(slice(10, None)), outputs[10:], codes[10:])
    rows = gallery_rows(queries, database, ["a", "b", "c", "d"], count=3, k=5)
    assert [row.query.name for row in rows] == ["0.jpg", "4.jpg", "9.jpg"]  # evenly spread
    distances = codes[4].distances(codes[10:])[0]
    order = np.argsort(distances, kind="stable")[:5]
    assert [match.name for match in rows[1].matches] == [f"{10 + i}.jpg" for i in order]
    assert [match.distance for match in rows[1].matches] == distances[order].tolist()
    assert rows[1].query.labels == ("a",)
    assert rows[0].matches[0].thumbnail().startswith(b"\xff\xd8")
    assert len(gallery_rows(queries, database, ["a", "b", "c", "d"], count=99)) == 10


def test_gallery_rows_of_a_quantiser(tmp_path):
    random = np.random.default_rng(0)
    split = photos(tmp_path, 12)
    quantizer = Quantizer(random.normal(size=(1, 256, 3)), bits=8)
    outputs = random.normal(size=(12, 3)).astype(np.float32)
    encoded = EncodedSplit(split, outputs, quantizer.encode(outputs))
    (row,) = gallery_rows(encoded, encoded, ["a", "b", "c", "d"], count=1, k=12, quantizer=quantizer)
    distances = np.square(outputs[0] - quantizer.decode(encoded.codes)).sum(axis=1)
    assert [match.name for match in row.matches] == [f"{i}.jpg" for i in np.argsort(distances)]


def test_markdown_keeps_names_as_they_are(report):
    text = markdown_table(["label", "found"], [[label.name, label.found] for label in report.labels])
    assert "a\\_b" in text
    assert "c\\|d" in text
    assert "<script" not in text
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in text.splitlines())


def test_markdown_table_aligns_figures():
    table = markdown_table(["method", "mAP", "photos"], [["hyp2", 0.5, 1000], ["a\nb", None, 2]])
    assert table.splitlines() == [
        "| method | mAP | photos |",
        "|---|--:|--:|",
        "| hyp2 | 0.5000 | 1,000 |",
        "| a b | – | 2 |",
    ]


def test_the_first_and_last_depths_are_shown():
    points = [(1, 0.1), (10, 0.2), (100, 0.3), (200, 0.4), (1000, 0.5)]
    assert module._few(points) == [(1, 0.1), (10, 0.2), (100, 0.3), (1000, 0.5)]
    assert module._few(points[:2]) == points[:2]


def test_plain_text_stands_in_line():
    made = Table(name="x", title="X", columns=("a", "two words"), rows=(("long text", 1.0), ("b", None)))
    assert made.plain().splitlines() == [
        "             two",
        "a          words",
        "────────────────",
        "long text  1.000",
        "b              –",
    ]


def test_a_bar_in_a_cell_does_not_break_markdown():
    made = Table(name="x", title="X", columns=("a",), rows=(("d | e",),))
    assert made.markdown().splitlines()[-1] == r"| d \| e |"


def test_a_page_of_many_sections_has_a_list_of_them_and_folds_long_tables():
    rows = tuple((f"{i}",) for i in range(50))
    long = Table(name="long", title="Long", above="", columns=("n",), rows=rows)
    text = TablePage("All", "", tuple(Section(f"part {i}", tables=(long,)) for i in range(8))).html()
    assert text.count("<details><summary>all 50 rows</summary>") == 8
    assert [f'<a href="#s{i}">part {i}</a>' in text for i in range(8)] == [True] * 8
    assert '<h2 id="s7">part 7</h2>' in text
    short = TablePage("One", "", (Section("part", tables=(replace(long, rows=rows[:9]),)),)).html()
    assert "<details>" not in short
    assert "<nav>" not in short


def test_a_page_of_tables_escapes_what_others_wrote():
    table = Table(name="t", title=EVIL, above=EVIL, columns=(EVIL,), rows=((EVIL,),), below=(EVIL,))
    text = TablePage(EVIL, EVIL, (Section(EVIL, tables=(table,)),), notes=(EVIL,), facts={EVIL: EVIL}).html()
    assert "<script" not in text
    assert text.count("alert(&#39;$x &amp; &#34;y&#34;&#39;)") == 12  # the title twice: of the page and above it


def test_the_best_of_a_column_stands_out_and_words_stand_to_the_left():
    table = Table(name="t", title="T", columns=("a", "b"), rows=(("x", 0.5), ("y", "word")), best=frozenset({(0, 1)}))
    text = TablePage("P", "", (Section("S", tables=(table,)),)).html()
    assert "<td><b>0.500</b></td>" in text
    assert '<td class="text">word</td>' in text
    assert "<td>x</td>" in text
