"""`hyphash compare`"""

import json

import pytest


@pytest.fixture
def compare(run, sample, tmp_path):
    """Compare two methods in few steps: `compare(folder, …)` → the tables as JSON, and what was said."""

    def call(into, *options):
        ran = run(
            *("compare", "--data", sample, "--losses", "hyp2,dhn", "--bits", 12, "--into", tmp_path / into, "--json"),
            *("--backbone", "timm:test_resnet", "--weights", "none", "--mode", "frozen", "--device", "cpu"),
            *(
                "--watch",
                1,
                "--set",
                "size=32",
                "--set",
                "epochs=2",
                "--set",
                "hidden=16",
                "--cache",
                tmp_path / "cache",
                *options,
            ),
        )
        assert ran.code == 0, ran.err
        return json.loads(ran.out)

    return call


def scores(tables):
    return {(name, row["loss"]): row["mAP"] for name, rows in tables.items() for row in rows}


def test_methods_are_compared_once(compare, tmp_path):
    first = compare("once")
    assert list(first) == ["comparison-paper", "comparison-strict"]
    assert [set(row) for row in first["comparison-paper"]] == [
        {"bits", "loss", "mAP", "mean", "by_seed", "spread", "standard_error", "interval"}
        | {"behind", "behind_interval", "seconds", "converged"}
    ] * 2
    assert all(row["interval"][0] < row["mAP"] < row["interval"][1] for row in first["comparison-paper"])
    lines = (tmp_path / "once" / "runs.jsonl").read_text()
    assert compare("once") == first
    assert (tmp_path / "once" / "runs.jsonl").read_text() == lines
    assert (tmp_path / "once" / "convergence-12.png").is_file()
    assert "mAP@1,000, protocol paper" in (tmp_path / "once" / "report.html").read_text()


def test_another_depth_is_measured_and_not_taken_from_earlier_runs(compare, tmp_path):
    deep, shallow = compare("both"), compare("both", "--top", 3)
    assert scores(shallow) == scores(compare("alone", "--top", 3))
    assert scores(shallow) != scores(deep)
    assert scores(compare("both")) == scores(deep)


def test_a_folder_belongs_to_one_dataset(compare, run, sample, tmp_path):
    compare("one")
    other = tmp_path / "labels.csv"
    other.write_text("photo,labels\na.jpg,dog\n")
    ran = run("compare", "--data", other, "--losses", "hyp2", "--into", tmp_path / "one")
    assert ran.code == 2
    assert "holds a comparison on" in ran.err
    assert "no loss is called 'hyp3'" in run("compare", "--data", sample, "--losses", "hyp3").err
