"""Encoded shards into a collection, whatever store it lives in."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hyphash.encoding.ledger import Summary, summary_of
from hyphash.encoding.row_groups import pyarrow
from hyphash.encoding.shards import header_of, photo_of
from hyphash.errors import CodesError, OtherHasherError
from hyphash.hasher import Progress
from hyphash.stores import Store

MANY = 10_000  # photos that a store gets at once


class Thumbnails(Protocol):
    """Where a collection keeps thumbnails."""

    def put(self, thumbnails: Mapping[str, bytes]) -> None: ...


class Searchable(Protocol):
    """What is needed of a collection."""

    @property
    def store(self) -> Store: ...

    @property
    def thumbnails(self) -> Thumbnails: ...

    def tidy(self) -> None: ...


@dataclass(frozen=True)
class Loaded:
    """How many photos the shards held, and how many of them the collection did not have before."""

    photos: int
    added: int


def load(folder: str | Path, collection: Searchable, *, progress: Progress | None = None) -> Loaded:
    """Put what `encode` wrote into a collection. Stopped and run again, nothing is doubled: a photo is its path."""
    store = collection.store
    summary = summary_for(store.state().fingerprint, folder)
    before, done = store.count(), 0
    for shard in summary.shards:
        for rows in _batches(Path(folder) / f"{shard}.parquet", summary.fingerprint):
            collection.thumbnails.put({row["content"].hex(): row["thumbnail"] for row in rows if "thumbnail" in row})
            photos = {row["path"]: photo_of(row) for row in rows}  # a source may name two photos alike
            store.upsert(list(photos.values()), fingerprint=summary.fingerprint)
            done += len(rows)
            if progress:
                progress(done, summary.photos)
    collection.tidy()
    return Loaded(done, store.count() - before)


def summary_for(fingerprint: str, folder: str | Path) -> Summary:
    """What a collection of this hasher would load; CodesError or OtherHasherError where it would be refused."""
    summary = summary_of(folder)
    if summary.fingerprint != fingerprint:
        raise OtherHasherError(
            f"{folder}: codes of the hasher {summary.fingerprint}, the collection has {fingerprint}; "
            "encode the photos with that one, or load into a collection of its own"
        )
    for shard in summary.shards:
        if not (path := Path(folder) / f"{shard}.parquet").is_file():
            raise CodesError(f"{path}: missing; finish with the same `hyphash encode`")
    return summary


def _batches(path: Path, fingerprint: str) -> Iterator[list[dict[str, Any]]]:
    arrow = pyarrow()
    try:
        with arrow.parquet.ParquetFile(path) as file:
            if header_of(file.schema_arrow.metadata, path)["fingerprint"] != fingerprint:
                raise OtherHasherError(f"{path}: codes of another hasher than the rest of the folder; encode it again")
            for batch in file.iter_batches(MANY):
                yield batch.to_pylist()
    except (arrow.ArrowInvalid, OSError) as error:
        raise CodesError(f"{path}: damaged or missing ({error}); delete it and encode again") from error
