"""`hyphash evaluate`"""

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyphash.cli.options import Cache, Dataset, Device, Json, RunFolder
from hyphash.cli.output import counting, print_json, print_problems, print_table, say
from hyphash.errors import LabelError

SHOWN_LABELS = 3

if TYPE_CHECKING:
    from hyphash.config import Config
    from hyphash.datasets import Splits
    from hyphash.evaluation import Report, Scores
    from hyphash.hasher import Hasher


def evaluate(
    run: RunFolder,
    data: Annotated[str | None, typer.Option(help="Measure on another dataset. [default: the run's own]")] = None,
    dataset: Dataset = None,
    top: Annotated[int, typer.Option(min=1, help="N of mAP@N and its kin.")] = 1000,
    relevance: Annotated[
        str, typer.Option(help="How relevant labels are: a CSV, or tree. [default: the run's own]")
    ] = "",
    gallery: Annotated[int, typer.Option(min=0, help="Queries to show in the page.")] = 8,
    into: Annotated[Path | None, typer.Option(help="Where report.html and report.json go. [default: RUN]")] = None,
    device: Device = "auto",
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Measure how well the codes of a run find photos; both protocols, a table, report.json and report.html."""
    report, page = measure_run(
        run, data=data, dataset=dataset, top=top, gallery=gallery, into=into or run, device=device, cache=cache,
        relevance=relevance,
    )  # fmt: skip
    if json:
        print_json(jsonlib.loads(report.to_json()))
    else:
        _print_report(report)
    print_problems(report.problems)
    say(f"written: {page}")


def measure_run(
    run: Path,
    *,
    data: str | None = None,
    dataset: str | None = None,
    top: int = 1000,
    gallery: int = 8,
    into: Path | None,
    device: str = "auto",
    cache: Path | None = None,
    relevance: str = "",
) -> tuple["Report", Path | None]:
    """The report of a run, with a progress bar; and its page, which is written where there is an `into`."""
    from hyphash.datasets import load_dataset
    from hyphash.evaluation import encode_split
    from hyphash.evaluation import evaluate as measure
    from hyphash.features import default_cache
    from hyphash.hasher import Hasher
    from hyphash.losses.relevance import load_relevance
    from hyphash.report import gallery_rows, write_report
    from hyphash.training.runs import read_run

    config = read_run(run)
    hasher = Hasher.load(run, device=device)
    splits = load_dataset(data, dataset) if data else load_dataset(config.data, config.dataset, **config.data_options)
    _require_same_labels(hasher, splits)
    features = (cache or default_cache()) if config.mode == "frozen" else None
    with counting("queries") as progress:
        queries = encode_split(hasher, splits.queries, cache=features, progress=progress)
    with counting("database") as progress:
        database = encode_split(hasher, splits.database, cache=features, progress=progress)
    relevance = relevance or config.relevance
    facts = _facts(config) | {"hasher": hasher.fingerprint} | ({"relevance": relevance} if relevance else {})
    own = load_relevance(relevance, splits.classes)
    for bits in config.lengths[:-1]:
        shorter = queries.prefix(bits), database.prefix(bits)
        scores = measure(hasher, splits, top=top, encoded=shorter, asymmetric=False, relevance=own).scores
        facts[f"mAP of the first {bits} bits"] = ", ".join(
            f"{each.mean_average_precision:.4f} ({each.protocol.name})" for each in scores
        )
    report = measure(hasher, splits, top=top, encoded=(queries, database), facts=facts, relevance=own)
    if into is None:
        return report, None
    rows = gallery_rows(queries, database, splits.classes, count=gallery, quantizer=hasher.quantizer) if gallery else ()
    return report, write_report(into, report, gallery=rows)


def _require_same_labels(hasher: "Hasher", splits: "Splits") -> None:
    """Refuse labels in another order or of another dataset: their columns would mean something else."""
    if splits.classes != hasher.classes:
        raise LabelError(
            f"the dataset has {len(splits.classes)} labels, of which {len({*splits.classes} & {*hasher.classes})} are "
            f"among the {len(hasher.classes)} it was trained with; measure it on data with the same labels"
        )


def _facts(config: "Config") -> dict[str, str]:
    """What the figures of a report depend on, beside the dataset."""
    return {
        "loss": config.loss,
        "backbone": config.backbone,
        "mode": str(config.mode),
        "epoch": f"{config.keep} of {config.epochs}",
        "seed": str(config.seed),
    }


def _others(scores: "Scores") -> tuple[float, float, float]:
    return scores.precision[-1][1], scores.ndcg, scores.average_gain


def _print_report(report: "Report") -> None:
    for protocol in report.protocols:
        print(protocol.describe())
    rows = [(s.protocol.name, s.ranked_by, s.mean_average_precision, s.how_sure(), *_others(s)) for s in report.scores]
    depth = report.protocols[0].depth
    names = f"mAP{depth}", "95 % interval", f"precision{depth}", f"NDCG{depth}", f"ACG{depth}"
    columns = ("protocol", "ranking", *names)
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
