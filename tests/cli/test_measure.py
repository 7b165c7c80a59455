"""`hyphash evaluate`"""

import json
import shutil

import pytest

from hyphash.evaluation import Report
from hyphash.hasher import Hasher


def test_evaluate_prints_and_writes_the_same_report(run, trained, tmp_path):
    ran = run("evaluate", trained, "--top", 20, "--into", tmp_path / "r", "--cache", tmp_path / "c", "--json")
    assert ran.code == 0, ran.err
    printed = json.loads(ran.out)
    assert printed == json.loads((tmp_path / "r" / "report.json").read_text())
    assert {score["protocol"]["ties"] for score in printed["scores"]} == {"by id", "expected"}
    page = (tmp_path / "r" / "report.html").read_text()
    assert "data:image" in page
    assert "queries" in page


def test_evaluate_as_a_table(run, trained, tmp_path):
    ran = run("evaluate", trained, "--top", 20, "--into", tmp_path, "--gallery", 0, "--cache", tmp_path / "c")
    assert ran.code == 0
    for words in ("mAP@20", "paper", "strict", "asymmetric", "distinct codes", "found best"):
        assert words in ran.out


def test_evaluate_measures_the_label_layer(run, trained, tmp_path):
    given = ("--into", tmp_path, "--gallery", 0, "--cache", tmp_path / "c")
    ran = run("evaluate", trained, *given)
    layer = Report.from_json((tmp_path / "report.json").read_text()).labelling
    assert 0 < layer.error < 1
    for _, value, _ in layer.rows()[:4]:
        assert f"{value:.4f}" in ran.out
    assert len(layer.average_precision) == len(Hasher.load(trained, device="cpu").classes)
    page = (tmp_path / "report.html").read_text()
    assert "Label layer" in page
    assert "AP by probability" in page


def test_evaluate_refuses_other_labels(run, trained, tmp_path):
    from PIL import Image

    rows = ["image,labels"]
    for i in range(8):
        Image.new("RGB", (8, 8), (i, i, i)).save(tmp_path / f"{i}.png")
        rows.append(f"{i}.png,{'dog|cow' if i % 2 else 'moon'}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    ran = run("evaluate", trained, "--data", tmp_path / "labels.csv", "--into", tmp_path / "r")
    assert ran.code == 2
    assert "same labels" in ran.err


def test_evaluate_needs_a_run(run, tmp_path):
    ran = run("evaluate", tmp_path)
    assert ran.code == 2
    assert "hyphash train" in ran.err


@pytest.mark.slow
def test_evaluate_of_a_frozen_run_on_onnx_gives_the_same_figures(run, trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "run")
    assert run("export", folder).code == 0
    reports = [
        json.loads(run("evaluate", folder, "--device", device, "--into", tmp_path, "--gallery", 0, "--json").out)
        for device in ("cpu", "onnx")
    ]
    on_torch, on_onnx = ([scores["mean_average_precision"] for scores in report["scores"]] for report in reports)
    assert on_onnx == pytest.approx(on_torch, abs=0.02)


def test_evaluate_by_a_table_of_relevance(run, trained, tmp_path):
    from hyphash.hasher import Hasher

    classes, table = Hasher.load(trained, device="cpu").classes, tmp_path / "grades.csv"
    rows = [",".join(["", *classes]), *(",".join([name, *"1" * len(classes)]) for name in classes)]
    table.write_text("\n".join(rows))  # everything is relevant
    ran = run("evaluate", trained, "--relevance", table, "--into", tmp_path, "--gallery", 0, "--json")
    report = json.loads(ran.out)
    assert [score["mean_average_precision"] for score in report["scores"]] == pytest.approx([1.0] * 4)
    assert report["facts"]["relevance"] == str(table)
    ran = run("evaluate", trained, "--relevance", tmp_path / "none.csv", "--into", tmp_path)
    assert "none.csv: cannot be read" in ran.err


def test_relevance_may_be_the_tree_that_labels_make(run, trained, sample, tmp_path):
    """Where no label has levels, that is what labels share: the figures are the same."""
    options = ("--into", tmp_path, "--gallery", 0, "--json")
    plain, tree = (json.loads(run("evaluate", trained, *more, *options).out) for more in ((), ("--relevance", "tree")))
    assert tree["facts"]["relevance"] == "tree"
    assert [score["mean_average_precision"] for score in tree["scores"]] == pytest.approx(
        [score["mean_average_precision"] for score in plain["scores"]]
    )
    settings = ("--backbone", "timm:test_resnet", "--weights", "none", "--size", 32, "--mode", "frozen", "--epochs", 1)
    ran = run("train", sample, "--relevance", "tree", *settings, "--into", tmp_path / "run", "--device", "cpu")
    assert ran.code == 0, ran.err
    assert 'relevance = "tree"' in (tmp_path / "run" / "config.toml").read_text()


def test_every_length_of_nested_codes_is_measured(run, sample, tmp_path):
    settings = ("--backbone", "timm:test_resnet", "--weights", "none", "--size", 32, "--mode", "frozen", "--epochs", 1)
    ran = run("train", sample, "--lengths", "4,8,16", *settings, "--into", tmp_path / "run", "--device", "cpu")
    assert ran.code == 0, ran.err
    ran = run("evaluate", tmp_path / "run", "--top", 20, "--gallery", 0)
    assert "16 bits" in ran.out
    facts = json.loads((tmp_path / "run" / "report.json").read_text())["facts"]
    for bits in (4, 8):
        assert f"mAP of the first {bits} bits: {facts[f'mAP of the first {bits} bits']}" in ran.out
