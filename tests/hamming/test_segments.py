"""How the tables of a segment are laid out; index files: what safetensors reads, damage told before it does harm."""

import json
import struct
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from searching import LENGTHS, clustered

from hyphash import hamming
from hyphash.errors import CodesError
from hyphash.hamming import Index, segments
from hyphash.hamming.segments import Tables, section_sizes

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
        assert len(arrays.entries) >= tables * segment.stride * np.dtype(segments.entry_type(bits, tables)).itemsize
        assert segment.stride >= distinct + segments.SPARE


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

    @pytest.mark.parametrize("place", range(4))
    @pytest.mark.parametrize("value", [-1, 0, 17, 2**40, -(2**63), 1.5, None, "3", [3]])
    def test_segments_that_cannot_be_are_refused_behind_a_right_checksum(self, path, place, value):
        """Somebody may have made the file on purpose: with −1 tables the process crashed."""
        whole = path.read_bytes()
        length = struct.unpack("<Q", whole[:8])[0]
        tensors = json.loads(whole[8 : 8 + length])
        metadata = tensors.pop("__metadata__")
        facts = json.loads(metadata["segments"])
        sound = place == 1 and value == 0
        facts[0][place] = value
        metadata["segments"] = json.dumps(facts)
        metadata["header"] = segments._header_checksum(metadata, tensors)
        if not sound and value in (-1, 0, 17):
            bits, tables, _, count, distinct = 48, *facts[0]
            with suppress(Exception):  # sections of the sizes that such a segment would have
                for name, size in zip(Tables._fields, section_sizes(bits, tables, count, distinct), strict=True):
                    tensors[f"0.{name}"]["data_offsets"][1] = tensors[f"0.{name}"]["data_offsets"][0] + size
                metadata["header"] = segments._header_checksum(metadata, tensors)
        text = json.dumps({"__metadata__": metadata, **tensors}).encode()
        text += b" " * (-len(text) % 64)
        path.write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + length :])
        if sound:
            assert len(Index.open(path)) == 305
            return
        with pytest.raises(CodesError, match="damaged index"):
            Index.open(path)

    @pytest.mark.parametrize(("section", "place", "value"), [("ids", 0, 10**9), ("ids", -1, 0), ("starts", 5, 10**9)])
    def test_tables_that_lead_nowhere_are_noticed_behind_a_right_checksum(self, path, section, place, value):
        bits, parts, tail, note = segments.read_index(path, verify=True)
        segment = parts[0]
        numbers = getattr(segment.arrays, section).copy()
        numbers[place % segment.count] = value  # the last id has no mark, or a number leads past the end
        broken = replace(segment, arrays=segment.arrays._replace(**{section: numbers}))
        segments.write_index(path, bits, (broken,), tail, note=note)
        with pytest.raises(CodesError, match="contradict"):
            Index.open(path, verify=True)

    def test_opening_reads_the_small_sections_alone_and_verifying_all(self, path, monkeypatch):
        read = []
        real = segments.checksum
        monkeypatch.setattr(segments, "checksum", lambda section: read.append(len(section)) or real(section))
        monkeypatch.setattr(segments, "SMALL", 1000)
        index = Index.open(path)
        assert 0 < sum(read) < 3000 < index.nbytes
        read.clear()
        Index.open(path, verify=True)
        assert sum(read) == index.nbytes

    @pytest.mark.parametrize("bits", [16, 24, 48, 64, 128])
    @pytest.mark.slow
    def test_no_damage_to_the_tables_ends_the_process(self, bits, path, monkeypatch):
        monkeypatch.setattr(hamming, "NEVER_SCAN", True)
        monkeypatch.setattr(segments, "SMALL", -1)  # nothing is checked but header and sizes
        rng = np.random.default_rng(bits)
        codes = clustered(rng, 300, bits)
        Index.build(codes).save(path)
        _, (whole,), _, _ = segments.read_index(path, verify=True)
        told = 0
        for name in ("directories", "entries", "starts", "ids"):
            for _ in range(40):
                broken = getattr(whole.arrays, name).copy()
                if len(broken):
                    places = rng.integers(0, len(broken), max(1, len(broken) // int(rng.integers(1, 50))))
                    broken[places] = rng.integers(0, np.iinfo(broken.dtype).max, len(places), endpoint=True)
                segments.write_index(
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
        bits, (first, *others), tail, note = segments.read_index(path, verify=True)
        shorter = first.arrays._replace(ids=first.arrays.ids[:-16])
        segments.write_index(path, bits, (replace(first, arrays=shorter), *others), tail, note=note)
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
