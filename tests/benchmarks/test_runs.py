"""Runs are known by what determines their result, and records survive the way to disk and back."""

from dataclasses import fields, replace

import numpy as np
import pytest

from hyphash.benchmarks.runs import DETERMINES, Record, Results, Run, Weights
from hyphash.config import Config
from hyphash.errors import DataError, WeightsError
from hyphash.hasher import unit
from hyphash.training import resolve

NO_PART = {  # of the result: where things lie, how often something is looked at or saved, and speed
    *("data", "weights", "device", "evaluate_every", "top", "precision", "compile", "checkpoint_every"),
}


def config(**settings):
    return resolve(Config(**{"dataset": "flickr25k", "backbone": "resnet18", "mode": "fine-tune"} | settings))


def test_every_setting_is_known_to_matter_or_not():
    assert {field.name for field in fields(Config)} == set(DETERMINES) | NO_PART


@pytest.mark.parametrize("name", DETERMINES)
def test_the_hash_depends_on_all_that_determines_the_result(name):
    run = Run(config=config())
    other = {
        **{"dataset": "nuswide", "data_options": {"labels": 24}, "loss": "proxy", "loss_options": {"beta": 0.5}},
        **{"backbone": "resnet34", "mode": "frozen", "optimizer": "adam", "schedule": "cosine", "keep": "best"},
    }
    value = other.get(name) or (getattr(run.config, name) or 0) / 2 + 0.2
    changed = replace(run.config)
    object.__setattr__(changed, name, value)  # whatever its limits are
    assert Run(config=changed).hash != run.hash


def test_the_hash_does_not_depend_on_machine_or_place(tmp_path):
    run = Run(config=config())
    for name, value in {"data": "/elsewhere", "device": "cpu", "precision": "float32", "checkpoint_every": 1.0}.items():
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


def test_defaults_written_out_are_the_same_run():
    implied, written = (Run(config=config(loss_options=options)) for options in ({}, {"beta": 1}))
    assert implied.hash == written.hash
    assert Run(config=config(), watch=5).hash != Run(config=config()).hash


def test_a_record_survives_the_way_to_disk(tmp_path, made_up):
    run = Run(config=config(bits=13), weights=Weights("a.pth", "abc"), watch=2)
    record, codes = made_up(run)
    results = Results.at(tmp_path)
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
    assert not list((tmp_path / "runs").glob(".*"))


def test_damaged_records_are_refused(tmp_path, made_up):
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(DataError, match=r"x\.json: damaged record .* delete it to run it again"):
        Record.read(path)
    text = made_up(Run(config=config()))[0].to_json()
    path.write_text(text.replace('"version": 1', '"version": 9', 1))
    with pytest.raises(DataError, match="of another version"):
        Record.read(path)


def test_codes_may_be_gone(tmp_path, made_up):
    run = Run(config=config())
    record, codes = made_up(run)
    results = Results.at(tmp_path)
    results.keep(record, codes)
    (tmp_path / "codes" / f"{run.hash}.npz").unlink()
    assert results.codes(record) is None
    assert results.record(run) == record
