"""The command line: parse, call, print. Nothing heavy is imported before a command runs.

Exit codes: 0 done, 1 an internal failure, 2 bad input or usage, 130 stopped by Ctrl-C.
"""

import sys
import traceback
import warnings
from typing import Annotated, NoReturn

import typer

from hyphash import __version__
from hyphash.cli import about, collection, compare, data, encode, measure, plan, reproduce, search, serve, train
from hyphash.errors import HyphashError, MissingExtraError, StoppedError
from hyphash.machine import keep_memory

EXTRAS = {"torch": "train", "torchvision": "train", "timm": "train", "matplotlib": "plots", "sklearn": "reproduce"}

app = typer.Typer(
    name="hyphash",
    help="Short binary codes for photos with several labels: train, measure, index, search.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"hyphash {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Short binary codes for photos with several labels: train, measure, index, search."""


app.command()(train.train)
app.command()(measure.evaluate)
app.command()(compare.compare)
app.command()(reproduce.reproduce)
app.command()(search.index)
app.command()(encode.encode)
app.command()(plan.plan)
app.command()(search.search)
app.command()(search.tag)
app.command()(serve.serve)
app.command()(serve.export)
app.command()(collection.reindex)
app.add_typer(collection.app, name="collection", help="Look after a collection.")
app.add_typer(data.app, name="data", help="Look at datasets and draw the sample.")
app.command()(about.capacity)
app.command()(about.losses)
app.command()(about.backbones)
app.command()(about.datasets)
app.command()(about.doctor)


def main() -> None:
    """Run the command line; errors that a user can mend are one line, others a traceback."""
    keep_memory()
    warnings.filterwarnings("ignore", module="PIL")  # odd metadata in photos is no news to the user
    try:
        app()
    except StoppedError as stopped:
        print(f"hyphash: {stopped}", file=sys.stderr)
        sys.exit(130)
    except HyphashError as error:
        print(f"hyphash: {error}", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            _fault()
        print(f"hyphash: {MissingExtraError('this command', EXTRAS[error.name])}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("hyphash: stopped", file=sys.stderr)
        sys.exit(130)
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
    print("hyphash: this is a fault of hyphash, not yours; please report it with the lines above", file=sys.stderr)
    sys.exit(1)
