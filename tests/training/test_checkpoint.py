"""A checkpoint brings everything back, bit for bit, or says why not."""

import copy

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import SGD, Adam, AdamW

from hyphash.errors import RunError, StorageError
from hyphash.training.checkpoint import ResumePoint, load_checkpoint, save_checkpoint

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
