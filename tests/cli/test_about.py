"""Commands that explain, and `hyphash data`."""

import json

import pytest

from hyphash import coding
from hyphash.cli import about
from hyphash.cli.about import _percent


def test_capacity_explains_itself(run):
    out = run("capacity", "--bits", 12, "--classes", 38).out
    assert 2 <= len(out.strip().splitlines()) <= 3
    assert f"{coding.capacity(classes=38, bits=12):,}" in out
    assert f"{2**38:,}" in out
    assert "37 bits" in out
    assert "0.333" in out


def test_capacity_says_when_nothing_is_lost(run):
    out = run("capacity", "--bits", 48, "--classes", 20).out
    assert "all of them" in out
    assert "not needed" in out


def test_capacity_names_the_bound_beyond_the_table(run):
    assert "Gilbert" in run("capacity", "--bits", 64, "--classes", 1000).out


def test_capacity_as_json_is_exact(run):
    record = json.loads(run("capacity", "--bits", 12, "--classes", 300, "--json").out)
    assert record["capacity"] == coding.capacity(classes=300, bits=12)
    assert record["label_sets"] == 2**300


@pytest.mark.parametrize(("part", "whole", "text"), [(1, 4, "25 %"), (1, 3, "33.3 %"), (1, 10**30, "millionth")])
def test_percent(part, whole, text):
    assert text in _percent(part, whole)


def test_losses_lists_every_method(run):
    from hyphash import losses

    rows = json.loads(run("losses", "--json").out)
    assert [row["name"] for row in rows] == losses.names()
    assert all(row["paper"] for row in rows)
    assert rows[[row["name"] for row in rows].index("hyp2")]["options"] == {"beta": 1.0, "margin": None}
    assert "hyp2" in run("losses").out


@pytest.mark.parametrize(
    ("options", "there", "not_there"),
    [
        (["--family", "pairs"], "dhn", "hyp2"),
        (["--labels", "none"], "bi-half", "dhn"),
        (["--labels", "classes", "--since", 2020], "csq", "proxy-nca"),
        (["--labels", "both"], "hyp2", "csq"),
    ],
)
def test_losses_are_filtered_by_family_label_use_and_year(run, options, there, not_there):
    found = [row["name"] for row in json.loads(run("losses", "--json", *options).out)]
    assert there in found
    assert not_there not in found


def test_every_method_has_its_year(run):
    assert all(1990 < row["year"] < 2030 for row in json.loads(run("losses", "--json").out))


def test_backbones_lists_the_paper_s_networks(run):
    names = {row["name"] for row in json.loads(run("backbones", "--json").out)}
    assert {"alexnet", "googlenet", "inception_v3", "resnet50", "efficientnet_lite0"} <= names
    assert "timm:" in run("backbones").out


def test_datasets_are_described(run):
    rows = json.loads(run("datasets", "--json").out)
    assert {"folder", "flickr25k", "nuswide", "voc2007", "voc2012", "coco", "sample"} <= {row["name"] for row in rows}
    assert all(row["about"] for row in rows)
    assert "sample" in run("datasets").out


def test_doctor_says_what_runs(run):
    from hyphash import hamming

    facts = json.loads(run("doctor", "--json").out)
    assert hamming.backend().name in facts["search kernel"]
    assert "torch" in run("doctor").out


def test_the_commit_of_a_build_is_told_and_of_a_release_without_git_nothing(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "hyphash"
    (package / "cli").mkdir(parents=True)
    monkeypatch.setattr(about, "__file__", str(package / "cli" / "about.py"))
    assert about.commit() == ""
    (package / "commit.txt").write_text("1a2b3c4\n")
    assert about.commit() == " (commit 1a2b3c4)"


def test_sample_is_drawn_once(run, tmp_path):
    made = run("data", "sample", tmp_path / "s", "--train", 4, "--queries", 2)
    assert made.code == 0
    assert made.out.startswith("drawn")
    again = run("data", "sample", tmp_path / "s", "--train", 4, "--queries", 2)
    assert again.out.startswith("already there")


def test_inspect_counts_what_is_there(run, sample):
    record = json.loads(run("data", "inspect", sample, "--json").out)
    assert record["parts"] == {"train": 60, "queries": 12, "database": 60}
    assert record["classes"] == 20
    assert record["unreadable"] == {}
    table = run("data", "inspect", sample, "--no-check").out
    assert "photos with several labels" in table
    assert "η" in table


def test_inspect_draws_the_labels_that_occur_together(run, sample, tmp_path):
    assert run("data", "inspect", sample, "--no-check", "--plot", tmp_path / "labels.png").code == 0
    assert (tmp_path / "labels.png").read_bytes().startswith(b"\x89PNG")


def test_inspect_goes_on_past_what_cannot_be_used(run, tmp_path):
    from PIL import Image

    for red, name in enumerate("abc"):
        Image.new("RGB", (8, 8), (red, 0, 0)).save(tmp_path / f"{name}.png")
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 not really")
    rows = ["image,labels", "a.png,x|y", "b.png,y", "c.png,x", "gone.png,x", "broken.jpg,y", "a.png,x|y"]
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    ran = run("data", "inspect", tmp_path / "labels.csv")
    assert ran.code == 0
    assert "broken.jpg" in ran.err
    assert "label rows without a photo" in ran.out


@pytest.mark.parametrize("what", ["empty", "file"])
def test_inspect_refuses_what_is_no_dataset(run, tmp_path, what):
    path = tmp_path
    if what == "file":
        path = tmp_path / "notes.txt"
        path.write_text("hello")
    ran = run("data", "inspect", path)
    assert ran.code == 2
    assert str(path) in ran.err
