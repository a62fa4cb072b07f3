"""Walkman and IFCA keep the contract, on PyTorch too; topologies are written down in configurations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atoll
from atoll.algorithms import IFCA, FedAvg, Scaffold, Walkman
from atoll.core.errors import ConfigError
from atoll.runs.config import parse_config
from atoll.stages import TopK
from atoll.testing import check_algorithm
from atoll.topology import Expander, Gossip, Hierarchical, Membership, RandomWalk, Ring, Star, TimeVarying
from tests.support.learn_toys import flat, islands


@pytest.mark.parametrize("algorithm", [Walkman(lr=0.1), Walkman(lr=0.1, tokens=3), IFCA(base=FedAvg(lr=0.1))], ids=repr)
def test_the_contract(algorithm: Any):
    check_algorithm(algorithm, descends=not isinstance(algorithm, IFCA))


@pytest.mark.network
@pytest.mark.parametrize(
    ("algorithm", "topology"),
    [
        (Scaffold(lr=0.1), Gossip(graph=Ring())),
        (Walkman(lr=0.1, tokens=2), RandomWalk(tokens=2, graph=Ring())),
        (IFCA(base=FedAvg(lr=0.1)), Star()),
    ],
    ids=lambda part: type(part).__name__,
)
def test_pytorch_models_take_part(algorithm: Any, topology: Any):
    pytest.importorskip("torch")
    job = atoll.Training(
        model=atoll.models.mlp(4, 3),
        algorithm=algorithm,
        topology=topology,
        selection=atoll.Everyone(),
        rounds=2,
        evaluation=atoll.Evaluation(every=2),
    )
    data = islands((12, 9, 15, 10))
    one, many = (atoll.simulate(job, data, engine=engine, seed=2).params for engine in ("inline", "batched"))
    np.testing.assert_allclose(flat(many), flat(one), rtol=2e-4, atol=2e-5)


CONFIG = {
    "data": {"source": "digits", "partition": {"name": "dirichlet", "parties": 8, "alpha": 0.5}},
    "model": {"name": "linear", "features": 64, "outputs": 10},
}


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("Star", Star()),
        ("gossip", Gossip()),
        (
            {"name": "Gossip", "graph": {"name": "TimeVarying", "base": {"name": "Expander", "degree": 3}, "up": 0.9}},
            Gossip(graph=TimeVarying(Expander(3), 0.9)),
        ),
        (
            {"name": "Gossip", "compress": {"name": "TopK", "fraction": 0.1}, "gamma": 0.2},
            Gossip(compress=TopK(0.1), gamma=0.2),
        ),
        ({"name": "Gossip", "members": {"joins": [[3, 2]]}}, Gossip(members=Membership(joins=((3, 2),)))),
        ({"name": "Hierarchical", "groups": [[0, 1], [2]], "every": 2}, Hierarchical(groups=((0, 1), (2,)), every=2)),
    ],
    ids=str,
)
def test_a_configuration_says_a_topology(said: Any, meant: Any):
    config = parse_config({**CONFIG, "topology": said})
    assert config.made().topology == meant
    assert parse_config(config.plain()).plain() == config.plain()


def test_a_topology_that_cannot_be_is_refused_where_it_stands():
    with pytest.raises(ConfigError, match=r"topology\.mixing=0"):
        parse_config({**CONFIG, "topology": {"name": "Gossip", "mixing": 0}})
    with pytest.raises(ConfigError, match=r"Did you mean.*Gossip|Gossip"):
        parse_config({**CONFIG, "topology": "Gosip"})
