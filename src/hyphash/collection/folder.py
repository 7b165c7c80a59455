"""What lies in the folder of a collection beside its store: settings, hashers, thumbnails, and photos that it keeps.

collection.toml says in which store the truth is and by which engine it is searched. Hashers are copies that make the
folder complete, loaded no further than needed. Thumbnails, and the originals of photos that came as bytes, go by
content, never by name: written before the truth speaks of them, right for every photo with that content, and swept away
by `compact` when no photo has it any more.
"""

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hyphash.codes import is_fingerprint
from hyphash.collection.records import Missing
from hyphash.config import from_table, read_toml, write_toml
from hyphash.errors import CollectionError, ConfigError, HyphashError, PhotoError
from hyphash.files import GRACE, digest, is_old, make_folder, new_folder, sweep_drafts, write_atomically
from hyphash.hasher import SPEC_FILE, WEIGHTS_FILE, Hasher, require_whole, write_checksums
from hyphash.photos import THUMBNAIL, Raw, picture_of, read_bytes
from hyphash.searchers import searcher_for
from hyphash.stores import SHOWN, Photo, Session, store_for
from hyphash.stores.address import name_hosts, without_password
from hyphash.stores.sqlite.database import Database
from hyphash.workers import batched

if TYPE_CHECKING:
    from hyphash.collection import Collection

SETTINGS = "collection.toml"
FORMAT = 2  # of it
HASHERS = "hashers"
THUMBNAILS = "thumbnails.sqlite"
ORIGINALS = "originals"
CONTENT = re.compile("[0-9a-f]{64}")
SCHEMA = "CREATE TABLE IF NOT EXISTS thumbnails (content BLOB PRIMARY KEY, jpeg BLOB NOT NULL)"
# contents that were put lately: they may belong to photos that are just being added
RECENT = "CREATE TABLE IF NOT EXISTS recent (content BLOB PRIMARY KEY, time REAL NOT NULL) WITHOUT ROWID"
AGAIN = "delete this file, thumbnails are made again"
SWEPT = 100  # thumbnails or originals that are looked at together, while writers wait
Place = Literal["here", "gone", "elsewhere"]
Known = Callable[[Sequence[str]], set[str]]  # which of some contents photos still have


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

    @classmethod
    def read(cls, folder: Path) -> "Settings":
        path = folder / SETTINGS
        if not folder.is_dir():
            raise CollectionError(f"{folder}: there is no such folder; make a collection with `hyphash index`")
        if not path.is_file():
            raise CollectionError(f"{folder}: not a collection (no {SETTINGS}); make one with `hyphash index`")
        table = read_toml(path)
        if table.get("format") == FORMAT:
            return from_table(cls, table, str(path))
        if table.get("format") != 1:
            raise CollectionError(
                f"{folder}: written by another hyphash (format {table.get('format')}, this one reads {FORMAT}); "
                "run: pip install -U hyphash"
            )
        engine = str(table.get("engine", "local"))  # it was truth and search in one
        if engine.startswith("milvus"):
            raise CollectionError(
                f"{folder}: its photos are in Milvus alone, as former versions kept them; write them to a file with "
                "the version that made it (`hyphash collection export`), and read that into a new collection with this "
                "one (`hyphash collection import`): numbers, labels and codes stay"
            )
        return cls.chosen(None, engine)

    def without_passwords(self) -> "Settings":
        return Settings(store=without_password(self.store), engine=without_password(self.engine))

    def write(self, folder: Path) -> None:
        """With a password in an address, nobody but the owner may read that."""
        write_toml(folder / SETTINGS, self, private=self != self.without_passwords())


def require_same(folder: Path, store: str | None, engine: str | None) -> None:
    """A collection stays where it is; only the passwords in its addresses may be others by now."""
    name_hosts(store, engine)
    stored = Settings.read(folder)
    given = Settings.chosen(store, engine)
    given = given if engine else replace(given, engine=stored.engine)
    one, other = stored.without_passwords(), given.without_passwords()
    for before, after in ((one.store, other.store), (one.engine, other.engine)):
        if before != after:
            raise ConfigError(
                f"{folder}: its photos are in {before}, not in {after}; leave the engine out, or choose a new folder"
            )
    if given not in (stored, one):
        given.write(folder)


def as_hasher(hasher: Hasher | str | Path, *, device: str = "auto") -> Hasher:
    """A hasher, or that of a run: its network is loaded when it is needed."""
    return hasher if isinstance(hasher, Hasher) else Hasher.to_encode(hasher, device=device, late=True)


class Hashers:
    """Copies of hashers, by fingerprint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / HASHERS

    def install(self, hasher: Hasher) -> None:
        target = self.folder / hasher.fingerprint
        if target.is_dir():
            os.utime(target)  # young again: nobody sweeps it away before it is in use
            return
        try:
            with new_folder(target) as draft:
                if source := hasher.folder:
                    for path in (source / SPEC_FILE, source / WEIGHTS_FILE, *source.glob("*.onnx")):
                        shutil.copyfile(path, draft / path.name)
                else:
                    hasher.save(draft)
                write_checksums(draft)
        except OSError:
            if not target.is_dir():  # else another was faster
                raise

    def complete(self, hasher: Hasher) -> None:
        """Bring over what a run has got since it was copied: an ONNX network, for machines without torch."""
        target = self.folder / hasher.fingerprint
        for path in hasher.folder.glob("*.onnx") if hasher.folder else ():
            if not (target / path.name).exists():
                write_atomically(target / path.name, path.read_bytes())
                write_checksums(target)

    def load(self, fingerprint: str, *, device: str = "auto") -> Hasher:
        """The hasher that the codes of a collection were made by; its network is loaded when it is needed."""
        folder = self.folder / fingerprint
        if not folder.is_dir():
            raise CollectionError(
                f"{self.folder.parent}: the hasher {fingerprint} is missing from {HASHERS}/; copy the run that it came "
                f"from to {folder}, or restore the folder from a backup"
            )
        return as_hasher(folder, device=device)

    def check(self, fingerprint: str) -> None:
        """Raise an error unless the hasher is there as it was installed."""
        folder = self.folder / fingerprint
        if self.load(fingerprint).fingerprint != fingerprint:
            raise CollectionError(f"{folder}: holds another hasher; copy its run there again, or restore a backup")
        require_whole(folder)

    def sweep(self, session: Session) -> None:
        """Remove former hashers, except young ones: a move to one of them may be under way."""
        used = session.state().fingerprint, session.state().coming
        for folder in self.folder.iterdir():
            if is_fingerprint(folder.name) and folder.name not in used and is_old(folder):
                with suppress(OSError):
                    shutil.rmtree(folder)


class Thumbnails:
    """Small pictures in a database of their own: whoever deletes it gets it back, thumbnail by thumbnail."""

    def __init__(self, folder: Path) -> None:
        path = folder / THUMBNAILS
        if not path.exists():
            Database.create(path, SCHEMA)
        self.database = Database(path, way_out=AGAIN)

    def close(self) -> None:
        self.database.close()

    def put(self, thumbnails: Mapping[str, bytes]) -> None:
        """Keep thumbnails by content."""
        if thumbnails:
            with self.database.writing("storing thumbnails") as tx:
                rows = [(bytes.fromhex(content), jpeg) for content, jpeg in thumbnails.items()]
                tx.executemany("INSERT OR REPLACE INTO thumbnails VALUES (?, ?)", rows)
                tx.execute(RECENT)
                now = [(content, time.time()) for content, _ in rows]
                tx.executemany("INSERT OR REPLACE INTO recent VALUES (?, ?)", now)

    def get(self, content: str) -> bytes | None:
        with self.database.asking() as tx:
            row = tx.execute("SELECT jpeg FROM thumbnails WHERE content = ?", (bytes.fromhex(content),)).fetchone()
        return row[0] if row and row[0] and isinstance(row[0], bytes) else None  # somebody may have sent it

    def get_or_draw(self, content: str, read: Callable[[], Raw]) -> bytes:
        """The thumbnail of a content; one that is not here any more is drawn again."""
        if (jpeg := self.get(content)) is None:
            jpeg = picture_of(read(), THUMBNAIL)
            self.put({content: jpeg})
        return jpeg

    def sweep(self, known: Known) -> None:
        """Remove what no photo needs, nor one that is just being added."""
        with self.database.writing("sweeping thumbnails") as tx:
            tx.execute(RECENT)
            tx.execute("DELETE FROM recent WHERE time < ?", (time.time() - GRACE,))
        unneeded = "content = ?1 AND ?1 NOT IN (SELECT content FROM recent)"
        with self.database.reading() as there:
            every = (content.hex() for (content,) in there.execute("SELECT content FROM thumbnails"))
            for contents in batched(every, SWEPT):
                gone = [(bytes.fromhex(content),) for content in sorted(set(contents) - known(contents))]
                with self.database.writing("sweeping thumbnails") as tx:
                    tx.executemany(f"DELETE FROM thumbnails WHERE {unneeded}", gone)
        self.database.compact("compacting thumbnails")

    def verify(self) -> list[str]:
        try:
            with self.database.reading() as tx:
                found = [row[0] for row in tx.execute("PRAGMA integrity_check") if row[0] != "ok"]
        except CollectionError as error:
            found = [str(error)]
        return [f"{self.database.path}: {what}; {AGAIN}" for what in found]


class Originals:
    """Whole photos as files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / ORIGINALS

    def keep(self, content: str, data: bytes) -> None:
        """Write a photo; one that is there already, and whole, is made young, so that nobody sweeps it away."""
        path = self._file(content)
        with suppress(OSError):
            if self.path(content) and digest(path) == content:
                os.utime(path)
                return
        make_folder(path.parent)
        write_atomically(path, data)

    def path(self, content: str) -> Path | None:
        """The file of a photo that was kept; None: it was not."""
        path = self._file(content)
        return path if path.is_file() and not path.is_symlink() else None

    def contents(self) -> Iterator[str]:
        """Of all photos that were kept, by name."""
        for path in sorted(self.folder.glob("??/*")):
            linked = path.parent.is_symlink() or self.folder.is_symlink()
            if CONTENT.fullmatch(path.name) and self.path(path.name) == path and not linked:
                yield path.name

    def verify(self) -> list[str]:
        """Which are not what was kept, in words."""
        way = "restore it from a backup, or add the photo again"
        files = ((content, self._file(content)) for content in self.contents())
        return [f"{file}: damaged; {way}" for content, file in files if digest(file) != content]

    def sweep(self, contents: Sequence[str], known: Known) -> None:
        """Remove those of some photos that no photo needs; to be called where nobody else writes."""
        for content in sorted(set(contents) - known(contents)):
            if is_old(self._file(content)):
                self._file(content).unlink(missing_ok=True)

    def _file(self, content: str) -> Path:
        return self.folder / content[:2] / content


# ── files of photos ──────────────────────────────────────────────────────────────────────────────────────


def bytes_of(collection: "Collection", photo: Photo) -> bytes:
    """The file of a photo as it was added: the original that was kept, or where it came from."""
    kept = collection.originals.path(photo.facts.content)
    file = kept or Path(photo.path)
    if kept is None and not file.is_absolute():
        raise PhotoError(f"{photo.path}: came from a pack and was not kept; only its thumbnail is here")
    data = read_bytes(file, follow=kept is None)
    if hashlib.sha256(data).hexdigest() != photo.facts.content:
        raise PhotoError(f"{file}: has changed since it was indexed; index it again")
    return data


def original(collection: "Collection", id: int) -> bytes:
    """The file of a photo, byte for byte what was added; not what a link in its folder leads to elsewhere."""
    photo = collection.get(id)
    file = Path(photo.path)
    if file.is_symlink() and not file.resolve().is_relative_to(file.parent.resolve()):
        raise PhotoError(f"{file}: leads out of its folder; only its thumbnail is here")
    return bytes_of(collection, photo)


def thumbnail(collection: "Collection", id: int) -> bytes:
    """A small JPEG of a photo."""
    photo = collection.get(id)
    return collection.thumbnails.get_or_draw(photo.facts.content, lambda: Raw(photo.path, bytes_of(collection, photo)))


def place_of(photo: Photo, *, shared: bool) -> Place:
    """Where the file of a photo is, as far as this machine can tell.

    With a `shared` store the photo may be another machine's: then only a folder that is here can lack a file. Of
    one that may not be read nobody can tell.
    """
    path = Path(photo.path)
    try:
        if path.is_absolute():
            path.stat()
        return "here"
    except PermissionError:
        return "elsewhere"
    except (OSError, ValueError):
        return "gone" if not shared or path.parent.is_dir() else "elsewhere"


def missing(collection: "Collection", among: Iterable[Photo] | None = None) -> Missing:
    """Photos, of all or `among` some, whose files are gone, and that were not kept."""
    places: dict[Place, list[Photo]] = {"gone": [], "elsewhere": []}
    for photo in collection.all_photos() if among is None else among:
        place = place_of(photo, shared=collection.store.shared)
        if place != "here" and not collection.originals.path(photo.facts.content):
            places[place].append(photo)
    return Missing(tuple(places["gone"]), len(places["elsewhere"]))


def prune(collection: "Collection", among: Iterable[Photo] | None = None) -> Missing:
    """Forget the photos that are `missing`; these."""
    gone = missing(collection, among)
    collection.store.remove([photo.id for photo in gone])
    collection.log.tell("forgotten", [photo.path for photo in gone])
    return gone


# ── care ─────────────────────────────────────────────────────────────────────────────────────────────────


def verify(collection: "Collection") -> list[str]:
    """What is wrong with the folder, in words; nothing if all is well."""
    kept = collection.store, collection.searcher, collection.thumbnails, collection.originals
    looks: list[Callable[[], list[str]]] = [part.verify for part in kept]
    looks += partial(_lost, collection), partial(_wrong_hasher, collection)
    found: list[str] = []
    for look in looks:
        try:
            found += look()
        except HyphashError as error:
            found.append(str(error))
    return list(dict.fromkeys(found))  # one cause, told once


def _lost(collection: "Collection") -> list[str]:
    """Some of the photos that came as bytes and are not kept any more; with a `shared` store another machine may."""
    if collection.store.shared:
        return []
    known = ((photo.id, photo.path, photo.facts.content) for photo in collection.all_photos())
    every = chain(known, ((row.id, row.path, row.content) for row in collection.store.removed()))
    came = ((id, path, content) for id, path, content in every if path.startswith(f"{content[:16]}/"))
    lost = (f"photo {id}, {path[17:]}" for id, path, content in came if collection.originals.path(content) is None)
    way = "copy it from a backup or from the collection that it came from, add the photo again, or remove it"
    return [f"{photo}: its file is missing from {ORIGINALS}/; {way}" for photo in islice(lost, SHOWN)]


def _wrong_hasher(collection: "Collection") -> list[str]:
    Hashers(collection.folder).check(collection.store.state().fingerprint)
    return []


def compact(collection: "Collection") -> None:
    """Give back room: codes of former hashers, thumbnails of removed photos, what killed writers left behind."""
    store = collection.store

    def known(session: Session, contents: Sequence[str]) -> set[str]:
        """Which of some contents photos have, in the collection or in its trash."""
        there = {photo.facts.content for photo in session.find(contents=contents)}
        return there | {row.content for row in session.removed(contents=contents) if row.trashed}

    collection.searcher.compact()
    store.compact()
    collection.thumbnails.sweep(lambda some: store.read(lambda session: known(session, some)))
    for some in batched(collection.originals.contents(), SWEPT):
        sweep = partial(collection.originals.sweep, some)  # nobody adds one meanwhile
        store.write(lambda session: sweep(partial(known, session)), "sweeping originals")  # noqa: B023 (done at once)
    store.write(Hashers(collection.folder).sweep, "sweeping hashers")
    sweep_drafts(collection.folder)
