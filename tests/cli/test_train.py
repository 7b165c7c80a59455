"""`hyphash train` and `hyphash tune`"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.numpy import load_file

from hyphash.config import read_config
from hyphash.hasher import Hasher

TINY = (
    "--backbone", "timm:test_resnet", "--weights", "none", "--size", "32", "--set", "hidden=16", "--device", "cpu",
    "--mode", "frozen", "--bits", "12",
)  # fmt: skip


def test_train_writes_a_run_and_says_where(run, sample, tmp_path):
    ran = run("train", sample, *TINY, "--epochs", 2, "--into", tmp_path / "run", "--cache", tmp_path / "c", "--json")
    assert ran.code == 0, ran.err
    record = json.loads(ran.out)
    assert record["run"] == str(tmp_path / "run")
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.toml", "hasher.toml", "weights.safetensors", "history.jsonl", "events"} <= written
    assert "checkpoint.safetensors" not in written
    assert record["last_epoch"]["validation"] is not None


def test_options_reach_the_config_and_override_a_file(run, sample, tmp_path):
    (tmp_path / "my.toml").write_text('bits = 20\nloss = "proxy"\nmomentum = 0.5\n')
    ran = run(
        "train", sample, *TINY, "--epochs", 1, "--into", tmp_path / "run", "--cache", tmp_path / "c",
        "--config", tmp_path / "my.toml", "--option", "margin=0.25", "--set", "weight_decay=0.01",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    config = read_config(tmp_path / "run" / "config.toml")
    assert (config.bits, config.loss, config.momentum, config.weight_decay) == (12, "proxy", 0.5, 0.01)
    assert config.loss_options == {"margin": 0.25}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--loss", "hyp3"], "did you mean 'hyp2'"),
        (["--option", "bta=1"], "bta"),
        (["--set", "momentm=1"], "did you mean 'momentum'"),
        (["--set", "momentum"], "key=value"),
        (["--bits", "300"], "256"),
        (["--mode", "half"], "fine-tune"),
        (["--backbone", "alexnett"], "did you mean 'alexnet'"),
        (["--backbone", "timm:resnet5O"], "timm has no model"),
        (["--weights", "nowhere.pth"], "nowhere.pth"),
        (["--weights", "alexnet=none"], "weights for 'alexnet', where the backbone is 'timm:test_resnet'"),
        (["--backbone", "timm:test_resnet+resnet18", "--weights", "a.pth"], "--weights resnet18=a.pth"),
        (["--backbone", "timm:test_resnet+resnet18", "--mode", "fine-tune"], "--mode frozen"),
        (["--backbone", "timm:test_resnet+timm:test_efficientnet", "--loss", "olah"], "a single --backbone"),
        (["--backbone", "resnet18+resnet18"], "names one twice"),
        (["--device", "cuda:99"], "--device cpu"),
    ],
)
def test_wrong_options_are_told_with_a_way_out(run, sample, tmp_path, options, words):
    ran = run("train", sample, *TINY, "--into", tmp_path / "run", *options)
    assert ran.code == 2
    assert words in ran.err
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_there_is_not_overwritten(run, sample, trained, tmp_path):
    before = (trained / "weights.safetensors").read_bytes()
    ran = run("train", sample, *TINY, "--into", trained, "--cache", tmp_path)
    assert ran.code == 2
    assert "--overwrite" in ran.err
    assert (trained / "weights.safetensors").read_bytes() == before


def test_no_data_and_nothing_to_resume(run, trained, tmp_path):
    assert run("train").code == 2
    assert "finished" in run("train", "--resume", trained).err
    assert run("train", "--resume", tmp_path).code == 2


@pytest.fixture(scope="module")
def stopped(sample, tmp_path_factory):
    """An unfinished run: all of its settings, and nothing trained yet."""
    from hyphash.config import Config
    from hyphash.training import resolve
    from hyphash.training.runs import open_run

    folder = tmp_path_factory.mktemp("stopped") / "run"
    settings = {"backbone": "timm:test_resnet", "weights": "none", "size": 32, "hidden": 16, "device": "cpu"}
    options = {"bits": 12, "loss_options": {"beta": 0.5, "margin": 0.2}, "epochs": 1, "mode": "frozen"}
    open_run(folder, resolve(Config(data=str(sample), **settings, **options)))
    return folder


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--bits", "24"], "bits is 12, not 24"),
        (["--epochs", "2"], "epochs is 1, not 2"),
        (["--loss", "proxy"], "loss is 'hyp2-ap', not 'proxy'"),
        (["--option", "beta=0.75"], "loss_options is {'beta': 0.5, 'margin': 0.2}, not {'beta': 0.75}"),
        (["--skip-missing"], "data_options is {}, not {'skip_missing': True}"),
        (["--set", "momentum=0.5"], "momentum is 0.9, not 0.5"),
        (["--set", "momentm=0.5"], "did you mean 'momentum'"),
        (["--config", "my.toml"], "bits is 12, not 48"),
        (["--into", "elsewhere"], "give no --into or --overwrite"),
        (["--overwrite"], "give no --into or --overwrite"),
        (["elsewhere"], "elsewhere'"),
    ],
)
def test_resume_refuses_settings_that_are_not_those_of_the_run(run, stopped, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text("bits = 48\nepochs = 1\n")
    before = {path.name: path.read_bytes() for path in stopped.iterdir()}
    ran = run("train", *options, "--resume", stopped)
    assert ran.code == 2
    assert words in ran.err
    assert {path.name: path.read_bytes() for path in stopped.iterdir()} == before


def test_resume_takes_settings_that_are_those_of_the_run(run, sample, stopped, tmp_path, monkeypatch):
    monkeypatch.chdir(sample.parent)
    (tmp_path / "my.toml").write_text("format = 1\nepochs = 1\n")
    folder = shutil.copytree(stopped, tmp_path / "run")
    ran = run(
        "train", sample.name, *TINY, "--option", "beta=0.5", "--set", "momentum=0.9", "--config", tmp_path / "my.toml",
        "--resume", folder, "--into", folder, "--cache", tmp_path / "c",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert (folder / "weights.safetensors").is_file()


def test_ctrl_c_during_the_last_save_is_too_late_to_stop(run, sample, tmp_path, monkeypatch):
    save = Hasher.save

    def interrupted(hasher, folder):
        os.kill(os.getpid(), signal.SIGINT)
        return save(hasher, folder)

    monkeypatch.setattr(Hasher, "save", interrupted)
    ran = run("train", sample, *TINY, "--epochs", 1, "--into", tmp_path / "run", "--cache", tmp_path / "c")
    assert ran.code == 0, ran.err
    assert f"trained: {tmp_path / 'run'}" in ran.out
    assert "--resume" not in ran.err


@pytest.mark.slow
def test_ctrl_c_saves_and_resume_goes_on_to_the_same_weights(run, sample, tmp_path):
    hyphash = [sys.executable, "-m", "hyphash", "train"]
    cache = ["--cache", str(tmp_path / "cache")]
    settings = [str(sample), *TINY, "--epochs", "80", "--batch", "10", "--validation", "0", *cache]
    history = tmp_path / "stopped" / "history.jsonl"
    with subprocess.Popen(
        [*hyphash, *settings, "--into", history.parent], stderr=subprocess.PIPE, text=True
    ) as process:
        patience = time.monotonic() + 120
        while not (history.is_file() and history.read_text().count("\n") > 3):
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < patience
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "--resume" in err
    assert (history.parent / "checkpoint.safetensors").is_file()

    threads = read_config(history.parent / "config.toml").threads
    torch.set_num_threads(3 - min(threads, 2))  # another number of them would add in another order
    assert run("train", "--resume", history.parent, *cache).code == 0
    torch.set_num_threads(threads)
    subprocess.run([*hyphash, *settings, "--into", tmp_path / "whole"], check=True)
    stopped, whole = (load_file(tmp_path / name / "weights.safetensors") for name in ("stopped", "whole"))
    assert stopped.keys() == whole.keys()
    for name, tensor in whole.items():
        assert (stopped[name] == tensor).all(), name
    numbers = [json.loads(line)["number"] for line in history.read_text().splitlines()]
    assert numbers == list(range(1, 81))


@pytest.mark.slow
def test_torchrun_trains_on_two_ranks_and_one_goes_on_after_a_stop(run, sample, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "hyphash", "train"]
    folder, cache = tmp_path / "run", ["--cache", str(tmp_path / "cache")]
    settings = [str(sample), *TINY, "--epochs", "400", "--batch", "10", "--validation", "0", *cache, "--into", folder]
    history = folder / "history.jsonl"
    with subprocess.Popen([*torchrun, *settings], stderr=subprocess.PIPE, text=True) as process:
        patience = time.monotonic() + 120
        while not (history.is_file() and history.read_text().count("\n") > 3):
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < patience
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)  # which it passes on to both
        _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "60 photos, 20 labels → 12 bits; frozen, cpu on 2 ranks" in err
    assert err.count("stopped; go on with: hyphash train --resume") == 1  # the first rank alone speaks
    assert (folder / "checkpoint.safetensors").is_file()
    before = history.read_text().splitlines()

    ran = run("train", "--resume", folder, *cache)
    assert ran.code == 0, ran.err
    lines = history.read_text().splitlines()
    assert lines[: len(before)] == before
    assert [json.loads(line)["number"] for line in lines] == list(range(1, 401))
    losses = [json.loads(line)["loss"] for line in lines]
    assert losses[-1] < 0.8 * losses[0]


def test_ranks_that_torchrun_starts_again_go_on(run, sample, tmp_path, monkeypatch):
    command = ("train", sample, *TINY, "--epochs", 2, "--into", tmp_path / "run", "--cache", tmp_path / "c")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")  # all of them were lost before there was a run
    assert run(*command).code == 0
    (tmp_path / "run" / "weights.safetensors").unlink()  # or in its midst
    assert run(*command).code == 0
    assert "finished" in run(*command).err
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT")
    assert "there is a run already" in run(*command).err


def test_auto_says_which_loss_it_took(run, sample, tmp_path):
    ran = run(
        *("train", sample, "--loss", "auto", "--bits", 12, "--epochs", 3, "--into", tmp_path / "run"),
        *("--backbone", "timm:test_resnet", "--weights", "none", "--size", 32, "--mode", "frozen", "--device", "cpu"),
        *("--set", "hidden=16", "--cache", tmp_path / "cache"),
    )
    assert ran.code == 0, ran.err
    assert "the best on held-out training photos" in ran.err
    assert "[tried]" in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.parametrize("flag", ["--resume", "--config"])
def test_a_program_that_a_file_names_as_its_loss_has_to_be_named_again(run, sample, tmp_path, flag):
    program = tmp_path / "evil.py"
    program.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Evil: ...\n")
    (tmp_path / "run").mkdir()
    config = tmp_path / "run" / "config.toml"
    config.write_text(f"data = {str(sample)!r}\nloss = '{program}:Evil'\n")
    given = tmp_path / "run" if flag == "--resume" else config
    assert "its loss is the program" in run("train", flag, given).err
    assert not (tmp_path / "ran").exists()
    assert (
        "must be a class derived from hyphash.losses.Loss"
        in run(
            "train",
            flag,
            given,
            "--loss",
            f"{program}:Evil",
            *(() if flag == "--resume" else ("--into", tmp_path / "new")),
        ).err
    )
    assert (tmp_path / "ran").exists()


SMALL = (
    *("--backbone", "timm:test_resnet", "--set", "weights=none", "--set", "size=32", "--set", "hidden=16"),
    *("--bits", 12, "--folds", 2, "--device", "cpu", "--jobs", 1),
)


@pytest.fixture
def questions(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text('title = "Small"\n[[question]]\nname = "rates"\nsettings = { epochs = 1, rate = [0.1, 0.2] }\n')
    return file


def test_a_file_of_questions_is_answered_once(run, sample, questions, tmp_path):
    command = ("tune", sample, "--trials", questions, "--into", tmp_path / "study", "--cache", tmp_path / "c", *SMALL)
    ran = run(*command)
    assert ran.code == 0, ran.err
    lines = (tmp_path / "study" / "trials.jsonl").read_text()
    assert [json.loads(line)["settings"]["rate"] for line in lines.splitlines()] == [0.1, 0.2]
    page = (tmp_path / "study" / "report.html").read_text()
    assert "<h1>Small" in page
    assert "rates" in page
    assert run(*command).code == 0
    assert (tmp_path / "study" / "trials.jsonl").read_text() == lines


@pytest.mark.slow
def test_a_search_ends_with_a_config_that_trains(run, sample, tmp_path, monkeypatch):
    from hyphash.cli import train as command
    from hyphash.tuning import search

    monkeypatch.setattr(search, "space_of", lambda _: {"rate": search.Range(0.01, 0.5), "epochs": (1, 2)})
    into = tmp_path / "study"

    class Clock:  # the time is up after three trials
        def monotonic(self):
            file = into / "trials.jsonl"
            return 1e9 if file.is_file() and len(file.read_text().splitlines()) >= 3 else 0.0

    monkeypatch.setattr(command, "time", Clock())
    ran = run("tune", sample, "--into", into, "--cache", tmp_path / "c", *SMALL, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert set(found) == {"config", "recipe", "found", "importance"}
    assert (into / "report.html").is_file()
    ran = run("train", sample, "--config", into / "config.toml", "--into", tmp_path / "run", "--cache", tmp_path / "c")
    assert ran.code == 0, ran.err


def test_a_file_that_asks_nothing_is_refused(run, sample, tmp_path):
    (tmp_path / "empty.toml").write_text('title = "nothing"\n')
    ran = run("tune", sample, "--trials", tmp_path / "empty.toml", "--cache", tmp_path / "c", *SMALL)
    assert ran.code == 2
    assert "asks nothing; write [[question]] tables" in ran.err
