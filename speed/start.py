"""What `hyphash start` takes, stage by stage, and what its guesses are worth before anybody has said a word.

python speed/start.py FLICKR25K                  # P@100 of the everyday words that Flickr-25k has labels for
python speed/start.py FLICKR25K --photos 5000    # the stages, with so many of its photos enlarged to 500 px, tagged
python speed/start.py FLICKR25K --photos 5000 --page             # when somebody sees what of `hyphash start` itself
python speed/start.py FLICKR25K --photos 2000 --page --untagged
"""

import argparse
import csv
import io
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import urlopen

import numpy as np
from PIL import Image

from hyphash.cli.search import read_photos
from hyphash.collection import Collection
from hyphash.datasets import Splits, label_names, load_dataset
from hyphash.evaluation import encode_split
from hyphash.features import default_cache
from hyphash.guesses import starter
from hyphash.hasher import Hasher
from hyphash.refining import refine, take_in
from quality import fill

TOP, SIDE = 100, 500
WORDS = {  # of Flickr-25k's labels, those that an everyday word names
    "animals": "animal", "baby": "baby", "bird": "bird", "car": "car", "dog": "dog", "flower": "flower", "food": "food",
    "lake": "lake", "people": "people", "plant_life": "plant", "portrait": "portrait", "sea": "sea",
    "structures": "building", "transport": "vehicle", "water": "water",
}  # fmt: skip
T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--photos", type=int, default=0)
    parser.add_argument("--page", action="store_true", help="run `hyphash start` and ask its page")
    parser.add_argument("--untagged", action="store_true", help="without the labels")
    given = parser.parse_args()
    splits = load_dataset(given.data, "flickr25k")
    if given.page:
        seen_on_the_page(splits, given.photos, tagged=not given.untagged)
        return
    hasher = timed("the starter", starter)
    if given.photos:
        stages(hasher, splits, given.photos)
    else:
        guesses(hasher, splits)


def timed(what: str, work: Callable[[], T]) -> T:
    before, began = used(), time.perf_counter()
    result = work()
    print(f"{what}: {time.perf_counter() - began:.1f} s, {used() - before:.1f} s of the processor", flush=True)
    return result


def used() -> float:
    """Seconds of the processor that this process has taken."""
    now = resource.getrusage(resource.RUSAGE_SELF)
    return now.ru_utime + now.ru_stime


def guesses(hasher: Hasher, splits: Splits) -> None:
    """Precision of the first 100 of all photos of the database, which stand there without labels."""
    database = encode_split(hasher, splits.database, cache=default_cache())
    with tempfile.TemporaryDirectory() as folder, Collection.create(Path(folder) / "c", hasher) as collection:
        place = {id: i for i, id in enumerate(fill(collection, hasher, database))}
        found = {}
        for label, word in WORDS.items():
            carried = database.split.labels[:, splits.classes.index(label)] > 0
            matches = collection.search(labels=[word], k=TOP)
            found[word] = np.mean([carried[place[match.id]] for match in matches]), carried.mean()
    for word, (precision, share) in found.items():
        print(f"{word}: {precision:.2f} (of all photos {share:.3f} carry it)")
    print(f"P@{TOP}, mean over {len(found)} words: {np.mean([precision for precision, _ in found.values()]):.3f}")


def stages(hasher: Hasher, splits: Splits, count: int) -> None:
    """One pass over the photos, and what is learned from them, as `start` does both."""
    with tempfile.TemporaryDirectory() as place:
        photos, folder, cache = (Path(place) / name for name in ("photos", "collection", "cache"))
        enlarge(splits, photos, count)
        Collection.create(folder, hasher).close()
        source, labels = timed("reading labels", lambda: read_photos(str(photos), "all", None, {}))
        untagged = [[] for _ in labels]
        quiet = {"tell": lambda _: None, "stop": lambda: False}
        timed(f"taking in {count:,} photos", lambda: take_in(folder, source, untagged, cache, **quiet))
        timed("the same again, with labels", lambda: Collection.open(folder).add(source, labels=labels))
        result = timed("refining", lambda: refine(folder, cache, **quiet))
    print(f"searches by photo: {result.search}\nsuggested labels: {result.suggestions}")


def seen_on_the_page(splits: Splits, count: int, *, tagged: bool) -> None:
    """Seconds since `hyphash start` began, as one who asks its page twice a second sees them; nothing is cached yet."""
    with tempfile.TemporaryDirectory() as place:
        photos, folder, cache = (Path(place) / name for name in ("photos", "collection", "cache"))
        enlarge(splits, photos, count)
        if not tagged:
            (photos / "labels.csv").unlink()
        command = [sys.executable, "-m", "hyphash", "start", photos, "--into", folder, "--port", "0", "--no-open"]
        began = time.perf_counter()
        with subprocess.Popen(
            command, env=os.environ | {"HYPHASH_CACHE": str(cache)}, stdout=subprocess.PIPE, text=True
        ) as service:
            assert service.stdout is not None
            address = re.findall(r"http://[^#]+", service.stdout.readline())[0]

            def ask(path: str) -> Any:
                with urlopen(address + path) as answer:
                    return json.load(answer)

            def wait(what: str, there: Callable[[], bool]) -> None:
                while not there():
                    time.sleep(0.5)
                print(f"{what}: {time.perf_counter() - began:.1f} s", flush=True)

            first = ask("api/collection")["fingerprint"]
            wait("the page answers", lambda: True)
            wait("a search finds something", lambda: ask("api/search?label=people")["matches"])
            wait("all photos are there", lambda: ask("api/collection")["photos"] == count)
            if tagged:
                wait("what was learned is used", lambda: ask("api/collection")["fingerprint"] != first)
            service.terminate()
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"{ended.ru_utime + ended.ru_stime:.0f} s of the processor")


def enlarge(splits: Splits, photos: Path, count: int) -> None:
    photos.mkdir()
    names = label_names(splits.database.labels[:count], splits.classes)
    for i in range(count):
        image = Image.open(io.BytesIO(splits.database.read(i))).convert("RGB")
        image.resize((SIDE, SIDE * 3 // 4), Image.Resampling.BICUBIC).save(photos / f"{i:05}.jpg", quality=90)
    with (photos / "labels.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerows([("image", "labels"), *((f"{i:05}.jpg", "|".join(some)) for i, some in enumerate(names))])


if __name__ == "__main__":
    main()
