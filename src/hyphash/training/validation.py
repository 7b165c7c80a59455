"""How well the codes of a network in training find each other: one number, every few epochs."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.evaluation.measures import Protocol, expected_average_precision, in_order, possible
from hyphash.hasher import Hasher
from hyphash.training.inputs import Inputs, outputs_of
from hyphash.training.ranks import SINGLE, Ranks

Labels = NDArray[np.uint8]


def validate(
    hasher: Hasher, inputs: Inputs, rows: Tensor, held_out: Tensor, *, top: int, ranks: Ranks = SINGLE
) -> float:
    """mAP@`top` of the held-out photos among the training photos, under the protocol `strict`."""
    database, queries = (outputs_of(hasher, inputs, part, ranks=ranks) for part in (rows, held_out))
    take_quantizer(hasher)
    if not ranks.first:
        return ranks.broadcast_object(0.0)
    labels = inputs.labels.cpu().numpy().astype(np.uint8)
    score = mean_average_precision(
        hasher.to_codes(queries),
        hasher.to_codes(database),
        labels[held_out.cpu().numpy()],
        labels[rows.cpu().numpy()],
        top=top,
        query_tables=hasher.quantizer.tables(queries) if hasher.quantizer else None,
    )
    return ranks.broadcast_object(score)  # one number for all: what they do next depends on it


def mean_average_precision(
    queries: Codes,
    database: Codes,
    query_labels: Labels,
    database_labels: Labels,
    *,
    top: int,
    query_tables: NDArray[np.float32] | None = None,
) -> float:
    """mAP@`top`, divided by min(top, relevant); ties by expectation, or, with tables of a quantiser, by id."""
    protocol = Protocol.strict(top)
    if query_tables is None:
        ranking = hamming.histogram(queries, database, query_labels, database_labels)
    else:
        _, ids = hamming.search_tables(query_tables, database, top)
        gains = (query_labels[:, None, :] & database_labels[ids]).sum(axis=2)
        ranking = in_order(gains)
    relevant = (query_labels.astype(np.float32) @ database_labels.T.astype(np.float32) > 0).sum(axis=1)
    return float(expected_average_precision(ranking, top, possible(relevant, protocol)).mean())


def take_quantizer(hasher: Hasher) -> None:
    """Take over the product quantiser that the head has learned, if it learns one."""
    codewords = getattr(hasher.network.head, "codewords", None)
    if codewords is not None:
        from hyphash.quantizer import Quantizer

        hasher.quantizer = Quantizer(codewords().detach().float().cpu().numpy().copy(), hasher.bits)
