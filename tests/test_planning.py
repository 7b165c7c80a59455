"""Plans: laws that any estimate obeys, naive twins, and what the command prints."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers, sampled_from

from hyphash import planning
from hyphash.errors import ConfigError
from hyphash.planning import FULL, Encoder, Estimate, Measured, Scale, Wish, encoding, machines, plan

SCAN = Measured(
    engine="postgresql", codes=1_000_000, bits=64, load_per_second=20_000, p50_ms=40, p99_ms=90, qps_1=20, qps_8=50,
    bytes_on_disk=200_000_000, bytes_in_memory=24_000_000, recall_10=1.0, recall_100=1.0, cores=2,
)  # fmt: skip
GRAPH = replace(SCAN, engine="milvus-approximate", p50_ms=2, qps_8=900, bytes_in_memory=300_000_000, recall_10=0.98)
INDEXED = [
    replace(SCAN, engine="local", codes=10_000, p50_ms=0.1, bytes_in_memory=240_000),
    replace(SCAN, engine="local", p50_ms=1.0),
]
photos = integers(1, 10**11)
rates = floats(0.01, 1e5)


class Found(Estimate):
    def __getitem__(self, name):
        return next(figure.value for figure in self.figures if figure.name == name)


def one(name, wish, records):
    (found,) = [estimate for estimate in plan(wish, records) if estimate.engine == name]
    return Found(**vars(found))


@given(photos, photos, rates, sampled_from([SCAN, GRAPH]))
def test_more_photos_never_need_less(few, many, qps, record):
    few, many = sorted((few, many))
    a, b = (one(record.engine, Wish(photos=n, qps=qps), [record]) for n in (few, many))
    assert a["nodes"] <= b["nodes"]
    assert a["memory"] <= b["memory"] * 2  # but for what rounding leaves over
    if a["parts"] == b["parts"]:
        assert a["latency p50"] <= b["latency p50"]
    elif record is GRAPH:  # a scan of smaller parts may be faster by any factor
        assert a["latency p50"] <= b["latency p50"] * 2


@given(photos, rates, rates, sampled_from([SCAN, GRAPH]))
def test_more_queries_never_need_fewer_nodes(n, few, many, record):
    few, many = sorted((few, many))
    a, b = (one(record.engine, Wish(photos=n, qps=qps), [record]) for qps in (few, many))
    assert a["nodes"] <= b["nodes"]


@given(integers(1, 10**9), floats(0.01, 3000), sampled_from([SCAN, GRAPH]), integers(1, 3))
def test_nodes_are_the_fewest_that_fit_and_keep_up(n, qps, record, replicas):
    """The twin counts up."""
    wish = Wish(photos=n, qps=qps, replicas=replicas, node_memory=16e9)
    scale = Scale(wish, [record])
    parts = 1
    while n * scale.bytes_in_memory / parts > FULL * 16e9:
        parts += 1
    nodes = replicas * parts
    while nodes / parts * scale.throughput(n / parts) * FULL < qps:
        nodes += 1
    found, cut = machines(wish, scale)
    assert found == nodes
    assert cut == (max(parts, min(nodes // replicas, n // record.codes)) if record is SCAN else parts)


@given(integers(1, 500), integers(2, 10**5))
def test_a_scan_over_twice_the_parts_or_cores_takes_half_the_time(parts, codes):
    n = parts * 8 * codes * SCAN.codes  # a half on 16 cores is not less than was measured
    scale = Scale(Wish(photos=n, node_cores=8), [SCAN])
    assert scale.latency(n / (2 * parts)) == pytest.approx(scale.latency(n / parts) / 2)
    assert scale.throughput(n / (2 * parts)) == pytest.approx(scale.throughput(n / parts) * 2)
    more = Scale(Wish(photos=n, node_cores=16), [SCAN])
    assert more.latency(n) == pytest.approx(scale.latency(n) / 2)
    assert more.throughput(n) == pytest.approx(scale.throughput(n) * 2)


def test_figures_as_measured_come_back_as_they_are():
    wish = Wish(photos=1_000_000, bits=64, qps=1, node_cores=2, node_memory=1e12, labels_per_photo=0)
    for record in (SCAN, GRAPH):
        found = one(record.engine, wish, [record, replace(record, codes=10**7), replace(record, codes=10**5)])
        assert found["memory"] == record.bytes_in_memory
        assert found["disk"] == record.bytes_on_disk
        assert found["nodes"] == 1
        assert found["latency p50"] == pytest.approx(record.p50_ms / 1000)
        assert found["queries a second, one node"] == pytest.approx(record.qps_8)
        assert found["loading"] == pytest.approx(1_000_000 / record.load_per_second)


def test_a_scan_by_hand():
    """100M codes of 128 bits, 600 queries a second: a node of 8 cores scans 50·4/(100·2) = 1 a second."""
    wish = Wish(photos=100_000_000, bits=128, qps=600, node_cores=8, labels_per_photo=3)
    found = one("postgresql", wish, [SCAN])
    assert found["nodes"] == math.ceil(600 / 0.7)
    assert found["parts"] == 200  # of as many bytes as were measured
    assert found["disk"] == pytest.approx(100_000_000 * (200 + 8 + 3 * 16) * found["nodes"] / 200)
    assert found["latency p50"] == pytest.approx(0.040)
    assert found["loading"] == pytest.approx(100_000_000 / 20_000)  # one writer for all parts


@given(integers(1, 10**6), sampled_from([SCAN, GRAPH, INDEXED[1]]), integers(1, 64), integers(2, 64))
def test_fewer_photos_than_were_measured_are_not_faster(n, record, bits, cores):
    found = one(record.engine, Wish(photos=n, bits=bits, node_cores=cores, qps=1), [record])
    assert found["latency p50"] == pytest.approx(record.p50_ms / 1000)
    assert found["queries a second, one node"] == pytest.approx(record.qps_8 * cores / 2)
    assert ("a guess" in found.note) == (n < 10**5)
    server = record.engine in planning.SERVERS  # has costs of its own
    assert found["memory"] >= (record.bytes_in_memory if server else n)


def test_a_server_takes_no_less_memory_than_when_it_was_measured_with_fewest_codes():
    small = replace(GRAPH, codes=100_000, bytes_in_memory=200_000_000)
    for n, memory in ((1000, 2e8), (100_000, 2e8), (200_000, 2e8), (1_000_000, 3e8), (2_000_000, 6e8)):
        found = one("milvus-approximate", Wish(photos=n, qps=1), [GRAPH, small])
        assert found["memory"] == memory
    assert "with 100,000 codes" in one("milvus-approximate", Wish(photos=1000), [GRAPH, small]).figures[0].formula
    tight = one("milvus-approximate", Wish(photos=1000, node_memory=1e8), [GRAPH, small])
    assert "took 200 MB, too much for such a node" in tight.note


def test_the_rate_is_that_of_one_client_where_eight_get_in_each_others_way():
    crowded = replace(INDEXED[1], qps_1=20_000, qps_8=7_000)
    found = one("local", Wish(photos=10**6, node_cores=32, qps=1), [crowded])
    assert found["queries a second, one node"] == 20_000 * 32 / 2
    assert "a process for every 2 cores" in found.figures[4].formula


def test_building_an_index_has_to_fit_too():
    record = replace(GRAPH, engine="postgresql-approximate", bytes_in_memory=100_000_000)
    found = one("postgresql-approximate", Wish(photos=10**9, qps=1, node_memory=100e9), [record])
    assert found["parts"] == math.ceil(600e9 / 70e9)
    assert found["memory to build the index"] == pytest.approx(600e9 / found["parts"])
    with pytest.raises(StopIteration):
        _ = one("milvus-approximate", Wish(photos=10**9), [GRAPH])["memory to build the index"]


def test_an_index_grows_as_two_measurements_say():
    scale = Scale(Wish(photos=10**8), INDEXED)
    assert scale.power == pytest.approx(0.5)  # ten times the time for a hundred times the codes
    assert scale.latency(10**8) == pytest.approx(0.001 * 10)
    assert "^0.50" in scale.formula


def test_an_approximate_index_without_two_measurements_grows_with_the_logarithm():
    scale = Scale(Wish(photos=10**9), [GRAPH])
    assert scale.latency(10**9) == pytest.approx(0.002 * 9 / 6)
    assert "log" in scale.formula
    assert "recall@10 0.980" in one("milvus-approximate", Wish(photos=10**6), [GRAPH]).note
    assert "recall@100 1.000" in one("milvus-approximate", Wish(photos=10**6, k=50), [GRAPH]).note


def test_the_nearest_length_that_was_measured_is_taken():
    short = replace(SCAN, bits=32, p50_ms=30)
    assert Scale(Wish(photos=1, bits=40), [SCAN, short]).base is short
    assert Scale(Wish(photos=1, bits=64), [SCAN, short]).base is SCAN


def test_what_is_unknown_or_does_not_fit_is_said():
    estimates = {estimate.engine: estimate for estimate in plan(Wish(photos=10**13), INDEXED)}
    assert list(estimates) == list(planning.ENGINES)
    assert estimates["milvus"].note == "not measured yet"
    assert not estimates["milvus"].figures
    assert "does not fit" in estimates["local"].note
    assert "a guess" in one("local", Wish(photos=10**9), INDEXED).note
    assert one("local", Wish(photos=10**7), INDEXED).note == "exact"


def test_an_engine_on_one_machine_is_copied_not_parted():
    found = one("local", Wish(photos=10**7, qps=10**5), INDEXED)
    assert found["parts"] == 1
    assert found["nodes"] > 1
    assert found["memory"] == found["nodes"] * 24e7


def test_encoding_time():
    gpu = Encoder(encoder="GPU", machine="a GPU", backbone="resnet50", photos_per_second=1000)
    alone, in_a_day = encoding(Wish(photos=10**9), [gpu])
    assert alone.value == 10**6
    assert alone.text == "11.6 days"
    assert in_a_day.value == 12


@pytest.mark.parametrize(
    "wrong",
    [
        {"bits": 0},
        {"bits": 257},
        {"qps": 0},
        {"photos": 0},
        {"qps": math.nan},
        {"photos": math.inf},
        {"photos": -3},
        {"photos": 10**16},
        {"node_memory": -1},
        {"node_memory": 64},
        {"labels_per_photo": -1},
    ],
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(ConfigError):
        Wish(**({"photos": 10} | wrong))


@pytest.mark.parametrize("text", ["much", "", "12 apples", "GB", "nan", "infGB", "-1GB", "0"])
def test_sizes_that_are_none(text):
    with pytest.raises(ConfigError, match=f"--node-memory {text}: that is no size; write 256GB"):
        planning.size_of(text)


def test_bytes_that_were_meant_as_gigabytes():
    with pytest.raises(ConfigError, match=r"is that 64GB\?"):
        planning.size_of("64")
    assert planning.size_of("64000000000") == 64e9


@pytest.mark.parametrize("text", ["many", "nan", "inf", "1e400", "-5", "0", "0.4"])
def test_numbers_of_photos_that_are_none(text):
    with pytest.raises(ConfigError, match=f"--photos {text}: that is no number of photos; write"):
        planning.count_of(text)


def test_the_committed_figures_can_be_planned_with():
    assert {record.engine for record in planning.measured_engines()} <= set(planning.ENGINES)
    assert any(estimate.figures for estimate in plan(Wish(photos=10**6)))
    assert encoding(Wish(photos=10**6))
    for record in planning.measured_engines():
        assert min(record.p50_ms, record.qps_8, record.bytes_on_disk, record.bytes_in_memory, record.codes) > 0
