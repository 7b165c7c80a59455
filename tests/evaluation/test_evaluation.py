"""evaluate_codes against a twin that holds all distances, sorts them and loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyphash.codes import Codes
from hyphash.datasets import Split, Splits
from hyphash.errors import CodesError, DataError, LabelError
from hyphash.evaluation import (
    Protocol,
    Rankings,
    Report,
    average_precision,
    encode_split,
    evaluate,
    evaluate_codes,
    mean_average_precision,
    rankings,
)
from hyphash.evaluation.significance import interval
from hyphash.hasher import Encoded
from hyphash.photos import PhotoFiles, Problem
from hyphash.quantizer import Quantizer

COMBINATIONS = [
    Protocol(top=7, average_over=average_over, ties=ties)
    for average_over in ("retrieved", "possible")
    for ties in ("by id", "expected")
]


def data(seed: int, *, queries: int = 9, photos: int = 60, bits: int = 5, classes: int = 4):
    """Few bits, few labels and small whole outputs: ties everywhere, and float32 sums of them are exact."""
    random = np.random.default_rng(seed)
    outputs = random.integers(-3, 4, (queries + photos, bits)).astype(np.float32)
    labels = (random.random((queries + photos, classes)) < 0.25).astype(np.uint8)
    return (outputs[:queries], outputs[queries:]), (labels[:queries], labels[queries:])


def naive_loop(distances, relevant, top, average_over) -> float:
    """mAP by id: sort, cut, loop."""
    values = []
    for row, hits in zip(distances, relevant, strict=True):
        order = sorted(range(len(row)), key=lambda i: (row[i], i))[:top]
        found, total = 0, 0.0
        for rank, photo in enumerate(order, 1):
            if hits[photo]:
                found += 1
                total += found / rank
        divisor = found if average_over == "retrieved" else min(top or len(row), hits.sum())
        values.append(total / divisor if divisor else 0)
    return float(np.mean(values))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), top=st.one_of(st.none(), st.integers(1, 80)), bits=st.integers(1, 20))
def test_every_protocol_and_ranking_matches_the_full_distance_table(seed, top, bits):
    (queries, database), (query_labels, database_labels) = data(seed, bits=bits)
    protocols = [Protocol(top=top, average_over=p.average_over, ties=p.ties) for p in COMBINATIONS]
    report = evaluate_codes(
        Rankings(
            Codes.from_outputs(queries),
            Codes.from_outputs(database),
            query_labels,
            database_labels,
            query_outputs=queries,
        ),
        protocols=protocols,
    )
    signs = np.where(database > 0, 1, -1)
    tables = {
        "hamming": ((queries > 0)[:, None] != (database > 0)[None]).sum(axis=2),
        "asymmetric": -(queries @ signs.T),
    }
    relevant = query_labels.astype(int) @ database_labels.T.astype(int) > 0
    assert [(s.ranked_by, s.protocol) for s in report.scores] == [(t, p) for t in tables for p in protocols]
    for scores in report.scores:
        table, how = tables[scores.ranked_by], scores.protocol
        twin = average_precision(table, relevant, top, how.average_over, how.ties)
        assert scores.mean_average_precision == pytest.approx(twin.mean(), abs=1e-9)
        if how.ties == "by id":
            naive = naive_loop(table, relevant, top, how.average_over)
            assert scores.mean_average_precision == pytest.approx(naive, abs=1e-9)


@pytest.mark.parametrize("classes", [4, 64, 65, 150])  # of labels in one word, and in several
def test_one_figure_alone_is_that_of_the_report(classes):
    (queries, database), (query_labels, database_labels) = data(6, classes=classes)
    query_labels[:, 0] = database_labels[::2, 0] = database_labels[:, -1] = query_labels[::2, -1] = 1
    arguments = Codes.from_outputs(queries), Codes.from_outputs(database), query_labels, database_labels
    report = evaluate_codes(Rankings(*arguments), protocols=COMBINATIONS)
    gains = query_labels.astype(int) @ database_labels.T.astype(int)
    for protocol, scores in zip(COMBINATIONS, report.scores, strict=True):
        alone = mean_average_precision(Rankings(*arguments), protocol=protocol)
        assert alone == scores.mean_average_precision
        distances = ((queries > 0)[:, None] != (database > 0)[None]).sum(axis=2)
        naive = average_precision(distances, gains > 0, protocol.top, protocol.average_over, protocol.ties)
        assert alone == pytest.approx(naive.mean(), abs=1e-12)
        first = np.take_along_axis(gains, np.argsort(distances, axis=1, kind="stable"), axis=1)[:, :7]
        assert protocol.ties == "expected" or scores.average_gain == pytest.approx(first.mean())
    assert mean_average_precision(Rankings(*arguments), top=7) == mean_average_precision(
        Rankings(*arguments), protocol=Protocol.preset("paper", 7)
    )


def test_graded_measures_match_sorted_lists():
    (queries, database), (query_labels, database_labels) = data(3)
    report = evaluate_codes(
        Rankings(Codes.from_outputs(queries), Codes.from_outputs(database), query_labels, database_labels),
        protocols=[Protocol.preset("paper", 10)],
    )
    distances = ((queries > 0)[:, None] != (database > 0)[None]).sum(axis=2)
    gains = query_labels.astype(int) @ database_labels.T.astype(int)
    first = np.take_along_axis(gains, np.argsort(distances, axis=1, kind="stable"), axis=1)[:, :10]
    discounts = 1 / np.log2(np.arange(2, 12))
    best = ((2.0 ** (-np.sort(-gains, axis=1)[:, :10]) - 1) * discounts).sum(axis=1)
    dcg = ((2.0**first - 1) * discounts).sum(axis=1)
    (scores,) = report.scores
    assert scores.ndcg == pytest.approx(np.mean(dcg / np.where(best > 0, best, 1)))
    assert scores.average_gain == pytest.approx(first.mean())
    assert dict(scores.precision)[10] == pytest.approx((first > 0).mean())
    assert dict(scores.precision)[1] == pytest.approx((first[:, :1] > 0).mean())
    so_far = first.cumsum(axis=1) / np.arange(1, 11) * (first > 0)
    hits = (first > 0).sum(axis=1)
    assert scores.weighted_average_precision == pytest.approx(np.mean(so_far.sum(axis=1) / np.maximum(hits, 1)))
    assert report.hopeless == int((gains.sum(axis=1) == 0).sum())


def test_small_blocks_change_nothing(monkeypatch):
    (queries, database), labels = data(5)
    arguments = Codes.from_outputs(queries), Codes.from_outputs(database), *labels
    whole = evaluate_codes(Rankings(*arguments, query_outputs=queries), protocols=COMBINATIONS)
    monkeypatch.setattr(rankings, "PLACES", 30)
    assert evaluate_codes(Rankings(*arguments, query_outputs=queries), protocols=COMBINATIONS) == whole


def test_codes_of_a_quantiser_are_ranked_by_the_distance_to_their_codewords():
    random = np.random.default_rng(0)
    quantizer = Quantizer(random.normal(size=(2, 256, 3)), bits=12)
    outputs, labels = random.normal(size=(70, 6)).astype(np.float32), random.integers(0, 2, (70, 3), np.uint8)
    codes = quantizer.encode(outputs)
    report = evaluate_codes(
        Rankings(codes[:10], codes[10:], labels[:10], labels[10:], query_outputs=outputs[:10], quantizer=quantizer),
        top=20,
    )
    distances = np.square(outputs[:10, None] - quantizer.decode(codes[10:])[None]).sum(axis=2)
    relevant = labels[:10].astype(int) @ labels[10:].T.astype(int) > 0
    assert [scores.ranked_by for scores in report.scores] == ["asymmetric", "asymmetric"]
    for scores, ties in zip(report.scores, ("by id", "expected"), strict=True):
        naive = average_precision(distances, relevant, 20, scores.protocol.average_over, ties)
        assert scores.mean_average_precision == pytest.approx(naive.mean(), abs=1e-9)
    assert (report.curve, report.precision_within_2, report.separation) == (None, None, None)
    assert Report.parse(report.to_json()) == report
    assert report.labels[0].found is not None
    with pytest.raises(DataError, match="quantiser are ranked by the real outputs"):
        evaluate_codes(Rankings(codes[:10], codes[10:], labels[:10], labels[10:], quantizer=quantizer))


def test_labels_are_scored_by_the_queries_that_carry_them():
    queries = Codes.from_bits([[0, 0, 0], [1, 1, 1]])
    database = Codes.from_bits([[0, 0, 0], [0, 0, 1], [0, 1, 1], [1, 1, 1]])
    query_labels = np.array([[1, 1, 0, 0], [0, 1, 0, 0]], np.uint8)
    database_labels = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 1, 0]], np.uint8)
    report = evaluate_codes(
        Rankings(queries, database, query_labels, database_labels),
        top=3,
        protocols=["paper"],
        classes=["cat", "dog", "sea", "sky"],
    )
    cat, dog, sea, sky = report.labels
    assert (cat.name, cat.queries, cat.photos, cat.chance) == ("cat", 1, 2, 0.5)
    assert cat.found == pytest.approx(1 / 2)  # the first two of photos 0, 1, 2
    assert cat.average_precision == pytest.approx([1.0])
    assert dog.found == pytest.approx((1 / 2 + 1 / 2) / 2)
    assert dog.average_precision == pytest.approx([(1.0 + (1 / 1 + 2 / 3) / 2) / 2])
    assert (sea.queries, sea.found, sea.average_precision) == (0, None, (None,))
    assert (sky.photos, sky.found, sky.chance) == (0, None, 0)


def test_perfect_codes_have_perfect_scores():
    codes = Codes.from_bits(np.repeat(np.eye(8, dtype=bool), 5, axis=0))
    labels = np.repeat(np.eye(8, dtype=np.uint8), 5, axis=0)
    report = evaluate_codes(Rankings(codes, codes, labels, labels), top=5)
    assert [scores.mean_average_precision for scores in report.scores] == pytest.approx([1, 1])
    assert [scores.ndcg for scores in report.scores] == pytest.approx([1, 1])
    assert report.separation.d_intra == 0
    assert report.separation.d_inter == pytest.approx(8**0.5)
    assert report.bit_use.distinct == 8
    assert all(label.found == 1 for label in report.labels)
    assert report.scores[0].standard_error == 0


def test_what_does_not_fit_is_refused():
    (queries, database), (query_labels, database_labels) = data(0)
    codes, stored = Codes.from_outputs(queries), Codes.from_outputs(database)
    with pytest.raises(LabelError, match="9 queries but labels"):
        evaluate_codes(Rankings(codes, stored, query_labels[1:], database_labels))
    with pytest.raises(LabelError, match="the queries have 4 classes"):
        evaluate_codes(Rankings(codes, stored, query_labels, database_labels[:, :3]))
    with pytest.raises(LabelError, match="0 or 1"):
        evaluate_codes(Rankings(codes, stored, query_labels * 2, database_labels))
    with pytest.raises(LabelError, match="3 class names"):
        evaluate_codes(Rankings(codes, stored, query_labels, database_labels), classes=["a", "b", "c"])
    with pytest.raises(CodesError, match="cannot be compared"):
        evaluate_codes(Rankings(Codes.from_outputs(queries[:, 1:]), stored, query_labels, database_labels))
    with pytest.raises(CodesError, match="outputs of shape"):
        evaluate_codes(Rankings(codes, stored, query_labels, database_labels, query_outputs=queries[1:]))
    with pytest.raises(DataError, match="nothing to measure"):
        evaluate_codes(Rankings(codes, stored[:0], query_labels, database_labels[:0]))
    with pytest.raises(DataError, match="at least one protocol"):
        evaluate_codes(Rankings(codes, stored, query_labels, database_labels), protocols=[])


def test_a_photo_that_cannot_be_read_is_left_out_and_reported():
    (queries, database), (query_labels, database_labels) = data(11)

    class Stub:
        def encode_photos(self, split, **_):
            outputs = queries if len(split) == 9 else database
            rows = np.delete(np.arange(len(split)), 2)
            return Encoded(outputs[rows], rows, (Problem(split.name(2), f"{split.name(2)}: truncated"),))

        to_codes = staticmethod(Codes.from_outputs)
        quantizer = None

    files = PhotoFiles([f"{i}.jpg" for i in range(69)])
    splits = Splits(
        "stub",
        ("a", "b", "c", "d"),
        train=Split(files, np.arange(0), query_labels[:0]),
        queries=Split(files, np.arange(9), query_labels),
        database=Split(files, np.arange(9, 69), database_labels),
    )
    report = evaluate(Stub(), splits, top=10, facts={"loss": "stub"})
    direct = evaluate_codes(
        Rankings(
            Codes.from_outputs(np.delete(queries, 2, axis=0)),
            Codes.from_outputs(np.delete(database, 2, axis=0)),
            np.delete(query_labels, 2, axis=0),
            np.delete(database_labels, 2, axis=0),
            query_outputs=np.delete(queries, 2, axis=0),
        ),
        top=10,
        classes="abcd",
        dataset="stub",
        facts={"loss": "stub"},
        problems=("2.jpg: truncated", "11.jpg: truncated"),
        photos=report.photos,
    )
    assert report == direct
    others = Splits("stub", tuple("abcd"), splits.train, splits.queries, splits.database.take(slice(None, None, -1)))
    assert len({report.photos, evaluate(Stub(), others, top=10).photos, ""}) == 3  # other photos, or in another order


@pytest.fixture
def photo_splits(photo_files):
    """Twelve small photos, of which one cannot be read: four queries, the others as the database."""
    paths = photo_files(12)
    paths[7].write_bytes(b"")
    labels = np.array([[i % 2, 1, i % 3 == 0] for i in range(12)], np.uint8)
    files = PhotoFiles([path.name for path in paths], paths[0].parent)
    queries, database = (Split(files, rows, labels[rows]) for rows in (np.arange(4), np.arange(4, 12)))
    return Splits("x", ("a", "b", "c"), train=database, queries=queries, database=database)


def test_kept_features_give_the_same_report(tiny_hasher, photo_splits, tmp_path, monkeypatch):
    hasher, cache = tiny_hasher(), tmp_path / "cache"
    direct, kept = (encode_split(hasher, photo_splits.database, cache=place) for place in (None, cache))
    assert kept.outputs == pytest.approx(direct.outputs, rel=0.01, abs=0.01)  # features are kept in 16 bits
    assert kept.split.rows.tolist() == direct.split.rows.tolist() == [4, 5, 6, 8, 9, 10, 11]
    assert kept.problems == direct.problems
    assert list(cache.glob("*.sqlite"))
    monkeypatch.delattr(type(hasher), "encode_photos")  # with a cache nobody asks for it
    report = evaluate(hasher, photo_splits, top=5, cache=cache)
    assert report.problems == tuple(problem.reason for problem in direct.problems)
    assert report == evaluate(hasher, photo_splits, top=5, cache=cache)


def test_what_was_encoded_before_is_not_encoded_again(tiny_hasher, photo_splits):
    hasher, calls = tiny_hasher(), []
    encoded = tuple(
        encode_split(hasher, part, progress=lambda done, total: calls.append((done, total)))
        for part in (photo_splits.queries, photo_splits.database)
    )
    assert (calls[-1], len(encoded[1].split), len(encoded[1].codes)) == ((8, 8), 7, 7)
    done = len(calls)
    report = evaluate(hasher, photo_splits, top=5, encoded=encoded)
    assert len(calls) == done
    assert report == evaluate(hasher, photo_splits, top=5)


@pytest.mark.parametrize(
    ("bits", "figures"),
    [
        (12, {"hamming paper": 0.8278, "hamming strict": 0.7309, "asymmetric paper": 0.8375}),
        (48, {"hamming paper": 0.8701, "hamming strict": 0.7927}),
    ],
)
def test_flickr25k_codes_give_the_known_figures(shared_data, flickr_labels, bits, figures):
    """Outputs of an AlexNet trained with HyP²: .828 and .868 are the published means over seeds."""
    outputs = np.load(shared_data / "flickr25k" / f"outputs_{bits}.npz")
    queries = outputs["queries"].astype(np.float32)
    report = evaluate_codes(
        Rankings(
            Codes.from_outputs(queries),
            Codes.from_outputs(outputs["database"]),
            flickr_labels[outputs["queries_rows"]],
            flickr_labels[outputs["database_rows"]],
            query_outputs=queries if "asymmetric paper" in figures else None,
        ),
        protocols=[Protocol.preset("paper", 1000), Protocol.preset("strict", 1000)],
    )
    measured = {f"{s.ranked_by} {s.protocol.name}": s.mean_average_precision for s in report.scores}
    assert {name: measured[name] for name in figures} == pytest.approx(figures, abs=5e-5)


def test_every_mean_has_its_interval_and_the_queries_it_is_made_of():
    (queries, database), labels = data(7, queries=40)
    report = evaluate_codes(
        Rankings(Codes.from_outputs(queries), Codes.from_outputs(database), *labels, query_outputs=queries), top=20
    )
    relevant = labels[0].astype(int) @ labels[1].T.astype(int) > 0
    distances = ((queries > 0)[:, None] != (database > 0)[None]).sum(axis=2)
    for scores in report.scores:
        assert scores.average_precision.mean() == pytest.approx(scores.mean_average_precision, abs=5e-4)
        assert scores.interval == pytest.approx(interval(scores.average_precision), abs=1e-3)
        low, high = scores.interval
        assert low < scores.mean_average_precision < high
        assert (high - low) / 2 == pytest.approx(1.96 * scores.standard_error, rel=0.1)
    twin = average_precision(distances, relevant, 20)
    np.testing.assert_allclose(report.scores[0].average_precision, twin, atol=5.1e-4)
