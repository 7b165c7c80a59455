"""`hyphash data inspect` and `hyphash data sample`"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyphash.cli.options import DataOption, Dataset, Json, LabelsFrom, data_options
from hyphash.cli.output import counting, print_json, print_problems, print_table, say

if TYPE_CHECKING:
    from hyphash.datasets.statistics import Statistics

app = typer.Typer(no_args_is_help=True)
SHOWN_LABELS = 40


@app.callback()
def root() -> None:
    """Look at datasets and draw the sample."""


@app.command()
def inspect(
    path: Annotated[str, typer.Argument(help="A label file, a folder of photos, or a benchmark's folder.")],
    dataset: Dataset = None,
    data_option: DataOption = None,
    labels_from: LabelsFrom = "",
    check: Annotated[bool, typer.Option(help="Decode every photo to find the unreadable ones.")] = True,
    plot: Annotated[Path | None, typer.Option(help="Draw which labels occur together, as PNG or SVG.")] = None,
    json: Json = False,
) -> None:
    """Print what is in a dataset: counts, labels per photo, label frequencies, η, and what cannot be used."""
    from hyphash.datasets import load_dataset
    from hyphash.datasets.statistics import statistics

    splits = load_dataset(path, dataset, lenient=True, **data_options(data_option, labels_from=labels_from))
    with counting("photos") as progress:
        found = statistics(splits, check=check, progress=progress)
    if plot:
        from hyphash import plots

        plots.save(plots.co_occurrence(found.cooccurrence, found.classes), plot)
    if json:
        print_json(found.record())
    else:
        _print_statistics(found)
    if plot:
        say(f"drawn: {plot}")


def _print_statistics(found: "Statistics") -> None:
    several = int(found.labels_per_photo[2:].sum())
    counts = [("photos", found.photos), *found.parts.items(), ("labels", len(found.classes))]
    counts += [("photos with several labels", several), ("photos without labels", len(found.unlabelled))]
    counts += [("label rows without a photo", len(found.missing))]
    if found.unreadable is not None:
        counts += [("unreadable photos", len(found.unreadable))]
    print_table((found.name, "count"), counts)
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


@app.command()
def sample(
    folder: Annotated[Path, typer.Argument(help="Where to draw it.")],
    train: Annotated[int, typer.Option(min=1, help="Scenes to train on, which are also the database.")] = 3000,
    queries: Annotated[int, typer.Option(min=1, help="Scenes to query with.")] = 1000,
    seed: Annotated[int, typer.Option(help="Another seed draws other scenes.")] = 0,
) -> None:
    """Draw the embedded sample: scenes of emoji with the 20 VOC labels, for trying hyphash without any data."""
    from hyphash.datasets.sample import draw

    with counting("scenes") as progress:
        fresh = draw(folder, train=train, queries=queries, seed=seed, progress=progress)
    print(f"{'drawn' if fresh else 'already there'}: {folder} ({train} + {queries} scenes)")
