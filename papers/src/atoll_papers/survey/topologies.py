"""The same methods without a single server."""

from __future__ import annotations

from typing import Any

from atoll.algorithms import FedAvg, Scaffold, Walkman
from atoll.topology import ClusteredGossip, Complete, Gossip, Hierarchical, RandomWalk, Ring

from .row import SurveyRow

__all__ = ["ROWS"]


_T1: dict[str, Any] = {"lr": 0.01, "steps": 1, "batch_size": None}
_T5: dict[str, Any] = {"lr": 0.01, "steps": 5, "batch_size": None}


def _on(topology: Any) -> dict[str, Any]:
    from atoll.learn import Evaluation

    return {"topology": topology, "evaluation": Evaluation(every=10_000)}


ROWS = (
    SurveyRow(
        name="gossip on the complete graph, FedAvg T=5",
        algorithm=FedAvg(**_T5),
        more=_on(Gossip(graph=Complete())),
        reference=7.67e-2,
        rounds=200,
        quick=False,
        origin="equals FedAvg with a server, T=5",
    ),
    SurveyRow(
        name="gossip on a ring, FedAvg T=1",
        algorithm=FedAvg(**_T1),
        more=_on(Gossip(graph=Ring())),
        reference=2.32e-01,
        rounds=200,
    ),
    SurveyRow(
        name="gossip on a ring, FedAvg T=5",
        algorithm=FedAvg(**_T5),
        more=_on(Gossip(graph=Ring())),
        reference=1.88,
        rounds=200,
        quick=False,
    ),
    SurveyRow(
        name="gossip on a ring, SCAFFOLD T=5 (gradient tracking)",
        algorithm=Scaffold(**_T5),
        more=_on(Gossip(graph=Ring())),
        below=1e-6,
        rounds=200,
        origin="gradient tracking has the optimum as its fixed point",
    ),
    SurveyRow(
        name="client-edge-cloud, kappa_2=1, FedAvg T=5",
        algorithm=FedAvg(**_T5),
        more=_on(Hierarchical(groups=2)),
        reference=7.67e-2,
        rounds=200,
        quick=False,
        origin="equals FedAvg with one server, T=5",
    ),
    SurveyRow(
        name="client-edge-cloud, 5 edges, kappa_2=4, FedAvg T=5",
        algorithm=FedAvg(**_T5),
        more=_on(Hierarchical(groups=5, every=4)),
        rounds=100,
        reference=5.51e-01,
    ),
    SurveyRow(
        name="5 edges gossip on a ring, FedAvg T=5",
        algorithm=FedAvg(**_T5),
        more=_on(ClusteredGossip(groups=5, graph=Ring())),
        reference=2.18e-01,
        rounds=200,
        quick=False,
    ),
    SurveyRow(
        name="random walk, Walkman rho=3 T=5",
        algorithm=Walkman(rho=3.0, lr=0.02, steps=5, batch_size=None),
        more=_on(RandomWalk(hops=10)),
        rounds=150,
        below=1e-9,
        origin="its fixed point is the optimum",
        quick=False,
    ),
)
