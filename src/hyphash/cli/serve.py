"""`hyphash serve`, `hyphash export` and `hyphash publish`"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, cast

from typer import Argument, Option

from hyphash.cli.lazy import lazy
from hyphash.cli.measure import splits_of
from hyphash.cli.options import CollectionFolder, Json
from hyphash.cli.output import print_json, say
from hyphash.errors import HyphashError


def serve(
    collection: CollectionFolder,
    host: Annotated[str, Option(help="Where to listen; others than this machine need a token.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    token: Annotated[
        str, Option(envvar="HYPHASH_TOKEN", help="Lets those who know it write. [default: nobody may]")
    ] = "",
    write_tags: Annotated[bool, Option("--write-tags", help="Labels go to XMP sidecars as they change.")] = False,
    name: Annotated[list[str] | None, Option(help="Name that it is reached by; repeatable.")] = None,
    metrics: Annotated[
        str, Option(help="Who may read /metrics and the schema: everybody or token. [default: token if set]")
    ] = "",
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

    def started(url: str) -> None:
        print(f"{collection}: {url} ({how})", flush=True)

    with service.log_to(sys.stderr, log):
        workers = workers or lazy.machine.cores()
        service.serve(collection, settings, device=device, workers=workers, started=started, watch=watch)


def export(
    run: Annotated[Path, Argument(help="Folder made by `hyphash train`, or a collection.")],
    into: Annotated[Path | None, Option(help="New folder for it. [default: beside the weights]")] = None,
    photos: Annotated[
        Path | None, Option(help="Photos to compare both on. [default: those of the collection or the run]")
    ] = None,
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
    print(
        f"{exported.file}: agrees with the original on {exported.photos} photos "
        f"(outputs within {exported.difference:.1g} of the largest, {exported.bits_changed} bits changed)"
    )


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
    if not (run / lazy.collection.settings.FILE).is_file():
        return run, _queries_of(run)
    with lazy.Collection.open(run) as collection:
        assert collection.hasher.folder
        paths = [Path(photo.path) for photo in collection.photos(0, lazy.hasher.CHECKED)]
        there = [path for path in paths if path.is_file()]
        return collection.hasher.folder, lazy.photos.PhotoFiles(there) if there else None


def _queries_of(run: Path) -> "lazy.photos.PhotoSource | None":
    """The queries of the data that a run was trained on, if that is still where it was."""
    try:
        return splits_of(run).queries
    except HyphashError:
        return None
