"""Out as CSV, JSON lines or Parquet and in again; what is no export is refused."""

import importlib.util
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hyphash.collection import Collection
from hyphash.datasets import load_dataset
from hyphash.errors import CollectionError, ConfigError, LabelError, MissingExtraError, OtherHasherError
from hyphash.stores import Change, Facts, Photo

LABELS = [["cat", "sea"], ["dog"], [], ['Übermut, "quoted"\nand long'], *[["cat"], ["dog"]] * 3]


@pytest.fixture
def filled(collection: Collection, photos: list[Path]) -> Collection:
    collection.add(photos, labels=LABELS)
    collection.add_bytes(photos[0].read_bytes(), "upload.jpg")
    collection.relabel(2, ["dog", "mine"])
    collection.refuse(5, "cat")
    collection.remove([4])
    for id, facts in (
        (1, {"taken": -9, "camera": "Pixel 7", "latitude": -1.25, "longitude": 8.5}),
        (2, {"camera": ""}),
    ):
        photo = collection.get(id)
        described = replace(photo, facts=replace(photo.facts, **facts))  # type: ignore[arg-type]
        collection.store.upsert([described], fingerprint=collection.hasher.fingerprint)
    return collection


@pytest.fixture
def other(tmp_path: Path, hasher: Any) -> Iterator[Collection]:
    with Collection.create(tmp_path / "other", hasher) as other:
        yield other


def test_scores_of_labels_go_along(tiny: Any, photos: list[Path], tmp_path: Path) -> None:
    """An export of former times has no such column."""
    hasher, path = tiny.TinyHasher(layer=True), tmp_path / "export.jsonl"
    with Collection.create(tmp_path / "a", hasher) as one, Collection.create(tmp_path / "b", hasher) as other:
        one.add(photos)
        one.export(path)
        other.import_(path)
        assert everything(other) == everything(one)
        assert {len(photo.scores) for photo in other.photos()} == {2}
        records = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(f"{json.dumps({**record, 'scores': None})}\n" for record in records))
        assert other.import_(path).updated == 10
        path.write_text("".join(json.dumps({k: v for k, v in r.items() if k != "scores"}) + "\n" for r in records))
        assert other.import_(path).unchanged == 10


def test_an_import_that_was_stopped_goes_on_with_the_same_ids(
    filled: Collection, other: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.export(path := tmp_path / "export.jsonl")
    monkeypatch.setattr("hyphash.collection.exchange.MANY", 3)
    put = other.store.put

    def stopped(photos: list[Photo], **options: Any) -> list[Change]:
        if len(other) >= 6:
            raise KeyboardInterrupt
        return put(photos, **options)

    with monkeypatch.context() as patch:
        patch.setattr(other.store, "put", stopped)
        with pytest.raises(KeyboardInterrupt):
            other.import_(path)
    result = other.import_(path)
    assert (result.added, result.unchanged) == (4, 6)
    assert everything(other) == everything(filled)


@pytest.mark.parametrize("change", [{"image": 3}, {"image": None}, {"labels": [3]}, {"id": 2**70}, {"size": 2**63}])
def test_records_that_cannot_be_are_refused(
    filled: Collection, other: Collection, tmp_path: Path, change: dict[str, Any]
) -> None:
    filled.export(path := tmp_path / "export.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(record) + "\n" for record in [*records[:-1], records[-1] | change]))
    with pytest.raises(CollectionError, match=r"export.jsonl:10: damaged"):
        other.import_(path)
    assert len(other) == 0


def everything(collection: Collection) -> list[dict[str, Any]]:
    return [{k: v for k, v in vars(photo).items() if k != "changed"} for photo in collection.photos(limit=1000)]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_round_trip_loses_nothing(filled: Collection, other: Collection, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"export{suffix}"
    assert filled.export(path) == 10
    result = other.import_(path)
    assert (result.added, result.updated, result.unchanged) == (10, 0, 0)
    assert everything(other) == everything(filled)
    assert [m.id for m in other.search(labels=["cat"], k=20)] == [m.id for m in filled.search(labels=["cat"], k=20)]
    assert other.import_(path).unchanged == 10
    (told,) = other.verify()  # files are not in a table
    assert told.startswith("photo 11, upload.jpg: its file is missing from originals/")
    shutil.copytree(filled.folder / "originals", other.folder / "originals")
    assert other.verify() == []
    assert other.thumbnail(1) == filled.thumbnail(1)


def test_parquet_where_it_is_installed(filled: Collection, other: Collection, tmp_path: Path) -> None:
    path = tmp_path / "export.parquet"
    if importlib.util.find_spec("pyarrow") is None:
        with pytest.raises(MissingExtraError, match=r"pip install 'hyphash\[parquet\]'"):
            filled.export(path)
        assert not path.exists()
        return
    assert filled.export(path) == 10
    assert other.import_(path).added == 10
    assert everything(other) == everything(filled)


def test_into_a_collection_with_photos_ids_are_new(
    filled: Collection, other: Collection, photos: list[Path], tmp_path: Path
) -> None:
    other.add(reversed(photos[3:5]), labels=[["here"]] * 2)
    filled.export(tmp_path / "x.jsonl")
    result = other.import_(tmp_path / "x.jsonl")
    assert (result.added, result.updated) == (9, 1)
    assert [photo.path for photo in other.photos(0, 2)] == [str(photos[4]), str(photos[3])]
    assert {photo.path for photo in other.photos()} == {p.path for p in filled.photos()} | {str(photos[3])}


def test_a_csv_export_can_be_trained_on(filled: Collection, tmp_path: Path) -> None:
    for photo in filled.photos(untagged=True):
        filled.remove([photo.id])
    filled.export(tmp_path / "labels.csv")
    splits = load_dataset(tmp_path / "labels.csv", queries=0.3)
    assert splits.classes == ("cat", "dog", "mine", "sea")
    assert len(splits.database) + len(splits.queries) == len(filled)


def test_codes_of_another_hasher_are_refused_and_nothing_is_taken(
    filled: Collection, tmp_path: Path, tiny: Any
) -> None:
    filled.export(tmp_path / "x.csv")
    with Collection.create(tmp_path / "third", tiny.TinyHasher(seed=3)) as third:
        with pytest.raises(OtherHasherError, match=r"x.csv:2: a code of the hasher .*hyphash index"):
            third.import_(tmp_path / "x.csv")
        assert len(third) == 0


def test_what_is_no_export_is_refused(collection: Collection, tmp_path: Path) -> None:
    cases = {
        "labels.csv": ("image,labels\na.jpg,cat\n", "no 'id', so this is not the export.*hyphash index"),
        "torn.jsonl": ('{"image": "a.jp', "torn.jsonl:1: not a line of JSON"),
        "list.jsonl": ("[1, 2]\n", "list.jsonl:1: not a record"),
    }
    for name, (text, words) in cases.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(CollectionError, match=words):
            collection.import_(tmp_path / name)
    with pytest.raises(ConfigError, match=r"\.csv, \.jsonl, \.parquet"):
        collection.export(tmp_path / "x.xlsx")
    with pytest.raises(CollectionError, match="no such file"):
        collection.import_(tmp_path / "nowhere.csv")


def test_damage_in_the_last_line_is_found_before_the_first_is_taken(
    filled: Collection, other: Collection, tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    filled.export(path)
    lines = path.read_text().splitlines()
    record = json.loads(lines[-1])
    for key, value in (("code", "zz"), ("content", "00"), ("size", "many"), ("labels", 7), ("look", None)):
        path.write_text("\n".join([*lines[:-1], json.dumps(record | {key: value})]))
        with pytest.raises(CollectionError, match=r"x.jsonl:10: damaged"):
            other.import_(path)
        assert len(other) == 0


def test_a_label_with_a_bar_does_not_fit_into_csv(collection: Collection, hasher: Any, tmp_path: Path) -> None:
    photo = Photo(path="a", facts=Facts(content="00" * 32), code=b"\0\0", labels=("a|b",))
    collection.store.upsert([photo], fingerprint=hasher.fingerprint)
    with pytest.raises(LabelError, match=r"export as .jsonl"):
        collection.export(tmp_path / "x.csv")
    assert not list(tmp_path.glob("*x.csv*"))
    assert collection.export(tmp_path / "x.jsonl") == 1
