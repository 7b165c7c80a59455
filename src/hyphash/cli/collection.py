"""`hyphash reindex` and `hyphash collection …`: the maintenance of a collection"""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option, Typer

from hyphash.cli.lazy import lazy
from hyphash.cli.options import CollectionFolder, EngineAddress, Json, RunFolder, StoreAddress
from hyphash.cli.output import counting, print_found, print_json, print_problems, print_table, say
from hyphash.errors import CollectionError, ConfigError, counted

Numbers = Annotated[list[str], Argument(help="Numbers of photos, as search prints them.")]
File = Annotated[Path, Argument(help="A .csv, .jsonl or .parquet file.")]
app = Typer(no_args_is_help=True, help="Look after a collection: figures, checks, labels, export and import.")
SHOWN = 20
Conflicts = Literal["show", "keep", "ours"]


def reindex(collection: CollectionFolder, run: RunFolder) -> None:
    """Move a collection to another hasher; the old one answers until all codes are there."""
    with counting("photos", into=collection) as progress, lazy.Collection.open(collection) as opened:
        problems = opened.reindex(run, progress=progress)
        print(f"{collection}: {counted(len(opened), 'photo')} with codes of {opened.hasher.fingerprint} now")
    print_problems(problems)


@app.command()
def stats(collection: CollectionFolder, json: Json = False) -> None:
    """Print the collection in figures."""
    with lazy.Collection.open(collection) as opened:
        found = opened.stats()
    if json:
        print_json(asdict(found))
        return
    rows = [("photos", found.photos), ("without labels", found.untagged), ("bits", found.bits)]
    rows += [("different codes", found.distinct), ("bytes on disk", found.bytes)]
    print_table((str(collection), "count"), rows)
    print_table(("label", "photos"), list(found.labels.items())[:SHOWN])


@app.command()
def recall(
    collection: CollectionFolder,
    queries: Annotated[int, Option(min=1, help="How many photos of the collection to search with.")] = 100,
    json: Json = False,
) -> None:
    """Print the share of the nearest photos that an approximate engine finds; of the others it is 1."""
    with lazy.Collection.open(collection) as opened:
        found = opened.recall(10, 100, queries=queries)
    print_found(found, ("results", "recall"), [(f"@{k}", share) for k, share in found.items()], as_json=json)


@app.command()
def verify(collection: CollectionFolder) -> None:
    """Check that everything in the folder is whole; exit with 2 if it is not."""
    with lazy.Collection.open(collection) as opened:
        wrong = opened.verify()
    if wrong:
        raise CollectionError(f"{collection}: " + "; ".join(wrong))
    print(f"{collection}: all is well")


@app.command()
def compact(collection: CollectionFolder) -> None:
    """Give back room that is no longer used."""
    with lazy.Collection.open(collection) as opened:
        opened.compact()
    print(f"{collection}: compacted")


@app.command()
def rebuild(collection: CollectionFolder) -> None:
    """Build anew what searches need, from the photos and codes in the store."""
    with lazy.Collection.open(collection) as opened:
        opened.rebuild()
        print(f"{collection}: {counted(len(opened), 'photo')} can be searched")


@app.command()
def missing(
    collection: CollectionFolder, remove: Annotated[bool, Option("--remove", help="Also forget them.")] = False
) -> None:
    """List photos whose files are gone."""
    with lazy.Collection.open(collection) as opened:
        gone = opened.prune() if remove else opened.missing()
        for photo in gone:
            print(f"{photo.id}\t{photo.path}")
        if gone.elsewhere:
            say(f"{counted(gone.elsewhere, 'photo')} left out, in folders of another machine or that may not be read")
        if remove:
            say(f"forgotten: {len(gone)}")


@app.command(name="remove")
def remove_photos(collection: CollectionFolder, numbers: Numbers) -> None:
    """Forget photos; their files stay where they are."""
    chosen = [_number(text) for text in numbers]
    with lazy.Collection.open(collection) as opened:
        print(f"{collection}: {opened.remove(chosen)} removed, {len(opened):,} left")


@app.command()
def relabel(
    collection: CollectionFolder,
    number: Annotated[str, Argument(help="Number of the photo, as search prints it.")],
    labels: Annotated[str, Argument(help="All labels it shall carry, with commas between.")],
) -> None:
    """Give a photo these labels and no others."""
    chosen, wanted = _number(number), [label.strip() for label in labels.split(",") if label.strip()]
    with lazy.Collection.open(collection) as opened:
        photo = opened.relabel(chosen, wanted)
    print(f"{photo.path}: {', '.join(photo.labels) or 'no labels'}")


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"{text!r} is no number of a photo; `hyphash search` prints them, `collection export` all")
    return int(text)


@app.command()
def duplicates(collection: CollectionFolder, radius: Annotated[int, Option(min=0, help="Bits apart.")] = 4) -> None:
    """Print groups of photos that are copies of each other or all but the same, a group a line."""
    with lazy.Collection.open(collection) as opened:
        for group in opened.duplicates(radius):
            print("\t".join(f"{number} {opened.get(number).path}" for number in group))


@app.command()
def trash(
    collection: CollectionFolder,
    restore: Annotated[list[str] | None, Option(help="Bring back the photo with this number.")] = None,
    empty: Annotated[bool, Option("--empty", help="Delete for good what is in it.")] = False,
) -> None:
    """List the photos in the trash of a collection, bring some back, or empty it."""
    chosen, work = [_number(text) for text in restore or ()], lazy.collection.trash
    with lazy.Collection.open(collection) as opened:
        if chosen:
            say(f"{collection}: brought back {', '.join(map(str, work.restore(opened, chosen))) or 'none of them'}")
        if empty:
            say(f"{collection}: {work.empty(opened)} deleted")
        for row in opened.store.removed():
            print(f"{row.id}\t{row.path}")


@app.command(name="write-tags")
def write_tags(
    collection: CollectionFolder,
    embed: Annotated[bool, Option("--embed", help="Into JPEG, PNG, WebP and TIFF files themselves.")] = False,
    stem: Annotated[bool, Option("--stem", help="New sidecars as photo.xmp, not photo.jpg.xmp.")] = False,
    conflicts: Annotated[Conflicts, Option(help="Where files say otherwise: show, keep both, or ours alone.")] = "show",
    dry_run: Annotated[bool, Option("--dry-run", help="Only say what would be written.")] = False,
    json: Json = False,
) -> None:
    """Write the labels of photos to XMP sidecars beside them, where other programs read them."""
    writing = lazy.collection.write_tags
    with lazy.Collection.open(collection) as opened:
        photos = opened.all_photos()
        found = list(writing.write_tags(opened, photos, conflicts=conflicts, embed=embed, stem=stem, dry_run=dry_run))
    tags = [one for one in found if isinstance(one, writing.Tags)]
    if json:
        print_json([asdict(one) for one in tags])
    for one in () if json else (one for one in tags if one.status != "unchanged"):
        others = ", ".join([*(f"+ {word}" for word in one.unknown), *(f"- {word}" for word in one.dropped)])
        print(f"{one.status}\t{one.path}\t{', '.join(one.labels)}\t{others}".rstrip())
    counts = Counter(one.status for one in tags)
    say(f"{collection}: " + (", ".join(f"{counts[status]:,} {status}" for status in counts) or "no photo has labels"))
    if counts["conflict"]:
        say("conflicts are left alone: choose --conflicts keep, or --conflicts ours")
    print_problems([one for one in found if not isinstance(one, writing.Tags)])


@app.command(name="export")
def export_photos(collection: CollectionFolder, file: File) -> None:
    """Write all photos with their labels and codes to a file."""
    with lazy.Collection.open(collection) as opened:
        print(f"{file}: {counted(opened.export(file), 'photo')}")


@app.command(name="import")
def import_photos(collection: CollectionFolder, file: File) -> None:
    """Take in what `export` wrote; codes of another hasher are refused."""
    with counting("photos", into=collection) as progress, lazy.Collection.open(collection) as opened:
        result = opened.import_(file, progress=progress)
        print(f"{collection}: {result.added:,} added, {result.updated:,} updated, {result.unchanged:,} unchanged")
    print_problems(result.problems)


@app.command(name="load")
def load_shards(
    collection: CollectionFolder,
    folder: Annotated[Path, Argument(help="Folder made by `hyphash encode`.")],
    run: Annotated[Path | None, Option(help="Folder of the hasher, where the collection has to be made first.")] = None,
    store: StoreAddress = "",
    engine: EngineAddress = "",
) -> None:
    """Take in what `encode` wrote; stopped and run again, nothing is doubled."""
    with counting("photos", into=collection) as progress:
        if run:
            own = lazy.hasher.read_spec(run).fingerprint
            lazy.encoding.summary_for(own, folder)  # a refusal leaves no empty collection behind
            opening = lazy.Collection.into(collection, run, store=store or None, engine=engine or None)
        else:
            opening = lazy.Collection.open(collection)
        with opening as opened:
            result, total = lazy.encoding.load(folder, opened, progress=progress), len(opened)
    print(f"{collection}: {counted(total, 'photo')} ({result.added:,} added, {result.photos:,} loaded)")
