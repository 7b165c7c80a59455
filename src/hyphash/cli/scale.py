"""`hyphash encode`: many photos into shards of codes; `hyphash plan`: what their search needs, before it is bought"""

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hyphash.cli.lazy import lazy
from hyphash.cli.options import Json, Markdown, RunFolder
from hyphash.cli.output import counting, print_json, print_problems, print_table


def encode(
    run: RunFolder,
    source: Annotated[str, Argument(help="Photos: a folder, list, label file, pattern, s3://photos/*.tar, Parquet …")],
    into: Annotated[Path, Option(help="Folder for the codes; if it was begun already, it is finished.")],
    address: Annotated[str, Option(help="local; ray: a Ray started here; auto or HOST:PORT: a Ray cluster.")] = "local",
    workers: Annotated[int | None, Option(min=1, help="Encoders. [default: one a GPU, else one a core]")] = None,
    per_shard: Annotated[int | None, Option(min=1, help="Photos in a shard. [default: up to 10,000]")] = None,
    no_labels: Annotated[bool, Option("--no-labels", help="Leave out labels that the source has.")] = False,
    thumbnails: Annotated[bool, Option("--thumbnails", help="Also keep small pictures, about 8 kB a photo.")] = False,
    device: Annotated[str, Option(help="cpu, cuda … [default: GPUs if there are]", show_default=False)] = "auto",
    json: Json = False,
) -> None:
    """Encode photos into Parquet shards that any collection can load. Stopped and run again, it goes on."""
    steps = lazy.encoding.encode(
        run, source, into=into, address=address, workers=workers, per_shard=per_shard, device=device,
        labels=not no_labels, thumbnails=thumbnails,
    )  # fmt: skip
    with counting("shards", into=into) as progress, closing(steps):
        for step in steps:
            progress(step.done, step.total)
    summary = lazy.encoding.summary_of(into)
    if json:
        told = asdict(summary)
        print_json({"folder": str(into), **told, "shards": len(summary.shards), "left_out": told.pop("problems")})
    else:
        print(f"{into}: {summary.photos:,} photos in {len(summary.shards):,} shards, {summary.bits} bits each")
    print_problems(lazy.encoding.problems_in(into))


def plan(
    photos: Annotated[str, Option(metavar="NUMBER", help="How many photos, such as 1e9.")],
    bits: Annotated[int, Option(help="Bits a code.")] = 64,
    qps: Annotated[float, Option(help="Queries a second.")] = 10,
    k: Annotated[int, Option("-k", "--k", min=1, help="Results a query.")] = 10,
    labels_per_photo: Annotated[float, Option(help="Labels a photo carries.")] = 4,
    replicas: Annotated[int, Option(min=1, help="Copies of everything, at least.")] = 1,
    node_memory: Annotated[str, Option(help="Memory of a machine.")] = "256GB",
    node_cores: Annotated[int, Option(min=1, help="Cores of a machine.")] = 32,
    markdown: Markdown = False,
    json: Json = False,
) -> None:
    """Print what a search of that size needs with each engine, from measured figures, with the formulas."""
    planning = lazy.planning
    wish = planning.Wish(
        photos=planning.count_of(photos), bits=bits, qps=qps, k=k, labels_per_photo=labels_per_photo, replicas=replicas,
        node_memory=planning.size_of(node_memory), node_cores=node_cores,
    )  # fmt: skip
    estimates, encoding = planning.plan(wish), planning.encoding(wish)
    if json:
        shown = {"engines": [asdict(one) for one in estimates], "encoding": [asdict(figure) for figure in encoding]}
        print_json({"wish": asdict(wish), **shown})
        return
    columns, rows = ("engine", "what", "estimate", "formula"), []
    for one in estimates:
        rows += [(one.engine, figure.name, figure.text, figure.formula) for figure in one.figures]
        rows += [(one.engine, "", "", one.note)]
    rows += [("", figure.name, figure.text, figure.formula) for figure in encoding]
    if markdown:
        print(lazy.report.markdown_table(columns, rows))
    else:
        print_table(columns, rows)
