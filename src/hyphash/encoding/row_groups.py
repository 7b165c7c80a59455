"""Parquet files with photos in them, by row groups."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hyphash.datasets.folder import LABEL_COLUMNS
from hyphash.encoding import locations
from hyphash.encoding.locations import PhotoRef, as_labels, unreachable
from hyphash.errors import DataError, PhotoError, needs_extra

IMAGE_COLUMNS = ("image", "photo", "img", "jpg", "jpeg", "png", "webp", "bytes", "image_bytes", "content")
NAME_COLUMNS = ("path", "name", "file", "filename", "file_name", "key", "__key__", "id", "url")
BATCH = 64  # rows read at once
PYARROW = (ValueError, NotImplementedError, OSError)  # what its own errors are


@dataclass(frozen=True)
class RowGroups:
    """Row groups `first` … `last` (exclusive) of a Parquet file."""

    location: str
    size: int
    first: int
    last: int
    rows: int
    before: int  # rows of the file that come before these

    @property
    def count(self) -> int | None:
        return self.rows

    def photos(self) -> Iterator[PhotoRef]:
        """Group by group. Where one is damaged, a photo that cannot be read stands for what is left of it."""
        try:
            with locations.opened(self.location) as stream, pyarrow().parquet.ParquetFile(stream) as file:
                columns, before = _Columns.of(file.schema_arrow, self.location), self.before
                for group in range(self.first, self.last):
                    rows = file.metadata.row_group(group).num_rows
                    yield from self._group(file, columns, group, before, before + rows)
                    before += rows
        except PYARROW as error:  # it was whole when it was cut
            yield self._lost(error, self.before, self.before + self.rows)

    def _group(self, file: Any, columns: "_Columns", group: int, row: int, end: int) -> Iterator[PhotoRef]:
        try:
            for batch in file.iter_batches(BATCH, row_groups=[group], columns=columns.wanted):
                for record in batch.to_pylist():
                    yield columns.photo(record, self.location, row)
                    row += 1
        except PYARROW as error:
            yield self._lost(error, row, end)

    def _lost(self, error: Exception, row: int, end: int) -> PhotoRef:
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno):
            raise unreachable(self.location, error) from error  # a disk's or a network's, which pyarrow passes on
        told = " ".join(str(error).split())  # some of pyarrow's go over several lines
        reason = f"{self.location}: rows {row:,} to {end - 1:,} are damaged ({told}); copy it again"
        return PhotoRef(f"{locations.as_url(self.location)}#{row}", PhotoError(reason))


def row_groups(location: str, per_shard: int) -> Iterator[RowGroups]:
    """A Parquet file in partitions of whole row groups, as many as make `per_shard` rows."""
    with locations.opened(location) as stream:
        try:
            footer = pyarrow().parquet.read_metadata(stream)
        except PYARROW as error:
            raise DataError(f"{location}: not a Parquet file ({error}); copy it again or leave it out") from error
    size, first, before, rows = locations.size(location), 0, 0, 0
    for group in range(footer.num_row_groups):
        rows += footer.row_group(group).num_rows
        if rows >= per_shard or group == footer.num_row_groups - 1:
            yield RowGroups(location, size, first, group + 1, rows, before)
            first, before, rows = group + 1, before + rows, 0


@dataclass(frozen=True)
class _Columns:
    image: str
    name: str | None
    labels: str | None

    @classmethod
    def of(cls, schema: Any, location: str) -> "_Columns":
        binary = [field.name for field in schema if "binary" in str(field.type)]  # also struct<bytes: binary, …>
        named = [name for name in IMAGE_COLUMNS if name in binary]
        if not named and len(binary) != 1:
            raise DataError(
                f"{location}: no column with the bytes of photos among {', '.join(schema.names)}; name it 'image'"
            )
        image = (named or binary)[0]
        others = [name for name in schema.names if name != image]
        name = next((name for name in NAME_COLUMNS if name in others and name not in binary), None)
        return cls(image, name, next((name for name in LABEL_COLUMNS if name in others), None))

    @property
    def wanted(self) -> list[str]:
        return [name for name in (self.image, self.name, self.labels) if name]

    def photo(self, record: dict[str, Any], location: str, row: int) -> PhotoRef:
        photo: Any = record[self.image]
        inside = record.get(self.name or "")
        if isinstance(photo, dict):  # as Hugging Face writes photos
            photo, inside = photo.get("bytes"), photo.get("path") if inside is None else inside
        name = f"{locations.as_url(location)}#{row}{'' if inside is None else f'/{inside}'}"  # names alone may repeat
        content = photo or PhotoError(f"{name}: no photo in this row; leave it out")
        return PhotoRef(name, content, as_labels(record.get(self.labels or "")))


def pyarrow() -> Any:
    """The package, which comes with an extra; its module `parquet` is there as well."""
    with needs_extra("cluster", "encoding to Parquet"):
        import pyarrow.parquet
    return pyarrow
