"""How the tables of a segment are laid out."""

import numpy as np
import pytest
from searching import LENGTHS

from hyphash.hamming import segments

COUNTS = [1, 700, 100_000]


@pytest.mark.parametrize("bits", LENGTHS)
@pytest.mark.parametrize("count", COUNTS)
def test_every_bit_is_in_one_substring(bits, count):
    tables = segments.tables_for(bits, count)
    parts = [segments.substring(bits, tables, table) for table in range(tables)]
    assert [bit for start, width in parts for bit in range(start, start + width)] == list(range(bits))
    assert max(width for _, width in parts) <= 24  # a directory has a place for every value
    rest = bits - min(width for _, width in parts)
    kind = segments.entry_type(bits, tables)
    assert (kind is None) == (rest == 0)
    assert rest == 0 or bits > 64 or rest <= 8 * np.dtype(kind).itemsize  # what the substring leaves fits in an entry


@pytest.mark.parametrize("bits", LENGTHS)
def test_empty_tables_have_room_for_everything(bits):
    tables, count, distinct = segments.tables_for(bits, 700), 700, 600
    arrays = segments.empty_tables(bits, tables, count, distinct)
    assert [array.nbytes for array in arrays] == segments.section_sizes(bits, tables, count, distinct)
    assert all(array.nbytes % segments.ALIGN == 0 for array in arrays)
    segment = segments.Segment(bits, tables, 0, count, distinct, arrays)
    assert segment.nbytes == sum(array.nbytes for array in arrays)
    assert (len(segment.codes()), segment.codes().bits) == (count, bits)
    assert len(arrays.ids) >= count
    assert len(arrays.directories) >= sum(2 ** segments.substring(bits, tables, t)[1] + 1 for t in range(tables))
    if tables > 1:
        assert len(arrays.starts) >= tables * distinct
        assert len(arrays.entries) >= tables * segment.stride * segments.entry_bytes(bits, tables)
        assert segment.stride >= distinct + segments.SPARE
