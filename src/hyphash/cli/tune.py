"""`hyphash tune`"""

import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyphash.cli.options import Cache, DataOption, Dataset, Device, Json, data_options, options_from
from hyphash.cli.output import counting, print_json, progress_bar, say, stop_on_signal
from hyphash.errors import ConfigError, StoppedError

if TYPE_CHECKING:
    from hyphash.tuning import Task, Trial
    from hyphash.tuning.search import Stop, Study


def tune(
    data: Annotated[str, typer.Argument(help="A label file, a folder of photos, or a benchmark's folder.")],
    minutes: Annotated[float, typer.Option(min=0, help="Look for so long; given again, it goes on.")] = 20.0,
    into: Annotated[Path | None, typer.Option(help="Folder for the study. [default: tuning/DATA-LOSS-BITS]")] = None,
    bits: Annotated[int, typer.Option(help="Length of the codes.")] = 48,
    loss: Annotated[str | None, typer.Option(help="The method. [default: that of `hyphash train`]")] = None,
    backbone: Annotated[str | None, typer.Option(help="See `hyphash backbones`. [default: that of `train`]")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting that is not tuned, such as views=4.")
    ] = None,
    folds: Annotated[int, typer.Option(min=2, help="Parts that the training photos are cut into.")] = 5,
    trials: Annotated[Path | None, typer.Option(help="Try what this TOML file asks instead of searching.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Trials side by side. [default: one a core]")] = None,
    dataset: Dataset = None,
    data_option: DataOption = None,
    device: Device = "auto",
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Find settings that suit your photos, on the training photos alone, and write a config for `hyphash train`."""
    from hyphash.machine import default_threads
    from hyphash.tuning.search import Study

    given = {"data": str(Path(data).expanduser().absolute()), "bits": bits, "device": device, "dataset": dataset}
    given |= {"loss": loss, "backbone": backbone, "data_options": data_options(data_option)}
    task = _task(
        {key: value for key, value in given.items() if value} | options_from(set_ or [], "--set"), folds, cache
    )
    folder = into or Path("tuning") / f"{Path(data).resolve().stem}-{Path(task.config.loss).stem}-{bits}"
    study, until = Study(task, folder), time.monotonic() + 60 * minutes
    jobs = jobs or default_threads()
    with stop_on_signal() as asked:

        def stop() -> bool:
            return asked() or time.monotonic() > until

        if trials:
            _ask(study, trials, jobs, stop)
            return
        _search(study, jobs, stop)
        if asked():
            raise StoppedError(f"{folder}: stopped; the same command goes on")
        _recommend(study, jobs, asked, as_json=json)


def _task(given: dict[str, Any], folds: int, cache: Path | None) -> "Task":
    """What is tuned, with the features of the training photos in the cache."""
    from hyphash.config import Config, from_table
    from hyphash.datasets import load_dataset
    from hyphash.features import default_cache
    from hyphash.tuning import CrossValidation, Task

    config = from_table(Config, given, "the command line")
    splits = load_dataset(config.data, config.dataset, **config.data_options)
    for note in splits.notes:
        say(note)
    task = Task(config=config, splits=splits, folds=folds, cache=cache or default_cache())
    with counting("photos") as progress:
        CrossValidation(task, progress=progress)
    return task


def _search(study: "Study", jobs: int, stop: "Stop") -> None:
    from hyphash.tuning.search import space_of

    before = study.trials()
    _draw(study.search(space_of(study.task.config), jobs=jobs, stop=stop), before)


def _draw(trials: "Iterator[Trial]", before: "list[Trial]", total: int | None = None) -> None:
    """A bar that counts trials and shows the best so far."""
    best = max((trial.strict for trial in before if trial.scores), default=0.0)
    with progress_bar() as bar:
        task = bar.add_task("trials", total=total, completed=len(before) if total is None else 0)
        for trial in trials:
            best = max(best, trial.strict) if trial.scores else best
            bar.update(task, advance=1, description=f"trials  best mAP {best:.4f}")


def _ask(study: "Study", file: Path, jobs: int, stop: "Stop") -> None:
    """Try what a file asks, and write the page."""
    from hyphash.config import read_toml
    from hyphash.tuning import grid
    from hyphash.tuning.page import questions_page

    table = read_toml(file)
    questions = table.get("question")
    if not isinstance(questions, list) or not questions:
        raise ConfigError(
            f"{file}: asks nothing; write [[question]] tables with a name and settings, lists for several"
        )
    asked = grid([{"question": str(q.get("name", ""))} | q.get("settings", {}) for q in questions])
    _draw(study.ask(asked, jobs=jobs, stop=stop), study.trials(), len(asked))
    order = {repr(settings): i for i, (_, settings) in enumerate(asked)}
    done = sorted(
        (t for t in study.trials() if repr(dict(t.settings)) in order), key=lambda t: order[repr(dict(t.settings))]
    )
    page = questions_page(done, title=str(table.get("title", "Study")), folds=study.task.folds)
    say(f"written: {page.write(study.folder)}")
    if len(done) < len(asked):
        raise StoppedError(f"{study.folder}: {len(done)} of {len(asked)} trials are done; the same command goes on")


def _recommend(study: "Study", jobs: int, stop: "Stop", *, as_json: bool) -> None:
    """Compare the best trials with the recipe on other folds, and write the page and the better one's config."""
    from hyphash.tuning.page import search_page
    from hyphash.tuning.search import importances

    say("comparing the best trials with the recipe on other folds")
    confirmed = study.confirm(jobs=jobs, stop=stop)
    if confirmed is None:
        raise StoppedError(f"{study.folder}: stopped; the same command goes on")
    recipe, found = confirmed
    weights = importances(study.folder)
    page = search_page(study.trials(), folds=study.task.folds, importances=weights, confirmed=confirmed)
    config = study.recommend(found)
    path = page.write(study.folder)
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
