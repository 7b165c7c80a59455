"""`hyphash start` and `hyphash refine`"""

import secrets
import sys
import webbrowser
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyphash.cli.options import Cache, CollectionFolder, Json, LabelsFrom
from hyphash.cli.output import print_json, progress_bar, say
from hyphash.errors import ConfigError, DataError, HyphashError, LabelError

if TYPE_CHECKING:
    from hyphash.refining import Refinement, Stage
    from hyphash.service.background import Progress

USUAL = "auto"


def start(
    photos: Annotated[Path, typer.Argument(help="A folder of photos, tagged or not.")],
    into: Annotated[Path | None, typer.Option(help="Folder of the collection. [default: PHOTOS-collection]")] = None,
    labels_from: LabelsFrom = "",
    no_labels: Annotated[bool, typer.Option("--no-labels", help="Take the photos without labels.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    no_open: Annotated[bool, typer.Option("--no-open", help="Open no browser.")] = False,
    cache: Cache = None,
) -> None:
    """From a folder of photos to a page to search and tag them on; given again, it goes on."""
    from hyphash.collection import Collection
    from hyphash.collection.intake import as_source
    from hyphash.collection.settings import FILE
    from hyphash.refining import take_in
    from hyphash.service import Settings, log_to, serve

    folder = into or Path(f"{photos.resolve().name}-collection")
    source = as_source(photos)
    if not len(source):
        raise DataError(f"{photos}: no photos here; give the folder that they are in")
    labels, told = ({}, "as they are") if no_labels else _labels(photos, labels_from)
    say(f"{photos}: {len(source):,} photos, {told}")
    if not (folder / FILE).is_file():
        say(f"{folder}: a new collection; everyday words are guessed until you teach it yours")
        from hyphash.guesses import starter

        Collection.create(folder, starter()).close()
    settings = Settings(port=port, token=secrets.token_urlsafe(16))

    def started(url: str) -> None:
        print(f"{folder}: {url}#token={settings.token}", flush=True)
        if not no_open:
            webbrowser.open(f"{url}#token={settings.token}")

    with log_to(sys.stderr, "warning"), progress_bar() as bar:
        work = partial(take_in, folder.absolute(), photos.absolute(), labels, cache)
        serve(folder, settings, workers=1, started=started, first=work, told=partial(_draw, bar))
