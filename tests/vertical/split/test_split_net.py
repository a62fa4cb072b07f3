"""A split network is the network that is not split: its gradients, its weights, its predictions; and what a peer may not send."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest

import atoll
from atoll.core.errors import AtollError, ConfigError
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.core.world import World
from atoll.data import Dataset
from atoll.engines import Inline
from atoll.testing import killed_and_resumed
from atoll.trees.objectives import LOGISTIC, TreeLoss
from atoll.vertical import SplitNet, Vertical, VerticalPrediction, read_leaks, train_pooled
from atoll.vertical.model import ColumnScales, GuestRows
from tests.support.vertical_toys import as_parties, draw

torch = pytest.importorskip("torch")
SMALL = {"hidden": (5,), "width": 4, "top": (3,), "epochs": 2, "batch": 50}


class DoubleNet(SplitNet):
    """The same in double precision."""

    precision = np.float64


def train(parties, model, **settings):
    return atoll.simulate(Vertical(model=model, **settings), parties, engine="inline", progress=False)


def fit_by_pytorch(model, rows):
    """Margins of the training rows by a module and an optimiser of PyTorch's own, from the same initial weights, batches and scaled columns."""
    nn = torch.nn
    ends = np.cumsum((0, *rows.columns))
    columns = [ColumnScales.of(rows.x[:, a:b]).apply(rows.x[:, a:b]) for a, b in itertools.pairwise(ends)]
    x = [torch.from_numpy(each) for each in columns]
    segments = [model.segment(model.bottom(size), "bottom", k) for k, size in enumerate(rows.columns)]
    tops = model.tops(len(x), rows.objective.outputs)
    segments += [model.segment(layers, name) for name, layers in zip(("trunk", "head"), tops, strict=True)]

    def module(segment, last=False):
        layers = []
        for k in range(0, len(segment.weights), 2):
            weight, bias = segment.weights[k : k + 2]
            made = nn.Linear(*weight.shape[::-1], dtype=torch.float64)
            made.load_state_dict({"weight": weight.detach(), "bias": bias.detach()})
            layers += [*([nn.ReLU()] if k else []), made]
        return nn.Sequential(*layers, *([] if last or not layers else [nn.ReLU()]))

    bottoms = nn.ModuleList([module(one) for one in segments[:-2]])
    top = nn.Sequential(module(segments[-2]), module(segments[-1], last=True))
    weights = [*bottoms.parameters(), *top.parameters()]
    more = {"lr": model.rate, "weight_decay": model.decay}
    adam = model.optimizer == "adam"
    optimizer = torch.optim.Adam(weights, **more) if adam else torch.optim.SGD(weights, momentum=model.momentum, **more)
    y, name = rows.targets, rows.objective.name
    centre, spread = (y.mean(), y.std()) if "squared" in name else (0.0, 1.0)
    targets = torch.from_numpy((y - centre) / spread)
    losses = {
        "reg:squarederror": lambda m, t: 0.5 * nn.functional.mse_loss(m[:, 0], t),
        "binary:logistic": lambda m, t: nn.functional.binary_cross_entropy_with_logits(m[:, 0], t),
        "multi:softprob": lambda m, t: nn.functional.cross_entropy(m, t.long()),
    }

    def run(at):
        return top(torch.cat([bottom(each[at]) for bottom, each in zip(bottoms, x, strict=True)], 1))

    for _, at in model.batches(len(y)).from_step(0):
        optimizer.zero_grad()
        losses[name](run(at), targets[at]).backward()
        optimizer.step()
    return run(np.arange(len(y))).detach().numpy() * spread + centre


@pytest.mark.parametrize(
    ("seed", "settings"),
    [
        (401, {"optimizer": "sgd", "rate": 0.1, "momentum": 0.9}),
        (402, {"shape": "u"}),
        pytest.param(400, {}, marks=pytest.mark.slow),
        pytest.param(402, {"decay": 0.1, "top": (), "hidden": ()}, marks=pytest.mark.slow),
    ],
)
def test_it_is_the_network_that_pytorch_trains_on_all_columns(seed, settings):
    table = draw(seed, 500, holes=seed == 401)
    model = DoubleNet(**{**SMALL, **settings})
    parties, ids = as_parties(table, 2, seed)
    result = train(parties, model, task=table.task)
    told = result.predictions
    place = {name: i for i, name in enumerate(ids.tolist())}
    at = np.array([place[name] for name in told["id"].tolist()])[~told["test"]]
    sizes = tuple(len(part) for part in np.array_split(np.arange(table.x.shape[1]), 3))
    rows = GuestRows(table.x[at].astype(np.float64), told["y"][~told["test"]], result.objective, sizes)
    expected = result.objective.predict(fit_by_pytorch(model, rows))
    scale = np.std(rows.targets) if table.task == "regression" else 1
    np.testing.assert_allclose(told["federated"][~told["test"]] / scale, expected / scale, rtol=0, atol=1e-12)
    assert result.compare(train_pooled(result.job, parties, result))["difference"] < 1e-12


@pytest.mark.parametrize("hosts", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_in_single_precision_it_is_close_and_joins_what_lies_apart(hosts):
    rng = np.random.default_rng(0)
    n, x = 1200, rng.normal(size=(1200, 8)).astype(np.float32)
    ids, y = np.arange(n), (x[:, 0] * 0.3 + x[:, 3:].sum(axis=1) > 0).astype(int)
    parts = np.array_split(np.arange(3, 8), hosts)
    parties = {"bank": {"id": ids, "a": x[:, 0], "b": x[:, 1], "y": y}}
    parties |= {f"shop-{k}": {"id": ids[::-1], **{f"c{j}": x[::-1, j] for j in own}} for k, own in enumerate(parts)}
    result = train(parties, SplitNet(rate=0.01, epochs=6))
    found = result.compare(train_pooled(result.job, parties, result))
    assert found["difference"] < 1e-5
    assert found["federated"] > max(0.95, found["alone"] + 0.2)
    some = {name: values[::-3] for name, values in parties["bank"].items() if name != "y"}
    told = dict(zip(result.predictions["id"].tolist(), result.predictions["federated"][:, 0], strict=True))
    asked = result.predict({**parties, "bank": some})
    np.testing.assert_allclose(asked, [told[str(key)] for key in some["id"]], rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [pytest.param("label", marks=pytest.mark.slow), "u"])
def test_saved_parts_answer_in_one_round_trip(tmp_path, shape):
    table = draw(402, 400)
    parties, _ = as_parties(table, 2)
    job = Vertical(model=SplitNet(**SMALL, shape=shape))
    result = atoll.simulate(job, parties, engine="inline", progress=False, results=tmp_path)
    some = {**parties, "guest": {name: values[:30] for name, values in parties["guest"].items()}}
    found = atoll.simulate(VerticalPrediction(), some, engine="inline", progress=False, results=tmp_path).outcome
    np.testing.assert_allclose(found.predictions, result.predict(some), rtol=0, atol=1e-6)


def test_a_party_may_have_no_column():
    table = draw(402, 400)
    parties, _ = as_parties(table)
    parties["guest"] = {name: parties["guest"][name] for name in ("id", "y")}
    result = train(parties, SplitNet(epochs=2))
    assert len(np.unique(result.predictions["alone"])) == 1
    assert len(np.unique(result.predictions["federated"])) > 10


@pytest.mark.parametrize(
    ("points", "shape"),
    [(1, "label"), *(pytest.param(9, shape, marks=pytest.mark.slow) for shape in ("label", "u"))],
)
def test_killed_and_resumed_it_is_the_same(tmp_path, points, shape):
    table = draw(402, 300)
    parties, _ = as_parties(table)
    job = Vertical(model=SplitNet(**{**SMALL, "checkpoint_every": 3}, shape=shape))
    ready = job.prepare(Community(parties))

    async def program(fed):
        return await ready.program(fed)

    program.tasks = ready.tasks

    def world(folder, resume):
        return World(Community(parties), Inline(), folder=folder, resume=resume)

    assert killed_and_resumed(world, program, tmp_path, points=points).result["guest"]["rows"]["aligned"] == len(
        table.x
    )


def test_the_party_with_the_labels_may_see_no_embedding_and_hide_them_from_the_trunk():
    """U-shaped, on many hosts, with an audit of what the trunk's host sees."""
    table = draw(402, 400)
    parties, _ = as_parties(table, 2)
    result = train(parties, SplitNet(**SMALL, shape="u", audit=["norm", "direction", "completion", "inversion"]))
    assert set(read_leaks(result)) == {"norm", "direction", "completion", "inversion"}
    told = result.learns
    assert "every party's embedding" in told["host-1"][-3]
    assert not any("embedding" in line for line in told["guest"])
    assert "trunk" not in result.replies["guest"]["half"]["part"]


@pytest.mark.parametrize("shape", ["label", pytest.param("u", marks=pytest.mark.slow)])
def test_images_at_a_host_and_labels_at_the_guest(shape):
    rng = np.random.default_rng(0)
    n = 500
    images, y = rng.normal(size=(n, 1, 8, 8)).astype(np.float32), rng.integers(0, 3, n)
    for k in range(n):
        images[k, 0, 2 * y[k] : 2 * y[k] + 3, 1:5] += 2
    ids, order = np.arange(n), rng.permutation(n)
    shop = Dataset({"x": images[order], "id": ids[order]})
    model = SplitNet(image=(1, 8, 8), channels=(4,), epochs=6, rate=0.01, shape=shape)
    parties = {"bank": {"id": ids, "y": y}, "shop": shop}
    result = train(parties, model)
    assert result.scores["test/federated/accuracy"] > 0.9 > 0.6 > result.scores["test/alone/accuracy"]
    assert result.compare(train_pooled(result.job, parties, result))["difference"] < 1e-5
    with pytest.raises(ConfigError, match=r"image=\[3, 8, 8\] of 192 numbers, and a host with 64 columns"):
        train(parties, SplitNet(image=(3, 8, 8), channels=(4,)))


# What a peer sends is checked.


class Scripted:
    """A session whose other roles say what is written down."""

    def __init__(self, *messages, names=("peer",)):
        self.messages, self.names, self.sent = list(messages), list(names), []

    async def recv(self, role):
        return self.messages.pop(0)

    async def send(self, role, message):
        self.sent.append(message)

    async def broadcast(self, message, roles):
        self.sent.append(message)


GOOD = np.zeros((10, 4), np.float32)
WRONG = {
    "no embeddings of 'peer' of shape": [{"step": 0, "cut": GOOD[:9]}, {"step": 0, "cut": GOOD.astype(np.float64)}, {"step": 0}, {"step": 0, "cut": "x"}],
    "for step 3 at step 0": [{"step": 3, "cut": GOOD}],
    "for step True at step 0": [{"step": True, "cut": GOOD}],
    "for step None at step 0": [{"cut": GOOD}, None, [1]],
    "NaN or infinity in the embeddings of 'peer'": [{"step": 0, "cut": GOOD + np.nan}, {"step": 0, "cut": GOOD + np.inf}],
}  # fmt: skip


@pytest.mark.parametrize(("match", "message"), [(match, one) for match, several in WRONG.items() for one in several])
def test_frames_that_are_none_are_refused(match, message):
    model, x = SplitNet(**{**SMALL, "batch": 10}), np.random.default_rng(0).normal(size=(20, 3))
    rows = GuestRows(x, (x[:, 0] > 0).astype(float), TreeLoss(LOGISTIC))
    with pytest.raises(AtollError, match=match):
        asyncio.run(model.train_guest(rows, Scripted(message), ["peer"], secret=Secret(0)))
    hosts = {"hosts": ["me"]}
    with pytest.raises(AtollError, match=match.replace("embeddings", "gradients")):
        asyncio.run(model.train_host(x, Scripted(hosts, message), "peer", secret=Secret(0)))
    apart = SplitNet(**{**SMALL, "batch": 10, "top": (4,), "shape": "u"})
    with pytest.raises(AtollError, match=match):
        asyncio.run(apart.train_host(x, Scripted(hosts, message), "peer", secret=Secret(0)))
    with pytest.raises(AtollError, match=match.replace("embeddings", "features")):
        asyncio.run(apart.train_guest(rows, Scripted(message), ["peer"], secret=Secret(0)))


@pytest.mark.parametrize("told", [None, {}, {"hosts": "me"}, {"hosts": []}, {"hosts": ["peer", "me"]}, {"hosts": ["me", "you"]}, {"hosts": [1]}])  # fmt: skip
def test_a_false_list_of_hosts_is_refused(told):
    with pytest.raises(AtollError, match="no list of hosts from 'peer'"):
        asyncio.run(SplitNet(**SMALL).train_host(GOOD, Scripted(told), "peer", secret=Secret(0)))


@pytest.mark.parametrize(("setting", "value"), [("hidden", (0,)), ("width", 0), ("top", (2.5,)), ("epochs", 0), ("batch", 0), ("optimizer", "magic"), ("rate", 0.0), ("momentum", 1.0), ("decay", -1.0), ("checkpoint_every", -1), ("shape", "v"), ("image", (8, 8)), ("image", (1, 3, 3)), ("channels", (0,))])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting, value):
    with pytest.raises(ConfigError, match=f"{setting}="):
        SplitNet(**{setting: value})


def test_the_costs_of_a_training_are_told_before_it():
    table = draw(402, 600)
    parties, _ = as_parties(table, 2)
    job = Vertical(model=SplitNet(**SMALL))
    result = train(parties, job.model)
    columns = [len(each) - 1 - (name == "guest") for name, each in parties.items()]
    foreseen = job.predict_cost({name: len(each["id"]) for name, each in parties.items()}, columns)
    assert foreseen["bytes"] == pytest.approx(result.cost["bytes"], rel=0.25)
    assert foreseen["seconds"] > 0
