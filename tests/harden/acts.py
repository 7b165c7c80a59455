"""A life of a collection, to be watched by strace: each thing is told, in a file, once it is done.

python acts.py FOLDER ACKNOWLEDGED PHOTOS
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    folder, told, photos = (Path(argument) for argument in sys.argv[1:])
    from tiny import TinyHasher

    from hyphash.collection import Collection

    handle = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def tell(what: str, value: Any = None) -> None:
        os.write(handle, (json.dumps([what, value]) + "\n").encode())

    files = sorted(photos.iterdir())
    collection = Collection.create(folder / "one", TinyHasher())
    tell("made", "one")

    def add(some: list[Path]) -> None:
        for step in collection.adding(some, labels=[["cat"]] * len(some), batch=2):
            tell("added", [(photo.id, photo.path) for photo in step.photos])

    def upload(file: Path) -> None:
        data = file.read_bytes()
        added = collection.add_bytes(data, file.name)
        tell("kept", [added.id, hashlib.sha256(data).hexdigest()])

    add(files[:6])
    for file in files[6:9]:
        upload(file)
    tell("removing", 2)  # from here on it may be gone
    collection.remove([2])
    tell("removed", 2)
    collection.relabel(1, ["dog"])
    tell("labelled", [1, ["dog"]])
    collection.compact()
    other = TinyHasher(seed=1, bits=20)
    collection.reindex(other)
    collection.hasher = other
    tell("moved", other.fingerprint)
    add(files[9:])
    upload(files[0])
    exported = told.with_name("export.jsonl")
    collection.export(exported)
    collection.close()
    with Collection.create(folder / "two", other) as second:
        tell("made", "two")
        second.import_(exported)
        tell("imported", [[photo.id, photo.path] for photo in second.photos(limit=100)])


if __name__ == "__main__":
    main()
