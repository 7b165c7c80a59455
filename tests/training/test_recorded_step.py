"""A recorded step takes the steps of a plain one. The GPU is played by the processor.

As on a GPU, what is recorded is not run, a replay sees the batch through fixed memory alone and leaves its loss there,
and a step that makes the host wait for the device cannot be recorded.
"""

import warnings
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from hyphash.config import Config
from hyphash.losses import build
from hyphash.networks import Head
from hyphash.training import steps
from hyphash.training.inputs import FeatureInputs, StreamedInputs
from hyphash.training.steps import WARM_UP, RecordedStep, build_optimizer, build_step

SIZE = 4  # rows of a full batch
CONFIG = Config(
    batch=SIZE, optimizer="sgd", rate=0.1, loss_rate=0.02, momentum=0.9, weight_decay=0.01, clip=0.0, epochs=1,
    precision="float32",
)  # fmt: skip


class Stream:
    """A queue of a GPU's work."""

    def __init__(self, gpu, name="side"):
        self.gpu, self.name = gpu, name

    def wait_stream(self, other):
        self.gpu.waits.append((self.name, other.name))


class Graph:
    """A recording: the work of a step, the memory of its batch and that of its loss."""

    def __init__(self, gpu):
        self.gpu = gpu
        gpu.graphs.append(self)

    def replay(self):
        self.value.copy_(self.work(self.rows))
        self.gpu.replays += 1


class Gpu:
    """The parts of torch.cuda that a recorded step uses, and what became of them."""

    def __init__(self):
        self.waits, self.graphs, self.replays, self.eager, self.pools = [], [], 0, [], []
        self.mode, self.capturing = "default", None
        self.main = self.current = Stream(self, "main")

    def current_stream(self):
        return self.current

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(self, graph, pool, stream):
        self.pools.append(pool)
        with self.stream(stream):
            self.capturing = graph
            try:
                yield
            finally:
                self.capturing = None

    def set_sync_debug_mode(self, mode):
        if mode == "warn":  # as torch says
            warnings.warn("a prototype: it does not detect all synchronizing operations", stacklevel=1)
        self.mode = mode

    def runs(self, step, *, fails_at=(), waits=False):
        """The step as this GPU runs it: at once, or into the recording at hand. Calls are counted from 1."""
        calls = 0

        def run(rows):
            nonlocal calls
            calls += 1
            if calls in fails_at:
                raise ValueError(f"call {calls} fails")
            if self.capturing:
                self.capturing.work, self.capturing.rows, self.capturing.value = step, rows, torch.full((), torch.nan)
                return self.capturing.value
            if waits and self.mode == "warn":
                warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
            self.eager.append((len(rows), self.current.name))
            return step(rows)

        return run


@pytest.fixture
def gpu(monkeypatch):
    gpu = Gpu()
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: Stream(gpu))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(gpu))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    for name in ("current_stream", "stream", "graph", "set_sync_debug_mode"):
        monkeypatch.setattr(torch.cuda, name, getattr(gpu, name))
    return gpu


class World:
    """A head in training, the same every time it is made."""

    def __init__(self, loss="hyp2"):
        torch.manual_seed(0)
        self.head = Head(features=5, bits=6, classes=3, hidden=0)
        self.loss = build(loss, bits=6, classes=3)
        self.inputs = FeatureInputs(torch.randn(11, 5).half(), (torch.rand(11, 3) < 0.6).float())
        self.optimizer = build_optimizer(self.head, self.loss, CONFIG)

    def step(self, config=CONFIG, inputs=None):
        return build_step(self.head, self.loss, self.optimizer, self.inputs if inputs is None else inputs, config)

    def weights(self):
        return [p.detach().clone() for p in (*self.head.parameters(), *self.loss.parameters())]


def epoch_of(number):
    """Two batches and a smaller one, in another order each time."""
    return torch.split(torch.randperm(11, generator=torch.Generator().manual_seed(number)), SIZE)


def take(gpu, batches, **troubles):
    """Step through the batches, recorded and plain: both go the same way. Returns the recorded step."""
    ours, twin = World(), World()
    recorded = RecordedStep(gpu.runs(ours.step(), **troubles), device=torch.device("cpu"))
    plain, total, expected = twin.step(), torch.zeros(()), torch.zeros(())
    for rows in batches:
        try:
            total += recorded(rows)
        except ValueError:
            assert gpu.mode == "default"
            assert gpu.current is gpu.main
            continue
        expected += plain(rows)
        assert_close(total, expected)
        for weight, naive in zip(ours.weights(), twin.weights(), strict=True):
            assert_close(weight, naive)
    return recorded


def test_full_batches_are_warmed_up_recorded_once_and_replayed(gpu):
    take(gpu, [rows for number in range(4) for rows in epoch_of(number)[:2]])
    assert gpu.eager == [(SIZE, "side")] * WARM_UP
    assert len(gpu.graphs) == 1
    assert gpu.replays == 8 - WARM_UP


def test_batches_of_two_sizes_are_two_recordings_in_the_same_memory(gpu):
    recorded = take(gpu, [rows for number in range(6) for rows in epoch_of(number)])
    assert [gpu.eager.count((size, "side")) for size in (SIZE, SIZE - 1)] == [WARM_UP, WARM_UP]
    assert len(gpu.eager) == 2 * WARM_UP
    assert {len(graph.rows) for graph in gpu.graphs} == recorded.recordings.keys() == {SIZE, SIZE - 1}
    assert gpu.replays == 12 + 6 - 2 * WARM_UP
    assert gpu.pools == [recorded.pool] * 2


def test_warming_up_waits_for_what_came_before_and_is_waited_for(gpu):
    take(gpu, [epoch_of(number)[0] for number in range(WARM_UP)])
    assert gpu.waits == [("side", "main"), ("main", "side")] * WARM_UP
    assert gpu.mode == "default"


@pytest.mark.parametrize("call", [1, WARM_UP, WARM_UP + 1])
def test_an_error_in_a_step_leaves_the_device_as_it_was(gpu, call):
    recorded = take(gpu, [epoch_of(number)[0] for number in range(8)], fails_at=(call,))
    assert recorded.recordings[SIZE].graph is gpu.graphs[-1]
    assert gpu.replays > 0


def test_a_step_that_waits_for_the_device_is_never_recorded(gpu):
    recorded = take(gpu, [epoch_of(number)[0] for number in range(8)], waits=True)
    assert not recorded.possible
    assert gpu.graphs == []
    assert len(gpu.eager) == 8


def test_other_warnings_do_not_stand_in_the_way(gpu):
    def step(rows):
        if gpu.mode == "warn":
            warnings.warn("something else", stacklevel=1)
        return rows.sum()

    recorded = RecordedStep(gpu.runs(step), device=torch.device("cpu"))
    assert [int(recorded(torch.arange(4) + i)) for i in range(6)] == [6 + 4 * i for i in range(6)]
    assert gpu.replays == 6 - WARM_UP


@pytest.mark.parametrize(
    ("loss", "device", "changes", "streamed", "recorded"),
    [
        ("hyp2", "cuda", {}, False, True),
        ("hyp2", "cpu", {}, False, False),
        ("hyp2", "cuda", {"compile": True}, False, False),
        ("hyp2", "cuda", {}, True, False),  # photos are decoded within the step
        ("hashnet", "cuda", {}, False, False),  # its schedule changes numbers between steps
    ],
)
def test_a_step_is_recorded_where_it_can_be(monkeypatch, loss, device, changes, streamed, recorded):
    made = []
    monkeypatch.setattr(steps, "RecordedStep", lambda step, **options: made.append(options) or step)
    world = World(loss)
    labels = SimpleNamespace(device=torch.device(device))  # there need not be such a device here
    inputs = StreamedInputs(None, labels, None, None) if streamed else FeatureInputs(world.inputs.values, labels)
    world.step(Config(**{"batch": SIZE, "optimizer": "sgd"} | changes), inputs)
    assert made == ([{"device": torch.device("cuda")}] if recorded else [])
