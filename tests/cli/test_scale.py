"""`hyphash encode`, `hyphash collection load` and `hyphash plan`"""

import json
import shutil
from dataclasses import asdict

import pytest

from hyphash.planning import Wish


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


def test_a_load_that_is_refused_leaves_no_collection_behind(run, codes, trained, tmp_path):
    refused = {"no manifest.json": tmp_path, "1 of 3 shards are there": tmp_path / "begun"}
    for folder in ("begun", "less", "other"):
        shutil.copytree(codes, tmp_path / folder)
    (tmp_path / "begun" / "summary.json").unlink()
    for shard in ("begun/shard-000001", "begun/shard-000002", "less/shard-000001"):
        (tmp_path / f"{shard}.parquet").unlink()
    summary = tmp_path / "other" / "summary.json"
    summary.write_text(summary.read_text().replace('"fingerprint": "', '"fingerprint": "0'))
    refused |= {"shard-000001.parquet: missing": tmp_path / "less", "encode the photos": tmp_path / "other"}
    for reason, folder in refused.items():
        ran = run("collection", "load", tmp_path / "new", folder, "--run", trained)
        assert ran.code == 2
        assert reason in ran.err
        assert not (tmp_path / "new").exists()


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
        assert len(ran.err.splitlines()) == 1, ran.err
    assert run("collection", "load", tmp_path / "no", codes).code == 2
    assert not (tmp_path / "new").exists()


def test_plan_prints_a_formula_beside_each_figure(run):
    ran = run("plan", "--photos", "1e9", "--bits", 64, "--qps", 500)
    assert ran.code == 0, ran.err
    assert "latency p50" in ran.out
    assert "1,000,000,000 ×" in ran.out
    ran = run("plan", "--photos", "2e6", "--node-memory", "256GB", "--replicas", 2, "--k", 100, "--markdown")
    assert ran.out.startswith("| engine | what | estimate | formula |")


def test_plan_as_json(run):
    told = json.loads(run("plan", "--photos", "1e6", "--json").out)
    assert told["wish"]["photos"] == 1_000_000
    (local,) = [engine for engine in told["engines"] if engine["engine"] == "local"]
    assert {"memory", "disk", "nodes", "latency p50"} <= {figure["name"] for figure in local["figures"]}
    assert all(figure["formula"] for figure in local["figures"] + told["encoding"])


def test_the_command_wishes_for_what_the_library_does(run):
    told = json.loads(run("plan", "--photos", "1e6", "--json").out)
    assert told["wish"] == asdict(Wish(photos=1_000_000))


def test_nonsense_is_one_line_and_exit_2(run):
    for args in (
        *(["--photos", photos] for photos in ("0", "nan", "inf", "1e400", "-5", "1e300", "many")),
        *(["--photos", "1e6", "--node-memory", size] for size in ("much", "64", "nan", "-1GB")),
    ):
        ran = run("plan", *args)
        assert ran.code == 2
        assert len(ran.err.strip().splitlines()) == 1, ran.err
