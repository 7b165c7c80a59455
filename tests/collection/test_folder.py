"""What lies in the folder of a collection: which store and engine people mean, its hasher, what it keeps of photos."""

import hashlib
import os
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hyphash.collection import Collection
from hyphash.collection.folder import GRACE, Hashers, Originals, Settings, Thumbnails, as_hasher, require_same
from hyphash.errors import CollectionError, ConfigError
from hyphash.hasher import Hasher

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
        assert Settings.read(tmp_path) == settings
        assert (tmp_path / "collection.toml").stat().st_mode & 0o777 == mode
    assert "secret" not in str(settings.without_passwords())


@pytest.mark.parametrize(
    ("engine", "expected"),
    [("local", ("sqlite", "local")), ("faiss", ("sqlite", "faiss")), (DB, (DB, "postgresql"))],
)
def test_format_1_named_an_engine_alone(tmp_path: Path, engine: str, expected: tuple[str, str]) -> None:
    (tmp_path / "collection.toml").write_text(f'format = 1\nengine = "{engine}"\n')
    settings = Settings.read(tmp_path)
    assert (settings.store, settings.engine) == expected


def test_what_former_versions_kept_in_milvus_alone_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "collection.toml").write_text('format = 1\nengine = "milvus://me:secret@server"\n')
    with pytest.raises(CollectionError, match=r"in Milvus alone.*collection export.*collection import.*stay") as told:
        Settings.read(tmp_path)
    assert "secret" not in str(told.value)


def test_what_is_no_collection_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match=r"not a collection \(no collection.toml\)"):
        Settings.read(tmp_path)
    with pytest.raises(CollectionError, match="no such folder"):
        Settings.read(tmp_path / "nowhere")
    (tmp_path / "collection.toml").write_text("format = 3\n")
    with pytest.raises(CollectionError, match=r"another hyphash \(format 3, this one reads 2\)"):
        Settings.read(tmp_path)


def test_a_collection_stays_where_it_is(tmp_path: Path) -> None:
    stored = Settings(store=DB, engine=MILVUS)
    stored.write(tmp_path)
    require_same(tmp_path, DB, None)
    require_same(tmp_path, DB, MILVUS)
    require_same(tmp_path, DB, MILVUS.replace("me@", "me:Neues@"))  # a password, which is kept
    assert "Neues" in Settings.read(tmp_path).engine
    require_same(tmp_path, DB, MILVUS)
    assert "Neues" in Settings.read(tmp_path).engine
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


def test_a_real_hasher_travels_with_the_collection(tmp_path: Path, photos: list[Path]) -> None:
    hasher, _ = Hasher.create(
        classes=["cat", "dog"], bits=12, backbone="timm:test_resnet", weights="none", size=32, device="cpu"
    )
    hasher.anchors = np.random.default_rng(0).normal(size=(2, 12)).astype(np.float32)
    hasher.save(run := _folder(tmp_path / "run"))
    with Collection.into(tmp_path / "c", run, device="cpu") as collection:
        collection.add(photos)
    (run / "network.onnx").write_bytes(b"as if exported later")
    Collection.into(tmp_path / "c", run, device="cpu").close()
    assert len(list((tmp_path / "c" / "hashers").glob("*/network.onnx"))) == 1
    for exported in (tmp_path / "c").rglob("*.onnx"):
        exported.unlink()
    shutil.rmtree(run)
    with Collection.open(tmp_path / "c", device="cpu") as collection:
        assert collection.search(photos[3], k=1)[0].distance == 0
        code = collection.photos()[3].code
        assert code == hasher.encode([photos[3]]).packed[0].tobytes()
        assert [match.id for match in collection.search(labels=["cat"], k=10)] == [
            match.id for match in collection.search(outputs=hasher.label_outputs(["cat"]), k=10)
        ]
        assert collection.verify() == []


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_hasher_that_is_gone_or_altered_is_told(collection: Collection) -> None:
    (weights,) = collection.folder.glob("hashers/*/weights.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert "not the hasher that was installed" in collection.verify()[0]
    shutil.rmtree(collection.folder / "hashers")
    with pytest.raises(CollectionError, match="is missing from hashers/"):
        Collection.open(collection.folder)


def test_every_file_of_a_hasher_is_checked(tmp_path: Path, collection: Collection) -> None:
    (folder,) = (collection.folder / "hashers").iterdir()
    spec = folder / "hasher.toml"
    spec.write_text(spec.read_text() + "# changed\n")
    assert "hasher.toml: damaged, not the hasher that was installed" in collection.verify()[0]


def test_a_network_that_came_later_is_checked_too(collection: Collection, tmp_path: Path) -> None:
    (folder,) = (collection.folder / "hashers").iterdir()
    shutil.copytree(folder, run := tmp_path / "run")
    (run / "network.onnx").write_bytes(b"as if exported later")
    Hashers(collection.folder).complete(as_hasher(run))
    assert collection.verify() == []
    (folder / "network.onnx").write_bytes(b"as if exported latez")
    assert "network.onnx: damaged" in collection.verify()[0]
    assert "write it again with `hyphash export`" in collection.verify()[0]


def test_a_hasher_of_former_times_has_a_checksum_of_its_weights(collection: Collection) -> None:
    (folder,) = (collection.folder / "hashers").iterdir()
    (folder / "checksums.sha256").unlink()
    (folder / "weights.sha256").write_text(hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest())
    assert collection.verify() == []
    (folder / "weights.sha256").write_text("0" * 64)
    assert "weights.safetensors: damaged" in collection.verify()[0]


ONE, TWO, THREE = (f"{number}" * 64 for number in (1, 2, 3))


@pytest.fixture
def thumbnails(tmp_path: Path) -> Iterator[Thumbnails]:
    thumbnails = Thumbnails(tmp_path)
    yield thumbnails
    thumbnails.close()


def test_a_thumbnail_is_found_by_content(thumbnails: Thumbnails, tmp_path: Path) -> None:
    thumbnails.put({ONE: b"one", TWO: b"two"})
    thumbnails.put({})
    thumbnails.put({ONE: b"one again"})
    assert (thumbnails.get(ONE), thumbnails.get(TWO), thumbnails.get(THREE)) == (b"one again", b"two", None)
    other = Thumbnails(tmp_path)
    assert other.get(TWO) == b"two"
    other.close()


def test_thumbnails_that_nobody_needs_are_swept_away(thumbnails: Thumbnails, monkeypatch: pytest.MonkeyPatch) -> None:
    many = {f"{number:064x}": b"jpeg" for number in range(1200)}  # more than are looked at together
    thumbnails.put(many)
    kept = set(list(many)[::7])
    thumbnails.sweep(lambda contents: kept & set(contents))
    assert {content for content in many if thumbnails.get(content)} == set(many)  # photos may be on their way
    monkeypatch.setattr("hyphash.collection.folder.GRACE", -1)
    thumbnails.sweep(lambda contents: kept & set(contents))
    assert {content for content in many if thumbnails.get(content)} == kept
    thumbnails.put({ONE: b"one"})
    monkeypatch.undo()
    thumbnails.put({ONE: b"one"})  # put again, it is new again
    thumbnails.sweep(lambda _: set())
    assert thumbnails.get(ONE) == b"one"


def test_a_database_that_was_deleted_is_made_again(thumbnails: Thumbnails, tmp_path: Path) -> None:
    thumbnails.put({ONE: b"one"})
    thumbnails.close()
    for file in tmp_path.glob("thumbnails.sqlite*"):
        file.unlink()
    again = Thumbnails(tmp_path)
    assert again.get(ONE) is None
    again.put({ONE: b"one"})
    assert (again.get(ONE), again.verify()) == (b"one", [])
    again.close()


def test_verify_tells_what_sqlite_finds(thumbnails: Thumbnails, tmp_path: Path) -> None:
    thumbnails.put({f"{number:064x}": os.urandom(3000) for number in range(50)})
    assert thumbnails.verify() == []
    with thumbnails.database.asking() as connection:
        connection.execute("PRAGMA writable_schema = ON")
        table = "CREATE TABLE thumbnails (content BLOB PRIMARY KEY, jpeg BLOB CHECK (length(jpeg) < 9))"
        connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'thumbnails'", (table,))
    thumbnails.close()
    again = Thumbnails(tmp_path)
    found = " ".join(again.verify())
    again.close()
    assert "delete this file, thumbnails are made again" in found


def test_an_original_is_kept_once_and_whole(tmp_path: Path) -> None:
    originals, content = Originals(tmp_path), hashlib.sha256(b"bytes of a photo").hexdigest()
    assert originals.path(content) is None
    originals.keep(content, b"bytes of a photo")
    path = originals.path(content)
    assert path is not None
    assert path.read_bytes() == b"bytes of a photo"
    os.utime(path, (1, 1))
    inode = path.stat().st_ino
    originals.keep(content, b"bytes of a photo")
    assert path.stat().st_ino == inode  # not written again
    assert path.stat().st_mtime > 1  # but young: nobody sweeps it away before its photo is there


def test_old_originals_that_nobody_needs_are_swept_away(tmp_path: Path) -> None:
    originals = Originals(tmp_path)
    for content in (ONE, TWO, THREE):
        originals.keep(content, b"x")
    for content in (ONE, TWO):
        path = originals.path(content)
        assert path is not None
        os.utime(path, (path.stat().st_mtime - 2 * GRACE,) * 2)
    assert list(originals.contents()) == [ONE, TWO, THREE]
    originals.sweep([ONE, TWO, THREE], lambda contents: {ONE} & set(contents))
    # the third may belong to a photo that is just being added
    assert [originals.path(content) is not None for content in (ONE, TWO, THREE)] == [True, False, True]


def test_only_files_with_names_of_ours_are_originals(tmp_path: Path) -> None:
    originals = Originals(tmp_path / "c")
    originals.keep(ONE, b"x")
    (tmp_path / "c" / "originals" / "22").mkdir()
    (tmp_path / "c" / "originals" / "22" / TWO).symlink_to(tmp_path / "letter")
    (tmp_path / "c" / "originals" / "11" / f".{ONE}.1.draft").touch()  # of an upload that was killed
    (tmp_path / "c" / "originals" / "11" / "notes").touch()
    (tmp_path / "c" / "originals" / "11" / THREE).touch()  # at home elsewhere
    (tmp_path / "letter").write_bytes(b"mine")
    assert list(originals.contents()) == [ONE]
    assert originals.path(TWO) is None


def test_an_original_that_is_damaged_is_told(tmp_path: Path) -> None:
    originals = Originals(tmp_path)
    content = hashlib.sha256(b"bytes of a photo").hexdigest()
    originals.keep(content, b"bytes of a photo")
    assert originals.verify() == []
    path = originals.path(content)
    assert path is not None
    path.write_bytes(b"bytes of a phots")
    assert originals.verify() == [f"{path}: damaged; restore it from a backup, or add the photo again"]


def test_a_damaged_database_of_thumbnails_is_not_to_be_restored(thumbnails: Thumbnails, tmp_path: Path) -> None:
    thumbnails.put({f"{number:064x}": os.urandom(3000) for number in range(50)})
    thumbnails.close()
    path = tmp_path / "thumbnails.sqlite"
    path.write_bytes(path.read_bytes()[:4096] + os.urandom(20_000))
    again = Thumbnails(tmp_path)
    assert all("delete this file, thumbnails are made again" in words for words in again.verify())
    again.close()
