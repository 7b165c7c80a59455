"""The command line: parse, call, print. Nothing heavy is imported before a command runs.

Exit codes: 0 done, 1 an internal failure, 2 bad input or usage, 130 stopped by Ctrl-C.
"""

import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer
from typer import Option

from hyphash import __version__
from hyphash.cli import about, collection, measure, reproduce, search, serve, train
from hyphash.errors import HyphashError, MissingExtraError, StoppedError
from hyphash.machine import keep_memory

EXTRAS = {"torch": "train", "torchvision": "train", "timm": "train", "matplotlib": "plots", "sklearn": "reproduce"}

# What `hyphash --help` shows under which heading.
PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Every day": (
        serve.start, train.train, train.tune, measure.evaluate, search.index, search.search, search.tag, serve.serve,
        serve.refine, serve.watch,
    ),
    "Research": (measure.compare, reproduce.reproduce, about.capacity, about.losses, about.backbones, about.datasets),
    "Care": (collection.reindex, serve.export, serve.publish, about.doctor),
    "Scale": (search.encode, search.plan),
}  # fmt: skip

app = typer.Typer(
    name="hyphash",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",  # else a `[default: …]` in a help text is taken for a style and not shown
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"hyphash {__version__}{about.commit()}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Short binary codes for photos with several labels: train, measure, index, search."""


for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(collection.app, name="collection", rich_help_panel="Care")
app.add_typer(about.data, name="data", rich_help_panel="Research")


def main() -> None:
    """Run the command line; errors that a user can mend are one line, others a traceback."""
    keep_memory()
    warnings.filterwarnings("ignore", module="PIL")  # odd metadata in photos is no news to the user
    try:
        app()
    except StoppedError as stopped:
        _end(stopped, 130)
    except HyphashError as error:
        _end(error, 2)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            _fault()
        _end(MissingExtraError("this command", EXTRAS[error.name]), 2)
    except KeyboardInterrupt:
        _end("stopped", 130)
    except SystemExit as ended:
        if isinstance(ended.__context__ and ended.__context__.__cause__, KeyboardInterrupt):
            print("hyphash: stopped", file=sys.stderr)  # Typer ends the program without a word
        raise
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone, as `head` does
        sys.exit(0)
    except Exception:
        _fault()


def _fault() -> NoReturn:
    traceback.print_exc()
    _end("this is a fault of hyphash, not yours; please report it with the lines above", 1)


def _end(why: object, code: int) -> NoReturn:
    print(f"hyphash: {why}", file=sys.stderr)
    sys.exit(code)
