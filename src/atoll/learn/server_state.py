"""A server's state, as every course and every node that is its own server keeps it: how it begins, its model, and what travels beside a broadcast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.core.tree import Tree

if TYPE_CHECKING:
    from atoll.core.federation import Federation

    from .learner import Learner
    from .training import Training

__all__ = ["beside", "global_model", "initial"]


def initial(fed: Federation, job: Training, learner: Learner) -> Tree:
    """The state of a training before its first round."""
    params = learner.init(fed.rng.child("init"))
    job.aggregation.check(job.algorithm, params)
    return {
        "server": job.algorithm.init(params),
        "aggregation": job.aggregation.init(params),
        "weight": None,
        "selection": job.selection.init(fed.parties),
        "contacts": 0,
        "buffers": learner.buffers(),
        "down": {},
    }


def global_model(state: Tree) -> Tree:
    """The global model: its parameters, and the running statistics that clients average."""
    params = state["server"]["params"]
    return {**params, **state["buffers"]} if state["buffers"] else params


def beside(state: Tree) -> Tree:
    """What a broadcast carries beside the algorithm's own: the running statistics, where there are any."""
    return {"buffers": state["buffers"]} if state["buffers"] else {}
