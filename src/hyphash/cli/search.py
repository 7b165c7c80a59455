"""Photos into collections (`index`) or shards of codes (`encode`), `search`, `tag`, and `plan`: what a search needs"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Exit, Option

from hyphash.cli import options
from hyphash.cli.lazy import lazy
from hyphash.cli.output import counting, print_found, print_json, print_problems, print_table, say
from hyphash.errors import ConfigError, counted

Part = Literal["all", "train", "queries", "database"]
Rank = Literal["labels", "hamming", "asymmetric"]


def split_labels(text: str) -> tuple[list[str], list[str]]:
    """Wanted and unwanted labels of `dog,cat,-car`.

    >>> split_labels("dog, cat,-car")
    (['dog', 'cat'], ['car'])
    """
    labels = [label.strip() for label in text.split(",") if label.strip()]
    unwanted = [label[1:].strip() for label in labels if label.startswith("-")]
    return [label for label in labels if not label.startswith("-")], unwanted


def index(
    run: options.RunFolder,
    photos: Annotated[str, Argument(help="Photos to index: a label file, a folder, or a dataset.")],
    into: Annotated[Path, Option(help="Folder of the collection; made if it is not there.")],
    store: options.StoreAddress = "",
    engine: options.EngineAddress = "",
    part: Annotated[Part, Option(help="Which part of a dataset.")] = "all",
    dataset: options.Dataset = None,
    data_option: options.DataOption = None,
    skip_unlabelled: options.SkipUnlabelled = False,
    skip_missing: options.SkipMissing = False,
    labels_from: options.LabelsFrom = "",
    no_labels: Annotated[bool, Option("--no-labels", help="Take every photo in a folder, without labels.")] = False,
    prune: Annotated[bool, Option("--prune", help="Then forget all photos whose files are gone.")] = False,
    again: Annotated[bool, Option("--again", help="Also take what was removed from the collection.")] = False,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Put photos, tagged or not, into a collection to search. Photos that are in it already cost nothing."""
    given: Any = Path(photos)
    labels = None
    say_what_is_refused(given.expanduser())
    if not no_labels:
        flags = {"skip_unlabelled": skip_unlabelled, "skip_missing": skip_missing, "labels_from": labels_from}
        given, labels = read_photos(photos, part, dataset, options.data_options(data_option, **flags))
    with (
        counting("photos", into=into) as progress,
        lazy.Collection.into(into, run, device=device, store=store or None, engine=engine or None) as collection,
    ):
        result = collection.add(given, labels=labels, again=again, progress=progress)
        if part == "all" and (dataset or lazy.datasets.folder.detect(Path(photos))) == "folder":
            lazy.collection.watching.remember(into, Path(photos), "none" if no_labels else labels_from or "auto")
        forgotten = len(collection.prune()) if prune else 0
        total = len(collection)
    counts = {name: count for name, count in result.counts.items() if name != "removed" or count}
    counts |= {"forgotten": forgotten} if prune else {}
    if json:
        print_json({"collection": str(into), "photos": total, **counts, "left_out": len(result.problems)})
    else:
        words = {"removed": "stay removed: --again takes them"}
        told = ", ".join(f"{n:,} {words.get(name, name)}" for name, n in counts.items() if n) or "nothing to do"
        print(f"{into}: {counted(total, 'photo')} ({told})")
    print_problems(result.problems)


def say_what_is_refused(photos: Path) -> None:
    """Name the folders that cannot be read: nothing in them is found."""
    refused: list[OSError] = []
    if photos.is_dir():
        list(lazy.datasets.folder.photos_under(photos, refused=refused))
    if refused:
        some = ", ".join(str(error.filename) for error in refused[:3]) + (" …" if len(refused) > 3 else "")
        say(f"{counted(len(refused), 'folder')} left out, unreadable: {some}")


def read_photos(
    source: str, part: Part, dataset: str | None, given: dict[str, Any]
) -> "tuple[lazy.photos.PhotoSource, list[list[str] | None]]":
    """All photos of a dataset, or one part of it, with the names of their labels; None: nothing is said of them."""
    rows = lazy.datasets.read_rows(source, dataset, whole=part == "all" and "skip_unlabelled" not in given, **given)
    splits = None if part == "all" else rows.splits()
    for note in (splits or rows).notes:
        say(note)
    chosen: lazy.datasets.Split = rows.photos if splits is None else getattr(splits, part)
    labels = [*lazy.datasets.label_names(chosen.labels, rows.classes), *[None] * len(rows.unlisted)]
    if rows.unlisted:
        names = [*map(chosen.name, range(len(chosen))), *rows.unlisted]
        return lazy.photos.PhotoFiles(names, Path(source).expanduser()), labels
    return chosen, labels


def encode(
    run: options.RunFolder,
    source: Annotated[str, Argument(help="Photos: a folder, list, label file, pattern, s3://photos/*.tar, Parquet …")],
    into: Annotated[Path, Option(help="Folder for the codes; if it was begun already, it is finished.")],
    address: Annotated[str, Option(help="local; ray: a Ray started here; auto or HOST:PORT: a Ray cluster.")] = "local",
    workers: Annotated[int | None, Option(min=1, help="Encoders. [default: one a GPU, else one a core]")] = None,
    per_shard: Annotated[int | None, Option(min=1, help="Photos in a shard. [default: up to 10,000]")] = None,
    no_labels: Annotated[bool, Option("--no-labels", help="Leave out labels that the source has.")] = False,
    thumbnails: Annotated[bool, Option("--thumbnails", help="Also keep small pictures, about 8 kB a photo.")] = False,
    device: Annotated[str, Option(help="cpu, cuda … [default: GPUs if there are]", show_default=False)] = "auto",
    json: options.Json = False,
) -> None:
    """Encode photos into Parquet shards that any collection can load. Stopped and run again, it goes on."""
    steps = lazy.encoding.encode(
        run, source, into=into, address=address, workers=workers, per_shard=per_shard, device=device,
        labels=not no_labels, thumbnails=thumbnails,
    )  # fmt: skip
    with counting("shards", into=into) as progress, closing(steps):
        for step in steps:
            progress(step.done, step.total)
    summary = lazy.encoding.summary_of(into)
    if json:
        told = asdict(summary)
        print_json({"folder": str(into), **told, "shards": len(summary.shards), "left_out": told.pop("problems")})
    else:
        shards = counted(len(summary.shards), "shard")
        print(f"{into}: {counted(summary.photos, 'photo')} in {shards}, {summary.bits} bits each")
    print_problems(lazy.encoding.problems_in(into))


def search(
    collection: options.CollectionFolder,
    image: Annotated[Path | None, Argument(help="Photo to search with.")] = None,
    labels: Annotated[str, Option(help="Labels to search with, such as dog,cat,-car.")] = "",
    any_of: Annotated[str, Option("--any", help="Labels of which one is enough, such as dog,cat.")] = "",
    at_least: Annotated[list[str] | None, Option(help="Probability of a label, such as dog=.8; repeatable.")] = None,
    missing: Annotated[str, Option(help="Photos that should carry this label and do not.")] = "",
    wrong: Annotated[str, Option(help="Photos that carry this label and should not.")] = "",
    like: Annotated[int | None, Option(help="Number of a photo in the collection to search with.")] = None,
    carrying: Annotated[str, Option(help="Only photos that carry these labels.")] = "",
    taken: Annotated[str, Option(help="Only photos taken then: 2019, 2019-05, 2019-05..2020-02, 30d.")] = "",
    added: Annotated[str, Option(help="Only photos added then (UTC): 7d is the last seven days.")] = "",
    size: Annotated[str, Option(help="Only files of 2MB.. or ..500kB, or pictures of 12MP...")] = "",
    camera: Annotated[str, Option(help="Only photos of this camera; a part of its name will do.")] = "",
    folder: Annotated[str, Option(help="Only photos in this folder, such as 2019/summer.")] = "",
    type: Annotated[str, Option(help="Only files of these types, such as jpeg,png.")] = "",
    near: Annotated[str, Option(help="Only photos taken near a place, such as 48.2082,16.3738,5km.")] = "",
    k: Annotated[int, Option("-k", min=1, help="How many results.")] = 10,
    offset: Annotated[int, Option(min=0, help="How many results to pass over.")] = 0,
    rank: Annotated[Rank | None, Option(help="By labels' probabilities, bits, or the real query against bits.")] = None,
    bits: Annotated[int | None, Option(min=1, help="Rank by the first bits, then by all: of nested codes.")] = None,
    no_catch_up: Annotated[bool, Option("--no-catch-up", help="Do not wait for an engine that lags behind.")] = False,
    gallery: Annotated[Path | None, Option(help="Also write the results as an HTML page.")] = None,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Print the photos nearest to IMAGE, those with LABELS, or what is both."""
    wanted, unwanted = split_labels(labels)
    facts = {"taken": taken, "added": added, "size": size, "camera": camera, "folder": folder, "type": type}
    only = lazy.searchers.filters.Filter.parse(**facts, near=near)
    if not any((image, like is not None, wanted, unwanted, any_of, at_least, missing, wrong, carrying, only.by_facts)):
        raise ConfigError("search with what? Give a photo, --labels dog,cat or --like NUMBER, or only --taken 2019")
    carried, least = _carried(carrying, wanted), lazy.collection.query.probabilities(at_least or ())
    with lazy.Collection.open(collection, device=device) as opened:
        ranking = opened.search(
            image, like=like, labels=wanted, unwanted=unwanted, any_of=split_labels(any_of)[0],
            at_least=least, missing=missing, wrong=wrong, carrying=carried, only=only, k=k, offset=offset, rank=rank,
            bits=bits, catch_up=not no_catch_up,
        )  # fmt: skip
        if gallery:
            _write_gallery(gallery, opened, ranking, image, wanted)
    _print_ranking(ranking, "should carry it" if missing else "should not carry it" if wrong else "", json)


def _carried(carrying: str, wanted: list[str]) -> list[str]:
    """The labels that photos must carry; none of them can be unwanted."""
    carried, without = split_labels(carrying)
    if without:
        asked = ",".join([*wanted, *(f"-{label}" for label in without)])
        raise ConfigError(f"--carrying takes labels, not -{without[0]}; --labels {asked} puts such photos last")
    return carried


def _print_ranking(ranking: "lazy.collection.Ranking", what: str, as_json: bool) -> None:
    """The matches; where labels rank, how many carry them and where those begin and end that probably do."""
    if ranking.behind:
        say(f"not looked at: the last {counted(ranking.behind, 'change')} of the collection")
    if ranking.unlike:
        say(ranking.unlike)
    if as_json:
        print_json([asdict(match) for match in ranking])
        return
    known, probable, title, lines = ranking.known, ranking.probable, None, set[int]()
    distance: dict[str, Callable[[lazy.collection.Match], Any]] = {"distance": lambda m: m.distance}
    cells = distance | {"score": lambda m: round(m.score, 3)}
    if ranking.rank == "labels":
        probably = f"{probable:,} probably"
        title = f"{probably} {what}" if what else f"{known:,} carry what is asked for · {probably}"
        cells = {"probability": lambda m: "carries it" if m.known else f"{m.probability:.3f}"}
        cells |= {} if ranking.bordered else distance
        lines = {place - ranking.offset for place in (known, known + probable) if ranking.bordered} - {0}
    rows = [(*(cell(m) for cell in cells.values()), m.id, m.path, ", ".join(m.labels)) for m in ranking]
    print_table((*cells, "number", "photo", "labels"), rows, title=title, lines=lines)


def _write_gallery(
    page: Path, collection: "lazy.Collection", ranking: "lazy.collection.Ranking", image: Path | None, wanted: list[str]
) -> None:
    photos, report = lazy.photos, lazy.report
    title = image.name if image else ", ".join(wanted) or "search"
    picture = photos.thumbnail(photos.decode(photos.read_bytes(image), str(image))) if image else None
    query = report.GalleryPhoto(name=title, labels=tuple(wanted), thumbnail=(lambda: picture) if picture else None)
    matches = tuple(
        report.GalleryPhoto(
            name=Path(m.path).name, labels=m.labels, distance=m.distance, thumbnail=partial(collection.thumbnail, m.id)
        )
        for m in ranking
    )
    report.write_gallery(page, [report.GalleryRow(query=query, matches=matches)], f"Nearest to {title}")
    say(f"written: {page}")


def tag(
    run: options.RunFolder,
    images: Annotated[list[Path], Argument(help="Photos to tag.")],
    k: Annotated[int, Option("-k", min=1, help="How many labels a photo.")] = 5,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Print the labels that suit a photo, with their probabilities; those marked it probably carries.

    A hasher without a label layer gives cosines to the anchors of labels instead.
    """
    hasher = lazy.Hasher.to_encode(run, device=device)
    encoded = hasher.encode_photos(lazy.photos.PhotoFiles(images))
    tags = hasher.tags(encoded.values, encoded.logits)
    found = {str(images[i]): some[:k] for i, some in zip(encoded.rows, tags, strict=True)}
    scores = {name: {tag.label: tag.score for tag in some} for name, some in found.items()}
    rows = [(name, t.label, t.score, "probably" if t.carried else "") for name, some in found.items() for t in some]
    score = "probability" if hasher.calibration else "score"
    print_found(scores, ("photo", "label", score, "carries it"), rows, as_json=json)
    print_problems(encoded.problems)
    if encoded.problems and not found:
        raise Exit(2)


def plan(
    photos: Annotated[str, Option(metavar="NUMBER", help="How many photos, such as 1e9.")],
    bits: Annotated[int, Option(help="Bits a code.")] = 64,
    qps: Annotated[float, Option(help="Queries a second.")] = 10,
    k: Annotated[int, Option("-k", "--k", min=1, help="Results a query.")] = 10,
    labels_per_photo: Annotated[float, Option(help="Labels a photo carries.")] = 4,
    replicas: Annotated[int, Option(min=1, help="Copies of everything, at least.")] = 1,
    node_memory: Annotated[str, Option(help="Memory of a machine.")] = "256GB",
    node_cores: Annotated[int, Option(min=1, help="Cores of a machine.")] = 32,
    markdown: options.Markdown = False,
    json: options.Json = False,
) -> None:
    """Print what a search of that size needs with each engine, from measured figures, with the formulas."""
    planning = lazy.planning
    wish = planning.Wish(
        photos=planning.count_of(photos), bits=bits, qps=qps, k=k, labels_per_photo=labels_per_photo, replicas=replicas,
        node_memory=planning.size_of(node_memory), node_cores=node_cores,
    )  # fmt: skip
    estimates, encoding = planning.plan(wish), planning.encoding(wish)
    if json:
        shown = {"engines": [asdict(one) for one in estimates], "encoding": [asdict(figure) for figure in encoding]}
        print_json({"wish": asdict(wish), **shown})
        return
    columns, rows = ("engine", "what", "estimate", "formula"), []
    for one in estimates:
        rows += [(one.engine, figure.name, figure.text, figure.formula) for figure in one.figures]
        rows += [(one.engine, "", "", one.note)]
    rows += [("", figure.name, figure.text, figure.formula) for figure in encoding]
    if markdown:
        print(lazy.report.markdown_table(columns, rows))
    else:
        print_table(columns, rows)
