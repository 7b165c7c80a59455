"""Batch normalisation over several ranks, which are threads here, against the whole batch normalised at once."""

from copy import deepcopy
from itertools import pairwise
from threading import Barrier, Thread, local

import pytest
import torch
import torch.distributed as dist
from torch import nn

from hyphash.training.shared_norm import SharedNorm


@pytest.fixture
def on_ranks(monkeypatch):
    """on_ranks(work, size) calls work(rank) on so many ranks at once, which sum up what they all_reduce."""

    def run(work, size):
        mine, given, both = local(), [None] * size, Barrier(size, timeout=60)

        def all_reduce(values):
            given[mine.rank] = values.clone()
            both.wait()
            total = sum(given)
            both.wait()  # nobody gives the next before all have taken this
            values.copy_(total)

        def on_rank(rank):
            mine.rank = rank
            try:
                results[rank] = work(rank)
            except BaseException:
                both.abort()  # the others would wait for ever
                raise

        monkeypatch.setattr(dist, "all_reduce", all_reduce)
        results = [None] * size
        threads = [Thread(target=on_rank, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    return run


@pytest.mark.parametrize("cuts", [(5,), (1,), (0,), (2, 2), (3, 7)])
@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.BatchNorm1d(4), (8, 4)), (nn.BatchNorm2d(4, affine=False), (8, 4, 3, 2))]
)
def test_ranks_normalise_their_parts_as_one_does_the_whole(layer, shape, cuts, on_ranks):
    generator = torch.Generator().manual_seed(0)
    values, wanted = (torch.randn(shape, generator=generator, dtype=torch.float64) * 3 + 1 for _ in range(2))
    whole, alone = values.clone().requires_grad_(), deepcopy(layer).double().train()
    expected = alone(whole)
    (expected * wanted).sum().backward()
    bounds = list(pairwise((0, *cuts, len(values))))

    def part(rank):
        rows = slice(*bounds[rank])
        mine, norm = values[rows].clone().requires_grad_(), deepcopy(layer).double().train()
        with SharedNorm(len(bounds)):
            found = norm(mine)
        (found * wanted[rows]).sum().backward()
        return found.detach(), mine.grad, norm

    parts = on_ranks(part, len(bounds))
    torch.testing.assert_close(torch.cat([found for found, _, _ in parts]), expected.detach())
    torch.testing.assert_close(torch.cat([gradient for _, gradient, _ in parts]), whole.grad)
    for _, _, norm in parts:
        torch.testing.assert_close(norm.running_mean, alone.running_mean)
        torch.testing.assert_close(norm.running_var, alone.running_var)
    if layer.affine:
        for name in ("weight", "bias"):
            total = sum(getattr(norm, name).grad for _, _, norm in parts)
            torch.testing.assert_close(total, getattr(alone, name).grad)


def test_what_is_no_training_needs_nobody(monkeypatch):
    monkeypatch.setattr(dist, "all_reduce", lambda _: pytest.fail("asked the other ranks"))
    layer, values = nn.BatchNorm1d(4).eval(), torch.randn(3, 4)
    with SharedNorm(2):
        torch.testing.assert_close(layer(values), values / (1 + layer.eps) ** 0.5)
