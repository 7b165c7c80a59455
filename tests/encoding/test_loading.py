"""Shards into a collection: as if it had indexed the photos, once however often, and only its own hasher's."""

from dataclasses import replace

import pytest

from hyphash.collection import Collection
from hyphash.encoding import encode, load
from hyphash.errors import CodesError, OtherHasherError


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
