"""`hyphash reproduce`"""

import json
from functools import partial

import numpy as np
import pytest
from PIL import Image

from hyphash.benchmarks import facts

TINY = (
    *("--weights", "none", "--backbone", "timm:test_resnet", "--size", 32, "--epochs", 1, "--device", "cpu"),
    *("--seeds", 0),
)


@pytest.fixture
def tree(tmp_path):
    """NUS-WIDE as lists, with a few photos of one colour."""
    rng = np.random.default_rng(0)
    (tmp_path / "nus" / "images").mkdir(parents=True)
    for part, count in (("train", 12), ("test", 4), ("database", 9)):
        lines = []
        for i in range(count):
            labels = np.zeros(21, int)
            labels[rng.choice(21, 2)] = 1
            name = f"images/{part}{i}.png"
            Image.new("RGB", (32, 32), tuple(rng.integers(0, 255, 3).tolist())).save(tmp_path / "nus" / name)
            lines.append(f"{name} {' '.join(map(str, labels))}")
        (tmp_path / "nus" / f"{part}.txt").write_text("\n".join(lines))
    return tmp_path / "nus"


def test_the_list_says_what_each_needs(run):
    out = run("reproduce", "--list").out
    for word in ("flickr25k", "ablation", "theorem", "H200"):
        assert word in out
    rows = json.loads(run("reproduce", "--list", "--json").out)
    assert len(rows) == 14
    assert rows[-1]["name"] == "report"
    assert set(rows[0]) == {"name", "about", "needs", "takes"}


@pytest.mark.slow
def test_the_page_of_all_needs_results(run, tmp_path, monkeypatch):
    monkeypatch.setattr("hyphash.benchmarks.facts.theorem_2", partial(facts.theorem_2, steps=2))
    empty = run("reproduce", "report", "--into", tmp_path)
    assert empty.code == 2
    assert "no results are there" in empty.err
    assert run("reproduce", "theorem", "--into", tmp_path).code == 0
    assert run("reproduce", "report", "--into", tmp_path).code == 0
    assert "Theorem 2" in (tmp_path / "report.html").read_text()


def test_a_table_is_measured_printed_and_not_measured_again(run, tree, tmp_path):
    given = ("reproduce", "nuswide", "--into", tmp_path / "results", "--only", "hyp2", "--bits", 12, *TINY)
    first = run(*given, "--data", tree, "--unchecked")
    assert first.code == 0, first.err
    assert "1 of 1: hyp2 beta=0.5, 12 bits" in first.err
    assert "Protocol paper@5,000" in first.out
    assert "Protocol strict@5,000" in first.out
    assert (tmp_path / "results" / "nuswide" / "report.html").is_file()
    again = run(*given, "--json")
    assert "all 1 runs are done" in again.err
    tables = json.loads(again.out)
    assert tables[0]["rows"][0]["ours"]["by_seed"].keys() == {"0"}


def test_time_can_be_limited(run, tree, tmp_path):
    given = ("reproduce", "nuswide", "--into", tmp_path / "results", "--only", "hyp2", *TINY, "--data", tree)
    stopped = run(*given, "--unchecked", "--minutes", 0)
    assert stopped.code == 2
    assert "no run of nuswide is there" in stopped.err


def test_mistakes_are_one_line(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no benchmark is called 'flicker'" in run("reproduce", "flicker").err
    assert "--bits takes whole numbers" in run("reproduce", "flickr25k", "--bits", "12;24").err
    missing = run("reproduce", "voc2007")
    assert missing.code == 2
    assert "PASCAL VOC 2007 is not here" in missing.err
    assert len(missing.err.strip().splitlines()) == 1
