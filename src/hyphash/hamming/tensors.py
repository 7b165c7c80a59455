"""Exact search and histograms over torch tensors, for those whose outputs lie on a GPU anyway.

Codes are taken as signs: of bits ±1, the inner product is bits − 2 · distance. Products of ±1 are small integers, so
half precision holds them exactly. The database goes by in chunks; no full matrix of distances exists. Answers are
ordered by (distance, id) and equal those of `hyphash.hamming`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hyphash.errors import CodesError

if TYPE_CHECKING:
    from torch import Tensor

PAIRS = 1 << 26  # distances held at once


def search(queries: "Tensor", database: "Tensor", k: int) -> tuple["Tensor", "Tensor"]:
    """The k nearest codes of each query: distances (int32) and ids (int64), both (queries, min(k, database)).

    Both tensors hold one row of real outputs, or of −1 and +1, for each code; a bit is `output > 0`.
    """
    import torch

    _check(queries, database)
    if k < 1:
        raise CodesError(f"k must be 1 or more, not {k}")
    size, k = len(database), min(k, len(database))
    distances = torch.empty(len(queries), k, dtype=torch.int32, device=queries.device)
    ids = torch.empty(len(queries), k, dtype=torch.int64, device=queries.device)
    for rows, chunks in _blocks(queries, database):
        best = torch.empty(rows.stop - rows.start, 0, dtype=torch.int64, device=queries.device)
        for start, near in chunks:
            # distance and id in one number: the order of the numbers is the order of the ranking
            keys = near.long() * size + torch.arange(start, start + near.shape[1], device=near.device)
            keys = torch.cat([best, keys], dim=1)
            best = keys.topk(min(k, keys.shape[1]), dim=1, largest=False, sorted=True).values
        distances[rows] = (best // size).int()
        ids[rows] = best % size
    return distances, ids


def histogram(
    queries: "Tensor", database: "Tensor", query_labels: "Tensor", database_labels: "Tensor"
) -> tuple["Tensor", "Tensor", "Tensor", "Tensor"]:
    """Per query and distance: how many codes, how many relevant, Σ gain, Σ (2^gain − 1); see `hamming.Histogram`."""
    import torch

    _check(queries, database)
    bits, device = queries.shape[1], queries.device
    gains = int(query_labels.sum(1).max()) + 1 if len(query_labels) else 1
    table = torch.zeros(len(queries), (bits + 1) * gains, dtype=torch.int64, device=device)
    wanted, offered = query_labels.to(device).float(), database_labels.to(device).float()
    for rows, chunks in _blocks(queries, database):
        for start, near in chunks:
            shared = (wanted[rows] @ offered[start : start + near.shape[1]].T).long()
            cells = near.long() * gains + shared
            table[rows] = table[rows].scatter_add(1, cells, torch.ones_like(cells))
    table = table.view(-1, bits + 1, gains)
    gain = torch.arange(gains, device=device)
    exp_gain = torch.exp2(gain.double()) - 1
    return (
        table.sum(2),
        table[:, :, 1:].sum(2),
        (table * gain).sum(2),
        (table * exp_gain).sum(2),
    )


def _blocks(queries: "Tensor", database: "Tensor") -> Iterator[tuple[slice, Iterator[tuple[int, "Tensor"]]]]:
    """Blocks of queries, and for each the chunks of the database: its first id, and distances (block, chunk)."""
    import torch

    precision = torch.float16 if queries.is_cuda else torch.float32
    wanted, offered = _signs(queries, precision), _signs(database, precision)
    per_block = min(1024, max(1, len(queries)))
    per_chunk = max(1, PAIRS // per_block)

    def chunks(block: "Tensor") -> Iterator[tuple[int, "Tensor"]]:
        for start in range(0, len(offered), per_chunk):
            products = block @ offered[start : start + per_chunk].T
            yield start, (queries.shape[1] - products.float()).div_(2).to(torch.int32)

    for start in range(0, len(queries), per_block):
        rows = slice(start, min(start + per_block, len(queries)))
        yield rows, chunks(wanted[rows])


def _signs(outputs: "Tensor", precision: object) -> "Tensor":
    return (outputs > 0).to(precision) * 2 - 1  # type: ignore[call-overload, no-any-return]


def _check(queries: "Tensor", database: "Tensor") -> None:
    if queries.ndim != 2 or database.ndim != 2 or queries.shape[1] != database.shape[1]:
        raise CodesError(
            f"tensors of codes have one row a code and the same number of bits, "
            f"not the shapes {tuple(queries.shape)} and {tuple(database.shape)}"
        )
    if queries.device != database.device:
        raise CodesError(f"queries are on {queries.device}, the database is on {database.device}")
