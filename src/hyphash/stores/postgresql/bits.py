"""Codes on their way to and from PostgreSQL: bit j of a code is bit j of a `bit(n)`, in SQL its j-th 0 or 1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format

if TYPE_CHECKING:
    from hyphash.stores.postgresql.server import Connection

BIT = 1560  # PostgreSQL's number for the type
PREFIX = 4  # bytes before those of a bit(n): its length in bits
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
        return obj.bits.to_bytes(PREFIX, "big") + obj.packed.translate(REVERSED)


class CodeLoader(Loader):
    """bit(n) → packed bytes."""

    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)[PREFIX:].translate(REVERSED)


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
