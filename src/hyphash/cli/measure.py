"""`hyphash evaluate` and `hyphash compare`"""

import json as jsonlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from hyphash.cli import options
from hyphash.cli.lazy import lazy
from hyphash.cli.output import counting, print_json, print_problems, print_table, say
from hyphash.cli.reproduce import RecipeName, do_runs, recipes_named
from hyphash.errors import ConfigError, DataError, HyphashError, LabelError

SHOWN_LABELS = 3


def evaluate(
    run: options.RunFolder,
    data: Annotated[str | None, Option(help="Measure on another dataset. [default: the run's own]")] = None,
    dataset: options.Dataset = None,
    top: Annotated[int, Option(min=1, help="N of mAP@N and its kin.")] = 1000,
    relevance: Annotated[str, Option(help="How relevant labels are: a CSV, or tree. [default: the run's own]")] = "",
    gallery: Annotated[int, Option(min=0, help="Queries to show in the page.")] = 8,
    into: Annotated[Path | None, Option(help="Where report.html and report.json go. [default: RUN]")] = None,
    device: options.Device = "auto",
    cache: options.Cache = None,
    json: options.Json = False,
) -> None:
    """Measure how well the codes of a run find photos; both protocols, a table, report.json and report.html."""
    splits = lazy.load_dataset(data, dataset) if data else splits_of(run)
    report, found = _measured(run, splits, top=top, relevance=relevance, device=device, cache=cache)
    page = lazy.report.write_report(into or run, report, gallery=found(count=gallery) if gallery else ())
    if json:
        print_json(jsonlib.loads(report.to_json()))
    else:
        _print_report(report)
    print_problems(report.problems)
    say(f"written: {page}")


def _measured(
    run: Path, splits: "lazy.datasets.Splits", *, top: int, relevance: str = "", device: str, cache: Path | None
) -> "tuple[lazy.evaluation.Report, Callable[..., list[lazy.report.GalleryRow]]]":
    """The report of a run, with a progress bar; and what gives rows for the gallery of its page."""
    config, measure, encode = lazy.training.runs.read_run(run), lazy.evaluate, lazy.evaluation.encode_split
    hasher = lazy.Hasher.load(run, device=device)
    _require_same_labels(hasher, splits)
    features = (cache or lazy.features.default_cache()) if config.mode == "frozen" else None
    with counting("queries") as progress:
        queries = encode(hasher, splits.queries, cache=features, progress=progress)
    with counting("database") as progress:
        database = encode(hasher, splits.database, cache=features, progress=progress)
    relevance = relevance or config.relevance
    facts = {"loss": config.loss, "backbone": config.backbone, "mode": str(config.mode)}
    facts |= {"epoch": f"{config.keep} of {config.epochs}", "seed": str(config.seed), "hasher": hasher.fingerprint}
    facts |= {"relevance": relevance} if relevance else {}
    own = lazy.losses.relevance.load_relevance(relevance, splits.classes)
    for bits in config.lengths[:-1]:
        shorter = queries.prefix(bits), database.prefix(bits)
        scores = measure(hasher, splits, top=top, encoded=shorter, asymmetric=False, relevance=own).scores
        facts[f"mAP of the first {bits} bits"] = ", ".join(
            f"{each.mean_average_precision:.4f} ({each.protocol.name})" for each in scores
        )
    report = measure(hasher, splits, top=top, encoded=(queries, database), facts=facts, relevance=own)
    return report, partial(lazy.report.gallery_rows, queries, database, splits.classes, quantizer=hasher.quantizer)


def splits_of(run: Path) -> "lazy.datasets.Splits":
    """The photos that a run was trained on, if they are still where they were."""
    config = lazy.training.runs.read_run(run)
    return lazy.load_dataset(config.data, config.dataset, **config.data_options)


def _require_same_labels(hasher: "lazy.Hasher", splits: "lazy.datasets.Splits") -> None:
    """Refuse labels in another order or of another dataset: their columns would mean something else."""
    if splits.classes != hasher.classes:
        raise LabelError(
            f"the dataset has {len(splits.classes)} labels, of which {len({*splits.classes} & {*hasher.classes})} are "
            f"among the {len(hasher.classes)} it was trained with; measure it on data with the same labels"
        )


def _print_report(report: "lazy.evaluation.Report") -> None:
    for protocol in report.protocols:
        print(protocol.describe())
    rows = []
    for s in report.scores:
        means = s.mean_average_precision, s.how_sure(), s.precision[-1][1], s.ndcg, s.average_gain
        rows.append((s.protocol.name, s.ranked_by, *means))
    mean, *others = (f"{measure}{report.protocols[0].depth}" for measure in ("mAP", "precision", "NDCG", "ACG"))
    columns = ("protocol", "ranking", mean, "95 % interval", *others)
    print_table(columns, rows, title=f"{report.dataset}, {report.bits} bits")
    print_table(("codes of the database", "value", "how"), report.code_rows())
    if report.labelling:
        print_table(("label layer", "value", "how"), report.labelling.rows())
    for fact, value in report.facts.items():
        if fact.startswith("mAP"):
            print(f"{fact}: {value}")
    known = [label for label in report.labels if label.found is not None]
    ranked = sorted(known, key=lambda label: label.found or 0.0, reverse=True)
    if len(ranked) > 1:
        best = ", ".join(f"{label.name} {label.found:.2f}" for label in ranked[:SHOWN_LABELS])
        worst = ", ".join(f"{label.name} {label.found:.2f}" for label in ranked[-SHOWN_LABELS:])
        print(f"found best: {best}; worst: {worst} (share of a label's own photos among as many nearest)")


def compare(
    runs: Annotated[
        list[Path] | None,
        Argument(help="Two of: a run folder, a report.json, codes made elsewhere (.npz); with --losses, codes."),
    ] = None,
    data: Annotated[str, Option(help="A label file, a folder of photos, or a benchmark's folder.")] = "",
    losses: Annotated[str, Option(help="Methods with commas between, or all.")] = "",
    bits: Annotated[str, Option(help="Lengths, such as 12,48.")] = "48",
    seeds: Annotated[str, Option(help="Seeds, such as 0,1,2.")] = "0",
    into: Annotated[Path, Option(help="Folder for the results; those in it are not made again.")] = Path("comparison"),
    backbone: Annotated[str, Option(help="See `hyphash backbones`.")] = "efficientnet_lite0",
    weights: options.WeightsFiles = None,
    mode: Annotated[str, Option(help="frozen, fine-tune, or auto.")] = "auto",
    set_: Annotated[list[str] | None, Option("--set", help="A setting for all, such as epochs=20.")] = None,
    top: Annotated[int, Option(min=1, help="N of mAP@N.")] = 1000,
    recipe: RecipeName = "house",
    watch: Annotated[int, Option(min=1, help="Epochs between two looks at the queries.")] = 5,
    dataset: options.Dataset = None,
    data_option: options.DataOption = None,
    jobs: Annotated[int, Option(min=1, help="Runs side by side.")] = 1,
    device: options.Device = "auto",
    cache: options.Cache = None,
    json: options.Json = False,
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
        "data": data, "data_options": options.data_options(data_option), "backbone": backbone, "mode": mode, "top": top,
        "validation": 0.0, "device": device, **options.weights_options(weights or []),
        **options.options_from(set_ or [], "--set"), **({"dataset": dataset} if dataset else {}),
    }  # fmt: skip
    _compare_losses(
        table, losses, jobs=jobs, cache=cache, into=into, bits=options.numbers(bits, "--bits"),
        seeds=options.numbers(seeds, "--seeds"), watch=watch, recipes=recipes_named(recipe),
        codes=tuple(_report_of_codes(path, top) for path in runs or ()), as_json=json,
    )  # fmt: skip


def _compare_losses(
    settings: dict[str, Any], losses: str, *, jobs: int, cache: Path | None, into: Path, as_json: bool, **choices: Any
) -> None:
    """Do the runs that are not done, with what they share in `settings`, and show all of them."""
    made, config = lazy.benchmarks.reproduction, lazy.config.from_table(lazy.Config, settings, "the command line")
    chosen, results = made.choose_losses(losses), lazy.benchmarks.runs.Results(into)
    comparison = made.Comparison(config=config, losses=chosen, results=results, **choices)
    cached = cache or lazy.features.default_cache()
    for run, reason in do_runs(lambda stop: comparison.start(jobs=jobs, cache=cached, stop=stop)):
        say(f"{run} failed: {reason}")
    page = comparison.page(f"Comparison on {Path(config.data).name}")
    path = page.write(into)
    if as_json:
        print_json({table.name: table.records for table in page.tables})
    for table in () if as_json else page.tables:
        print(f"{table.above}\n\n{table.title}\n\n{table.plain()}\n")
    say(f"written: {path}")


def _compare_runs(one: Path, other: Path, *, top: int, device: str, cache: Path | None, as_json: bool) -> None:
    before, after = (_report(path, top=top, device=device, cache=cache) for path in (one, other))
    before, after = _paired(before, other, after), _paired(after, one, before)
    names = _query_names(one, before) or _query_names(other, after)
    found = lazy.evaluation.compare_reports(before, after, names)
    about = {"A": (one, before), "B": (other, after)}
    if as_json:
        told = {name: {"run": str(path), "bits": report.bits, **report.facts} for name, (path, report) in about.items()}
        print_json(told | {"queries": before.queries, "protocols": found})
        return
    for name, (path, report) in about.items():
        facts = "".join(f", {report.facts[fact]}" for fact in ("loss", "backbone") if fact in report.facts)
        print(f"{name}: {path}, {report.bits} bits{facts}")
    _print_differences(found, before.queries)


def _paired(codes: "lazy.evaluation.Report", run: Path, report: "lazy.evaluation.Report") -> "lazy.evaluation.Report":
    """A report of codes made elsewhere, as one of the run's own photos if these have the same labels in this order."""
    if codes.dataset or not run.is_dir():
        return codes
    splits = splits_of(run)
    same = lazy.evaluation.label_checksum(splits.queries.labels, splits.database.labels) == codes.photos
    return replace(codes, dataset=report.dataset, photos=report.photos) if same else codes


def _print_differences(found: Sequence[dict[str, Any]], queries: int) -> None:
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


def _report(path: Path, *, top: int, device: str, cache: Path | None) -> "lazy.evaluation.Report":
    """The report in a file, or of a run: as it was written, if it is of these weights and this depth, else made now."""
    read = lazy.evaluation.Report.parse
    if path.suffix == ".npz":
        return _report_of_codes(path, top)
    if path.is_file():
        return read(path.read_text(encoding="utf-8"), path)
    lazy.training.runs.read_run(path)  # says so where there is none
    file, fresh = path / "report.json", None
    if file.is_file():
        fresh = read(file.read_text(encoding="utf-8"), file)
        if fresh.facts.get("hasher") != lazy.hasher.read_spec(path).fingerprint or fresh.scores[0].by_query is None:
            fresh = None  # of weights that are gone, or from before queries were kept
    if fresh and all(protocol.top == top for protocol in fresh.protocols):
        return fresh
    report, found = _measured(path, splits_of(path), top=top, device=device, cache=cache)
    if not fresh:
        lazy.report.write_report(path, report, gallery=found())
    return report


def _report_of_codes(path: Path, top: int) -> "lazy.evaluation.Report":
    """The report of codes made elsewhere: arrays query_codes, query_labels, database_codes and database_labels.

    A row a photo; of codes or outputs, those above 0 are ones. Labels are multi-hot.
    """
    import numpy as np  # not for --help

    evaluation = lazy.evaluation
    try:
        with np.load(path) as arrays:  # which never unpickles
            queries, database = (lazy.Codes.from_outputs(arrays[f"{part}_codes"]) for part in ("query", "database"))
            wanted, offered = ((arrays[f"{part}_labels"] > 0).view(np.uint8) for part in ("query", "database"))
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"{path}: {error}; give query_codes, query_labels, database_codes, database_labels") from error
    rankings = evaluation.Rankings(queries, database, wanted, offered)
    photos = evaluation.label_checksum(wanted, offered)
    return evaluation.evaluate_codes(rankings, top=top, facts={"loss": path.stem}, photos=photos)


def _query_names(run: Path, report: "lazy.evaluation.Report") -> list[str]:
    """What the queries of a run are called, if its dataset is there, has these queries, and all of them can be read."""
    if run.is_file():
        return []
    try:
        splits = splits_of(run)
    except HyphashError:  # moved, or gone; the reports are enough
        return []
    known = lazy.evaluation.checksum(splits.queries, splits.database) == report.photos
    return [splits.queries.name(i) for i in range(len(splits.queries))] if known else []
