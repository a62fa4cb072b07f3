"""A server's state, as every course and every node that is its own server keeps it: how it begins, its model, and what travels beside a broadcast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.core.algebra.tree import Tree

from ..offered import wants_round

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

    from ..context import Context

__all__ = ["beside", "global_model", "initial"]


def initial(fed: Federation, context: Context) -> Tree:
    """The state of a training before its first round."""
    params = context.learner.init(fed.rng.child("init"))
    context.aggregation.check(context.algorithm, params)
    return {
        "server": context.algorithm.init(params),
        "aggregation": context.aggregation.init(params),
        "weight": None,
        "selection": context.selection.init(fed.parties),
        "contacts": 0,
        "buffers": context.learner.buffers(),
        "down": {},
    }


def global_model(state: Tree) -> Tree:
    """The global model: its parameters, and the running statistics that clients average."""
    params = state["server"]["params"]
    return {**params, **state["buffers"]} if state["buffers"] else params


def beside(state: Tree, learner: Any, number: int) -> Tree:
    """What a broadcast carries beside the algorithm's own: the running statistics, where there are any, and the contact's number for a loss that asks for it.

    Args:
        state: with ``"buffers"``.
        learner: its ``wants_round`` says whether the loss asks.
        number: of the contact.
    """
    statistics = {"buffers": state["buffers"]} if state["buffers"] else {}
    return {**statistics, "round": number} if wants_round(learner) else statistics
