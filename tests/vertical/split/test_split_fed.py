"""SplitFed is what PyTorch makes of the same batches: one client's training, federated averaging of the whole network, or one top for all clients."""

from __future__ import annotations

import asyncio
import copy

import numpy as np
import pytest

import atoll
from atoll.core.errors import AtollError, CompositionError, ConfigError
from atoll.core.requests.party import Roster
from atoll.core.world import World
from atoll.engines import Inline
from atoll.reducers import SecureAggregation
from atoll.testing import killed_and_resumed
from atoll.trees.objectives import LOGISTIC, SOFTMAX, TreeLoss
from atoll.trees.tree import auc
from atoll.vertical import MaxNorm, SplitFed, SplitFedResult, SplitNet, SunModules
from atoll.vertical.split.split_fed import read_client
from tests.support.split_toys import SMALL, DoubleNet, draw_clients, module_of

torch = pytest.importorskip("torch")


def train(job, islands, **more):
    return atoll.simulate(job, islands, engine="inline", progress=False, **more).outcome


def modules_of(net, columns, outputs):
    """The network as modules of PyTorch's own: bottom, trunk, head."""
    trunk, head = net.tops(1, outputs)
    layers = {"bottom": net.bottom(columns, 1), "trunk": trunk, "head": head}
    names = {name: (name, 0) if name == "bottom" else (name,) for name in layers}
    return torch.nn.ModuleList(module_of(net.segment(layers[name], *names[name])) for name in layers)


class Trainer:
    """A network that one client, or one client and the server, train by PyTorch's optimisers."""

    def __init__(self, net, modules, data, rounds):
        self.net, self.modules, self.data = net, modules, data
        self.x = torch.from_numpy(np.array(data["x"]))
        self.y = torch.from_numpy(np.array(data["y"]))
        batches = DoubleNet(**{**SMALL, "epochs": rounds * net.epochs, "seed": net.seed}).batches(len(data))
        self.steps = [at for _, at in batches.from_step(0)]
        self.many = len(self.steps) // rounds
        self.optimizers = [self._optimizer(one) for one in modules]

    def _optimizer(self, module):
        if self.net.optimizer == "adam":
            return torch.optim.Adam(module.parameters(), lr=self.net.rate)
        return torch.optim.SGD(module.parameters(), lr=self.net.rate, momentum=self.net.momentum)

    def step(self, at):
        for one in self.optimizers:
            one.zero_grad()
        margins = self.x[at]
        for one in self.modules:
            margins = one(margins)
        functional = torch.nn.functional
        if margins.shape[1] == 1:
            loss = functional.binary_cross_entropy_with_logits(margins[:, 0], self.y[at].double())
        else:
            loss = functional.cross_entropy(margins, self.y[at])
        loss.backward()
        for one in self.optimizers:
            one.step()


def average(trainers, places):
    """Put the average of some modules, weighted by rows, into all trainers."""
    rows = np.array([len(one.data) for one in trainers], float)
    for k in places:
        states = [copy.deepcopy(one.modules[k].state_dict()) for one in trainers]
        mean = {name: sum(w * s[name] for w, s in zip(rows / rows.sum(), states, strict=True)) for name in states[0]}
        for one in trainers:
            one.modules[k].load_state_dict(mean)


def weights_of(result):
    return [np.asarray(one) for name in ("bottom", "trunk", "head") for one in result.parts[name]["weights"]]


def expect_by_pytorch(net, islands, rounds, version, outputs):
    shared = modules_of(net, 6, outputs)
    trainers = []
    for k in range(len(islands)):
        modules = list(modules_of(net, 6, outputs))
        modules[1:] = list(shared)[1:] if version == 2 else modules[1:]
        trainers.append(Trainer(net, modules, islands.shard(k), rounds))
    if version == 2:
        for one in trainers[1:]:  # one top has one memory
            one.optimizers[1:] = trainers[0].optimizers[1:]
    for turn in range(rounds):
        for k in range(max(one.many for one in trainers)):
            for one in trainers:
                if k < one.many:
                    one.step(one.steps[turn * one.many + k])
        average(trainers, (0, 1, 2) if version == 1 else (0,))
    return [value.detach().numpy() for one in trainers[0].modules for value in one.parameters()]


@pytest.mark.parametrize(
    ("sizes", "version", "shape", "settings"),
    [
        ((100,), 1, "label", {}),
        ((100,), 2, "u", {}),
        ((90, 90, 90), 1, "label", {"optimizer": "sgd", "rate": 0.1, "momentum": 0.9}),
        ((90, 31), 1, "u", {}),
        ((90, 31), 2, "label", {}),
        pytest.param((100,), 1, "u", {"top": (7, 3)}, marks=pytest.mark.slow),
        pytest.param((50, 120, 31), 2, "label", {"hidden": (), "top": ()}, marks=pytest.mark.slow),
        pytest.param((50, 120, 31), 1, "label", {"hidden": (), "top": ()}, marks=pytest.mark.slow),
    ],
)
def test_it_is_what_pytorch_makes_of_the_same_batches(sizes, version, shape, settings):
    """One client: split learning, and the network that is not split. Several in version 1: federated averaging of the whole network. In version 2: one top, which takes their batches in turn."""
    classes = 3 if len(sizes) == 2 else 2
    islands, net = draw_clients(sizes, classes), DoubleNet(**{**SMALL, "shape": shape, **settings})
    found = train(SplitFed(net=net, version=version, rounds=3), islands)
    expected = expect_by_pytorch(net, islands, 3, version, 3 if classes == 3 else 1)
    for one, other in zip(weights_of(found), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


def test_bottoms_may_be_added_up_under_masks_and_test_rows_are_scored():
    islands = draw_clients((60, 60, 60))
    islands = islands.with_test(islands.pooled())
    job = SplitFed(net=SplitNet(**SMALL, rate=0.05), rounds=2)
    run = atoll.simulate(job, islands, engine="inline", progress=False)
    hidden = train(SplitFed(net=job.net, rounds=2, reducer=SecureAggregation()), islands)
    assert any((a != b).any() for a, b in zip(weights_of(run.outcome), weights_of(hidden), strict=True))
    for one, other in zip(weights_of(run.outcome), weights_of(hidden), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-3)
    rows = islands.pooled()
    expected = auc(np.asarray(rows.y), run.outcome.predict(rows.x)[:, 0])
    assert run.metrics.last("test/auc") == pytest.approx(expected)
    told = str(run.job.explain(islands)) + str(SplitFed(net=SplitNet(**SMALL, shape="u")).explain(islands))
    assert "the label of each row" in told
    assert "tells much of its label" in told


def test_engines_agree(tmp_path):
    islands, job = draw_clients((60, 45)), SplitFed(net=SplitNet(**SMALL), rounds=2, version=2)
    one, other = (
        atoll.simulate(job, islands, engine=name, progress=False, workers=1).outcome for name in ("inline", "batched")
    )
    for a, b in zip(weights_of(one), weights_of(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.network
def test_engines_with_processes_agree():
    islands, job = draw_clients((60, 45)), SplitFed(net=SplitNet(**SMALL), rounds=2)
    one, other = (
        atoll.simulate(job, islands, engine=name, progress=False, workers=2).outcome for name in ("inline", "socket")
    )
    for a, b in zip(weights_of(one), weights_of(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("points", [2, pytest.param(9, marks=pytest.mark.slow)])
def test_killed_and_resumed_it_is_the_same(tmp_path, points):
    islands = draw_clients((60, 45))
    net = SplitNet(**{**SMALL, "top": (4,), "shape": "u"}, defence=[SunModules(distance=0.1), MaxNorm()])
    ready = SplitFed(net=net, rounds=3, version=2).prepare(islands)

    async def program(fed):
        found = await ready.program(fed)
        return {str(k): one for k, one in enumerate(weights_of(found))}

    program.tasks = ready.tasks

    def world(folder, resume):
        return World(
            islands,
            Inline(),
            roster=Roster(islands.names, others={"top": "top"}),
            folder=folder,
            resume=resume,
            secret_seed=1,
        )

    assert len(killed_and_resumed(world, program, tmp_path, points=points).result) == 8


def test_the_server_gets_no_labels_in_a_u():
    """What a client says first is all that it says beside embeddings and gradients."""
    ready = SplitFed(net=SplitNet(**SMALL, shape="u")).prepare(draw_clients((30,)))
    sent = []

    class Peers:
        async def send(self, role, message):
            sent.append((role, message))

        async def recv(self, role):
            raise RuntimeError("nobody answers")

    class Place:
        data, state, name = draw_clients((30,)).shard(0), None, "client-0"

    with pytest.raises(RuntimeError, match="nobody answers"):
        asyncio.run(ready._client(Place, Peers(), turn=0, shared=None))
    assert [(role, set(message)) for role, message in sent] == [("top", {"rows"}), ("top", {"step", "cut"})]


@pytest.mark.parametrize(
    "message", [None, {}, {"rows": 0, "y": np.zeros(0)}, {"rows": True, "y": np.zeros(1)}, {"rows": 2, "y": np.zeros(3)}, {"rows": 2, "y": [0, 1]}, {"rows": 2, "y": np.array([0.0, 2.0])},
                {"rows": 2, "y": np.array([0.0, np.nan])}, {"rows": 2, "y": np.array([0.0, -1.0])}],
)  # fmt: skip
def test_a_client_that_says_something_else_is_refused(message):
    with pytest.raises(AtollError, match="'shop'"):
        read_client(message, "shop", TreeLoss(LOGISTIC), labels=True)
    assert read_client({"rows": 3, "y": np.array([0, 1, 2])}, "shop", TreeLoss(SOFTMAX, 3), labels=True)[0] == 3


@pytest.mark.parametrize(
    ("made", "error", "match"),
    [
        (lambda: SplitFed(version=3), ConfigError, "version=3"),
        (lambda: SplitFed(rounds=0), ConfigError, "rounds=0"),
        (lambda: SplitFed(net=SplitNet(audit=["norm"])), CompositionError, "audit="),
        (lambda: SplitFed(net=SplitNet(defence=[MaxNorm()])), CompositionError, "MaxNorm hides labels"),
        (lambda: SplitFed(net="net"), AtollError, "net: 'net' is not"),
    ],
)
def test_settings_that_make_no_sense_are_refused(made, error, match):
    with pytest.raises(error, match=match):
        made()


def test_a_run_folder_keeps_the_network(tmp_path):
    islands = draw_clients((30, 20))
    job = SplitFed(net=SplitNet(**SMALL), rounds=1)
    found = atoll.simulate(job, islands, engine="inline", progress=False).outcome
    for name, content in job.prepare(islands).files(found).items():
        (tmp_path / name).write_bytes(content)
    x = np.ones((3, 6))
    np.testing.assert_array_equal(SplitFedResult.load(tmp_path, job).predict(x), found.predict(x))
    with pytest.raises(ConfigError, match="no trained network in"):
        SplitFedResult.load(tmp_path / "elsewhere", job)
