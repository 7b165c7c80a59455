"""The folder of shards: what belongs into it, what is there, when it is complete; and its way into a collection."""

from dataclasses import replace
from pathlib import Path

import pytest

from hyphash.collection import Collection
from hyphash.encoding import encode, load, problems_in, summary_of
from hyphash.encoding.ledger import Ledger, Manifest
from hyphash.encoding.partitions import cut
from hyphash.encoding.shards import Job, Shard
from hyphash.errors import CodesError, OtherHasherError, StorageError
from hyphash.hasher import read_spec
from hyphash.photos import Problem


def test_what_is_done_is_not_done_again(hasher_run, folder, tmp_path, rows_in):
    steps = encode(hasher_run, folder, into=tmp_path / "codes", per_shard=5, workers=1)
    first = next(steps)
    steps.close()  # as Ctrl-C would
    with pytest.raises(CodesError, match="1 of 4 shards are there"):
        summary_of(tmp_path / "codes")
    kept = (tmp_path / "codes" / f"{first.shard}.parquet").stat()
    rest = list(encode(hasher_run, folder, into=tmp_path / "codes", per_shard=5, workers=1))
    assert [step.done for step in rest] == [2, 3, 4]
    assert (tmp_path / "codes" / f"{first.shard}.parquet").stat().st_mtime_ns == kept.st_mtime_ns
    assert not list(encode(hasher_run, folder, into=tmp_path / "codes", per_shard=5))
    assert len(rows_in(tmp_path / "codes")) == summary_of(tmp_path / "codes").photos == 20


def test_an_unreadable_photo_is_recorded_and_stops_nothing(hasher_run, folder, tmp_path, rows_in):
    (folder / "a" / "04.png").write_bytes(b"no photo at all")
    (folder / "b" / "11.png").write_bytes(b"")
    steps = list(encode(hasher_run, folder, into=tmp_path / "codes", per_shard=10, workers=1))
    assert [(step.photos, len(step.problems)) for step in steps] == [(9, 1), (9, 1)]
    summary = summary_of(tmp_path / "codes")
    assert (summary.photos, summary.problems) == (18, 2)
    assert summary.shards == {"shard-000000": 9, "shard-000001": 9}
    assert [Path(problem.name).name for problem in problems_in(tmp_path / "codes")] == ["04.png", "11.png"]
    assert len(rows_in(tmp_path / "codes")) == 18


def test_folders_of_others_are_refused(hasher_run, other_run, folder, tmp_path):
    list(encode(hasher_run, folder, into=tmp_path / "codes", workers=1))
    with pytest.raises(OtherHasherError, match="choose another folder"):
        list(encode(other_run, folder, into=tmp_path / "codes", workers=1))
    with pytest.raises(CodesError, match="other photos or other options"):
        list(encode(hasher_run, folder / "a", into=tmp_path / "codes", workers=1))
    with pytest.raises(StorageError, match="choose a new folder"):
        list(encode(hasher_run, folder, into=folder, workers=1))


def test_a_shard_tells_its_problems_before_it_is_there(hasher_run, folder, tmp_path, monkeypatch):
    """Cut off between the two, the shard is made again; the other way round its problems would be lost."""
    partitions = cut(str(folder), per_shard=10)
    manifest = Manifest.of(partitions, str(folder), read_spec(hasher_run), Job(hasher_run))
    assert (manifest.photos, manifest.shards) == (20, 2)
    ledger = Ledger.begin(tmp_path / "codes", manifest)
    assert [task.name for task in ledger.remaining(partitions)] == ["shard-000000", "shard-000001"]
    written = []
    monkeypatch.setattr("hyphash.encoding.ledger.write_atomically", lambda path, _: written.append(path.name))
    ledger.keep(Shard("shard-000001", b"codes", 9, (Problem("04.png", "torn"),), "here 1"))
    assert written == ["shard-000001.jsonl", "shard-000001.parquet"]


def test_damage_is_told_with_the_way_out(hasher_run, folder, tmp_path):
    codes = tmp_path / "codes"
    list(encode(hasher_run, folder, into=codes, workers=1, per_shard=10))
    (codes / "summary.json").write_text("{")
    with pytest.raises(CodesError, match=r"summary\.json: damaged .*another folder"):
        summary_of(codes)
    (codes / "summary.json").write_text('{"format": 9}')
    with pytest.raises(CodesError, match="written by another version"):
        summary_of(codes)
    (codes / "shard-000001.parquet").write_bytes(b"no Parquet")
    with pytest.raises(CodesError, match=r"shard-000001\.parquet: damaged .*same command again"):
        list(encode(hasher_run, folder, into=codes, workers=1, per_shard=10))


def test_a_collection_loads_shards_as_if_it_had_indexed_the_photos(hasher_run, folder, tmp_path):
    list(encode(hasher_run, folder, into=tmp_path / "codes", workers=1, per_shard=8))
    with (
        Collection.create(tmp_path / "loaded", hasher_run) as loaded,
        Collection.create(tmp_path / "indexed", hasher_run) as indexed,
    ):
        seen = []
        result = load(tmp_path / "codes", loaded, progress=lambda done, total: seen.append((done, total)))
        assert (result.photos, result.added) == (20, 20)
        assert seen == [(8, 20), (16, 20), (20, 20)]
        again = load(tmp_path / "codes", loaded)
        assert (again.photos, again.added) == (20, 0)
        indexed.add(folder)
        a, b = (
            [(p.id, p.path, replace(p.facts, modified=0), p.code, p.scores, p.labels) for p in c.photos()]
            for c in (loaded, indexed)
        )
        assert a == b
        assert {len(photo.scores) for photo in loaded.photos()} == {2}
        query = folder / "a" / "03.png"
        assert loaded.search(query) == indexed.search(query)
        assert loaded.thumbnail(3)


def test_thumbnails_travel_where_they_are_asked_for(hasher_run, folder, tmp_path):
    list(encode(hasher_run, folder, into=tmp_path / "codes", workers=1, thumbnails=True))
    with Collection.create(tmp_path / "collection", hasher_run) as collection:
        load(tmp_path / "codes", collection)
        for path in folder.rglob("*.png"):
            path.unlink()
        assert collection.thumbnail(3).startswith(b"\xff\xd8")


def test_codes_of_others_are_not_loaded(hasher_run, other_run, folder, tmp_path):
    list(encode(hasher_run, folder, into=tmp_path / "codes", workers=1))
    with Collection.create(tmp_path / "collection", other_run) as collection:
        with pytest.raises(OtherHasherError, match="encode the photos"):
            load(tmp_path / "codes", collection)
        with pytest.raises(CodesError, match=r"manifest\.json"):
            load(folder, collection)


def test_a_shard_that_is_gone_or_damaged_is_named(hasher_run, folder, tmp_path):
    list(encode(hasher_run, folder, into=tmp_path / "codes", workers=1, per_shard=10))
    shard = tmp_path / "codes" / "shard-000001.parquet"
    with Collection.create(tmp_path / "collection", hasher_run) as collection:
        whole = shard.read_bytes()
        shard.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(CodesError, match=r"shard-000001\.parquet: damaged or missing"):
            load(tmp_path / "codes", collection)
        shard.unlink()
        with pytest.raises(CodesError, match=r"shard-000001\.parquet: missing; finish"):
            load(tmp_path / "codes", collection)
        shard.write_bytes(whole)
        assert load(tmp_path / "codes", collection).photos == 20
        assert len(collection) == 20
