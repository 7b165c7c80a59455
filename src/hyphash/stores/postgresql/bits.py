"""Codes on their way to and from PostgreSQL: bit j of a code is bit j of a `bit(n)`, in SQL its j-th 0 or 1."""

from dataclasses import dataclass

from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format

BIT = 1560  # PostgreSQL's number for the type
PREFIX = 4  # bytes before those of a bit(n): its length in bits
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
