"""Photos in Parquet files."""

import pyarrow as arrow
import pytest
from pyarrow import parquet

from hyphash.encoding.partitions import cut
from hyphash.encoding.row_groups import RowGroups
from hyphash.errors import DataError, PhotoError


def test_rows_of_parquet(tmp_path, picture, photos_of):
    path = tmp_path / "photos.parquet"
    columns = {
        "id": list(range(100, 110)),
        "image": [picture(i) for i in range(9)] + [None],
        "labels": [["dog", "cat"], None, [], *([["sea"]] * 7)],
    }
    parquet.write_table(arrow.table(columns), path, row_group_size=3)
    cuts = cut(str(path), per_shard=5)
    assert all(isinstance(groups, RowGroups) for groups in cuts)
    assert [(groups.first, groups.last, groups.count, groups.before) for groups in cuts] == [
        (0, 2, 6, 0), (2, 4, 4, 6),
    ]  # fmt: skip
    found = photos_of(path, per_shard=5)
    assert [photo.name for photo in found] == [f"file://{path}#{i}/{100 + i}" for i in range(10)]
    assert [photo.labels for photo in found[:4]] == [("cat", "dog"), None, (), ("sea",)]
    assert [photo.read() for photo in found[:9]] == [picture(i) for i in range(9)]
    with pytest.raises(PhotoError, match="no photo in this row"):
        found[9].read()


def test_parquet_as_hugging_face_writes_it_and_without_names(tmp_path, picture, photos_of):
    path = tmp_path / "hub.parquet"
    photos = [{"bytes": picture(1), "path": "cat.jpg"}, {"bytes": picture(2), "path": None}]
    parquet.write_table(arrow.table({"image": photos, "label": [3, 5]}), path)
    assert [(photo.name, photo.labels, photo.read()) for photo in photos_of(path)] == [
        (f"file://{path}#0/cat.jpg", ("3",), picture(1)),
        (f"file://{path}#1", ("5",), picture(2)),
    ]
    parquet.write_table(arrow.table({"words": ["a"], "numbers": [1]}), path)
    with pytest.raises(DataError, match="words, numbers"):
        photos_of(path)


@pytest.mark.parametrize("groups", [3, 12])
def test_rows_with_one_name_are_photos_of_their_own(tmp_path, picture, groups, names):
    """… whose names do not depend on the cut."""
    path = tmp_path / "photos.parquet"
    columns = {"name": ["image.jpg"] * 5 + [None], "image": [picture(i) for i in range(6)]}
    parquet.write_table(arrow.table(columns), path, row_group_size=groups)
    assert names(path, per_shard=1) == [*(f"file://{path}#{i}/image.jpg" for i in range(5)), f"file://{path}#5"]


def test_a_damaged_row_group_costs_its_own_rows_alone(tmp_path, picture, photos_of):
    path = tmp_path / "photos.parquet"
    columns = {"image": [picture(i) for i in range(9)]}
    parquet.write_table(arrow.table(columns), path, row_group_size=3, compression="snappy", use_dictionary=False)
    footer = parquet.read_metadata(path)
    start, size = (
        getattr(footer.row_group(1).column(0), name) for name in ("data_page_offset", "total_compressed_size")
    )
    data = bytearray(path.read_bytes())
    data[start + 40 : start + size] = b"\xff" * (size - 40)
    path.write_bytes(data)
    found = photos_of(path)
    assert [photo.name.partition("#")[2] for photo in found] == ["0", "1", "2", "3", "6", "7", "8"]
    with pytest.raises(PhotoError, match=r"rows 3 to 5 are damaged \(.+\); copy it again$"):
        found[3].read()
    assert [photo.read() for photo in found[:3] + found[4:]] == [picture(i) for i in (0, 1, 2, 6, 7, 8)]


def test_a_parquet_file_that_is_overwritten_after_the_cut_is_told(tmp_path, picture):
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"jpg": [picture(8)] * 3}), path)
    (partition,) = cut(str(path))
    path.write_bytes(b"something else")
    (lost,) = partition.photos()
    with pytest.raises(PhotoError, match="rows 0 to 2 are damaged"):
        lost.read()
