"""`hyphash start` and `hyphash refine`"""

import os
import re
import secrets
import subprocess
import sys
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyphash.cli.options import Cache, CollectionFolder, Json, LabelsFrom, data_options
from hyphash.cli.output import counting, print_json, say, stop_on_signal
from hyphash.cli.search import read_photos
from hyphash.errors import DataError

if TYPE_CHECKING:
    from hyphash.photos import PhotoSource
    from hyphash.refining import Refinement, Stage

WATCHED = 0.2  # seconds between two looks at whether the service goes on
Labelled = tuple["PhotoSource", list[list[str] | None], str]  # and where the labels come from


def start(
    photos: Annotated[Path, typer.Argument(help="A folder of photos, tagged or not, or a label file.")],
    into: Annotated[Path | None, typer.Option(help="Folder of the collection. [default: PHOTOS-collection]")] = None,
    labels_from: LabelsFrom = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    no_open: Annotated[bool, typer.Option("--no-open", help="Open no browser.")] = False,
    cache: Cache = None,
) -> None:
    """From a folder of photos to a page to search and tag them on. Given again, it goes on where it was."""
    from hyphash.collection import Collection
    from hyphash.collection.folder import SETTINGS
    from hyphash.collection.watching import remember
    from hyphash.refining import take_in

    source, labels, labels_from = _labelled(photos, labels_from)
    tagged, names = sum(map(bool, labels)), {label for some in labels for label in some or ()}
    say(f"{photos}: {len(source):,} photos, {tagged:,} of them tagged, with {len(names):,} labels")
    folder = (into or Path(f"{photos.resolve().stem}-collection")).absolute()
    if not (folder / SETTINGS).is_file():
        from hyphash.guesses import starter

        say(f"{folder}: a new collection; it guesses everyday words until it has learned yours")
        Collection.create(folder, starter()).close()
    remember(folder, photos, labels_from)
    token = secrets.token_urlsafe(16)
    settings = {"HYPHASH_TOKEN": token} | ({"HYPHASH_CACHE": str(cache.absolute())} if cache else {})
    command = [sys.executable, "-m", "hyphash", "serve", str(folder), f"--port={port}", "--workers=1", "--log=warning"]
    env = os.environ | settings
    with stop_on_signal() as stop, subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as service:

        def ended() -> bool:
            return stop() or service.poll() is not None

        try:
            _wait_for(service, token, browser=not no_open)
            with _drawing() as draw:
                result = take_in(folder, source, labels, cache, tell=draw, stop=ended)
            say(f"{_in_words(result) if result else 'all photos are there'}; the page goes on until Ctrl-C")
            while not ended():
                time.sleep(WATCHED)
        finally:
            service.terminate()
    if not stop():
        raise typer.Exit(service.returncode)


def _wait_for(service: "subprocess.Popen[str]", token: str, *, browser: bool) -> None:
    """Until the service answers: say where, and show it. One that could not start has said why."""
    assert service.stdout, "it was started with a pipe"
    if not (found := re.search(r"http://\S+", service.stdout.readline())):
        raise typer.Exit(service.wait())
    url = f"{found[0]}#token={token}"  # behind the #, it is not sent anywhere
    print(url, flush=True)
    if browser:
        webbrowser.open(url)


def _labelled(photos: Path, labels_from: str) -> Labelled:
    """All photos of a folder or file with their labels: of a label file, else keywords, else folders named by words."""
    from hyphash.datasets.folder import detect, label_file, photos_under

    read = partial(read_photos, str(photos), "all", None)
    if labels_from or photos.is_file() or detect(photos) != "folder" or label_file(photos):
        return *read(data_options(None, labels_from=labels_from)), labels_from or "auto"
    if not next(photos_under(photos), None):
        raise DataError(f"{photos}: no photos here; give the folder that they are in")
    found = read({"labels_from": "keywords"})
    tops = {name.partition("/")[0] for name in photos_under(photos) if "/" in name}
    by_folder = len(tops) > 1 and not any(letter.isdigit() for name in tops for letter in name)  # no dates, no cameras
    if by_folder and not any(found[1]):
        return *read({"labels_from": "folders"}), "folders"
    return *found, "keywords"


def refine(collection: CollectionFolder, cache: Cache = None, json: Json = False) -> None:
    """Train from what was said of the photos of a collection, and move it to the new hasher if that is better."""
    from hyphash import refining

    with stop_on_signal() as stop, _drawing() as draw:
        result = refining.refine(collection, cache, tell=draw, stop=stop)
    if json:
        print_json(asdict(result))
    else:
        print(f"{collection}: {_in_words(result)}")


def _in_words(result: "Refinement") -> str:
    gains = {"searches by photo": result.search, "suggested labels": result.suggestions}
    told = ", ".join(f"{name} {gain.before:.3f} → {gain.after:.3f} (p {gain.p:.2g})" for name, gain in gains.items())
    kept = "" if result.moved else "; that is not surely better, so the collection keeps the hasher that it has"
    return f"{result.labels:,} labels learned from {result.photos:,} photos; mAP of {told}{kept}"


@contextmanager
def _drawing() -> "Iterator[Callable[[Stage], None]]":
    """A callback that draws a bar for each kind of thing that is counted."""
    what, update = "", None
    with ExitStack() as shown:

        def draw(stage: "Stage") -> None:
            nonlocal what, update
            if update is None or stage.what != what:
                shown.close()
                what, update = stage.what, shown.enter_context(counting(stage.what))
            update(stage.done, stage.total)

        yield draw
