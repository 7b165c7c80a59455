"""The books of the collections on a Milvus server: which hasher, which commit, how many photos carry a label.

Milvus has no transactions, so a commit is made of steps that can be repeated (see `Journal`), the last of which writes
the ledger. The ledgers of all collections of a database lie in one small collection, `hyphash`.
"""

import json
import os
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from hyphash.engines.milvus.rows import quoted
from hyphash.engines.milvus.server import Field, GoneError, Layout, Row, Server
from hyphash.errors import CollectionError
from hyphash.files import disk_errors, write_atomically

BOOKS = "hyphash"
FORMAT = 1
LONGEST_NAME = 400  # bytes of a writer's name that are shown
MANY = 4000  # ids in one entry: it must stay below 64 kB
REMEMBERED = 1000  # commits that `verify` compares photos with

LAYOUT = Layout(
    fields=(
        Field("key", "VARCHAR", {"max_length": 1024}),
        Field("collection", "VARCHAR", {"max_length": 255}),
        Field("kind", "VARCHAR", {"max_length": 16}),
        Field("value", "JSON", {}),
        Field("nothing", "BINARY_VECTOR", {"dim": 8}),  # Milvus wants something to search for
    ),
    vector="nothing",
    index="BIN_FLAT",
    build={},
)


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """What is known of a collection at one commit."""

    collection: str
    fingerprint: str
    bits: int
    generation: int = 1  # of codes: one for each hasher that the collection has had
    partitions: int = 0
    commit: int = 0
    stamp: str = ""  # of the commit, random
    last: int = 0  # id given
    pruned: int = 0  # removals are known since this commit
    coming: str = ""  # fingerprint of the hasher that codes are prepared for
    coming_bits: int = 0
    format: int = FORMAT
    labels: Mapping[str, int] = field(default_factory=dict, compare=False)  # how many photos carry each
    leases: Mapping[str, float] = field(default_factory=dict, compare=False)  # who may write until when

    @property
    def photos(self) -> str:
        """The collection with the photos and the codes in use."""
        return f"{self.collection}_{self.generation}"

    @property
    def next_photos(self) -> str:
        """The collection for the codes of the coming hasher."""
        return f"{self.collection}_{self.generation + 1}"

    def entry(self) -> Row:
        facts = {name: value for name, value in asdict(self).items() if name not in ("labels", "leases", "collection")}
        return entry(self.collection, "state", "", facts)


def read(server: Server, collection: str, level: str) -> Ledger:
    """The ledger as it is now."""
    ledger = find(server, collection, level)
    if ledger is None:
        server.require_database()
        raise CollectionError(
            f"{server.address.shown}: there is no collection {collection!r}; index the photos into a new one, "
            "or name another with ?collection=…"
        )
    return ledger


def find(server: Server, collection: str, level: str) -> Ledger | None:
    """The ledger of a collection, if there is such a one."""
    where = f'collection == {json.dumps(collection)} and kind in ["state", "label", "writer"]'
    try:
        rows = server.query(BOOKS, where, ["key", "kind", "value"], level)
    except GoneError:
        return None
    entries: dict[str, dict[str, Any]] = {"state": {}, "label": {}, "writer": {}}
    for row in rows:
        entries[row["kind"]][row["key"].split("/", 2)[2]] = _value(row)
    if not entries["state"]:
        return None
    facts = entries["state"][""]
    if facts["format"] > FORMAT:
        raise CollectionError(
            f"{server.address.shown}: {collection!r} was written by a newer hyphash (format {facts['format']}, this "
            f"one reads {FORMAT}); run: pip install -U hyphash"
        )
    labels = {label: value["photos"] for label, value in entries["label"].items() if value["photos"]}
    leases = {who: value["until"] for who, value in entries["writer"].items()}
    return Ledger(collection=collection, labels=labels, leases=leases, **facts)


def _value(row: Row) -> dict[str, Any]:
    return row["value"] if isinstance(row["value"], dict) else json.loads(row["value"])


def entry(collection: str, kind: str, name: str, value: Mapping[str, Any]) -> Row:
    return {
        "key": f"{collection}/{kind}/{name}",
        "collection": collection,
        "kind": kind,
        "value": dict(value),
        "nothing": b"\0",
    }


def label_entries(ledger: Ledger, more: Mapping[str, int]) -> list[Row]:
    """The new counts of labels that more (or fewer) photos carry now."""
    return [
        entry(ledger.collection, "label", label, {"photos": ledger.labels.get(label, 0) + change})
        for label, change in more.items()
        if change
    ]


def removal_entries(ledger: Ledger, ids: list[int]) -> list[Row]:
    """A note of photos that went, for those who keep codes in memory."""
    parts = {start: ids[start : start + MANY] for start in range(0, len(ids), MANY)}
    return [
        entry(ledger.collection, "removed", f"{ledger.commit}-{start}", {"commit": ledger.commit, "ids": some})
        for start, some in parts.items()
    ]


def commit_entry(collection: str, number: int, stamp: str, who: str, *, kept: bool = False) -> Row:
    """A note of a commit, or of the photos of one that was not finished and that another has `kept`."""
    value = {"commit": number, "stamp": stamp, "who": who, "kept": kept}
    return entry(collection, "commit", f"{number}-{stamp}", value)


def commits(server: Server, collection: str, level: str) -> list[dict[str, Any]]:
    """The last commits by number: `commit`, `stamp`, `who`, `kept`."""
    where = f'collection == {json.dumps(collection)} and kind == "commit"'
    values = [_value(row) for row in server.query(BOOKS, where, ["value"], level)]
    return sorted(values, key=lambda value: (value["commit"], value["stamp"]))


def forget_commits(server: Server, ledger: Ledger, level: str) -> None:
    """Now and then forget commits of long ago, unless two have one number: that is for people to see."""
    if ledger.commit % REMEMBERED:
        return
    known = commits(server, ledger.collection, level)
    numbers = Counter(value["commit"] for value in known if not value["kept"])
    old = [v for v in known if v["commit"] <= ledger.commit - REMEMBERED and numbers[v["commit"]] < 2]
    server.delete(BOOKS, [f"{ledger.collection}/commit/{v['commit']}-{v['stamp']}" for v in old])


def removed_since(server: Server, ledger: Ledger, commit: int, level: str) -> Iterable[int]:
    where = f'collection == {json.dumps(ledger.collection)} and kind == "removed" and value["commit"] > {commit}'
    for row in server.query(BOOKS, where, ["value"], level):
        yield from _value(row)["ids"]


def forget(server: Server, collection: str, *, kinds: Iterable[str], level: str) -> None:
    """Delete the entries of these kinds."""
    where = f"collection == {json.dumps(collection)} and kind in {quoted(kinds)}"
    server.delete(BOOKS, [row["key"] for row in server.query(BOOKS, where, ["key"], level)])


def with_labels(ledger: Ledger, more: Mapping[str, int]) -> Ledger:
    labels = {label: ledger.labels.get(label, 0) + more.get(label, 0) for label in {*ledger.labels, *more}}
    return replace(ledger, labels={label: photos for label, photos in labels.items() if photos})


@dataclass(frozen=True)
class Step:
    """Rows to write into a collection, or keys to delete from it."""

    collection: str
    rows: tuple[Row, ...] = ()
    keys: tuple[Any, ...] = ()

    def do(self, server: Server, *, until: float) -> None:
        """Write and delete; nothing is begun after `until`, by this machine's clock."""
        server.upsert(self.collection, self.rows, until=until)
        server.delete(self.collection, self.keys, until=until)


@dataclass(frozen=True)
class Journal:
    """A commit before it is made: repeating its steps, from whichever one, leads to the same end."""

    commit: int
    stamp: str
    steps: tuple[Step, ...]

    def save(self, path: Path) -> None:
        """On the disk before the first step is taken."""
        content = {"commit": self.commit, "stamp": self.stamp, "steps": [vars(step) for step in self.steps]}
        write_atomically(path, json.dumps(content, default=lambda data: {"hex": data.hex()}))

    @classmethod
    def load(cls, path: Path) -> "Journal | None":
        """The commit that was not finished, if there is one."""
        with disk_errors(path):
            if not path.exists():
                return None
            content = json.loads(path.read_text(), object_hook=_bytes)
        steps = [Step(step["collection"], tuple(step["rows"]), tuple(step["keys"])) for step in content["steps"]]
        return cls(content["commit"], content["stamp"], tuple(steps))

    def do(self, server: Server, *, until: float) -> None:
        for step in self.steps:
            step.do(server, until=until)


def _bytes(value: dict[str, Any]) -> Any:
    return bytes.fromhex(value["hex"]) if set(value) == {"hex"} else value


def whoami(folder: Path) -> str:
    """The name of a writer: processes that share a folder take turns by a lock in it, and share the lease.

    Containers may share host name and path, so the number of the folder on its disk is part of it.
    """
    name = f"{socket.gethostname()}:{os.path.realpath(folder)}"
    mark = blake2b(f"{name}:{Path(folder).stat().st_ino}".encode(errors="surrogateescape"), digest_size=6).hexdigest()
    shown = name.encode(errors="replace")[:LONGEST_NAME].decode(errors="ignore")
    return f"{shown} ({mark})"
