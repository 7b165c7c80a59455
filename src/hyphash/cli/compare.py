"""`hyphash compare`"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyphash.cli.options import Cache, DataOption, Dataset, Device, Json, data_options, numbers, options_from
from hyphash.cli.output import print_json, say
from hyphash.cli.reproduce import do_runs

if TYPE_CHECKING:
    from hyphash.report import Table


def compare(
    data: Annotated[str, typer.Option(help="A label file, a folder of photos, or a benchmark's folder.")],
    losses: Annotated[str, typer.Option(help="Methods with commas between, or all.")],
    bits: Annotated[str, typer.Option(help="Lengths, such as 12,48.")] = "48",
    seeds: Annotated[str, typer.Option(help="Seeds, such as 0,1,2.")] = "0",
    into: Annotated[Path, typer.Option(help="Folder for the results; those in it are not made again.")] = Path(
        "comparison"
    ),
    backbone: Annotated[str, typer.Option(help="See `hyphash backbones`.")] = "efficientnet_lite0",
    weights: Annotated[str, typer.Option(help="A weights file, none, or default.")] = "default",
    mode: Annotated[str, typer.Option(help="frozen, fine-tune, or auto.")] = "auto",
    set_: Annotated[list[str] | None, typer.Option("--set", help="A setting for all, such as epochs=20.")] = None,
    top: Annotated[int, typer.Option(min=1, help="N of mAP@N.")] = 1000,
    watch: Annotated[int, typer.Option(min=1, help="Epochs between two looks at the queries.")] = 5,
    dataset: Dataset = None,
    data_option: DataOption = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs side by side.")] = 1,
    device: Device = "auto",
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Train several methods on the same photos and print one table: mAP, seconds, seconds to converge."""
    from hyphash.benchmarks.reproduction import Comparison, choose_losses
    from hyphash.benchmarks.runs import Results
    from hyphash.config import Config, from_table
    from hyphash.features import default_cache

    chosen = choose_losses(losses)
    table = {
        "data": data, "data_options": data_options(data_option), "backbone": backbone, "weights": weights, "mode": mode,
        "validation": 0.0, "top": top, "device": device,
    }  # fmt: skip
    config = from_table(Config, table | options_from(set_ or [], "--set"), "the command line")
    comparison = Comparison(
        config=replace(config, dataset=dataset), losses=chosen, bits=numbers(bits, "--bits"),
        seeds=numbers(seeds, "--seeds"), watch=watch, results=Results(into),
    )  # fmt: skip
    cached = cache or default_cache()
    for run, reason in do_runs(lambda stop: comparison.start(jobs=jobs, cache=cached, stop=stop)):
        say(f"{run} failed: {reason}")
    page = comparison.page(f"Comparison on {Path(data).name}")
    path = page.write(into)
    _print_tables(page.tables, json)
    say(f"written: {path}")


def _print_tables(tables: "Iterable[Table]", as_json: bool) -> None:
    if as_json:
        print_json({table.name: table.records for table in tables})
        return
    for table in tables:
        print(f"{table.above}\n\n{table.title}\n\n{table.plain()}\n")
