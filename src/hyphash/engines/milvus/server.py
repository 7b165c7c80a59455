"""A Milvus server: requests that are tried again when it goes away, and answers in plain Python.

Nothing here knows what a photo is. `pymilvus` is imported when the first connection is made.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from hyphash.engines.address import Address
from hyphash.engines.retrying import retrying
from hyphash.errors import EngineError, MissingExtraError

if TYPE_CHECKING:
    from pymilvus import MilvusClient

T = TypeVar("T")
Row = dict[str, Any]

LIMIT = 16_384  # a request returns no more rows than this; Milvus refuses to be asked for more
BATCH = 5_000  # rows sent at once: a message must stay below 64 MB
TIMEOUT = 15.0  # seconds that pymilvus tries by itself before `retrying` says that something is wrong

STRONG = "Strong"  # waits until all that was written by anybody before is seen: a tick of the server, 200 ms
SESSION = "Session"  # sees what this process wrote
EVENTUALLY = "Eventually"  # waits for nothing

# errors of a server that starts, hands over, or lacks room for a moment: not ready, unavailable, too many
# requests, not loaded (fully), no replica, no channel, no node
PASSING_CODES = {1, 2, 3, 4, 8, 101, 103, 400, 401, 500, 501, 503, 601, 900, 901, 902, 903, 904}
PASSING_WORDS = ("unavailable", "deadline", "connect", "not ready", "not loaded", "not available", "no available")


class GoneError(EngineError):
    """A collection that is not on the server, or no longer."""


@dataclass(frozen=True)
class Field:
    """A column of a collection, in the words of pymilvus."""

    name: str
    type: str
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What a collection is made of. The first field is its key; `vector` is the field that is searched."""

    fields: tuple[Field, ...]
    vector: str
    index: str
    build: Mapping[str, Any]  # of the index
    sorted: tuple[str, ...] = ()  # fields with whole numbers that rows are found by
    shards: int = 1
    partitions: int = 0  # by the field that is marked as their key
    replicas: int = 1


class Server:
    """The database that an address names."""

    def __init__(self, address: Address, *, patience: float = 60.0) -> None:
        self.address = address
        self.patience = patience
        self._client: MilvusClient | None = None
        self._lock = Lock()

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    # ── collections ──────────────────────────────────────────────────────────────────────────────────────

    def has(self, collection: str) -> bool:
        return self._do("looking for a collection", lambda c: bool(c.has_collection(collection, timeout=TIMEOUT)))

    def create(self, collection: str, layout: Layout, *, wait: bool = True) -> None:
        """A collection that is there afterwards, indexed and in memory, even if a former attempt came half way."""
        self._do("creating a collection", lambda client: _create(client, collection, layout))
        if wait:  # comes back when the collection can be searched, which takes seconds
            self._do("loading a collection", lambda c: c.load_collection(collection, timeout=4 * TIMEOUT))

    def drop(self, collection: str) -> None:
        self._do("dropping a collection", lambda c: c.drop_collection(collection, timeout=TIMEOUT))

    def flush(self, collection: str) -> None:
        """Write all rows into segments and have the index built over them."""
        self._do("flushing", lambda c: c.flush(collection, timeout=20 * TIMEOUT))

    def compact(self, collection: str) -> None:
        self._do("compacting", lambda c: c.compact(collection, timeout=TIMEOUT))

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────

    def upsert(self, collection: str, rows: Sequence[Row]) -> None:
        """Write rows under their keys. Done twice, it is as if done once."""
        for start in range(0, len(rows), BATCH):
            some = list(rows[start : start + BATCH])
            self._do("writing rows", lambda client: _upsert(client, collection, some))  # noqa: B023

    def delete(self, collection: str, keys: Sequence[int] | Sequence[str]) -> None:
        for start in range(0, len(keys), BATCH):
            some = list(keys[start : start + BATCH])
            self._do("deleting rows", lambda c: c.delete(collection, ids=some, timeout=TIMEOUT))  # noqa: B023

    def query(self, collection: str, where: str, fields: Sequence[str], level: str, **more: Any) -> list[Row]:
        """The rows that fulfil a condition; with a limit those with the smallest keys, by key."""
        return self._do(
            "reading rows",
            lambda c: list(
                c.query(
                    collection,
                    filter=where,
                    output_fields=list(fields),
                    consistency_level=level,
                    timeout=TIMEOUT,
                    reduce_stop_for_best="False",  # never stop before all segments have been asked for small keys
                    **more,
                )
            ),
        )

    def walk(
        self, collection: str, where: str, fields: Sequence[str], level: str, *, after: int = 0
    ) -> Iterator[list[Row]]:
        """All rows that fulfil a condition, by id, in parts; a row written meanwhile may be among them or not."""
        while True:
            rows = self.query(collection, both(f"id > {after}", where), ("id", *fields), level, limit=BATCH)
            if rows:
                rows.sort(key=lambda row: int(row["id"]))
                yield rows
            if len(rows) < BATCH:
                return
            after = rows[-1]["id"]

    def count(self, collection: str, where: str, level: str) -> int:
        return int(self.query(collection, where, ["count(*)"], level)[0]["count(*)"])

    def search(
        self, collection: str, code: bytes, limit: int, *, where: str, level: str, params: Mapping[str, Any]
    ) -> list[tuple[int, int]]:
        """(distance, id) of the nearest rows that fulfil a condition. Which of equal distance is up to Milvus."""
        found = self._do(
            "searching",
            lambda c: c.search(
                collection,
                data=[code],
                limit=limit,
                filter=where,
                search_params={"metric_type": "HAMMING", "params": dict(params)},
                consistency_level=level,
                timeout=TIMEOUT,
            ),
        )
        return [(round(hit["distance"]), int(hit["id"])) for hit in found[0]]

    # ── connection ───────────────────────────────────────────────────────────────────────────────────────

    def _do(self, what: str, work: Callable[["MilvusClient"], T]) -> T:
        """The answer to a request, tried again while the server is away."""
        try:
            return retrying(
                lambda: work(self._connected()),
                passing=passing,
                what=what,
                server=self.address.shown,
                patience=self.patience,
            )
        except EngineError:
            raise
        except Exception as error:
            explained = self._explained(what, error)
            if explained is None:
                raise
            raise explained from error

    def _connected(self) -> "MilvusClient":
        with self._lock:
            if self._client is None:
                self._client = _connect(self.address)
            return self._client

    def _explained(self, what: str, error: Exception) -> EngineError | None:
        """What the server refuses, in words that name the way out."""
        code, text = _said(error)
        if code is None:  # a mistake of ours
            return None
        if code == 100 or ("collection" in text and ("not found" in text or "not exist" in text)):
            return GoneError(f"{self.address.shown}: {what} failed: {text}; index the photos into a new collection")
        way = "check the address, the user and what that user may do there"
        return EngineError(f"{self.address.shown}: {what} was refused ({text}); {way}")


def passing(error: Exception) -> bool:
    """Whether a later attempt may succeed."""
    import grpc

    code, text = _said(error)
    words = text.lower()
    if "auth" in words or "permission" in words or "database not found" in words:
        return False
    if isinstance(error, grpc.FutureTimeoutError):
        return True
    if isinstance(code, grpc.StatusCode):
        return code not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT)
    return code is not None and (code in PASSING_CODES or any(some in words for some in PASSING_WORDS))


def _said(error: Exception) -> tuple[Any, str]:
    """The code and the text of an error of the server; no code if it is none."""
    import grpc
    from pymilvus.exceptions import MilvusException

    if isinstance(error, MilvusException):
        return error.code, (str(error.message).strip() or str(error)).splitlines()[0]
    if isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call):
        return error.code(), str(error.details())
    return None, str(error)


def both(*conditions: str) -> str:
    """One condition from several; empty ones ask for nothing."""
    return " and ".join(f"({condition})" if " or " in condition else condition for condition in conditions if condition)


def _connect(address: Address) -> "MilvusClient":
    try:
        from pymilvus import MilvusClient
    except ImportError as error:
        raise MissingExtraError("the engine on Milvus", "milvus") from error
    # what it would print about each failed request comes as an error, with a way out
    for name in ("pymilvus", "pymilvus.milvus_client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    scheme = "https" if address.options["tls"] else "http"
    host = f"[{address.host}]" if ":" in address.host else address.host or "localhost"
    return MilvusClient(
        f"{scheme}://{host}:{address.port or 19530}",
        user=address.user,
        password=address.password,
        db_name=address.database,
        timeout=TIMEOUT,
        dedicated=True,
    )


def _upsert(client: "MilvusClient", collection: str, rows: list[Row]) -> None:
    """Send rows column by column, which pymilvus packs four times faster, but offers only under private names."""
    try:
        handler, context = client._get_connection(), client._generate_call_context()
    except AttributeError:
        client.upsert(collection, rows, timeout=2 * TIMEOUT)
        return
    schema = client.describe_collection(collection, timeout=TIMEOUT)
    columns = [
        {"name": field["name"], "type": field["type"], "values": [row[field["name"]] for row in rows]}
        for field in schema["fields"]
    ]
    handler.upsert(collection, columns, timeout=2 * TIMEOUT, context=context, schema=schema)


def _create(client: "MilvusClient", collection: str, layout: Layout) -> None:
    from pymilvus import DataType

    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    for i, field in enumerate(layout.fields):
        options = {name: DataType[value] if name == "element_type" else value for name, value in field.options.items()}
        schema.add_field(field.name, DataType[field.type], is_primary=i == 0, **options)
    more = {"num_partitions": layout.partitions} if layout.partitions else {}
    if not client.has_collection(collection, timeout=TIMEOUT):
        client.create_collection(collection, schema=schema, num_shards=layout.shards, timeout=TIMEOUT, **more)
    index = client.prepare_index_params()
    index.add_index(layout.vector, index_type=layout.index, metric_type="HAMMING", params=dict(layout.build))
    for name in layout.sorted:
        index.add_index(name, index_type="STL_SORT")
    client.create_index(collection, index, sync=False, timeout=TIMEOUT)
    client.load_collection(collection, replica_number=layout.replicas, _async=True, timeout=TIMEOUT)
