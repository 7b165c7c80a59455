"""What the numpy twin does its own way; that it answers as the kernel does, test_hamming and test_kernel show."""

import numpy as np
import pytest
from searching import LENGTHS, assert_same, clustered, draw_codes, running

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.hamming import Index, twin


@pytest.mark.parametrize("bits", LENGTHS)
def test_an_index_is_scanned_and_makes_no_tables(bits):
    codes = clustered(np.random.default_rng(bits), 700, bits)
    with running("numpy"):
        scanned = Index.build(codes)
        assert_same(scanned.search(codes[:3], 50), hamming.search(codes[:3], codes, 50))
    assert scanned.nbytes == codes.packed.nbytes


def test_chunks_and_blocks_change_no_answer(monkeypatch):
    rng = np.random.default_rng(0)
    queries, database = draw_codes(rng, 9, 40, 30), draw_codes(rng, 500, 40, 60)
    mask = rng.random(500) < 0.7
    labels = [(rng.random((len(codes), 6)) < 0.3).astype(np.uint8) for codes in (queries, database)]
    tables = hamming.byte_tables(rng.integers(-8, 9, (9, 40)))

    def answers():
        counts = twin.histogram(queries, database, *labels)
        within = [array for pair in twin.within(queries, database, 15, mask) for array in pair]
        arrays = [*twin.search(queries, database, 70, mask), *twin.search_tables(tables, database, 70, mask)]
        return [*arrays, *within, counts.count, counts.relevant, counts.gain, counts.exp_gain]

    whole = answers()
    monkeypatch.setattr(twin, "CHUNK", 64)
    monkeypatch.setattr(twin, "PAIRS", 128)  # two queries at a time
    for ours, theirs in zip(answers(), whole, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_words_hold_all_bits_and_zeros_behind_them():
    codes = Codes.from_bits(np.ones((2, 70), bool))
    assert twin.as_words(codes.packed).tolist() == [[2**64 - 1, 2**6 - 1]] * 2
