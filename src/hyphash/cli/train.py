"""`hyphash train`"""

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyphash.cli.options import (
    Cache,
    DataOption,
    Dataset,
    Json,
    LabelsFrom,
    MinCount,
    SkipMissing,
    SkipUnlabelled,
    WeightsFiles,
    data_options,
    numbers,
    options_from,
    weights_options,
)
from hyphash.cli.output import counting, print_json, print_problems, progress_bar, say, stop_on_signal
from hyphash.errors import ConfigError, StoppedError

if TYPE_CHECKING:
    from hyphash.config import Config
    from hyphash.training import Epoch


def train(
    data: Annotated[str, typer.Argument(help="A label file, a folder of photos, or a benchmark's folder.")] = "",
    into: Annotated[Path | None, typer.Option(help="Folder for the run. [default: runs/DATA-LOSS-BITS]")] = None,
    bits: Annotated[int | None, typer.Option(help="Length of the codes, 1 to 256. [default: 48]")] = None,
    lengths: Annotated[str | None, typer.Option(help="Nested: of 12,24,48 the first 12 and 24 bits are codes.")] = None,
    loss: Annotated[
        str | None, typer.Option(help="See `hyphash losses`; file.py:Class; auto. [default: hyp2-ap]")
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="Option of the loss, such as beta=0.5; repeatable.")] = None,
    relevance: Annotated[
        str | None, typer.Option(help="How relevant labels are to each other: a CSV, or tree for animal/dog.")
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="See `hyphash backbones`. [default: efficientnet_lite0]")] = None,
    weights: WeightsFiles = None,
    mode: Annotated[str | None, typer.Option(help="frozen: a head; fine-tune: all. [default: by GPU or none]")] = None,
    size: Annotated[int | None, typer.Option(help="Side of the photos in pixels. [default: the backbone's]")] = None,
    epochs: Annotated[int | None, typer.Option(help="[default: by method and mode]")] = None,
    batch: Annotated[int | None, typer.Option(help="Photos a step. [default: the method's]")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd, adam or adamw. [default: the method's]")] = None,
    rate: Annotated[float | None, typer.Option(help="Learning rate. [default: the method's]")] = None,
    loss_rate: Annotated[float | None, typer.Option(help="Rate of proxies and the like. [default: same]")] = None,
    validation: Annotated[float | None, typer.Option(help="Share of photos held out to watch. [default: 0.1]")] = None,
    keep: Annotated[str | None, typer.Option(help="last or best epoch, by validation. [default: last]")] = None,
    seed: Annotated[int | None, typer.Option(help="[default: 0]")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … [default: a GPU if there is one]")] = None,
    dataset: Dataset = None,
    data_option: DataOption = None,
    skip_unlabelled: SkipUnlabelled = False,
    skip_missing: SkipMissing = False,
    min_count: MinCount = 0,
    labels_from: LabelsFrom = "",
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any other setting, such as momentum=0.8.")] = None,
    config: Annotated[Path | None, typer.Option(help="Read settings from a TOML file; options override it.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder, with its settings.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace a run that is there already.")] = False,
    log: Annotated[str | None, typer.Option(help="tensorboard, mlflow or wandb. [default: tensorboard]")] = None,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Learn codes from labelled photos: two ways, frozen (fast, no GPU needed) and fine-tune."""
    given = _given(locals())
    if resume is not None:
        if overwrite or into not in (None, resume):
            raise ConfigError("--resume goes on in the folder of the run; give no --into or --overwrite beside it")
        run_training(resume, _resumed(resume, given, config), cache=cache, as_json=json)
        return
    chosen = _config(given, config)
    if not chosen.data:
        raise ConfigError("name the photos to train on: hyphash train DATA")
    folder = into or Path("runs") / f"{Path(chosen.data).resolve().stem}-{Path(chosen.loss).stem}-{chosen.bits}"
    run_training(folder, chosen, cache=cache, as_json=json, fresh=True, overwrite=overwrite)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run among the options of the command line."""
    from hyphash.config import Config

    known = {field.name for field in fields(Config)}
    given = {name: value for name, value in options.items() if name in known and value not in (None, "")}
    if "lengths" in given:
        given["lengths"] = numbers(given["lengths"], "--lengths")
    flags = {name: options[name] for name in ("skip_unlabelled", "skip_missing", "min_count", "labels_from")}
    of_data = data_options(options["data_option"], **flags)
    of_loss = options_from(options["option"] or [], "--option")
    given |= {key: value for key, value in (("loss_options", of_loss), ("data_options", of_data)) if value}
    given |= weights_options(given.pop("weights", []))
    return given | options_from(options["set_"] or [], "--set")


def _config(given: dict[str, Any], file: Path | None) -> "Config":
    from hyphash.config import Config, from_table, read_config, require_named

    config = read_config(file, **given) if file else from_table(Config, given, "the command line")
    if file:
        require_named(config, given.get("loss"), file)
    paths = config.data, config.relevance  # a run is resumed from anywhere
    data, relevance = (str(Path(path).expanduser().absolute()) if path not in ("", "tree") else path for path in paths)
    return replace(config, data=data, relevance=relevance)


def _resumed(folder: Path, given: dict[str, Any], file: Path | None) -> "Config":
    """The config of the run in `folder`; settings that are given beside it must be its own."""
    from hyphash.config import Config, from_table, read_toml, to_table
    from hyphash.training.ranks import join
    from hyphash.training.runs import resume_config

    ranks = join()  # of which the first alone needs to see the folder
    table = ranks.broadcast_object(to_table(resume_config(folder, loss=given.get("loss"))) if ranks.first else {})
    config, wanted = from_table(Config, table, str(folder)), _config(given, file)
    for name in sorted({*given, *(read_toml(file) if file else ())} - {"format"}):
        ours, theirs = getattr(config, name), getattr(wanted, name)
        if theirs != ours and not (isinstance(ours, dict) and theirs.items() <= ours.items()):
            raise ConfigError(
                f"{folder}: --resume goes on with the settings of the run, where {name} is {ours!r}, not {theirs!r}; "
                "leave it out, or train a new run with --into"
            )
    return config


def run_training(
    folder: Path, config: "Config", *, cache: Path | None, as_json: bool, fresh: bool = False, overwrite: bool = False
) -> None:
    """Train into `folder` with a progress bar; Ctrl-C saves first. Of several ranks, the first one speaks."""
    from hyphash.datasets import load_dataset
    from hyphash.training import fit, prepare
    from hyphash.training.ranks import join, restarted
    from hyphash.training.runs import CONFIG_FILE, is_finished, open_run, resume_config
    from hyphash.training.selection import choose_loss

    ranks = join()
    splits = load_dataset(config.data, config.dataset, **config.data_options)
    if config.loss == "auto":
        with counting("photos") as progress:
            config, note = choose_loss(config, splits, cache=cache, progress=progress if ranks.first else None)
        if ranks.first:
            say(note)
    config, hasher, loss, notes = prepare(config, splits)
    if ranks.first and fresh:
        if restarted() and (folder / CONFIG_FILE).is_file():  # torchrun repeats the command that began it
            config = replace(config, threads=resume_config(folder, loss=config.loss).threads)
        else:
            open_run(folder, config, overwrite=overwrite)
    if ranks.first:
        for note in (*splits.notes, *notes):
            say(note)
        labels = f"{len(splits.train):,} photos, {len(splits.classes)} labels"
        several = f" on {ranks.size} ranks" if ranks.size > 1 else ""
        say(f"{labels} → {config.bits} bits; {config.mode}, {hasher.device}{several}")
    with stop_on_signal(once=ranks.size > 1) as stop, progress_bar(shown=ranks.first) as bar:
        photos = bar.add_task("photos", total=len(splits.train))
        records = fit(
            hasher, loss, splits, config, folder=folder, cache=cache, stop=stop,
            progress=lambda done, total: bar.update(photos, completed=done, total=total),
        )  # fmt: skip
        last = _draw(records, bar, photos)
    if not ranks.broadcast_object(ranks.first and is_finished(folder)):
        if ranks.first:
            raise StoppedError(f"stopped; go on with: hyphash train --resume {folder}")
        raise typer.Exit(130)
    if ranks.first:
        _print_result(folder, hasher.fingerprint, last, as_json=as_json)


def _print_result(folder: Path, fingerprint: str, last: "Epoch | None", *, as_json: bool) -> None:
    from hyphash.files import read_json_lines
    from hyphash.training.runs import PROBLEMS_FILE

    problems = [record["reason"] for record in read_json_lines(folder / PROBLEMS_FILE)]
    print_problems(problems)
    if as_json:
        epoch = None if last is None else {"loss": last.loss, "seconds": last.seconds, "validation": last.validation}
        print_json({"run": str(folder), "fingerprint": fingerprint, "last_epoch": epoch, "left_out": len(problems)})
    else:
        print(f"trained: {folder}")
        say(f"measure it with: hyphash evaluate {folder}")


def _draw(records: "Iterator[Epoch]", bar: Any, photos: Any) -> "Epoch | None":
    """Draw epochs as they come and return the last."""
    task = last = None
    score = ""
    for epoch in records:
        last = epoch
        bar.update(photos, visible=False)
        task = bar.add_task("", total=epoch.of or 1) if task is None else task
        score = score if epoch.validation is None else f"  mAP {epoch.validation:.3f}"
        bar.update(task, completed=epoch.number, description=f"epochs  loss {epoch.loss:.4f}{score}")
    return last
