"""How well the codes of a network in training find each other: one number, every few epochs."""

import numpy as np
from torch import Tensor

from hyphash.evaluation import Rankings, mean_average_precision
from hyphash.hasher import Hasher
from hyphash.training.inputs import Inputs, outputs_of
from hyphash.training.ranks import SINGLE, Ranks


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
        Rankings(
            hasher.to_codes(queries),
            hasher.to_codes(database),
            labels[held_out.cpu().numpy()],
            labels[rows.cpu().numpy()],
            query_outputs=queries if hasher.quantizer else None,
            quantizer=hasher.quantizer,
        ),
        top=top,
        protocol="strict",
    )
    return ranks.broadcast_object(score)  # one number for all: what they do next depends on it


def take_quantizer(hasher: Hasher) -> None:
    """Take over the product quantiser that the head has learned, if it learns one."""
    codewords = getattr(hasher.network.head, "codewords", None)
    if codewords is not None:
        from hyphash.quantizer import Quantizer

        hasher.quantizer = Quantizer(codewords().detach().float().cpu().numpy().copy(), hasher.bits)
