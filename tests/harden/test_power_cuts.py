"""Power that is lost anywhere in the life of a collection: what was acknowledged is there."""

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from power_cut import Disk, cuts, recorded

from hyphash.collection import Collection

WANTED = int(os.environ.get("HYPHASH_POWER_CUTS", "40"))  # disks that are looked at
pytestmark = [pytest.mark.needs("strace"), pytest.mark.slow]


def test_everything_acknowledged_outlives_a_power_cut(tmp_path: Path, tiny: Any) -> None:
    photos = [tiny.draw(tmp_path / "photos" / f"{i:02}.jpg", i) for i in range(12)]
    (tmp_path / "disk").mkdir()
    places = [tmp_path / "disk", tmp_path / "acknowledged", photos[0].parent]
    program = Path(__file__).with_name("acts.py")
    sys_path = os.pathsep.join([str(program.parents[1] / "collection"), *filter(None, sys.path)])
    command = ["env", f"PYTHONPATH={sys_path}", sys.executable, str(program), *map(str, places)]
    calls = recorded(command, tmp_path / "trace")
    hashers = {one.fingerprint: one for one in (tiny.TinyHasher(), tiny.TinyHasher(seed=1, bits=20))}
    moments = sum(1 for _ in cuts(calls, Disk(tmp_path / "disk")))
    rounds, passed, looked = -(-WANTED // moments), 0, 0
    for seed in range(rounds):
        rng, disk = random.Random(seed), Disk(tmp_path / "disk")
        share = WANTED / moments / rounds
        for number, acknowledged in cuts(calls, disk):
            passed += number
            if rng.random() < share or number > 50:
                disk.left(tmp_path / "left", rng if (looked + seed) % 2 else None)
                check(tmp_path / "left", [json.loads(line) for line in acknowledged], hashers)
                looked += 1
    print(f"{looked} power cuts among {passed} calls, {len(acknowledged)} things acknowledged: nothing lost")  # noqa: T201
    assert looked >= min(WANTED, moments) / 2


def check(disk: Path, acknowledged: list[tuple[str, Any]], hashers: dict[str, Any]) -> None:
    made = {name for what, name in acknowledged if what == "made"}
    for name in ("one", "two"):
        if (disk / name).exists() or name in made:
            fingerprint = Collection_fingerprint(disk / name)
            with Collection.open(disk / name, hasher=hashers[fingerprint]) as collection:
                check_one(collection, name, acknowledged)


def Collection_fingerprint(folder: Path) -> str:  # noqa: N802
    from hyphash.stores.sqlite import SqliteStore

    store = SqliteStore.open(folder, "sqlite")
    try:
        return store.state().fingerprint
    finally:
        store.close()


def check_one(collection: Collection, name: str, acknowledged: list[tuple[str, Any]]) -> None:
    missing = "missing from originals/" if name == "two" else None  # an import takes none along
    assert [told for told in collection.verify() if not missing or missing not in told] == []
    there = {photo.id: photo for photo in collection.photos(limit=1000)}
    assert {match.id for match in collection.search(labels=["cat"], k=1000)} == set(there)
    promised: dict[int, str] = {}
    for what, value in acknowledged:
        if what == "imported" and name == "two":
            promised = dict(value)
        elif name == "two":
            continue
        elif what == "added":
            promised |= dict(value)
        elif what == "kept":
            assert collection.originals.path(value[1]), "an upload without its photo"
            promised[value[0]] = there[value[0]].path
        elif what == "removing":
            promised.pop(value)
        elif what == "removed":
            assert value not in there, "a photo came back"
        elif what == "labelled":
            assert there[value[0]].labels == tuple(value[1])
        elif what == "moved":
            assert collection.hasher.fingerprint == value
    for id, path in promised.items():
        assert there[id].path == path, "acknowledged, and lost"
        if name == "one":
            assert collection.thumbnails.get(there[id].facts.content), "a photo without its thumbnail"
