"""The memory of all training outputs, and naive twins of the losses over it."""

from math import exp, log1p

import numpy as np
import pytest
import torch

from hyphash.losses import build, parts_of
from hyphash.losses.memory import Memory

BITS, CLASSES = 12, 5


def naive_likelihood(z, everyone, labels, all_labels) -> list[float]:
    return [
        log1p(exp(theta)) - (y @ other > 0) * theta
        for a, y in zip(z, labels, strict=True)
        for b, other in zip(everyone, all_labels, strict=True)
        for theta in [a @ b / 2]
    ]


@pytest.fixture
def world(batch):
    """The batch as photos 3, 5, 7 … of 40, whose other outputs the memory holds already."""
    generator = np.random.default_rng(2)
    photos, rows = torch.arange(1, 41), torch.arange(3, 35, 2)
    labels = torch.from_numpy((generator.random((40, CLASSES)) < 0.3).astype(float))
    labels[rows - 1] = batch[1]
    past = torch.from_numpy(generator.normal(0, 1, (40, BITS)))

    def opened(name, **options):
        loss = build(name, bits=BITS, classes=CLASSES, **options).double()
        for memory in parts_of(loss, Memory):
            memory.open(photos, labels)
            memory.outputs.copy_(past)
            memory.set_batch(rows)
        return loss

    now = past.clone()
    now[rows - 1] = batch[0]
    return opened, now.numpy(), labels.numpy(), rows - 1


def test_a_memory_knows_its_photos_by_their_numbers():
    memory = Memory(2)
    outputs, labels = torch.ones(2, 2), torch.eye(2)
    assert memory.update(outputs, labels)[0].equal(outputs)  # not opened: the batch is all there is
    memory.open(torch.tensor([4, 7, 9]), torch.eye(3))
    memory.set_batch(torch.tensor([9, 4]))
    everyone, all_labels = memory.update(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), labels)
    assert everyone.tolist() == [[3, 4], [0, 0], [1, 2]]
    assert all_labels.tolist() == torch.eye(3).tolist()
    everyone, _ = memory.update(torch.zeros(2, 2), labels, momentum=0.5)
    assert everyone.tolist() == [[1.5, 2], [0, 0], [0.5, 1]]
    assert list(memory.state_dict()) == ["outputs"]  # labels come with the data


def test_dpsh_matches_its_twin(batch, world):
    opened, now, all_labels, _ = world
    z = batch[0].numpy()
    for loss, everyone, their in (
        (opened("dpsh"), now, all_labels),
        (build("dpsh", bits=BITS, classes=CLASSES), z, batch[1].numpy()),
    ):
        pairs = naive_likelihood(z, everyone, batch[1].numpy(), their)
        expected = np.mean(pairs) + 10 * np.sum((z - np.sign(z)) ** 2) / (len(z) * len(everyone))
        assert loss(*batch).item() == pytest.approx(expected)


def test_dtsh_matches_its_twin(batch, world):
    opened, now, all_labels, _ = world
    expected = []
    for z, y in zip(*(t.numpy() for t in batch), strict=True):
        products, related = now @ z / 2, all_labels @ y > 0
        triplets = [log1p(exp(-(p - n - BITS / 2))) for p in products[related] for n in products[~related]]
        expected.append(sum(triplets) + 100 * np.sum((np.abs(z) - 1) ** 2))
    assert opened("dtsh")(*batch).item() == pytest.approx(np.mean(expected))


def test_dtsh_draws_as_many_as_it_may(batch, world):
    loss = world[0]("dtsh", candidates=3, weight=0.0, margin=1e6)
    counts = set()
    for seed in range(3):
        torch.manual_seed(seed)
        loss.set_progress(0.0)
        counts.add(round(loss(*batch).item() / 1e6))
    labels, everyone = batch[1].numpy(), world[2]
    related = labels @ everyone.T > 0
    assert counts == {round(np.mean(np.minimum(related.sum(1), 3) * np.minimum((~related).sum(1), 3)))}
    torch.manual_seed(9)
    first = (loss.set_progress(0.0), loss.drawn(torch.arange(40.0).expand(16, 40), torch.ones(16, 40) > 0))[1][0]
    loss.set_progress(0.0)
    assert not torch.equal(first, loss.drawn(torch.arange(40.0).expand(16, 40), torch.ones(16, 40) > 0)[0])


def test_dfh_matches_its_twin_and_its_centres_follow_the_codes(batch, world):
    opened, now, all_labels, _ = world
    loss = opened("dfh")
    before = loss.codewords.clone().numpy()
    z, labels = (t.numpy() for t in batch)
    shares = labels / np.maximum(labels.sum(1, keepdims=True), 1)
    codes = np.where(shares @ before + z > 0, 1.0, -1.0)
    pairs = naive_likelihood(z, now, labels, all_labels)
    assert loss(*batch).item() == pytest.approx(np.mean(pairs) + 0.5 * np.mean((codes - z) ** 2))

    def misfit(centers):
        return np.sum((codes - shares @ centers) ** 2)

    after = loss.codewords.numpy()
    assert set(np.unique(after)) <= {-1, 1}
    assert misfit(after) < misfit(before)
    last = after.copy()  # the last class was chosen with all others in place: no other signs are better
    for k in range(BITS):
        last[-1, k] *= -1
        assert misfit(last) >= misfit(after)
        last[-1, k] *= -1


def naive_target(labels, others):
    related = labels @ others.T > 0
    return np.where(related, 1.0, -related.sum() / max((~related).sum(), 1))


def test_adsh_matches_its_twin_before_and_after_its_codes_are_solved(batch, world):
    opened, _, all_labels, rows = world
    loss = opened("adsh")
    u, labels = np.tanh(batch[0].numpy()), batch[1].numpy()
    codes = loss.codes.outputs.numpy().copy()
    codes[rows] = np.sign(u)

    def expected():
        misfit = (u @ codes.T - BITS * naive_target(labels, all_labels)) ** 2
        return (misfit.sum() + 200 * np.sum((codes[rows] - u) ** 2)) / (len(u) * 40)

    assert loss(*batch).item() == pytest.approx(expected())
    loss.set_progress(0.01)  # of fifty rounds the first is not over
    assert loss.solved == 0
    loss.set_progress(0.02)
    codes = loss.codes.outputs.numpy().copy()
    assert loss(*batch).item() == pytest.approx(expected())
    assert np.array_equal(codes, loss.codes.outputs.numpy())  # kept until the next round
    everyone, target = loss.memory.outputs.numpy(), naive_target(all_labels, all_labels)

    def objective(v):
        return np.sum((everyone @ v.T - BITS * target) ** 2) + 200 * np.sum((v - everyone) ** 2)

    loss.solve(loss.codes.outputs, loss.memory.outputs, torch.from_numpy(target), torch.arange(40))
    solved = loss.codes.outputs.numpy()
    assert objective(solved) <= objective(codes)
    for row in range(0, 40, 7):  # the last bit was chosen with all others in place
        other = solved.copy()
        other[row, -1] *= -1
        assert objective(other) >= objective(solved)


@pytest.mark.parametrize("progress", [0.05, 0.1])
def test_mdsh_matches_its_twin(batch, world, progress):
    opened, _, all_labels, rows = world
    loss = opened("mdsh")
    loss.set_progress(progress)
    everyone, book = loss.memory.outputs.numpy().copy(), loss.codewords.numpy()
    u, labels = np.tanh(batch[0].numpy()), batch[1].numpy()
    everyone[rows] = 0.9 * everyone[rows] + 0.1 * u

    def cosine(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    fit, pairs = [], []
    for a, y in zip(u, labels, strict=True):
        powers = np.exp([BITS**0.5 * cosine(a, b) for b in book])
        fit += [-np.log(p if carried else 1 - p) for p, carried in zip(powers / powers.sum(), y, strict=True)]
        related = [b for b, other in zip(everyone, all_labels, strict=True) if y @ other > 0]
        pairs += [log1p(exp((1 - cosine(a, b)) / 2)) for b in related]
    expected = np.mean(fit) + (progress >= 0.1) * np.mean(pairs) + 1e-4 * np.mean((np.abs(u) - 1) ** 2)
    assert loss(*batch).item() == pytest.approx(expected)
