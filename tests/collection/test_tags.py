"""Suggested labels: from the neighbours and the anchors, accepted and refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hyphash.codes import Codes
from hyphash.collection import Collection
from hyphash.hasher import unit


def test_suggestions_are_accepted_and_refused_one_by_one(
    collection: Collection, hasher: Any, photos: list[Path]
) -> None:
    collection.add(photos[:1])
    (photo,) = collection.photos(untagged=True)
    offered = [tag.label for tag in collection.suggest(photo.id)]
    assert sorted(offered) == sorted(hasher.classes)
    signs = Codes(np.frombuffer(photo.code, np.uint8)[None], 12).signs().astype(np.float32)
    assert offered == [tag.label for tag in hasher.tags(signs)[0]]
    assert collection.accept(photo.id, offered[0]).labels == (offered[0],)
    assert collection.refuse(photo.id, offered[1]).refused == (offered[1],)
    assert [tag.label for tag in collection.suggest(photo.id)] == offered[2:]
    assert collection.photos(untagged=True) == []
    collection.refuse(photo.id, offered[0])
    assert collection.get(photo.id).labels == ()
    collection.accept(photo.id, offered[1])  # people may change their mind
    assert collection.get(photo.id).refused == (offered[0],)


def test_suggestions_follow_the_neighbours(filled: Collection, hasher: Any, photos: list[Path]) -> None:
    """Against the formula, written out naively."""
    code = Codes(np.frombuffer(filled.get(5).code, np.uint8)[None], 12)
    cosines = unit(hasher.anchors) @ unit(code.signs()[0].astype(np.float32))
    expected = {label: max(float(cosine), 0) for label, cosine in zip(hasher.classes, cosines, strict=True)}
    total = 1.0
    for photo in filled.photos():
        if photo.labels:
            weight = np.exp(-2.0 * code.distances(Codes(np.frombuffer(photo.code, np.uint8)[None], 12))[0, 0])
            total += weight
            for label in photo.labels:
                expected[label] = expected.get(label, 0) + weight
    tags = filled.suggest(5)
    assert {tag.label: tag.score for tag in tags} == pytest.approx({k: v / total for k, v in expected.items()})
    assert [tag.score for tag in tags] == sorted((tag.score for tag in tags), reverse=True)
    assert filled.suggest(photos[6], k=1)[0].label == "own word"
