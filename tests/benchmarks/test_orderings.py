"""Published orderings against a naive count."""

from itertools import combinations

import pytest

from hyphash.benchmarks import BENCHMARKS, DATASETS, Choices, plan
from hyphash.benchmarks.orderings import ALL, orderings, orderings_table
from hyphash.benchmarks.published import MAP, SPREAD
from hyphash.benchmarks.scores import SPREAD_MEASURES
from hyphash.benchmarks.tables import by_cell, map_measure

FLICKR = DATASETS["flickr25k"]
PAPER = map_measure("paper", FLICKR)


@pytest.fixture
def cells(made_up):
    planned = plan(BENCHMARKS["flickr25k"], FLICKR, Choices(bits=(12, 48)), {})
    return by_cell((p.method, made_up(p.run, shift=0.002 * i)[0]) for i, p in enumerate(planned))


def test_every_pair_with_a_published_difference_is_listed_once(cells):
    methods = BENCHMARKS["flickr25k"].methods_for(FLICKR)
    found = [o for o in orderings(methods, FLICKR, cells, MAP["flickr25k"], PAPER, (12, 48)) if o.worse != ALL]
    naive = {}
    for bits, place in ((12, 0), (48, 3)):
        for a, b in combinations(methods, 2):
            gap = MAP["flickr25k"][a.key].values[place] - MAP["flickr25k"][b.key].values[place]
            if gap:
                better, worse = (a, b) if gap > 0 else (b, a)
                means = [
                    sum(r.map() for r in cells[m.key, bits].values()) / len(cells[m.key, bits]) for m in (better, worse)
                ]
                naive[better.title, worse.title, bits] = means[0] > means[1]
    assert {(o.better, o.worse, o.bits): o.holds for o in found} == naive
    assert all(o.published > 0 for o in found)


def test_the_best_of_all_is_listed_first(cells):
    methods = BENCHMARKS["flickr25k"].methods_for(FLICKR)
    found = orderings(methods, FLICKR, cells, MAP["flickr25k"], PAPER, (12, 48))
    best = [o for o in found if o.worse == ALL]
    assert [(o.better, o.bits) for o in best] == [("DCILH", 12), ("HyP²", 48)]
    assert best[0].published == pytest.approx(0.852 - 0.845)
    assert not best[0].holds
    assert best[1].holds
    table = orderings_table("o", "Flickr-25k", found, PAPER)
    held = sum(o.holds for o in found)
    assert table.title == f"Flickr-25k: {held} of {len(found)} published orderings hold here"
    assert table.rows[0][1] == "DCILH > all others"


def test_where_small_is_good_the_order_turns(made_up):
    planned = plan(BENCHMARKS["spread"], FLICKR, Choices(bits=(12,)), {})
    cells = by_cell((p.method, made_up(p.run)[0]) for p in planned)
    intra, inter = SPREAD_MEASURES
    methods = BENCHMARKS["spread"].methods_for(FLICKR)
    found = orderings(methods, FLICKR, cells, SPREAD["flickr25k"]["d_intra"], intra, (12,))
    pairs = {(o.better, o.worse) for o in found}
    assert ("HyP² β = 1", "pair") in pairs
    assert ("pair", "HyP² β = 1") not in pairs
    ours = {key: intra.value(next(iter(records.values()))) for (key, _), records in cells.items()}
    verdict = next(o for o in found if (o.better, o.worse) == ("HyP² β = 1", "pair"))
    assert verdict.holds == (ours["hyp2-1"] < ours["pair"])
    assert orderings(methods, FLICKR, {}, SPREAD["flickr25k"]["d_inter"], inter, (12,)) == []


def test_an_ordering_may_lie_within_the_spread_of_seeds(cells):
    methods = BENCHMARKS["flickr25k"].methods_for(FLICKR)
    for o in orderings(methods, FLICKR, cells, MAP["flickr25k"], PAPER, (12,)):
        several = "HyP²" in (o.better, o.worse)
        assert (o.spread is not None) == (several or o.worse == ALL)
        assert o.within_spread == (o.spread is not None and abs(o.ours) <= o.spread)
