"""Pages of finished runs: which tables and figures they hold, with and without the photos."""

import numpy as np
import pytest

from hyphash.benchmarks import BENCHMARKS, DATASETS
from hyphash.benchmarks.reproduction import Reproduction
from hyphash.benchmarks.runs import Choices, Results, RunCodes, plan
from hyphash.codes import Codes
from hyphash.errors import DataError


def ask(name, into, **options):
    return Reproduction(benchmark=BENCHMARKS[name], results=Results(into), device="cpu", **options)


def test_the_page_of_a_table(filled):
    results = filled("flickr25k")
    page, path = ask("flickr25k", results.root).write()
    names = [table.name for table in page.tables]
    assert names == [f"flickr25k-alexnet-{kind}" for kind in ("map-paper", "map-strict", "orderings", "cost")]
    assert len(page.tables[0].rows) == 11
    assert page.tables[0].columns[2] == "12 published"
    assert not any("published" in column for column in page.tables[1].columns)
    assert page.facts["device"] == "a made-up device"
    assert page.notes == ()
    text = path.read_text()
    assert text.count("<table>") == 4
    assert "<svg" in text
    assert "DCILH &gt; all others" in text


def test_the_pages_of_the_ablation_and_the_spread(filled):
    results = filled("ablation")
    ablation = ask("ablation", results.root).page()
    gain = ablation.tables[0]
    assert [row[0] for row in gain.rows] == [12, 24, 36, 48]
    for row in gain.rows:
        assert row[7] == pytest.approx(row[2] - row[5])
        assert row[8] <= row[7]
        low, high = map(float, row[9].split(" to "))
        assert low < high
    assert gain.rows[0][-1] == pytest.approx(0.845 - 0.787)
    assert [row[0] for row in ablation.tables[2].rows][:3] == ["pair", "proxy", "proxy + pair"]
    spread = ask("spread", results.root).page()
    assert [table.name.removeprefix("flickr25k-alexnet-") for table in spread.tables] == [
        *("d_intra", "d_intra-orderings", "d_inter", "d_inter-orderings")
    ]
    assert "define" in spread.tables[0].above  # the paper does not define its clusters, and we say so


def test_the_pages_of_curves(filled):
    results = filled("flickr25k", "convergence")
    topn = ask("topn", results.root).page()
    assert len(topn.tables[0].rows) == 44
    assert [drawn.name for drawn in topn.figures] == [f"flickr25k-alexnet-topn-{p}" for p in ("paper", "strict")]
    assert len(topn.figures[0].figure.axes) == 4
    convergence = ask("convergence", results.root).page()
    assert [row[0] for row in convergence.tables[0].rows] == ["DHN", "IDHN", "Proxy Anchor", "OrthoHash", "HyP²"]
    assert "one run at a time" in convergence.figures[0].caption
    assert convergence.tables[0].rows[0][3] == 6  # the epoch that was best on the queries


@pytest.mark.slow
def test_the_page_of_places_needs_no_photos(filled, made_up):
    results = filled("flickr25k", "ablation")
    page, _ = ask("tsne", results.root, mark="label 0,label 1").write()
    assert (results.root / "tsne" / "flickr25k-alexnet-tsne.png").is_file()
    assert "Ringed: photos with label 0 (red) and with label 1 (black)" in page.figures[0].caption
    assert page.tables[0].columns[1] == "between the two"
    every = "+".join(f"label {i}" for i in range(38))
    with pytest.raises(DataError, match="--mark: no query of Flickr-25k carries label 0"):
        ask("tsne", results.root, mark=every).page()
    with pytest.raises(DataError, match="--mark: no label 'cat'"):
        ask("tsne", results.root, mark="cat,dog").page()


def test_the_gallery_needs_photos(filled):
    results = filled("flickr25k")
    page = ask("gallery", results.root).page()
    assert page.figures == []
    assert page.notes == ("a gallery shows photos: give --data to draw it",)


def test_the_gallery_shows_queries_and_what_each_method_finds(nuswide_tree, made_up, tmp_path):
    rng, results = np.random.default_rng(0), Results(tmp_path)
    for planned in plan(BENCHMARKS["gallery"], DATASETS["nuswide"], Choices(), {}):
        outputs = rng.normal(size=(38, 48)).astype(np.float32)
        codes = Codes.from_outputs(outputs)
        results.keep(made_up(planned.run)[0], RunCodes(codes[:8], codes[8:], outputs[:8]))  # 8 queries, 30 photos
    page = ask("gallery", tmp_path, dataset="nuswide", data=(str(nuswide_tree),), queries=(3, 5)).page()
    (drawn,) = page.figures
    assert "Queries as asked for" in drawn.caption
    assert sum(bool(axes.images) for axes in drawn.figure.axes) == 2 * (1 + 3 * 10)  # each query once, ten a method
    chosen = ask("gallery", tmp_path, dataset="nuswide", data=(str(nuswide_tree),)).page()
    assert "The first query with two labels" in chosen.figures[0].caption
