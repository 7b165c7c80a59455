"""A collection in figures: counts, the balance of bits, labels that go together, a flat map."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.collection.records import Match, Month, Ranking, Stats, Timeline
from hyphash.errors import counted, did_you_mean
from hyphash.searchers import Selected, recall
from hyphash.searchers.filters import EVERYTHING, Filter
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
        photos=photos, untagged=store.count(untagged=True), labels=store.labels(), bits=state.bits,
        distinct=len(different), balance=tuple((ones / max(photos, 1)).tolist()), fingerprint=state.fingerprint,
        commit=state.commit, bytes=sum(path.stat().st_size for path in files) + store.bytes_elsewhere(),
    )  # fmt: skip


def recalls(collection: "Collection", *ks: int, queries: int = 100) -> dict[int, float]:
    """For each k the share of the k nearest that the engine finds, of photos spread evenly over the collection."""
    store = collection.store
    chosen, start = [Codes.empty(store.state().bits)], 0
    rows = np.unique(np.linspace(0, store.count() - 1, queries).astype(np.int64))
    for ids, codes in store.scan():
        chosen.append(codes[rows[(rows >= start) & (rows < start + len(ids))] - start])
        start += len(ids)
    asked = Codes.concatenate(chosen)
    return {k: recall(collection.searcher, asked, k) for k in ks}


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


def cooccurrence(collection: "Collection", labels: Sequence[str]) -> NDArray[np.int64]:
    """How many photos carry both labels, (labels, labels); the diagonal counts those with one."""
    table = np.zeros((len(labels), len(labels)), np.int64)
    for i, one in enumerate(labels):
        for j, other in enumerate(labels[: i + 1]):
            table[i, j] = table[j, i] = collection.store.count(carrying=[one, other])
    return table


def flat_map(collection: "Collection", limit: int = 5000) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Up to `limit` photos (ids) and their places on a flat map of the codes, (n, 2).

    Codes are projected on the two directions in which they spread most (principal components), scaled to ±1.
    """
    store = collection.store
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


def timeline(collection: "Collection", only: Filter = EVERYTHING, *, among: Iterable[Match] | None = None) -> Timeline:
    """How many photos were taken in each month: of all that a filter allows, or of some that were found."""
    selected = collection.searcher.select(only)
    if among is not None:
        found = np.isin(selected.ids, [match.id for match in among])
        selected = Selected(selected.ids[found], selected.taken[found])
    months = tuple(Month(month, photos) for month, photos in selected.months().items())
    return Timeline(months, len(selected.ids) - sum(month.photos for month in months))


def unlike(collection: "Collection", ranking: Ranking, *, by_photo: bool) -> str:
    """What to say where a query is unlike anything here: it shows the nearest there are, but they are not near."""
    if ranking.rank == "labels":  # how often photos carry a label a server would have to count
        for label in () if ranking.known or ranking.offset or collection.store.shared else ranking.asked:
            below = [one for one in collection.labels() if one.casefold().endswith(f"/{label.casefold()}")]
            if below and not collection.count(carrying=[label]):
                return f"no photo here carries the label {label!r}; {did_you_mean(label, below)}"
        return "" if ranking.known or ranking.probable else "probably no photo here is what these labels ask for"
    if not by_photo or ranking.offset or collection.hasher.quantizer is not None or ranking.asked:
        return ""
    state, nearest = collection.store.state(), min(match.distance for match in ranking)
    size = state.generation, state.photos.bit_length()
    if size not in collection.usual:
        collection.usual = {size: usual_distance(collection.store)}
    usual = collection.usual[size]
    if usual is None or nearest <= usual:
        return ""
    return f"no photo here is like it: the nearest is {counted(nearest, 'bit')} away; 99 of 100 have one within {usual}"
