"""What commands print: tables, JSON, progress, and problems with photos."""

import json
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyphash.errors import StoppedError, counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from hyphash.photos import Problem

SHOWN_PROBLEMS = 10
EVERY = 10.0  # seconds from one line of progress to the next, where it goes into a file


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None, lines: Collection[int] = ()
) -> None:
    """A table; numbers stand to the right. `lines` are numbers of rows before which a line is drawn."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", header_style="bold")
    for i, column in enumerate(columns):
        numeric = all(isinstance(row[i], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for number, row in enumerate(rows):
        if number in lines:
            table.add_section()
        table.add_row(*(Text(_cell(value)) for value in row))
    console().print(table)


def print_found(value: Any, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, as_json: bool) -> None:
    """What a command found: the value as JSON, or the same as a table for people."""
    if as_json:
        print_json(value)
    else:
        print_table(columns, rows)


def print_records(records: Sequence[dict[str, Any]], columns: dict[str, str], *, as_json: bool) -> None:
    """Records as JSON, or some of their fields as a table; `columns` says under which heading each field stands."""
    rows = [[record[field] for field in columns] for record in records]
    print_found(records, tuple(columns.values()), rows, as_json=as_json)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, dict):
        return ", ".join(f"{key}={inner}" for key, inner in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def console(*, errors: bool = False) -> "Console":
    from rich.console import Console

    wide = None if sys.stdout.isatty() else 120  # a pipe or a file has no width of its own
    return Console(stderr=errors, width=wide, soft_wrap=False, highlight=False)


@contextmanager
def progress_bar(*, shown: bool = True) -> Iterator["Bar"]:
    """A progress bar on the error stream, so that what is printed can be piped on."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(errors=True), disable=not shown) as bar:
        yield bar


@contextmanager
def counting(what: str, *, into: "Path | None" = None) -> Iterator[Callable[[int, int], None]]:
    """A callback (done, total) that draws a progress bar, which appears with the first call; lines, if into a file.

    With `into`, what is done is safe there and is not done again: Ctrl-C says so.
    """
    bar, so_far, told = None, f"before any {what} were done", time.monotonic()

    def update(done: int, total: int) -> None:
        nonlocal bar, so_far, told
        if sys.stderr.isatty():
            bar = bar or shown.enter_context(progress_bar())
            task = bar.task_ids[0] if bar.task_ids else bar.add_task(what, total=total)
            bar.update(task, completed=done, total=total)
        elif done == total or time.monotonic() - told >= EVERY:
            say(f"{done:,} of {total:,} {what}")
            told = time.monotonic()
        so_far = f"after {done:,} of {total:,} {what}, which are kept"

    try:
        with ExitStack() as shown:
            yield update
    except KeyboardInterrupt:
        if into is None:
            raise
        raise StoppedError(f"{into}: stopped {so_far}; give the same command again to finish") from None


def print_problems(problems: Sequence["Problem | str"]) -> None:
    """Photos that were left out, with the reason, on the error stream."""
    if problems:
        say(f"{counted(len(problems), 'photo')} left out:")
    for problem in problems[:SHOWN_PROBLEMS]:
        say(f"  {problem if isinstance(problem, str) else problem.reason}")
    if len(problems) > SHOWN_PROBLEMS:
        say(f"  … and {len(problems) - SHOWN_PROBLEMS:,} more")


def say(text: str) -> None:
    """A remark for the person at the terminal; never part of the output."""
    print(text, file=sys.stderr)
