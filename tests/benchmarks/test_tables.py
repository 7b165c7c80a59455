"""Tables: ours beside the published, and the three forms they are written in."""

import csv
import io
import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from hyphash.benchmarks import BENCHMARKS, DATASETS, MAP, SPREAD, Method
from hyphash.benchmarks.runs import Choices, plan
from hyphash.benchmarks.tables import (
    ALL,
    Group,
    Seeds,
    against_published,
    comparison_table,
    cost_table,
    map_measure,
    orderings,
    orderings_table,
    spread_measure,
)
from hyphash.evaluation import Protocol
from hyphash.evaluation.significance import interval, pack

FLICKR = DATASETS["flickr25k"]
PAPER = map_measure("paper", FLICKR)


def group(found, bits=(12, 48)):
    return Group(FLICKR, "alexnet at 224 pixels", bits, found)


@pytest.fixture
def found(made_up):
    planned = plan(BENCHMARKS["flickr25k"], FLICKR, Choices(only=("hyp2", "dhn"), bits=(12, 48)), {})
    return [(p.method, made_up(p.run, shift=0.01 * p.run.config.seed)[0]) for p in planned]


def table(found, protocol, published):
    methods = [Method.of(key, FLICKR) for key in ("dhn", "csq", "hyp2")]
    return against_published(group(found), map_measure(protocol, FLICKR), methods, published)


def test_a_cell_holds_the_published_figure_and_the_mean_of_ours(found):
    made = table(found, "paper", MAP["flickr25k"])
    assert made.columns[:6] == ("method", "origin", "12 published", "12 ours", "48 published", "48 ours")
    dhn, csq, hyp2 = made.rows
    assert dhn[:3] == ("DHN", "re-run", 0.817)
    assert csq[3] is None  # never run
    ours = [record.map("paper") for method, record in found if method.key == "hyp2" and record.bits == 12]
    assert len(ours) == 3
    assert hyp2[3] == pytest.approx(sum(ours) / 3)
    assert hyp2[-3:] == ("0.020 0.020", 3, 6)
    records = [record for method, record in found if method.key == "hyp2" and record.bits == 12]
    low, high = interval(np.mean([record.scores().average_precision for record in records], axis=0))
    assert hyp2[-4].split()[0] == f"{(high - low) / 2:.3f}"
    assert (2, 3) in made.best  # HyP² is the best of ours
    assert (2, 5) in made.best


def test_the_other_protocol_has_no_published_column(found):
    made = table(found, "strict", None)
    assert made.columns == ("method", "12 ours", "48 ours", "95 % ±", "spread", "seeds", "last epoch")
    assert made.above.startswith("Protocol strict@1,000")
    assert all(record["published"] is None for record in made.records)


def test_the_three_forms_say_the_same(found, tmp_path):
    made = table(found, "paper", MAP["flickr25k"])
    made.write(tmp_path)
    rows = list(csv.reader(io.StringIO((tmp_path / f"{made.name}.csv").read_text())))
    assert tuple(rows[0]) == made.columns
    assert float(rows[3][3]) == made.rows[2][3]
    text = (tmp_path / f"{made.name}.md").read_text()
    assert "Protocol paper@1,000" in text
    assert text.count("\n|") == 2 + len(made.rows)
    assert f"**{made.rows[2][3]:.3f}**" in text
    records = json.loads((tmp_path / f"{made.name}.json").read_text())["rows"]
    cell = next(r for r in records if (r["method"], r["bits"]) == ("hyp2", 12))
    assert cell["ours"]["mean"] == made.rows[2][3]
    assert set(cell["ours"]["by_seed"]) == {"0", "1", "2"}
    assert cell["published"] == 0.845


def without_queries(record):
    """As it was written before queries were kept."""
    scores = tuple(replace(scores, interval=None, by_query=None) for scores in record.report.scores)
    return replace(record, report=replace(record.report, scores=scores))


def test_runs_that_kept_no_queries_show_their_standard_error(found):
    mixed = [(method, record if method.key == "dhn" else without_queries(record)) for method, record in found]
    made = table(mixed, "strict", None)
    assert made.columns[3:5] == ("95 % ±", "standard error")
    dhn, csq, hyp2 = (row[3:5] for row in made.rows)
    error = next(record for method, record in mixed if method.key == "hyp2").scores("strict").standard_error
    assert (dhn[1], csq, hyp2[0]) == (None, (None, None), None)
    assert hyp2[1].split()[0] == f"{error:.3f}"
    cell = next(r for r in made.records if (r["method"], r["bits"]) == ("hyp2", 12))
    assert (cell["ours"]["interval"], cell["ours"]["standard_error"]) == (None, pytest.approx(error))


@pytest.fixture
def compared(found):
    """Four records of HyP², of seeds 0 to 2, and DHN; a third method that is HyP² with a query changed."""
    records = [record for _, record in found if record.bits == 12]
    twin = next(record for record in records if record.config["loss"] == "hyp2")
    first, *rest = twin.report.scores
    queries = first.average_precision.copy()
    queries[3] -= 0.03
    scores = replace(first, mean_average_precision=float(queries.mean()), by_query=pack(queries))
    config = {**twin.config, "loss": "proxy"}
    return [*records, replace(twin, config=config, report=replace(twin.report, scores=(scores, *rest)))]


def test_methods_stand_in_order_with_their_distance_from_the_first(compared):
    made = comparison_table([("house", record) for record in compared], Protocol.preset("paper", 50))
    assert [row[1] for row in made.rows] == ["hyp2", "proxy", "dhn"]
    hyp2, proxy, dhn = made.records
    means = {loss: [r.map() for r in compared if r.config["loss"] == loss] for loss in ("hyp2", "proxy", "dhn")}
    assert hyp2["mAP"] == pytest.approx(np.mean(means["hyp2"]))
    assert (hyp2["behind"], hyp2["behind_interval"], len(hyp2["by_seed"])) == (0, None, 3)
    assert dhn["behind"] == pytest.approx(hyp2["mAP"] - means["dhn"][0])
    queries = {r.config["loss"]: r.scores().average_precision for r in compared if r.seed == 0}
    assert dhn["behind_interval"] == pytest.approx(interval(queries["hyp2"] - queries["dhn"]))
    assert dhn["behind_interval"][0] > 0
    assert proxy["behind_interval"][0] <= 0 < proxy["behind"]
    assert made.best == {(0, 2), (1, 2)}  # not distinguishable from the first
    assert dhn["interval"] == pytest.approx(interval(queries["dhn"]))


def test_a_method_has_a_row_for_each_recipe(compared):
    hyp2 = [record for record in compared if record.config["loss"] == "hyp2"]
    made = comparison_table([("published", hyp2[1]), ("tuned", hyp2[2])], Protocol.preset("paper", 50))
    assert made.columns[:4] == ("bits", "loss", "recipe", "mAP")
    assert [row[1:3] for row in made.rows] == [("hyp2", "tuned on validation"), ("hyp2", "as published")]
    assert [record["recipe"] for record in made.records] == ["tuned", "published"]


def test_older_runs_are_compared_without_intervals(compared):
    made = comparison_table([("house", without_queries(record)) for record in compared], Protocol.preset("paper", 50))
    assert [row[3].startswith("standard error 0.0") for row in made.rows] == [True] * 3
    assert made.best == {(0, 2)}


def test_spread_is_the_largest_less_the_smallest():
    seeds = Seeds({0: 0.1, 1: 0.4, 2: 0.25})
    assert seeds.mean == pytest.approx(0.25)
    assert seeds.spread == pytest.approx(0.3)


def test_the_cost_of_every_run_is_listed(found):
    made = cost_table(group(found), [Method.of("dhn", FLICKR), Method.of("hyp2", FLICKR)])
    assert len(made.rows) == len(found) == 8
    assert made.rows[0][:6] == ("DHN", 12, 0, 6, 0.5, 3.0)
    assert made.rows[0][-2:] == ("a made-up device", "float32")


@pytest.fixture
def everything(made_up):
    planned = plan(BENCHMARKS["flickr25k"], FLICKR, Choices(bits=(12, 48)), {})
    return group([(p.method, made_up(p.run, shift=0.002 * i)[0]) for i, p in enumerate(planned)])


def test_every_pair_with_a_published_difference_is_listed_once(everything):
    methods = BENCHMARKS["flickr25k"].methods_for(FLICKR)
    found = [o for o in orderings(everything, methods, MAP["flickr25k"], PAPER) if o.worse != ALL]
    naive = {}
    for bits in (12, 48):
        for a, b in combinations(methods, 2):
            gap = MAP["flickr25k"][a.key].values[bits] - MAP["flickr25k"][b.key].values[bits]
            if gap:
                better, worse = (a, b) if gap > 0 else (b, a)
                runs = [list(everything.cells[m.key, bits].values()) for m in (better, worse)]
                means = [sum(run.map() for run in some) / len(some) for some in runs]
                naive[better.title, worse.title, bits] = means[0] > means[1]
    assert {(o.better, o.worse, o.bits): o.holds for o in found} == naive
    assert all(o.published > 0 for o in found)


def test_the_best_of_all_is_listed_first(everything):
    methods = BENCHMARKS["flickr25k"].methods_for(FLICKR)
    found = orderings(everything, methods, MAP["flickr25k"], PAPER)
    best = [o for o in found if o.worse == ALL]
    assert [(o.better, o.bits) for o in best] == [("DCILH", 12), ("HyP²", 48)]
    assert best[0].published == pytest.approx(0.852 - 0.845)
    assert not best[0].holds
    assert best[1].holds
    table = orderings_table("o", everything, methods, MAP["flickr25k"], PAPER)
    held = sum(o.holds for o in found)
    assert table.title == f"{everything.title}: {held} of {len(found)} published orderings hold here"
    assert table.rows[0][1] == "DCILH > all others"


def test_where_small_is_good_the_order_turns(made_up):
    planned = plan(BENCHMARKS["spread"], FLICKR, Choices(bits=(12,)), {})
    runs = group([(p.method, made_up(p.run)[0]) for p in planned], bits=(12,))
    intra, inter = map(spread_measure, ("d_intra", "d_inter"))
    methods = BENCHMARKS["spread"].methods_for(FLICKR)
    found = orderings(runs, methods, SPREAD["flickr25k"]["d_intra"], intra)
    pairs = {(o.better, o.worse) for o in found}
    assert ("HyP² β = 1", "pair") in pairs
    assert ("pair", "HyP² β = 1") not in pairs
    ours = {key: intra.value(next(iter(records.values()))) for (key, _), records in runs.cells.items()}
    verdict = next(o for o in found if (o.better, o.worse) == ("HyP² β = 1", "pair"))
    assert verdict.holds == (ours["hyp2-1"] < ours["pair"])
    assert orderings(group([]), methods, SPREAD["flickr25k"]["d_inter"], inter) == []


def test_an_ordering_may_lie_within_the_spread_of_seeds(everything):
    methods = BENCHMARKS["flickr25k"].methods_for(FLICKR)
    for o in orderings(everything, methods, MAP["flickr25k"], PAPER):
        several = "HyP²" in (o.better, o.worse)
        assert (o.spread is not None) == (several or o.worse == ALL)
        assert o.within_spread == (o.spread is not None and abs(o.ours) <= o.spread)


def test_a_length_that_the_paper_has_not_has_no_orderings(made_up):
    planned = plan(BENCHMARKS["flickr25k"], FLICKR, Choices(only=("hyp2", "dhn"), bits=(16,)), {})
    runs = group([(p.method, made_up(p.run)[0]) for p in planned], bits=(16,))
    assert orderings(runs, BENCHMARKS["flickr25k"].methods_for(FLICKR), MAP["flickr25k"], PAPER) == []
