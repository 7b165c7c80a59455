"""`hyphash evaluate` and `hyphash compare`"""

import json
import shutil
import tomllib

import numpy as np
import pytest

from hyphash import benchmarks
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
    layer = Report.parse((tmp_path / "report.json").read_text()).labelling
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


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Features of the sample, computed once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def compare(run, sample, cache, tmp_path):
    """Compare two methods in few steps: `compare(folder, …)` → the tables as JSON, and what was said."""

    def call(into, *options):
        ran = run(
            *("compare", "--data", sample, "--losses", "hyp2,dhn", "--bits", 12, "--into", tmp_path / into, "--json"),
            *("--backbone", "timm:test_resnet", "--weights", "none", "--mode", "frozen", "--device", "cpu"),
            *("--watch", 1, "--set", "size=32", "--set", "epochs=2", "--set", "hidden=16"),
            *("--cache", cache),
            *options,
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
        {"bits", "loss", "recipe", "mAP", "mean", "by_seed", "spread", "standard_error", "interval"}
        | {"behind", "behind_interval", "seconds", "converged"}
    ] * 2
    assert all(row["interval"][0] < row["mAP"] < row["interval"][1] for row in first["comparison-paper"])
    lines = (tmp_path / "once" / "runs.jsonl").read_text()
    assert compare("once") == first
    assert (tmp_path / "once" / "runs.jsonl").read_text() == lines
    assert all((tmp_path / "once" / f"{name}.png").is_file() for name in ("seconds", "convergence-12"))
    assert "mAP@1,000, protocol paper" in (tmp_path / "once" / "report.html").read_text()


@pytest.mark.slow
def test_another_depth_is_measured_and_not_taken_from_earlier_runs(compare, tmp_path):
    deep, shallow = compare("both"), compare("both", "--top", 3)
    assert scores(shallow) == scores(compare("alone", "--top", 3))
    assert scores(shallow) != scores(deep)
    assert scores(compare("both")) == scores(deep)


@pytest.mark.slow
def test_a_loss_of_ones_own_is_compared(compare, tmp_path):
    own = tmp_path / "mine.py"
    own.write_text("from hyphash.losses.pairs import DHN\n\n\nclass Mine(DHN):\n    adapted = True\n")
    rows = compare("own", "--losses", f"hyp2,{own}:Mine")["comparison-paper"]
    assert {row["loss"] for row in rows} == {"hyp2", f"{own}:Mine"}
    assert rows == compare("own", "--losses", f"{own}:Mine,hyp2")["comparison-paper"]


def test_a_folder_belongs_to_one_dataset(compare, run, sample, tmp_path):
    compare("one", "--losses", "hyp2")
    other = tmp_path / "labels.csv"
    other.write_text("photo,labels\na.jpg,dog\n")
    ran = run("compare", "--data", other, "--losses", "hyp2", "--into", tmp_path / "one")
    assert ran.code == 2
    assert "holds a comparison on" in ran.err
    assert "no loss is called 'hyp3'" in run("compare", "--data", sample, "--losses", "hyp3").err


def test_a_method_has_a_row_for_each_recipe(compare, run, sample, tmp_path, monkeypatch):
    tuned = '[frozen.dhn]\nstudy = "here"\nloss_options = { weight = 0.5 }\nsettings = { rate = 0.5, hidden = 8 }\n'
    monkeypatch.setattr("hyphash.benchmarks.runs.TUNED", benchmarks.read_tuned(tomllib.loads(tuned)))
    tables = compare("both", "--recipe", "both")
    assert {(row["loss"], row["recipe"]) for row in tables["comparison-paper"]} == {
        *[("hyp2", "house"), ("hyp2", "published"), ("dhn", "house"), ("dhn", "published"), ("dhn", "tuned")]
    }
    configs = [json.loads(line)["config"] for line in (tmp_path / "both" / "runs.jsonl").read_text().splitlines()]
    (chosen,) = [config for config in configs if config["loss_options"]]
    assert (chosen["loss"], chosen["loss_options"], chosen["rate"]) == ("dhn", {"weight": 0.5}, 0.5)
    assert chosen["hidden"] == 16  # as the user chose
    monkeypatch.setattr("hyphash.benchmarks.runs.TUNED", {})
    given = ("compare", "--data", sample, "--losses", "hyp2,dhn", "--into", tmp_path / "none", "--mode", "frozen")
    assert "none of hyp2, dhn has settings that were tuned" in run(*given, "--recipe", "tuned").err
    assert "--recipe is one of house, published, tuned, both" in run(*given, "--recipe", "best").err


@pytest.fixture(scope="module")
def longer(sample, cache, tmp_path_factory):
    """A run of 24 bits with another loss."""
    from hyphash import train

    folder = tmp_path_factory.mktemp("runs") / "longer"
    train(
        sample, into=folder, cache=cache, bits=24, backbone="timm:test_resnet", weights="none", size=32, hidden=16,
        epochs=3, device="cpu", mode="frozen", loss="dhn",
    )  # fmt: skip
    return folder


@pytest.fixture
def two_runs(trained, longer, tmp_path):
    """A run of 12 bits, and one of 24 with another loss."""
    return shutil.copytree(trained, tmp_path / "a"), shutil.copytree(longer, tmp_path / "b")


def test_two_runs_are_measured_and_compared_query_by_query(run, two_runs, sample, cache, tmp_path):
    options = ("--top", 20, "--cache", cache)
    ran = run("compare", *two_runs, *options, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert (found["A"]["bits"], found["B"]["bits"], found["B"]["loss"]) == (12, 24, "dhn")
    reports = [json.loads((folder / "report.json").read_text()) for folder in two_runs]
    for i, protocol in enumerate(found["protocols"]):
        means = [report["scores"][i]["mean_average_precision"] for report in reports]
        assert [protocol["before"], protocol["after"]] == means
        gap = protocol["difference"]
        assert gap["mean"] == pytest.approx(means[1] - means[0], abs=1e-3)
        assert gap["interval"][0] <= gap["mean"] <= gap["interval"][1]
        assert 0 < gap["p"] <= 1
        assert gap["gain"] + gap["lose"] <= found["queries"] == 12
        assert all(query["query"].endswith(".jpg") for query in protocol["queries"])
    before = (two_runs[0] / "report.json").stat().st_mtime_ns
    ran = run("compare", *two_runs, *options)
    for words in ("A: ", "12 bits, ", "24 bits, dhn", "paper@20", "95 % interval", "queries gain"):
        assert words in ran.out
    for protocol in found["protocols"]:
        gap = protocol["difference"]
        verdict = f"{'AB'[gap['mean'] > 0]} ranks better" if gap["sure"] else "the difference may be chance"
        assert f"{protocol['protocol']}: {verdict} (p = {gap['p']:.2g})" in ran.out
    assert (two_runs[0] / "report.json").stat().st_mtime_ns == before  # measured once
    files = [folder / "report.json" for folder in two_runs]
    again = json.loads(run("compare", *files, "--json").out)
    assert again["protocols"][0]["difference"] == found["protocols"][0]["difference"]
    for folder in two_runs:  # the photos may be gone by now
        text = (folder / "config.toml").read_text()
        (folder / "config.toml").write_text(text.replace(str(sample), str(tmp_path / "gone")))
    again = json.loads(run("compare", *two_runs, *options, "--json").out)
    assert again["protocols"][0]["difference"] == found["protocols"][0]["difference"]
    assert isinstance(again["protocols"][0]["queries"][0]["query"], int)


def test_another_depth_is_measured_anew_and_the_report_stays(run, two_runs, cache):
    a, cache = two_runs[0], ("--cache", cache)
    assert run("evaluate", a, "--top", 5, "--gallery", 0, *cache).code == 0
    shallow = (a / "report.json").read_text()
    found = json.loads(run("compare", *two_runs, "--top", 20, "--json", *cache).out)
    assert {protocol["top"] for protocol in found["protocols"]} == {20}
    assert (a / "report.json").read_text() == shallow
    ran = run("compare", a / "report.json", two_runs[1] / "report.json")
    assert ran.code == 2
    assert "protocols: paper@5, strict@5 and paper@20, strict@20" in ran.err


def test_a_report_of_other_weights_is_made_anew(run, two_runs, cache):
    a, b = two_runs
    assert run("evaluate", a, "--top", 20, "--gallery", 0, "--cache", cache).code == 0
    report = json.loads((a / "report.json").read_text())
    report["facts"]["hasher"] = "of a run that was overwritten"
    report["scores"][0]["mean_average_precision"] = 0.123
    (a / "report.json").write_text(json.dumps(report))
    found = json.loads(run("compare", a, b, "--top", 20, "--json", "--cache", cache).out)
    assert found["protocols"][0]["before"] != 0.123


def test_compare_says_what_it_takes(run, trained, sample, tmp_path):
    for given in ([trained], [trained, trained, trained], [trained, trained, "--data", sample], []):
        ran = run("compare", *given)
        assert ran.code == 2
        assert "--data and --losses" in ran.err
    assert "hyphash train" in run("compare", tmp_path, trained).err


@pytest.fixture
def arrays(trained):
    """Codes and labels of the run's photos, as another program would write them."""
    from hyphash.datasets import load_dataset
    from hyphash.hasher import Hasher
    from hyphash.training.runs import read_run

    config, hasher = read_run(trained), Hasher.load(trained, device="cpu")
    splits = load_dataset(config.data, config.dataset, **config.data_options)
    found = {}
    for name, part in (("query", splits.queries), ("database", splits.database)):
        found |= {f"{name}_codes": hasher.encode(part).signs(), f"{name}_labels": part.labels}
    return found


def test_codes_made_elsewhere_have_a_row_beside_methods(compare, run, sample, arrays, tmp_path):
    np.savez(tmp_path / "hyp2.npz", **arrays)
    tables = compare("own", tmp_path / "hyp2.npz", "--top", 20)
    rows = {row["loss"]: row for row in tables["comparison-strict"]}
    assert rows.keys() == {"hyp2", "dhn", "hyp2 (codes)"}  # a name of their own, whatever the file is called
    first, own = tables["comparison-strict"][0], rows["hyp2 (codes)"]
    assert (own["bits"], own["seconds"], own["converged"]) == (12, None, None)
    assert own["interval"][0] < own["mAP"] < own["interval"][1]
    assert own["behind"] == pytest.approx(first["mAP"] - own["mAP"])
    alone = json.loads(run("compare", tmp_path / "hyp2.npz", tmp_path / "hyp2.npz", "--top", 20, "--json").out)
    assert own["mAP"] == pytest.approx(alone["protocols"][1]["before"], abs=1e-4)
    np.savez(tmp_path / "other.npz", **arrays | {"query_labels": 1 - arrays["query_labels"]})
    given = ("compare", tmp_path / "other.npz", "--data", sample, "--losses", "hyp2", "--into", tmp_path / "no")
    assert "its labels are not those of" in run(*given).err


def test_codes_made_elsewhere_are_compared_with_a_run_and_with_each_other(run, trained, arrays, tmp_path):
    np.savez(tmp_path / "same.npz", **arrays)
    np.savez(tmp_path / "worse.npz", **arrays | {"query_codes": -arrays["query_codes"]})
    copy = shutil.copytree(trained, tmp_path / "run")
    options = ("--json", "--top", 20, "--device", "cpu")
    for one, sign in (("same", 0), ("worse", -1)):
        ran = run("compare", copy, tmp_path / f"{one}.npz", *options)
        assert ran.code == 0, ran.err
        found = json.loads(ran.out)
        assert np.sign([each["difference"]["mean"] for each in found["protocols"]]).tolist() == [sign, sign]
        assert found["B"]["loss"] == one
    assert run("compare", tmp_path / "same.npz", tmp_path / "worse.npz", *options).code == 0
    np.savez(tmp_path / "other.npz", **arrays | {"query_labels": 1 - arrays["query_labels"]})
    assert "cannot be compared" in run("compare", copy, tmp_path / "other.npz", *options).err
    np.savez(tmp_path / "bare.npz", query_codes=arrays["query_codes"])
    assert "give query_codes, query_labels" in run("compare", copy, tmp_path / "bare.npz", *options).err
