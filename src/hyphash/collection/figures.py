"""A collection in figures: counts, the balance of bits, labels that go together, a flat map."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.collection.records import Stats
from hyphash.searchers import Searcher, recall
from hyphash.stores import Store, gathered

if TYPE_CHECKING:
    from hyphash.collection import Collection

TELLING = 100  # photos by which one can tell what is usual


def stats(collection: "Collection") -> Stats:
    store = collection.store
    state = store.state()
    ones, photos = np.zeros(state.bits, np.int64), 0
    different: NDArray[np.void] = np.empty(0, np.void)
    for ids, codes in store.scan():
        photos += len(ids)
        ones += codes.unpacked().sum(axis=0)
        rows = np.unique(np.ascontiguousarray(codes.packed).view(np.dtype((np.void, codes.packed.shape[1]))))
        different = np.unique(np.concatenate([different, rows])) if len(different) else rows
    files = (path for path in collection.folder.rglob("*") if path.is_file())
    return Stats(
        photos=photos,
        untagged=store.count(untagged=True),
        labels=store.labels(),
        bits=state.bits,
        distinct=len(different),
        balance=tuple((ones / max(photos, 1)).tolist()),
        fingerprint=state.fingerprint,
        commit=state.commit,
        bytes=sum(path.stat().st_size for path in files) + store.bytes_elsewhere(),
    )


def recalls(searcher: Searcher, ks: Sequence[int], queries: int) -> dict[int, float]:
    """recall@k for each k; the queries are photos of the collection, spread evenly over it."""
    store = searcher.store
    chosen, start = [Codes.empty(store.state().bits)], 0
    rows = np.unique(np.linspace(0, store.count() - 1, queries).astype(np.int64))
    for ids, codes in store.scan():
        chosen.append(codes[rows[(rows >= start) & (rows < start + len(ids))] - start])
        start += len(ids)
    asked = Codes.concatenate(chosen)
    return {k: recall(searcher, asked, k) for k in ks}


def usual_distance(store: Store) -> int | None:
    """How far photos lie from their nearest: 99 of 100 no farther. None where they are too few to tell.

    Of up to 100,000 photos, one by one held out; among more a nearest one is rather nearer.
    """
    codes = store.read(lambda session: session.derived(session.state().in_use))[1]
    if len(codes) < TELLING:
        return None
    rows = np.unique(np.linspace(0, len(codes) - 1, 500).astype(np.int64))
    nearest = hamming.search(codes[rows], codes, 2)[0][:, 1]  # the first is the photo itself
    return int(np.quantile(nearest, 0.99, method="higher"))


def cooccurrence(store: Store, labels: Sequence[str]) -> NDArray[np.int64]:
    """How many photos carry both labels; the diagonal counts those with one."""
    table = np.zeros((len(labels), len(labels)), np.int64)
    for i, one in enumerate(labels):
        for j, other in enumerate(labels[: i + 1]):
            table[i, j] = table[j, i] = store.count(carrying=[one, other])
    return table


def flat_map(store: Store, limit: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Codes projected on the two directions in which they spread most (principal components), scaled to ±1."""
    every = max(1, -(-store.count() // limit))
    parts = ((ids[::every], codes[::every]) for ids, codes in store.scan())
    ids, codes = gathered(parts, store.state().bits)
    signs = codes.signs().astype(np.float32)
    signs -= signs.mean(axis=0) if len(signs) else 0
    _, directions = np.linalg.eigh(signs.T @ signs)
    axes = np.zeros((signs.shape[1], 2), np.float32)
    axes[:, : min(2, signs.shape[1])] = directions[:, ::-1][:, :2]
    axes *= np.where(axes.sum(axis=0) < 0, -1, 1)  # either sign is right: always take the same
    points = signs @ axes
    points /= max(float(np.abs(points).max(initial=0)), 1e-12)
    return ids, points.astype(np.float32)
