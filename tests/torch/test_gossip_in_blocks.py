"""Gossip of PyTorch models: the nodes of a round are one block, and equal the nodes one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

import atoll
from atoll.algorithms import FedAvg, FedDyn, MimeLite, PFedMe, Scaffold, Upcycled
from atoll.core.errors import AtollError
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.learn.topology.node import Node
from atoll.stages import TopK
from atoll.testing import killed_and_resumed
from atoll.topology import Complete, Gossip, Membership, Ring, TimeVarying
from tests.support.torch_toys import seeded

LOCAL: dict[str, Any] = {"lr": 0.1, "epochs": 2, "batch_size": 8}
NODES = 6
CASES = {
    "one broadcast a node": (FedAvg(**LOCAL), Gossip(graph=Ring())),
    "state at the client": (Scaffold(**LOCAL), Gossip(graph=TimeVarying(Ring(), 0.9), mixing=2)),
    "steps that look at the broadcast": (
        FedDyn(**LOCAL, alpha=0.1),
        Gossip(graph=Ring(), compress=TopK(0.3), gamma=0.4),
    ),
    "two phases, and rounds without work": (
        Upcycled(base=MimeLite(**LOCAL, optimiser="adam"), coefficient=0.2),
        Gossip(graph=Complete()),
    ),
    "models of their own": (
        PFedMe(**LOCAL, lam=5.0, k=2),
        Gossip(graph=Complete(), members=Membership(joins=((2, 2),), leaves=((0, 3),))),
    ),
}


@pytest.fixture(scope="module")
def islands() -> Any:
    digits = atoll.data.digits()
    few = atoll.data.Dataset({"x": digits.x[:150], "y": digits.y[:150]}, task="classification")
    return atoll.data.dirichlet(few, parties=NODES, alpha=0.5, seed=0)


def job(algorithm: Any, topology: Any, model: Any = None, rounds: int = 3) -> Any:
    return atoll.Training(
        model=model or atoll.models.mlp(64, 10, hidden=(12,)),
        algorithm=algorithm,
        topology=topology,
        selection=atoll.Everyone(),
        rounds=rounds,
        evaluation=atoll.Evaluation(every=rounds),
    )


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.quick("models*", "state*", "one*")
def test_blocks_of_nodes_equal_one_by_one(islands: Any, case: str, monkeypatch: pytest.MonkeyPatch):
    """To 1e-5 of the largest weight, as for cohorts; and the batched engine never runs a node by itself."""
    one = atoll.simulate(job(*CASES[case]), islands, engine="inline", seed=3)
    monkeypatch.setattr(Node, "round", lambda *_: pytest.fail("a node was run by itself"))
    many = atoll.simulate(job(*CASES[case]), islands, engine="batched", workers=1, seed=3)
    for name, value in one.params.items():
        np.testing.assert_allclose(many.params[name], value, rtol=0, atol=1e-5 * np.abs(value).max(), err_msg=name)
    assert len(one.metrics) == len(many.metrics) == 3
    for mine, other in zip(one.metrics, many.metrics, strict=True):
        assert list(mine) == list(other)
        for name in ("bytes_up", "bytes_down", "selected", "replied", "silent", "rejected"):
            assert mine.get(name) == other.get(name), name
        for name in {"loss", "consensus"} & {name for name, value in mine.items() if value is not None}:
            assert other[name] == pytest.approx(mine[name], rel=1e-4, abs=1e-6), name


@pytest.mark.network
def test_a_node_that_diverges_is_named_and_the_others_are_not_blamed(islands: Any):
    """The same error on both engines: it is one node's, not the block's."""
    said = {}
    for engine in ("inline", "batched"):
        with pytest.raises(AtollError, match=r"not finite") as caught:
            atoll.simulate(job(FedAvg(lr=1e30, epochs=2), Gossip(graph=Ring())), islands, engine=engine, seed=3)
        said[engine] = str(caught.value)
    assert said["inline"] == said["batched"]
    assert str(islands.names[0]) in said["batched"]


def test_running_statistics_keep_nodes_apart(islands: Any):
    """A model with normalisation layers that average is trained node by node, as cohorts are."""
    model = seeded(lambda: nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)))
    assert job(FedAvg(**LOCAL), Gossip(), model).learner(islands).apart() is None
    one, many = (
        atoll.simulate(job(FedAvg(**LOCAL), Gossip(), model, 1), islands, engine=engine, seed=3)
        for engine in ("inline", "batched")
    )
    for name, value in one.params.items():
        np.testing.assert_array_equal(many.params[name], value, err_msg=name)


@pytest.mark.slow
def test_a_killed_run_in_blocks_resumes_to_the_bit(islands: Any, tmp_path: Any):
    """How blocks are run is decided once and kept with the run."""

    def world(folder: Any, resume: bool) -> World:
        made = World(islands, ENGINES["batched"](1), folder=folder, resume=resume)
        made.registry.update({known.name: known for known in training.named_tasks(learner, islands)})
        return made

    async def params(fed: Any) -> Any:
        learned = training.learner(islands)  # a life of its own: nothing is decided yet
        return (await training.program(islands, learned)(fed)).params

    training = job(*CASES["state at the client"], rounds=2)
    learner = training.learner(islands)
    killed_and_resumed(world, params, tmp_path, points=1)
