"""One suite over every registered loss: whatever a batch holds, loss and gradients are finite and lead down."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from hyphash.errors import ConfigError
from hyphash.losses import Loss, build, heads, losses, names, option_defaults
from hyphash.networks import Head

FEATURES, CLASSES = 24, 7
TRAINED = [name for name in names() if not losses[name].fitted]
BITS = (1, 12, 36, 48, 64, 100)


class Model(nn.Module):
    """A loss behind the head it asks for, driven from random features or feature maps."""

    def __init__(self, name: str, bits: int = 12, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.loss = build(name, bits=bits, classes=CLASSES)
        self.head: Head = heads[self.loss.head](features=FEATURES, bits=bits, classes=CLASSES)

    def features(self, n: int, seed: int = 1) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = (n, FEATURES, 3, 3) if self.loss.needs_map else (n, FEATURES)
        return torch.randn(shape, generator=generator)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.head(features), labels)


def some_labels(n: int, seed: int = 2) -> Tensor:
    """One to three labels a photo."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.zeros(n, CLASSES, dtype=torch.uint8)
    return labels.scatter_(1, torch.randint(0, CLASSES, (n, 3), generator=generator), 1)


def batch_of(kind: str) -> Tensor:
    labels = some_labels(12)
    if kind == "single label":
        labels = torch.eye(CLASSES, dtype=torch.uint8)[torch.arange(12) % CLASSES]
    elif kind == "all similar":
        labels[:, 0] = 1
    elif kind == "all dissimilar":
        labels = torch.eye(CLASSES, dtype=torch.uint8)
    elif kind == "size one":
        labels = labels[:1]
    elif kind == "unlabelled row":
        labels[3] = 0
    elif kind == "no labels":
        labels[:] = 0
    elif kind == "every label":
        labels[:] = 1
    elif kind == "twins":
        labels[1] = labels[0]
    return labels


KINDS = (
    "normal", "single label", "all similar", "all dissimilar", "size one", "unlabelled row", "no labels",
    "every label", "twins",
)  # fmt: skip


def assert_finite(model: Model, loss: Tensor) -> None:
    assert loss.shape == ()
    assert loss.isfinite()
    model.zero_grad()
    loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TRAINED)
def test_loss_and_gradients_are_finite(name, kind):
    model, labels = Model(name), batch_of(kind)
    features = model.features(len(labels))
    if kind == "twins":
        features[1] = features[0]  # two photos at one place: the root of a distance has no gradient there
    assert_finite(model, model(features, labels))


@pytest.mark.parametrize("name", TRAINED)
def test_every_parameter_learns_from_a_normal_batch(name):
    model = Model(name)
    labels = some_labels(24)
    model(model.features(24), labels).backward()
    idle = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not idle


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("name", TRAINED)
def test_any_number_of_bits(name, bits):
    model, labels = Model(name, bits), batch_of("normal")
    assert_finite(model, model(model.features(len(labels)), labels))
    model.eval()
    outputs = model.head(model.features(5))
    assert len(outputs) == 5
    if not hasattr(model.head, "codewords"):
        assert outputs.shape == (5, bits)


@pytest.mark.parametrize("name", TRAINED)
def test_bfloat16_outputs_give_nearly_the_same_loss(name):
    model, labels = Model(name), batch_of("normal")
    given = model.head(model.features(len(labels)))
    parts = given if isinstance(given, tuple) else (given,)
    coarse = tuple(part.detach().to(torch.bfloat16).requires_grad_() for part in parts)
    loss = model.loss(coarse if isinstance(given, tuple) else coarse[0], labels)
    exact = model.loss(tuple(p.float() for p in coarse) if isinstance(given, tuple) else coarse[0].float(), labels)
    assert loss.dtype == torch.float32
    assert_close(loss, exact)
    loss.backward()
    assert coarse[0].grad is not None
    assert coarse[0].grad.dtype == torch.bfloat16
    assert coarse[0].grad.isfinite().all()


@pytest.mark.parametrize("name", TRAINED)
def test_autocast_of_head_and_loss(name):
    model, labels = Model(name), batch_of("normal")
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(model.features(len(labels)), labels)
    assert loss.dtype == torch.float32
    assert_finite(model, loss)


@pytest.mark.parametrize("name", [name for name in TRAINED if name != "n-pair"])
def test_batch_order_does_not_matter(name):
    model, labels = Model(name).double(), some_labels(16)
    given = model.head(model.features(16).double())
    order = torch.randperm(16, generator=torch.Generator().manual_seed(3))
    flipped = tuple(part[order] for part in given) if isinstance(given, tuple) else given[order]
    assert_close(model.loss(flipped, labels[order]), model.loss(given, labels))


@pytest.mark.parametrize("name", TRAINED)
def test_twenty_steps_lead_down_on_an_easy_problem(name):
    """The features are the labels, through a random matrix, with a little noise."""
    model, labels = Model(name, bits=16), some_labels(32)
    mix = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(4))
    features = labels.float() @ mix + 0.1 * torch.randn(32, FEATURES, generator=torch.Generator().manual_seed(5))
    if model.loss.needs_map:
        features = features[:, :, None, None] * torch.ones(3, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    values = []
    for step in range(21):
        model.loss.set_progress(step / 200)
        loss = model(features, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    assert sum(values[-3:]) / 3 < 0.95 * values[0]


@pytest.mark.parametrize("name", names())
def test_a_mistyped_option_is_an_error(name):
    with pytest.raises(ConfigError, match="no option 'marginn'"):
        build(name, bits=12, classes=CLASSES, marginn=1.0)


@pytest.mark.parametrize("name", TRAINED)
def test_state_saves_loads_and_resumes(name, tmp_path):
    """A copy made from the saved state, seeded otherwise, goes on exactly as the original does."""
    model, labels = Model(name), some_labels(16)
    features = model.features(16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(model: Model, optimizer: torch.optim.Optimizer) -> float:
        torch.manual_seed(6)
        loss = model(features, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    model.loss.set_progress(0.3)
    step(model, optimizer)
    torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "state.pt")
    expected = [step(model, optimizer) for _ in range(2)]

    twin = Model(name, seed=99)
    resumed = torch.optim.SGD(twin.parameters(), lr=0.01, momentum=0.9)
    weights, state = torch.load(tmp_path / "state.pt", weights_only=True)
    twin.load_state_dict(weights)
    resumed.load_state_dict(state)
    assert [step(twin, resumed) for _ in range(2)] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", TRAINED)
def test_labels_may_be_of_any_type(name):
    model, labels = Model(name), some_labels(8)
    given = model.head(model.features(8))
    expected = model.loss(given, labels)
    for dtype in (torch.bool, torch.int64, torch.float32):
        assert_close(model.loss(given, labels.to(dtype)), expected)


@pytest.mark.parametrize("name", names())
def test_facts_for_the_tables(name):
    made = losses[name]
    assert made.family
    assert made.paper
    assert made.complexity.startswith("O(")
    assert made.head in heads
    assert made.__doc__
    assert "\n" not in made.paper
    mark = any(word in made.__doc__ for word in ("our", "ours"))
    assert mark or not made.adapted, "an adaptation says so in one sentence"


SETTINGS = {
    "optimizer", "rate", "loss_rate", "momentum", "weight_decay", "schedule", "step_every", "step_factor",
    "epochs", "batch", "dropout", "hidden", "clip", "views",
}  # fmt: skip


@pytest.mark.parametrize("name", names())
def test_recipes_set_what_training_knows(name):
    made = losses[name]
    assert made.recipe.keys() | made.frozen_recipe.keys() <= SETTINGS


@pytest.mark.parametrize("name", TRAINED)
def test_options_are_plain_values_with_defaults(name):
    for option, default in option_defaults(losses[name]).items():
        assert isinstance(default, bool | int | float | str | None), option


@pytest.mark.parametrize("name", TRAINED)
def test_anchors_are_one_place_a_class(name):
    anchors = Model(name, bits=36).loss.anchors()
    if anchors is not None:
        assert anchors.shape == (CLASSES, 36)


@pytest.mark.parametrize("name", TRAINED)
def test_head_gives_plain_outputs_at_search_time(name):
    model = Model(name)
    model.eval()
    with torch.no_grad():
        outputs = model.head(model.features(4))
        assert isinstance(outputs, Tensor)
        assert_close(model.head(model.features(4)[:1]), outputs[:1])  # one photo or many


def test_only_the_n_pair_loss_minds_the_order():
    """The halves of a batch, and which photo comes next, choose its anchors and positives."""
    with pytest.raises(AssertionError, match="not close"):
        test_batch_order_does_not_matter("n-pair")


def test_every_method_of_the_paper_is_there():
    assert set(names()) >= {
        "hyp2", "proxy", "pair", "proxy-pair", "proxy-anchor", "proxy-nca", "soft-triple", "orthohash", "csq",
        "contrastive", "dhn", "hashnet", "dsh", "dmssph", "idhn", "triplet-semi-hard", "triplet-smart", "n-pair",
        "lifted", "dlbhc", "dqn", "ninh", "iah", "olah", "dcilh", "lsh", "itq",
    }  # fmt: skip


def test_a_loss_is_copied_with_its_state():
    loss = build("hashnet", bits=12, classes=CLASSES)
    loss.set_progress(1.0)
    assert_close(deepcopy(loss).state_dict(), loss.state_dict())
    assert isinstance(loss, Loss)
