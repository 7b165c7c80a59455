"""`hyphash reproduce`"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from hyphash.cli.lazy import lazy
from hyphash.cli.options import Device, Json, numbers, options_from
from hyphash.cli.output import print_json, print_records, progress_bar, say
from hyphash.errors import ConfigError, StoppedError
from hyphash.machine import stop_on_signal

Stop = Callable[[], bool]
WHOLE = "report"  # not a benchmark: the page of all of them

List = Annotated[bool, Option("--list", help="Say what there is, what it needs and how long it takes.")]
WeightsFiles = Annotated[
    list[str] | None, Option(help="Weights file, none or default; BACKBONE=FILE for one of several.")
]
Only = Annotated[str, Option(help="These methods alone, such as hyp2,orthohash.")]
OtherDataset = Annotated[str | None, Option(help="Another dataset that the benchmark has, such as voc2007.")]
SeedList = Annotated[str, Option(help="Seeds, such as 0,1,2. [default: 0; 0,1,2 for HyP² and proxy]")]
RecipeName = Annotated[
    str, Option(help="Whose settings: house, published (the authors'), tuned (on validation), or both and ours.")
]
Minutes = Annotated[float, Option(help="Stop after so long; the next call goes on.", show_default=False)]


def reproduce(
    name: Annotated[str, Argument(help="A table or figure of the paper. See --list.")] = "",
    list_: List = False,
    data: Annotated[list[str] | None, Option(help="Where the dataset is; NAME=PATH for one of several.")] = None,
    weights: WeightsFiles = None,
    into: Annotated[Path, Option(help="Folder for results; those in it are not made again.")] = Path("results"),
    work: Annotated[Path | None, Option(help="Where runs under way are kept. [default: INTO/work]")] = None,
    dataset: OtherDataset = None,
    only: Only = "",
    bits: Annotated[str, Option(help="These lengths alone, such as 12,48.")] = "",
    seeds: SeedList = "",
    epochs: Annotated[int | None, Option(min=0, help="[default: each method's own]")] = None,
    backbone: Annotated[str | None, Option(help="Another network than the paper's.")] = None,
    size: Annotated[int | None, Option(help="Side of the photos in pixels.")] = None,
    set_: Annotated[list[str] | None, Option("--set", help="Any other setting, such as batch=50.")] = None,
    recipe: RecipeName = "house",
    jobs: Annotated[int, Option(min=1, help="Runs side by side on the device.")] = 1,
    minutes: Minutes = math.inf,
    device: Device = "auto",
    keep_weights: Annotated[bool, Option(help="Keep the trained networks in the work folder.")] = False,
    unchecked: Annotated[bool, Option(help="Go on where the data differ from the published counts.")] = False,
    mark: Annotated[str, Option(help="tsne: label sets to ring, such as bus+car,person+train.")] = "",
    queries: Annotated[str, Option(help="gallery: rows of the queries to show, such as 3,17.")] = "",
    json: Json = False,
) -> None:
    """Measure a table or figure of the paper here, and show ours beside the published one."""
    if list_ or not name:
        _print_list(json)
        return
    if name == WHOLE:
        _write_whole(into, tuple(data or ()))
        return
    benchmarks = lazy.benchmarks
    choices = benchmarks.runs.Choices(
        only=tuple(part.strip() for part in only.split(",") if part.strip()), bits=numbers(bits, "--bits"),
        seeds=numbers(seeds, "--seeds"), epochs=epochs, backbone=backbone, size=size,
        settings=options_from(set_ or [], "--set"), recipes=recipes_named(recipe),
    )  # fmt: skip
    reproduction = benchmarks.reproduction.Reproduction(
        benchmark=benchmarks.benchmark(name), results=benchmarks.runs.Results(into, work), choices=choices,
        dataset=dataset, data=tuple(data or ()), weights=tuple(weights or ()), device=device, jobs=jobs,
        keep_weights=keep_weights, unchecked=unchecked, mark=mark, queries=numbers(queries, "--queries"),
    )  # fmt: skip
    failed = do_runs(reproduction.start, minutes)
    page, path = reproduction.write()
    _print_page(page, json)
    say(f"written: {path}")
    if failed:
        say("\n".join(f"failed: {run}: {reason}" for run, reason in failed))
        raise Exit(1)


def recipes_named(text: str) -> "tuple[lazy.benchmarks.Recipe, ...]":
    """Those that `--recipe` names: a row of the tables for each."""
    every = lazy.benchmarks.RECIPES
    named: dict[str, tuple[lazy.benchmarks.Recipe, ...]] = {name: (name,) for name in every} | {"both": tuple(every)}
    if text not in named:
        raise ConfigError(f"--recipe is one of {', '.join(named)}, not {text!r}")
    return named[text]


def _write_whole(into: Path, data: tuple[str, ...]) -> None:
    page = lazy.benchmarks.reproduction.whole_page(lazy.benchmarks.runs.Results(into), data)
    lazy.files.write_atomically(into / "report.html", page.html())
    for note in page.notes:
        say(note)
    say(f"written: {into / 'report.html'}")


def _print_list(as_json: bool) -> None:
    columns = {"name": "name", "about": "what it shows", "needs": "needs", "takes": "takes"}
    known = lazy.benchmarks.BENCHMARKS.values()
    rows = [{field: getattr(benchmark, field) for field in columns} for benchmark in known]
    about = "all of these that are in the results, on one page"
    rows.append({"name": WHOLE, "about": about, "needs": "results", "takes": "a minute"})
    print_records(rows, columns, as_json=as_json)


def do_runs(start: "Callable[[Stop], lazy.benchmarks.runner.Work]", minutes: float = math.inf) -> list[tuple[str, str]]:
    """Do the runs that are not done, with a progress bar; what failed, and why."""
    until = time.monotonic() + 60 * minutes
    with stop_on_signal() as asked, progress_bar() as bar:

        def stop() -> bool:
            return asked() or time.monotonic() > until

        work = start(stop)
        for note in work.notes:
            say(note)
        task = bar.add_task("", total=1.0, visible=bool(work.runs))
        failed = []
        for event in work.events:
            work.note(event)
            if event.kind == "failed":
                failed.append((str(event.run), event.reason))
            bar.update(task, completed=work.share, description=f"{event.run}  {work}")
            if event.kind != "epoch":
                say(f"{len(work.ended)} of {len(work.runs)}: {_line(event)}; {work}")
        if asked():
            raise StoppedError("stopped; the same command goes on where it was")
    return failed


def _line(event: "lazy.benchmarks.runner.Event") -> str:
    if event.record is None:
        return f"failed: {event.run}: {event.reason.strip().splitlines()[-1]}"
    scores = ", ".join(f"{p} {event.record.map(p):.4f}" for p in ("paper", "strict"))
    return f"{event.run}: mAP {scores}; {event.record.seconds['whole']:.0f} s"


def _print_page(page: "lazy.report.Page", as_json: bool) -> None:
    if as_json:
        print_json([table.record() for table in page.tables])
        return
    print(f"{page.title}\n")
    for table in page.tables:
        above, notes = [table.above] if table.above else [], [f"  {note}" for note in table.below]
        print(table.title, *above, "", table.plain(), *notes, "", sep="\n")
    for drawn in page.figures:
        print(f"figure: {drawn.name}.png, {drawn.name}.svg: {drawn.title}")
    for note in page.notes:
        say(note)
