"""Codes and photos that the tests of stores and searchers draw, and where those are that they run over."""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hyphash.codes import Codes
from hyphash.stores import Facts, Photo, Store

BITS = 20
ME = "0123456789abcdef"  # fingerprints: the hasher in use, and others
OTHER, ANOTHER, SECOND, THIRD = (f"{number:016x}" for number in range(1, 5))

Address = Callable[[pytest.FixtureRequest], str]


def _server(name: str, **options: Any) -> Address:
    """A new place on a server that the first test which needs it starts."""
    if name.startswith("milvus"):
        return lambda request: request.getfixturevalue("milvus_server").ready(name, BITS, **options)
    return lambda request: request.getfixturevalue("postgres_server").url(scheme=name, **options)


def _plain(name: str) -> Address:
    return lambda _: name


# where each store is; one that is registered and not named here is asked for by its name
STORES: dict[str, Address] = {
    "sqlite": _plain("sqlite"),
    "postgresql": _server("postgresql"),
    "postgresql partitioned": _server("postgresql", partitions=3),
}
# the store that each searcher goes with in its own suite, and where the searcher is
SEARCHERS: dict[str, tuple[str, Address]] = {
    "local": ("sqlite", _plain("local")),
    "faiss": ("sqlite", _plain("faiss")),
    "faiss-approximate": ("sqlite", _plain("faiss-approximate")),
    "postgresql": ("postgresql", _plain("postgresql")),
    "postgresql-approximate": ("postgresql", _plain("postgresql-approximate")),
    "milvus": ("sqlite", _server("milvus")),
    "milvus-approximate": ("sqlite", _server("milvus-approximate", lists=8, probes=8)),
}
# stores and searchers go together in any pair; those in PostgreSQL only with the store whose tables they look into
PAIRS = [
    (store, searcher)
    for store in ("sqlite", "postgresql", "postgresql partitioned")
    for searcher in ("local", "faiss", "postgresql", "postgresql-approximate", "milvus")
    if (store, searcher) in (("postgresql partitioned", "local"), ("postgresql partitioned", "postgresql"))
    or (store == "sqlite" and not searcher.startswith("postgresql"))
    or store == "postgresql"
]


def random_codes(count: int, bits: int = BITS, *, seed: int = 0, distinct: int | None = None) -> Codes:
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 2, (distinct or count, bits))
    return Codes.from_bits(table[rng.integers(0, len(table), count)] if distinct else table)


def trained_like(count: int, *, bits: int, seed: int = 0) -> Codes:
    """Codes as a trained hasher makes them: around the places of label sets, 5 % of the bits astray."""
    centres = np.random.default_rng(99).integers(0, 2, (200, bits), np.uint8)
    rng = np.random.default_rng(seed)
    return Codes.from_bits(centres[rng.integers(0, 200, count)] ^ (rng.random((count, bits)) < 0.05))


def twos_and_threes(i: int) -> tuple[str, ...]:
    """Whether a number is divisible by 2 and by 3."""
    return tuple(word for word, n in (("three", 3), ("two", 2)) if i % n == 0)


def described(i: int) -> dict[str, Any]:
    """What cameras wrote into photos: nobody has looked at every fifth, every third does not say where it was taken."""
    if i % 5 == 4:
        return {}
    place = {"latitude": (i % 120) - 60 + 0.125, "longitude": 179.5 - i % 360} if i % 3 else {}
    return {
        "taken": None if i % 7 == 6 else 86_400 * 40 * i - 10**8,
        "camera": ("", "Canon EOS 80D", "Pixel 7")[i % 4 % 3],
    } | place


def photos_with(
    codes: Codes, *, labels: Callable[[int], tuple[str, ...]] = lambda _: (), start: int = 0
) -> list[Photo]:
    return [
        Photo(
            path=f"/photos/{start + i:06}.jpg",
            facts=Facts(
                content=hashlib.sha256(f"{start + i}".encode()).hexdigest(), size=1000 + i, modified=i + 1, width=640,
                height=480, thumbnail_hash=i.to_bytes(8, "little"), **described(start + i),
            ),
            code=row.tobytes(),
            labels=labels(i),
            given=labels(i),
        )
        for i, row in enumerate(codes.packed)
    ]  # fmt: skip


def even_and_odd(codes: Codes, *, start: int = 0) -> list[Photo]:
    """Photos numbered from `start`, labelled `even`, then `odd` and `three`, then not at all, by turns."""
    words: list[tuple[str, ...]] = [("even",), ("odd", "three"), ()]
    return photos_with(codes, labels=lambda i: words[(start + i) % 3], start=start)


def fill(store: Store, count: int, *, distinct: int | None = None, seed: int = 0) -> tuple[list[int], Codes]:
    """Photos whose labels say whether their number is divisible by 2 and by 3."""
    codes = random_codes(count, seed=seed, distinct=distinct)
    return store.upsert(photos_with(codes, labels=twos_and_threes), fingerprint=ME), codes
