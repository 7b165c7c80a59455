"""Commands that explain: capacity, losses, backbones, datasets, doctor, and `hyphash data inspect|sample`"""

import os
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from inspect import getdoc
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, Typer

from hyphash import __version__
from hyphash.cli.lazy import lazy
from hyphash.cli.options import DataOption, DataPath, Dataset, Json, LabelsFrom, Markdown, data_options
from hyphash.cli.output import counting, print_found, print_json, print_problems, print_records, print_table, say

data = Typer(no_args_is_help=True, help="Look at datasets and draw the sample.")
SHOWN_LABELS = 40
PACKAGES = ("numpy", "pillow", "torch", "torchvision", "timm", "matplotlib", "pillow-heif")
LABEL_USE = {  # by family, where it is not which photos are related
    **dict.fromkeys(("proxies", "centres", "classifiers"), "classes"), "proxies and pairs": "both",
    **dict.fromkeys(("no labels", "no training"), "none"),
}  # fmt: skip


def capacity(
    bits: Annotated[int, Option(help="Length of the codes.", min=1)],
    classes: Annotated[int, Option(help="Number of labels.", min=1)],
    json: Json = False,
) -> None:
    """Explain how many combinations of labels so few bits can keep apart, and the margin that follows."""
    coding = lazy.coding
    kept, every = coding.capacity(classes=classes, bits=bits), 1 << classes
    enough = coding.bits_for_all_label_sets(classes)
    dimension = coding.dimension(classes)
    distance = coding.minimum_distance(bits, dimension)
    margin = coding.margin(classes=classes, bits=bits)
    source = "the best known linear code" if coding.in_table(bits, dimension) else "the Gilbert–Varshamov bound"
    if json:
        found = {"bits": bits, "classes": classes, "capacity": kept, "label_sets": every, "bits_for_all": enough}
        print_json(found | {"margin": margin, "minimum_distance": distance, "distance_from": source})
        return
    share = "all of them" if kept == every else _percent(kept, every)
    combinations = f"{_count(every)} combinations of {classes} labels"
    print(f"{bits} bits can keep at most {_count(kept)} of the {combinations} apart ({share}).")
    need = f"All of them need {enough} bits (one less than there are labels)."
    print(need if kept < every else "More bits are not needed for that.")
    words = f"{1 << dimension} codewords of {bits} bits"
    print(f"Margin ζ = {margin:.3f}: {words} can differ in {distance} places ({source}).")


def _percent(part: int, whole: int) -> str:
    share = 100 * (part * 10**12 // whole) / 10**12
    return f"{share:.3g} %" if share >= 1e-6 else "less than a millionth of a per cent"


def _count(number: int) -> str:
    """
    >>> _count(8192), _count(1 << 300)
    ('8,192', 'about 10^90')
    """
    digits = len(str(number))
    return f"{number:,}" if digits <= 18 else f"about 10^{digits - 1}"


def losses(
    family: Annotated[str, Option(help="Of this family, such as pairs.")] = "",
    labels: Annotated[str, Option(help="By what they learn from: classes, pairs, both or none.")] = "",
    since: Annotated[int, Option(help="Published in this year or later.")] = 0,
    json: Json = False,
    markdown: Markdown = False,
) -> None:
    """List the methods that `--loss` takes, with their options."""
    wanted = {name: value for name, value in (("family", family), ("labels", labels)) if value}
    rows = [row for row in method_rows() if row["year"] >= since and wanted.items() <= row.items()]
    if markdown and not json:
        print(methods_table(rows))
        return
    same = {name: name for name in ("family", "year", "options")}
    print_records(rows, {"name": "loss", **same, "complexity": "an epoch", "paper": "paper"}, as_json=json)


def method_rows() -> list[dict[str, Any]]:
    """The facts of every method, read off the registry."""
    methods = {name: lazy.losses.losses[name] for name in lazy.losses.losses.names()}
    facts = ("family", "complexity", "head", "adapted", "paper")
    return [
        {"name": name, **{fact: getattr(method, fact) for fact in facts}}
        | {"labels": LABEL_USE.get(method.family, "pairs"), "options": dict(lazy.losses.option_defaults(method))}
        | {"year": int(method.paper[-4:]) if method.paper[-4:].isdigit() else 0}
        for name, method in methods.items()
    ]


def methods_table(rows: list[dict[str, Any]]) -> str:
    """The table of methods in docs/methods.md."""
    columns = ("name", "family", "labels", "head", "an epoch", "adapted", "paper")
    shown = [row | {"an epoch": row["complexity"], "adapted": "yes" if row["adapted"] else ""} for row in rows]
    shown.sort(key=lambda row: (row["family"], row["name"]))
    return lazy.report.markdown_table(columns, [[row[column] for column in columns] for row in shown])


def backbones(json: Json = False) -> None:
    """List the networks that `--backbone` takes."""
    registry = lazy.networks.backbones
    recipes = {name: registry[name]() for name in registry.names()}
    rows = [{"name": name, "size": made.preprocessing.size, "about": made.about} for name, made in recipes.items()]
    print_records(rows, {"name": "backbone", "size": "pixels", "about": ""}, as_json=json)
    if not json:
        print("and timm:NAME for any model of timm; several side by side, frozen, with + between.")


def datasets(json: Json = False) -> None:
    """List the kinds of data that hyphash reads."""
    registry = lazy.datasets.datasets
    abouts = {name: (getdoc(registry[name]) or "").partition("\n")[0] for name in registry.names()}
    rows = [{"name": name, "about": about} for name, about in abouts.items()]
    print_records(rows, {"name": "dataset", "about": ""}, as_json=json)


def commit() -> str:
    """` (commit 1a2b3c4)` where this was built from a clone, or is one; else nothing."""
    package = Path(__file__).parents[1]
    if (written := package / "commit.txt").is_file():  # by setup.py
        return f" (commit {written.read_text(encoding='ascii').strip()})"
    if not (package.parents[1] / ".git").exists():
        return ""
    with suppress(OSError, subprocess.CalledProcessError):
        asked = ["git", "-C", str(package), "rev-parse", "--short", "HEAD"]
        return f" (commit {subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()})"
    return ""


def doctor(json: Json = False) -> None:
    """Say what this installation can do: versions, kernel, devices, optional packages."""

    def found(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    kernel = lazy.hamming.backend()
    facts = {
        "hyphash": __version__ + commit(),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "search kernel": f"{kernel.name} ({kernel.instructions}), {kernel.threads} threads",
        "feature cache": str(lazy.features.default_cache()),
        **{name: found(name) for name in PACKAGES},
    }
    if facts["torch"] != "not installed":
        import torch

        facts["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    print_found(facts, ("what", "found"), list(facts.items()), as_json=json)


@data.command()
def inspect(
    path: DataPath,
    dataset: Dataset = None,
    data_option: DataOption = None,
    labels_from: LabelsFrom = "",
    check: Annotated[bool, Option(help="Decode every photo to find the unreadable ones.")] = True,
    plot: Annotated[Path | None, Option(help="Draw which labels occur together, as PNG or SVG.")] = None,
    json: Json = False,
) -> None:
    """Print what is in a dataset: counts, labels per photo, label frequencies, η, and what cannot be used."""
    options = data_options(data_option, labels_from=labels_from)
    splits = lazy.datasets.load_dataset(path, dataset, lenient=True, **options)
    with counting("photos") as progress:
        found = lazy.datasets.statistics.statistics(splits, check=check, progress=progress)
    if plot:
        lazy.plots.save(lazy.plots.co_occurrence(found.cooccurrence, found.classes), plot)
    if json:
        print_json(found.record())
    else:
        _print_statistics(found)
    if plot:
        say(f"drawn: {plot}")


def _print_statistics(found: "lazy.datasets.statistics.Statistics") -> None:
    counts = {"photos": found.photos, **found.parts, "labels": len(found.classes)}
    counts |= {"photos with several labels": int(found.labels_per_photo[2:].sum())}
    counts |= {"photos without labels": len(found.unlabelled), "label rows without a photo": len(found.missing)}
    if found.unreadable is not None:
        counts["unreadable photos"] = len(found.unreadable)
    print_table((found.name, "count"), list(counts.items()))
    print(f"labels on the average photo: {found.mean_labels:.2f}")
    print(f"η (training pairs that share no label, both with several): {found.eta:.3f}")
    spread = [(i, int(n)) for i, n in enumerate(found.labels_per_photo) if n]
    print_table(("labels on a photo", "photos"), spread)
    order = sorted(range(len(found.classes)), key=lambda c: -found.frequencies[c])
    rows = [
        (found.classes[c], int(found.frequencies[c]), f"{found.frequencies[c] / max(found.photos, 1):.1%}")
        for c in order[:SHOWN_LABELS]
    ]
    print_table(("label", "photos", "share"), rows)
    if len(order) > SHOWN_LABELS:
        print(f"… and {len(order) - SHOWN_LABELS} rarer labels (all of them with --json)")
    for note in found.notes:
        say(note)
    print_problems(found.unreadable or ())


@data.command()
def sample(
    folder: Annotated[Path, Argument(help="Where to draw it.")],
    train: Annotated[int, Option(min=1, help="Scenes to train on, which are also the database.")] = 3000,
    queries: Annotated[int, Option(min=1, help="Scenes to query with.")] = 1000,
    seed: Annotated[int, Option(help="Another seed draws other scenes.")] = 0,
) -> None:
    """Draw the embedded sample: scenes of emoji with the 20 VOC labels, for trying hyphash without any data."""
    with counting("scenes") as progress:
        fresh = lazy.datasets.sample.draw(folder, train=train, queries=queries, seed=seed, progress=progress)
    print(f"{'drawn' if fresh else 'already there'}: {folder} ({train} + {queries} scenes)")
