"""Runs on the CPU with a tiny network: done, skipped, stopped and continued, failed, and side by side."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from hyphash.benchmarks import BENCHMARKS, DATASETS
from hyphash.benchmarks.runner import Event, Place, Work, Worker, execute
from hyphash.benchmarks.runs import Choices, Results, Weights, plan
from hyphash.datasets import load_dataset
from hyphash.evaluation import Rankings, evaluate_codes
from hyphash.training import Epoch
from hyphash.training.runs import CHECKPOINT_FILE, CONFIG_FILE

TINY = Choices(backbone="timm:test_resnet", size=32, epochs=2, bits=(12,), seeds=(0,), settings={"batch": 12})


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def runs(*only, name="nuswide", **choices):
    planned = plan(
        BENCHMARKS[name], DATASETS["nuswide"], replace(TINY, only=only, **choices), {TINY.backbone: Weights("none")}
    )
    return [p.run for p in planned]


@pytest.fixture
def place(nuswide_tree, tmp_path):
    splits = load_dataset(nuswide_tree, "nuswide")
    return Place(splits, Results(tmp_path / "results"), data=str(nuswide_tree), device="cpu", cache=tmp_path / "cache")


def test_a_run_is_trained_measured_and_kept(place):
    (run,) = runs("hyp2")
    events = list(execute([run], place))
    assert [event.kind for event in events] == ["epoch", "epoch", "finished"]
    record = place.results.record(run)
    assert record == events[-1].record
    assert (record.epoch, record.photos, record.alongside, record.precision) == (2, 24, 1, "float32")
    assert record.config["bits"] == 12
    assert str(place.data) not in json.dumps(record.to_table())
    codes, splits = place.results.codes(record), place.splits
    again = evaluate_codes(
        Rankings(codes.queries, codes.database, splits.queries.labels, splits.database.labels), top=5000
    )
    assert again.mean_average_precision("paper") == record.map("paper")
    assert again.mean_average_precision("strict") == record.map("strict")
    assert not (place.results.work / run.hash).exists()  # the weights are gone


def test_a_quantiser_is_ranked_its_own_way(place):
    (run,) = runs("dqn")
    record = list(execute([run], place))[-1].record
    assert {scores.ranked_by for scores in record.report.scores} == {"asymmetric"}
    assert place.results.codes(record).outputs is None


def test_a_stopped_run_goes_on_to_the_same_codes(place, tmp_path):
    (run,) = runs("hyp2", epochs=3)
    seen = Counter()
    for event in execute([run], place, stop=lambda: seen.total() > 0):  # in the middle of the second epoch
        seen[event.kind] += 1
    assert seen == {"epoch": 1}
    folder = place.results.work / run.hash
    assert (folder / CHECKPOINT_FILE).is_file()
    assert (folder / CONFIG_FILE).is_file()
    assert [event.kind for event in execute([run], place)] == ["epoch", "epoch", "finished"]
    whole = replace(place, results=Results(tmp_path / "other"))
    list(execute([run], whole))
    assert (
        place.results.codes(place.results.record(run)).database
        == whole.results.codes(whole.results.record(run)).database
    )


def test_a_run_that_died_before_it_was_measured_is_not_trained_again(place, monkeypatch):
    (run,) = runs("hyp2")

    def die(*_):
        raise MemoryError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(Worker, "_measure", die)
        failed = list(execute([run], place))[-1]
    assert failed.kind == "failed"
    assert "no room" in failed.reason
    assert [event.kind for event in execute([run], place)] == ["finished"]


def test_a_failure_does_not_stop_the_others(place):
    bad, good = runs("dhn")[0], runs("hyp2")[0]
    bad = replace(bad, config=replace(bad.config, loss_options={"nonsense": 1.0}))
    events = [event for event in execute([bad, good], place) if event.kind != "epoch"]
    assert [event.kind for event in events] == ["failed", "finished"]
    assert "has no option 'nonsense'" in events[0].reason
    assert place.results.record(bad) is None


def test_a_watched_run_has_a_curve_and_the_same_codes(place):
    watched = runs("hyp2", name="convergence")[0]
    watched = replace(watched, watch=1)
    plain = replace(watched, watch=0)
    records = [event.record for event in execute([watched, plain], place) if event.record]
    assert [point.epoch for point in records[0].curve] == [1, 2]
    assert records[0].curve[-1].paper == pytest.approx(records[0].map("paper"))
    assert records[0].curve[-1].strict == pytest.approx(records[0].map("strict"))
    assert records[0].curve[-1].seconds == pytest.approx(records[0].seconds["training"])
    assert records[1].curve == ()
    codes = [place.results.codes(record) for record in records]
    assert codes[0].database == codes[1].database  # looking changes nothing


def test_weights_can_be_kept(place):
    (run,) = runs("hyp2")
    list(execute([run], replace(place, keep_weights=True)))
    assert (place.results.work / run.hash / "weights.safetensors").is_file()


@pytest.mark.slow
def test_side_by_side_gives_the_same_codes(place, tmp_path):
    some = runs("hyp2", "proxy-anchor")
    list(execute(some, place))
    beside = replace(place, jobs=2, results=Results(tmp_path / "beside"))
    kinds = [event.kind for event in execute(some, beside)]
    assert sorted(kinds) == ["epoch"] * 4 + ["finished"] * 2
    for run in some:
        one, two = (results.record(run) for results in (place.results, beside.results))
        assert place.results.codes(one).database == beside.results.codes(two).database
        assert (one.alongside, two.alongside) == (1, 2)


@pytest.mark.slow
def test_a_process_that_dies_costs_its_run_alone(place, tmp_path):
    fatal = tmp_path / "fatal.py"
    fatal.write_text(
        "import os\n"
        "from hyphash.losses import Loss\n"
        "class Fatal(Loss):\n"
        "    def __init__(self, *, bits, classes):\n"
        "        os._exit(3)\n"
    )
    good = runs("hyp2")[0]
    bad = replace(good, config=replace(good.config, loss=f"{fatal}:Fatal", loss_options={}))
    events = [event for event in execute([bad, good], replace(place, jobs=2)) if event.kind != "epoch"]
    assert {event.run.config.loss: event.kind for event in events} == {bad.config.loss: "failed", "hyp2": "finished"}
    assert next(event.reason for event in events if event.kind == "failed") == "its process died (exit code 3)"


def test_time_left_is_a_matter_of_steps():
    (short,), (long,) = runs("hyp2", epochs=10), runs("proxy-anchor", epochs=30)
    left = Work([short, long], photos=24)
    assert str(left) == "time left unknown"
    left.note(Event(short, "epoch", epoch=Epoch(5, 10, 0.1, 0.1, 1.0)))
    assert left.share == pytest.approx(5 / 40)
    left.note(Event(short, "finished"))
    assert left.share == pytest.approx(10 / 40)
    left.began -= 60
    assert str(left) == "about 3 minutes left"


def test_records_are_plain_json(place):
    (run,) = runs("hyp2")
    list(execute([run], place))
    values = json.loads((place.results.root / "runs.jsonl").read_text())
    assert values["format"] == "hyphash-run"
    assert set(values["versions"]) == {"hyphash", "python", "torch", "torchvision", "numpy"}
    assert np.isfinite(values["loss"])
