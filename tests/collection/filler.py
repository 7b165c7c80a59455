"""Fills a disk with a collection until it is full, makes room, and goes on. Prints what was safe, and what was said."""

import json
import resource
import subprocess
import sys
from pathlib import Path


def fill(kind: str, folder: Path, photos: Path) -> None:
    from tiny import TinyHasher

    from hyphash.collection import Collection
    from hyphash.errors import StorageError

    if kind == "tmpfs":
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)], check=True)
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
    collection = Collection.create(folder / "collection", TinyHasher())
    files = sorted(photos.iterdir())
    safe: dict[int, str] = {}
    words = ""
    try:
        for step in collection.adding(files, keep=True, batch=8):
            safe |= {photo.id: photo.path for photo in step.photos}
    except StorageError as error:
        words = str(error)
    still = {photo.id: photo.path for photo in collection.photos(limit=10_000)}
    found = len(collection.search(labels=["cat"], k=10_000))
    if kind == "tmpfs":
        subprocess.run(["mount", "-o", "remount,size=50m", str(folder)], check=True)
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    result = collection.add(files, keep=True)
    collection.close()
    with Collection.open(folder / "collection") as again:
        after = {photo.id: photo.path for photo in again.photos(limit=10_000)}
        report = [safe, words, still, found, result.added, after, again.verify(), len(list(folder.rglob("*.draft")))]
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    fill(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
