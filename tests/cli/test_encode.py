"""`hyphash encode` and `hyphash collection load`"""

import json

import pytest


@pytest.fixture
def codes(run, trained, sample, tmp_path):
    ran = run("encode", trained, sample / "queries", "--into", tmp_path / "codes", "--workers", 1, "--per-shard", 5)
    assert ran.code == 0, ran.err
    assert "12 photos in 3 shards, 12 bits each" in ran.out
    return tmp_path / "codes"


def test_encode_load_search(run, codes, trained, sample, tmp_path):
    collection = tmp_path / "collection"
    ran = run("collection", "load", collection, codes, "--run", trained)
    assert "12 photos (12 added, 12 loaded)" in ran.out, ran.err
    assert "(0 added, 12 loaded)" in run("collection", "load", collection, codes).out
    photo = sample / "queries" / "00003.jpg"
    found = json.loads(run("search", collection, photo, "-k", 12, "--json").out)
    assert str(photo) in [match["path"] for match in found if match["distance"] == 0]


def test_again_there_is_nothing_to_do_and_problems_are_told(run, codes, trained, sample, tmp_path):
    again = run("encode", trained, sample / "queries", "--into", codes, "--per-shard", 5, "--json")
    told = json.loads(again.out)
    assert (told["photos"], told["shards"], told["left_out"]) == (12, 3, 0)
    (tmp_path / "list.txt").write_text(f"{sample}/queries/00000.jpg\ngone.jpg\n")
    ran = run("encode", trained, tmp_path / "list.txt", "--into", tmp_path / "other", "--workers", 1)
    assert ran.code == 0
    assert "1 photo left out" in ran.err
    assert "gone.jpg" in ran.err


def test_bad_input_is_one_line_and_exit_2(run, codes, trained, sample, tmp_path):
    for args in (
        [trained, tmp_path / "nowhere", "--into", tmp_path / "new"],
        [trained, sample / "train", "--into", codes],
        [trained, "nonsense://photos", "--into", tmp_path / "new"],
        [sample, sample, "--into", tmp_path / "new"],
        [trained, sample / "queries", "--into", tmp_path / "new", "--address", "moon"],
    ):
        ran = run("encode", *args)
        assert ran.code == 2, args
        assert len(ran.err.strip().splitlines()) == 1, ran.err
    assert run("collection", "load", tmp_path / "no", codes).code == 2
    assert not (tmp_path / "new").exists()
