"""FedGKT is what PyTorch makes of its two losses; without divergences the server's training is a plain one on features."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.core.algebra.rng import Rng
from atoll.core.errors import AtollError, CompositionError, ConfigError, DataError
from atoll.core.requests.party import Roster
from atoll.core.world import World
from atoll.data import Dataset
from atoll.engines import Inline
from atoll.stages import TopK
from atoll.testing import killed_and_resumed
from atoll.trees.objectives import LOGISTIC, SOFTMAX, TreeLoss
from atoll.trees.tree import auc
from atoll.vertical import FedGKT, SplitNet
from atoll.vertical.split.fed_gkt import distil
from tests.support.split_toys import SMALL, DoubleNet, draw_clients, module_of

torch = pytest.importorskip("torch")
F = torch.nn.functional


def train(job, islands, **more):
    return atoll.simulate(job, islands, engine="inline", progress=False, **more).outcome


def loss_by_pytorch(z, y, teacher, temperature, weight):
    """The losses of the paper, as its equations are written."""
    if z.shape[1] == 1:
        found = F.binary_cross_entropy_with_logits(z[:, 0], y.double())
        sides = [] if teacher is None else [torch.sigmoid(one / temperature) for one in (teacher, z)]
        p, q = (torch.cat([1 - s, s], 1) for s in sides) if sides else (None, None)
    else:
        found = F.cross_entropy(z, y)
        p, q = (torch.softmax(one / temperature, 1) for one in (teacher, z)) if teacher is not None else (None, None)
    if p is None:
        return found
    return found + weight * temperature**2 * (p * (p / q).log()).sum(dim=1).mean()


@pytest.mark.parametrize(
    ("classes", "weight"), [(2, 1.5), (3, 0.0), pytest.param(3, 1.5, marks=pytest.mark.slow), pytest.param(2, 0.0, marks=pytest.mark.slow)],
)  # fmt: skip
def test_it_is_what_pytorch_makes_of_its_losses(classes, weight):
    islands, net = draw_clients((60, 45), classes), DoubleNet(**{**SMALL, "top": (7,)})
    job = FedGKT(net=net, rounds=2, server_epochs=2, weight=weight, temperature=2.0)
    found = train(job, islands)
    ready = job.prepare(islands)
    segments = ready.large()
    top = torch.nn.Sequential(module_of(segments["trunk"]), module_of(segments["head"]))
    server = torch.optim.Adam(top.parameters(), lr=net.rate)
    small, data, teachers, steps = [], [], [], []
    for k in range(2):
        parts, shard = ready.small(), islands.shard(k)
        one = torch.nn.ModuleList([module_of(parts["bottom"]), module_of(parts["head"])])
        small.append((one, torch.optim.Adam(one.parameters(), lr=net.rate)))
        data.append((torch.from_numpy(np.array(shard["x"])), torch.from_numpy(np.array(shard["y"]))))
        teachers.append(None)
        steps.append([at for _, at in DoubleNet(**{**SMALL, "epochs": 4}).batches(len(shard)).from_step(0)])
    for turn in range(2):
        heard = []
        for k, (one, optimizer) in enumerate(small):
            x, y = data[k]
            many = len(steps[k]) // 2
            for at in steps[k][turn * many : (turn + 1) * many]:
                optimizer.zero_grad()
                known = None if teachers[k] is None else teachers[k][at]
                loss_by_pytorch(one[1](one[0](x[at])), y[at], known, 2.0, weight).backward()
                optimizer.step()
            with torch.no_grad():
                heard.append((one[0](x), one[1](one[0](x))))
        for epoch in (2 * turn, 2 * turn + 1):
            for k, (h, z) in enumerate(heard):
                drawn = Rng.of(0).child("server", f"client-{k}").child("epoch", epoch).generator().permutation(len(h))
                for i in range(0, len(h), net.batch):
                    at = drawn[i : i + net.batch]
                    server.zero_grad()
                    plain = None if weight == 0 else z[at]  # with weight 0: a plain training on features
                    loss_by_pytorch(top(h[at]), data[k][1][at], plain, 2.0, weight).backward()
                    server.step()
        with torch.no_grad():
            teachers = [top(h) for h, _ in heard]
    rows = np.array(islands.shard(1)["x"])
    with torch.no_grad():
        features = small[1][0][0](torch.from_numpy(rows))
        for alone, margins in ((False, top(features)), (True, small[1][0][1](features))):
            expected = found.objective.predict(margins.numpy())
            np.testing.assert_allclose(found.predict("client-1", rows, alone=alone), expected, rtol=0, atol=1e-12)


@given(st.integers(0, 10**6), st.sampled_from([1, 2, 4]), st.floats(0.5, 5), st.floats(0, 3))
def test_the_divergence_is_zero_for_ones_own_logits_and_never_less(seed, outputs, temperature, weight):
    rng = np.random.default_rng(seed)
    z, other = (torch.from_numpy(rng.normal(size=(9, outputs)) * 3) for _ in range(2))
    objective = TreeLoss(LOGISTIC) if outputs == 1 else TreeLoss(SOFTMAX, outputs)
    y = torch.from_numpy(rng.integers(0, max(2, outputs), 9))
    y = y.double() if outputs == 1 else y
    plain = float(distil(objective, z, y, None, temperature, weight))
    assert float(distil(objective, z, y, z, temperature, weight)) == pytest.approx(plain, abs=1e-12)
    assert float(distil(objective, z, y, other, temperature, weight)) >= plain - 1e-12
    assert float(distil(objective, z, y, other, temperature, 0.0)) == plain


def test_test_rows_are_scored_with_the_server_and_alone():
    islands = draw_clients((60, 45))
    job, rows = FedGKT(net=SplitNet(**SMALL), rounds=2), islands.pooled()
    run = atoll.simulate(job, islands.with_test(rows), engine="inline", progress=False)
    facts = job.prepare(islands.with_test(rows)).facts(run.outcome)["result"]
    for name, alone in (("test/auc", False), ("test/alone/auc", True)):
        expected = [auc(np.asarray(rows.y), run.outcome.predict(one, rows.x, alone=alone)[:, 0]) for one in ("client-0", "client-1")]  # fmt: skip
        assert facts[name] == pytest.approx(np.mean(expected))
    assert "label of each row" in str(job.explain(islands))


def test_killed_and_resumed_it_is_the_same(tmp_path):
    islands = draw_clients((60, 45))
    ready = FedGKT(net=SplitNet(**SMALL), rounds=3).prepare(islands)

    async def program(fed):
        return await ready.program(fed)

    program.tasks = ready.tasks

    def world(folder, resume):
        return World(islands, Inline(), roster=Roster(islands.names, others={"top": "top"}), folder=folder, resume=resume)  # fmt: skip

    assert len(killed_and_resumed(world, program, tmp_path, points=2).result["top"]["losses"]) == 3


@pytest.mark.parametrize(
    ("made", "error", "match"),
    [
        (lambda: FedGKT(rounds=0), ConfigError, "rounds=0"),
        (lambda: FedGKT(server_epochs=0), ConfigError, "server_epochs=0"),
        (lambda: FedGKT(temperature=0.0), ConfigError, "temperature="),
        (lambda: FedGKT(weight=-1.0), ConfigError, "weight="),
        (lambda: FedGKT(net=SplitNet(uplink=[TopK(0.5)])), CompositionError, "uplink="),
        (lambda: FedGKT(net=SplitNet(shape="u")), CompositionError, "shape="),
        (lambda: FedGKT(net=3), AtollError, "net: 3 is not"),
        (lambda: train(FedGKT(), {"a": Dataset({"x": np.ones((9, 2)), "y": np.arange(9.0)}, task="regression")}), DataError, "labels that are numbers"),
        (lambda: train(FedGKT(rounds=1), draw_clients((20,))).predict("shop", np.ones((1, 6))), ConfigError, "network of 'shop'"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(made, error, match):
    with pytest.raises(error, match=match):
        made()
