"""Codes: packed binary codes of any length, and the one definition of a bit (output > 0)."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hyphash.errors import CodesError
from hyphash.files import write_atomically

MAX_BITS = 256
FORMAT = "hyphash-codes"
VERSION = "1"


class Codes:
    """`len(codes)` codes of `bits` bits each, packed little-endian into ⌈bits / 8⌉ bytes a code.

    Bit j of a code is bit j % 8 of byte j // 8; what is left of the last byte is zero.

    >>> codes = Codes.from_outputs([[0.3, -1.0, 0.0], [-0.1, 2.0, 5.0]])
    >>> codes.bits, len(codes), codes.unpacked().astype(int).tolist()
    (3, 2, [[1, 0, 0], [0, 1, 1]])
    >>> codes.distances(codes).tolist()
    [[0, 3], [3, 0]]
    """

    __slots__ = ("bits", "packed")

    def __init__(self, packed: NDArray[np.uint8], bits: int) -> None:
        if not 1 <= bits <= MAX_BITS:
            raise CodesError(f"a code has 1 to {MAX_BITS} bits, not {bits}")
        if packed.dtype != np.uint8 or packed.ndim != 2 or packed.shape[1] != bytes_for(bits):
            raise CodesError(
                f"{bits}-bit codes are packed as uint8 of shape (n, {bytes_for(bits)}), "
                f"not {packed.dtype} of shape {packed.shape}"
            )
        if bits % 8 and len(packed) and (packed[:, -1] >> (bits % 8)).any():
            raise CodesError(f"the bits after the last of {bits} must be zero: these codes are damaged")
        self.bits = bits
        self.packed = packed

    @classmethod
    def from_bits(cls, bits: ArrayLike) -> "Codes":
        """Codes from an (n, bits) array of booleans, or of zeros and ones."""
        array = np.asarray(bits)
        if array.ndim != 2:
            raise CodesError(f"bits come as a table of one row a photo, not of shape {array.shape}")
        if array.dtype != np.bool_:
            if not np.isin(array, (0, 1)).all():
                raise CodesError("bits are true or false; for real outputs use Codes.from_outputs")
            array = array.astype(np.bool_)
        return cls(np.packbits(array, axis=1, bitorder="little"), array.shape[1])

    @classmethod
    def from_outputs(cls, outputs: ArrayLike) -> "Codes":
        """Codes from an (n, bits) array of real outputs: a bit is `output > 0`."""
        return cls.from_bits(numbers(outputs) > 0)

    @classmethod
    def empty(cls, bits: int) -> "Codes":
        return cls(np.empty((0, max(bytes_for(bits), 0)), np.uint8), bits)

    @classmethod
    def concatenate(cls, parts: Iterable["Codes"]) -> "Codes":
        parts = list(parts)
        lengths = {part.bits for part in parts}
        if len(lengths) != 1:
            raise CodesError(f"only codes of one length can be joined, not of {sorted(lengths)} bits")
        return cls(np.concatenate([part.packed for part in parts]), lengths.pop())

    def unpacked(self) -> NDArray[np.bool_]:
        """The codes as an (n, bits) table of booleans."""
        return np.unpackbits(self.packed, axis=1, count=self.bits, bitorder="little").view(np.bool_)

    def first(self, bits: int) -> "Codes":
        """The first so many bits of every code."""
        packed = self.packed[:, : bytes_for(bits)].copy()
        packed[:, -1] &= (1 << (bits - 1) % 8 + 1) - 1
        return Codes(packed, bits)

    def signs(self) -> NDArray[np.int8]:
        """The codes as an (n, bits) table of −1 and +1."""
        return self.unpacked().view(np.int8) * np.int8(2) - np.int8(1)

    def distances(self, other: "Codes") -> NDArray[np.int64]:
        """Hamming distances, (len(self), len(other)). For many codes use `hyphash.hamming`."""
        self.require_length(other.bits)
        differing = self.packed[:, None, :] ^ other.packed[None, :, :]
        counts: NDArray[np.int64] = np.bitwise_count(differing).sum(axis=2, dtype=np.int64)
        return counts

    def require_length(self, bits: int) -> None:
        if self.bits != bits:
            raise CodesError(f"codes of {self.bits} and of {bits} bits cannot be compared")

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, in one step."""
        from safetensors.numpy import save_file

        header = {"format": FORMAT, "version": VERSION, "bits": str(self.bits)}
        tensors = {"packed": np.ascontiguousarray(self.packed)}
        write_atomically(Path(path), lambda draft: save_file(tensors, draft, metadata=header))

    @classmethod
    def load(cls, path: str | Path) -> "Codes":
        from safetensors import SafetensorError, safe_open

        if not Path(path).is_file():
            raise CodesError(f"{path}: there is no such file of codes")
        try:
            with safe_open(path, framework="numpy") as file:
                header = file.metadata() or {}
                if header.get("format") != FORMAT:
                    raise CodesError(f"{path}: not a file of hyphash codes")
                if header.get("version") != VERSION:
                    raise CodesError(
                        f"{path}: written in format {header.get('version')}, this hyphash reads {VERSION}; "
                        "install the version that wrote it, or encode the photos again"
                    )
                packed, bits = file.get_tensor("packed"), header.get("bits", "no")
        except (SafetensorError, TypeError, OSError) as error:
            raise CodesError(f"{path}: damaged file of codes ({error}); encode the photos again") from error
        try:
            return cls(packed, int(bits))
        except (CodesError, ValueError) as error:
            raise CodesError(f"{path}: damaged file of codes ({error}); encode the photos again") from error

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, rows: Any) -> "Codes":
        """Some of the codes: an index, a slice, a mask or an array of indices. Always Codes."""
        if isinstance(rows, int | np.integer):
            if not -len(self) <= rows < len(self):
                raise IndexError(f"code {rows} of {len(self)}")
            rows = slice(int(rows), int(rows) + 1 or None)
        return Codes(self.packed[rows], self.bits)

    def __eq__(self, other: object) -> bool:
        """Whether all codes are equal, one by one."""
        return isinstance(other, Codes) and self.bits == other.bits and np.array_equal(self.packed, other.packed)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Codes({len(self)} × {self.bits} bits)"


def is_fingerprint(text: str) -> bool:
    """Whether a text can be the fingerprint of a hasher, by which its codes are known, and its folder is called.

    >>> is_fingerprint("0123456789abcdef"), is_fingerprint("../elsewhere")
    (True, False)
    """
    return re.fullmatch("[0-9a-f]{16}", text) is not None


def numbers(outputs: ArrayLike) -> NDArray[Any]:
    """Real outputs as an array; CodesError where they are no table, or some are no numbers."""
    array = np.asarray(outputs)
    if array.ndim != 2 or not array.shape[1]:
        raise CodesError(f"outputs come as a table of one row a photo, not of shape {array.shape}")
    if np.isnan(array).any():
        raise CodesError("some outputs are not numbers (NaN); the network has diverged")
    return array


def bytes_for(bits: int) -> int:
    """How many bytes hold one code.

    >>> bytes_for(12)
    2
    """
    return -(-bits // 8)
