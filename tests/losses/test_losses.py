"""What the losses share, and losses from outside the package."""

import sys
from importlib.metadata import Distribution
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from hyphash.errors import ConfigError
from hyphash.losses import Loss, build, heads, in_float32, losses, names, option_defaults, parts_of
from hyphash.registry import Registry

MY_LOSS = '''
import torch
from torch import Tensor, nn
from hyphash.losses import Loss

class MyLoss(Loss):
    """The outputs themselves."""

    def __init__(self, *, bits: int, classes: int, scale: float = 2.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.scale * outputs.square().mean()

class Fields(Loss):
    """Options are fields, and parameters are made of them."""

    scale: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.places = nn.Parameter(self.scale * torch.ones(self.classes, self.bits))

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return (labels @ self.places * outputs).mean()

class Both(MyLoss):
    """One with an `__init__` of its own beneath another."""

    def __init__(self, *, bits: int, classes: int, power: int = 3, scale: float = 2.0) -> None:
        super().__init__(bits=bits, classes=classes, scale=scale)
        self.power = power

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.scale * outputs.pow(self.power).mean()

class Plain(nn.Module):
    """No Loss."""

not_a_class = 3
'''


def test_a_loss_from_the_users_file(tmp_path):
    (tmp_path / "my_loss.py").write_text(MY_LOSS)
    loss = build(f"{tmp_path}/my_loss.py:MyLoss", bits=3, classes=2, scale=4.0)
    assert loss(torch.ones(2, 3), torch.eye(2)).item() == 4
    loss = build(f"{tmp_path}/my_loss.py:Fields", bits=3, classes=2, scale=5.0)
    assert loss(torch.ones(2, 3), torch.eye(2)).item() == 5
    assert loss.state_dict().keys() == {"places"}
    assert option_defaults(type(loss)) == {"scale": 2.0}
    loss = build(f"{tmp_path}/my_loss.py:Both", bits=3, classes=2)
    assert loss(2 * torch.ones(2, 3), torch.eye(2)).item() == 16
    assert option_defaults(type(loss)) == {"power": 3, "scale": 2.0}


def test_a_loss_from_the_users_file_is_checked(tmp_path):
    (tmp_path / "my_loss.py").write_text(MY_LOSS)
    with pytest.raises(ConfigError, match="no option 'scal'; it takes scale"):
        build(f"{tmp_path}/my_loss.py:MyLoss", bits=3, classes=2, scal=4.0)
    for wrong in ("Plain", "not_a_class"):
        with pytest.raises(ConfigError, match=r"must be a class derived from hyphash\.losses\.Loss"):
            build(f"{tmp_path}/my_loss.py:{wrong}", bits=3, classes=2)
    with pytest.raises(ConfigError, match="defines no 'Other'"):
        build(f"{tmp_path}/my_loss.py:Other", bits=3, classes=2)
    with pytest.raises(ConfigError, match="there is no file"):
        build(f"{tmp_path}/other.py:MyLoss", bits=3, classes=2)


def test_a_loss_from_another_package(tmp_path, monkeypatch):
    """A distribution that declares an entry point in `hyphash.losses` is found by name."""
    (tmp_path / "their_package.py").write_text(MY_LOSS)
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hyphash.losses]\ntheirs = their_package:MyLoss\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert any(d.metadata["Name"] == "their-package" for d in Distribution.discover(path=[str(tmp_path)]))
    fresh: Registry[type[Loss]] = Registry("loss", package="hyphash.losses", entry_points="hyphash.losses")
    found = fresh["theirs"]
    assert found is sys.modules["their_package"].MyLoss


def test_an_unknown_name_gets_a_hint():
    with pytest.raises(ConfigError, match="did you mean 'hyp2'"):
        build("hyp", bits=12, classes=5)


def test_names_and_their_options():
    assert "hyp2" in names()
    assert option_defaults(type(build("hyp2", bits=12, classes=5))) == {"beta": 1.0, "margin": None}


class Spy(Loss):
    """Remembers what it was given."""

    def forward(self, outputs, labels):
        self.given = outputs, labels
        return (outputs[0] if isinstance(outputs, tuple) else outputs).sum()


def test_forward_gets_full_precision_and_labels_of_the_same_kind():
    spy = Spy()
    with torch.autocast("cpu", torch.bfloat16):
        spy(torch.ones(2, 3, dtype=torch.bfloat16), torch.eye(2, dtype=torch.uint8))
        outputs, labels = spy.given
        assert outputs.dtype == labels.dtype == torch.float32
        spy((torch.ones(2, 3, dtype=torch.float16), torch.ones(2)), torch.eye(2, dtype=torch.bool))
        assert spy.given[0][0].dtype == torch.float32
    spy(torch.ones(2, 3, dtype=torch.float64), torch.eye(2))
    assert spy.given[0].dtype == spy.given[1].dtype == torch.float64


def test_losses_see_float32_whatever_the_network_computes_in():
    half, whole = torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.int64)
    assert in_float32(half).dtype == torch.float32
    assert [part.dtype for part in in_float32((half, whole, (half,))[:2])] == [torch.float32, torch.int64]
    assert in_float32((half, (half,)))[1][0].dtype == torch.float32


# Nested codes: a loss over prefixes, the longest half of it, and what shorter ones learn from longer ones.

CLASSES = 5
NESTED = [name for name in names() if not losses[name].fitted and name != "dqn"]


def naive_distillation(z, lengths) -> float:
    relations = []
    for bits in lengths:
        products = z[:, :bits] @ z[:, :bits].T
        relations.append(products / np.linalg.norm(products, axis=1, keepdims=True))
    return sum(np.mean((a - b) ** 2) for a, b in pairwise(relations))


def test_it_is_the_losses_of_the_prefixes_and_the_distillation(batch):
    outputs, labels = batch
    nested = build("hyp2", bits=12, lengths=(3, 6, 12), classes=CLASSES).double()
    alone = [part(outputs[:, :bits], labels).item() for part, bits in zip(nested.parts, (3, 6, 12), strict=True)]
    expected = np.dot((1 / 4, 1 / 4, 1 / 2), alone) + 0.1 / 3 * naive_distillation(outputs.numpy(), (3, 6, 12))
    assert nested(outputs, labels).item() == pytest.approx(expected)
    assert nested.anchors() is nested.parts[-1].proxies
    assert [part.proxies.shape[1] for part in nested.parts] == [3, 6, 12]


def test_one_length_is_the_loss_itself(batch):
    nested = build("dhn", bits=12, lengths=(12,), classes=CLASSES)
    assert_close(nested(*batch), build("dhn", bits=12, classes=CLASSES)(*batch))


def test_longer_codes_learn_nothing_from_shorter_ones(batch):
    z = batch[0].clone().requires_grad_()
    (nested,) = torch.autograd.grad(build("dhn", bits=12, lengths=(4, 12), classes=CLASSES)(z, batch[1]), z)
    (alone,) = torch.autograd.grad(build("dhn", bits=12, classes=CLASSES)(z, batch[1]), z)
    assert_close(2 * nested[:, 4:], alone[:, 4:])
    assert not torch.allclose(2 * nested[:, :4], alone[:, :4])


@pytest.mark.parametrize("name", NESTED)
def test_any_loss_is_nested_behind_its_head(name, batch):
    torch.manual_seed(0)
    nested = build(name, bits=8, lengths=(3, 8), classes=CLASSES)
    head = heads[nested.head](features=9, bits=8, classes=CLASSES, dropout=0.0)
    for part in parts_of(nested, Loss):
        part.set_progress(0.5)
    value = nested(head(torch.randn(16, 9, *((3, 3) if nested.needs_map else ()))), batch[1])
    value.backward()
    assert value.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())


def test_two_views_are_cut_alike(batch):
    torch.manual_seed(0)
    nested, student = build("dhd", bits=12, lengths=(4, 12), classes=CLASSES).double(), batch[0] + 1
    alone = sum(
        part((batch[0][:, :bits], student[:, :bits]), batch[1]).item()
        for part, bits in zip(nested.parts, (4, 12), strict=True)
    )
    value = nested((batch[0], student), batch[1]).item()
    assert value == pytest.approx((alone + 0.1 * naive_distillation(batch[0].numpy(), (4, 12))) / 2)


@pytest.mark.parametrize("name", ["itq", "dqn"])
def test_what_has_no_prefixes_is_refused(name):
    with pytest.raises(ConfigError, match="leave out --lengths"):
        build(name, bits=8, lengths=(3, 8), classes=CLASSES)
