"""A step of training against the same step by hand; learning rates against their formulas."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.testing import assert_close

from hyphash.config import Config
from hyphash.losses import build
from hyphash.networks import Backbone, Head, Network
from hyphash.training.inputs import FeatureInputs
from hyphash.training.steps import build_optimizer, build_step, rate_factor, set_rates

SETTINGS = {
    "epochs": 10, "batch": 6, "optimizer": "sgd", "rate": 0.1, "loss_rate": 0.02, "momentum": 0.9,
    "weight_decay": 0.01, "schedule": "constant", "step_every": 3, "step_factor": 0.5, "clip": 0.0,
}  # fmt: skip


def config(**changes):
    return Config(**(SETTINGS | {"precision": "float32"} | changes))


def make(**changes):
    torch.manual_seed(0)
    head = Head(features=5, bits=4, classes=3, hidden=0)
    loss = build("hyp2", bits=4, classes=3)
    labels = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 1, 1], [1, 1, 0], [0, 0, 1], [1, 0, 1]], dtype=torch.float32)
    inputs = FeatureInputs(torch.randn(6, 5).half(), labels)
    settings = config(**changes)
    optimizer = build_optimizer(head, loss, settings)
    return head, loss, optimizer, inputs, build_step(head, loss, optimizer, inputs, settings)


@given(epoch=st.floats(0, 10))
def test_the_cosine_falls_from_one_to_zero(epoch):
    factor = rate_factor(config(schedule="cosine"), epoch)
    assert factor == pytest.approx(0.5 + 0.5 * math.cos(math.pi * epoch / 10))
    assert 0 <= factor <= 1
    assert rate_factor(config(schedule="cosine"), min(epoch + 0.5, 10)) <= factor


@pytest.mark.parametrize(
    ("epoch", "factor"), [(0, 1), (2.99, 1), (3, 0.5), (5.9, 0.5), (6, 0.25), (9, 0.125), (9.99, 0.125)]
)
def test_steps_halve_the_rate_every_few_epochs(epoch, factor):
    assert rate_factor(config(schedule="step"), epoch) == factor


def test_a_factor_of_zero_stops_learning():
    assert [rate_factor(config(schedule="step", step_factor=0.0), epoch) for epoch in (2, 3)] == [1, 0]


@given(epoch=st.floats(0, 10))
def test_a_constant_rate_is_constant(epoch):
    assert rate_factor(config(), epoch) == 1


def test_network_and_loss_have_rates_of_their_own():
    _, loss, optimizer, *_ = make()
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.02]
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 1]
    assert optimizer.param_groups[1]["params"][0] is loss.proxies
    set_rates(optimizer, config(schedule="step"), 4)
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.01]
    set_rates(optimizer, config(schedule="step"), 0)  # from the full rate each time, not from the one before
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.02]


def test_a_loss_without_parameters_has_no_group():
    optimizer = build_optimizer(nn.Linear(2, 2), build("pair", bits=4, classes=3), config())
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(("name", "kind"), [("sgd", SGD), ("adam", Adam), ("adamw", AdamW)])
def test_the_optimizer_is_the_one_asked_for(name, kind):
    optimizer = build_optimizer(nn.Linear(2, 2), nn.Linear(2, 2), config(optimizer=name))
    assert type(optimizer) is kind
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.01}
    assert name != "sgd" or {group["momentum"] for group in optimizer.param_groups} == {0.9}


def test_steps_are_those_of_sgd_by_hand():
    """v ← μv + g + λw, w ← w − ηv, for network and proxies alike."""
    head, loss, _, inputs, step = make()
    twin_head, twin_loss, *_ = make()
    parameters = [*twin_head.parameters(), *twin_loss.parameters()]
    rates, velocity = [0.1, 0.1, 0.02], [torch.zeros_like(p) for p in parameters]
    for rows in (torch.arange(6), torch.tensor([5, 1, 0]), torch.arange(4)):
        value = step(rows)
        naive = twin_loss(twin_head(inputs.values[rows].float()), inputs.labels[rows])
        assert_close(value, naive.detach())
        gradients = torch.autograd.grad(naive, parameters)
        with torch.no_grad():
            for p, v, g, rate in zip(parameters, velocity, gradients, rates, strict=True):
                v.mul_(0.9).add_(g + 0.01 * p)
                p.sub_(rate * v)
    for ours, theirs in zip([*head.parameters(), *loss.parameters()], parameters, strict=True):
        assert_close(ours, theirs)


def test_gradients_are_clipped_to_their_norm_over_all_parameters():
    changes = {"clip": 0.01, "momentum": 0.0, "weight_decay": 0.0, "loss_rate": 0.1}
    head, loss, _, _, step = make(**changes)
    parameters = [*head.parameters(), *loss.parameters()]
    before = [p.detach().clone() for p in parameters]
    step(torch.arange(6))
    moved = math.sqrt(sum((p - b).square().sum().item() for p, b in zip(parameters, before, strict=True)))
    assert moved == pytest.approx(0.1 * 0.01, rel=1e-3)


def test_half_precision_on_the_processor_trains_too():
    _, _, _, _, step = make(precision="bfloat16")
    values = [step(torch.arange(6)) for _ in range(20)]
    assert all(value.dtype == torch.float32 for value in values)
    assert values[-1] < values[0]


def test_the_network_is_in_training_mode_during_a_step():
    head, _, _, _, step = make()
    head.eval()
    step(torch.arange(6))
    assert head.training


@given(epoch=st.floats(0, 10), warm_up=st.floats(0.1, 5), schedule=st.sampled_from(["cosine", "step", "constant"]))
def test_rates_rise_evenly_while_warming_up_and_are_as_ever_then(epoch, warm_up, schedule):
    cold = rate_factor(config(schedule=schedule), epoch)
    warm = rate_factor(config(schedule=schedule, warm_up=warm_up), epoch)
    assert warm == pytest.approx(cold * min(epoch / warm_up, 1))


def whole_network():
    backbone = Backbone(nn.Linear(5, 4), nn.Linear(4, 4), features=4, map_features=4)
    return Network(backbone, Head(features=4, bits=4, classes=3, hidden=0), on_map=False)


def test_head_and_backbone_are_one_group_where_nothing_tells_them_apart():
    network = whole_network()
    for changes in ({}, {"backbone_rate": 1.0, "head_first": 0.0, "body_rate": 1.0}):
        optimizer = build_optimizer(network, build("hyp2", bits=4, classes=3), config(**changes))
        assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in network.parameters()]
    on_features = build_optimizer(network.head, build("pair", bits=4, classes=3), config(backbone_rate=0.1))
    assert [group["lr"] for group in on_features.param_groups] == [0.1]


def test_the_backbone_has_a_share_of_the_rate_and_begins_when_it_is_told():
    network, loss = whole_network(), build("hyp2", bits=4, classes=3)
    settings = config(backbone_rate=0.1, head_first=2.0, schedule="step")
    optimizer = build_optimizer(network, loss, settings)
    owned = [{id(p) for p in group["params"]} for group in optimizer.param_groups]
    assert owned == [{id(p) for p in module.parameters()} for module in (network.head, network.backbone, loss)]
    for epoch, rates in ((0, [0.1, 0, 0.02]), (1.99, [0.1, 0, 0.02]), (2, [0.1, 0.01, 0.02]), (3, [0.05, 0.005, 0.01])):
        set_rates(optimizer, settings, epoch)
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(rates)


def test_the_body_of_a_backbone_may_learn_more_slowly_than_the_layers_after_it():
    network, loss = whole_network(), build("hyp2", bits=4, classes=3)
    optimizer = build_optimizer(network, loss, config(body_rate=0.5, backbone_rate=0.1))
    owned = [{id(p) for p in group["params"]} for group in optimizer.param_groups]
    parts = (network.head, network.backbone.tail, network.backbone.body, loss)
    assert owned == [{id(p) for p in module.parameters()} for module in parts]
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 0.01, 0.005, 0.02])


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.9, True), (0.0, False)])
def test_nesterov_needs_momentum(momentum, nesterov):
    optimizer = build_optimizer(nn.Linear(2, 2), nn.Linear(2, 2), config(nesterov=True, momentum=momentum))
    assert {group["nesterov"] for group in optimizer.param_groups} == {nesterov}


def test_a_loss_of_two_views_sees_two_of_each_photo():
    head, loss, optimizer, inputs, _ = make()
    views = torch.stack([inputs.values, inputs.values + 1], 1)
    loss.two_views, seen = True, []
    loss.forward = lambda outputs, _: (seen.append(outputs), outputs[0].sum() + outputs[1].sum())[1]
    build_step(head, loss, optimizer, FeatureInputs(inputs.values, inputs.labels, views), config())(torch.arange(6))
    first, second = seen[0]
    assert first.shape == second.shape == (6, 4)
    assert not torch.equal(first, second)
