"""HyP² and its ablations: naive twins, the paper's gradient, and what must not change the loss."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.testing import assert_close

from hyphash.coding import margin
from hyphash.losses import build
from hyphash.losses.hyp2 import HyP2, Pair, Proxy, ProxyPair, proxy_term

BITS, CLASSES = 12, 5


def cosine(a, b) -> float:
    return float(np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)))


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def naive_proxy(outputs, labels, proxies, zeta: float) -> float:
    pull, push = [], []
    for v, y in zip(outputs, labels, strict=True):
        for c, p in enumerate(proxies):
            if y[c] == 1:
                pull.append(1 - cosine(v, p))
            else:
                push.append(max(cosine(v, p) - zeta, 0))
    return mean(pull) + mean(push)


def naive_apart(outputs, labels, zeta: float) -> float:
    several = [i for i, y in enumerate(labels) if sum(y) > 1]
    return mean([
        max(cosine(outputs[i], outputs[j]) - zeta, 0)
        for i in several for j in several if labels[i] @ labels[j] == 0
    ])  # fmt: skip


def naive_pair(outputs, labels, zeta: float) -> float:
    pull, push = [], []
    for i in range(len(outputs)):
        for j in range(len(outputs)):
            if i != j and labels[i] @ labels[j] > 0:
                pull.append(1 - cosine(outputs[i], outputs[j]))
            elif i != j:
                push.append(max(cosine(outputs[i], outputs[j]) - zeta, 0))
    return mean(pull) + mean(push)


@pytest.fixture
def hyp2() -> HyP2:
    torch.manual_seed(0)
    return HyP2(bits=BITS, classes=CLASSES, beta=0.7).double()


def test_hyp2_matches_its_twin(hyp2, batch):
    outputs, labels = batch
    v, y, p = outputs.numpy(), labels.numpy(), hyp2.proxies.detach().numpy()
    zeta = margin(classes=CLASSES, bits=BITS)
    apart = naive_apart(v, y, zeta)
    assert apart > 0
    assert hyp2(*batch).item() == pytest.approx(naive_proxy(v, y, p, zeta) + 0.7 * apart)


def test_proxy_pair_and_proxy_pair_match_their_twins(batch):
    outputs, labels = (t.numpy() for t in batch)
    zeta = margin(classes=CLASSES, bits=BITS)
    proxy, both = Proxy(bits=BITS, classes=CLASSES).double(), ProxyPair(bits=BITS, classes=CLASSES).double()
    assert proxy(*batch).item() == pytest.approx(naive_proxy(outputs, labels, proxy.proxies.detach().numpy(), zeta))
    pairs = naive_pair(outputs, labels, zeta)
    assert Pair(bits=BITS, classes=CLASSES)(*batch).item() == pytest.approx(pairs)
    proxies = naive_proxy(outputs, labels, both.proxies.detach().numpy(), zeta)
    assert both(*batch).item() == pytest.approx(proxies + pairs)


def test_gradient_in_the_cosines_to_proxies_is_the_papers(batch):
    """With unit outputs along the axes, the products with 'proxies' are any cosines we like."""
    _, labels = batch
    n = len(labels)
    torch.manual_seed(1)
    to_proxy = (2 * torch.rand(n, CLASSES, dtype=torch.float64) - 1).requires_grad_()
    zeta = 0.2
    proxy_term(torch.eye(n, dtype=torch.float64), to_proxy.T, labels, zeta).backward()
    expected = torch.zeros(n, CLASSES, dtype=torch.float64)
    for i in range(n):
        for j in range(CLASSES):
            if labels[i, j] == 1:
                expected[i, j] = -1 / (labels == 1).sum()
            elif to_proxy[i, j] > zeta:
                expected[i, j] = 1 / (labels == 0).sum()
    assert_close(to_proxy.grad, expected)


def test_gradient_of_the_whole_loss_is_the_papers_through_the_chain_rule(hyp2, batch):
    """∂L/∂v = Σ_j ∂L/∂cos(v, p_j) · ∂cos/∂v + Σ_j ∂L/∂cos(v_i, v_j) · ∂cos/∂v, the factors from Eq. grad."""
    outputs, labels = batch[0].clone().requires_grad_(), batch[1]
    hyp2(outputs, labels).backward()

    v = batch[0].clone().requires_grad_()
    p = hyp2.proxies.detach().clone().requires_grad_()
    to_proxy, to_other = normalize(v) @ normalize(p).T, normalize(v) @ normalize(v).T
    zeta, several = hyp2.zeta, labels.sum(1) > 1
    irrelevant = (labels @ labels.T == 0) & several[:, None] & several
    by_proxy = torch.where(
        labels == 1, -1 / (labels == 1).sum(), torch.where(to_proxy > zeta, 1 / (labels == 0).sum(), 0.0)
    )
    by_other = torch.where(irrelevant & (to_other > zeta), hyp2.beta / irrelevant.sum(), 0.0)
    expected = torch.autograd.grad([to_proxy, to_other], [v, p], [by_proxy.double(), by_other.double()])
    assert_close(outputs.grad, expected[0])
    assert_close(hyp2.proxies.grad, expected[1])


def test_no_third_term_where_no_pair_is_unrelated(hyp2, batch):
    outputs, labels = batch[0], batch[1].clone()
    labels[:, 0] = 1  # all share a label
    hyp2.beta = 100.0
    loss = hyp2(outputs, labels)
    proxies = naive_proxy(outputs.numpy(), labels.numpy(), hyp2.proxies.detach().numpy(), hyp2.zeta)
    assert loss.item() == pytest.approx(proxies)


def test_no_third_term_where_photos_have_one_label(hyp2, single):
    with_pairs = hyp2(*single)
    hyp2.beta = 0.0
    assert_close(with_pairs, hyp2(*single))


@pytest.mark.parametrize("name", ["hyp2", "proxy", "pair", "proxy-pair"])
def test_a_batch_of_one(name, batch):
    torch.manual_seed(0)
    loss = build(name, bits=BITS, classes=CLASSES).double()
    outputs = batch[0][:1].clone().requires_grad_()
    value = loss(outputs, batch[1][:1])
    value.backward()
    assert outputs.grad.isfinite().all()
    if name == "pair":
        assert value.item() == 0
    else:
        proxies = naive_proxy(batch[0][:1].numpy(), batch[1][:1].numpy(), loss.proxies.detach().numpy(), loss.zeta)
        assert value.item() == pytest.approx(proxies)


@pytest.mark.parametrize("name", ["hyp2", "proxy", "pair", "proxy-pair"])
def test_bfloat16_is_close_to_float64(name, batch):
    torch.manual_seed(0)
    loss = build(name, bits=BITS, classes=CLASSES)
    outputs = batch[0].to(torch.bfloat16).requires_grad_()
    value = loss(outputs, batch[1])
    value.backward()
    assert value.item() == pytest.approx(loss.double()(batch[0], batch[1]).item(), rel=0.02)
    assert outputs.grad.isfinite().all()


@pytest.mark.parametrize("name", ["hyp2", "proxy", "pair", "proxy-pair"])
def test_what_must_not_change_the_loss(name, batch):
    """A rotation of outputs and proxies together, the lengths of outputs and proxies, the order of the batch."""
    torch.manual_seed(0)
    loss, (outputs, labels) = build(name, bits=BITS, classes=CLASSES).double(), batch
    expected = loss(outputs, labels)
    lengths = torch.rand(len(outputs), 1, dtype=torch.float64) + 0.5
    assert_close(loss(outputs * lengths, labels), expected)
    order = torch.randperm(len(outputs))
    assert_close(loss(outputs[order], labels[order]), expected)
    rotation, _ = torch.linalg.qr(torch.randn(BITS, BITS, dtype=torch.float64))
    if name != "pair":
        with torch.no_grad():
            loss.proxies.copy_(3 * loss.proxies @ rotation)
    assert_close(loss(outputs @ rotation, labels), expected)


def test_margin_is_the_codes_or_the_users():
    assert HyP2(bits=12, classes=38).zeta == pytest.approx(1 / 3)
    assert HyP2(bits=12, classes=38, margin=0.0).zeta == 0
    assert Pair(bits=12, classes=38, margin=0.5).zeta == 0.5


def test_a_smaller_margin_pushes_more(hyp2, batch):
    losses = []
    for zeta in (0.9, 0.3, -0.3):
        hyp2.zeta = zeta
        losses.append(hyp2(*batch).item())
    assert losses == sorted(losses)
    assert losses[0] < losses[-1]


def test_beta_of_zero_is_the_proxy_loss(batch):
    torch.manual_seed(0)
    hyp2, proxy = HyP2(bits=BITS, classes=CLASSES, beta=0.0).double(), Proxy(bits=BITS, classes=CLASSES).double()
    proxy.load_state_dict(hyp2.state_dict())
    assert_close(hyp2(*batch), proxy(*batch), rtol=0, atol=0)


def test_the_best_place_of_two_labels_is_between_their_proxies():
    """Theorem 2: gradient descent from anywhere ends in the middle of a photo's proxies."""
    proxies = torch.eye(BITS, dtype=torch.float64)[:2]
    output = torch.randn(1, BITS, dtype=torch.float64).requires_grad_()
    for _ in range(500):
        loss = proxy_term(normalize(output), proxies, torch.ones(1, 2), margin=0.0)
        (gradient,) = torch.autograd.grad(loss, output)
        output = (output - gradient).detach().requires_grad_()
    middle = normalize(proxies.sum(0, keepdim=True))
    assert_close(normalize(output.detach()), middle, atol=1e-4, rtol=0)


def test_anchors_are_the_proxies(hyp2: HyP2) -> None:
    anchors: Tensor = hyp2.anchors()
    assert anchors is hyp2.proxies
