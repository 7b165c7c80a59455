"""Runs are known by what determines their result, and records survive the way to disk and back."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest

from hyphash.benchmarks import BENCHMARKS, DATASETS, read_tuned, runs
from hyphash.benchmarks.reproduction import Reproduction
from hyphash.benchmarks.runs import DETERMINES, LATER, Choices, Record, Results, Run, Weights, plan
from hyphash.config import BEFORE, Config
from hyphash.errors import ConfigError, DataError, WeightsError
from hyphash.hasher import unit
from hyphash.training import resolve

NO_PART = {  # of the result: where things lie, how often something is looked at or saved, and the machine
    *("data", "weights", "weights_by_backbone", "device", "threads", "tried", "evaluate_every", "compile"),
    *("checkpoint_every", "label_layer", "log", "recipe"),  # the settings that a recipe chose are
}


def config(**settings):
    return resolve(Config(**{"dataset": "flickr25k", "backbone": "resnet18", "mode": "fine-tune"} | settings))


def test_every_setting_is_known_to_matter_or_not():
    assert {field.name for field in fields(Config)} == {*DETERMINES, *LATER} | NO_PART


@pytest.mark.parametrize("name", [*DETERMINES, *LATER])
def test_the_hash_depends_on_all_that_determines_the_result(name):
    run = Run(config=config())
    other = {
        **{"dataset": "nuswide", "data_options": {"labels": 24}, "loss": "proxy", "loss_options": {"beta": 0.5}},
        **{"backbone": "resnet34", "mode": "frozen", "optimizer": "adam", "schedule": "cosine", "keep": "best"},
        **{"top": 100, "precision": "float32", "batches": "cut", "augment": "crop", "nesterov": True},
    }
    value = other.get(name) or (getattr(run.config, name) or 0) / 2 + 0.2
    changed = replace(run.config)
    object.__setattr__(changed, name, value)  # whatever its limits are
    assert Run(config=changed).hash != run.hash


def test_the_hash_does_not_depend_on_machine_or_place(tmp_path):
    run = Run(config=config())
    for name, value in {"data": "/elsewhere", "device": "cpu", "checkpoint_every": 1.0}.items():
        assert Run(config=replace(run.config, **{name: value})).hash == run.hash
    files = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        files.append(tmp_path / folder / f"{folder}.pth")
        files[-1].write_bytes(b"the same weights")
    first, second = (Run(config=run.config, weights=Weights.of(str(file))) for file in files)
    assert first.hash == second.hash != run.hash
    files[1].write_bytes(b"other weights")
    assert Run(config=run.config, weights=Weights.of(str(files[1]))).hash != first.hash
    with pytest.raises(WeightsError, match="there is no such weights file"):
        Weights.of(str(tmp_path / "none.pth"))


def test_the_weights_of_each_of_several_backbones_count_by_content(tmp_path):
    (tmp_path / "a.pth").write_bytes(b"some weights")
    (tmp_path / "b.pth").write_bytes(b"some weights")
    (tmp_path / "c.pth").write_bytes(b"other weights")

    def weights(**files):
        named = {name: str(tmp_path / file) for name, file in files.items()}
        return Weights.of_config(replace(config(), weights_by_backbone=named))

    assert Weights.of_config(config()) == Weights("default")
    first = weights(resnet18="a.pth", resnet34="c.pth")
    assert first.name == "default resnet18=a.pth resnet34=c.pth"
    digests = [first.digest, weights(resnet34="c.pth", resnet18="b.pth").digest]
    assert digests[0] == digests[1]
    others = {weights(resnet18="c.pth", resnet34="a.pth").digest, weights(resnet18="a.pth").digest}
    assert len({first.digest, *others}) == 3
    assert "" not in others


def test_defaults_written_out_are_the_same_run():
    implied, written = (Run(config=config(loss_options=options)) for options in ({}, {"beta": 1}))
    assert implied.hash == written.hash
    assert Run(config=config(), watch=5).hash != Run(config=config()).hash


def test_a_setting_that_did_not_exist_is_no_part_of_the_hash_while_it_means_what_was_done_before():
    before = Run(config=config(**BEFORE))
    without = [name for name in (*DETERMINES, *LATER) if name not in BEFORE]
    assert before.hash == before._hash(tuple(without)) == before._hash((*without, *BEFORE))
    assert before.hash != Run(config=config()).hash


def test_an_option_that_came_later_changes_the_hash_where_it_is_used():
    runs = [Run(config=config(loss="dlbhc", loss_options=o)) for o in ({}, {"reduction": "mean"}, {"reduction": "sum"})]
    assert runs[0].hash == runs[1].hash != runs[2].hash


def test_a_record_survives_the_way_to_disk(tmp_path, made_up):
    run = Run(config=config(bits=13), weights=Weights("a.pth", "abc"), watch=2)
    record, codes = made_up(run)
    results = Results(tmp_path)
    assert results.record(run) is None
    results.keep(record, codes)
    again = results.record(run)
    assert again == record
    assert again.map("paper") == record.report.scores[0].mean_average_precision
    assert again.photos_per_second == pytest.approx(100 * 6 / 3)
    kept = results.codes(again)
    assert kept.queries == codes.queries
    assert kept.database == codes.database
    np.testing.assert_allclose(kept.outputs, unit(codes.outputs), atol=1e-3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["codes", "runs.jsonl"]
    assert Results(tmp_path).record(run) == record


def test_each_record_is_parsed_once_and_those_of_others_are_seen(tmp_path, made_up, monkeypatch):
    parsed = []
    real = Record.parse
    monkeypatch.setattr(Record, "parse", lambda text, where: parsed.append(where) or real(text, where))
    runs = [Run(config=config(seed=seed)) for seed in (0, 1)]
    mine, other = Results(tmp_path), Results(tmp_path)
    mine.keep(*made_up(runs[0]))
    assert [mine.record(run) is not None for run in (*runs, *runs)] == [True, False] * 2
    other.keep(*made_up(runs[1]))
    assert [mine.record(run) is not None for run in (*runs, *runs)] == [True, True] * 2
    assert parsed == [f"{tmp_path / 'runs.jsonl'}:{line}" for line in (1, 2)]


def older(record, run, **changed):
    """The record as it was written when the hash lacked `top` and `precision`."""
    return replace(record, hash=run.earlier_hash, config=dict(record.config) | changed)


@pytest.mark.parametrize("in_one_file", [False, True])
def test_records_of_an_earlier_version_are_found_if_they_were_measured_alike(tmp_path, made_up, in_one_file):
    run = Run(config=config())
    record, codes = made_up(run)
    before = older(record, run)
    if in_one_file:
        Results(tmp_path).keep(before, codes)
    else:  # one file a run
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs" / f"{before.hash}.json").write_text(json.dumps(before.to_table(), indent=1))
    results = Results(tmp_path)
    assert results.record(run) == before
    for other in ({"top": 100}, {"precision": "float32"}):
        assert results.record(Run(config=config(**other))) is None
    results.keep(*made_up(Run(config=config(top=100))))  # and stands beside it
    assert results.record(Run(config=config(top=100))).config["top"] == 100
    assert results.record(run) == before


def test_damaged_records_are_refused(tmp_path, made_up):
    run, path = Run(config=config()), tmp_path / "runs.jsonl"
    path.write_text("{}\n")
    with pytest.raises(DataError, match=r"runs\.jsonl:1: damaged record .* delete it to run it again"):
        Results(tmp_path).record(run)
    text = json.dumps(made_up(run)[0].to_table()) + "\n"
    path.write_text(text + text.replace('"version": 1', '"version": 9', 1))
    with pytest.raises(DataError, match=r"runs\.jsonl:2: a record of another version"):
        Results(tmp_path).record(run)
    path.write_text(text[: len(text) // 2])  # torn, or under way
    assert Results(tmp_path).record(run) is None


def test_codes_may_be_gone(tmp_path, made_up):
    run = Run(config=config())
    record, codes = made_up(run)
    results = Results(tmp_path)
    results.keep(record, codes)
    (tmp_path / "codes" / f"{run.hash}.npz").unlink()
    assert results.codes(record) is None
    assert results.record(run) == record


# ── which runs ───────────────────────────────────────────────────────────────────────────────────────────


def hashes(name, dataset="flickr25k", **choices):
    return [p.run.hash for p in plan(BENCHMARKS[name], DATASETS[dataset], Choices(**choices), {})]


def test_flickr_has_three_seeds_of_hyp2_and_one_of_the_others():
    planned = plan(BENCHMARKS["flickr25k"], DATASETS["flickr25k"], Choices(epochs=60), {})
    assert len(planned) == 4 * (10 + 3)
    assert len({p.run.hash for p in planned}) == len(planned)
    run = planned[-1].run
    assert (run.config.loss, run.config.loss_options, run.config.seed) == ("hyp2", {"beta": 1.0}, 2)
    recipe = {"rate": 0.01, "loss_rate": 0.001, "batch": 100, "step_every": 10, "step_factor": 0.5, "momentum": 0.9}
    assert {name: getattr(run.config, name) for name in recipe} == recipe  # the paper's
    assert (run.config.epochs, run.config.validation, run.config.mode) == (60, 0.0, "fine-tune")


def test_runs_are_shared_between_benchmarks():
    table, ablation = set(hashes("flickr25k")), set(hashes("ablation"))
    assert len(table & ablation) == 12  # HyP² with β = 1
    assert set(hashes("spread")) <= ablation
    assert set(hashes("topn")) == table
    assert set(hashes("gallery")) <= table
    assert set(hashes("tsne")) <= table | ablation
    assert not set(hashes("convergence")) & table  # those are watched on the way


def test_voc_runs_with_the_network_of_the_code_and_of_the_text():
    planned = plan(BENCHMARKS["voc2007"], DATASETS["voc2007"], Choices(only=("hyp2",), bits=(16,), seeds=(0,)), {})
    assert [(p.run.config.backbone, p.run.config.size) for p in planned] == [("inception_v3", 448), ("googlenet", 224)]
    assert {p.run.config.loss_options["beta"] for p in planned} == {0.5}
    assert {p.run.config.rate for p in planned} == {0.02}


def test_choices_narrow(tmp_path):
    planned = plan(
        BENCHMARKS["ablation"],
        DATASETS["flickr25k"],
        Choices(only=("hyp2", "pair"), bits=(12,), seeds=(5,), backbone="resnet18", size=64, settings={"batch": 7}),
        {},
    )
    assert [p.method.key for p in planned] == ["pair", "hyp2-0.5", "hyp2-0.75", "hyp2-1", "hyp2-1.25"]
    config = planned[0].run.config
    assert (config.backbone, config.size, config.batch, config.seed, config.bits) == ("resnet18", 64, 7, 5, 12)
    with pytest.raises(ConfigError, match="no method 'hyp3' here; there are pair, proxy"):
        hashes("ablation", only=("hyp3",))
    with pytest.raises(ConfigError, match="unknown setting 'bach'"):
        hashes("ablation", settings={"bach": 7})
    with pytest.raises(ConfigError, match="topn has no dataset 'voc2007'; it has flickr25k, nuswide"):
        _ = Reproduction(benchmark=BENCHMARKS["topn"], results=Results(tmp_path), dataset="voc2007").setting


def test_a_tuned_method_has_a_row_beside_its_own(monkeypatch):
    tuned = {"study": "a study", "loss_options": {"beta": 0.25}, "settings": {"rate": 0.003, "schedule": "cosine"}}
    monkeypatch.setattr(runs, "TUNED", read_tuned({"fine-tune": {"hyp2": tuned}}))
    choices = Choices(only=("hyp2", "dhn"), bits=(12,), seeds=(0,), recipes=("house", "tuned"))
    planned = plan(BENCHMARKS["flickr25k"], DATASETS["flickr25k"], choices, {})
    assert [p.method.title for p in planned] == ["DHN", "HyP²", "HyP², tuned on validation"]
    tuned = planned[-1].run.config
    assert (tuned.loss_options, tuned.rate, tuned.schedule) == ({"beta": 0.25}, 0.003, "cosine")
    usual = plan(BENCHMARKS["flickr25k"], DATASETS["flickr25k"], replace(choices, recipes=("house",)), {})
    assert [p.run.hash for p in planned[:2]] == [p.run.hash for p in usual]
