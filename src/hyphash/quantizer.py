"""Product quantiser: outputs are cut into pieces, each piece is stored as the number of its nearest codeword.

numpy only. Codes made here are not compared by Hamming distance but with `tables` and `hamming.search_tables`.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hyphash.codes import Codes, bytes_for, numbers
from hyphash.errors import CodesError


def subspace_bits(bits: int) -> list[int]:
    """How `bits` are shared out: one subspace a byte, the last has what is left.

    >>> subspace_bits(12), subspace_bits(48)
    ([8, 4], [8, 8, 8, 8, 8, 8])
    """
    count = bytes_for(bits)
    return [8] * (count - 1) + [bits - 8 * (count - 1)]


class Quantizer:
    """`codewords` is (subspaces, 256, width): subspace j has 2^b of them, b its share of the bits.

    A code's byte j is the number of the nearest codeword in subspace j. In a subspace of fewer than 8 bits
    only the first 2^b codewords count, whatever stands in the other rows.

    >>> import numpy as np
    >>> quantizer = Quantizer(np.array([[[0.0, 0.0], [1.0, 1.0]]]), bits=1)
    >>> quantizer.encode([[0.9, 0.7], [-1.0, 0.2]]).packed.tolist()
    [[1], [0]]
    """

    def __init__(self, codewords: NDArray[np.floating], bits: int) -> None:
        self.bits = bits
        self.sizes = [2**b for b in subspace_bits(bits)]
        count, most = len(self.sizes), max(self.sizes)
        if codewords.ndim != 3 or len(codewords) != count or codewords.shape[1] < most:
            shape = f"({count}, {most}, width), not {codewords.shape}"
            raise CodesError(f"a quantiser of {bits} bits has codewords of shape {shape}")
        self.codewords = np.ascontiguousarray(codewords, np.float32)

    def encode(self, outputs: ArrayLike) -> Codes:
        """The codes of real outputs, (n, subspaces · width)."""
        nearest = self.tables(outputs).argmin(axis=2)
        return Codes(nearest.astype(np.uint8), self.bits)

    def decode(self, codes: Codes) -> NDArray[np.float32]:
        """The point that each code stands for, (n, subspaces · width)."""
        codes.require_length(self.bits)
        pieces = self.codewords[np.arange(len(self.sizes)), codes.packed]  # (n, subspaces, width)
        return pieces.reshape(len(codes), -1)

    def tables(self, outputs: ArrayLike) -> NDArray[np.float32]:
        """Squared distances of outputs to codewords, (n, subspaces, 256), for `hamming.search_tables`.

        Summed over the bytes of a code they are the squared distance between the real query and the point
        that the code stands for (the asymmetric distance). Numbers that no code can hold are infinitely far.
        """
        values = np.asarray(numbers(outputs), np.float32)
        subspaces, _, width = self.codewords.shape
        if values.shape[1] != subspaces * width:
            raise CodesError(f"this quantiser takes outputs of shape (n, {subspaces * width}), not {values.shape}")
        pieces = values.reshape(len(values), subspaces, width)
        tables = np.full((len(pieces), len(self.sizes), 256), np.inf, np.float32)
        for j, size in enumerate(self.sizes):
            words = self.codewords[j, :size]
            lengths = np.square(pieces[:, j]).sum(1)[:, None] + np.square(words).sum(1)
            tables[:, j, :size] = np.maximum(lengths - 2 * pieces[:, j] @ words.T, 0)
        return tables
