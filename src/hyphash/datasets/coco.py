"""COCO: photos with outlined objects of 80 classes, of which hashing uses the classes.

    annotations/instances_train2017.json, instances_val2017.json     (or 2014)
    train2017/000000000009.jpg …, val2017/000000000139.jpg …         (or in images/)

Queries are drawn from val; all other photos of train and val are the database, and the training photos are
drawn from it. A single file in the same format is read as photos of one's own, with a seeded split.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hyphash.datasets import Finder, Labels, Parts, Rows, absent, assemble, datasets, multi_hot
from hyphash.datasets.own import OWN, Choices, Row, own_photos
from hyphash.errors import ConfigError, DataError, counted
from hyphash.photos import PhotoFiles


@datasets("coco")
def coco(path: Path, *, choices: Choices = OWN, queries: float | None = None, train: int = 10_000) -> Rows:
    """COCO with its train and val files, or photos of your own with one file of instances.

    queries  how many photos of val are queries (5,000; all of val where it has fewer);
             of photos of your own the share or number held out (0.1)
    train    how many photos of the database are trained on
    """
    files = _files(path)
    if len(files) == 2:
        wanted = 5000 if queries is None else int(queries)
        if min(wanted, train) < 1:
            raise ConfigError(f"coco: queries={queries}, train={train}; both are numbers of photos, 1 or more")
        return _benchmark(*files, queries=wanted, train=train, choices=choices)
    choices = choices if queries is None else replace(choices, queries=queries)
    instances = read_instances(files[0])
    pairs = zip(instances.images, instances.labels, strict=True)
    rows = [Row(name, tuple(sorted(labels)), str(files[0])) for name, labels in pairs]
    root = _photo_folder(files[0], instances.images)
    return own_photos("coco", rows, files[0], choices=choices, root=root)


@dataclass(frozen=True)
class Instances:
    """What labels need of a file of instances."""

    classes: tuple[str, ...]  # by category id
    images: tuple[str, ...]  # file names
    labels: tuple[frozenset[str], ...]


def read_instances(file: Path) -> Instances:
    try:
        with file.open(encoding="utf-8-sig") as text:
            content = json.load(text, object_hook=_slim)
        names = dict(sorted((int(category["id"]), str(category["name"])) for category in content["categories"]))
        images = dict(content["images"])
        found: dict[Any, set[str]] = {image: set() for image in images}
        for image, category in content["annotations"]:
            found[image].add(names[category])
    except (KeyError, TypeError, ValueError, OSError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"{file}: not a COCO file of instances ({reason}); it needs images, annotations and categories"
        ) from error
    return Instances(
        tuple(dict.fromkeys(names.values())),
        tuple(str(name) for name in images.values()),
        tuple(frozenset(found[image]) for image in images),
    )


def _slim(record: dict[str, Any]) -> Any:
    """While parsing keep only what labels need: the outlines of COCO would fill gigabytes."""
    if "image_id" in record:
        return record["image_id"], record["category_id"]
    if "file_name" in record:
        return record["id"], record["file_name"]
    return record


def _files(path: Path) -> list[Path]:
    """The train and the val file of the benchmark, or the one file of somebody's own photos."""
    if path.is_file():
        return [path]
    for folder in (path / "annotations", path):
        for year in ("2017", "2014", ""):
            pair = [folder / f"instances_{part}{year}.json" for part in ("train", "val")]
            if all(file.is_file() for file in pair):
                return pair
    single = sorted({*path.glob("*.json"), *path.glob("annotations/*.json")})
    if len(single) == 1:
        return single
    if single:
        raise DataError(
            f"{path}: several JSON files: {', '.join(file.name for file in single[:5])}; give the path of one, "
            "or bring both instances_train2017.json and instances_val2017.json"
        )
    raise absent(path, "coco")


def _photo_folder(file: Path, images: Sequence[str]) -> Path:
    """The folder that the file names are relative to: beside the file, or where COCO puts the photos."""
    part = file.stem.removeprefix("instances_")
    above = file.parent.parent
    places = [file.parent, file.parent / "images", above / part, above / "images" / part, above / "images", above]
    for place in places:
        finder = Finder(place)
        if any(finder.find(name) for name in images[:100]):
            return place
    return above / part if file.parent.name == "annotations" else file.parent


def _benchmark(train_file: Path, val_file: Path, *, queries: int, train: int, choices: Choices) -> Rows:
    rest, val = read_instances(train_file), read_instances(val_file)
    if rest.classes != val.classes:
        raise DataError(f"{val_file}: other categories than {train_file.name}; use two files of one dataset")
    root = train_file.parent.parent if train_file.parent.name == "annotations" else train_file.parent
    names = []
    for file, part in ((train_file, rest), (val_file, val)):
        folder = _photo_folder(file, part.images)
        names += [Finder(root).relative(str(folder.absolute() / name)) for name in part.images]
    labels = multi_hot([*rest.labels, *val.labels], rest.classes)
    parts = _drawn(labels, first_of_val=len(rest.images), queries=queries, train=train, seed=choices.seed)
    photos = PhotoFiles(tuple(names), root)
    return assemble("coco", rest.classes, photos, labels, parts=parts, skip_missing=choices.skip_missing)


def _drawn(labels: Labels, *, first_of_val: int, queries: int, train: int, seed: int) -> Parts:
    """Queries from val, all others as the database, and training photos out of the database."""
    rng = np.random.default_rng(seed)
    candidates = np.flatnonzero(labels.any(axis=1))
    from_val = candidates[candidates >= first_of_val]
    few = (f"all {counted(len(from_val), 'labelled photo')} of val are queries",) if len(from_val) < queries else ()
    chosen = np.sort(rng.choice(from_val, min(queries, len(from_val)), replace=False))
    labelled = np.setdiff1d(candidates, chosen)
    drawn = np.sort(rng.choice(labelled, min(train, len(labelled)), replace=False))
    note = (
        f"split drawn with seed {seed}: {len(chosen):,} queries from val, {len(drawn):,} training photos, "
        "which are in the database as well"
    )
    return Parts(drawn, chosen, np.setdiff1d(np.arange(len(labels)), chosen), (*few, note))
