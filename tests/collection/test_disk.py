"""A disk that runs full while photos are added: a clear word, nothing lost, and it goes on once there is room."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hyphash.collection import Collection

UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]  # a world of one's own, in which anybody may mount
PHOTOS = 300


def may_mount(folder: Path) -> bool:
    command = [*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("kind", ["limit", "tmpfs"])
@pytest.mark.slow
def test_a_full_disk(tmp_path: Path, draw: Callable[..., Path], kind: str) -> None:
    """`limit`: files may not grow, wherever a write happens to be. `tmpfs`: a real file system without room."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if kind == "tmpfs" and not may_mount(folder):
        pytest.skip("mounting is not allowed here; the other kind of full disk is tested")
    for i in range(PHOTOS):
        draw(tmp_path / "photos" / f"{i:03}.jpg", i)
    program = [sys.executable, str(Path(__file__).with_name("filler.py")), kind, str(folder), str(tmp_path / "photos")]
    done = subprocess.run(
        [*(UNSHARE if kind == "tmpfs" else ()), *program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    safe, words, still, found, added, after, findings, drafts = json.loads(done.stdout)
    assert "disk is full" in words
    assert "run the same command again" in words
    assert 0 < len(safe) < PHOTOS
    assert safe.items() <= still.items() <= after.items()
    assert found == len(still)
    assert added == PHOTOS - len(still)
    assert len(after) == len(set(after.values())) == PHOTOS
    assert findings == []
    assert drafts == 0


READ = """
import sys
from hyphash.collection import Collection
from hyphash.errors import StorageError
with Collection.open(sys.argv[1]) as collection:
    print(len(collection.search(labels=["cat"], k=99)), len(collection.thumbnail(1)) > 0)
    try:
        collection.remove([1])
    except StorageError as error:
        print(error)
"""


def test_a_disk_that_cannot_be_written_can_be_searched(collection: Collection, photos: list[Path]) -> None:
    collection.add(photos)
    collection.close()
    folder = str(collection.folder)
    if not may_mount(collection.folder):
        pytest.skip("mounting is not allowed here")
    script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && exec "$2" -c "$3" "$1"'
    command = [*UNSHARE, "sh", "-c", script, "sh", folder, sys.executable, READ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "10 True"
    assert "may not be written" in done.stdout
