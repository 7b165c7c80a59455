"""A collection as a table: CSV, JSON lines or Parquet, out and in again with nothing lost.

The columns `image` and `labels` are those of a label file, so an export can be trained on as it is. A collection is a
dataset by itself, too: what people said of its photos. What was guessed or suggested is no label.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyphash.collection.records import Added, AddResult, Step
from hyphash.datasets import Rows, datasets
from hyphash.datasets.own import Choices, Row, own_photos
from hyphash.errors import CollectionError, ConfigError, DataError, LabelError, OtherHasherError, needs_extra
from hyphash.files import json_line, write_atomically
from hyphash.hasher import Progress
from hyphash.stores import Facts, Photo, State
from hyphash.workers import batched

if TYPE_CHECKING:
    from hyphash.collection import Collection

MANY = 500
COLUMNS: dict[str, type] = {
    "image": str, "labels": list, "id": int, "hasher": str, "code": bytes, "content": str, "size": int, "modified": int,
    "width": int, "height": int, "look": bytes, "given": list, "refused": list, "added": str, "changed": str,
}  # fmt: skip
LATER: dict[str, type] = {  # older exports do not have
    "scores": bytes, "taken": int, "camera": str, "latitude": float, "longitude": float,
}  # fmt: skip
ALL = COLUMNS | LATER
LISTS = [name for name, kind in ALL.items() if kind is list]
HELD_OUT = 10  # one photo in so many is a query of the dataset

Record = dict[str, Any]


def export(collection: "Collection", path: str | Path) -> int:
    """Write all photos with labels and codes to a .csv, .jsonl or .parquet file; how many there are."""
    path = Path(path)
    write, _ = _format(path)
    fingerprint, count = collection.store.state().fingerprint, 0

    def records() -> Iterator[Record]:
        nonlocal count
        for photo in collection.all_photos():
            count += 1
            yield _record(photo, fingerprint)

    write_atomically(path, lambda draft: write(draft, records()))
    return count


def import_(collection: "Collection", path: str | Path, *, progress: Progress | None = None) -> AddResult:
    """Take in what `export` wrote: read once to see that all of it fits, and once more. Others' codes are refused."""
    path = Path(path)
    _, read = _format(path)
    if not path.is_file():
        raise CollectionError(f"{path}: there is no such file")
    state = collection.store.state()
    total = there = 0
    for photos in batched(_photos(read(path), state), MANY):
        total += len(photos)
        ids = {photo.path: photo.id for photo in collection.store.find(paths=[photo.path for photo in photos])}
        there += sum(ids.get(photo.path) == photo.id for photo in photos)
    restore = there == len(collection)  # with the ids they had: it is empty, or an import was stopped and goes on
    result, done = AddResult(), 0
    for photos in batched(_photos(read(path), state), MANY):
        written = photos if restore else [replace(photo, id=0) for photo in photos]
        changes = collection.store.put(written, fingerprint=state.fingerprint)
        done += len(photos)
        result += Step(tuple(map(Added.of, changes)), (), done, total)
        if progress:
            progress(done, total)
    collection.tidy()
    return result


def _record(photo: Photo, fingerprint: str) -> Record:
    known = vars(photo.facts) | vars(photo) | {"image": photo.path, "hasher": fingerprint}
    known["look"] = photo.facts.thumbnail_hash

    def plain(value: Any) -> Any:
        return value.hex() if isinstance(value, bytes) else [*value] if isinstance(value, tuple) else value

    return {name: plain(known[name]) for name in ALL}


def _photos(records: Iterable[tuple[str, Record]], state: State) -> Iterator[Photo]:
    """Photos from records; each comes with the place in the file where it stands."""
    for where, record in records:
        if lacking := [name for name in COLUMNS if name not in record]:
            raise CollectionError(
                f"{where}: no {lacking[0]!r}, so this is not the export of a collection; "
                "photos with labels are added by `hyphash index`"
            )
        if record["hasher"] != state.fingerprint:
            raise OtherHasherError(
                f"{where}: a code of the hasher {record['hasher']}, here is {state.fingerprint}; "
                "codes of two hashers cannot be mixed: add the photos themselves with `hyphash index`"
            )
        try:
            yield _photo(record)
        except (ValueError, TypeError, AttributeError) as error:
            raise CollectionError(f"{where}: damaged ({error}); export the collection again") from error


def _photo(record: Record) -> Photo:
    value = {name: READ[kind](record[name]) for name, kind in COLUMNS.items()}
    later = {name: READ[kind](record[name]) for name, kind in LATER.items() if record.get(name) is not None}
    if len(bytes.fromhex(value["content"])) != 32:
        raise ValueError("the content is no SHA-256")
    if any(abs(number) >= 2**63 for number in (*value.values(), *later.values()) if isinstance(number, int)):
        raise ValueError("a number that is too large")
    scores, facts = later.pop("scores", b""), {name: value[name] for name in ("size", "modified", "width", "height")}
    return Photo(
        id=value["id"], path=value["image"], code=value["code"], scores=scores, given=value["given"],
        facts=Facts(value["content"], thumbnail_hash=value["look"], **facts, **later),
        labels=value["labels"] or (), refused=value["refused"] or (), added=value["added"], changed=value["changed"],
    )  # fmt: skip


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a path or label that is no text")
    return value


READ: dict[type, Callable[[Any], Any]] = {
    str: _text, int: int, float: float, bytes: bytes.fromhex,
    list: lambda value: None if value is None else tuple(map(_text, value)),
}  # fmt: skip


def _write_csv(path: Path, records: Iterator[Record]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ALL)
        writer.writeheader()
        for record in records:
            for label in (label for name in LISTS for label in record[name] or () if "|" in label):
                raise LabelError(f"the label {label!r} holds a |, which separates labels in CSV; export as .jsonl")
            camera = None if record["camera"] is None else [record["camera"]]
            writer.writerow(record | {name: _cell(record[name]) for name in LISTS} | {"camera": _cell(camera)})


def _cell(labels: list[str] | None) -> str:
    """A list of labels in CSV; nothing said is not the same as no labels said."""
    return "" if labels is None else "|".join(labels) or "|"


def _read_csv(path: Path) -> Iterator[tuple[str, Record]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        for record in reader:
            lists = {name: _list(record[name]) for name in LISTS if isinstance(record.get(name), str)}
            later = {name: record[name].strip("|") if record.get(name) else None for name in LATER}
            yield f"{path}:{reader.line_num}", record | lists | later


def _list(cell: str) -> list[str] | None:
    return None if not cell else [label for label in cell.split("|") if label]


def _write_jsonl(path: Path, records: Iterator[Record]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json_line(record) for record in records)


def _read_jsonl(path: Path) -> Iterator[tuple[str, Record]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise CollectionError(f"{path}:{number}: not a line of JSON ({error})") from error
            if not isinstance(record, dict):
                raise CollectionError(f"{path}:{number}: not a record of a collection")
            yield f"{path}:{number}", record


def _write_parquet(path: Path, records: Iterator[Record]) -> None:
    arrow, parquet = _pyarrow()
    kinds = {int: arrow.int64(), float: arrow.float64(), list: arrow.list_(arrow.string())}
    schema = arrow.schema([(name, kinds.get(kind, arrow.string())) for name, kind in ALL.items()])
    with parquet.ParquetWriter(path, schema) as writer:
        for some in batched(records, 50_000):
            writer.write_table(arrow.Table.from_pylist(some, schema=schema))


def _read_parquet(path: Path) -> Iterator[tuple[str, Record]]:
    arrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for record in batch.to_pylist():
                    yield str(path), record
    except arrow.ArrowInvalid as error:
        raise CollectionError(f"{path}: not a Parquet file ({error})") from error


def _pyarrow() -> tuple[Any, Any]:
    with needs_extra("parquet", "Parquet"):
        return import_module("pyarrow"), import_module("pyarrow.parquet")


def _format(path: Path) -> tuple[Callable[..., None], Callable[..., Iterator[tuple[str, Record]]]]:
    """How to write, and read, a file that ends like this."""
    choices = {
        ".csv": (_write_csv, _read_csv), ".jsonl": (_write_jsonl, _read_jsonl),
        ".parquet": (_write_parquet, _read_parquet),
    }  # fmt: skip
    if path.suffix.lower() not in choices:
        raise ConfigError(f"{path}: hyphash writes and reads {', '.join(choices)}; choose one of these endings")
    return choices[path.suffix.lower()]


@datasets("collection")
def as_dataset(path: Path, *, min_count: int = 1) -> Rows:
    """The photos of a collection that carry labels, as people said; a label that was refused is not carried.

    One in ten is a query, by its content: the same ones however often it is asked, so no hasher has learned from them.

    min_count  leave out labels that fewer photos carry
    """
    from hyphash.collection import Collection

    with Collection.open(path, device="cpu") as opened:
        labelled = [photo for photo in opened.all_photos() if photo.labels]
        files = [str(opened.originals.path(photo.facts.content) or photo.path) for photo in labelled]
    if not labelled:
        raise DataError(f"{path}: no photo carries a label; say what some of them show (`hyphash serve`, Tag)")
    queries = [int(photo.facts.content[:8], 16) % HELD_OUT == 0 for photo in labelled]
    parts = {True: ("queries",), False: ("database", "train")} if len({*queries}) > 1 else {}  # few: some are drawn
    rows = [
        Row(file, p.labels, str(path), parts.get(q, ())) for p, file, q in zip(labelled, files, queries, strict=True)
    ]
    choices = Choices(skip_unlabelled=True, skip_missing=True, min_count=min_count)
    return own_photos("collection", rows, path, choices=choices)
