"""A Milvus server: requests that are tried again when it goes away, and answers in plain Python.

A collection has rows of an id, a code, and what filters need: `labels`, each as a number that stands for it, `tagged`,
and `part`, by which rows are spread over partitions. `pymilvus` is imported when the first connection is made.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from hyphash.codes import bytes_for
from hyphash.errors import EngineError, needs_extra
from hyphash.stores import read_toml
from hyphash.stores.address import ITS_HOSTS, PASSWORD, Address
from hyphash.stores.retry import retry

if TYPE_CHECKING:
    from pymilvus import MilvusClient

Row = dict[str, Any]
Hit = tuple[int, int]  # distance, id

LIMIT = 16_384  # a request returns no more rows than this; Milvus refuses to be asked for more
BATCH = 5_000  # rows sent at once: a message must stay below 64 MB
TIMEOUT = 15.0  # seconds that pymilvus tries by itself before `retry` says that something is wrong
MOST_LABELS = 4096  # of a photo; Milvus has no longer arrays

STRONG = "Strong"  # waits until all that was written by anybody before is seen: a tick of the server, 200 ms
EVENTUALLY = "Eventually"  # waits for nothing

ERRORS = read_toml(__package__, "errors")
LOOPBACK = ("", "localhost", "127.0.0.1", "::1")


class GoneError(EngineError):
    """A collection that is not on the server, or no longer."""


class AwayError(EngineError):
    """A request that was made once and may succeed later."""


class Server:
    """The database that an address names."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.patience: float = address.options["patience"]
        lists, probes = address.options.get("lists"), address.options.get("probes")  # of an approximate index
        self.index = {"index_type": "BIN_IVF_FLAT", "params": {"nlist": lists}} if lists else {"index_type": "BIN_FLAT"}
        self.probing = {"nprobe": probes} if lists else {}
        self._client: MilvusClient | None = None
        self._lock = Lock()

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    # ── collections ──────────────────────────────────────────────────────────────────────────────────────

    def collections(self) -> list[str]:
        return list(self._do("looking for collections", "list_collections"))

    def properties(self, collection: str, *, once: bool = False) -> dict[str, str] | None:
        """What was noted with a collection; None: there is no such."""
        try:
            about = self._do("looking at a collection", "describe_collection", collection, once=once)
        except GoneError:
            return None
        return {str(name): str(value) for name, value in (about.get("properties") or {}).items()}

    def note(self, collection: str, properties: Mapping[str, str], *, once: bool = False) -> None:
        """Note something with a collection, for `properties`."""
        self._do("writing a note", "alter_collection_properties", collection, properties=dict(properties), once=once)

    def create(self, collection: str, bits: int, properties: Mapping[str, str], *, wait: bool = True) -> None:
        """A collection that is there afterwards, indexed and in memory, even if a former attempt came half way."""
        self._do("creating a collection", self._create, collection, bits, properties)
        if wait:  # comes back when the collection can be searched, which takes seconds
            more = {"replica_number": self.address.options["replicas"], "timeout": 4 * TIMEOUT}
            self._do("loading a collection", "load_collection", collection, **more)

    def _create(
        self, client: "MilvusClient", collection: str, bits: int, properties: Mapping[str, str], *, timeout: float
    ) -> None:
        from pymilvus import DataType

        options = self.address.options
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("code", DataType.BINARY_VECTOR, dim=8 * bytes_for(bits))  # Milvus takes multiples of 8
        schema.add_field("labels", DataType.ARRAY, element_type=DataType.INT64, max_capacity=MOST_LABELS)
        schema.add_field("tagged", DataType.BOOL)
        more: dict[str, Any] = {"num_shards": options["shards"], "timeout": timeout}
        if options["partitions"]:
            schema.add_field("part", DataType.INT64, is_partition_key=True)
            more["num_partitions"] = options["partitions"]
        if not client.has_collection(collection, timeout=timeout):
            client.create_collection(collection, schema=schema, properties=dict(properties), **more)
        index = client.prepare_index_params()
        index.add_index("code", metric_type="HAMMING", **self.index)
        client.create_index(collection, index, sync=False, timeout=timeout)
        client.load_collection(collection, replica_number=options["replicas"], _async=True, timeout=timeout)

    def drop(self, collection: str) -> None:
        self._do("dropping a collection", "drop_collection", collection)

    def flush(self, collection: str) -> None:
        """Write all rows into segments and have the index built over them."""
        self._do("flushing", "flush", collection, timeout=20 * TIMEOUT)

    def compact(self, collection: str) -> None:
        self._do("compacting", "compact", collection)

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────

    def upsert(self, collection: str, rows: Sequence[Row], *, once: bool = False) -> None:
        """Write rows under their ids. Done twice, it is as if done once."""
        for start in range(0, len(rows), BATCH):
            self._do("writing rows", _upsert, collection, list(rows[start : start + BATCH]), once=once)

    def delete(self, collection: str, ids: Sequence[int], *, once: bool = False) -> None:
        for start in range(0, len(ids), BATCH):
            self._do("deleting rows", "delete", collection, ids=list(ids[start : start + BATCH]), once=once)

    def query(self, collection: str, where: str, fields: Sequence[str], level: str, **more: Any) -> list[Row]:
        """The rows that fulfil a condition; with a limit those with the smallest ids, by id."""
        more |= {"reduce_stop_for_best": "False"}  # never stop before all segments have been asked for small ids
        more |= {"filter": where, "output_fields": list(fields), "consistency_level": level}
        return list(self._do("reading rows", "query", collection, **more))

    def walk(self, collection: str, fields: Sequence[str], level: str) -> Iterator[list[Row]]:
        """All rows, by id, in parts; a row written meanwhile may be among them or not."""
        after = 0
        while rows := self.query(collection, f"id > {after}", ("id", *fields), level, limit=BATCH):
            rows.sort(key=lambda row: int(row["id"]))
            yield rows
            after = rows[-1]["id"]

    def count(self, collection: str, where: str, level: str) -> int:
        return int(self.query(collection, where, ["count(*)"], level)[0]["count(*)"])

    def search(self, collection: str, code: bytes, limit: int, *, where: str, level: str, **params: int) -> list[Hit]:
        """(distance, id) of the nearest rows that fulfil a condition. Which of equal distance is up to Milvus."""
        how = {"metric_type": "HAMMING", "params": self.probing | params}
        more: dict[str, Any] = {"filter": where, "search_params": how, "consistency_level": level}
        found = self._do("searching", "search", collection, data=[code], limit=limit, **more)
        return [(round(hit["distance"]), int(hit["id"])) for hit in found[0]]

    # ── connection ───────────────────────────────────────────────────────────────────────────────────────

    def _do(self, what: str, call: str | Callable[..., Any], *args: Any, once: bool = False, **options: Any) -> Any:
        """The answer to a call of the client, or of a function with it: again while it is away, `once` an AwayError."""

        def work() -> Any:
            client = self._connected()
            request = getattr(client, call) if isinstance(call, str) else partial(call, client)
            return request(*args, **{"timeout": TIMEOUT} | options)

        place = self.address.shown
        try:
            if once:
                return work()
            return retry(work, passing=passing, what=what, server=place, patience=self.patience, told=self.told)
        except EngineError:
            raise
        except Exception as error:
            if once and passing(error):
                raise AwayError(f"{place}: {what} failed ({self.told(error)})") from error
            if explained := self._explained(what, error):
                raise explained from error
            raise

    def _connected(self) -> "MilvusClient":
        with self._lock:
            if self._client is None:
                self._client = _connect(self.address)
            return self._client

    def told(self, error: Exception) -> str:
        """What an error says that may pass."""
        text = _said(error)[1]
        if "loaded" in text and "not" in text:
            return "the server is still loading the collection"
        if "illegal connection params" in text:
            return "nobody answers there"
        hint = "; one that wants tls=true hangs up like that" if not self.address.options["tls"] else ""
        return f"{text}{hint}" if text.endswith("Socket closed") else text

    def _explained(self, what: str, error: Exception) -> EngineError | None:
        """What the server refuses, in words that name the way out."""
        code, text = _said(error)
        if code is None:  # a mistake of ours
            return None
        place, text = self.address.shown, text.splitlines()[0]
        said = f"{int(code) if isinstance(code, int) else code.name} {text}"
        row = next(row for row in ERRORS["refusals"] if re.search(row["words"], said))
        if row.get("gone"):
            return GoneError(f"{place}: {what} failed: {text}; {row['way']}")
        way = row["way"].format(ITS_HOSTS=ITS_HOSTS, database=self.address.database)
        return EngineError(f"{place}: {what} was refused ({text}); {way}")


def passing(error: Exception) -> bool:
    """Whether a later attempt may succeed."""
    import grpc
    from pymilvus.exceptions import ParamError

    # what pymilvus stumbled over the server has not seen, and the number of such errors means nothing
    if isinstance(error, ParamError) or isinstance(error.__cause__, UnicodeError | TypeError):
        return False
    if isinstance(error, grpc.FutureTimeoutError):
        return True
    code, text = _said(error)
    if isinstance(code, grpc.StatusCode):
        return not re.search(ERRORS["final"], f"{code.name} {text}")
    return code in ERRORS["passing_codes"] or (code is not None and bool(re.search(ERRORS["passing_words"], text)))


def _said(error: Exception) -> tuple[Any, str]:
    """The code and the text of an error of the server, many lines if it has them; no code if it is none."""
    import grpc
    from pymilvus.exceptions import MilvusException

    cause = error.__cause__
    if isinstance(error, MilvusException) and isinstance(cause, grpc.RpcError) and isinstance(cause, grpc.Call):
        error = cause  # "illegal connection params or server unavailable" does not say which
    if isinstance(error, MilvusException):
        return error.code, _details(str(error.message).strip() or str(error))
    if isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call):
        return error.code(), str(error.details() or error.code().name)
    return None, str(error)


def _details(text: str) -> str:
    """What went wrong, out of a failed request that was written down as a whole: `<_InactiveRpcError of RPC …`."""
    if not text.startswith("<_"):
        return text
    details = re.search(r'details = "(.+)"', text) or re.search(r"status = StatusCode\.(\w+)", text)
    return details[1] if details else text


def _connect(address: Address) -> "MilvusClient":
    address.show()
    if address.lent and not address.options["tls"] and address.host not in LOOPBACK:
        raise EngineError(
            f"{address.shown}: {PASSWORD} would go there in clear; add ?tls=true, or write it into the address yourself"
        )
    with needs_extra("milvus", "the searcher on Milvus"):
        from pymilvus import MilvusClient
    # what it would print about each failed request comes as an error, with a way out
    for name in ("pymilvus", "pymilvus.milvus_client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    ca, cert, key = (address.options[name] for name in ("ca", "cert", "key"))
    files = {"ca_pem_path": ca, "client_pem_path": cert, "client_key_path": key} if cert else {"server_pem_path": ca}
    place = f"{'https' if address.options['tls'] else 'http'}://{address.host or 'localhost'}:{address.port or 19530}"
    login = {"user": address.user, "password": address.password, "db_name": address.database}
    return MilvusClient(place, timeout=TIMEOUT, dedicated=True, **login, **files)


def _upsert(client: "MilvusClient", collection: str, rows: list[Row], *, timeout: float) -> None:
    """Send rows column by column, which pymilvus packs four times faster, but offers only under private names."""
    try:
        handler, context = client._get_connection(), client._generate_call_context()
    except AttributeError:
        client.upsert(collection, rows, timeout=timeout)
        return
    schema = client.describe_collection(collection, timeout=timeout)
    columns = [
        {"name": field["name"], "type": field["type"], "values": [row[field["name"]] for row in rows]}
        for field in schema["fields"]
    ]
    handler.upsert(collection, columns, timeout=timeout, context=context, schema=schema)
