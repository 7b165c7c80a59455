"""From photos to a page, and what is learned there: start, serve, watch, refine, export and publish."""

import os
import re
import secrets
import subprocess
import sys
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, cast

from typer import Argument, Exit, Option

from hyphash.cli.lazy import lazy
from hyphash.cli.measure import splits_of
from hyphash.cli.options import Cache, CollectionFolder, Device, Json, LabelsFrom, data_options
from hyphash.cli.output import counting, print_json, print_problems, say
from hyphash.cli.search import read_photos, say_what_is_refused
from hyphash.errors import DataError, HyphashError, counted
from hyphash.machine import stop_on_signal, told_at_once

STOPPING = "stopping after this batch; nothing is lost: given again, it goes on"
WATCHED = 0.2  # seconds between two looks at whether the service goes on
Labelled = tuple["lazy.photos.PhotoSource", list[list[str] | None], str]  # and where the labels come from


def start(
    photos: Annotated[Path, Argument(help="A folder of photos, tagged or not, or a label file.")],
    into: Annotated[Path | None, Option(help="Folder of the collection. [default: PHOTOS-collection]")] = None,
    labels_from: LabelsFrom = "",
    port: Annotated[int, Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    no_open: Annotated[bool, Option("--no-open", help="Open no browser.")] = False,
    cache: Cache = None,
) -> None:
    """From a folder of photos to a page to search and tag them on. Given again, it goes on where it was."""
    say_what_is_refused(photos)
    source, labels, labels_from = _labelled(photos, labels_from)
    tagged, names = sum(map(bool, labels)), {label for some in labels for label in some or ()}
    say(f"{photos}: {counted(len(source), 'photo')}, {tagged:,} of them tagged, with {counted(len(names), 'label')}")
    folder = (into or Path(f"{photos.resolve().stem}-collection")).absolute()
    if not (folder / lazy.collection.folder.SETTINGS).is_file():
        say(f"{folder}: a new collection; it guesses everyday words until it has learned yours")
        lazy.Collection.create(folder, lazy.guesses.starter()).close()
    lazy.collection.watching.remember(folder, photos, labels_from)
    token = secrets.token_urlsafe(16)
    env = os.environ | {"HYPHASH_TOKEN": token} | ({"HYPHASH_CACHE": str(cache.absolute())} if cache else {})
    command = [sys.executable, "-Pm", "hyphash", "serve", str(folder), f"--port={port}", "--workers=1", "--log=warning"]
    with stop_on_signal() as stop, subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as service:

        def ended() -> bool:
            return stop() or service.poll() is not None

        try:
            _wait_for(service, token, browser=not no_open)
            with _drawing() as draw, told_at_once(partial(say, STOPPING)):
                came, result = lazy.refining.take_in(folder, source, labels, cache, tell=draw, stop=ended)
            print_problems(came.problems)
            say(f"{_in_words(result) if result else 'the photos are there'}; the page goes on until Ctrl-C")
            while not ended():
                time.sleep(WATCHED)
        finally:
            service.terminate()
    if not stop():
        raise Exit(service.returncode)


def _wait_for(service: "subprocess.Popen[str]", token: str, *, browser: bool) -> None:
    """Until the service answers: say where, and show it. One that could not start has said why."""
    assert service.stdout, "it was started with a pipe"
    if not (found := re.search(r"http://\S+", service.stdout.readline())):
        raise Exit(service.wait())
    url = f"{found[0]}#token={token}"  # behind the #, it is not sent anywhere
    print(url, flush=True)
    if browser:
        webbrowser.open(url)


def _labelled(photos: Path, labels_from: str) -> Labelled:
    """All photos of a folder or file with their labels: of a label file, else keywords, else folders named by words."""
    here = lazy.datasets.folder
    read, kind = partial(read_photos, str(photos), "all", None), here.detect(photos)
    if kind == "collection":
        raise DataError(f"{photos}: this is a collection; give the folder of its photos, or `hyphash serve {photos}`")
    if labels_from or photos.is_file() or kind != "folder" or here.label_file(photos):
        known = lazy.datasets.options_of(kind) or ()
        chosen = data_options(None, labels_from=labels_from, skip_missing="skip_missing" in known)  # or in the trash
        return *read(chosen), labels_from or "auto"
    if not next(here.photos_under(photos), None):
        raise DataError(f"{photos}: no photos here that may be read; give the folder that they are in")
    found = read({"labels_from": "keywords"})
    tops = {name.partition("/")[0] for name in here.photos_under(photos) if "/" in name}
    by_folder = len(tops) > 1 and not any(letter.isdigit() for name in tops for letter in name)  # no dates, no cameras
    if by_folder and not any(found[1]):
        return *read({"labels_from": "folders"}), "folders"
    return *found, "keywords"


def watch(
    collection: CollectionFolder,
    photos: Annotated[list[Path] | None, Argument(help="Further folders. [default: what was indexed]")] = None,
    labels_from: LabelsFrom = "",
    poll: Annotated[bool, Option("--poll", help="Look again and again, where nothing tells of changes.")] = False,
    device: Device = "auto",
) -> None:
    """Take in photos that come, change, move or go in the folders of a collection, until Ctrl-C."""

    def heard(one: "lazy.collection.records.Happening") -> None:
        print(f"{one.time} {one.what} {one.photos:,}: {one.reason or ', '.join(one.names)}", flush=True)

    with lazy.Collection.open(collection, device=device) as opened:
        for folder in photos or ():
            lazy.collection.watching.remember(collection, folder, labels_from or "auto")
        opened.log.heard = heard
        watching = lazy.collection.watching.Watch(opened)
        say(f"{collection}: watching {', '.join(map(str, watching.folders))}; stop with Ctrl-C")
        with stop_on_signal() as stop:
            watching.run(stop, poll=poll)


def refine(collection: CollectionFolder, cache: Cache = None, json: Json = False) -> None:
    """Train from what was said of the photos of a collection, and move it to the new hasher if that is better."""
    with stop_on_signal() as stop, _drawing() as draw:
        result = lazy.refining.refine(collection, cache, tell=draw, stop=stop)
    if json:
        print_json(asdict(result))
    else:
        print(f"{collection}: {_in_words(result)}")


def _in_words(result: "lazy.refining.Refinement") -> str:
    gains = {"searches by photo": result.search, "suggested labels": result.suggestions}
    told = ", ".join(f"{name} {gain.before:.3f} → {gain.after:.3f} (p {gain.p:.2g})" for name, gain in gains.items())
    kept = "" if result.moved else "; that is not surely better, so the collection keeps the hasher that it has"
    return f"{counted(result.labels, 'label')} learned from {counted(result.photos, 'photo')}; mAP of {told}{kept}"


@contextmanager
def _drawing() -> "Iterator[Callable[[lazy.refining.Stage], None]]":
    """A callback that draws a bar for each kind of thing that is counted."""
    bars: dict[str, Callable[[int, int], None]] = {}
    with ExitStack() as shown:

        def draw(stage: "lazy.refining.Stage") -> None:
            if stage.what not in bars:
                shown.close()
                bars.clear()
                bars[stage.what] = shown.enter_context(counting(stage.what))
            bars[stage.what](stage.done, stage.total)

        yield draw


def serve(
    collection: CollectionFolder,
    host: Annotated[str, Option(help="Where to listen; others than this machine need a token.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    token: Annotated[str, Option(envvar="HYPHASH_TOKEN", help="Whoever knows it may write. [default: nobody]")] = "",
    write_tags: Annotated[bool, Option("--write-tags", help="Labels go to XMP sidecars as they change.")] = False,
    name: Annotated[list[str] | None, Option(help="Name that it is reached by; repeatable.")] = None,
    metrics: Annotated[str, Option(help="Who reads /metrics, schema: everybody or token. [default: by token]")] = "",
    max_upload: Annotated[int, Option(min=1, help="Largest photo, in megabytes.")] = 20,
    max_pixels: Annotated[int, Option(min=1, help="Largest photo, in megapixels.")] = 50,
    seconds: Annotated[float, Option(help="Longest time for a request.")] = 30.0,
    threads: Annotated[int, Option(min=1, help="Requests worked on at once.")] = 4,
    workers: Annotated[int, Option(min=0, help="Processes that answer. [default: cores]", show_default=False)] = 0,
    device: Annotated[str, Option(help="onnx, cpu, cuda … [default: onnx if exported]", show_default=False)] = "auto",
    watch: Annotated[bool, Option("--watch", help="Also watch its folders, as `hyphash watch` does.")] = False,
    log: Annotated[str, Option(help="debug, info, warning or error; as JSON lines on the error stream.")] = "info",
) -> None:
    """Serve a collection: an HTTP API and a page to search it with. Stop it with Ctrl-C."""
    service = lazy.service
    settings = service.Settings(
        host=host, port=port, token=token, write_tags=write_tags, names=tuple(name or ()),
        metrics=cast("lazy.service.settings.Readers", metrics),
        max_upload=max_upload * 1_000_000, max_pixels=max_pixels * 1_000_000, seconds=seconds, threads=threads,
    )  # fmt: skip
    how = "those with the token may change it" if token else "read-only"
    with service.log_to(sys.stderr, log):
        service.serve(
            collection, settings, device=device, workers=workers or lazy.machine.cores(), watch=watch,
            started=lambda url: print(f"{collection}: {url} ({how})", flush=True),
        )  # fmt: skip


def export(
    run: Annotated[Path, Argument(help="Folder made by `hyphash train`, or a collection.")],
    into: Annotated[Path | None, Option(help="New folder for it. [default: beside the weights]")] = None,
    photos: Annotated[Path | None, Option(help="Photos to compare both on. [default: its own]")] = None,
    json: Json = False,
) -> None:
    """Write the network as ONNX, to index and serve without torch; it is compared with the original first."""
    folder, known = _hasher_and_photos(run)
    if photos is not None:
        known = lazy.collection.intake.as_source(photos)
    if known is None:
        say("the photos of this run are not here; comparing on drawn ones (see --photos)")
    exported = lazy.Hasher.load(folder, device="cpu").export(into or folder, known)
    if json:
        print_json(asdict(exported) | {"file": str(exported.file)})
        return
    told = f"outputs within {exported.difference:.1g} of the largest, {counted(exported.bits_changed, 'bit')} changed"
    print(f"{exported.file}: agrees with the original on {counted(exported.photos, 'photo')} ({told})")


def publish(
    run: Annotated[Path, Argument(help="Folder made by `hyphash train`, and measured by `hyphash evaluate`.")],
    to: Annotated[Path, Option(help="New folder, in the layout of the Hugging Face hub.")],
    licence: Annotated[str, Option(help="Of the weights, such as apache-2.0.")] = "other",
    about: Annotated[str, Option(help="A sentence or two for the model card.")] = "",
) -> None:
    """Write a hasher for others: safetensors, ONNX, settings and a model card; nothing is uploaded."""
    card = lazy.publishing.publish(run, to, licence=licence, about=about, photos=_queries_of(run))
    print(f"{card}: read it, then upload {to}")


def _hasher_and_photos(run: Path) -> "tuple[Path, lazy.photos.PhotoSource | None]":
    """The folder of a hasher, and photos that it is used on, where they can be found."""
    if not (run / lazy.collection.folder.SETTINGS).is_file():
        return run, _queries_of(run)
    with lazy.Collection.open(run) as collection:
        assert collection.hasher.folder
        paths = [Path(photo.path) for photo in collection.photos(0, lazy.hasher.CHECKED)]
        there = [path for path in paths if path.is_file()]
        return collection.hasher.folder, lazy.photos.PhotoFiles(there) if there else None


def _queries_of(run: Path) -> "lazy.photos.PhotoSource | None":
    """The queries of the data that a run was trained on, if that is still where it was."""
    with suppress(HyphashError):
        return splits_of(run).queries
    return None
