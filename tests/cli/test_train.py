"""`hyphash train`"""

import json
import signal
import subprocess
import sys
import time

import pytest
from safetensors.numpy import load_file

from hyphash.config import read_config

TINY = (
    "--backbone", "resnet18", "--weights", "none", "--size", "32", "--set", "hidden=16", "--device", "cpu",
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


def test_ctrl_c_saves_and_resume_goes_on_to_the_same_weights(sample, tmp_path):
    # Each part in a process of its own: with another number of threads, sums come out in another order.
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

    subprocess.run([*hyphash, "--resume", history.parent, *cache], check=True)
    subprocess.run([*hyphash, *settings, "--into", tmp_path / "whole"], check=True)
    stopped, whole = (load_file(tmp_path / name / "weights.safetensors") for name in ("stopped", "whole"))
    assert stopped.keys() == whole.keys()
    for name, tensor in whole.items():
        assert (stopped[name] == tensor).all(), name
    numbers = [json.loads(line)["number"] for line in history.read_text().splitlines()]
    assert numbers == list(range(1, 81))


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
