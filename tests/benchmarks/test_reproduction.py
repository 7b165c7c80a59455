"""From a name to a page: what is missing, what is done, what is shown, with and without the data."""

import json
from dataclasses import replace
from itertools import product

import pytest
import torch

from hyphash.benchmarks import BENCHMARKS
from hyphash.benchmarks.reproduction import Reproduction, whole_page
from hyphash.benchmarks.runs import Choices, Results
from hyphash.errors import DataError, WeightsError

TINY = Choices(backbone="resnet18", size=32, epochs=1, only=("hyp2", "dhn"), seeds=(0,), settings={"batch": 12})


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ask(name, into, **options):
    return Reproduction(benchmark=BENCHMARKS[name], results=Results(into), device="cpu", **options)


def tiny(name, into, tree, **options):
    return ask(name, into, data=(str(tree),), weights=("none",), choices=TINY, unchecked=True, **options)


def do(reproduction):
    work = reproduction.start()
    return [event.kind for event in work.events if event.kind != "epoch"]


@pytest.mark.slow
def test_a_drawn_tree_of_nus_wide_runs_end_to_end(nuswide_tree, tmp_path, monkeypatch):
    monkeypatch.setenv("HYPHASH_CACHE", str(tmp_path / "cache"))
    once = tiny("nuswide", tmp_path, nuswide_tree)
    once = replace(once, choices=replace(TINY, bits=(12,)))
    assert do(once) == ["finished"] * 2
    page, path = once.write()
    assert path == tmp_path / "nuswide" / "report.html"
    names = [table.name for table in page.tables]
    assert names == [f"nuswide-resnet18-{kind}" for kind in ("map-paper", "map-strict", "cost")]  # not the paper's net
    for name in names:
        for kind in ("md", "csv", "json"):
            assert (tmp_path / "nuswide" / f"{name}.{kind}").stat().st_size > 50
    for kind in ("png", "svg"):
        assert (tmp_path / "nuswide" / f"nuswide-resnet18-map.{kind}").stat().st_size > 1000
    rows = json.loads((tmp_path / "nuswide" / "nuswide-resnet18-map-paper.json").read_text())["rows"]
    assert {row["method"] for row in rows} == {"dhn", "hyp2"}
    text = path.read_text()
    assert "Protocol paper@5,000" in text
    assert "Protocol strict@5,000" in text
    for file in tmp_path.rglob("*.*"):
        if file.suffix in (".json", ".md", ".csv", ".html") and "cache" not in file.parts:
            assert str(nuswide_tree) not in file.read_text(), file  # results name no place of this machine

    # again, without the data and without naming weights or epochs: all is there
    again = ask("nuswide", tmp_path, choices=Choices(backbone="resnet18", only=("hyp2", "dhn"), bits=(12,), seeds=(0,)))
    work = again.start()
    assert work.runs == ()
    assert work.notes == ("all 2 runs are done",)
    assert again.page().tables[0].rows == page.tables[0].rows
    # more runs than are done: shown with what there is
    more = replace(again, choices=replace(again.choices, bits=()))
    assert more.start().notes == ("6 of 8 runs are not done; name the dataset with --data to do them",)
    assert more.page().notes == ("6 of 8 runs are not done yet",)
    # the paper's own network has no runs here, but the others are shown beside it
    beside = ask("nuswide", tmp_path, choices=replace(again.choices, backbone=None))
    assert beside.page().sections[0].title == "NUS-WIDE, resnet18 at 32 pixels"


@pytest.mark.slow
def test_a_drawn_tree_of_voc_runs_end_to_end(voc_tree, tmp_path, monkeypatch):
    monkeypatch.setenv("HYPHASH_CACHE", str(tmp_path / "cache"))
    voc = tiny("voc2007", tmp_path, voc_tree)
    voc = replace(voc, choices=replace(TINY, bits=(16,), only=("hyp2", "olah")))
    assert do(voc) == ["finished"] * 2
    table = voc.page().tables[0]
    assert [row[0] for row in table.rows] == ["OLAH", "HyP²"]
    assert table.above.startswith("Protocol paper@5,011")


def test_data_that_are_not_the_paper_s_are_refused_before_training(nuswide_tree, tmp_path):
    checked = replace(tiny("nuswide", tmp_path, nuswide_tree), unchecked=False)
    with pytest.raises(DataError, match=r"not the NUS-WIDE of the paper: 24 photos in the part 'train'.*--unchecked"):
        checked.start()
    assert not (tmp_path / "settings.json").exists()


@pytest.mark.parametrize(
    ("name", "hint"), [("flickr25k", "mirflickr25k.zip"), ("nuswide", "Groundtruth.zip"), ("voc2012", "VOCdevkit")]
)
def test_missing_data_say_what_to_download(name, hint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=rf"data/{name}: .* is not here.*{hint}"):
        ask(name, tmp_path).start()
    with pytest.raises(DataError, match="elsewhere"):
        ask(name, tmp_path, data=(f"{name}=elsewhere",)).start()


def test_a_folder_may_be_called_as_its_dataset_is(nuswide_tree, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nuswide").symlink_to(nuswide_tree)
    for data in ("nuswide", "nuswide=nuswide", "."):
        work = ask("nuswide", tmp_path / "results", data=(data,), weights=("none",), choices=TINY, unchecked=True)
        assert len(work.start().runs) == 8


def test_lists_without_photos_are_no_training_data(nuswide_tree, tmp_path):
    lists = tmp_path / "lists"
    lists.mkdir()
    for name in ("train", "test", "database"):
        (lists / f"{name}.txt").write_bytes((nuswide_tree / f"{name}.txt").read_bytes())
    with pytest.raises(DataError, match="label lists without photos"):
        tiny("nuswide", tmp_path / "results", lists).start()


def test_weights_must_be_named_again_to_train_on(nuswide_tree, tmp_path):
    results = ask("nuswide", tmp_path).results
    kept = {"weights": {"name": "a.pth", "digest": "0123"}, "epochs": 1, "size": 32, "settings": {}}
    results.keep_settings({"nuswide/resnet18": kept})
    later = replace(tiny("nuswide", tmp_path, nuswide_tree), weights=())
    assert later.planned[0].run.weights.digest == "0123"
    with pytest.raises(WeightsError, match=r"start from the weights a\.pth .*name that file with --weights"):
        do(later)


def test_one_page_shows_all_that_was_measured_and_names_the_rest(filled, tmp_path):
    page = whole_page(filled("convergence"))
    assert {section.title.partition(":")[0] for section in page.sections} == {"Flickr-25k"}
    assert any("convergence" in section.title for section in page.sections)
    assert any(note.startswith("not here: theorem") for note in page.notes)
    with pytest.raises(DataError, match="no results are there"):
        whole_page(Results(tmp_path / "nothing"))


def test_datasets_are_counted_and_the_others_explained(shared_data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = ask("datasets", tmp_path, data=(f"nuswide={shared_data / 'nuswide'}",))
    assert one.start().notes == ()
    page = one.page()
    assert "as published" in {row[-1] for row in page.tables[0].rows}
    assert [note.partition(":")[0] for note in page.notes] == ["Flickr-25k", "VOC-2007", "VOC-2012"]
    assert "mirflickr25k.zip" in page.notes[0]
    assert str(shared_data) not in json.dumps(one.results.facts("dataset-"))
    # without the data it is still known
    assert ask("datasets", tmp_path).page().tables[0].rows == page.tables[0].rows


def test_complexity_is_measured_once_a_device(tmp_path, monkeypatch):
    from hyphash.benchmarks import facts

    asked = []

    def step_time(name, batch, device, _seconds):
        asked.append((name, batch, device.type))
        return 1e-5 * batch**2

    monkeypatch.setattr(facts, "step_time", step_time)
    for _ in range(2):
        ask("complexity", tmp_path).start()
    assert asked == list(product(facts.COMPLEXITY, facts.BATCHES, ["cpu"]))
    table = ask("complexity", tmp_path).page().tables[0]
    hyp2 = next(row for row in table.rows if row[0] == "HyP²")
    assert hyp2[1] == "O(MC + ηM²)"
    assert hyp2[5] == pytest.approx(4)  # quadratic


def test_the_theorem_s_page(tmp_path, monkeypatch):
    from hyphash.benchmarks import facts

    rows = facts.theorem_2(steps=2)
    monkeypatch.setattr(facts, "theorem_2", lambda: rows)
    one = ask("theorem", tmp_path)
    one.start()
    page, _ = one.write()
    assert [table.name for table in page.tables] == ["theorem-1", "theorem-2"]
    assert {drawn.name for drawn in page.figures} == {"theorem-1", "theorem-2-12", "theorem-2-48"}
