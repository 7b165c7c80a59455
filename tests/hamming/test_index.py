import json
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.errors import CodesError
from hyphash.hamming import Index, _kernel, dispatch, native, segments, storage, twin
from hyphash.hamming import index as index_module
from hyphash.hamming.segments import Tables

LENGTHS = [1, 7, 12, 16, 17, 24, 25, 32, 36, 40, 48, 53, 64, 65, 96, 128, 200, 256]


def clustered(rng: np.random.Generator, count: int, bits: int) -> Codes:
    """Codes around a few centres: duplicates, ties, crowded buckets and far ones."""
    centres = rng.integers(0, 2, (int(rng.integers(1, 30)), bits), dtype=np.uint8)
    noise = rng.random((count, bits)) < rng.choice([0.0, 0.02, 0.4])
    return Codes.from_bits(centres[rng.integers(0, len(centres), count)] ^ noise)


def assert_same(ours, theirs):
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_array_equal(ours[1], theirs[1])


def numpy_tables(codes: Codes, tables: int) -> tuple[int, Tables]:
    """The number of distinct codes, and their tables, made without the kernel."""
    order, is_new = sorted_codes(codes, tables)
    first_ids = order[is_new]
    distinct = codes.packed[first_ids]
    arrays = segments.empty_tables(codes.bits, tables, len(codes), len(distinct))
    arrays.ids[: len(codes)] = order
    arrays.ids[np.flatnonzero(is_new)[1:] - 1] |= segments.LAST
    arrays.ids[len(codes) - 1] |= segments.LAST
    arrays.rows[: codes.packed.size] = codes.packed.reshape(-1)
    kind = segments.entry_type(codes.bits, tables)
    if kind is None:
        fill_directory(arrays.directories, values_of(codes.packed, codes.bits, tables, 0), codes.bits)
        return len(distinct), arrays
    starts = arrays.starts[: tables * len(distinct)].reshape(tables, -1)
    entries = arrays.entries.view(kind)[: tables * (len(distinct) + segments.SPARE)].reshape(tables, -1)
    at = 0
    for table in range(tables):
        values = values_of(distinct, codes.bits, tables, table)
        told = first_ids if codes.bits > 64 else rests_of(distinct, codes.bits, tables, table)
        by_value = np.argsort(values, kind="stable")
        entries[table, : len(distinct)] = told[by_value]
        starts[table] = np.flatnonzero(is_new)[by_value]
        at += fill_directory(arrays.directories[at:], values, segments.substring(codes.bits, tables, table)[1])
    return len(distinct), arrays


def fill_directory(directory: NDArray[np.uint32], values: NDArray[np.uint64], width: int) -> int:
    """Where each value's entries start; the length of the directory."""
    directory[1 : (1 << width) + 1] = np.cumsum(np.bincount(values.astype(np.int64), minlength=1 << width))
    return (1 << width) + 1


def sorted_codes(codes: Codes, tables: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The order by (first substring, rest, id), and which codes in it are not equal to the one before."""
    first = values_of(codes.packed, codes.bits, tables, 0)
    if codes.bits > 64:
        order = np.lexsort((*codes.packed.T[::-1], first))
    else:
        order = np.lexsort((rests_of(codes.packed, codes.bits, tables, 0), first))
    ordered = codes.packed[order]
    return order, np.r_[True, (ordered[1:] != ordered[:-1]).any(axis=1)][: len(codes)]


def words_of(packed: NDArray[np.uint8], start: int = 0) -> NDArray[np.uint64]:
    """Eight bytes of each code from byte `start` on, as one number."""
    padded = np.zeros((len(packed), 8), np.uint8)
    part = packed[:, start : start + 8]
    padded[:, : part.shape[1]] = part
    return padded.view(np.uint64)[:, 0]


def values_of(packed: NDArray[np.uint8], bits: int, tables: int, table: int) -> NDArray[np.uint64]:
    start, width = segments.substring(bits, tables, table)
    return words_of(packed, start // 8) >> np.uint64(start % 8) & np.uint64((1 << width) - 1)


def rests_of(packed: NDArray[np.uint8], bits: int, tables: int, table: int) -> NDArray[np.uint64]:
    """Codes of up to 64 bits without the bits of a table's substring."""
    start, width = segments.substring(bits, tables, table)
    words = words_of(packed)
    low = words & np.uint64((1 << start) - 1)
    return low if start + width >= 64 else low | words >> np.uint64(start + width) << np.uint64(start)


@pytest.fixture
def small_tail(monkeypatch):
    """Segments from 40 codes on, so that small indexes have several."""
    monkeypatch.setattr(index_module, "TAIL", 40)


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

    @pytest.mark.parametrize("bits", LENGTHS)
    def test_kernel_and_numpy_build_the_same_tables(self, bits, monkeypatch):
        rng = np.random.default_rng(bits)
        codes = clustered(rng, 700, bits)
        tables = segments.tables_for(bits, len(codes))
        distinct, ours = native.build_tables(codes, tables, 2)
        expected_distinct, theirs = numpy_tables(codes, tables)
        assert distinct == expected_distinct == len(np.unique(codes.packed, axis=0))
        for name in segments.Tables._fields:
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
        monkeypatch.setattr(dispatch, "current", twin)
        scanned = Index.build(codes)
        assert_same(scanned.search(codes[:3], 50), hamming.search(codes[:3], codes, 50))
        assert scanned.nbytes == codes.packed.nbytes  # numpy scans, and makes no tables

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


def test_file_is_a_safetensors_file(tmp_path):
    from safetensors.numpy import load_file

    codes = clustered(np.random.default_rng(0), 100, 48)
    Index.build(codes).save(tmp_path / "index")
    assert load_file(tmp_path / "index")["tail"].tobytes() == codes.packed.tobytes()


@pytest.mark.usefixtures("small_tail")
class TestDamage:
    @pytest.fixture
    def path(self, tmp_path):
        index = Index.build(clustered(np.random.default_rng(0), 300, 48))
        index.append(index.codes()[:5])
        index.save(tmp_path / "index")
        return tmp_path / "index"

    def test_any_flipped_bit_is_noticed(self, path):
        whole = path.read_bytes()
        rng = np.random.default_rng(1)
        header = struct.unpack("<Q", whole[:8])[0] + 8
        places = [*range(0, 8), *rng.integers(8, header, 40), *rng.integers(header, len(whole), 60)]
        for place in places:
            broken = bytearray(whole)
            broken[place] ^= 1 << rng.integers(0, 8)
            if broken[8:header].decode(errors="replace").rstrip() == whole[8:header].decode().rstrip() and (
                8 <= place < header
            ):
                continue  # blanks at the end of the header carry nothing
            path.write_bytes(broken)
            with pytest.raises(CodesError, match=str(path)):
                Index.open(path)

    def test_any_truncation_is_noticed(self, path):
        whole = path.read_bytes()
        for length in (0, 1, 7, 8, 100, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            with pytest.raises(CodesError, match="damaged"):
                Index.open(path)
        path.write_bytes(whole + b"x")
        with pytest.raises(CodesError, match="damaged"):
            Index.open(path)

    @pytest.mark.parametrize(("section", "place", "value"), [("ids", 0, 10**9), ("ids", -1, 0), ("starts", 5, 10**9)])
    def test_tables_that_lead_nowhere_are_noticed_behind_a_right_checksum(self, path, section, place, value):
        bits, parts, tail, note = storage.read(path, verify=True)
        segment = parts[0]
        numbers = getattr(segment.arrays, section).copy()
        numbers[place % segment.count] = value  # the last id has no mark, or a number leads past the end
        broken = replace(segment, arrays=segment.arrays._replace(**{section: numbers}))
        storage.write(path, bits, (broken,), tail, note=note)
        with pytest.raises(CodesError, match="contradict"):
            Index.open(path, verify=True)

    def test_opening_reads_the_small_sections_alone_and_verifying_all(self, path, monkeypatch):
        read = []
        real = storage.checksum
        monkeypatch.setattr(storage, "checksum", lambda section: read.append(len(section)) or real(section))
        monkeypatch.setattr(storage, "SMALL", 1000)
        index = Index.open(path)
        assert 0 < sum(read) < 3000 < index.nbytes
        read.clear()
        Index.open(path, verify=True)
        assert sum(read) == index.nbytes

    @pytest.mark.parametrize("bits", [16, 24, 48, 64, 128])
    def test_no_damage_to_the_tables_ends_the_process(self, bits, path, monkeypatch):
        monkeypatch.setattr(native, "NEVER_SCAN", True)
        monkeypatch.setattr(storage, "SMALL", -1)  # nothing is checked but header and sizes
        rng = np.random.default_rng(bits)
        codes = clustered(rng, 300, bits)
        Index.build(codes).save(path)
        _, (whole,), _, _ = storage.read(path, verify=True)
        told = 0
        for name in ("directories", "entries", "starts", "ids"):
            for _ in range(40):
                broken = getattr(whole.arrays, name).copy()
                if len(broken):
                    places = rng.integers(0, len(broken), max(1, len(broken) // int(rng.integers(1, 50))))
                    broken[places] = rng.integers(0, np.iinfo(broken.dtype).max, len(places), endpoint=True)
                storage.write(
                    path,
                    bits,
                    (replace(whole, arrays=whole.arrays._replace(**{name: broken})),),
                    codes[:0].packed,
                    note="",
                )
                index = Index.open(path)
                for k in (1, 30):
                    try:
                        distances, ids = index.search(codes[:40], k)
                    except CodesError as error:
                        told += "build it again" in str(error)
                    else:
                        assert ids.min() >= 0
                        assert ids.max() < 300
                        assert distances.max() <= bits
        assert told > 20

    def test_sections_of_the_wrong_size_are_noticed(self, path):
        bits, (first, *others), tail, note = storage.read(path, verify=True)
        shorter = first.arrays._replace(ids=first.arrays.ids[:-16])
        storage.write(path, bits, (replace(first, arrays=shorter), *others), tail, note=note)
        with pytest.raises(CodesError, match="size"):
            Index.open(path)

    def test_other_files_and_versions_are_refused(self, path, tmp_path):
        with pytest.raises(CodesError, match="no such index"):
            Index.open(tmp_path / "nothing")
        clustered(np.random.default_rng(0), 3, 48).save(tmp_path / "codes")
        with pytest.raises(CodesError, match="not an index"):
            Index.open(tmp_path / "codes")
        whole = path.read_bytes()
        header = json.loads(whole[8 : 8 + struct.unpack("<Q", whole[:8])[0]])
        header["__metadata__"]["version"] = "9"
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text)
        with pytest.raises(CodesError, match="written in format 9"):
            Index.open(path)

    def test_a_failed_save_leaves_the_old_index(self, path, monkeypatch):
        before = path.read_bytes()
        monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            Index.build(clustered(np.random.default_rng(2), 50, 48)).save(path)
        assert path.read_bytes() == before
        assert [file.name for file in path.parent.iterdir()] == ["index"]


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
