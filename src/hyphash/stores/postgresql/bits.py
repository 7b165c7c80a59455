"""Codes on their way to and from PostgreSQL: bit j of a code is bit j of a `bit(n)`, in SQL its j-th 0 or 1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format

from hyphash.codes import Codes, bytes_for

if TYPE_CHECKING:
    from hyphash.stores.postgresql.server import Connection

BIT = 1560  # PostgreSQL's number for the type
HEADER, TRAILER = 19, 2  # bytes around the rows of a binary COPY
REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))  # the first bit: our least, their greatest


@dataclass(frozen=True)
class Code:
    """A packed code as a value in a statement."""

    packed: bytes
    bits: int


class CodeDumper(Dumper):
    """Code → bit(n): its length in bits, then the bytes."""

    format = Format.BINARY
    oid = BIT

    def dump(self, obj: Code) -> Buffer:
        return obj.bits.to_bytes(4, "big") + obj.packed.translate(REVERSED)


class CodeLoader(Loader):
    """bit(n) → packed bytes."""

    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)[4:].translate(REVERSED)


def register_codes(connection: "Connection") -> None:
    connection.adapters.register_dumper(Code, CodeDumper)
    connection.adapters.register_loader(BIT, CodeLoader)


def copied(tx: "Connection", select: str, columns: dict[str, str], values: Sequence[Any] = ()) -> NDArray[Any]:
    """The rows of a SELECT as an array of records; `columns` are names with numpy's types, each value of its size.

    Rows of one size are an array as they come: 2 bytes with the number of columns, then for each 4 with its size.
    """
    record = np.dtype(
        [("columns", ">i2"), *(pair for c, kind in columns.items() for pair in ((f"{c} size", ">i4"), (c, kind)))]
    )
    with tx.cursor().copy(f"COPY ({select}) TO STDOUT (FORMAT binary)".encode(), values or None) as copy:
        data = b"".join(copy)
    rows = np.frombuffer(data[HEADER : len(data) - TRAILER], record)
    for name in columns:
        assert (rows[f"{name} size"] == record[name].itemsize).all(), f"{name}: values of another size"
    return rows


def ids_copied(tx: "Connection", select: str, values: Sequence[Any] = ()) -> NDArray[np.int64]:
    """The ids of a SELECT that gives this one column."""
    return copied(tx, select, {"id": ">i8"}, values)["id"].astype(np.int64)


def codes_copied(
    tx: "Connection", select: str, bits: int, values: Sequence[Any] = ()
) -> tuple[NDArray[np.int64], Codes]:
    """Ids and codes of a SELECT that gives these two columns."""
    rows = copied(tx, select, {"id": ">i8", "code": f"({4 + bytes_for(bits)},)u1"}, values)
    packed = np.frombuffer(REVERSED, np.uint8)[rows["code"][:, 4:]]
    return rows["id"].astype(np.int64), Codes(np.ascontiguousarray(packed), bits)
