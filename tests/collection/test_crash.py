"""kill -9 at random moments, again and again: nothing lost, nothing doubled, nothing half."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hyphash.codes import Codes
from hyphash.collection import Collection
from hyphash.photos import PhotoBytes, decode, thumbnail

ROUNDS = int(os.environ.get("HYPHASH_CRASH_ROUNDS", "15"))
PHOTOS = 30
VARIANTS = 3


class Ledger:
    """What writers have confirmed, and what the last one was about to do when it died."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.read_up_to = 0
        self.added: dict[int, tuple[str, str]] = {}  # id → path, content
        self.labels: dict[int, list[str]] = {}
        self.drawn: dict[str, set[str]] = {}  # path → contents it has had since it was confirmed
        self.leaving: set[int] = set()  # ids whose removal, or
        self.relabelling: set[int] = set()  # whose labels a writer did not live to confirm
        self.confirmed = 0

    def update(self) -> None:
        with self.log.open() as file:
            file.seek(self.read_up_to)
            for line in file:
                self._note(*json.loads(line))
            self.read_up_to = file.tell()

    def _note(self, what: str, value: Any) -> None:
        self.confirmed += 1
        if what == "drawing":
            path, content = value
            self.drawn.setdefault(path, set()).add(content)
        elif what == "added":
            for id, path, content in value:
                self.added[id] = (path, content)
                self.drawn.pop(path, None)
                self.leaving.discard(id)
        elif what == "removing":
            self.leaving |= set(value)
        elif what == "relabelling":
            self.relabelling.add(value)
        elif what == "removed":
            for id in value:
                self.leaving.discard(id)
                self.added.pop(id, None)
                self.labels.pop(id, None)
        elif what == "relabelled":
            self.relabelling.discard(value[0])
            self.labels[value[0]] = value[1]


@pytest.fixture
def world(tmp_path: Path, tiny: Any, hasher: Any) -> tuple[Path, dict[str, dict[str, set[bytes]]]]:
    """Photos on the disk, an empty collection, and the right code of every content under either hasher."""
    hashers = [hasher, tiny.TinyHasher(seed=1, bits=20)]
    codes: dict[str, dict[str, set[bytes]]] = {each.fingerprint: {} for each in hashers}
    for i in range(PHOTOS):
        for variant in range(VARIANTS):
            path = tiny.draw(tmp_path / "photos" / f"{i}.jpg", i + 1000 * variant)
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            for each in hashers:
                # a move to another hasher takes the thumbnail where the file has been edited meanwhile
                small = PhotoBytes([("small", thumbnail(decode(path.read_bytes())))])
                both = [each.encode([path]), each.encode(small)]
                codes[each.fingerprint][content] = {code.packed[0].tobytes() for code in both}
    Collection.create(tmp_path / "collection", hasher).close()
    return tmp_path, codes


def test_nothing_is_lost_doubled_or_half(world: tuple[Path, dict[str, dict[str, set[bytes]]]]) -> None:
    folder, codes = world
    rng = random.Random(7)
    ledger = Ledger(folder / "log")
    arguments = [folder / "collection", folder / "photos", folder / "log"]
    nursery = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("writer.py")), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    child = 0
    try:
        with Collection.open(folder / "collection") as reader:  # one that lives through it all
            for seed in range(ROUNDS):
                print(seed, file=nursery.stdin, flush=True)
                child = int(nursery.stdout.readline())
                time.sleep(rng.choice([0.05, 0.2, 0.5]) * (0.5 + rng.random()))
                assert len(reader.search(labels=["cat"], k=1000)) <= PHOTOS
                os.kill(child, signal.SIGKILL)
                child = 0
                assert int(nursery.stdout.readline()) == signal.SIGKILL, "the writer ended by itself"
                ledger.update()
                check(reader, ledger, codes)
                with Collection.open(folder / "collection") as fresh:
                    check(fresh, ledger, codes)
    finally:
        if child:  # an error came before its time
            os.kill(child, signal.SIGKILL)
        nursery.stdin.close()
        nursery.stdout.close()
        nursery.kill()
        nursery.wait()
    assert ledger.confirmed > ROUNDS / 3  # far more where nothing else runs; without any, nothing was tested
    print(f"{ROUNDS} kills of programs that use the API, {ledger.confirmed} changes confirmed: none lost")  # noqa: T201


def check(collection: Collection, ledger: Ledger, codes: dict[str, dict[str, set[bytes]]]) -> None:
    photos = {photo.id: photo for photo in collection.photos(limit=10_000)}
    fingerprint = collection.store.state().fingerprint
    assert len({photo.path for photo in photos.values()}) == len(photos), "a photo is there twice"
    for photo in photos.values():
        assert photo.code in codes[fingerprint][photo.facts.content], "the code of another content or hasher"
        assert collection.thumbnails.get(photo.facts.content) is not None, "a photo without its thumbnail"
    for id, (path, content) in ledger.added.items():
        assert id in photos or id in ledger.leaving, f"{path} was confirmed and is lost"
        if id in photos:
            assert photos[id].path == path
            assert photos[id].facts.content in {content, *ledger.drawn.get(path, ())}, "an older content came back"
    for id, labels in ledger.labels.items():
        if id in photos and id not in ledger.relabelling:
            assert set(photos[id].labels) - {"cat"} == set(labels), "labels were lost"
    found = collection.search(labels=["cat"], k=1000)
    assert {match.id for match in found} == set(photos)
    bits = collection.hasher.bits
    stored = np.stack([np.frombuffer(photo.code, np.uint8) for photo in photos.values()]) if photos else None
    assert stored is None or len(Codes(stored, bits)) == len(photos)
    assert collection.verify() == []
