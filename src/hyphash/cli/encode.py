"""`hyphash encode`: many photos into shards of codes, on one machine or on a Ray cluster"""

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hyphash.cli.options import Json, RunFolder
from hyphash.cli.output import counting, print_json, print_problems


def encode(
    run: RunFolder,
    source: Annotated[
        str,
        typer.Argument(
            help="Photos: a folder, a list (.txt), a label file, a pattern, tar files (WebDataset) or Parquet; "
            "here or behind a URL such as s3://photos/*.tar."
        ),
    ],
    into: Annotated[Path, typer.Option(help="Folder for the codes; if it was begun already, it is finished.")],
    address: Annotated[
        str, typer.Option(help="local: processes; ray: a Ray started here; auto or HOST:PORT: a Ray cluster.")
    ] = "local",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Encoders. [default: one a GPU, else one a core]", show_default=False)
    ] = None,
    per_shard: Annotated[
        int | None, typer.Option(min=1, help="Photos in a shard. [default: up to 10,000]", show_default=False)
    ] = None,
    no_labels: Annotated[bool, typer.Option("--no-labels", help="Leave out labels that the source has.")] = False,
    thumbnails: Annotated[
        bool, typer.Option("--thumbnails", help="Also keep small pictures, about 8 kB a photo.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda … [default: GPUs if there are]", show_default=False)] = "auto",
    json: Json = False,
) -> None:
    """Encode photos into Parquet shards that any collection can load. Stopped and run again, it goes on."""
    from hyphash.encoding import encode as steps_of
    from hyphash.encoding import problems_in, summary_of

    steps = steps_of(
        run, source, into=into, address=address, workers=workers, per_shard=per_shard, device=device,
        labels=not no_labels, thumbnails=thumbnails,
    )  # fmt: skip
    with counting("shards", into=into) as progress, closing(steps):
        for step in steps:
            progress(step.done, step.total)
    summary = summary_of(into)
    if json:
        told = asdict(summary)
        print_json({"folder": str(into), **told, "shards": len(summary.shards), "left_out": told.pop("problems")})
    else:
        print(f"{into}: {summary.photos:,} photos in {len(summary.shards):,} shards, {summary.bits} bits each")
    print_problems(problems_in(into))
