"""Files here and behind URLs that answer, do not answer yet, or never will."""

import io

import pyarrow as arrow
import pytest
from pyarrow import parquet

from hyphash.encoding import locations
from hyphash.encoding.partitions import Files, Tar, cut
from hyphash.errors import ConfigError, DataError


def test_a_location_that_may_not_be_read_is_named(tmp_path, memory, monkeypatch):
    (tmp_path / "folder.tar").mkdir()
    with pytest.raises(
        DataError, match=r"folder\.tar: cannot be read \(Is a directory\); correct the path or the rights"
    ):
        list(Tar(str(tmp_path / "folder.tar"), 0).photos())

    def refuse(self, path):
        raise PermissionError(path)

    monkeypatch.setattr(type(memory), "size", refuse)
    with pytest.raises(DataError, match=r"1\.tar: cannot be read \(PermissionError\)"):
        cut("memory://bucket/{1..2}.tar")


def test_a_store_that_fails_in_the_middle_is_no_damage(memory, tmp_path, picture, monkeypatch, write_tar):
    """The shard is not made, and so comes another time."""
    table = io.BytesIO()
    parquet.write_table(arrow.table({"jpg": [picture(8)]}), table)
    memory.pipe_file("/bucket/p/a.parquet", table.getvalue())
    memory.pipe_file("/bucket/t/a.tar", write_tar(tmp_path / "a.tar", [("x.png", picture(7))]).read_bytes())
    sources = [cut("memory://bucket/p"), cut("memory://bucket/t")]
    real = locations.opened

    class Shaky(io.BytesIO):
        def read(self, size=-1, /):
            if self.tell() < 8 and size != 0:
                raise ConnectionResetError(104, "reset")
            return super().read(size)

    monkeypatch.setattr(locations, "opened", lambda location: Shaky(real(location).read()))
    for (partition,) in sources:
        with pytest.raises(DataError, match=r"a\.(tar|parquet): reading ended .*the same command goes on"):
            list(partition.photos())


def test_a_missing_package_is_named(monkeypatch):
    from fsspec.registry import known_implementations

    known = {"class": "no_such_s3fs.S3FileSystem", "err": "Install s3fs"}
    monkeypatch.setitem(known_implementations, "cloudy", known)
    with pytest.raises(ConfigError, match="pip install no_such_s3fs"):
        cut("cloudy://bucket/photos")
    with pytest.raises(ConfigError, match="unknown"):
        cut("nonsense://bucket/photos")


def test_passwords_do_not_get_into_names():
    with pytest.raises(ConfigError, match="password in the URL") as refused:
        cut("ftp://me:secret@host/photos")
    assert "secret" not in str(refused.value)
    assert locations.normal("s3://bucket/a:b@c.jpg") == "s3://bucket/a:b@c.jpg"


def test_a_location_that_does_not_answer_at_once_is_asked_again(memory, monkeypatch, picture):
    (partition,) = cut("memory://bucket/photos")
    assert isinstance(partition, Files)
    first = next(partition.photos())
    calls = []
    real = type(memory).cat_file

    def shaky(self, path, **options):
        calls.append(path)
        if len(calls) < 3:
            raise ConnectionError("reset")
        return real(self, path, **options)

    monkeypatch.setattr(type(memory), "cat_file", shaky)
    assert first.read() == picture(0)
    assert len(calls) == 3
