"""A collection as a dataset: what people said of its photos. What was guessed or suggested is no label."""

from pathlib import Path

from hyphash.collection import Collection
from hyphash.datasets import Remarks, Rows, datasets
from hyphash.datasets.own import Choices, Row, own_photos
from hyphash.errors import DataError
from hyphash.stores import Photo

HELD_OUT = 10  # one photo in so many is a query


@datasets("collection")
def collection(path: Path, *, min_count: int = 1) -> Rows:
    """The photos of a collection that carry labels, as people said; a label that was refused is not carried.

    One in ten is a query, by its content: the same ones however often it is asked, so no hasher has learned from them.

    min_count  leave out labels that fewer photos carry
    """
    with Collection.open(path, device="cpu") as opened:
        labelled = [photo for photo in opened.all_photos() if photo.labels]
        files = [str(opened.originals.path(photo.facts.content) or photo.path) for photo in labelled]
    if not labelled:
        raise DataError(f"{path}: no photo carries a label; say what some of them show (`hyphash serve`, Tag)")
    parts = [_part(photo) for photo in labelled]
    if len({*parts}) == 1:  # few photos: `own_photos` draws some
        parts = [()] * len(parts)
    rows = [Row(file, photo.labels, str(path), part) for photo, file, part in zip(labelled, files, parts, strict=True)]
    choices = Choices(skip_unlabelled=True, skip_missing=True, min_count=min_count)
    return own_photos("collection", rows, path, choices=choices, remarks=Remarks())


def _part(photo: Photo) -> tuple[str, ...]:
    return ("queries",) if int(photo.facts.content[:8], 16) % HELD_OUT == 0 else ("database", "train")
