"""Photos as rows on Milvus: an id, a code, and what filters need."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.errors import LabelError
from hyphash.searchers.milvus.server import MOST_LABELS, Row
from hyphash.stores import Ids, Session, improper

ROW = ("code", "labels", "tagged")  # what a row has beside its id
MARK = np.dtype([("id", np.int64), ("mark", np.int64)])


def to_rows(session: Session, ids: Ids, codes: Codes, partitions: int = 0) -> list[Row]:
    """Rows of the photos that are there still."""
    rows: list[Row] = []
    captions = session.captions(ids.tolist())
    for id, code in zip(ids.tolist(), codes.packed, strict=True):
        if id in captions:
            labels = captions[id].labels
            if len(labels) > MOST_LABELS:
                raise LabelError(
                    f"photo {id}: {len(labels)} labels; Milvus keeps at most {MOST_LABELS} a photo: take some away, or "
                    "search with another engine"
                )
            part = {"part": id % partitions} if partitions else {}
            numbers = [label_number(label) for label in labels]
            rows.append({"id": id, "code": code.tobytes(), "labels": numbers, "tagged": bool(labels), **part})
    return rows


@lru_cache(100_000)
def label_number(label: str) -> int:
    """A number that stands for a label: it needs no quotes, and is never too long."""
    try:
        digest = blake2b(label.encode(), digest_size=8).digest()
    except UnicodeEncodeError as error:
        raise improper("Milvus", error) from None
    return int.from_bytes(digest, "little", signed=True)


def marks(rows: Sequence[Row]) -> NDArray[np.void]:
    """Ids with a number that stands for all else in a row, for this process."""
    return np.array([(row["id"], hash((_code(row), *sorted(row["labels"]), row["tagged"]))) for row in rows], MARK)


def joined(parts: Iterable[NDArray[np.void]]) -> NDArray[np.void]:
    return np.concatenate([np.empty(0, MARK), *parts])


def _code(row: Row) -> bytes:
    code = row["code"]
    return bytes(code if isinstance(code, bytes) else code[0])
