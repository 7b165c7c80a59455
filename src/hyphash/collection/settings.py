"""collection.toml: in which store the truth of a collection is, and by which engine it is searched."""

from dataclasses import dataclass
from pathlib import Path

from hyphash.config import from_table, read_toml, write_toml
from hyphash.errors import CollectionError, ConfigError
from hyphash.searchers import searcher_for
from hyphash.stores import store_for
from hyphash.stores.address import name_hosts, without_password

FILE = "collection.toml"
FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What collection.toml says."""

    format: int = FORMAT
    store: str = "sqlite"
    engine: str = "local"

    @classmethod
    def chosen(cls, store: str | None, engine: str | None) -> "Settings":
        """The pair that people mean who name a store, an engine, both or nothing.

        An engine that searches in the tables of a store brings that store with it: its address is the store's.
        """
        if engine is None:
            store = store or "sqlite"
            return cls(store=store, engine=store_for(store).searcher)
        home = searcher_for(engine).inside
        if store is None and home:
            name, slashes, place = engine.partition("://")
            return cls(store=f"{home}{slashes}{place}", engine=name)
        return cls(store=store or "sqlite", engine=engine)

    def without_passwords(self) -> "Settings":
        return Settings(store=without_password(self.store), engine=without_password(self.engine))

    def write(self, folder: Path) -> None:
        """With a password in an address, nobody but the owner may read that."""
        write_toml(folder / FILE, self, private=self != self.without_passwords())


def read_settings(folder: Path) -> Settings:
    path = folder / FILE
    if not folder.is_dir():
        raise CollectionError(f"{folder}: there is no such folder; make a collection with `hyphash index`")
    if not path.is_file():
        raise CollectionError(f"{folder}: not a collection (no {FILE}); make one with `hyphash index`")
    table = read_toml(path)
    match table.get("format"):
        case 1:
            return _of_format_1(folder, str(table.get("engine", "local")))
        case 2:
            return from_table(Settings, table, str(path))
    raise CollectionError(
        f"{folder}: written by another hyphash (format {table.get('format')}, this one reads {FORMAT}); "
        "run: pip install -U hyphash"
    )


def _of_format_1(folder: Path, engine: str) -> Settings:
    """Before, every engine was truth and search in one; what was in Milvus alone has no other store to be read from."""
    if engine.startswith("milvus"):
        raise CollectionError(
            f"{folder}: its photos are in Milvus alone, as former versions kept them; write them to a file with the "
            "version that made it (`hyphash collection export`), and read that into a new collection with this one "
            "(`hyphash collection import`): numbers, labels and codes stay"
        )
    return Settings.chosen(None, engine)


def require_same(folder: Path, store: str | None, engine: str | None) -> None:
    """A collection stays where it is; only the passwords in its addresses may be others by now."""
    name_hosts(store, engine)
    stored = read_settings(folder)
    given = Settings.chosen(store, engine)
    if engine is None:
        given = Settings(store=given.store, engine=stored.engine)
    for before, after in ((stored.store, given.store), (stored.engine, given.engine)):
        if without_password(before) != without_password(after):
            raise ConfigError(
                f"{folder}: its photos are in {without_password(before)}, not in {without_password(after)}; "
                "leave the engine out, or choose a new folder"
            )
    if given not in (stored, stored.without_passwords()):
        given.write(folder)
