"""`hyphash train` and `hyphash tune`"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any

from typer import Exit, Option

from hyphash.cli import options
from hyphash.cli.lazy import lazy
from hyphash.cli.output import counting, print_json, print_problems, progress_bar, say
from hyphash.errors import ConfigError, StoppedError, counted
from hyphash.machine import stop_on_signal

COMMAND_LINE = "the command line"  # where settings stand that are wrong


def train(
    data: options.DataPath = "",
    into: Annotated[Path | None, Option(help="Folder for the run. [default: runs/DATA-LOSS-BITS]")] = None,
    bits: Annotated[int | None, Option(help="Length of the codes, 1 to 256. [default: 48]")] = None,
    lengths: Annotated[str | None, Option(help="Nested: of 12,24,48 the first 12 and 24 bits are codes.")] = None,
    loss: Annotated[str | None, Option(help="See `hyphash losses`; file.py:Class; auto. [default: hyp2-ap]")] = None,
    option: Annotated[list[str] | None, Option(help="Option of the loss, such as beta=0.5; repeatable.")] = None,
    relevance: Annotated[str | None, Option(help="How relevant labels are: a CSV, or tree for animal/dog.")] = None,
    backbone: Annotated[str | None, Option(help="See `hyphash backbones`. [default: efficientnet_lite0]")] = None,
    weights: options.WeightsFiles = None,
    mode: Annotated[str | None, Option(help="frozen: a head; fine-tune: all. [default: by GPU or none]")] = None,
    size: Annotated[int | None, Option(help="Side of the photos in pixels. [default: the backbone's]")] = None,
    epochs: Annotated[int | None, Option(help="[default: by method and mode]")] = None,
    batch: Annotated[int | None, Option(help="Photos a step. [default: the method's]")] = None,
    optimizer: Annotated[str | None, Option(help="sgd, adam or adamw. [default: the method's]")] = None,
    rate: Annotated[float | None, Option(help="Learning rate. [default: the method's]")] = None,
    loss_rate: Annotated[float | None, Option(help="Rate of proxies and the like. [default: same]")] = None,
    validation: Annotated[float | None, Option(help="Share of photos held out to watch. [default: 0.1]")] = None,
    keep: Annotated[str | None, Option(help="last or best epoch, by validation. [default: last]")] = None,
    seed: Annotated[int | None, Option(help="[default: 0]")] = None,
    device: Annotated[str | None, Option(help="cpu, cuda, cuda:1 … [default: a GPU if there is one]")] = None,
    dataset: options.Dataset = None,
    data_option: options.DataOption = None,
    skip_unlabelled: options.SkipUnlabelled = False,
    skip_missing: options.SkipMissing = False,
    min_count: options.MinCount = 0,
    labels_from: options.LabelsFrom = "",
    set_: Annotated[list[str] | None, Option("--set", help="Any other setting, such as momentum=0.8.")] = None,
    config: Annotated[Path | None, Option(help="Read settings from a TOML file; options override it.")] = None,
    resume: Annotated[Path | None, Option(help="Continue the run in this folder, with its settings.")] = None,
    overwrite: Annotated[bool, Option(help="Replace a run that is there already.")] = False,
    log: Annotated[str | None, Option(help="tensorboard, mlflow or wandb. [default: tensorboard]")] = None,
    cache: options.Cache = None,
    json: options.Json = False,
) -> None:
    """Learn codes from labelled photos: two ways, frozen (fast, no GPU needed) and fine-tune."""
    given = _given(locals())
    if resume is not None:
        if overwrite or into not in (None, resume):
            raise ConfigError("--resume goes on in the folder of the run; give no --into or --overwrite beside it")
        _run(resume, _resumed(resume, given, config), cache=cache, as_json=json, overwrite=None)
        return
    chosen = _config(given, config)
    if not chosen.data:
        raise ConfigError("name the photos to train on: hyphash train DATA")
    folder = into or Path("runs") / f"{Path(chosen.data).resolve().stem}-{Path(chosen.loss).stem}-{chosen.bits}"
    _run(folder, chosen, cache=cache, as_json=json, overwrite=overwrite)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run among the options of the command line."""
    known = {field.name for field in fields(lazy.Config)}
    given = {name: value for name, value in values.items() if name in known and value not in (None, "")}
    if "lengths" in given:
        given["lengths"] = options.numbers(given["lengths"], "--lengths")
    flags = {name: values[name] for name in ("skip_unlabelled", "skip_missing", "min_count", "labels_from")}
    of_data = options.data_options(values["data_option"], **flags)
    of_loss = options.options_from(values["option"] or [], "--option")
    given |= {key: value for key, value in (("loss_options", of_loss), ("data_options", of_data)) if value}
    given |= options.weights_options(given.pop("weights", []))
    return given | options.options_from(values["set_"] or [], "--set")


def _config(given: dict[str, Any], file: Path | None) -> "lazy.Config":
    if file:
        config = lazy.config.read_config(file, **given)
        lazy.config.require_named(config, given.get("loss"), file)
    else:
        config = lazy.config.from_table(lazy.Config, given, COMMAND_LINE)
    paths = config.data, config.relevance  # a run is resumed from anywhere
    data, relevance = (str(Path(path).expanduser().absolute()) if path not in ("", "tree") else path for path in paths)
    return replace(config, data=data, relevance=relevance)


def _resumed(folder: Path, given: dict[str, Any], file: Path | None) -> "lazy.Config":
    """The config of the run in `folder`; settings that are given beside it must be its own."""
    ranks, settings = lazy.training.ranks.join(), lazy.config  # of which the first alone needs to see the folder
    own = lazy.training.runs.resume_config(folder, loss=given.get("loss")) if ranks.first else None
    table = ranks.broadcast_object(settings.to_table(own) if own else {})
    config, wanted = settings.from_table(lazy.Config, table, str(folder)), _config(given, file)
    for name in sorted({*given, *(settings.read_toml(file) if file else ())} - {"format"}):
        ours, theirs = getattr(config, name), getattr(wanted, name)
        if theirs != ours and not (isinstance(ours, dict) and theirs.items() <= ours.items()):
            raise ConfigError(
                f"{folder}: --resume goes on with the settings of the run, where {name} is {ours!r}, not {theirs!r}; "
                "leave it out, or train a new run with --into"
            )
    return config


def _run(folder: Path, config: "lazy.Config", *, cache: Path | None, as_json: bool, overwrite: bool | None) -> None:
    """Train into `folder` with a progress bar; Ctrl-C saves first. Of several ranks, the first one speaks.

    Without an `overwrite` it goes on with the run that is there.
    """
    training, runs = lazy.training, lazy.training.runs
    ranks = training.ranks.join()
    tell = say if ranks.first else str  # which says nothing
    splits = lazy.load_dataset(config.data, config.dataset, **config.data_options)
    if config.loss == "auto":
        with counting("photos") as progress:
            draw = progress if ranks.first else None
            config, note = training.choose_loss(config, splits, cache=cache, progress=draw)
        tell(note)
    config, hasher, loss, notes = training.prepare(config, splits)
    if ranks.first and overwrite is not None:
        begun = (folder / runs.CONFIG_FILE).is_file()
        if training.ranks.restarted() and begun:  # torchrun repeats the command that began it
            config = replace(config, threads=runs.resume_config(folder, loss=config.loss).threads)
        else:
            runs.open_run(folder, config, overwrite=overwrite)
    for note in (*splits.notes, *notes):
        tell(note)
    several = f" on {ranks.size} ranks" if ranks.size > 1 else ""
    labels = f"{counted(len(splits.train), 'photo')}, {counted(len(splits.classes), 'label')}"
    tell(f"{labels} → {counted(config.bits, 'bit')}; {config.mode}, {hasher.device}{several}")
    with stop_on_signal(once=ranks.size > 1) as stop, progress_bar(shown=ranks.first) as bar:
        photos = bar.add_task("photos", total=len(splits.train))
        records = training.fit(
            hasher, loss, splits, config, folder=folder, cache=cache, stop=stop,
            progress=lambda done, total: bar.update(photos, completed=done, total=total),
        )  # fmt: skip
        last = _draw_epochs(records, bar, photos)
    if not ranks.broadcast_object(ranks.first and runs.is_finished(folder)):
        if ranks.first:
            raise StoppedError(f"stopped; go on with: hyphash train --resume {folder}")
        raise Exit(130)
    if ranks.first:
        _print_result(folder, hasher.fingerprint, last, as_json=as_json)


def _print_result(folder: Path, fingerprint: str, last: "lazy.training.Epoch | None", *, as_json: bool) -> None:
    problems = [line["reason"] for line in lazy.files.read_json_lines(folder / lazy.training.runs.PROBLEMS_FILE)]
    print_problems(problems)
    if as_json:
        epoch = None if last is None else {"loss": last.loss, "seconds": last.seconds, "validation": last.validation}
        print_json({"run": str(folder), "fingerprint": fingerprint, "last_epoch": epoch, "left_out": len(problems)})
    else:
        print(f"trained: {folder}")
        say(f"measure it with: hyphash evaluate {folder}")


def _draw_epochs(records: "Iterator[lazy.training.Epoch]", bar: Any, photos: Any) -> "lazy.training.Epoch | None":
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


def tune(
    data: options.DataPath,
    minutes: Annotated[float, Option(min=0, help="Look for so long; given again, it goes on.")] = 20.0,
    into: Annotated[Path | None, Option(help="Folder for the study. [default: tuning/DATA-LOSS-BITS]")] = None,
    bits: Annotated[int, Option(help="Length of the codes.")] = 48,
    loss: Annotated[str | None, Option(help="The method. [default: that of `hyphash train`]")] = None,
    backbone: Annotated[str | None, Option(help="See `hyphash backbones`. [default: that of `train`]")] = None,
    set_: Annotated[list[str] | None, Option("--set", help="A setting that is not tuned, such as views=4.")] = None,
    folds: Annotated[int, Option(min=2, help="Parts that the training photos are cut into.")] = 5,
    trials: Annotated[Path | None, Option(help="Try what this TOML file asks instead of searching.")] = None,
    jobs: Annotated[int | None, Option(min=1, help="Trials side by side. [default: one a core]")] = None,
    dataset: options.Dataset = None,
    data_option: options.DataOption = None,
    device: options.Device = "auto",
    cache: options.Cache = None,
    json: options.Json = False,
) -> None:
    """Find settings that suit your photos, on the training photos alone, and write a config for `hyphash train`."""
    given = {"data": str(Path(data).expanduser().absolute()), "bits": bits, "device": device, "dataset": dataset}
    given |= {"loss": loss, "backbone": backbone, "data_options": options.data_options(data_option)}
    given = {key: value for key, value in given.items() if value} | options.options_from(set_ or [], "--set")
    task = _task(given, folds, cache)
    folder = into or Path("tuning") / f"{Path(data).resolve().stem}-{Path(task.config.loss).stem}-{bits}"
    study, until = lazy.tuning.search.Study(task, folder), time.monotonic() + 60 * minutes
    jobs = jobs or lazy.machine.default_threads()
    with stop_on_signal() as asked:

        def stop() -> bool:
            return asked() or time.monotonic() > until

        if trials:
            _ask(study, trials, jobs, stop)
            return
        space = lazy.tuning.search.space_of(task.config)
        _draw_trials(study.search(space, jobs=jobs, stop=stop), study.trials())
        if asked():
            raise StoppedError(f"{folder}: stopped; the same command goes on")
        _recommend(study, jobs, asked, as_json=json)


def _task(given: dict[str, Any], folds: int, cache: Path | None) -> "lazy.tuning.Task":
    """What is tuned, with the features of the training photos in the cache."""
    config = lazy.config.from_table(lazy.Config, given, COMMAND_LINE)
    splits = lazy.load_dataset(config.data, config.dataset, **config.data_options)
    for note in splits.notes:
        say(note)
    task = lazy.tuning.Task(config=config, splits=splits, folds=folds, cache=cache or lazy.features.default_cache())
    with counting("photos") as progress:
        lazy.tuning.CrossValidation(task, progress=progress)
    return task


def _draw_trials(trials: "Iterator[lazy.tuning.Trial]", before: "list[lazy.tuning.Trial]", total: int = 0) -> None:
    """A bar that counts trials and shows the best so far."""
    best = max((trial.strict for trial in before if trial.scores), default=0.0)
    with progress_bar() as bar:
        task = bar.add_task("trials", total=total or None, completed=0 if total else len(before))
        for trial in trials:
            best = max(best, trial.strict) if trial.scores else best
            bar.update(task, advance=1, description=f"trials  best mAP {best:.4f}")


def _ask(study: "lazy.tuning.search.Study", file: Path, jobs: int, stop: Callable[[], bool]) -> None:
    """Try what a file asks, and write the page."""
    table = lazy.config.read_toml(file)
    questions = table.get("question")
    if not isinstance(questions, list) or not questions:
        raise ConfigError(f"{file}: asks nothing; write [[question]] tables with name and settings, lists for several")
    asked = [(str(q.get("name", "")), each) for q in questions for each in lazy.tuning.grid(q.get("settings", {}))]
    _draw_trials(study.ask(asked, jobs=jobs, stop=stop), study.trials(), len(asked))
    order = {repr(settings): i for i, (_, settings) in enumerate(asked)}
    made = [(order[text], trial) for trial in study.trials() if (text := repr(dict(trial.settings))) in order]
    done = [trial for _, trial in sorted(made, key=lambda one: one[0])]
    page = lazy.tuning.search.questions_page(done, title=str(table.get("title", "Study")), folds=study.task.folds)
    say(f"written: {page.write(study.folder)}")
    if len(done) < len(asked):
        raise StoppedError(f"{study.folder}: {len(done)} of {len(asked)} trials are done; the same command goes on")


def _recommend(study: "lazy.tuning.search.Study", jobs: int, stop: Callable[[], bool], *, as_json: bool) -> None:
    """Compare the best trials with the recipe on other folds, and write the page and the better one's config."""
    say("comparing the best trials with the recipe on other folds")
    confirmed = study.confirm(jobs=jobs, stop=stop)
    if confirmed is None:
        raise StoppedError(f"{study.folder}: stopped; the same command goes on")
    recipe, found = confirmed
    weights, folds = lazy.tuning.search.importances(study.folder), study.task.folds
    page = lazy.tuning.search.search_page(study.trials(), folds=folds, importances=weights, confirmed=confirmed)
    config, path = study.recommend(found), page.write(study.folder)
    if as_json:
        print_json({"config": str(config), "recipe": asdict(recipe), "found": asdict(found), "importance": weights})
        return
    for name, weight in weights.items():
        print(f"{weight:6.1%}  {name}")
    if found is recipe:
        print(f"nothing was better than the recipe: mAP {recipe.strict:.4f} on folds that no trial has seen")
    else:
        print(f"mAP {found.strict:.4f}, the recipe {recipe.strict:.4f}, on folds that no trial has seen")
        print(", ".join(f"{name} {value}" for name, value in found.settings.items()))
    print(f"train with it: hyphash train {study.task.config.data} --config {config}")
    say(f"written: {path}")
