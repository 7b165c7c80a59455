"""Tables: ours beside the published, and the three forms they are written in."""

import csv
import io
import json

import pytest

from hyphash.benchmarks import BENCHMARKS, DATASETS, Choices, Method, plan
from hyphash.benchmarks.published import MAP
from hyphash.benchmarks.tables import Seeds, Table, against_published, by_cell, cost_table, map_measure

FLICKR = DATASETS["flickr25k"]


@pytest.fixture
def found(made_up):
    planned = plan(BENCHMARKS["flickr25k"], FLICKR, Choices(only=("hyp2", "dhn"), bits=(12, 48)), {})
    return [(p.method, made_up(p.run, shift=0.01 * p.run.config.seed)[0]) for p in planned]


def table(found, protocol, published):
    methods = [Method.of(key, FLICKR) for key in ("dhn", "csq", "hyp2")]
    return against_published(
        name="t",
        title="T",
        measure=map_measure(protocol, FLICKR),
        dataset=FLICKR,
        methods=methods,
        cells=by_cell(found),
        published=published,
        bits=(12, 48),
    )


def test_a_cell_holds_the_published_figure_and_the_mean_of_ours(found):
    made = table(found, "paper", MAP["flickr25k"])
    assert made.columns[:6] == ("method", "origin", "12 published", "12 ours", "48 published", "48 ours")
    dhn, csq, hyp2 = made.rows
    assert dhn[:3] == ("DHN", "re-run", 0.817)
    assert csq[3] is None  # never run
    ours = [record.map("paper") for method, record in found if method.key == "hyp2" and record.config["bits"] == 12]
    assert len(ours) == 3
    assert hyp2[3] == pytest.approx(sum(ours) / 3)
    assert hyp2[-3:] == ("0.020 0.020", 3, 6)
    assert (2, 3) in made.best  # HyP² is the best of ours
    assert (2, 5) in made.best


def test_the_other_protocol_has_no_published_column(found):
    made = table(found, "strict", None)
    assert made.columns == ("method", "12 ours", "48 ours", "spread", "seeds", "last epoch")
    assert made.above.startswith("Protocol strict@1,000")
    assert all(record["published"] is None for record in made.records)


def test_the_three_forms_say_the_same(found, tmp_path):
    made = table(found, "paper", MAP["flickr25k"])
    made.write(tmp_path)
    rows = list(csv.reader(io.StringIO((tmp_path / "t.csv").read_text())))
    assert tuple(rows[0]) == made.columns
    assert float(rows[3][3]) == made.rows[2][3]
    text = (tmp_path / "t.md").read_text()
    assert "Protocol paper@1,000" in text
    assert text.count("\n|") == 2 + len(made.rows)
    assert f"**{made.rows[2][3]:.3f}**" in text
    records = json.loads((tmp_path / "t.json").read_text())["rows"]
    cell = next(r for r in records if (r["method"], r["bits"]) == ("hyp2", 12))
    assert cell["ours"]["mean"] == made.rows[2][3]
    assert set(cell["ours"]["by_seed"]) == {"0", "1", "2"}
    assert cell["published"] == 0.845


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


def test_spread_is_the_largest_less_the_smallest():
    seeds = Seeds({0: 0.1, 1: 0.4, 2: 0.25})
    assert seeds.mean == pytest.approx(0.25)
    assert seeds.spread == pytest.approx(0.3)


def test_the_cost_of_every_run_is_listed(found):
    made = cost_table("cost", FLICKR, [Method.of("dhn", FLICKR), Method.of("hyp2", FLICKR)], by_cell(found))
    assert len(made.rows) == len(found) == 8
    assert made.rows[0][:6] == ("DHN", 12, 0, 6, 0.5, 3.0)
    assert made.rows[0][-2:] == ("a made-up device", "float32")
