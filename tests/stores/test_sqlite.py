"""SQLite as a store: several processes at once, disks that fill up, and databases of an older format."""

import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from drawing import ME, OTHER, photos_with, random_codes, twos_and_threes

from hyphash.errors import CollectionError, ConfigError, StorageError
from hyphash.stores import Facts, Photo
from hyphash.stores.sqlite import SqliteStore

BITS = 16


def photos(count: int, *, start: int = 0) -> list[Photo]:
    return photos_with(random_codes(count, BITS, seed=start), labels=twos_and_threes, start=start)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore.create(tmp_path, "sqlite", fingerprint=ME, bits=BITS)
    yield store
    store.close()


def test_captions_of_many_photos_and_of_letters_that_json_escapes(store: SqliteStore) -> None:
    odd = [
        replace(photo, path=f"/\u2028\n\t{photo.path}", labels=("\0", "a\x1fb", "\U0001f415")) for photo in photos(3)
    ]
    ids = store.upsert([*odd, *photos(1200, start=50)], fingerprint=ME)
    captions = store.captions(ids)
    assert [captions[id] for id in ids] == [
        (photo.path, photo.labels, photo.facts.width, photo.facts.height) for photo in store.get(ids)
    ]


def test_captions_are_remembered_for_as_long_as_they_are_true(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes change them; the naive twin is a store that has just been opened. Few fit into memory."""
    monkeypatch.setattr("hyphash.stores.sqlite.KEPT_CAPTIONS", 7)
    monkeypatch.setattr("hyphash.stores.sqlite.KEPT_PHOTOS", 2)
    ids = store.upsert(photos(30), fingerprint=ME)
    other = SqliteStore.open(tmp_path, "sqlite")
    steps = [
        lambda: None,
        lambda: other.relabel(ids[1], lambda photo: replace(photo, labels=("own",))),
        lambda: other.remove(ids[2:4]),
        lambda: store.relabel(ids[4], lambda photo: replace(photo, labels=())),
    ]
    for step in steps:
        step()
        fresh = SqliteStore.open(tmp_path, "sqlite")
        for some in (ids[:5], ids[2:9], ids, ids[:5]):
            assert store.captions(some) == fresh.captions(some)
        for id in (*ids[:6], *ids[:6]):
            assert store.get([id]) == fresh.get([id])
        fresh.close()
    other.close()


def test_a_thread_may_hold_on_to_the_state_of_one_moment(store: SqliteStore, tmp_path: Path) -> None:
    other = SqliteStore.open(tmp_path, "sqlite")
    store.hold(True)
    before = store.state()
    other.upsert(photos(3), fingerprint=ME)
    assert store.state() == before
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(store.state).result() == other.state()
    store.hold(True)
    assert store.state() == other.state()
    other.remove([1])
    store.hold(False)
    assert store.state() == other.state()
    other.close()


def test_lists_of_ids_are_remembered_for_as_long_as_they_are_true(store: SqliteStore, tmp_path: Path) -> None:
    """The naive twin is a store that has just been opened; photos come under old numbers and go again."""
    ids = store.upsert(photos(30), fingerprint=ME)
    kept = store.get(ids[3:6])
    steps = [
        lambda: store.remove(ids[3:6]),
        lambda: store.upsert(kept[:1], fingerprint=ME),  # as many as before, but others
        lambda: store.remove(ids[7:8]),
        lambda: store.upsert(kept[1:2], fingerprint=ME),
        lambda: store.relabel(ids[1], lambda photo: replace(photo, labels=("two",))),
        lambda: store.relabel(ids[2], lambda photo: replace(photo, labels=())),
        lambda: store.upsert(photos(5, start=100), fingerprint=ME),
    ]
    for step in steps:
        step()
        fresh = SqliteStore.open(tmp_path, "sqlite")
        for asked in ({"untagged": True}, {"carrying": ["two"]}, {"carrying": ["two", "three"]}, {}):
            page = [photo.id for photo in store.page(2, 9, **asked)]  # type: ignore[arg-type]
            assert page == [photo.id for photo in fresh.page(0, 99, **asked)][2:11]  # type: ignore[arg-type]
            assert store.count(**asked) == fresh.count(**asked) == len(fresh.page(0, 99, **asked))  # type: ignore[arg-type]
        assert store.page(0, 9, carrying=["two"], untagged=True) == []
        fresh.close()


def test_sqlite_has_no_address(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no address"):
        SqliteStore.create(tmp_path, "sqlite:///somewhere", fingerprint=ME, bits=BITS)


# ── several at once ──────────────────────────────────────────────────────────────────────────────────────

WRITER = """
import sys
from pathlib import Path
sys.path[:0] = {paths!r}
from test_sqlite import ME, photos
from hyphash.searchers.local import Local
from hyphash.stores.sqlite import SqliteStore
folder = Path({folder!r})
store = SqliteStore.open(folder, "sqlite")
searcher = Local.open(folder, "local", store)
for round in range(15):
    store.upsert(photos(4, start=int(sys.argv[1]) + 100 * round), fingerprint=ME)
    if round % 5 == 4:
        searcher.tidy()
        store.tidy()
store.close()
"""
HERE = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "setup")]


def test_writers_in_several_processes_take_turns(store: SqliteStore, tmp_path: Path) -> None:
    from hyphash.searchers import Query
    from hyphash.searchers.local import Local

    searcher = Local.open(tmp_path, "local", store)
    program = WRITER.format(paths=HERE, folder=str(tmp_path))
    writers = [subprocess.Popen([sys.executable, "-c", program, str(10_000 * n)]) for n in (1, 2, 3)]
    seen = 0
    while any(writer.poll() is None for writer in writers):
        now = searcher.search(Query(random_codes(1, BITS), 999, fingerprint=ME)).total
        assert now % 4 == 0  # a reader meanwhile: whole batches only, never fewer than before
        assert now >= seen
        seen = now
        time.sleep(0.02)
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(searcher.search(Query(random_codes(1, BITS), 999, fingerprint=ME)).ids) == store.count() == 180
    assert {photo.path for photo in store.page(0, 999)} == {
        photo.path for n in (1, 2, 3) for round in range(15) for photo in photos(4, start=10_000 * n + 100 * round)
    }
    assert store.verify() == searcher.verify() == []


def test_a_writer_that_waits_in_vain_is_told_who_writes(store: SqliteStore, tmp_path: Path) -> None:
    other = SqliteStore.open(tmp_path, "sqlite", wait=0.2)
    try:
        with store.database.writing("a long story"):
            with pytest.raises(CollectionError, match=r"process \d+ \(a long story, since .*waited 0.2 s; try again"):
                other.upsert(photos(1), fingerprint=ME)
            assert other.page(0, 9) == []  # readers are not in the way
        (id,) = other.upsert(photos(1), fingerprint=ME)
        assert store.get([id])
        assert not list(tmp_path.glob("*-writer"))
    finally:
        other.close()


def test_a_writer_waits_for_another(store: SqliteStore, tmp_path: Path) -> None:
    other = SqliteStore.open(tmp_path, "sqlite", wait=20)
    started = threading.Event()

    def hold() -> None:
        with store.database.writing("something short"):
            started.set()
            time.sleep(0.3)

    thread = threading.Thread(target=hold)
    thread.start()
    started.wait()
    assert other.upsert(photos(1), fingerprint=ME) == [1]
    thread.join()
    other.close()


# ── full disks ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_full_database_loses_nothing(store: SqliteStore, tmp_path: Path) -> None:
    store.upsert(photos(20), fingerprint=ME)
    before = store.page(0, 99)
    pages = 3 + sqlite_pages(tmp_path / "collection.sqlite")
    with store.database.asking() as connection:
        connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StorageError, match=r"the disk is full; make room and run the same command again"):
        endless(store)
    store.close()
    again = SqliteStore.open(tmp_path, "sqlite")
    assert again.page(0, 20) == before
    assert again.count() % 500 == 20
    assert again.verify() == []
    assert len(again.upsert(photos(500, start=100_000), fingerprint=ME)) == 500
    again.close()


def endless(store: SqliteStore) -> None:
    for start in range(100, 100_000, 500):
        store.upsert(photos(500, start=start), fingerprint=ME)


def sqlite_pages(path: Path) -> int:
    connection = sqlite3.connect(path)
    pages: int = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.close()
    return pages


LIMITED = """
import json, resource, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from test_sqlite import BITS, ME, photos, random_codes
from hyphash.errors import StorageError
from hyphash.searchers import Query
from hyphash.searchers.local import Local
from hyphash.stores.sqlite import SqliteStore
store = SqliteStore.open(Path({folder!r}), "sqlite")
searcher = Local.open(Path({folder!r}), "local", store)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
safe = []
try:
    for start in range(1000, 100_000, 100):
        safe += store.upsert(photos(100, start=start), fingerprint=ME)
        searcher.tidy()
        store.tidy()
except StorageError as error:
    print(json.dumps([safe, str(error), searcher.search(Query(random_codes(1, BITS), 9999, fingerprint=ME)).total]))
"""


def test_files_that_may_not_grow_lose_nothing(store: SqliteStore, tmp_path: Path) -> None:
    """The limit of the operating system on the size of files: writes fail in the middle, wherever that is."""
    store.upsert(photos(20), fingerprint=ME)
    program = LIMITED.format(paths=HERE, folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    safe, words, found = json.loads(done.stdout)
    assert "make room" in words
    assert len(safe) >= 100
    assert found == len(safe) + 20
    again = SqliteStore.open(tmp_path, "sqlite")
    assert {photo.id for photo in again.page(0, 99_999)} == {*range(1, 21), *safe}
    assert again.verify() == []
    again.close()


# ── format 1 ─────────────────────────────────────────────────────────────────────────────────────────────

FORMAT_1 = """
PRAGMA application_id = 1752789096;
PRAGMA user_version = 1;
CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE photos (
  id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL UNIQUE, content BLOB NOT NULL,
  size INTEGER NOT NULL, modified INTEGER NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL,
  look BLOB NOT NULL, sourced INTEGER NOT NULL, added TEXT NOT NULL, changed TEXT NOT NULL
);
CREATE INDEX photos_by_content ON photos (content);
CREATE TABLE codes (
  photo INTEGER NOT NULL REFERENCES photos ON DELETE CASCADE, generation INTEGER NOT NULL,
  code BLOB NOT NULL, PRIMARY KEY (photo, generation)
) WITHOUT ROWID;
CREATE TABLE labels (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, changed INTEGER NOT NULL, photos INTEGER NOT NULL
);
CREATE TABLE photo_labels (
  photo INTEGER NOT NULL REFERENCES photos ON DELETE CASCADE, label INTEGER NOT NULL REFERENCES labels,
  state INTEGER NOT NULL, PRIMARY KEY (photo, label)
) WITHOUT ROWID;
CREATE INDEX photos_by_label ON photo_labels (label, photo) WHERE state & 1;
CREATE TABLE commits (number INTEGER PRIMARY KEY, stamp TEXT NOT NULL, time TEXT NOT NULL);
CREATE TABLE changes (
  number INTEGER NOT NULL, photo INTEGER NOT NULL, PRIMARY KEY (number, photo)
) WITHOUT ROWID;
INSERT INTO meta VALUES ('fingerprint', '0123456789abcdef'), ('bits', 16), ('generation', 2), ('commit', 4),
  ('pruned', 1), ('coming', '0000000000000001'), ('coming_bits', 8);
INSERT INTO photos VALUES
  (1, '/a.jpg', x'aa', 10, 11, 12, 13, x'0102030405060708', 1, 'then', 'later'),
  (3, '/b.jpg', x'bb', 20, 0, 22, 23, x'', 0, 'then', 'then');
UPDATE sqlite_sequence SET seq = 7 WHERE name = 'photos';
INSERT INTO codes VALUES (1, 1, x'ff'), (1, 2, x'0a0b'), (3, 2, x'0c0d'), (1, 3, x'0e');
INSERT INTO labels VALUES (1, 'cat', 2, 1), (2, 'dog', 4, 0);
INSERT INTO photo_labels VALUES (1, 1, 3), (1, 2, 4);
INSERT INTO commits VALUES (1, 'one', 'then'), (2, 'two', 'then'), (3, 'three', 'then'), (4, 'four', 'now');
INSERT INTO changes VALUES (2, 1), (4, 3);
"""


def test_a_database_of_format_1_is_brought_up_to_date(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "collection.sqlite")
    connection.executescript(FORMAT_1)
    connection.close()
    for _ in range(2):  # the second time there is nothing left to do
        store = SqliteStore.open(tmp_path, "sqlite")
        state = store.state()
        assert (state.fingerprint, state.bits, state.generation, state.commit) == (ME, 16, 2, 4)
        assert (state.position.stamp, state.photos, state.last_id, state.pruned) == ("four", 2, 7, 4)
        assert (state.coming, state.coming_bits, len(state.identity)) == (OTHER, 8, 32)
        facts = Facts(
            content="aa", size=10, modified=11, width=12, height=13, thumbnail_hash=bytes([1, 2, 3, 4, 5, 6, 7, 8])
        )
        one, two = store.page(0, 9)
        assert one == Photo(
            id=1, path="/a.jpg", facts=facts, code=b"\x0a\x0b", labels=("cat",), given=("cat",), refused=("dog",),
            added="then", changed="later",
        )  # fmt: skip
        assert (two.id, two.given, two.facts.modified) == (3, None, 0)
        assert [photo.id for photo in store.pending(9)] == [3]
        assert store.labels() == {"cat": 1}
        assert store.count(untagged=True) == 1
        assert store.verify() == []
        store.close()
    store = SqliteStore.open(tmp_path, "sqlite")
    assert store.upsert([replace(two, id=0, path="/c.jpg")], fingerprint=ME) == [8]
    described = replace(two.facts, taken=-5, camera="", latitude=1.5, longitude=-2.25)
    store.upsert([replace(two, facts=described)], fingerprint=ME)
    assert (store.get([3])[0].facts, two.facts.camera) == (described, None)
    assert store.remove([1]) == 1
    assert store.read(lambda session: session.changed(4, labels=False)).tolist() == [1, 3, 8]
    assert store.verify() == []
    store.close()


def test_what_is_no_collection_or_of_a_later_day_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    path = tmp_path / "collection.sqlite"
    for statement, words in (
        ("PRAGMA user_version = 5", r"newer hyphash \(format 5, this one reads 4\); run: pip install -U hyphash"),
        ("PRAGMA application_id = 1", "damaged .it holds no collection"),
    ):
        connection = sqlite3.connect(path)
        connection.execute(statement)
        connection.close()
        with pytest.raises(CollectionError, match=words):
            SqliteStore.open(tmp_path, "sqlite")
    with pytest.raises(CollectionError, match=r"collection.sqlite is missing; restore"):
        SqliteStore.open(tmp_path / "nowhere", "sqlite")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (b"CREATE TABLE photos", b"CREATE \xffABLE photos", "no text where one belongs"),
        (b"\0\0\0\4\0\0\0\0\0\0", b"\0\0\0\xd4\0\0\0\0\0\0", "unsupported file format"),
    ],
)
def test_a_file_that_is_hardly_one_of_sqlite_is_damaged(
    store: SqliteStore, tmp_path: Path, before: bytes, after: bytes, words: str
) -> None:
    store.close()
    file = tmp_path / "collection.sqlite"
    data = file.read_bytes()
    assert before in data
    file.write_bytes(data.replace(before, after, 1))
    with pytest.raises(CollectionError, match=rf"damaged \({words}"):
        SqliteStore.open(tmp_path, "sqlite")


def test_codes_that_cannot_be_are_damage(store: SqliteStore) -> None:
    store.upsert(photos(3), fingerprint=ME)
    with store.database.writing("a test") as tx:
        tx.execute("UPDATE codes SET code = x'01' WHERE photo = 2")
    with pytest.raises(CollectionError, match=r"damaged \(some codes have not 16 bits\)"):
        list(store.scan())
    assert "has a code of 1 bytes; index it again" in " ".join(store.verify())
