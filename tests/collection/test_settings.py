"""Which store and which engine people mean, and what collection.toml says about it."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from hyphash.collection import Collection
from hyphash.collection.settings import Settings, read_settings, require_same
from hyphash.errors import CollectionError, ConfigError

DB, MILVUS = "postgresql://me@db/photos?collection=mine", "milvus://me@server:19530/db"


@pytest.mark.parametrize(
    ("store", "engine", "expected"),
    [
        (None, None, ("sqlite", "local")),
        (None, "local", ("sqlite", "local")),
        (None, "faiss-approximate://?lists=9", ("sqlite", "faiss-approximate://?lists=9")),
        (None, MILVUS, ("sqlite", MILVUS)),
        (None, DB, (DB, "postgresql")),
        (None, DB.replace("postgresql", "postgresql-approximate"), (DB, "postgresql-approximate")),
        ("sqlite", None, ("sqlite", "local")),
        (DB, None, (DB, "postgresql")),
        (DB, "local", (DB, "local")),
        (DB, "faiss", (DB, "faiss")),
        (DB, MILVUS, (DB, MILVUS)),
        (DB, "postgresql-approximate", (DB, "postgresql-approximate")),
    ],
)
def test_any_pair_can_be_named(store: str | None, engine: str | None, expected: tuple[str, str]) -> None:
    settings = Settings.chosen(store, engine)
    assert (settings.store, settings.engine) == expected


def test_names_that_do_not_exist() -> None:
    with pytest.raises(ConfigError, match="no store is called 'mysql'"):
        Settings.chosen("mysql://db", None)
    with pytest.raises(ConfigError, match=r"no engine is called 'postgres'.*did you mean 'postgresql'"):
        Settings.chosen(None, "postgres://db")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    for settings, mode in (
        (Settings(store=DB, engine=MILVUS), 0o644),
        (Settings(store=DB.replace("me@", "me:secret@"), engine="local"), 0o600),
        (Settings(engine=MILVUS.replace("me@", "me:secret@")), 0o600),
    ):
        settings.write(tmp_path)
        assert read_settings(tmp_path) == settings
        assert (tmp_path / "collection.toml").stat().st_mode & 0o777 == mode
    assert "secret" not in str(settings.without_passwords())


@pytest.mark.parametrize(
    ("engine", "expected"),
    [("local", ("sqlite", "local")), ("faiss", ("sqlite", "faiss")), (DB, (DB, "postgresql"))],
)
def test_format_1_named_an_engine_alone(tmp_path: Path, engine: str, expected: tuple[str, str]) -> None:
    (tmp_path / "collection.toml").write_text(f'format = 1\nengine = "{engine}"\n')
    settings = read_settings(tmp_path)
    assert (settings.store, settings.engine) == expected


def test_what_former_versions_kept_in_milvus_alone_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "collection.toml").write_text('format = 1\nengine = "milvus://me:secret@server"\n')
    with pytest.raises(CollectionError, match=r"in Milvus alone.*collection export.*collection import.*stay") as told:
        read_settings(tmp_path)
    assert "secret" not in str(told.value)


def test_what_is_no_collection_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match=r"not a collection \(no collection.toml\)"):
        read_settings(tmp_path)
    with pytest.raises(CollectionError, match="no such folder"):
        read_settings(tmp_path / "nowhere")
    (tmp_path / "collection.toml").write_text("format = 3\n")
    with pytest.raises(CollectionError, match=r"another hyphash \(format 3, this one reads 2\)"):
        read_settings(tmp_path)


def test_a_collection_stays_where_it_is(tmp_path: Path) -> None:
    stored = Settings(store=DB, engine=MILVUS)
    stored.write(tmp_path)
    require_same(tmp_path, DB, None)
    require_same(tmp_path, DB, MILVUS)
    require_same(tmp_path, DB, MILVUS.replace("me@", "me:Neues@"))  # a password, which is kept
    assert "Neues" in read_settings(tmp_path).engine
    require_same(tmp_path, DB, MILVUS)
    assert "Neues" in read_settings(tmp_path).engine
    for store, engine in ((DB + "2", MILVUS), (None, MILVUS), (DB, "local"), (DB + "2", None), (None, "local")):
        with pytest.raises(ConfigError, match=r"its photos are in .*, not in .*; leave the engine out") as told:
            require_same(tmp_path, store, engine)
        assert "Neues" not in str(told.value)


def test_a_folder_of_format_1_goes_on(collection: Collection, photos: list[Path], hasher: Any) -> None:
    """Only its toml is of the old format here; tests/stores/test_sqlite.py has a database of it."""
    collection.add(photos)
    path = collection.folder / "collection.toml"
    assert tomllib.loads(path.read_text()) == {"format": 2, "store": "sqlite", "engine": "local"}
    path.write_text('format = 1\nengine = "faiss"\n')
    with Collection.open(collection.folder, hasher=hasher) as again:
        assert [match.id for match in again.search(photos[3], k=3)] == [
            match.id for match in collection.search(photos[3], k=3)
        ]
