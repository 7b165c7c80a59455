"""Ranking losses: laws of tie-aware measures, and naive twins in float64 that go photo by photo and bin by bin."""

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

from hyphash.losses import build, ranking
from hyphash.losses.ranking import distances, soft_histogram, tie_aware_precision

BITS, CLASSES = 12, 5


def drawn(n: int = 14, bits: int = BITS, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(n, bits, generator=generator, dtype=torch.float64)
    labels = (torch.rand(n, CLASSES, generator=generator) < 0.35).double()
    return outputs, labels


def naive_histogram(position: float, bins: int) -> list[float]:
    return [max(0.0, 1 - abs(position - b)) for b in range(bins)]


def test_a_histogram_keeps_all_weight_and_its_mean():
    positions = torch.rand(6, 9, dtype=torch.float64) * 7
    weights = torch.rand(6, 9, dtype=torch.float64)
    histogram = soft_histogram(positions, weights, 8)
    assert_close(histogram.sum(1), weights.sum(1))
    assert_close(histogram @ torch.arange(8.0, dtype=torch.float64), (positions * weights).sum(1))


def test_a_histogram_equals_its_naive_twin_and_has_its_gradient():
    positions = (torch.rand(4, 5, dtype=torch.float64) * 6).requires_grad_()
    weights = torch.rand(4, 5, dtype=torch.float64)
    naive = torch.tensor(
        [
            [sum(float(w) * naive_histogram(float(p), 7)[b] for p, w in zip(row, at, strict=True)) for b in range(7)]
            for row, at in zip(positions.detach(), weights, strict=True)
        ],
        dtype=torch.float64,
    )
    assert_close(soft_histogram(positions, weights, 7), naive)
    assert torch.autograd.gradcheck(lambda p: soft_histogram(p, weights, 7), positions)


def test_positions_at_either_end_fall_into_the_outer_bins():
    histogram = soft_histogram(torch.tensor([[0.0, 3.0]]), torch.ones(1, 2), 4)
    assert histogram.tolist() == [[1, 0, 0, 1]]


def middle_precision(ranked: list[tuple[float, bool]]) -> float:
    """AP with each tie at the precision in its middle, for whole distances."""
    total, seen, seen_relevant = 0.0, 0, 0
    for _, group in itertools.groupby(sorted(ranked), key=lambda pair: pair[0]):
        tie = [relevant for _, relevant in group]
        total += sum(tie) * (seen_relevant + sum(tie) / 2) / (seen + len(tie) / 2)
        seen, seen_relevant = seen + len(tie), seen_relevant + sum(tie)
    return total / seen_relevant if seen_relevant else 0.0


def test_precision_of_real_codes_counts_each_tie_with_the_precision_in_its_middle():
    outputs, labels = drawn(20)
    signs = outputs.sign()
    positions, relevant = distances(signs), labels @ labels.T > 0
    found = tie_aware_precision(positions, relevant, BITS + 1)
    for i in range(len(signs)):
        ranked = [(float(positions[i, j]), bool(relevant[i, j])) for j in range(len(signs)) if j != i]
        assert float(found[i]) == pytest.approx(middle_precision(ranked))


def test_precision_is_one_only_where_all_relevant_photos_are_nearer_than_the_others():
    signs = torch.tensor([[1.0] * 8] * 3 + [[-1.0] * 8] * 3)
    same = torch.tensor([0, 0, 0, 1, 1, 1])
    relevant = same[:, None] == same
    assert_close(tie_aware_precision(distances(signs), relevant, 9), torch.ones(6))
    torn = torch.tensor([0, 1, 0, 1, 0, 1])
    assert (tie_aware_precision(distances(signs), torn[:, None] == torn, 9) < 1).all()


def naive_hyp2_ap_term(outputs: torch.Tensor, labels: torch.Tensor) -> float:
    n, bits = outputs.shape
    values = []
    for i in range(n):
        relevant = [j for j in range(n) if j != i and float(labels[i] @ labels[j]) > 0]
        if not relevant:
            continue
        u = outputs.tanh()
        bins = [[0.0, 0.0] for _ in range(bits + 1)]
        for j in range(n):
            if j != i:
                for b, share in enumerate(naive_histogram((bits - float(u[i] @ u[j])) / 2, bits + 1)):
                    bins[b][0] += share
                    bins[b][1] += share * (j in relevant)
        total = every = found = 0.0
        for c, c_found in bins:
            every, found = every + c, found + c_found
            total += c_found * (found - c_found / 2) / (every - c / 2) if c else 0.0
        values.append(1 - total / found)
    return sum(values) / len(values) if values else 0.0


@pytest.mark.parametrize("weight", [0.5, 2.0])
def test_hyp2_ap_is_hyp2_and_the_naive_term(weight):
    outputs, labels = drawn()
    torch.manual_seed(3)
    plain = build("hyp2", bits=BITS, classes=CLASSES).double()
    loss = build("hyp2-ap", bits=BITS, classes=CLASSES, weight=weight).double()
    loss.load_state_dict(plain.state_dict())
    expected = plain(outputs, labels).item() + weight * naive_hyp2_ap_term(outputs, labels)
    assert loss(outputs, labels).item() == pytest.approx(expected)


def test_weight_zero_is_hyp2_to_the_letter():
    outputs, labels = drawn()
    loss = build("hyp2-ap", bits=BITS, classes=CLASSES, weight=0.0).double()
    plain = build("hyp2", bits=BITS, classes=CLASSES).double()
    plain.load_state_dict(loss.state_dict())
    assert_close(loss(outputs, labels), plain(outputs, labels))


def naive_talr(outputs, labels, gamma: float, levels: int, *, ndcg: bool) -> float:
    n, bits = outputs.shape
    phi = (outputs * gamma / 2).tanh()
    values = []
    for i in range(n):
        gains = {j: 2.0 ** float(labels[i] @ labels[j]) - 1 for j in range(n) if j != i}
        bins = [[0.0, 0.0, 0.0] for _ in range(levels + 1)]
        for j, gain in gains.items():
            distance = (bits - float(phi[i] @ phi[j])) / 2
            for b in range(levels + 1):
                share = max(0.0, 1 - abs(distance - b * bits / levels) / (bits / levels))
                bins[b][0] += share
                bins[b][1] += share * (gain > 0)
                bins[b][2] += share * gain
        before = before_found = score = 0.0
        for c, c_found, gained in bins:
            if ndcg:
                score += gained / math.log2(before + (c + 1) / 2 + 1)
            else:
                score += c_found * (2 * before_found + c_found + 1) / (2 * before + c + 1)
            before, before_found = before + c, before_found + c_found
        ideal = sum(g / math.log2(t + 2) for t, g in enumerate(sorted(gains.values(), reverse=True)))
        best = ideal if ndcg else sum(gain > 0 for gain in gains.values())
        values.append(score / best if best else 0.0)
    return -sum(values) / n


@pytest.mark.parametrize("bits", [8, 33])
@pytest.mark.parametrize("name", ["talr-ap", "talr-ndcg"])
def test_talr_equals_its_naive_twin(name, bits):
    outputs, labels = drawn(bits=bits)
    levels = bits // 2 if bits >= 32 else bits
    expected = naive_talr(outputs, labels, 1.0, levels, ndcg=name == "talr-ndcg")
    assert float(build(name, bits=bits, classes=CLASSES)(outputs, labels)) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["talr-ap", "talr-ndcg"])
def test_talr_takes_its_authors_other_settings(name):
    outputs, labels = drawn()
    loss = build(name, bits=BITS, classes=CLASSES, gamma=10.0, levels=4)
    expected = naive_talr(outputs, labels, 10.0, 4, ndcg=name == "talr-ndcg")
    assert loss(outputs, labels).item() == pytest.approx(expected)


def test_ndcg_of_photos_that_share_hundreds_of_labels_is_finite():
    outputs = torch.randn(4, 16)
    labels = torch.ones(4, 300)
    loss = build("talr-ndcg", bits=16, classes=300)
    assert loss(outputs, labels).isfinite()


def naive_mihash(outputs, labels, gamma: float, levels: int) -> float:
    n, bits = outputs.shape
    phi, values = (outputs * gamma / 2).tanh(), []

    def entropy(counts: list[float]) -> float:
        return -sum(c / sum(counts) * math.log2(c / sum(counts)) for c in counts if c > 0)

    for i in range(n):
        kinds: dict[bool, list[float]] = {True: [0.0] * (levels + 1), False: [0.0] * (levels + 1)}
        for j in range(n):
            if j != i:
                position = (bits - float(phi[i] @ phi[j])) / 2 * levels / bits
                own = kinds[float(labels[i] @ labels[j]) > 0]
                own[:] = [a + b for a, b in zip(own, naive_histogram(position, levels + 1), strict=True)]
        if not all(map(sum, kinds.values())):
            values.append(0.0)
            continue
        every = [a + b for a, b in zip(*kinds.values(), strict=True)]
        values.append(entropy(every) - sum(sum(own) / (n - 1) * entropy(own) for own in kinds.values()))
    return -sum(values) / n


@pytest.mark.parametrize(("bits", "options"), [(8, {}), (33, {}), (12, {"gamma": 3.0, "levels": 5})])
def test_mihash_equals_its_naive_twin(bits, options):
    outputs, labels = drawn(bits=bits)
    expected = naive_mihash(outputs, labels, options.get("gamma", 1.0), options.get("levels", bits // 2))
    assert float(build("mihash", bits=bits, classes=CLASSES, **options)(outputs, labels)) == pytest.approx(expected)


def naive_soft_ranks(outputs, labels, i: int, tau: float) -> dict[int, tuple[float, float]]:
    """For the photos related to photo i: their ranks among all others, and among the related."""
    s = torch.nn.functional.cosine_similarity(outputs[i][None], outputs).tolist()
    others = [j for j in range(len(outputs)) if j != i]
    related = [j for j in others if float(labels[i] @ labels[j]) > 0]

    def rank(j: int, among: list[int]) -> float:
        return 1 + sum(1 / (1 + math.exp(-(s[k] - s[j]) / tau)) for k in among if k != j)

    return {j: (rank(j, others), rank(j, related)) for j in related}


def naive_recall(ranks: list[float], depths: list[int], tau: float) -> float:
    found = (min(k, sum(1 / (1 + math.exp(-(k - r) / tau)) for r in ranks)) / min(k, len(ranks)) for k in depths)
    return sum(found) / len(depths)


@pytest.mark.parametrize("tau", [0.01, 0.2])
@pytest.mark.parametrize("name", ["smooth-ap", "recall-at-k"])
def test_losses_over_soft_ranks_equal_their_naive_twins(name, tau, monkeypatch):
    monkeypatch.setattr(ranking, "COMPARISONS", 14 * 14 * 3)  # three anchors at a time
    outputs, labels = drawn()
    rows = [r for i in range(len(outputs)) if (r := naive_soft_ranks(outputs, labels, i, tau).values())]
    precision = sum(sum(among / rank for rank, among in row) / len(row) for row in rows) / len(rows)
    recall = sum(naive_recall([rank for rank, _ in row], [1, 2, 4, 8], 0.7) for row in rows) / len(rows)
    options = {"rank_tau": 0.7, "depth": 9} if name == "recall-at-k" else {}
    loss = build(name, bits=BITS, classes=CLASSES, tau=tau, **options)
    expected = 1 - (recall if options else precision)
    assert loss(outputs, labels).item() == pytest.approx(expected)
    assert torch.autograd.gradcheck(lambda z: loss(z, labels[:6]), outputs[:6, :4].clone().requires_grad_())
