"""Folders of runs: made once, replaced when asked for, resumed until they are finished."""

import copy
import json
import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import SGD, Adam, AdamW

from hyphash.config import Config, write_config
from hyphash.errors import ConfigError, MissingExtraError, RunError, StorageError
from hyphash.files import read_json_lines
from hyphash.hasher import WEIGHTS_FILE
from hyphash.training import resolve
from hyphash.training.ranks import SINGLE
from hyphash.training.runs import (
    CHECKPOINT_FILE,
    CONFIG_FILE,
    HISTORY_FILE,
    PROBLEMS_FILE,
    Epoch,
    History,
    ResumePoint,
    is_finished,
    load_checkpoint,
    open_run,
    read_run,
    resume_config,
    save_checkpoint,
)


def started(folder, config):
    open_run(folder, resolve(config))
    return folder


def test_a_torn_line_of_history_does_not_matter(run, settings, tmp_path):
    config = settings()
    folder = started(tmp_path / "run", config)
    run(config, folder, stop_after=6)
    with (folder / HISTORY_FILE).open("a") as file:
        file.write('{"number": 2, "of"')
    run(resume_config(folder), folder)
    assert [line["number"] for line in read_json_lines(folder / HISTORY_FILE)] == [1, 2, 3]


def test_an_existing_run_is_refused_and_stays(run, settings, tmp_path):
    config = settings(epochs=1)
    folder = started(tmp_path / "run", config)
    run(config, folder)
    files = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    with pytest.raises(RunError, match=r"there is a run already; continue it with --resume .*--overwrite.*--into"):
        open_run(folder, config)
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == files


def test_overwriting_starts_from_nothing(run, settings, tmp_path):
    config = settings(epochs=1)
    folder = started(tmp_path / "run", config)
    run(config, folder)
    (folder / PROBLEMS_FILE).write_text("{}\n")
    open_run(folder, replace(config, bits=24), overwrite=True)
    assert [p.name for p in folder.iterdir()] == [CONFIG_FILE]
    assert read_run(folder).bits == 24


def test_a_file_in_the_place_of_the_folder_is_refused(settings, tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(RunError, match="is a file; choose another folder"):
        open_run(tmp_path / "run", settings())
    with pytest.raises(StorageError, match="cannot be written"):
        open_run(tmp_path / "run" / "below", settings())


def test_a_finished_run_is_not_resumed(run, settings, tmp_path):
    config = settings(epochs=1)
    folder = started(tmp_path / "run", config)
    assert resume_config(folder) == resolve(config)  # not begun yet
    run(config, folder)
    with pytest.raises(RunError, match="this run is finished"):
        resume_config(folder)


def test_where_there_is_no_run_there_is_nothing_to_resume(tmp_path):
    with pytest.raises(RunError, match="there is no run here"):
        resume_config(tmp_path)


@pytest.mark.parametrize(
    ("files", "history", "finished"),
    [
        ((), [], False),
        ((WEIGHTS_FILE,), [], False),  # the first best epoch, and then a crash
        ((WEIGHTS_FILE,), [(1, 3)], False),
        ((WEIGHTS_FILE,), [(1, 3), (2, 3), (3, 3)], True),
        ((WEIGHTS_FILE, CHECKPOINT_FILE), [(1, 3), (2, 3), (3, 3)], False),
        ((CHECKPOINT_FILE,), [(1, 3), (2, 3), (3, 3)], False),
        ((WEIGHTS_FILE,), [(0, 0)], True),  # fitted, not trained
    ],
)
def test_a_run_is_finished_with_its_last_epoch_and_its_weights(settings, tmp_path, files, history, finished):
    folder = started(tmp_path / "run", settings(keep="best"))
    for name in files:
        (folder / name).touch()
    (folder / HISTORY_FILE).write_text("".join(json.dumps({"number": n, "of": of}) + "\n" for n, of in history))
    assert is_finished(folder) == finished


@pytest.mark.parametrize(("epochs", "finished"), [(0, True), (3, False)])
def test_a_run_of_no_epochs_is_finished_with_its_weights(settings, tmp_path, epochs, finished):
    folder = started(tmp_path / "run", settings(epochs=epochs))
    (folder / WEIGHTS_FILE).touch()
    assert is_finished(folder) == finished


def test_a_run_that_somebody_sent_runs_no_program_of_its_own(tmp_path):
    program = tmp_path / "evil.py"
    program.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Evil: ...\n")
    (tmp_path / "run").mkdir()
    write_config(tmp_path / "run" / CONFIG_FILE, Config(data="photos", loss=f"{program}:Evil"))
    with pytest.raises(ConfigError, match=r"its loss is the program .*evil.py:Evil; .* --loss .*evil.py:Evil"):
        resume_config(tmp_path / "run")
    assert resume_config(tmp_path / "run", loss=f"{program}:Evil").loss == f"{program}:Evil"
    assert read_run(tmp_path / "run").data == "photos"  # to evaluate it no loss is needed
    assert not (tmp_path / "ran").exists()


def test_a_run_with_links_is_not_gone_on_with(tmp_path):
    (tmp_path / "run").mkdir()
    write_config(tmp_path / "run" / CONFIG_FILE, Config(data="photos"))
    (tmp_path / "run" / HISTORY_FILE).symlink_to(tmp_path / "letter")
    with pytest.raises(StorageError, match="a link or a special file; a run holds"):
        resume_config(tmp_path / "run")


def test_drafts_of_checkpoints_are_swept(tmp_path):
    for name in ("old", "young"):
        (tmp_path / f".{CHECKPOINT_FILE}.{name}.draft").touch()
    os.utime(tmp_path / f".{CHECKPOINT_FILE}.old.draft", (1, 1))
    History(tmp_path, 0, SINGLE).close()
    assert [path.name for path in tmp_path.glob(".*.draft")] == [f".{CHECKPOINT_FILE}.young.draft"]


def test_mlflow_has_the_figures_of_a_run_and_goes_on_with_it(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    mlflow = pytest.importorskip("mlflow")
    for number in (1, 2):
        history = History(tmp_path, number - 1, SINGLE, "mlflow")
        history.add(Epoch(number, 2, 1 / number, 0.1, 3.0, validation=None))
        history.close()
    (known,) = mlflow.search_runs(output_format="list")
    assert known.info.run_name == tmp_path.name
    found = mlflow.MlflowClient().get_metric_history(known.info.run_id, "loss")
    assert [(each.step, each.value) for each in found] == [(1, 1.0), (2, 0.5)]


def test_weights_and_biases_has_them_too(tmp_path, monkeypatch):
    calls = []

    class Run:
        id = "abc"

        def log(self, figures, step):
            calls.append((figures, step))

        def finish(self):
            calls.append("finished")

    made = SimpleNamespace(init=lambda **options: (calls.append(options), Run())[1])
    monkeypatch.setitem(sys.modules, "wandb", made)
    for _ in range(2):
        history = History(tmp_path, 0, SINGLE, "wandb")
        history.add(Epoch(1, 1, 0.5, 0.1, 3.0, validation=0.7))
        history.close()
    assert [call["id"] for call in calls if isinstance(call, dict)] == [None, "abc"]
    assert calls[1:5] == [({"loss": 0.5}, 1), ({"rate": 0.1}, 1), ({"validation": 0.7}, 1), "finished"]


def test_a_log_that_is_not_installed_says_how_to(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"--log wandb needs .*hyphash\[wandb\]"):
        History(tmp_path, 0, SINGLE, "wandb")


# A checkpoint brings everything back, bit for bit, or says why not.

OPTIMIZERS = {
    "sgd": lambda groups: SGD(groups, momentum=0.9),
    "plain sgd": SGD,  # without any state of its own
    "adam": Adam,
    "adamw": lambda groups: AdamW(groups, amsgrad=True),
}


class Proxies(nn.Module):
    def __init__(self):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(4, 3))
        self.register_buffer("steps", torch.tensor(0))


def make(optimizer="sgd", *, width=5, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(width, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    loss = Proxies()
    groups = [{"params": list(model.parameters()), "lr": 0.1}, {"params": list(loss.parameters()), "lr": 0.01}]
    return model, loss, OPTIMIZERS[optimizer](groups)


def step(model, loss, optimizer, seed):
    images = torch.randn(8, 5, generator=torch.Generator().manual_seed(seed))
    value = (model(images) @ loss.proxies.T).square().mean()
    optimizer.zero_grad()
    value.backward()
    optimizer.step()
    loss.steps += 1


def everything(model, loss, optimizer):
    return copy.deepcopy((model.state_dict(), loss.state_dict(), optimizer.state_dict()["state"]))


def assert_same(a, b):
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, tuple):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    else:
        assert a == b


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("steps", [0, 3])
def test_everything_comes_back_and_goes_on_the_same(tmp_path, optimizer, steps):
    first = make(optimizer)
    for i in range(steps):
        step(*first, i)
    position = ResumePoint(epoch=3, step=2, loss_sum=1.1 + 2.2, seconds=0.1)
    save_checkpoint(tmp_path / "checkpoint", *first, position)
    second = make(optimizer, seed=1)
    assert load_checkpoint(tmp_path / "checkpoint", *second) == position
    assert_same(everything(*second), everything(*first))
    for made in (first, second):
        step(*made, 99)
    assert_same(everything(*second), everything(*first))


def test_the_file_holds_tensors_and_says_its_format(tmp_path):
    made = make("adam")
    step(*made, 0)
    save_checkpoint(tmp_path / "checkpoint", *made, ResumePoint())
    with safe_open(tmp_path / "checkpoint", framework="pt") as file:
        assert file.metadata()["format"] == "1"
        names = set(file.keys())
    assert {"model.0.weight", "model.1.running_mean", "loss.proxies", "loss.steps", "optimizer.0.exp_avg"} <= names
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


def test_saving_does_not_disturb_training(tmp_path):
    first, second = make("adamw"), make("adamw")
    for i in range(3):
        step(*first, i)
        step(*second, i)
        save_checkpoint(tmp_path / "checkpoint", *second, ResumePoint(step=i))
    assert_same(everything(*second), everything(*first))


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    made = make()
    save_checkpoint(tmp_path / "checkpoint", *made, ResumePoint(step=1))
    before = (tmp_path / "checkpoint").read_bytes()

    def full(number):
        raise OSError(28, "No space left on device")

    step(*made, 0)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(StorageError, match="the disk is full"):
            save_checkpoint(tmp_path / "checkpoint", *made, ResumePoint(step=2))
    assert (tmp_path / "checkpoint").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.999])
def test_a_cut_checkpoint_is_said_so(tmp_path, share):
    path = tmp_path / "checkpoint"
    save_checkpoint(path, *make(), ResumePoint())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(RunError, match=r"checkpoint: damaged checkpoint .*--overwrite"):
        load_checkpoint(path, *make())


@pytest.mark.parametrize("header", [{}, {"format": "2", "position": "{}"}])
def test_another_format_is_refused(tmp_path, header):
    path = tmp_path / "checkpoint"
    save_checkpoint(path, *make(), ResumePoint())
    save_file(load_file(path), path, header)
    with pytest.raises(RunError, match="this hyphash reads 1; start anew with --overwrite"):
        load_checkpoint(path, *make())


@pytest.mark.parametrize("position", [None, "{", '{"epok": 3}'])
def test_a_position_that_cannot_be_read_is_said_so(tmp_path, position):
    path = tmp_path / "checkpoint"
    save_checkpoint(path, *make(), ResumePoint())
    save_file(load_file(path), path, {"format": "1"} | ({"position": position} if position else {}))
    with pytest.raises(RunError, match="damaged checkpoint"):
        load_checkpoint(path, *make())


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    save_checkpoint(tmp_path / "checkpoint", *make(width=4), ResumePoint())
    with pytest.raises(RunError, match="was written by a run with other settings"):
        load_checkpoint(tmp_path / "checkpoint", *make(width=5))


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path):
    made = make("adam")
    step(*made, 0)
    save_checkpoint(tmp_path / "checkpoint", *made, ResumePoint())
    with pytest.raises(RunError, match="was written by a run with other settings"):
        load_checkpoint(tmp_path / "checkpoint", *make("sgd"))
