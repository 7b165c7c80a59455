"""A writer to be killed: adds, edits, relabels, removes, reindexes and compacts until the end, and logs what is safe.

Run as a program it waits for seeds on its input; each makes it fork a writer, so that a round costs no imports.
"""

import hashlib
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

VARIANTS = 3  # each photo has so many contents


def run(folder: Path, photos: Path, log: Path, seed: int) -> None:
    from tiny import TinyHasher, draw

    from hyphash.collection import Collection

    rng = random.Random(seed)
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    hashers = {hasher.fingerprint: hasher for hasher in (TinyHasher(seed=0), TinyHasher(seed=1, bits=20))}
    collection = Collection.open(folder)
    collection.hasher = hashers[collection.hasher.fingerprint]

    def say(what: str, value: Any) -> None:
        os.write(file, (json.dumps([what, value]) + "\n").encode())  # in the hands of the system: SIGKILL spares it

    def add() -> None:
        some = rng.sample(sorted(photos.iterdir()), 9)
        for path in rng.sample(some, 2):
            draft = log.with_name("draft.jpg")
            draw(draft, int(path.stem) + 1000 * rng.randrange(VARIANTS))
            say("drawing", [str(path), hashlib.sha256(draft.read_bytes()).hexdigest()])
            draft.replace(path)
        for step in collection.adding(some, labels=[["cat"]] * len(some), batch=3):
            say("added", [(p.id, p.path, hashlib.sha256(Path(p.path).read_bytes()).hexdigest()) for p in step.photos])

    def remove() -> None:
        ids = [photo.id for photo in rng.sample(known, min(2, len(known)))]
        say("removing", ids)
        collection.remove(ids)
        say("removed", ids)

    def relabel() -> None:
        for photo in rng.sample(known, min(2, len(known))):
            labels = sorted(rng.sample(["dog", "sea", "own"], 2))
            say("relabelling", photo.id)
            collection.relabel(photo.id, labels)
            say("relabelled", [photo.id, labels])

    def reindex() -> None:
        other = next(hasher for name, hasher in hashers.items() if name != collection.hasher.fingerprint)
        collection.reindex(other)
        collection.hasher = other
        say("reindexed", other.fingerprint)

    say("ready", seed)
    while True:
        known = collection.photos(limit=1000)
        task = rng.choices([add, relabel, remove, reindex, collection.compact], [6, 3, 2, 1, 1])[0]
        task()


def main() -> None:
    folder, photos, log = (Path(argument) for argument in sys.argv[1:])
    from hyphash.collection import duplicates, exchange, figures, intake, tags  # noqa: F401 (before the fork)

    for line in sys.stdin:
        child = os.fork()
        if not child:
            run(folder, photos, log, int(line))
        print(child, flush=True)  # noqa: T201
        print(os.waitpid(child, 0)[1], flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
