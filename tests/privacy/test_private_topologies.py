"""Where a privacy mechanism is sound: topologies say so, and others refuse it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAvg, OutputPerturbation
from atoll.core.algebra import tree as T
from atoll.core.capability import RELEASED_ONLY
from atoll.core.errors import CompositionError
from atoll.learn.topology.base import Topology
from atoll.topology import (
    CFL,
    ClusteredGossip,
    Cooperative,
    Cyclic,
    DefKT,
    Gossip,
    Hierarchical,
    RandomWalk,
    Star,
    Swarm,
)

SOUND = [
    Star(),
    Gossip(),
    RandomWalk(tokens=2),
    Cyclic(),
    Swarm(),
    Cooperative(every=1),
    Hierarchical(),
    ClusteredGossip(),
    CFL(),
]
PRIVATE = OutputPerturbation(base=FedAvg(lr=0.1), tau=1.0, sigma=0.5)


@dataclass(frozen=True)
class Own(Topology):
    """Somebody's own, which says nothing of privacy."""

    def course(self, context):
        return Star().course(context)


def data(noise=0.0):
    """Two classes of iris at six clients; with ``noise`` other rows of the same sizes."""
    full = atoll.data.iris()
    two = full.take(np.flatnonzero(np.asarray(full.y) < 2))
    x = np.asarray(two.x, dtype=np.float64) / 10.0
    x = x + noise * np.random.default_rng(0).normal(size=x.shape)
    made = atoll.data.Dataset({"x": x, "y": np.asarray(two.y)}, task="classification", name="two irises")
    return atoll.data.iid(made, parties=6, seed=1)


def job(topology, algorithm=PRIVATE):
    return atoll.Training(
        model=atoll.models.linear(4, 2),
        algorithm=algorithm,
        topology=topology,
        selection=atoll.Everyone(),
        rounds=2,
    )


def test_a_topology_that_does_not_say_so_refuses_a_mechanism():
    with pytest.raises(
        CompositionError, match=r"Own does not say that a privacy mechanism is sound on it.*of your own that offers it"
    ):
        atoll.simulate(job(Own()), data(), engine="inline")
    assert len(atoll.simulate(job(Own(), FedAvg(lr=0.1)), data(), engine="inline").metrics) == 2


def test_topologies_say_where_it_is_sound():
    assert RELEASED_ONLY not in Topology().offers
    assert RELEASED_ONLY not in DefKT().offers
    assert all(RELEASED_ONLY in topology.offers for topology in SOUND)


@dataclass(frozen=True, kw_only=True)
class Released(OutputPerturbation):
    """Releases zeros: whatever else the clients' data change has gone around the mechanism."""

    def privatise(self, entry, noise):
        return T.zeros_like(entry)


@pytest.mark.parametrize("topology", SOUND, ids=lambda t: type(t).__name__)
def test_nothing_goes_around_the_mechanism(topology):
    """With a mechanism that releases nothing of the data, other data leave the model and the history as they were."""
    job_ = job(topology, Released(base=FedAvg(lr=0.1), tau=1.0, sigma=0.5))
    runs = [atoll.simulate(job_, data(noise), engine="inline", seed=3, secret_seed=4) for noise in (0.0, 0.3)]
    one, two = runs
    assert all(np.array_equal(a, b) for a, b in zip(T.leaves(one.params), T.leaves(two.params), strict=True))
    hidden = {"test/loss", "test/accuracy"}
    rows = [[{k: v for k, v in row.items() if k not in hidden} for row in run.metrics] for run in runs]
    assert rows[0] == rows[1]


def test_what_goes_around_it_would_be_seen():
    """The same comparison without a mechanism tells the data apart."""
    one, two = (
        atoll.simulate(job(Gossip(), FedAvg(lr=0.1)), data(noise), engine="inline", seed=3) for noise in (0, 0.3)
    )
    assert any(not np.array_equal(a, b) for a, b in zip(T.leaves(one.params), T.leaves(two.params), strict=True))
