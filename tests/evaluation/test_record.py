"""Reports survive a round trip and say under which protocol each figure was measured; two of them, query by query."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from hyphash.codes import Codes
from hyphash.errors import DataError
from hyphash.evaluation import Labelling, Protocol, Rankings, Report, compare_reports, difference, evaluate_codes


@pytest.fixture(scope="module")
def report() -> Report:
    random = np.random.default_rng(0)
    outputs = random.normal(size=(60, 10)).astype(np.float32)
    labels = (random.random((60, 5)) < 0.3).astype(np.uint8)
    return evaluate_codes(
        Rankings(
            Codes.from_outputs(outputs[:10]),
            Codes.from_outputs(outputs[10:]),
            labels[:10],
            labels[10:],
            query_outputs=outputs[:10],
        ),
        top=20,
        classes=["a", "b", "c", "d", "sea & sky"],
        dataset="random",
        facts={"epoch": "40 (last)"},
        problems=("x.jpg: truncated",),
    )


def test_json_round_trip(report):
    text = report.to_json()
    assert Report.parse(text) == report
    value = 0.25
    layer = Labelling(
        macro=value, micro=value, error=value, error_by_label=value, error_of_sure=None, one=value, two=None, pairs=0,
        average_precision=(value, None),
    )  # fmt: skip
    with_layer = replace(report, labelling=layer)
    assert Report.parse(with_layer.to_json()) == with_layer
    assert json.loads(text)["version"] == 1


def test_json_has_no_nan():
    """Labels nobody asks for and clusters with no unrelated one are null, so that any reader can read it."""
    codes, labels = Codes.from_bits([[1, 0], [1, 0]]), np.array([[1, 0], [1, 0]], np.uint8)
    text = evaluate_codes(Rankings(codes, codes, labels, labels), top=1).to_json()
    values = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert values["separation"]["d_inter"] is None
    assert values["labels"][1]["found"] is None


def test_scores_carry_their_protocol(report):
    means = {(s.protocol.name, s.protocol.depth, s.ranked_by): s.mean_average_precision for s in report.scores}
    assert means["paper", "@20", "hamming"] == report.mean_average_precision("paper")
    assert means["strict", "@20", "asymmetric"] == report.mean_average_precision("strict", "asymmetric")
    assert report.protocols == (Protocol.preset("paper", 20), Protocol.preset("strict", 20))


def test_a_ranking_that_was_not_measured_is_an_error(report):
    with pytest.raises(DataError, match="no hamming ranking under the protocol 'papers'"):
        report.mean_average_precision("papers")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[:-5], "damaged report"),
        (lambda text: text.replace('"hyphash-report"', '"other"'), "not a hyphash report"),
        (lambda text: text.replace('"version": 1', '"version": 9'), "reads 1"),
        (lambda text: text.replace('"bits":', '"bit":', 1), "damaged report"),
        (lambda text: f"[{len(text)}]", "damaged report"),
    ],
)
def test_damaged_reports_are_refused(report, damage, message):
    with pytest.raises(DataError, match=rf"old.json: .*{message}"):
        Report.parse(damage(report.to_json()), "old.json")


def test_reports_from_before_the_intervals_are_read(report):
    table = report.to_table()
    del table["photos"]
    for scores in table["scores"]:
        del scores["interval"], scores["by_query"]
    before = Report.parse(json.loads(json.dumps(table)))
    assert [(s.interval, s.average_precision, s.standard_error > 0) for s in before.scores] == [(None, None, True)] * 4


# ── two reports ──────────────────────────────────────────────────────────────────────────────────────────

random = np.random.default_rng(0)
LABELS = (random.random((90, 5)) < 0.3).astype(np.uint8)


def noisy(bits, noise, top=20, **changed):
    """Codes that follow the labels with some noise."""
    places = np.random.default_rng(bits).normal(size=(5, bits))
    outputs = (LABELS @ places + noise * np.random.default_rng(1).normal(size=(90, bits))).astype(np.float32)
    codes = Codes.from_outputs(outputs)
    made = evaluate_codes(
        Rankings(codes[:30], codes[30:], LABELS[:30], LABELS[30:], query_outputs=outputs[:30]), top=top, photos="p"
    )
    return replace(made, **changed)


def test_lengths_may_differ():
    before, after = noisy(12, 3.0), noisy(48, 0.2)
    paper, strict = compare_reports(before, after)
    one, other = (each.scores[0].average_precision for each in (before, after))
    assert paper["difference"] == asdict(difference(one, other)) | {"sure": True}
    assert (paper["before"], paper["after"]) == (before.mean_average_precision(), after.mean_average_precision())
    assert (strict["protocol"], strict["top"]) == ("strict", 20)
    farthest = sorted(range(30), key=lambda i: (-abs(other[i] - one[i]), i))[:5]
    assert [tuple(query.values()) for query in paper["queries"]] == [
        (i, one[i], other[i], other[i] - one[i]) for i in farthest
    ]
    named, _ = compare_reports(before, after, [f"{i}.jpg" for i in range(30)])
    assert [query["query"] for query in named["queries"]] == [f"{i}.jpg" for i in farthest]


def test_a_report_does_not_differ_from_itself():
    for compared in compare_reports(noisy(12, 1.0), noisy(12, 1.0)):
        assert (compared["difference"]["mean"], compared["difference"]["p"], compared["queries"]) == (0, 1, [])


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
        compare_reports(noisy(12, 1.0), noisy(12, 1.0, **changed))


def test_reports_without_queries_are_refused():
    before = noisy(12, 1.0)
    old = replace(before, scores=tuple(replace(scores, by_query=None) for scores in before.scores))
    with pytest.raises(DataError, match="the second report kept no queries; evaluate it again"):
        compare_reports(before, old)
