"""Gradients of single examples: sums in which each is clipped equal those of examples one by one, for every layer, in blocks and alone."""

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.algorithms import DPSGD, FedAvg, FedDyn, Scaffold
from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError
from atoll.learn.local.examples import Clipping
from atoll.torch.examples.choose import clipped_sum, way_of
from atoll.torch.examples.sums import Examples, one_by_one
from atoll.torch.local import LocalTraining
from atoll.torch.network import FunctionalModule

pytestmark = pytest.mark.usefixtures("own_generator")
CPU = torch.device("cpu")
ROWS = 5


@pytest.fixture
def own_generator():
    """Models draw their weights from PyTorch's generator, which is put back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


class Words(nn.Module):
    """An embedding, layers over the words, and their mean."""

    def __init__(self, inner, width=6, out=5, position=False):
        super().__init__()
        self.table = nn.Embedding(10, width, padding_idx=0)
        self.position = nn.Parameter(torch.randn(1, 7, width)) if position else None
        self.inner = inner
        self.last = nn.Linear(out, 3)

    def forward(self, x):
        words = self.table(x)
        words = words if self.position is None else words + self.position
        made = self.inner(words)
        return self.last((made[0] if isinstance(made, tuple) else made).mean(1))


class TimeFirst(nn.Module):
    """Layers that take the words as the first axis and the examples as the second."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        made = self.inner(x.transpose(0, 1))
        return (made[0] if isinstance(made, tuple) else made).transpose(0, 1)


class Attention(nn.Module):
    """Queries of their own: the mean word asks all words; scales are parameters too."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(6))
        self.shift = nn.Parameter(torch.tensor(0.3))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x):
        x = x * self.scale + self.shift
        mask = torch.zeros(1, x.shape[1], dtype=torch.bool)
        mask[0, -1] = True
        return self.attention(x.mean(1, keepdim=True), x, x, attn_mask=mask)[0]


class Twice(nn.Module):
    """One table as the first layer and the last (tied weights)."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 6)

    def forward(self, x):
        return (self.table(x).mean(1) @ torch.eye(6, dtype=self.table.weight.dtype)) @ torch.ones(
            6, 3, dtype=self.table.weight.dtype
        ) + nn.functional.linear(self.table(x).mean(1), self.table.weight)[:, :3]


class Pairs(nn.Module):
    """A layer whose parameters are used in a way that no rule knows."""

    def __init__(self):
        super().__init__()
        self.pairs = nn.Bilinear(6, 6, 5)

    def forward(self, x):
        return self.pairs(x, x)


class Mixing(nn.Module):
    """A layer of one's own that looks at the other examples of its mini-batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        made = self.layer(x)
        return made - made.mean(0)


def encoder(batch_first):
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


IMAGES = {
    "Linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(128, 8), nn.ReLU(), nn.Linear(8, 3, bias=False)),
    "Conv2d": lambda: nn.Sequential(
        nn.Conv2d(2, 6, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 4, 2, dilation=2),
        nn.Flatten(),
        nn.Linear(16, 3),
    ),
    "Conv2d in groups": lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(144, 3)),
    "GroupNorm": lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 3)),
    "Conv3d": lambda: nn.Sequential(nn.Unflatten(1, (1, 2)), nn.Conv3d(1, 2, 2), nn.Flatten(), nn.Linear(98, 3)),
    "frozen": lambda: frozen(nn.Sequential(nn.Flatten(), nn.Linear(128, 8), nn.LayerNorm(8), nn.Linear(8, 3))),
}
TEXTS = {
    "Embedding": lambda: Words(nn.Identity(), out=6),
    "position": lambda: Words(nn.Linear(6, 5), position=True),
    "LayerNorm": lambda: Words(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 5), nn.RMSNorm(5))),
    "Conv1d": lambda: Words(TimeFirst(TimeFirst(nn.Conv1d(7, 3, 2))), out=5),
    "LSTM": lambda: Words(nn.LSTM(6, 5, batch_first=True)),
    "LSTM, both directions": lambda: Words(nn.LSTM(6, 3, bidirectional=True, batch_first=True), out=6),
    "GRU of two layers": lambda: Words(nn.GRU(6, 5, num_layers=2, batch_first=True)),
    "RNN, words first": lambda: Words(TimeFirst(nn.RNN(6, 5))),
    "attention": lambda: Words(Attention(), out=6),
    "encoder": lambda: Words(encoder(True), out=6),
    "encoder, words first": lambda: Words(TimeFirst(encoder(False)), out=6),
    "tied": Twice,
    "unknown": lambda: Words(Pairs()),
}
BY_GRADIENTS = {"Conv3d", "unknown"}


def frozen(model):
    for parameter in (*model[1].parameters(), model[2].bias):
        parameter.requires_grad_(False)
    return model


def batch(kind, draw):
    x = (
        torch.randn(ROWS, 2, 8, 8, dtype=torch.float64)
        if kind in IMAGES
        else torch.from_numpy(draw.integers(0, 10, (ROWS, 7)))
    )
    return {"x": x, "y": torch.from_numpy(draw.integers(0, 3, ROWS))}


@torch.enable_grad()
def by_hand(network, params, columns, clipping):
    """One example after another, by PyTorch's own differentiation."""
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    groups = clipping.groups(list(params))
    for i in range(len(columns["y"])):
        leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
        out = torch.func.functional_call(network.training, {**network.frozen, **leaves}, (columns["x"][i : i + 1],))
        loss = nn.functional.cross_entropy(out, columns["y"][i : i + 1])
        found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        gradient = {n: torch.zeros_like(params[n]) if g is None else g for n, g in zip(leaves, found, strict=True)}
        for group in groups:
            length = float(sum((gradient[name] ** 2).sum() for name in group) ** 0.5)
            for name in group:
                total[name] += gradient[name] * clipping.limit(len(groups)) / max(length, clipping.limit(len(groups)))
    return total


def examples_of(kind, dtype=torch.float64, model=None):
    network = FunctionalModule(model or {**IMAGES, **TEXTS}[kind](), "cross_entropy", CPU, dtype)
    params = {n: p.detach() for n, p in network.training.named_parameters() if p.requires_grad}
    columns = batch(kind, np.random.default_rng(1))
    return Examples(network, network.frozen, columns, None, None, torch.tensor([3, 4])), params


def worst(a, b):
    return max(float((a[name] - b[name]).abs().max()) for name in b)


@pytest.mark.every(4)
@pytest.mark.filterwarnings("ignore:.*makes the gradient of every example")
@pytest.mark.filterwarnings("ignore:.*batching rule")
@pytest.mark.parametrize("kind", [*IMAGES, *TEXTS])
def test_every_layer_gives_the_sum_of_its_examples_one_by_one(kind):
    examples, params = examples_of(kind)
    way = way_of(examples.network, examples.columns, None)
    assert (way.axes is None) == (kind in BY_GRADIENTS)
    with torch.no_grad():
        for clipping in (Clipping(0.3), Clipping(0.3, by_layer=True), Clipping(1e6)):
            wanted = by_hand(examples.network, params, examples.columns, clipping)
            made, losses = clipped_sum(examples, params, clipping, way)
            singly, alone = one_by_one(examples, params, clipping, loops=True)
            assert worst(made, wanted) < 1e-5 * max(float(w.abs().max()) for w in wanted.values())
            assert worst(singly, wanted) < 1e-5 * max(float(w.abs().max()) for w in wanted.values())
            torch.testing.assert_close(losses, alone)


@pytest.mark.parametrize("kind", ["Linear", "Conv2d", "GroupNorm", "LSTM", "attention"])
def test_padding_and_examples_without_a_finite_gradient_add_nothing(kind):
    examples, params = examples_of(kind)
    way = way_of(examples.network, examples.columns, None)
    weights = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0])
    columns = dict(examples.columns)
    if columns["x"].is_floating_point():
        columns["x"] = columns["x"].clone()
        columns["x"][2, 0, 0, 0] = torch.inf
    kept = [0, 4] if columns["x"].is_floating_point() else [0, 2, 4]
    with torch.no_grad():
        padded = Examples(examples.network, examples.frozen, columns, weights, None, examples.seed)
        made, _ = clipped_sum(padded, params, Clipping(0.3), way)
        few = {name: column[kept] for name, column in columns.items()}
        wanted = by_hand(examples.network, params, few, Clipping(0.3))
    assert worst(made, wanted) < 1e-12


@pytest.mark.parametrize("kind", ["Linear", "Conv2d", "LSTM", "encoder"])
@pytest.mark.parametrize("by_layer", [False, True])
def test_no_example_moves_the_sum_further_than_the_clip(kind, by_layer):
    """Searched for in float32: examples of any size, added to others."""
    examples, params = examples_of(kind, torch.float32)
    params = {name: value.float() for name, value in params.items()}
    columns = {"x": examples.columns["x"], "y": examples.columns["y"]}
    x = columns["x"].float() if columns["x"].is_floating_point() else columns["x"]
    way = way_of(examples.network, {**columns, "x": x}, None)
    for scale in (1e-20, 1.0, 1e8, 1e30):
        scaled = {name: value * (scale if value.dim() > 1 else 1.0) for name, value in params.items()}
        sums = []
        for rows in (ROWS, ROWS - 1):
            some = Examples(
                examples.network, examples.frozen, {"x": x[:rows], "y": columns["y"][:rows]}, None, None, examples.seed
            )
            with torch.no_grad():
                sums.append(clipped_sum(some, scaled, Clipping(0.7, by_layer), way)[0])
        moved = float(sum(((sums[0][name].double() - sums[1][name].double()) ** 2).sum() for name in params) ** 0.5)
        assert moved <= 0.7 * (1 + 1e-6)


def test_a_layer_that_looks_at_other_examples_is_not_taken_by_norms():
    network = FunctionalModule(Mixing(), "cross_entropy", CPU, torch.float64)
    columns = {"x": torch.randn(ROWS, 4, dtype=torch.float64), "y": torch.tensor([0, 1, 2, 0, 1])}
    with pytest.warns(RuntimeWarning, match="in a mini-batch and alone have different gradients"):
        assert way_of(network, columns, None).axes is None


def test_batch_normalisation_is_refused_with_its_remedy():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    job = atoll.Training(model=model, algorithm=DPSGD(FedAvg(batch_size=8), clip=1.0, noise=1.0), rounds=1)
    data = atoll.data.iid(atoll.data.iris(), parties=3, seed=1)
    with pytest.raises(CompositionError, match=r"BatchNorm1d '1', which takes statistics.*GroupNorm"):
        atoll.simulate(job, data, engine="inline")


def shards(sizes, shape, draw):
    return [(draw.normal(size=(n, *shape)).astype(np.float32), draw.integers(0, 3, n)) for n in sizes]


@pytest.mark.slow
def test_a_client_of_an_engine_runs_in_the_programs_of_cohorts():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    private = DPSGD(Scaffold(epochs=2, batch_size=6), clip=0.5, noise=1.2)
    rows, training = shards((20, 0), (4,), np.random.default_rng(2)), LocalTraining(module, private)
    params = {name: p.detach().numpy().copy() for name, p in module.named_parameters()}
    sent = private.broadcast(private.init(params), "train")
    for shard in rows[::-1]:
        alone, kept = training.one(shard, sent, None, 7, Rng(50))
        made, state = training.one_of_many(shard, sent, None, 7, Rng(50))
        assert set(made) == set(alone)
        for a, b in zip(T.leaves([alone["update"].value, kept]), T.leaves([made["update"].value, state]), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)
    assert training.choices["mode"] != "each"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "model", "sizes", "shape", "mode"),
    [
        (
            Scaffold(epochs=2, batch_size=6),
            lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)),
            (20, 3, 0, 20),
            (4,),
            "vector",
        ),
        (
            FedDyn(steps=3, batch_size=6),
            lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(18, 3)),
            (20, 9),
            (1, 5, 5),
            "single",
        ),
    ],
    ids=["vector", "single"],
)
def test_clients_in_blocks_and_alone_are_equal(base, model, sizes, shape, mode):
    module, private = model(), DPSGD(base, clip=0.5, noise=1.2)
    rows = shards(sizes, shape, np.random.default_rng(2))
    training = LocalTraining(module, private)
    params = {name: p.detach().numpy().copy() for name, p in module.named_parameters()}
    sent, keys = private.broadcast(private.init(params), "train"), np.arange(7, 7 + len(rows), dtype=np.uint64)
    batches = list(training.many(rows, sent, None, keys, secrets=[Rng(50 + i) for i in range(len(rows))]))
    assert training.choices["mode"] == mode
    seen = 0
    for made in batches:
        assert not made.rejected
        for j, place in enumerate(made.positions.tolist()):
            one, state = training.one(rows[place], sent, None, int(keys[place]), Rng(50 + place))
            for name, aggregate in one.items():
                block = T.map(lambda leaf, j=j: leaf[j], made.reply[name].value)
                for a, b in zip(T.leaves(aggregate.value), T.leaves(block), strict=True):
                    np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5 * max(1e-3, float(np.abs(a).max())))
            del state
            seen += 1
    assert seen == len(rows)
