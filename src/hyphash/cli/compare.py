"""`hyphash compare`"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyphash.cli.measure import measure_run
from hyphash.cli.options import (
    Cache,
    DataOption,
    Dataset,
    Device,
    Json,
    WeightsFiles,
    data_options,
    numbers,
    options_from,
    weights_options,
)
from hyphash.cli.output import print_json, print_table, say
from hyphash.cli.reproduce import RecipeName, do_runs, recipes_named
from hyphash.errors import ConfigError, DataError, HyphashError

if TYPE_CHECKING:
    from hyphash.evaluation import Report
    from hyphash.report import Page, Table


def compare(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Two of: a run folder, a report.json, codes made elsewhere (.npz); with --losses, codes."),
    ] = None,
    data: Annotated[str, typer.Option(help="A label file, a folder of photos, or a benchmark's folder.")] = "",
    losses: Annotated[str, typer.Option(help="Methods with commas between, or all.")] = "",
    bits: Annotated[str, typer.Option(help="Lengths, such as 12,48.")] = "48",
    seeds: Annotated[str, typer.Option(help="Seeds, such as 0,1,2.")] = "0",
    into: Annotated[Path, typer.Option(help="Folder for the results; those in it are not made again.")] = Path(
        "comparison"
    ),
    backbone: Annotated[str, typer.Option(help="See `hyphash backbones`.")] = "efficientnet_lite0",
    weights: WeightsFiles = None,
    mode: Annotated[str, typer.Option(help="frozen, fine-tune, or auto.")] = "auto",
    set_: Annotated[list[str] | None, typer.Option("--set", help="A setting for all, such as epochs=20.")] = None,
    top: Annotated[int, typer.Option(min=1, help="N of mAP@N.")] = 1000,
    recipe: RecipeName = "house",
    watch: Annotated[int, typer.Option(min=1, help="Epochs between two looks at the queries.")] = 5,
    dataset: Dataset = None,
    data_option: DataOption = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs side by side.")] = 1,
    device: Device = "auto",
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Two runs query by query: is the difference real? Or train several methods on the same photos, for one table.

    Codes made elsewhere for the same photos (.npz) get rows in that table, too.

    `hyphash compare A B` measures a run that is not measured yet, and prints what B adds to A: the mean difference of
    the average precision of each query, its 95 % interval, a two-sided p-value, and the queries that differ most.
    """
    if not (data and losses):
        if data or losses or runs is None or len(runs) != 2:
            raise ConfigError("compare takes two runs, or what to train, --data and --losses, and codes to put beside")
        _compare_runs(*runs, top=top, device=device, cache=cache, as_json=json)
        return
    table = {
        "data": data, "data_options": data_options(data_option), "backbone": backbone, "mode": mode, "top": top,
        "validation": 0.0, "device": device, **weights_options(weights or []), **options_from(set_ or [], "--set"),
    } | ({"dataset": dataset} if dataset else {})  # fmt: skip
    page = _compare_losses(
        table, losses, jobs=jobs, cache=cache, into=into,
        bits=numbers(bits, "--bits"), seeds=numbers(seeds, "--seeds"), watch=watch, recipes=recipes_named(recipe),
        codes=tuple(_report_of_codes(path, top) for path in runs or ()),
    )  # fmt: skip
    path = page.write(into)
    _print_tables(page.tables, json)
    say(f"written: {path}")


def _compare_losses(
    settings: dict[str, Any], losses: str, *, jobs: int, cache: Path | None, into: Path, **choices: Any
) -> "Page":
    """Do the runs that are not done, with what they share in `settings`, and show all of them."""
    from hyphash.benchmarks.reproduction import Comparison, choose_losses
    from hyphash.benchmarks.runs import Results
    from hyphash.config import Config, from_table
    from hyphash.features import default_cache

    chosen, config = choose_losses(losses), from_table(Config, settings, "the command line")
    comparison = Comparison(config=config, losses=chosen, results=Results(into), **choices)
    cached = cache or default_cache()
    for run, reason in do_runs(lambda stop: comparison.start(jobs=jobs, cache=cached, stop=stop)):
        say(f"{run} failed: {reason}")
    return comparison.page(f"Comparison on {Path(config.data).name}")


def _compare_runs(one: Path, other: Path, *, top: int, device: str, cache: Path | None, as_json: bool) -> None:
    from hyphash.evaluation import compare_reports

    before, after = (_report(path, top=top, device=device, cache=cache) for path in (one, other))
    before, after = _paired(before, other, after), _paired(after, one, before)
    names = _query_names(one, before) or _query_names(other, after)
    found = [compared.to_table(names) for compared in compare_reports(before, after)]
    about = {"A": (one, before), "B": (other, after)}
    if as_json:
        told = {name: {"run": str(path), "bits": report.bits, **report.facts} for name, (path, report) in about.items()}
        print_json(told | {"queries": before.queries, "protocols": found})
        return
    for name, (path, report) in about.items():
        facts = "".join(f", {report.facts[fact]}" for fact in ("loss", "backbone") if fact in report.facts)
        print(f"{name}: {path}, {report.bits} bits{facts}")
    _print_differences(found, before.queries)


def _paired(codes: "Report", run: Path, report: "Report") -> "Report":
    """A report of codes made elsewhere, as one of the run's own photos if these have the same labels in this order."""
    from hyphash.datasets import load_dataset
    from hyphash.evaluation import label_checksum
    from hyphash.training.runs import read_run

    if codes.dataset or not run.is_dir():
        return codes
    config = read_run(run)
    splits = load_dataset(config.data, config.dataset, **config.data_options)
    same = label_checksum(splits.queries.labels, splits.database.labels) == codes.photos
    return replace(codes, dataset=report.dataset, photos=report.photos) if same else codes


def _print_differences(found: "Sequence[dict[str, Any]]", queries: int) -> None:
    """How much B adds, and to which queries most; the last line says what to make of it."""
    rows = []
    for each in found:
        gap, depth = each["difference"], f"@{each['top']:,}" if each["top"] else "@all"
        interval = " to ".join(f"{end:+.4f}" for end in gap["interval"])
        means = (each["before"], each["after"], f"{gap['mean']:+.4f}", interval, gap["p"])
        rows.append((f"{each['protocol']}{depth}", *means, gap["gain"], gap["lose"]))
    columns = ("protocol", "mAP of A", "mAP of B", "B adds", "95 % interval", "p", "queries gain", "lose")
    print_table(columns, rows, title=f"the same {queries:,} queries")
    most = [(each["protocol"], *query.values()) for each in found for query in each["queries"]]
    print_table(("protocol", "query that differs most", "AP of A", "AP of B", "B adds"), most)
    for each in found:
        gap = each["difference"]
        verdict = f"{'B' if gap['mean'] > 0 else 'A'} ranks better" if gap["sure"] else "the difference may be chance"
        print(f"{each['protocol']}: {verdict} (p = {gap['p']:.2g})")


def _report(path: Path, *, top: int, device: str, cache: Path | None) -> "Report":
    """The report in a file, or of a run: as it was written, if it is of these weights and this depth, else made now."""
    from hyphash.evaluation import Report
    from hyphash.hasher import read_spec
    from hyphash.training.runs import read_run

    if path.suffix == ".npz":
        return _report_of_codes(path, top)
    if path.is_file():
        return Report.from_json(path.read_text(encoding="utf-8"), path)
    read_run(path)  # says so where there is none
    file, fresh = path / "report.json", None
    if file.is_file():
        fresh = Report.from_json(file.read_text(encoding="utf-8"), file)
        if fresh.facts.get("hasher") != read_spec(path).fingerprint or fresh.scores[0].by_query is None:
            fresh = None  # of weights that are gone, or from before queries were kept
    if fresh and all(protocol.top == top for protocol in fresh.protocols):
        return fresh
    return measure_run(path, top=top, into=None if fresh else path, device=device, cache=cache)[0]


def _report_of_codes(path: Path, top: int) -> "Report":
    """The report of codes made elsewhere: arrays query_codes, query_labels, database_codes and database_labels.

    A row a photo; of codes or outputs, those above 0 are ones. Labels are multi-hot.
    """
    import numpy as np

    from hyphash.codes import Codes
    from hyphash.evaluation import Rankings, evaluate_codes, label_checksum

    try:
        with np.load(path) as arrays:  # which never unpickles
            queries, database = (Codes.from_outputs(arrays[f"{part}_codes"]) for part in ("query", "database"))
            wanted, offered = ((arrays[f"{part}_labels"] > 0).view(np.uint8) for part in ("query", "database"))
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"{path}: {error}; give query_codes, query_labels, database_codes, database_labels") from error
    rankings, photos = Rankings(queries, database, wanted, offered), label_checksum(wanted, offered)
    return evaluate_codes(rankings, top=top, facts={"loss": path.stem}, photos=photos)


def _query_names(run: Path, report: "Report") -> list[str]:
    """What the queries of a run are called, if its dataset is there, has these queries, and all of them can be read."""
    from hyphash.datasets import load_dataset
    from hyphash.evaluation import checksum
    from hyphash.training.runs import read_run

    if run.is_file():
        return []
    config = read_run(run)
    try:
        splits = load_dataset(config.data, config.dataset, **config.data_options)
    except HyphashError:  # moved, or gone; the reports are enough
        return []
    known = checksum(splits.queries, splits.database) == report.photos
    return [splits.queries.name(i) for i in range(len(splits.queries))] if known else []


def _print_tables(tables: "Iterable[Table]", as_json: bool) -> None:
    if as_json:
        print_json({table.name: table.records for table in tables})
        return
    for table in tables:
        print(f"{table.above}\n\n{table.title}\n\n{table.plain()}\n")
