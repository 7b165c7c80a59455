"""The product quantiser against its definition, and through the search that it is made for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyphash.codes import Codes
from hyphash.errors import CodesError
from hyphash.hamming import search_tables
from hyphash.quantizer import Quantizer, subspace_bits


def some_quantizer(bits: int, width: int = 3, seed: int = 0) -> tuple[Quantizer, np.ndarray]:
    generator = np.random.default_rng(seed)
    subspaces = len(subspace_bits(bits))
    quantizer = Quantizer(generator.normal(size=(subspaces, 256, width)), bits)
    return quantizer, generator.normal(size=(9, subspaces * width)).astype(np.float32)


@given(bits=st.integers(1, 256))
def test_every_bit_belongs_to_one_subspace(bits):
    shares = subspace_bits(bits)
    assert sum(shares) == bits
    assert all(share == 8 for share in shares[:-1])
    assert 1 <= shares[-1] <= 8


@settings(max_examples=20, deadline=None)
@given(bits=st.sampled_from([1, 3, 8, 9, 12, 36, 48, 100, 256]), seed=st.integers(0, 99))
def test_a_code_names_the_nearest_codewords(bits, seed):
    quantizer, outputs = some_quantizer(bits, seed=seed)
    codes = quantizer.encode(outputs)
    assert codes.bits == bits
    for row, code in zip(outputs.reshape(9, -1, 3), codes.packed, strict=True):
        for j, share in enumerate(subspace_bits(bits)):
            distances = ((row[j] - quantizer.codewords[j, : 2**share]) ** 2).sum(axis=1)
            assert distances[code[j]] == pytest.approx(min(distances), abs=1e-4)


def test_tables_sum_to_the_asymmetric_distance():
    quantizer, outputs = some_quantizer(12)
    codes = quantizer.encode(outputs)
    tables = quantizer.tables(outputs)
    own = [sum(tables[i, j, codes.packed[i, j]] for j in range(2)) for i in range(9)]
    expected = np.square(outputs - quantizer.decode(codes)).sum(1)
    assert own == pytest.approx(expected, rel=1e-4)


def test_search_ranks_by_the_asymmetric_distance():
    quantizer, database = some_quantizer(20)
    queries = database[:4] + 0.1
    codes = quantizer.encode(database)
    scores, ids = search_tables(quantizer.tables(queries), codes, k=9)
    exact = np.square(queries[:, None] - quantizer.decode(codes)[None]).sum(2)
    assert np.sort(exact, axis=1) == pytest.approx(scores, rel=1e-4)
    assert exact[np.arange(4)[:, None], ids] == pytest.approx(scores, rel=1e-4)


def test_numbers_that_no_code_can_hold_are_infinitely_far():
    quantizer, outputs = some_quantizer(9)
    tables = quantizer.tables(outputs)
    assert np.isfinite(tables[:, 0]).all()
    assert np.isfinite(tables[:, 1, :2]).all()
    assert np.isinf(tables[:, 1, 2:]).all()


def test_decoded_points_encode_to_the_same_codes():
    quantizer, outputs = some_quantizer(36)
    codes = quantizer.encode(outputs)
    assert quantizer.encode(quantizer.decode(codes)) == codes


def test_what_does_not_fit_is_refused():
    quantizer, outputs = some_quantizer(12)
    with pytest.raises(CodesError, match="takes outputs of shape"):
        quantizer.encode(outputs[:, :-1])
    with pytest.raises(CodesError, match="not numbers"):
        quantizer.tables(np.full_like(outputs, np.nan))
    with pytest.raises(CodesError, match="codewords of shape"):
        Quantizer(np.zeros((1, 256, 3)), 12)
    with pytest.raises(CodesError, match="cannot be compared"):
        quantizer.decode(Codes.empty(13))
