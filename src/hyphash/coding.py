"""Code theory: how far apart codewords can be, and how many label sets a length can tell apart. numpy only."""

import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from itertools import product
from math import comb

import numpy as np
from numpy.typing import NDArray

from hyphash.errors import ConfigError

Codebook = NDArray[np.int8]  # one ±1 codeword a row

_TABLE = tomllib.loads(files("hyphash").joinpath("coding.toml").read_text("utf-8"))
_GROWS_AT = [int(row, 16) for row in _TABLE["grows_at"]]  # of the best known linear codes, by their dimension
TABLE_BITS = 256
TABLE_DIMENSION = len(_GROWS_AT)
_SEARCHED_DIMENSION = 10  # up to here a linear code is searched for column by column


def dimension(classes: int) -> int:
    """k = max(1, ⌈log₂ C⌉): how many bits it takes to number the classes.

    >>> [dimension(c) for c in (1, 2, 3, 38, 64, 65)]
    [1, 1, 2, 6, 6, 7]
    """
    if classes < 1:
        raise ConfigError(f"there must be at least one class, not {classes}")
    return max(1, (classes - 1).bit_length())


def minimum_distance(bits: int, dimension: int) -> int:
    """d of the best known binary linear code of length `bits` with 2^`dimension` codewords.

    Beyond the table (256 bits, dimension 8) it is the distance that the Gilbert–Varshamov bound guarantees.
    With more dimensions than bits two codewords coincide; then d = 1, the least that tells two apart.

    >>> minimum_distance(12, 6), minimum_distance(48, 6), minimum_distance(3, 5)
    (4, 24, 1)
    """
    if bits < 1 or dimension < 1:
        raise ConfigError(f"a code has at least one bit and one dimension, not {bits} and {dimension}")
    if dimension > bits:
        return 1
    if in_table(bits, dimension):
        return (_GROWS_AT[dimension - 1] & ((1 << bits) - 1)).bit_count()
    return _gilbert_varshamov(bits, dimension)


def in_table(bits: int, dimension: int) -> bool:
    """Whether `minimum_distance` is that of a known code, rather than the Gilbert–Varshamov bound."""
    return bits <= TABLE_BITS and dimension <= TABLE_DIMENSION


def _gilbert_varshamov(bits: int, dimension: int) -> int:
    """The largest d with Σ_{i ≤ d−2} (n−1 choose i) < 2^(n−k): a linear code of that distance exists."""
    distance, ball = 1, 0
    while distance < bits:
        ball += comb(bits - 1, distance - 1)
        if ball >= 1 << (bits - dimension):
            break
        distance += 1
    return distance


def margin(*, classes: int, bits: int) -> float:
    """ζ(C, K) = 1 − 2d/K: the cosine between the nearest two of C well-spread codewords of K bits.

    >>> round(margin(classes=38, bits=12), 3), margin(classes=20, bits=16)
    (0.333, 0.0)
    """
    return 1 - 2 * minimum_distance(bits, dimension(classes)) / bits


def capacity(*, classes: int, bits: int) -> int:
    """Ω(K, C) of Theorem 1: how many sets of labels C hyperspheres in K dimensions can separate at most.

    (C−1 choose K) + Σ_{k ≤ K} (C choose k); it is all 2^C of them as long as C ≤ K + 1.

    >>> capacity(classes=13, bits=12) == 2**13, capacity(classes=14, bits=12) == 2**14
    (True, False)
    """
    if classes < 1 or bits < 1:
        raise ConfigError(f"there must be at least one class and one bit, not {classes} and {bits}")
    return comb(classes - 1, bits) + sum(comb(classes, k) for k in range(min(bits, classes) + 1))


def bits_for_all_label_sets(classes: int) -> int:
    """The least number of bits that can keep all 2^C label sets apart: C ≤ K + 1."""
    return max(1, classes - 1)


@cache
def codebook(*, classes: int, bits: int) -> Codebook:
    """C codewords of K signs, far from each other; the same ones for the same C and K, always.

    Up to 2K classes: rows of a Hadamard matrix and their negatives, K/2 apart, where a Paley, Sylvester or product
    matrix of order K exists. Otherwise the best of: longer Hadamard rows cut to K, and a linear code searched
    column by column. More classes than 2^K codewords means that some classes share theirs. Up to 256 bits and classes
    the words are at least two thirds as far apart as those of the best known linear code, and from ten classes on no
    bit is the same in all of them.

    >>> book = codebook(classes=20, bits=12)
    >>> book.shape, least_distance(book)
    ((20, 12), 6)
    """
    if classes < 1 or bits < 1:
        raise ConfigError(f"there must be at least one class and one bit, not {classes} and {bits}")
    found = list(_candidates(classes, bits))
    best = max(found, key=least_distance) if len(found) > 1 else found[0]  # the first of the best
    best.setflags(write=False)
    return best


def least_distance(book: Codebook) -> int:
    """The smallest Hamming distance between two codewords (their length if there is only one)."""
    signs = book.astype(np.float32)  # exact: the sums are small integers
    products = signs @ signs.T
    np.fill_diagonal(products, -book.shape[1])
    return int((book.shape[1] - products.max()) / 2)


def _candidates(classes: int, bits: int) -> Iterator[Codebook]:
    if classes <= 2 * bits:
        for order in range(bits, bits + 12):
            if (matrix := _hadamard(order)) is not None:
                yield _spread(matrix[:, :bits], classes)
                if order == bits:
                    return
    k = dimension(classes)
    if k > bits:
        every = np.array(list(product((1, -1), repeat=bits)), np.int8)
        yield np.resize(every, (classes, bits))
    elif k <= _SEARCHED_DIMENSION:
        yield _linear_code(k, bits)[:classes].copy()
    else:
        yield _drawn_code(k, bits, classes)


def _spread(rows: Codebook, classes: int) -> Codebook:
    """The first C of the rows and then their negatives, with signs that keep each bit about as often + as −.

    Row by row the sign is taken that makes the bits' sums smaller in the fourth power (in the second all signs are
    equal: the rows are orthogonal). Two classes take a row and its negative, the farthest two words there are.
    """
    if classes == 2:
        return np.stack([rows[-1], -rows[-1]])
    sums = np.zeros(rows.shape[1], np.int64)
    signs = np.ones((len(rows), 1), np.int8)
    for i, row in enumerate(rows[:classes]):
        if ((sums - row) ** 4).sum() < ((sums + row) ** 4).sum():
            signs[i] = -1
        sums += signs[i] * row
    rows = rows * signs
    return np.concatenate([rows, -rows])[:classes].copy()


def _linear_code(k: int, bits: int) -> Codebook:
    """All 2^k words of a linear code, its generator's columns chosen one by one.

    A new column helps the words it is odd on. The column taken is the one whose help reaches most of the words that
    are still light, light words counting geometrically more, so the lightest of all (the distance) grows steadily.
    """
    words = np.arange(1, 1 << k)
    odd = (np.bitwise_count(words[:, None] & words[None, :]) % 2).astype(np.float64)  # [column, word]
    weights = np.zeros(len(words))
    columns = []
    for _ in range(bits):
        lightness = np.exp2(weights.min() - weights)
        column = int(np.argmax(odd @ lightness))
        columns.append(words[column])
        weights += odd[column]
    return _words(np.array(columns), 1 << k)


def _drawn_code(k: int, bits: int, count: int) -> Codebook:
    """Words of a linear code of a dimension too large to search: unit columns, so that no two are equal, then any."""
    drawn = np.random.default_rng(0).integers(1, 1 << k, bits - k)
    return _words(np.concatenate([1 << np.arange(k), drawn]), count)


def _words(columns: NDArray[np.int64], count: int) -> Codebook:
    """The first words of the linear code whose generator has these columns, each column a number of k bits."""
    parity = np.bitwise_count(np.arange(count)[:, None] & columns[None, :]) % 2
    signs: Codebook = (1 - 2 * parity.astype(np.int8)).astype(np.int8)
    return signs


@cache
def _hadamard(order: int) -> Codebook | None:
    """The product of two smaller ones, or Paley's first or second construction; None for an order that has neither."""
    if order == 1:
        return np.ones((1, 1), np.int8)
    if order == 2:
        return np.array([[1, 1], [1, -1]], np.int8)
    if order % 4:
        return None
    for small in range(2, int(order**0.5) + 1):
        if order % small == 0:
            left, right = _hadamard(small), _hadamard(order // small)
            if left is not None and right is not None:
                return np.kron(left, right)
    first, second = _prime_power(order - 1), _prime_power(order // 2 - 1)
    field = first or (second if order % 8 == 4 else None)  # fields of 3 and of 1 modulo 4 elements
    return _paley(*field) if field else None


def _prime_power(q: int) -> tuple[int, int] | None:
    """(p, m) with q = pᵐ, for m ≤ 3."""
    for m in (1, 2, 3):
        p = round(q ** (1 / m))
        if p > 1 and p**m == q and all(p % i for i in range(2, int(p**0.5) + 1)):
            return p, m
    return None


def _paley(p: int, m: int) -> Codebook:
    """Paley's Hadamard matrix over the field of q = pᵐ elements: order q + 1 if q ≡ 3, 2(q + 1) if q ≡ 1 (mod 4)."""
    q = p**m
    jacobsthal = _quadratic_characters(p, m)  # χ(a − b)
    inner = np.zeros((q + 1, q + 1), np.int8)
    inner[0, 1:] = 1
    inner[1:, 0] = 1 if q % 4 == 1 else -1
    inner[1:, 1:] = jacobsthal
    eye = np.eye(q + 1, dtype=np.int8)
    if q % 4 == 3:
        return inner + eye
    ones, other = np.array([[1, 1], [1, -1]], np.int8), np.array([[1, -1], [-1, -1]], np.int8)
    return np.kron(inner, ones) + np.kron(eye, other)


def _quadratic_characters(p: int, m: int) -> NDArray[np.int8]:
    """The table χ(a − b) over all a, b of the field of pᵐ elements: 0, or ±1 as a − b is a square or not."""
    elements = list(product(range(p), repeat=m))  # polynomials in x, constant term first
    modulus = np.array(_irreducible(p, m))
    squares = {_square(a, modulus, p) for a in elements if any(a)}
    differences = ([tuple((s - t) % p for s, t in zip(a, b, strict=True)) for b in elements] for a in elements)
    return np.array([[0 if not any(d) else 1 if d in squares else -1 for d in row] for row in differences], np.int8)


def _irreducible(p: int, m: int) -> tuple[int, ...]:
    """Low coefficients of a monic polynomial of degree m ≤ 3 without a root modulo p, hence irreducible."""
    if m == 1:
        return (0,)
    every = product(range(p), repeat=m)  # one of them at least is irreducible, whatever the field
    return next(low for low in every if all((x**m + sum(c * x**i for i, c in enumerate(low))) % p for x in range(p)))


def _square(a: tuple[int, ...], modulus: NDArray[np.int64], p: int) -> tuple[int, ...]:
    m, result = len(modulus), np.convolve(a, a)
    for degree in range(2 * m - 2, m - 1, -1):  # xᵐ = −(low coefficients)
        result[degree - m : degree] -= result[degree] * modulus
    return tuple((result[:m] % p).tolist())
