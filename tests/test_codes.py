"""Packed codes of any length, against tables of booleans."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import save_file

from hyphash.codes import MAX_BITS, Codes, bytes_for
from hyphash.errors import CodesError, StorageError

lengths = st.integers(1, MAX_BITS)


@st.composite
def bit_tables(draw, bits=lengths, most=6):
    return draw(arrays(np.bool_, (draw(st.integers(0, most)), draw(bits))))


@st.composite
def pairs_of_tables(draw):
    bits = st.just(draw(lengths))
    return draw(bit_tables(bits)), draw(bit_tables(bits))


@given(bit_tables())
def test_bits_come_back(bits):
    codes = Codes.from_bits(bits)
    assert codes.bits == bits.shape[1]
    assert len(codes) == len(bits)
    assert codes.unpacked().dtype == np.bool_
    np.testing.assert_array_equal(codes.unpacked(), bits)
    np.testing.assert_array_equal(codes.signs(), np.where(bits, 1, -1))


@given(bit_tables())
def test_bit_j_is_bit_j_mod_8_of_byte_j_div_8_and_the_rest_is_zero(bits):
    packed = Codes.from_bits(bits).packed
    assert packed.dtype == np.uint8
    assert packed.shape == (len(bits), -(-bits.shape[1] // 8))
    for row, code in zip(bits, packed, strict=True):
        number = sum(1 << j for j, bit in enumerate(row) if bit)  # higher bits than the last are zero
        assert bytes(code) == number.to_bytes(len(code), "little")


def test_every_length_is_allowed():
    for bits in range(1, MAX_BITS + 1):
        table = np.eye(bits, dtype=np.bool_)[[0, -1]]
        np.testing.assert_array_equal(Codes.from_bits(table).unpacked(), table)


@given(arrays(np.float64, st.tuples(st.integers(0, 5), lengths), elements=st.floats(allow_nan=False)))
def test_a_bit_is_an_output_above_zero(outputs):
    naive = [[value > 0 for value in row] for row in outputs.tolist()]
    np.testing.assert_array_equal(Codes.from_outputs(outputs).unpacked(), np.array(naive).reshape(outputs.shape))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_zero_is_bit_zero_in_either_sign(dtype):
    tiny = np.finfo(dtype).smallest_subnormal
    outputs = np.array([[0.0, -0.0, tiny, -tiny, np.inf, -np.inf]], dtype)
    assert Codes.from_outputs(outputs).unpacked().tolist() == [[False, False, True, False, True, False]]


def test_whole_numbers_are_outputs_too():
    assert Codes.from_outputs([[3, 0, -2]]).unpacked().tolist() == [[True, False, False]]


def test_outputs_that_are_not_numbers_are_refused():
    with pytest.raises(CodesError, match="NaN"):
        Codes.from_outputs([[1.0, float("nan")]])


@pytest.mark.parametrize(
    "bits", [[[0, 1, 1]], [[False, True, True]], [[0.0, 1.0, 1.0]], np.array([[0, 1, 1]], np.uint8)]
)
def test_zeros_and_ones_are_bits(bits):
    assert Codes.from_bits(bits).unpacked().tolist() == [[False, True, True]]


@pytest.mark.parametrize("bits", [[[-1, 1]], [[0.3, 1]], [[2, 0]], [[float("nan"), 1]]])
def test_other_numbers_are_no_bits(bits):
    with pytest.raises(CodesError, match=r"use Codes\.from_outputs"):
        Codes.from_bits(bits)


@pytest.mark.parametrize("make", [Codes.from_bits, Codes.from_outputs])
@pytest.mark.parametrize("table", [[True, False], True, [[[True]]]])
def test_what_is_no_table_is_refused(make, table):
    with pytest.raises(CodesError, match="of shape"):
        make(table)


@pytest.mark.parametrize("bits", [0, MAX_BITS + 1])
def test_lengths_beyond_the_limits_are_refused(bits):
    with pytest.raises(CodesError, match=f"1 to 256 bits, not {bits}"):
        Codes.from_bits(np.zeros((2, bits), np.bool_))
    with pytest.raises(CodesError, match="1 to 256 bits"):
        Codes.empty(-bits)


@pytest.mark.parametrize(
    "packed",
    [np.zeros((3, 2), np.int8), np.zeros((3, 1), np.uint8), np.zeros(2, np.uint8), np.full((1, 2), 255, np.uint8)],
)
def test_packed_bytes_of_the_wrong_make_are_refused(packed):
    with pytest.raises(CodesError, match=r"packed as uint8 of shape \(n, 2\)|must be zero"):
        Codes(packed, 12)


@given(pairs_of_tables())
def test_distances_count_the_places_that_differ(tables):
    a, b = tables
    naive = [[sum(x != y for x, y in zip(row, other, strict=True)) for other in b] for row in a]
    distances = Codes.from_bits(a).distances(Codes.from_bits(b))
    np.testing.assert_array_equal(distances, np.array(naive, np.int64).reshape(len(a), len(b)))


@given(bit_tables())
def test_distances_are_those_of_signs(bits):
    codes = Codes.from_bits(bits)
    signs = codes.signs().astype(np.int64)
    np.testing.assert_array_equal(codes.distances(codes), (codes.bits - signs @ signs.T) // 2)


def test_codes_of_different_lengths_cannot_be_compared():
    with pytest.raises(CodesError, match="of 3 and of 4 bits cannot be compared"):
        Codes.empty(3).distances(Codes.empty(4))


@given(bit_tables(), st.data())
def test_slices_are_slices_of_the_table(bits, data):
    rows = data.draw(st.slices(len(bits)))
    np.testing.assert_array_equal(Codes.from_bits(bits)[rows].unpacked(), bits[rows])


@given(bit_tables().filter(len), st.data())
def test_masks_and_lists_choose_rows(bits, data):
    codes = Codes.from_bits(bits)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(bits), max_size=len(bits))))
    np.testing.assert_array_equal(codes[mask].unpacked(), bits[mask])
    indices = data.draw(st.lists(st.integers(-len(bits), len(bits) - 1), min_size=1))
    np.testing.assert_array_equal(codes[indices].unpacked(), bits[indices])
    for index in (indices[0], np.int64(indices[0])):
        np.testing.assert_array_equal(codes[index].unpacked(), bits[[indices[0]]])


@pytest.mark.parametrize("index", [2, -3])
def test_an_index_beyond_the_end_is_an_index_error(index):
    with pytest.raises(IndexError, match=f"code {index} of 2"):
        Codes.from_bits(np.zeros((2, 3), np.bool_))[index]


def test_codes_can_be_iterated():
    codes = Codes.from_bits(np.eye(3, dtype=np.bool_))
    assert [part.unpacked().tolist() for part in codes] == [[row] for row in np.eye(3, dtype=np.bool_).tolist()]


@given(pairs_of_tables())
def test_joined_codes_are_the_joined_tables(tables):
    joined = Codes.concatenate(Codes.from_bits(table) for table in tables)
    np.testing.assert_array_equal(joined.unpacked(), np.concatenate(tables))


def test_only_codes_of_one_length_can_be_joined():
    with pytest.raises(CodesError, match=r"not of \[3, 4\] bits"):
        Codes.concatenate([Codes.empty(3), Codes.empty(4)])
    with pytest.raises(CodesError, match="one length"):
        Codes.concatenate([])


@given(pairs_of_tables())
def test_codes_are_equal_when_their_tables_are(tables):
    a, b = map(Codes.from_bits, tables)
    assert (a == b) == np.array_equal(*tables)
    assert a == Codes.from_bits(tables[0].copy())


def test_length_counts_in_equality():
    assert Codes.from_bits([[0, 1]]) != Codes.from_bits([[0, 1, 0]])  # the same bytes
    assert Codes.from_bits([[0, 1]]) != "codes"


def test_codes_are_unhashable_as_they_are_arrays():
    with pytest.raises(TypeError):
        hash(Codes.empty(3))


@given(bit_tables())
def test_a_file_brings_codes_back(tmp_path_factory, bits):
    path = tmp_path_factory.mktemp("codes") / "codes.safetensors"
    codes = Codes.from_bits(bits)
    codes.save(path)
    assert Codes.load(path) == codes
    assert Codes.load(str(path)).bits == codes.bits


def test_a_slice_that_is_not_contiguous_is_saved_as_it_reads(tmp_path):
    codes = Codes.from_bits(np.random.default_rng(0).random((10, 20)) > 0.5)[::3]
    codes.save(tmp_path / "codes")
    assert Codes.load(tmp_path / "codes") == codes


def test_saving_again_replaces_the_file_in_one_step(tmp_path, monkeypatch):
    path = tmp_path / "codes"
    old, new = Codes.from_bits([[0, 1]]), Codes.from_bits([[1, 1]])
    old.save(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _full_disk)
        with pytest.raises(StorageError, match="the disk is full"):
            new.save(path)
    assert Codes.load(path) == old
    new.save(path)
    assert Codes.load(path) == new
    assert [p.name for p in tmp_path.iterdir()] == ["codes"]


def _full_disk(number):
    raise OSError(28, "No space left on device")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CodesError, match="nothing: there is no such file of codes"):
        Codes.load(tmp_path / "nothing")


def test_every_cut_of_a_file_is_refused(tmp_path):
    path = tmp_path / "codes"
    Codes.from_bits(np.ones((5, 12), np.bool_)).save(path)
    whole = path.read_bytes()
    for length in (0, 3, 8, 20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CodesError, match="codes: damaged file of codes"):
            Codes.load(path)


HEADER = {"format": "hyphash-codes", "version": "1", "bits": "12"}


@pytest.mark.parametrize(
    ("tensors", "header", "message"),
    [
        ({"packed": np.zeros((2, 2), np.uint8)}, {}, "not a file of hyphash codes"),
        ({"packed": np.zeros((2, 2), np.uint8)}, HEADER | {"format": "other"}, "not a file of hyphash codes"),
        ({"new": np.zeros((2, 2), np.uint8)}, HEADER | {"version": "2"}, "written in format 2, this hyphash reads 1"),
        ({"packed": np.zeros((2, 2), np.uint8)}, HEADER | {"bits": "twelve"}, "damaged"),
        ({"packed": np.zeros((2, 2), np.uint8)}, {"format": "hyphash-codes", "version": "1"}, "damaged"),
        ({"packed": np.zeros((2, 3), np.uint8)}, HEADER, "damaged"),
        ({"packed": np.zeros((2, 2), np.float32)}, HEADER, "damaged"),
        ({"packed": np.full((2, 2), 255, np.uint8)}, HEADER, "damaged"),
        ({"other": np.zeros((2, 2), np.uint8)}, HEADER, "damaged"),
    ],
)
def test_files_of_another_make_are_refused_by_name(tmp_path, tensors, header, message):
    save_file(tensors, tmp_path / "file", metadata=header)
    with pytest.raises(CodesError, match=f"file: .*{message}"):
        Codes.load(tmp_path / "file")


@given(bit_tables(), st.data())
def test_the_first_bits(bits, data):
    codes, first = Codes.from_bits(bits), data.draw(st.integers(1, bits.shape[1]))
    np.testing.assert_array_equal(codes.first(first).unpacked(), bits[:, :first])
    np.testing.assert_array_equal(codes.unpacked(), bits)  # these are still what they were


def test_codes_say_what_they_are():
    assert repr(Codes.empty(36)) == "Codes(0 × 36 bits)"
    assert [bytes_for(bits) for bits in (1, 8, 9, 36, 256)] == [1, 1, 2, 5, 32]
