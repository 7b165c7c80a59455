"""A collection as a table: CSV, JSON lines or Parquet, out and in again with nothing lost.

The columns `image` and `labels` are those of a label file, so an export can be trained on as it is.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hyphash.collection.records import Added, AddResult, Step
from hyphash.errors import CollectionError, ConfigError, LabelError, OtherHasherError, needs_extra
from hyphash.files import json_line, write_atomically
from hyphash.hasher import Progress
from hyphash.stores import Facts, Photo, State
from hyphash.workers import batched

if TYPE_CHECKING:
    from hyphash.collection import Collection

MANY = 500
NUMBERS = ("size", "modified", "width", "height")
LISTS = ("labels", "given", "refused")
COLUMNS = (
    "image", "labels", "id", "hasher", "code", "content", "size", "modified", "width", "height", "look",
    "given", "refused", "added", "changed",
)  # fmt: skip
LATER: dict[str, Callable[[Any], Any]] = {  # columns that older exports do not have
    "scores": bytes.fromhex, "taken": int, "camera": str, "latitude": float, "longitude": float,
}  # fmt: skip

Record = dict[str, Any]
T = TypeVar("T")


def export(collection: "Collection", path: str | Path) -> int:
    """Write all photos with labels and codes to a .csv, .jsonl or .parquet file; how many there are."""
    path = Path(path)
    writers = {".csv": _write_csv, ".jsonl": _write_jsonl, ".parquet": _write_parquet}
    fingerprint = collection.store.state().fingerprint
    count = 0

    def records() -> Iterator[Record]:
        nonlocal count
        for photo in collection.all_photos():
            count += 1
            yield _record(photo, fingerprint)

    write = _by_suffix(path, writers)
    write_atomically(path, lambda draft: write(draft, records()))
    return count


def import_(collection: "Collection", path: str | Path, *, progress: Progress | None = None) -> AddResult:
    """Take in what `export` wrote: read once to see that all of it fits, and once more. Others' codes are refused."""
    path = Path(path)
    read = _by_suffix(path, {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet})
    if not path.is_file():
        raise CollectionError(f"{path}: there is no such file")
    state = collection.store.state()
    total = there = 0
    for photos in batched(_photos(read(path), state), MANY):
        total += len(photos)
        ids = {photo.path: photo.id for photo in collection.store.find(paths=[photo.path for photo in photos])}
        there += sum(ids.get(photo.path) == photo.id for photo in photos)
    restore = there == len(collection)  # with the ids they had: it is empty, or an import was stopped and goes on
    result = AddResult()
    done = 0
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
    facts = photo.facts
    record = vars(facts) | vars(photo)
    record |= {name: list(record[name]) for name in LISTS if record[name] is not None}
    record |= {"image": photo.path, "hasher": fingerprint, "code": photo.code.hex(), "look": facts.thumbnail_hash.hex()}
    record["scores"] = photo.scores.hex()
    return {name: record[name] for name in (*COLUMNS, *LATER)}


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
    if len(bytes.fromhex(record["content"])) != 32:
        raise ValueError("the content is no SHA-256")
    lists = {name: None if record[name] is None else tuple(record[name]) for name in LISTS}
    numbers: dict[str, Any] = {name: int(record[name]) for name in NUMBERS}
    later = {name: kind(record[name]) for name, kind in LATER.items() if record.get(name) is not None}
    texts = (record["image"], *(label for labels in lists.values() for label in labels or ()))
    if (
        not all(isinstance(text, str) for text in texts)
        or max(map(abs, (int(record["id"]), later.get("taken", 0), *numbers.values()))) >= 2**63
    ):
        raise ValueError("a path or label that is no text, or a number that is too large")
    return Photo(
        id=int(record["id"]), path=record["image"], code=bytes.fromhex(record["code"]), given=lists["given"],
        scores=later.pop("scores", b""),
        facts=Facts(record["content"], thumbnail_hash=bytes.fromhex(record["look"]), **numbers, **later),
        labels=lists["labels"] or (), refused=lists["refused"] or (), added=record["added"], changed=record["changed"],
    )  # fmt: skip


def _write_csv(path: Path, records: Iterator[Record]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, (*COLUMNS, *LATER))
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
            except ValueError as error:
                raise CollectionError(f"{path}:{number}: not a line of JSON ({error})") from error
            if not isinstance(record, dict):
                raise CollectionError(f"{path}:{number}: not a record of a collection")
            yield f"{path}:{number}", record


def _write_parquet(path: Path, records: Iterator[Record]) -> None:
    arrow, parquet = _pyarrow()
    kinds = {name: arrow.int64() for name in ("id", *NUMBERS)} | {name: arrow.list_(arrow.string()) for name in LISTS}
    kinds |= {"taken": arrow.int64(), "latitude": arrow.float64(), "longitude": arrow.float64()}
    schema = arrow.schema([(name, kinds.get(name, arrow.string())) for name in (*COLUMNS, *LATER)])
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


def _by_suffix(path: Path, choices: dict[str, Callable[..., T]]) -> Callable[..., T]:
    if path.suffix.lower() not in choices:
        raise ConfigError(f"{path}: hyphash writes and reads {', '.join(choices)}; choose one of these endings")
    return choices[path.suffix.lower()]
