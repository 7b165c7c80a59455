"""`hyphash serve` and `hyphash export`"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from hyphash.cli.options import CollectionFolder, Json
from hyphash.cli.output import print_json, say

if TYPE_CHECKING:
    from hyphash.photos import PhotoSource


def serve(
    collection: CollectionFolder,
    host: Annotated[str, typer.Option(help="Where to listen; others than this machine need a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    token: Annotated[
        str, typer.Option(envvar="HYPHASH_TOKEN", help="Lets those who know it write. [default: nobody may]")
    ] = "",
    write_tags: Annotated[bool, typer.Option("--write-tags", help="Labels go to XMP sidecars as they change.")] = False,
    name: Annotated[list[str] | None, typer.Option(help="Name that it is reached by; repeatable.")] = None,
    metrics: Annotated[
        str, typer.Option(help="Who may read /metrics and the schema: everybody or token. [default: token if set]")
    ] = "",
    max_upload: Annotated[int, typer.Option(min=1, help="Largest photo, in megabytes.")] = 20,
    max_pixels: Annotated[int, typer.Option(min=1, help="Largest photo, in megapixels.")] = 50,
    seconds: Annotated[float, typer.Option(help="Longest time for a request.")] = 30.0,
    threads: Annotated[int, typer.Option(min=1, help="Requests worked on at once.")] = 4,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes that answer. [default: cores]", show_default=False)
    ] = 0,
    device: Annotated[
        str, typer.Option(help="onnx, cpu, cuda … [default: onnx if exported]", show_default=False)
    ] = "auto",
    watch: Annotated[bool, typer.Option("--watch", help="Also watch its folders, as `hyphash watch` does.")] = False,
    log: Annotated[
        str, typer.Option(help="debug, info, warning or error; as JSON lines on the error stream.")
    ] = "info",
) -> None:
    """Serve a collection: an HTTP API and a page to search it with. Stop it with Ctrl-C."""
    import sys

    from hyphash.machine import cores
    from hyphash.service import Settings, log_to
    from hyphash.service import serve as run
    from hyphash.service.settings import Readers

    settings = Settings(
        host=host, port=port, token=token, write_tags=write_tags, names=tuple(name or ()),
        metrics=cast(Readers, metrics),
        max_upload=max_upload * 1_000_000, max_pixels=max_pixels * 1_000_000, seconds=seconds, threads=threads,
    )  # fmt: skip
    how = "those with the token may change it" if token else "read-only"

    def started(url: str) -> None:
        print(f"{collection}: {url} ({how})", flush=True)

    with log_to(sys.stderr, log):
        run(collection, settings, device=device, workers=workers or cores(), started=started, watch=watch)


def export(
    run: Annotated[Path, typer.Argument(help="Folder made by `hyphash train`, or a collection.")],
    into: Annotated[Path | None, typer.Option(help="New folder for it. [default: beside the weights]")] = None,
    photos: Annotated[
        Path | None, typer.Option(help="Photos to compare both on. [default: those of the collection or the run]")
    ] = None,
    json: Json = False,
) -> None:
    """Write the network as ONNX, to index and serve without torch; it is compared with the original first."""
    from hyphash.hasher import Hasher

    folder, known = _hasher_and_photos(run)
    if photos is not None:
        from hyphash.collection.intake import as_source

        known = as_source(photos)
    if known is None:
        say("the photos of this run are not here; comparing on drawn ones (see --photos)")
    exported = Hasher.load(folder, device="cpu").export(into or folder, known)
    if json:
        print_json(asdict(exported) | {"file": str(exported.file)})
        return
    print(
        f"{exported.file}: agrees with the original on {exported.photos} photos "
        f"(outputs within {exported.difference:.1g} of the largest, {exported.bits_changed} bits changed)"
    )


def publish(
    run: Annotated[Path, typer.Argument(help="Folder made by `hyphash train`, and measured by `hyphash evaluate`.")],
    to: Annotated[Path, typer.Option(help="New folder, in the layout of the Hugging Face hub.")],
    licence: Annotated[str, typer.Option(help="Of the weights, such as apache-2.0.")] = "other",
    about: Annotated[str, typer.Option(help="A sentence or two for the model card.")] = "",
) -> None:
    """Write a hasher for others: safetensors, ONNX, settings and a model card; nothing is uploaded."""
    from hyphash.publishing import publish as write

    print(f"{write(run, to, licence=licence, about=about, photos=_queries_of(run))}: read it, then upload {to}")


def _hasher_and_photos(run: Path) -> "tuple[Path, PhotoSource | None]":
    """The folder of a hasher, and photos that it is used on, where they can be found."""
    from hyphash.collection import Collection
    from hyphash.collection.folder import SETTINGS
    from hyphash.hasher import CHECKED
    from hyphash.photos import PhotoFiles

    if not (run / SETTINGS).is_file():
        return run, _queries_of(run)
    with Collection.open(run) as collection:
        assert collection.hasher.folder
        paths = [Path(photo.path) for photo in collection.photos(0, CHECKED)]
        there = [path for path in paths if path.is_file()]
        return collection.hasher.folder, PhotoFiles(there) if there else None


def _queries_of(run: Path) -> "PhotoSource | None":
    """The queries of the data that a run was trained on, if that is still where it was."""
    from hyphash.datasets import load_dataset
    from hyphash.errors import HyphashError
    from hyphash.training.runs import read_run

    try:
        config = read_run(run)
        return load_dataset(config.data, config.dataset, **config.data_options).queries
    except HyphashError:
        return None
