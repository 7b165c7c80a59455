"""`hyphash plan`: memory, disk, machines and time before anything is bought"""

from dataclasses import asdict
from typing import Annotated

import typer

from hyphash.cli.options import Json, Markdown
from hyphash.cli.output import print_json, print_table


def plan(
    photos: Annotated[str, typer.Option(metavar="NUMBER", help="How many photos, such as 1e9.")],
    bits: Annotated[int, typer.Option(help="Bits a code.")] = 64,
    qps: Annotated[float, typer.Option(help="Queries a second.")] = 10,
    k: Annotated[int, typer.Option("-k", "--k", min=1, help="Results a query.")] = 10,
    labels_per_photo: Annotated[float, typer.Option(help="Labels a photo carries.")] = 4,
    replicas: Annotated[int, typer.Option(min=1, help="Copies of everything, at least.")] = 1,
    node_memory: Annotated[str, typer.Option(help="Memory of a machine.")] = "256GB",
    node_cores: Annotated[int, typer.Option(min=1, help="Cores of a machine.")] = 32,
    markdown: Markdown = False,
    json: Json = False,
) -> None:
    """Print what a search of that size needs with each engine, from measured figures, with the formulas."""
    from hyphash import planning

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
        from hyphash.report import markdown_table

        print(markdown_table(columns, rows))
    else:
        print_table(columns, rows)
