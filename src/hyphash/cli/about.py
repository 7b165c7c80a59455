"""Commands that explain: capacity, losses, backbones, datasets, doctor."""

import inspect
from typing import Annotated, Any

import typer

from hyphash.cli.options import Json, Markdown
from hyphash.cli.output import print_found, print_json, print_records

LABEL_USE = {  # by family, where it is not which photos are related
    **dict.fromkeys(("proxies", "centres", "classifiers"), "classes"), "proxies and pairs": "both",
    **dict.fromkeys(("no labels", "no training"), "none"),
}  # fmt: skip


def capacity(
    bits: Annotated[int, typer.Option(help="Length of the codes.", min=1)],
    classes: Annotated[int, typer.Option(help="Number of labels.", min=1)],
    json: Json = False,
) -> None:
    """Explain how many combinations of labels so few bits can keep apart, and the margin that follows."""
    from hyphash import coding

    kept, every = coding.capacity(classes=classes, bits=bits), 1 << classes
    enough = coding.bits_for_all_label_sets(classes)
    dimension = coding.dimension(classes)
    distance = coding.minimum_distance(bits, dimension)
    margin = coding.margin(classes=classes, bits=bits)
    source = "the best known linear code" if coding.in_table(bits, dimension) else "the Gilbert–Varshamov bound"
    if json:
        print_json(
            {
                "bits": bits,
                "classes": classes,
                "capacity": kept,
                "label_sets": every,
                "bits_for_all": enough,
                "margin": margin,
                "minimum_distance": distance,
                "distance_from": source,
            }
        )
        return
    share = "all of them" if kept == every else _percent(kept, every)
    combinations = f"{_count(every)} combinations of {classes} labels"
    print(f"{bits} bits can keep at most {_count(kept)} of the {combinations} apart ({share}).")
    print(
        f"All of them need {enough} bits (one less than there are labels)."
        if kept < every
        else "More bits are not needed for that."
    )
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
    family: Annotated[str, typer.Option(help="Of this family, such as pairs.")] = "",
    labels: Annotated[str, typer.Option(help="By what they learn from: classes, pairs, both or none.")] = "",
    since: Annotated[int, typer.Option(help="Published in this year or later.")] = 0,
    json: Json = False,
    markdown: Markdown = False,
) -> None:
    """List the methods that `--loss` takes, with their options."""
    wanted = {name: value for name, value in (("family", family), ("labels", labels)) if value}
    rows = [row for row in method_rows() if row["year"] >= since and wanted.items() <= row.items()]
    if markdown and not json:
        print(methods_table(rows))
        return
    columns = {
        "name": "loss",
        "family": "family",
        "year": "year",
        "options": "options",
        "complexity": "an epoch",
        "paper": "paper",
    }
    print_records(rows, columns, as_json=json)


def method_rows() -> list[dict[str, Any]]:
    """The facts of every method, read off the registry."""
    from hyphash.losses import losses as registry
    from hyphash.losses import option_defaults

    methods = {name: registry[name] for name in registry.names()}
    return [
        {
            "name": name,
            "family": method.family,
            "labels": LABEL_USE.get(method.family, "pairs"),
            "year": int(method.paper[-4:]) if method.paper[-4:].isdigit() else 0,
            "options": dict(option_defaults(method)),
            "complexity": method.complexity,
            "head": method.head,
            "adapted": method.adapted,
            "paper": method.paper,
        }
        for name, method in methods.items()
    ]


def methods_table(rows: list[dict[str, Any]]) -> str:
    """The table of methods in docs/methods.md."""
    from hyphash.report import markdown_table

    cells = [
        (r["name"], r["family"], r["labels"], r["head"], r["complexity"], "yes" if r["adapted"] else "", r["paper"])
        for r in sorted(rows, key=lambda row: (row["family"], row["name"]))
    ]
    return markdown_table(("name", "family", "labels", "head", "an epoch", "adapted", "paper"), cells)


def backbones(json: Json = False) -> None:
    """List the networks that `--backbone` takes."""
    from hyphash.networks import backbones as registry

    recipes = {name: registry[name]() for name in registry.names()}
    rows = [{"name": name, "size": made.preprocessing.size, "about": made.about} for name, made in recipes.items()]
    print_records(rows, {"name": "backbone", "size": "pixels", "about": ""}, as_json=json)
    if not json:
        print("and timm:NAME for any model of timm; several side by side, frozen, with + between.")


def datasets(json: Json = False) -> None:
    """List the kinds of data that hyphash reads."""
    from hyphash.datasets import datasets as registry

    abouts = {name: (inspect.getdoc(registry[name]) or "").partition("\n")[0] for name in registry.names()}
    rows = [{"name": name, "about": about} for name, about in abouts.items()]
    print_records(rows, {"name": "dataset", "about": ""}, as_json=json)


def commit() -> str:
    """` (commit 1a2b3c4)` where this was built from a clone, or is one; else nothing."""
    import subprocess
    from pathlib import Path

    package = Path(__file__).parents[1]
    if (written := package / "commit.txt").is_file():  # by setup.py
        return f" (commit {written.read_text(encoding='ascii').strip()})"
    if not (package.parents[1] / ".git").exists():
        return ""
    asked = ["git", "-C", str(package), "rev-parse", "--short", "HEAD"]
    try:
        return f" (commit {subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()})"
    except (OSError, subprocess.CalledProcessError):
        return ""


def doctor(json: Json = False) -> None:
    """Say what this installation can do: versions, kernel, devices, optional packages."""
    import os
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from hyphash import __version__, hamming
    from hyphash.features import default_cache

    def found(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    kernel = hamming.backend()
    facts = {
        "hyphash": __version__ + commit(),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "search kernel": f"{kernel.name} ({kernel.instructions}), {kernel.threads} threads",
        "feature cache": str(default_cache()),
        **{
            name: found(name)
            for name in ("numpy", "pillow", "torch", "torchvision", "timm", "matplotlib", "pillow-heif")
        },
    }
    if facts["torch"] != "not installed":
        import torch

        facts["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    print_found(facts, ("what", "found"), list(facts.items()), as_json=json)
