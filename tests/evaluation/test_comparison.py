"""Two reports, query by query."""

from dataclasses import replace

import numpy as np
import pytest

from hyphash.codes import Codes
from hyphash.errors import DataError
from hyphash.evaluation import Rankings, compare_reports, difference, evaluate_codes

random = np.random.default_rng(0)
LABELS = (random.random((90, 5)) < 0.3).astype(np.uint8)


def report(bits, noise, top=20, **changed):
    """Codes that follow the labels with some noise."""
    places = np.random.default_rng(bits).normal(size=(5, bits))
    outputs = (LABELS @ places + noise * np.random.default_rng(1).normal(size=(90, bits))).astype(np.float32)
    codes = Codes.from_outputs(outputs)
    made = evaluate_codes(
        Rankings(codes[:30], codes[30:], LABELS[:30], LABELS[30:], query_outputs=outputs[:30]), top=top, photos="p"
    )
    return replace(made, **changed)


def test_lengths_may_differ():
    before, after = report(12, 3.0), report(48, 0.2)
    paper, strict = compare_reports(before, after)
    one, other = (each.scores[0].average_precision for each in (before, after))
    assert paper.difference == difference(one, other)
    assert paper.difference.is_sure
    assert (paper.before, paper.after) == (before.mean_average_precision(), after.mean_average_precision())
    assert strict.protocol.name == "strict"
    farthest = sorted(range(30), key=lambda i: (-abs(other[i] - one[i]), i))[:5]
    assert [query for query, *_ in paper.queries] == farthest
    table = paper.to_table([f"{i}.jpg" for i in range(30)])
    assert table["queries"][0]["query"] == f"{farthest[0]}.jpg"
    assert table["difference"]["p"] == paper.difference.p


def test_a_report_does_not_differ_from_itself():
    for compared in compare_reports(report(12, 1.0), report(12, 1.0)):
        assert (compared.difference.mean, compared.difference.p, compared.queries) == (0, 1, ())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dataset": "voc"}, "dataset:  and voc"),
        ({"queries": 29, "database": 7}, "queries: 30 and 29; photos in the database: 60 and 7"),
        ({"top": 10}, "protocols: paper@20, strict@20 and paper@10, strict@10"),
        ({"photos": "q"}, "other photos or labels"),
    ],
)
def test_what_was_not_measured_alike_is_refused_with_what_differs(changed, message):
    with pytest.raises(DataError, match=f"cannot be compared query by query: {message}"):
        compare_reports(report(12, 1.0), report(12, 1.0, **changed))


def test_reports_without_queries_are_refused():
    before = report(12, 1.0)
    old = replace(before, scores=tuple(replace(scores, by_query=None) for scores in before.scores))
    with pytest.raises(DataError, match="the second report kept no queries; evaluate it again"):
        compare_reports(before, old)
