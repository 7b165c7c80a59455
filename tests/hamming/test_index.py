from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searching import LENGTHS, assert_same, clustered

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.errors import CodesError
from hyphash.hamming import Index, _kernel, native
from hyphash.hamming import index as index_module


@pytest.fixture
def no_scans(monkeypatch, small_tail):
    """Even small segments are searched by their tables."""
    monkeypatch.setattr(native, "NEVER_SCAN", True)


@pytest.mark.usefixtures("no_scans")
class TestEqualToScan:
    @pytest.mark.parametrize("by_tables", [True, False])
    @given(st.integers(0, 2**32), st.sampled_from(LENGTHS), st.sampled_from([1, 3, 20, 5000]))
    @settings(max_examples=80, deadline=None)
    def test_any_plan_gives_the_same_answer(self, by_tables, seed, bits, k):
        native.NEVER_SCAN = by_tables and k < 5000
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
    monkeypatch.setattr(index_module, "TAIL", 500)
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
    monkeypatch.setattr(index_module, "TAIL", 500)
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


def test_what_does_not_fit_is_refused():
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
