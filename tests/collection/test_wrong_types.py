"""Tables of a stranger that hold what does not belong there: an error of ours, and `verify` names it."""

import re
import shutil
import sqlite3
import traceback
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hyphash.collection import Collection, trash
from hyphash.errors import HyphashError
from hyphash.refining import due
from hyphash.searchers.filters import Filter
from hyphash.service.schemas import PhotoAnswer

NO_TEXT = "CAST(x'ff' AS TEXT)"  # as SQLite takes it for one, and Python does not
VALUES = {"text": "'word'", "integer": "5", "real": "9e999", "blob": "x'ff00'", "null": "NULL", "no text": NO_TEXT}
ALLOWED = {
    "TEXT": ("text",),
    "INTEGER": ("integer",),
    "BLOB": ("blob",),
    "REAL": ("real",),
    "": (),
}  # "": those of meta
NULLABLE = ("taken", "camera", "latitude", "longitude", "trashed")
TYPES = r" TEXT| BLOB| REAL| INTEGER(?! PRIMARY)| NOT NULL"


@pytest.fixture
def sound(collection: Collection, photos: list[Path]) -> Path:
    """A closed collection with labels that are given and refused, a photo that it keeps and one in the trash."""
    collection.add(photos[:4], labels=[["cat"], ["cat", "dog"], ["dog"], []])
    collection.add_bytes(photos[5].read_bytes(), "upload.jpg")
    collection.refuse(3, "cat")
    trash.put(collection, [collection.get(4)])
    collection.store.write(lambda session: session.leave_note("local", "a note"), "noting")
    collection.close()
    return collection.folder


def changes(folder: Path) -> list[tuple[str, str]]:
    """Each column with each value that does not belong there, after the tables were made to take anything."""
    found = []
    with closing(sqlite3.connect(folder / "collection.sqlite", isolation_level=None)) as connection:
        tables = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
        columns = {name: connection.execute(f"PRAGMA table_info({name})").fetchall() for name, _ in tables}
        meta = connection.execute("SELECT key, typeof(value) FROM meta").fetchall()
        connection.execute("PRAGMA writable_schema = ON")
        for name, sql in tables:
            connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (re.sub(TYPES, "", sql), name))
    for table, rows in columns.items():
        for _, column, kind, *_, primary in rows:
            numbered = primary and kind == "INTEGER" and table not in ("codes", "photo_labels", "changes")
            right = {*ALLOWED[kind], *(["null"] if column in NULLABLE or primary else [])}
            if not numbered and table != "meta":  # SQLite itself refuses other numbers of rows
                wrong = [value for other, value in VALUES.items() if other not in right]
                wrong = wrong if kind == "TEXT" else wrong[:-1]
                found += [(column, f"UPDATE OR IGNORE {table} SET {column} = {value}") for value in wrong]
    for said in ("[]", '{"labels": [5], "given": null, "refused": []}', "[" * 100_000, '{"labels": 5}'):
        found.append(("said", f"UPDATE removed SET said = '{said}'"))
    for key, kind in meta:
        wrong = [value for other, value in VALUES.items() if other != kind]
        found += [(key, f"UPDATE meta SET value = {value} WHERE key = '{key}'") for value in wrong]
    return found


def asked(folder: Path, hasher: Any, photo: Path) -> tuple[list[str], list[str]]:
    """What `verify` says of a collection, and tracebacks of whatever is asked of it."""
    failed, refused = list[str](), list[str]()

    def attempt(question: Callable[[], Any]) -> Any:
        try:
            return question()
        except HyphashError as error:
            refused.append(str(error))
        except Exception as error:
            failed.append("".join(traceback.format_exception(error)[-3:]))

    def every(opened: Collection) -> list[str]:
        told: list[str] = attempt(opened.verify)
        for question in (
            lambda: [PhotoAnswer.of(photo).model_dump_json() for photo in opened.all_photos()],
            lambda: [(match.path + "".join(match.labels)) for match in opened.search(labels=["cat"], k=9)],
            opened.stats, opened.duplicates, opened.timeline, opened.missing, opened.labels, opened.store.removed,
            partial(opened.photos, carrying=["cat"]), partial(opened.photos, untagged=True), partial(due, opened),
            partial(opened.search, photo, k=3), partial(opened.search, like=1), partial(opened.suggest, 1),
            partial(opened.search, only=Filter.parse(taken="2019")), partial(opened.search, wrong="cat"),
            partial(opened.original, 5), partial(opened.thumbnail, 1), partial(trash.thumbnail, opened, 4),
            partial(opened.add, [photo]), partial(opened.accept, 2, "sea"), partial(trash.restore, opened, [4]),
        ):  # fmt: skip
            attempt(question)
        return told

    if (opened := attempt(partial(Collection.open, folder, hasher=hasher))) is None:
        return refused, failed
    with opened:
        return every(opened), failed


def test_wrong_types_are_an_error_of_ours(sound: Path, photos: list[Path], hasher: Any, tmp_path: Path) -> None:
    made, wrong = changes(sound), []
    for number, (column, change) in enumerate(made):
        copy = shutil.copytree(sound, tmp_path / str(number))
        with closing(sqlite3.connect(copy / "collection.sqlite", isolation_level=None)) as connection:
            assert connection.execute(change).rowcount, change
        told, failed = asked(copy, hasher, photos[9])
        wrong += [f"{change}: {words}" for words in failed]
        named = any("damaged" in words and (column in words or "meta" in change) for words in told)
        if not named and NO_TEXT not in change:  # of these verify tells what it reads
            wrong.append(f"{change}: verify said {told}")
    assert wrong == []
    assert len(made) > 150, len(made)
