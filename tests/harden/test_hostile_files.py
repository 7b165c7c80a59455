"""Files that are damaged, or made to do damage: an error of ours or the right answer, no traceback, crash or wait."""

import os
import random
import shutil
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hyphash.collection import Collection, trash
from hyphash.collection.duplicates import keep_all
from hyphash.errors import HyphashError
from hyphash.hasher import Hasher
from hyphash.refining import due, last_refinement, progress

ROUNDS = int(os.environ.get("HYPHASH_HOSTILE_FILES", "60"))
pytestmark = pytest.mark.slow
NUMBERS = (b"-1", b"0", b"1", b"9" * 18, b"9" * 40, b"1e999", b"nan", b'""', b"[]", b"null", b'"../../x"', b"true")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory, tiny: Any, make_run: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    photos = [tiny.draw(folder / "photos" / f"{i}.jpg", i) for i in range(8)]
    make_run(folder / "run", 0)
    with Collection.into(folder / "collection", folder / "run") as collection:
        collection.add(photos[:6], labels=[["cat"]] * 6)
        for photo in photos[6:]:
            collection.add_bytes(photo.read_bytes(), photo.name)
        collection.search(labels=["cat"], k=3)
        trash.put(collection, [collection.get(2)])
        keep_all(collection, [1, 3])
        collection.tidy()
    return folder


def damaged(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """Bytes as a failing disk leaves them, or somebody who knows the format makes them."""
    broken = bytearray(data)
    kind = rng.choice(["flip", "flip", "cut", "zero", "splice", "grow", "other", "number", "number", "empty"])
    if not data:
        return rng.randbytes(rng.randrange(100))
    at = rng.randrange(min(len(data), rng.choice([64, 1024, len(data)])))
    if kind == "flip":
        for _ in range(rng.choice([1, 1, 8])):
            broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del broken[at:]
    elif kind == "zero":
        broken[at : at + rng.choice([8, 512, 4096])] = bytes(min(len(broken) - at, 8))
    elif kind == "splice":
        broken[at : at + 8] = rng.choice([b"\xff" * 8, b"\x00" * 8, b"\x7f" * 8, rng.randbytes(8)])
    elif kind == "grow":
        broken += rng.randbytes(rng.choice([1, 4096]))
    elif kind == "other":
        broken = bytearray(rng.choice(others))
    elif kind == "number":
        digits = [i for i, byte in enumerate(broken[:4096]) if 48 <= byte <= 57]
        if digits:
            place = rng.choice(digits)
            broken[place : place + 1] = rng.choice(NUMBERS)
    else:
        broken.clear()
    return bytes(broken)


def attacked(folder: Path, copy: Path, use: Callable[[Path], bool]) -> tuple[int, int, list[str]]:
    """How often one damaged file of a folder was refused, how often it was told, and what went wrong otherwise."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    contents = [path.read_bytes() for path in files]
    refused, told, failed = 0, 0, []
    for number in range(ROUNDS):
        rng = random.Random(number)
        file = rng.choice(files).relative_to(folder)
        shutil.copytree(folder, copy)
        (copy / file).write_bytes(damaged((copy / file).read_bytes(), rng, contents))
        try:
            told += use(copy / file)
        except HyphashError:
            refused += 1
        except BaseException as error:
            failed.append(f"round {number}, {file}: {traceback.format_exception(error)[-3:]}")
        shutil.rmtree(copy)
    return refused, told, failed


def test_a_damaged_file_is_an_error_of_ours_or_does_not_matter(sound: Path, tmp_path: Path) -> None:
    with Collection.open(sound / "collection") as collection:
        truth = [match.id for match in collection.search(labels=["cat"], k=20)]

    def use(place: Path) -> bool:
        found, wrong = used(tmp_path / "copy", sound / "photos")
        derived = not place.name.startswith("collection.sqlite")  # nobody can tell what else the truth may have been
        assert not derived or found == truth or wrong, "a wrong answer"
        return bool(wrong)

    refused, told, failed = attacked(sound / "collection", tmp_path / "copy", use)
    assert failed == []
    print(f"{ROUNDS} hostile files: {refused} refused, {told} told by verify, no answer wrong")  # noqa: T201


def test_a_damaged_run_is_an_error_of_ours_or_works(sound: Path, tmp_path: Path) -> None:
    def use(place: Path) -> bool:
        hasher = Hasher.to_encode(place.parent)
        hasher.label_outputs(["cat"])
        hasher.encode([sound / "photos" / "1.jpg"])
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
        with Collection.into(tmp_path / "new", place.parent) as collection:
            collection.add([sound / "photos" / "1.jpg"])
        return False

    assert attacked(sound / "run", tmp_path / "copy", use)[2] == []


def used(folder: Path, photos: Path) -> tuple[list[int], list[str]]:
    """Everything that is done with a collection; what a search finds, and what is wrong."""
    wrong: list[str] = []
    with Collection.open(folder) as collection:
        found = [match.id for match in collection.search(labels=["cat"], k=20)]
        for look in (collection.thumbnail, collection.original):
            for id in (1, 7):
                try:
                    look(id)
                except HyphashError as error:
                    wrong.append(str(error))
        looks: list[Callable[[], Any]] = [collection.duplicates, collection.timeline, collection.store.removed]
        for ask in (*looks, partial(collection.log.recent, 9), partial(due, collection)):
            try:
                ask()
            except HyphashError as error:
                wrong.append(str(error))
        last_refinement(folder)
        progress(folder)
        wrong += collection.verify()
        collection.stats()
        collection.search(photos / "3.jpg", k=3)
        collection.add([photos / "7.jpg"])
        collection.compact()
        collection.rebuild()
    return found, wrong
