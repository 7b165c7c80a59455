"""A shard of Parquet: what it holds, and whose codes they are."""

import json
from pathlib import Path

import pytest

from hyphash.encoding import encode
from hyphash.encoding.shards import header_of, photo_of
from hyphash.errors import CodesError
from hyphash.hasher import Hasher


def test_metadata_tell_whose_codes_they_are(hasher_run, folder, tmp_path):
    import pyarrow.parquet

    list(encode(hasher_run, folder, into=tmp_path / "codes", workers=1))
    schema = pyarrow.parquet.read_schema(tmp_path / "codes" / "shard-000000.parquet")
    fingerprint = Hasher.load(hasher_run).fingerprint
    assert json.loads(schema.metadata[b"hyphash"]) == {
        "format": 1, "fingerprint": fingerprint, "bits": 20, "shard": "shard-000000", "problems": 0,
    }  # fmt: skip
    assert str(schema.field("code").type) == "fixed_size_binary[3]"


def test_other_metadata_are_refused_with_the_way_out():
    for metadata in (None, {}, {b"hyphash": b"{"}):
        with pytest.raises(CodesError, match=r"x\.parquet: no shard of codes; give a folder made by `hyphash encode`"):
            header_of(metadata, Path("x.parquet"))
    with pytest.raises(CodesError, match="format 9, this hyphash reads 1; use the version that wrote it"):
        header_of({b"hyphash": b'{"format": 9}'}, Path("x.parquet"))


def test_a_row_becomes_the_photo_that_was_encoded(hasher_run, folder, tmp_path, rows_in):
    labels = folder / "labels.csv"
    labels.write_text("image,labels\na/00.png,sea|animal/dog\na/01.png,\n")
    for name, source in (("with", labels), ("without", folder / "a")):
        list(encode(hasher_run, source, into=tmp_path / name, workers=1))
    first, second = map(photo_of, rows_in(tmp_path / "with"))
    labels = ("animal", "animal/dog", "sea")  # a dog is an animal, as it is when photos are indexed
    assert (first.path, first.labels, first.given) == (str(folder / "a" / "00.png"), labels, labels)
    assert (second.labels, second.given) == ((), ())
    assert (first.facts.width, first.facts.height, len(first.facts.content), len(first.code)) == (48, 32, 64, 3)
    assert photo_of(rows_in(tmp_path / "without")[0]).given is None  # the source says nothing of labels
