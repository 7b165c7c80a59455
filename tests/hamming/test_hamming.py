from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searching import ENGINES, LENGTHS, assert_same, clustered, draw_codes, running

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.errors import CodesError, ConfigError, LabelError
from hyphash.hamming import Index, _kernel, how_many

CODES = Codes.from_bits([[0, 1, 0]])


@st.composite
def problems(draw):
    """Queries, a database and perhaps a mask, of any length and often tiny."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    bits = draw(st.integers(1, 256))
    size = draw(st.one_of(st.integers(0, 3), st.integers(4, 300)))
    distinct = draw(st.integers(1, 50))
    database = draw_codes(rng, size, bits, distinct)
    queries = draw_codes(rng, draw(st.integers(0, 6)), bits, distinct)
    share = draw(st.sampled_from([None, 0.0, 0.1, 0.9, 1.0]))
    mask = None if share is None else rng.random(size) < share
    return rng, queries, database, mask


def naive_ranking(queries, database, mask):
    """All allowed codes of each query by (distance, id): [[(distance, id), …], …]."""
    a, b = queries.unpacked(), database.unpacked()
    allowed = [i for i in range(len(b)) if mask is None or mask[i]]
    return [sorted((int((q != b[i]).sum()), i) for i in allowed) for q in a]


@pytest.mark.parametrize("engine", ENGINES)
@given(problems(), st.integers(1, 320))
def test_search_equals_sorting_everything(engine, problem, k):
    _, queries, database, mask = problem
    with running(engine):
        distances, ids = hamming.search(queries, database, k, mask=mask)
    ranking = naive_ranking(queries, database, mask)
    allowed = len(database) if mask is None else mask.sum()
    assert distances.shape == ids.shape == (len(queries), min(k, allowed))
    assert distances.dtype == np.int32
    assert ids.dtype == np.int64
    for q, expected in enumerate(ranking):
        assert list(zip(distances[q].tolist(), ids[q].tolist(), strict=True)) == expected[:k]


@pytest.mark.parametrize("engine", ENGINES)
@given(problems(), st.integers(0, 300))
def test_within_equals_filtering_everything(engine, problem, radius):
    _, queries, database, mask = problem
    with running(engine):
        found = hamming.within(queries, database, radius, mask=mask)
    ranking = naive_ranking(queries, database, mask)
    assert len(found) == len(queries)
    for (distances, ids), expected in zip(found, ranking, strict=True):
        pairs = list(zip(distances.tolist(), ids.tolist(), strict=True))
        assert pairs == [pair for pair in expected if pair[0] <= radius]


@pytest.mark.parametrize("engine", ENGINES)
@given(problems(), st.integers(1, 90))
def test_histogram_equals_counting_pairs(engine, problem, classes):
    rng, queries, database, _ = problem
    query_labels = (rng.random((len(queries), classes)) < 0.2).astype(np.uint8)
    database_labels = (rng.random((len(database), classes)) < 0.2).astype(np.uint8)
    with running(engine):
        result = hamming.histogram(queries, database, query_labels, database_labels)
    shape = (len(queries), database.bits + 1)
    count, relevant, gain = (np.zeros(shape, np.int64) for _ in range(3))
    exp_gain = np.zeros(shape)
    for q, row in enumerate(queries.distances(database)):
        for i, d in enumerate(row):
            shared = int((query_labels[q] & database_labels[i]).sum())
            count[q, d] += 1
            relevant[q, d] += shared > 0
            gain[q, d] += shared
            exp_gain[q, d] += 2.0**shared - 1
    np.testing.assert_array_equal(result.count, count)
    np.testing.assert_array_equal(result.relevant, relevant)
    np.testing.assert_array_equal(result.gain, gain)
    np.testing.assert_allclose(result.exp_gain, exp_gain)


@pytest.mark.parametrize("engine", ENGINES)
@given(problems(), st.integers(1, 320))
def test_asymmetric_search_equals_sorting_inner_products(engine, problem, k):
    rng, queries, database, mask = problem
    outputs = rng.integers(-8, 9, (len(queries), database.bits)).astype(np.float32)  # exact sums, many ties
    with running(engine):
        scores, ids = hamming.search_tables(hamming.byte_tables(outputs), database, k, mask=mask)
    expected_scores = -outputs @ database.signs().T.astype(np.float32)
    allowed = np.flatnonzero(np.ones(len(database), bool) if mask is None else mask)
    for q in range(len(queries)):
        row = expected_scores[q, allowed]
        order = np.lexsort((allowed, row))[:k]
        assert ids[q].tolist() == allowed[order].tolist()
        assert scores[q].tolist() == row[order].tolist()


def plane_of(rng, count, costs):
    """Numbers of `count` rows, as a plane with a table of 16 or of 256 costs, and what they cost."""
    size = int(rng.choice([16, 256]))
    table, numbers = rng.choice(costs, size).astype(np.float32), rng.integers(0, size, count + count % 2, np.uint8)
    plane = numbers[:count] if size == 256 else numbers[::2] | numbers[1::2] << 4
    return (plane, table), table[numbers[:count]].astype(float)


@pytest.mark.parametrize("engine", ENGINES)
@given(st.integers(0, 2**32), st.integers(0, 4), st.integers(0, 5000), st.integers(0, 300))
@settings(max_examples=40)
def test_planes_rank_by_their_sums(engine, seed, labels, count, k):
    rng = np.random.default_rng(seed)
    drawn = [plane_of(rng, count, [*range(9), np.inf]) for _ in range(labels)]  # exact sums, many ties
    tables, codes = rng.integers(-5, 5, (2, 256)), rng.integers(0, 256, (count, 2), np.uint8)
    near = (tables.astype(np.float32), codes) if rng.random() < 0.5 else None
    mask = rng.random(count) < 0.6 if rng.random() < 0.5 else None
    border = float(rng.choice([3, np.inf]))
    with running(engine):
        found = hamming.search_planes([plane for plane, _ in drawn], count, k, near=near, mask=mask, border=border)
    costs = sum((costs for _, costs in drawn), np.zeros(count))
    sums = costs + (0 if near is None else tables[0, codes[:, 0]] + tables[1, codes[:, 1]])
    allowed = [(s, i) for i, s in enumerate(sums.tolist()) if s < np.inf and (mask is None or mask[i])]
    assert list(zip(found.sums.tolist(), found.rows.tolist(), strict=True)) == sorted(allowed)[:k]
    assert (found.within, found.finite) == (sum(costs[i] <= border for _, i in allowed), len(allowed))


@pytest.mark.parametrize("engine", ENGINES)
@given(st.integers(0, 2**32), st.integers(0, 2), st.integers(1, 4), st.integers(0, 5000), st.integers(0, 300))
@settings(max_examples=40)
def test_of_some_planes_one_is_enough(engine, seed, labels, some, count, k):
    """Costs of 0 and infinity, which stand for what people said, among them."""
    rng = np.random.default_rng(seed)
    drawn = [plane_of(rng, count, [0, 0.01, 0.3, 1, 2, 5, 9, np.inf]) for _ in range(labels + some)]
    planes, costs = [plane for plane, _ in drawn], [costs for _, costs in drawn]
    near = rng.normal(size=(1, 256)).astype(np.float32), rng.integers(0, 256, (count, 1), np.uint8)
    near, border = near if rng.random() < 0.5 else None, float(rng.choice([0.5, 1.5, np.inf]))
    with running(engine):
        found = hamming.search_planes(planes[:labels], count, k, some=planes[labels:], near=near, border=border)
    with np.errstate(divide="ignore"):
        any_of = -np.log1p(-np.prod([-np.expm1(-each) for each in costs[labels:]], axis=0))
    naive = sum(costs[:labels], np.zeros(count)) + any_of
    sums = naive + (0 if near is None else near[0][0, near[1][:, 0]])
    assert found.sums == pytest.approx(np.sort(sums[naive < np.inf])[:k], rel=1e-5, abs=1e-6)
    assert sums[found.rows] == pytest.approx(found.sums, rel=1e-5, abs=1e-6)
    assert len(set(found.rows.tolist())) == len(found.rows)
    assert found.finite == np.count_nonzero(naive < np.inf)
    border = min(border, np.finfo(np.float32).max)
    assert np.count_nonzero(naive <= border - 1e-5) <= found.within <= np.count_nonzero(naive <= border + 1e-5)


def test_planes_and_tables_that_do_not_go_together():
    plane, table = np.zeros(2, np.uint8), np.zeros(16, np.float32)
    tables, codes = np.zeros((1, 256), np.float32), np.zeros((4, 1), np.uint8)
    for planes, count, some, near in (
        ([(plane, table)], 5, (), None),
        ([(plane, np.zeros(17, np.float32))], 4, (), None),
        ([(plane, np.zeros(256, np.float32))], 4, (), None),
        ([(plane, table + np.nan)], 4, (), None),
        ([], 4, [(plane, table + np.nan)], None),
        ([(plane, table)], 4, (), (tables, codes[:3])),
        ([(plane, table)], 4, (), (tables[:0], codes)),
    ):
        with pytest.raises(CodesError, match="table"):
            hamming.search_planes(planes, count, 1, some=some, near=near)


@pytest.mark.parametrize("engine", ENGINES)
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 200))
@settings(max_examples=30)
def test_search_by_tables_of_centroids(engine, seed, size, k):
    rng = np.random.default_rng(seed)
    database = Codes(rng.integers(0, 256, (100, size), dtype=np.uint8), size * 8)
    tables = rng.integers(-50, 50, (3, size, 256)).astype(np.float32)
    with running(engine):
        scores, ids = hamming.search_tables(tables, database, k)
    for q in range(3):
        naive = sorted((sum(tables[q, j, b] for j, b in enumerate(row)), i) for i, row in enumerate(database.packed))
        assert list(zip(scores[q].tolist(), ids[q].tolist(), strict=True)) == naive[:k]


@pytest.mark.parametrize("engine", ENGINES)
def test_codes_of_256_bits_that_differ_in_all_of_them(engine):
    database = Codes.from_bits(np.repeat([[0], [1]], 256, axis=1)[[1, 0, 1, 1]])
    opposite = Codes.from_bits(np.zeros((1, 256), bool))
    with running(engine):
        distances, ids = hamming.search(opposite, database, 4)
        assert hamming.within(opposite, database, 255)[0][1].tolist() == [1]
        assert hamming.histogram(opposite, database, *[np.ones((n, 1), np.uint8) for n in (1, 4)]).count[0, 256] == 3
    assert distances.tolist() == [[0, 256, 256, 256]]
    assert ids.tolist() == [[1, 0, 2, 3]]


@pytest.mark.parametrize("engine", ENGINES)
def test_histogram_of_very_many_labels(engine):
    codes = Codes.from_bits([[0, 1]])
    labels = np.ones((1, 700), np.uint8)
    with running(engine):
        result = hamming.histogram(codes, codes, labels, labels)
    assert result.gain.tolist() == [[700, 0, 0]]
    assert result.exp_gain[0, 0] == 2.0**700 - 1


def test_asymmetric_search_of_signs_ranks_like_hamming_search():
    rng = np.random.default_rng(0)
    queries, database = draw_codes(rng, 5, 48, 20), draw_codes(rng, 500, 48, 60)
    distances, ids = hamming.search(queries, database, 100)
    scores, table_ids = hamming.search_tables(hamming.byte_tables(queries.signs()), database, 100)
    np.testing.assert_array_equal(ids, table_ids)
    np.testing.assert_array_equal(scores, 2.0 * distances - 48)  # −⟨a, b⟩ = 2 d − bits


def test_what_does_not_fit_is_refused():
    codes = Codes.from_bits([[0, 1, 0]])
    with pytest.raises(CodesError, match="3 and of 4 bits"):
        hamming.search(codes, Codes.empty(4), 1)
    with pytest.raises(CodesError, match="radius"):
        hamming.within(codes, codes, -1)
    with pytest.raises(CodesError, match="shape"):
        hamming.search_tables(np.zeros((1, 2, 256), np.float32), codes, 1)
    with pytest.raises(CodesError, match="NaN"):
        hamming.search_tables(np.full((1, 1, 256), np.nan, np.float32), codes, 1)
    with pytest.raises(CodesError, match="NaN"):
        hamming.byte_tables([[np.nan]])


def test_what_runs_is_known(monkeypatch):
    assert hamming.backend().name == "native"
    assert hamming.backend().instructions in _kernel.available()
    monkeypatch.setenv("HYPHASH_THREADS", "3")
    assert hamming.backend().threads == 3
    with running("numpy"):
        assert hamming.backend().name == "numpy"
    monkeypatch.setenv("HYPHASH_THREADS", "many")
    with pytest.raises(ConfigError, match="many"):
        hamming.backend()
    with pytest.raises(ValueError, match="no instructions mmx"):
        _kernel.choose("mmx")


@pytest.mark.parametrize(
    ("k", "mask", "expected"), [(2, None, 2), (9, None, 4), (3, [1, 0, 1, 0], 2), (1, [1, 1, 1, 1], 1), (5, [0] * 4, 0)]
)
def test_no_more_are_found_than_the_mask_allows(k, mask, expected):
    assert how_many(k, 4, None if mask is None else np.array(mask, bool)) == expected


def test_k_and_masks_that_do_not_fit_are_refused():
    with pytest.raises(CodesError, match="k must be 1 or more, not 0"):
        hamming.search(CODES, CODES, 0)
    with pytest.raises(CodesError, match="mask"):
        hamming.search(CODES, CODES, 1, mask=np.ones(2, bool))
    with pytest.raises(CodesError, match="mask"):
        hamming.within(CODES, CODES, 1, mask=np.ones(1, np.int64))


def test_labels_that_do_not_fit_are_refused():
    labels = np.ones((1, 2), np.uint8)
    with pytest.raises(LabelError, match="2 classes, the database 3"):
        hamming.histogram(CODES, CODES, labels, np.ones((1, 3), np.uint8))
    with pytest.raises(LabelError, match="shape"):
        hamming.histogram(CODES, CODES, labels[:0], labels)
    with pytest.raises(LabelError, match="0 or 1"):
        hamming.histogram(CODES, CODES, labels * 2, labels)


@pytest.fixture
def no_scans(monkeypatch, small_tail):
    """Even small segments are searched by their tables."""
    monkeypatch.setattr(hamming, "NEVER_SCAN", True)


@pytest.mark.usefixtures("no_scans")
class TestEqualToScan:
    @pytest.mark.parametrize("by_tables", [True, False])
    @given(st.integers(0, 2**32), st.sampled_from(LENGTHS), st.sampled_from([1, 3, 20, 5000]))
    @settings(max_examples=80, deadline=None)
    def test_any_plan_gives_the_same_answer(self, by_tables, seed, bits, k):
        hamming.NEVER_SCAN = by_tables and k < 5000
        rng = np.random.default_rng(seed)
        codes = clustered(rng, int(rng.integers(0, 1500)), bits)
        queries = Codes.concatenate([clustered(rng, 2, bits), codes[:2]])
        mask = None if rng.random() < 0.4 else rng.random(len(codes)) < rng.choice([0, 0.01, 0.5, 0.99])
        index = Index(bits)
        start = 0
        while start < len(codes):
            size = int(rng.integers(1, len(codes) + 1))
            assert index.append(codes[start : start + size]) == start
            start += size
        assert len(index) == len(codes)
        assert index.codes() == codes
        assert_same(index.search(queries, k, mask=mask), hamming.search(queries, codes, k, mask=mask))

    @pytest.mark.parametrize("instructions", _kernel.available())
    def test_any_instructions_give_the_same_answer(self, instructions):
        rng = np.random.default_rng(0)
        before = _kernel.instructions()
        _kernel.choose(instructions)
        try:
            for bits in (36, 48, 64, 128):
                codes = clustered(rng, 3000, bits)
                assert_same(Index.build(codes).search(codes[:40], 30), hamming.search(codes[:40], codes, 30))
        finally:
            _kernel.choose(before)


def test_uniform_codes_far_from_everything_and_huge_k():
    rng = np.random.default_rng(0)
    codes = Codes(rng.integers(0, 256, (70_000, 6), dtype=np.uint8), 48)
    index = Index.build(codes)
    queries = Codes(rng.integers(0, 256, (3, 6), dtype=np.uint8), 48)
    for k in (1, 1000, 70_000):  # by tables, then by scans
        assert_same(index.search(queries, k), hamming.search(queries, codes, k))


@pytest.mark.parametrize("bits", [12, 24, 48, 100])
@pytest.mark.usefixtures("small_tail")
def test_saved_and_opened_again(bits, tmp_path):
    rng = np.random.default_rng(bits)
    codes = clustered(rng, 500, bits)
    index = Index(bits)
    for part in np.array_split(np.arange(500), 7):
        index.append(codes[part])
    path = tmp_path / "folder" / "codes.index"
    index.save(path)
    opened = Index.open(path)
    assert opened.codes() == codes
    assert_same(opened.search(codes[:9], 33), hamming.search(codes[:9], codes, 33))
    assert opened.append(codes[:0]) == 500
    assert opened.append(codes[:50]) == 500  # on top of the mapped file
    opened.save(path)
    assert Index.open(path).codes() == Codes.concatenate([codes, codes[:50]])
    assert [file.name for file in path.parent.iterdir()] == ["codes.index"]  # nothing temporary is left


def test_a_copy_grows_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(hamming, "TAIL", 500)
    codes = clustered(np.random.default_rng(0), 1300, 48)
    first = Index.build(codes[:600])
    first.append(codes[600:700])
    copies = [first.copy(), first.copy()]
    for copy in copies:
        copy.append(codes[700:900])
    copies[1].append(codes[900:])
    assert (first.codes(), copies[0].codes(), copies[1].codes()) == (codes[:700], codes[:900], codes)
    assert first.append(codes[700:]) == 700
    assert first.codes() == codes
    copies[0].note = "two hundred more"
    copies[0].save(tmp_path / "index")
    assert Index.open(tmp_path / "index").note == copies[0].copy().note == "two hundred more"
    assert first.note == ""


def test_searches_while_appending(monkeypatch):
    """Every search sees the codes of one moment: a prefix of them all."""
    monkeypatch.setattr(hamming, "TAIL", 500)
    rng = np.random.default_rng(0)
    codes, query = clustered(rng, 20_000, 48), clustered(rng, 1, 48)
    distances = query.distances(codes)[0]
    index = Index.build(codes[:100])

    def search(_):
        low = len(index)
        found_distances, ids = index.search(query, 50)
        high = len(index)
        for size in range(low, high + 1):
            order = np.lexsort((np.arange(size), distances[:size]))[:50]
            if np.array_equal(ids[0], order) and np.array_equal(found_distances[0], distances[order]):
                return True
        return False

    def append():
        for start in range(100, len(codes), 83):
            index.append(codes[start : start + 83])

    with ThreadPoolExecutor(5) as pool:
        appending = pool.submit(append)
        results = []
        while not appending.done():
            results += pool.map(search, range(20))
        appending.result()
    assert results
    assert all(results)
    assert index.codes() == codes


def test_what_does_not_fit_an_index_is_refused():
    index = Index.build(Codes.from_bits([[0, 1, 0]]))
    with pytest.raises(CodesError, match="4 and of 3 bits"):
        index.append(Codes.empty(4))
    with pytest.raises(CodesError, match="bits cannot be compared"):
        index.search(Codes.empty(4), 1)
    with pytest.raises(CodesError, match="k must be"):
        index.search(index.codes(), 0)
    with pytest.raises(CodesError, match="mask"):
        index.search(index.codes(), 1, mask=np.ones(2, bool))
    with pytest.raises(CodesError, match="1 to 256"):
        Index(0)


def test_sizes_are_told():
    index = Index(48)
    assert (len(index), index.nbytes, index.distinct) == (0, 0, 0)
    assert index.search(Codes.from_bits(np.zeros((2, 48), bool)), 5)[0].shape == (2, 0)
    codes = Codes.from_bits(np.zeros((70_000, 48), bool))
    index.append(codes)
    assert (len(index), index.distinct) == (70_000, 1)
    assert repr(index) == "Index(70000 × 48 bits)"
    assert 4 * 70_000 < index.nbytes < 2 * 10**6
